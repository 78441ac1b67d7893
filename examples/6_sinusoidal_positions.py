"""Sinusoidal positions: train the decoder of "Attention Is All You Need" on a text, and measure the
value of positions.

The idea. Attention alone ignores the order of tokens. The first transformers add a fixed vector to
each token's embedding: elements 2i and 2i + 1 of position p are the sine and the cosine of p /
10000^(2i / C), a clock with C / 2 hands, from fast to slow. The product of two positions is then a
sum of cosines of their distance,

    position p · position (p + k) = sum over i of cos(k / 10000^(2i / C))

which is independent of p: a layer that learns to attend three tokens back can do so at every
position. GPT-2 learns its vectors instead, and Llama rotates queries and keys by such angles. The
norms follow each part of a block, as in the paper.

Sources. Vaswani et al. (2017), section 3.5; the WikiText model of christianb93's MLLM series, whose
files `from_pretrained` loads; Haviv et al. (2022) for decoders trained without positions.

    python examples/6_sinusoidal_positions.py input.txt

Output. The products of positions by distance, which are equal for all positions. Then
`minhub_py.train` trains a model, as `minhub train input.txt --out run --family sinusoidal
--tokenizer bpe` does, and its loss on held-out text is measured with the trained positions, with
positions shifted by half a context, and with one position for all tokens.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minhub_py import generate, train
from minhub_py.models.sinusoidal import sinusoids

ROWS = 200  # maximum number of rows of the held-out text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path)
    parser.add_argument("--vocab-size", type=int, default=512)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--context", type=int, default=48, help="context length in tokens")
    args = parser.parse_args()

    table = sinusoids(2 * args.context, args.width)
    products = table @ table.t() / (args.width / 2)  # 1 for a position with itself
    distances = sorted({0, 1, 2, 4, 8, args.context // 2, args.context - 1})
    print(f"Products of positions of size {args.width}, by distance:")
    print("  from     ", *(f"{k:6}" for k in distances))
    for p in (0, 5, args.context):
        print(f"  {p:8} ", *(f"{products[p, p + k]:6.3f}" for k in distances))

    sizes = {
        "family": "sinusoidal",
        "layers": args.layers,
        "width": args.width,
        "context": args.context,
    }
    with tempfile.TemporaryDirectory() as folder:  # use a permanent folder to keep the run
        run = train(
            args.text,
            f"{folder}/run",
            tokenizer="bpe",
            vocab_size=args.vocab_size,
            steps=args.steps,
            **sizes,
        )
        model, tokenizer = run.model, run.tokenizer
        print(
            f"\nTrained for {args.steps} steps: {run.best_loss:.3f} nats per token on the held-out"
            " text"
        )

    text = args.text.read_text(encoding="utf-8")
    ids = torch.tensor(tokenizer.encode(text[int(len(text) * 0.9) :]).ids)
    half = args.context // 2
    rows = ids.unfold(0, half + 1, half)[:ROWS]
    table = model.positions.weight.clone()
    variants = {
        "as trained": table[:half],
        "half a context later": table[half:],
        "one for all": table[:1],
    }
    print(f"\nThe model's loss on {len(rows)} rows of {half} tokens, with these positions:")
    for name, positions in variants.items():
        print(f"  {name:20} {loss(model, positions, rows):.3f} nats per token")

    print("\nText generated with the trained positions:")
    model.positions.weight.copy_(table)
    prompt = " ".join(text.split()[:3])
    [new] = generate(model, [tokenizer.encode(prompt).ids], 80, temperature=0.8, seed=1)
    print(f"[{prompt}]{tokenizer.decode(new)}")


@torch.no_grad()
def loss(model: Any, positions: Tensor, rows: Tensor) -> float:
    """Nats per token of rows (n, T + 1), with these positions (T or 1, C)."""
    length = rows.size(1) - 1
    model.positions.weight[:length] = positions
    logits = model(rows[:, :-1])  # (n, T, V)
    return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).item()


if __name__ == "__main__":
    main()
