"""Text embeddings on one page: a classifier on a model's hidden states, layer by layer.

    python examples/embed_text.py
    python examples/embed_text.py --model gpt2 --layer 6

The 64 sentences were written for this example: half of them in the English of Shakespeare's plays,
half in modern English. The built-in model was trained on the characters of these plays, without any
classes. A linear classifier on the mean hidden states of a sentence separates the two classes, and
shows which layer represents them best.
"""

import argparse
import csv
from pathlib import Path

import torch
from torch import Tensor

from minhub_py import embed, from_pretrained, tokenizer_from_pretrained

SENTENCES = (
    Path(__file__).parent.parent / "r_bridge" / "minhubpy" / "inst" / "extdata" / "sentences.csv"
)

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--model", default="minhub/shakespeare-gpt2", help="repository or folder")
parser.add_argument("--layer", type=int, help="layer of the embeddings; the best layer by default")


def accuracy(vectors: Tensor, is_old: Tensor, folds: int = 8) -> float:
    """A linear classifier's accuracy in cross-validation."""
    x, y = (vectors - vectors.mean(dim=0)) / vectors.std(dim=0), 2 * is_old - 1
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    correct = 0
    for held_out in order.chunk(folds):
        training = torch.ones(len(x), dtype=torch.bool)
        training[held_out] = False
        # Ridge regression: with more dimensions than sentences, small weights generalize better.
        penalty = len(x) * torch.eye(x.size(1))
        weight = torch.linalg.solve(
            x[training].T @ x[training] + penalty, x[training].T @ y[training]
        )
        correct += int((x[held_out] @ weight * y[held_out] > 0).sum())
    return correct / len(x)


def main() -> None:
    """Print each layer's accuracy, and the sentences most similar to the first one."""
    args = parser.parse_args()
    with SENTENCES.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    sentences = [row["sentence"] for row in rows]
    is_old = torch.tensor([float(row["english"] == "old") for row in rows])
    model, tokenizer = (
        from_pretrained(args.model, device="cpu"),
        tokenizer_from_pretrained(args.model),
    )

    layers = range(model.config.n_layer + 1) if args.layer is None else [args.layer]
    accuracies = {}
    for layer in layers:
        accuracies[layer] = accuracy(embed(model, tokenizer, sentences, layer=layer), is_old)
        print(f"layer {layer}: {accuracies[layer]:.0%} correct")

    best = max(accuracies, key=lambda layer: accuracies[layer])
    vectors = embed(model, tokenizer, sentences, layer=best)
    vectors = vectors - vectors.mean(dim=0)  # remove the component that all sentences share
    similarity = torch.cosine_similarity(vectors[0], vectors, dim=1)
    print(f"\nMost similar to {sentences[0]!r} in layer {best}:")
    for row in similarity.argsort(descending=True)[1:4].tolist():
        print(f"  {similarity[row]:.2f}  {sentences[row]}")


if __name__ == "__main__":
    main()
