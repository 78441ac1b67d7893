"""Embedding of texts compared with transformers: GPT-2 124M with random weights, texts of 6 to 40
tokens, interleaved.

    python benchmarks/embed.py [--texts 256] [--rounds 5]

transformers runs as a careful user would run it: texts sorted by length, in padded batches of as
many tokens as ours, with an attention mask, and the mean of each text's states. Prints the ratio of
each round, in which both sides run one after the other, so that other programs affect both.
"""

import argparse
import statistics
import time
from typing import Any

import torch
from machine import announce
from torch import Tensor
from transformers import GPT2Config, GPT2Model

from minhub_py import embed, gpt2
from minhub_py.analysis.embeddings import TOKENS


@torch.inference_mode()
def reference(model: Any, texts: list[list[int]]) -> Tensor:
    """The same by transformers."""
    order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
    results = torch.empty(len(texts), model.config.n_embd)
    while order:
        rows, order = (
            order[: TOKENS // len(texts[order[0]])],
            order[TOKENS // len(texts[order[0]]) :],
        )
        longest = len(texts[rows[0]])
        idx = torch.tensor([texts[row] + [0] * (longest - len(texts[row])) for row in rows])
        mask = torch.tensor(
            [[1] * len(texts[row]) + [0] * (longest - len(texts[row])) for row in rows]
        )
        states = model(idx, attention_mask=mask, use_cache=False).last_hidden_state
        results[rows] = (states * mask.unsqueeze(2)).sum(dim=1) / mask.sum(dim=1, keepdim=True)
    return results


def main() -> None:
    """Print each round's ratio, and their median."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.manual_seed(0)
    ours, reference_model = gpt2().eval(), GPT2Model(GPT2Config()).eval()
    lengths = torch.randint(6, 41, (args.texts,)).tolist()
    texts = [torch.randint(50257, (length,)).tolist() for length in lengths]
    ratios = []
    for _ in range(args.rounds + 1):
        start = time.perf_counter()
        reference(reference_model, texts)
        middle = time.perf_counter()
        embed(ours, None, texts)
        end = time.perf_counter()
        ratios.append((middle - start) / (end - middle))
        print(
            f"transformers {middle - start:6.2f} s   minhub_py {end - middle:6.2f} s   ratio"
            f" {ratios[-1]:.2f}"
        )
    print(
        f"median of {args.rounds} rounds after the first: {statistics.median(ratios[1:]):.2f} ×"
        f" transformers' speed, {sum(lengths):,} ids, {torch.get_num_threads()} threads"
    )


if __name__ == "__main__":
    announce()
    main()
