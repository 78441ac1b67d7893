"""Texts as numbers on one page: a classifier on a model's hidden states, layer by layer.

    python examples/embed_text.py
    python examples/embed_text.py --model gpt2 --layer 6

The 64 sentences are ours: half of them in the English of Shakespeare's plays, half in today's. The built-in model has
read nothing but those plays, letter by letter, and never heard of the two classes. What its layers know of a sentence
is enough to tell them apart: a linear classifier on their means finds it, and shows which layer knows most.
"""

import argparse
import csv
from pathlib import Path

import torch
from torch import Tensor

from minhub_py import embed, from_pretrained, tokenizer_from_pretrained

SENTENCES = Path(__file__).parent.parent / "r_bridge" / "minhubpy" / "inst" / "extdata" / "sentences.csv"

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="minhub/shakespeare-gpt2", help="repository or folder")
parser.add_argument("--layer", type=int, help="the layer to look at; the best one, if not given")


def accuracy(vectors: Tensor, is_old: Tensor, folds: int = 8) -> float:
    """The share of sentences that a linear classifier tells apart which has not seen them (cross-validation)."""
    x, y = (vectors - vectors.mean(dim=0)) / vectors.std(dim=0), 2 * is_old - 1
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    right = 0
    for held_out in order.chunk(folds):
        seen = torch.ones(len(x), dtype=torch.bool)
        seen[held_out] = False
        # Ridge regression: with more numbers than sentences, small weights are the ones that hold for others too.
        penalty = len(x) * torch.eye(x.size(1))
        weight = torch.linalg.solve(x[seen].T @ x[seen] + penalty, x[seen].T @ y[seen])
        right += int((x[held_out] @ weight * y[held_out] > 0).sum())
    return right / len(x)


def main() -> None:
    """Print the accuracy of each layer, and the sentences that lie nearest to one."""
    args = parser.parse_args()
    with SENTENCES.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    sentences = [row["sentence"] for row in rows]
    is_old = torch.tensor([float(row["english"] == "old") for row in rows])
    model, tokenizer = from_pretrained(args.model, device="cpu"), tokenizer_from_pretrained(args.model)

    layers = range(model.config.n_layer + 1) if args.layer is None else [args.layer]
    found = {}
    for layer in layers:
        found[layer] = accuracy(embed(model, tokenizer, sentences, layer=layer), is_old)
        print(f"layer {layer}: {found[layer]:.0%} right")

    best = max(found, key=lambda layer: found[layer])
    vectors = embed(model, tokenizer, sentences, layer=best)
    vectors = vectors - vectors.mean(dim=0)  # what all sentences share says nothing of one
    likeness = torch.cosine_similarity(vectors[0], vectors, dim=1)
    print(f"\nNearest to {sentences[0]!r}, by layer {best}:")
    for place in likeness.argsort(descending=True)[1:4].tolist():
        print(f"  {likeness[place]:.2f}  {sentences[place]}")


if __name__ == "__main__":
    main()
