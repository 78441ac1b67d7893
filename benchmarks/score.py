"""Log-probabilities by `score()` compared with transformers: GPT-2 124M, random weights, float32,
two threads.

    python benchmarks/score.py [COUNTxLENGTH...]

transformers runs log_softmax and gather on its logits, for one text at a time and for eight: texts
have equal length, so that it needs no padding. All are interleaved. Prints tokens per second of the
faster of two rounds, and our ratio to the faster of transformers' two.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from machine import announce
from transformers import AutoModelForCausalLM

from minhub_py import from_pretrained, gpt2, save_pretrained, score

ROUNDS, THREADS = 2, 2


def theirs(model: Any, texts: list[list[int]], rows: int) -> list[torch.Tensor]:
    """The log-probabilities by transformers, `rows` texts at a time."""
    results: list[torch.Tensor] = []
    for first in range(0, len(texts), rows):
        ids = torch.tensor(texts[first : first + rows])
        logprobs = model(ids).logits[:, :-1].log_softmax(dim=-1)
        results += logprobs.gather(2, ids[:, 1:, None]).squeeze(2)
    return results


@torch.inference_mode()
def measure(ours: Any, reference: Any, count: int, length: int) -> None:
    texts = torch.randint(ours.config.vocab_size, (count, length)).tolist()
    sides: dict[str, Callable[[], list[torch.Tensor]]] = {
        "minhub_py": lambda: score(ours, texts),
        "one at a time": lambda: theirs(reference, texts, 1),
        "eight": lambda: theirs(reference, texts, 8),
    }
    speed = dict.fromkeys(sides, 0.0)
    for _ in range(ROUNDS):
        results = {}
        for name, side in sides.items():
            began = time.perf_counter()
            results[name] = side()
            speed[name] = max(speed[name], count * length / (time.perf_counter() - began))
        for a, b in zip(results["minhub_py"], results["eight"], strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-4)
    best = max(speed["one at a time"], speed["eight"])
    rates = ", ".join(f"{name} {rate:.0f}" for name, rate in speed.items())
    print(
        f"{count} texts of {length}: tokens/s {rates}; {speed['minhub_py'] / best:.2f} x"
        " transformers",
        flush=True,
    )


if __name__ == "__main__":
    announce()
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(gpt2(), folder)
        models = (
            from_pretrained(folder, device="cpu"),
            AutoModelForCausalLM.from_pretrained(folder).eval(),
        )
        for sizes in sys.argv[1:] or ["300x20", "80x100", "8x1000"]:
            number, width = map(int, sizes.split("x"))
            measure(*models, number, width)
