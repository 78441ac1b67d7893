"""The cost of fewer bits: the KL divergence of the decoder's predictions from float32 predictions,
in nats per token.

    .venv/bin/python benchmarks/rounding.py MODEL… [--kinds bfloat16,int8,int8+bfloat16] [--ids 1600]

MODEL: a name for from_pretrained. The text is this project's README and CONTRIBUTING, which no
model was trained on. Perplexities are misleading if differences are small: some texts become more
likely by chance. "forward": PyTorch's products in bfloat16.
"""

import argparse
import math
from pathlib import Path

import torch
from machine import announce
from torch import Tensor

from minhub_py import from_pretrained, tokenizer_from_pretrained
from minhub_py.inference.native_runner import NativeRunner
from minhub_py.models.base import LanguageModel

ROOT = Path(__file__).parents[1]
TEXTS = [(ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md")]
LENGTH = 800  # tokens of a text
OPTIONS = {"forward": {"dtype": "bfloat16"}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+")
    parser.add_argument("--kinds", default="forward,bfloat16,int8,int8+bfloat16,nf4,nf4+bfloat16")
    parser.add_argument("--ids", type=int, default=1600)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    print(f"{'':32}{'':16}{'KL':>10}{'perplexity':>12}")
    for name in args.models:
        tokenizer = tokenizer_from_pretrained(name)
        ids = [id for text in TEXTS for id in tokenizer.encode(text).ids][: args.ids]
        parts = [ids[first : first + LENGTH] for first in range(0, len(ids), LENGTH)]
        exact = predictions(from_pretrained(name, device="cpu", dtype="float32"), parts)
        report(name, "float32", exact, exact, parts)
        for kind in args.kinds.split(","):
            options = {"dtype" if "float" in word else "quantize": word for word in kind.split("+")}
            model = from_pretrained(name, device="cpu", **OPTIONS.get(kind, options))
            report(name, kind, predictions(model, parts, kind == "forward"), exact, parts)


def predictions(
    model: LanguageModel, parts: list[list[int]], forward: bool = False
) -> list[Tensor]:
    """Log-probabilities (T, V) after each token of each text, by the decoder, or by the model's
    `forward`.
    """
    if forward:
        return [model(torch.tensor([ids]))[0].float().log_softmax(-1) for ids in parts]
    runner = NativeRunner(model)
    runner.long_prompt = None  # the decoder's products only
    return [
        runner.forward({0: ids}, runner.new_cache(1, len(ids)), every=True).log_softmax(-1)
        for ids in parts
    ]


def report(
    name: str, kind: str, actual: list[Tensor], exact: list[Tensor], parts: list[list[int]]
) -> None:
    divergences = [(p.exp() * (p - q)).sum(-1) for p, q in zip(exact, actual, strict=True)]
    surprisals = [
        -q[:-1].gather(1, torch.tensor(ids[1:])[:, None])
        for q, ids in zip(actual, parts, strict=True)
    ]
    perplexity = math.exp(torch.cat(surprisals).mean())
    print(
        f"{Path(name).name[:30]:32}{kind:16}{torch.cat(divergences).mean():10.5f}{perplexity:12.3f}",
        flush=True,
    )


if __name__ == "__main__":
    announce()
    main()
