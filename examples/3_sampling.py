"""Sampling: greedy, temperature, top-k and top-p, side by side, from the same model and prompt.

The idea. A language model gives probabilities; a text consists of single tokens. Always taking the
most likely token (*greedy*) ends in repetition, because a phrase makes itself more likely. Sampling
from the full distribution gives variety, but sometimes selects an unlikely token from the long
tail, and the text does not recover. The methods differ in how they treat the tail:

    temperature t   divides the logits, so p becomes p ** (1 / t), normalized: sharper below 1, flatter above 1; no
                    token is excluded
    top-k           keeps the k most likely tokens, however certain the model is
    top-p           keeps the smallest set of most likely tokens with total probability p: few if the model is certain

Sources. Ackley et al. (1985) for temperature; Fan et al. (2018) for top-k; Holtzman et al. (2020)
for top-p, and why the most likely text is a poor one.

    python examples/3_sampling.py
    python examples/3_sampling.py --prompt "What is" --new-tokens 500

Output. A table of the next character's probabilities by each method, computed by the plain
functions below; and the number of characters that top-p keeps at each position of the prompt, where
top-k always keeps k. Then the text that `generate` returns for each method, with two numbers: the
fraction of its 8-character substrings that are distinct (greedy repeats itself), and the model's
loss on it, in nats per character: about that on real text for t=1, and higher or lower for the
other methods.
"""

import argparse
import textwrap
from collections.abc import Callable

import torch
from torch import Tensor

from minhub_py import from_pretrained, generate, score, tokenizer_from_pretrained


def greedy(logits: Tensor) -> Tensor:
    """Probability 1 for the most likely token. Logits and probabilities are (V,)."""
    return torch.nn.functional.one_hot(logits.argmax(), len(logits)).float()


def temperature(logits: Tensor, t: float) -> Tensor:
    """Softmax of the divided logits."""
    return torch.softmax(logits / t, dim=0)


def top_k(logits: Tensor, k: int) -> Tensor:
    """Softmax over the k most likely tokens; all others have probability 0."""
    return torch.softmax(logits.masked_fill(logits < logits.topk(k).values[-1], -torch.inf), dim=0)


def top_p(logits: Tensor, p: float) -> Tensor:
    """Softmax over the smallest set of most likely tokens with total probability p or more; all
    others have 0.
    """
    probabilities, order = torch.softmax(logits, dim=0).sort(descending=True)
    before = probabilities.cumsum(dim=0) - probabilities
    ids = order[before < p]
    return torch.softmax(torch.full_like(logits, -torch.inf).index_copy(0, ids, logits[ids]), dim=0)


# Name, distribution, and the arguments of `generate` for the same method.
METHODS: list[tuple[str, Callable[[Tensor], Tensor], dict[str, float]]] = [
    ("greedy", greedy, {"temperature": 0}),
    ("t=1", lambda logits: temperature(logits, 1.0), {}),
    ("t=0.5", lambda logits: temperature(logits, 0.5), {"temperature": 0.5}),
    ("t=1.5", lambda logits: temperature(logits, 1.5), {"temperature": 1.5}),
    ("top-k=5", lambda logits: top_k(logits, 5), {"top_k": 5}),
    ("top-p=0.9", lambda logits: top_p(logits, 0.9), {"top_p": 0.9}),
]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", default="minhub/shakespeare-gpt2", help="built-in model, folder, or repository"
    )
    parser.add_argument("--prompt", default="ROMEO:\nWhat s")
    parser.add_argument("--new-tokens", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    model = from_pretrained(args.model, device="cpu")
    tokenizer = tokenizer_from_pretrained(args.model)
    prompt = tokenizer.encode(args.prompt).ids
    with torch.no_grad():
        all_logits = model(torch.tensor([prompt]))[0].float()  # (T, V)
    logits = all_logits[-1]  # (V,), of the token after the prompt

    print(f"Probabilities of the next token after {args.prompt!r}:")
    columns = [distribution(logits) for _, distribution, _ in METHODS]
    print("          ", *(f"{name:>9}" for name, _, _ in METHODS))
    top = logits.argsort(descending=True)[:12].tolist()
    for id in top:
        print(
            f"{tokenizer.decode([id])!r:>10} ",
            *(f"{p[id]:9.3f}" if p[id] else "        ." for p in columns),
        )
    print(f"{'others':>10} ", *(f"{(1 - p[top].sum()).abs():9.3f}" for p in columns))
    print(f"{'possible':>10} ", *(f"{p.count_nonzero():9}" for p in columns))
    print(f"{'entropy':>10} ", *(f"{torch.special.entr(p).sum():9.3f}" for p in columns))

    print("\nNumber of tokens that top-p=0.9 keeps after each token of the prompt:")
    counts = [int(top_p(row, 0.9).count_nonzero()) for row in all_logits]
    print(
        " ",
        "  ".join(
            f"{tokenizer.decode([id])!r} {count}" for id, count in zip(prompt, counts, strict=True)
        ),
    )

    for name, _, settings in METHODS:
        [new] = generate(model, [prompt], args.new_tokens, seed=args.seed, **settings)
        text = tokenizer.decode(new)
        substrings = [text[i : i + 8] for i in range(len(text) - 7)]
        distinct = len(set(substrings)) / max(len(substrings), 1)
        [logprobs] = score(model, [prompt + new])
        loss = -logprobs[len(prompt) - 1 :].mean()
        print(
            f"\n{name}: {distinct:.0%} of the 8-character substrings are distinct; {loss:.3f} nats"
            " per token"
        )
        print(textwrap.indent(args.prompt + text, "    ", lambda line: True))


if __name__ == "__main__":
    main()
