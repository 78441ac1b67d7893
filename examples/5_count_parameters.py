"""Parameters by formula: a model's size, term by term, checked against the model itself.

The idea. Counting the parameters of a model means knowing each of its matrices. With C channels, L
layers, V tokens, P positions and an inner size F = 4 C, a block of GPT-2 has 12 C C parameters and
a few vectors: the blocks dominate a large model, the vocabulary a small one. A block multiplies
each token by each of its matrices once, so a forward pass takes about 2 operations per parameter
and token, and a training step about 6. An LSTM layer has four gates, each with a matrix for the
input and one for the state.

Sources. Vaswani et al. (2017) and Radford et al. (2019) for the parts; Press & Wolf (2017) for the
tied head; Kaplan et al. (2020) for 12 L C C and the operations; Hochreiter & Schmidhuber (1997) for
the LSTM.

    python examples/5_count_parameters.py
    python examples/5_count_parameters.py gpt2-xl minhub/shakespeare-lstm run/

Output. The sums for GPT-2 124M and an LSTM term by term, and a table of published sizes, without
any download. The formulas of GPT-2, GPT-Neo and the LSTM are checked against
`minhub_py.loading.inspection.inspect`, which counts the tensors of the model.
"""

import argparse
from typing import Any

from minhub_py.loading.inspection import inspect
from minhub_py.models.registry import ARCHITECTURES

BUILT_IN = ["minhub/shakespeare-gpt2", "minhub/shakespeare-gptneo", "minhub/shakespeare-lstm"]
Terms = list[tuple[str, str, str, int]]  # module of the model, description, formula, value


def transformer(V: int, P: int, C: int, L: int, F: int, *, bias_qkv: bool, tied: bool) -> Terms:
    """Terms of GPT-2 and GPT-Neo; in GPT-Neo, q, k and v have no bias. A tied head is the token
    embedding.
    """
    qkv = ("3 C C + 3 C", 3 * C * C + 3 * C) if bias_qkv else ("3 C C", 3 * C * C)
    return [
        ("wte", "token embedding", "V C", V * C),
        ("wpe", "position embedding", "P C", P * C),
        ("h", "two norms in each block", "L 4 C", L * 4 * C),
        ("h", "queries, keys, values", f"L ({qkv[0]})", L * qkv[1]),
        ("h", "attention's projection", "L (C C + C)", L * (C * C + C)),
        ("h", "MLP, C to F", "L (C F + F)", L * (C * F + F)),
        ("h", "MLP, F to C", "L (F C + C)", L * (F * C + C)),
        ("ln_f", "last norm", "2 C", 2 * C),
        ("lm_head", "head", "0, tied" if tied else "V C", 0 if tied else V * C),
    ]


def recurrent(V: int, E: int, H: int, L: int, *, tied: bool) -> Terms:
    """Terms of the LSTM, with embeddings of size E and states of size H. PyTorch has two biases per
    gate.
    """
    return [
        ("embedding", "token embedding", "V E", V * E),
        ("lstm", "first layer, four gates", "4 H (E + H + 2)", 4 * H * (E + H + 2)),
        (
            "lstm",
            "other layers, four gates",
            "(L - 1) 4 H (H + H + 2)",
            (L - 1) * 4 * H * (H + H + 2),
        ),
        ("head", "head", "V, tied" if tied else "V H + V", V if tied else V * H + V),
    ]


def gpt2(config: dict[str, Any]) -> Terms:
    C, L, F = config["n_embd"], config["n_layer"], config["n_inner"]
    V, P, tied = config["vocab_size"], config["n_positions"], config["tie_word_embeddings"]
    return transformer(V, P, C, L, F or 4 * C, bias_qkv=True, tied=tied)


def gptneo(config: dict[str, Any]) -> Terms:
    C, L, F = config["hidden_size"], config["num_layers"], config["intermediate_size"]
    V, P, tied = (
        config["vocab_size"],
        config["max_position_embeddings"],
        config["tie_word_embeddings"],
    )
    return transformer(V, P, C, L, F or 4 * C, bias_qkv=False, tied=tied)


def lstm(config: dict[str, Any]) -> Terms:
    E, H, L = config["embedding_size"], config["hidden_size"], config["num_layers"]
    return recurrent(config["vocab_size"], E, H, L, tied=config["tie_word_embeddings"])


FORMULAS = {"gpt2": gpt2, "gptneo": gptneo, "lstm": lstm}


def check(model: str, terms: Terms, counted: dict[str, int]) -> int:
    """The sum of the terms. ValueError: the sum, or a module's sum, differs from the model."""
    parts: dict[str, int] = {"total": sum(value for *_, value in terms)}
    for part, _, _, value in terms:
        parts[part] = parts.get(part, 0) + value
    if (sums := {name: value for name, value in parts.items() if value}) != counted:
        raise ValueError(f"{model}: the formula gives {sums}, the model has {counted}")
    return parts["total"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    published = [name for family in FORMULAS for name in ARCHITECTURES[family].presets]
    parser.add_argument(
        "models",
        nargs="*",
        default=published + BUILT_IN,
        help="GPT-2, GPT-Neo or LSTM: published sizes or folders",
    )
    args = parser.parse_args()

    for model in ("gpt2", "minhub/shakespeare-lstm"):
        summary = inspect(model)
        terms = FORMULAS[summary["family"]](summary["config"])
        total = check(model, terms, summary["parameters"])
        print(f"{model}, term by term:")
        for part, description, formula, value in terms:
            print(f"  {part:10} {description:25} {formula:25} {value:13,} {value / total:6.1%}")
        print(f"  {'':10} {'total':25} {'':25} {total:13,}\n")

    print(
        "model                         by formula     by the model  12 L C C  MB: float32  bfloat16"
        "    4 bits"
    )
    for model in args.models:
        summary = inspect(model)
        config, counted = summary["config"], summary["parameters"]
        if summary["family"] not in FORMULAS:
            parser.error(
                f"{model} is a {summary['family']}; this page has formulas for"
                f" {', '.join(FORMULAS)}"
            )
        total = check(model, FORMULAS[summary["family"]](config), counted)
        C = config.get("n_embd") or config["hidden_size"]
        L = config.get("n_layer") or config["num_layers"]
        blocks = f"{12 * L * C * C / total:.1%}" if summary["family"] != "lstm" else "-"
        sizes = "".join(f"{total * bits / 8e6:10,.1f}" for bits in (32, 16, 4))
        print(f"{model:26} {total:13,}  {counted['total']:15,}  {blocks:>8}   {sizes}")


if __name__ == "__main__":
    main()
