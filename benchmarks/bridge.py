"""Overhead of the R bridge: calls from R compared with the same calls in Python, interleaved in one
run.

    python benchmarks/bridge.py

An R session waits for commands on its standard input, so that the two measurements of a pair are
close in time.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from machine import announce

from minhub_py import (
    from_pretrained,
    generate,
    gpt2,
    save_pretrained,
    stream,
    tokenizer_from_pretrained,
)
from minhub_py.checkpoints.tokenizers.tokenizer import decode_stream

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared" / "data"
PAIRS = 5
MANY_PAIRS = 11  # so that a few per cent exceed the noise
NEW = 64

# R evaluates each line that it reads, and answers with the time in seconds.
LOOP = """
library(minhubpy)
options(minhubpy.quiet = TRUE)
input <- file("stdin", "r")
while (length(line <- readLines(input, 1L))) {
  code <- parse(text = line)
  invisible(gc())
  seconds <- system.time(for (one in code) value <- eval(one, globalenv()))[["elapsed"]]
  cat("seconds", format(seconds, digits = 9), "\\n")
}
"""


class RSession:
    """An R process that is controlled through a pipe."""

    def __init__(self, library: str) -> None:
        script = Path(library, "loop.R")
        script.write_text(LOOP)
        self.process = subprocess.Popen(
            ["Rscript", str(script)],
            env=os.environ | {"R_LIBS": library, "MINHUBPY_PYTHON": sys.executable},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def time(self, code: str) -> float:
        """Time of one line of R code, in seconds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(code + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("seconds "):
                return float(line.split()[1])
        raise SystemExit(f"R ended: {code}")


def clock(work: Callable[[], Any]) -> float:
    """Time of a Python call, in seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(
    name: str, python: Callable[[], Any], r: Callable[[], float], count: int = PAIRS
) -> None:
    """Print the medians of Python and R, and the median ratio of Python's time to R's."""
    pairs = [(clock(python), r()) for _ in range(count)]
    share = statistics.median(p / q for p, q in pairs)
    ours, reference = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(
        f"{name:<58} Python {ours:8.3f} s   R {reference:8.3f} s   R's speed of Python's"
        f" {share:6.1%}"
    )


def main() -> None:
    """Run all comparisons."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                "R",
                "CMD",
                "INSTALL",
                "--no-docs",
                f"--library={folder}",
                ROOT / "r_bridge" / "minhubpy",
            ],
            check=True,
            capture_output=True,
        )
        start_up(folder)
        r = RSession(folder)
        calls(r)
        arrays(r, Path(folder))
        texts(r)
        generation(r, Path(folder))


def start_up(library: str) -> None:
    """Time library(minhubpy), and the first call compared with Python's import of torch."""
    environment = os.environ | {"R_LIBS": library, "MINHUBPY_PYTHON": sys.executable}
    loaded, first, imported = [], [], []
    for _ in range(PAIRS):
        code = """
            t0 <- proc.time()[[3]]; library(minhubpy); t1 <- proc.time()[[3]]
            invisible(minhubpy:::ask('warm_up')); cat(t1 - t0, proc.time()[[3]] - t1)
        """
        run = subprocess.run(
            ["Rscript", "-e", code], env=environment, capture_output=True, text=True, check=True
        )
        seconds = [float(number) for number in run.stdout.split()]
        loaded.append(seconds[0])
        first.append(seconds[1])
        imported.append(
            clock(lambda: subprocess.run([sys.executable, "-c", "import torch"], check=True))
        )
    print(f"library(minhubpy): {statistics.median(loaded):.3f} s")
    print(
        f"first call, torch imported: {statistics.median(first):.2f} s; python -c 'import torch':"
        f" {statistics.median(imported):.2f} s; more by"
        f" {statistics.median(map(float.__sub__, first, imported)):.2f} s"
    )


def calls(r: RSession) -> None:
    """Time an empty call, over a thousand calls."""
    r.time("minhub_start()")
    times = [r.time("for (i in 1:1000) minhubpy:::ask('nothing')") for _ in range(PAIRS)]
    print(f"an empty call: {statistics.median(times):.3f} ms")


def arrays(r: RSession, folder: Path) -> None:
    """Time to convert logits (1, 1024, 50257) to an R array, for a model that computes them almost
    instantly.
    """
    torch.manual_seed(0)
    model = gpt2(n_layer=1, n_head=1, n_embd=16).eval()
    save_pretrained(model, folder / "thin")
    r.time(f"thin <- gpt2_from_pretrained('{folder / 'thin'}')")
    ids = torch.arange(1024).unsqueeze(0)
    megabytes = 1024 * 50257 * 4 / 1e6
    speeds = []
    for _ in range(PAIRS):
        with torch.inference_mode():
            ours = clock(lambda: model(ids))
        speeds.append(megabytes / (r.time("logits <- thin(0:1023); rm(logits)") - ours))
    print(
        f"logits (1, 1024, 50257) to an R array: {statistics.median(speeds):.0f} MB/s of float32, "
        f"from {min(speeds):.0f} to {max(speeds):.0f}"
    )


def texts(r: RSession) -> None:
    """Compare encode_batch on 10 MB of lines, and decode_batch."""
    text = (SHARED / "tiny-shakespeare" / "input.txt").read_text() * 9
    lines = text.split("\n")
    tokenizer = tokenizer_from_pretrained(str(SHARED / "gpt2-tokenizer"))
    r.time(f"tok <- tokenizer_from_pretrained('{SHARED / 'gpt2-tokenizer'}')")
    r.time(f"lines <- rep(readLines('{SHARED / 'tiny-shakespeare' / 'input.txt'}'), 9)")
    name = f"encode_batch, {len(text) / 1e6:.0f} MB in {len(lines):,} lines"
    compare(
        name,
        lambda: tokenizer.encode_batch(lines),
        lambda: r.time("ids <- tok$encode_batch(lines)"),
    )
    rows = [encoding.ids for encoding in tokenizer.encode_batch(lines)]
    r.time("rows <- lapply(ids, function(one) one$ids)")
    compare(
        "decode_batch of the same",
        lambda: tokenizer.decode_batch(rows),
        lambda: r.time("tok$decode_batch(rows)"),
    )


def generation(r: RSession, folder: Path) -> None:
    """Compare generation with GPT-2 124M, and with a built-in model, which is so fast that the
    overhead shows.
    """
    torch.manual_seed(0)
    save_pretrained(
        gpt2(), folder / "gpt2", tokenizer_from_pretrained(str(SHARED / "gpt2-tokenizer"))
    )
    prompt = "All the world's a stage, and all the men and women merely players. " * 2
    for name, identifier in (
        ("124M", str(folder / "gpt2")),
        ("built-in", "minhub/shakespeare-gpt2"),
    ):
        model, tokenizer = from_pretrained(identifier), tokenizer_from_pretrained(identifier)
        ids = tokenizer.encode(prompt).ids[:32]
        settings = {"max_new_tokens": NEW, "temperature": 0, "eos_id": None}
        r.time(f"model <- from_pretrained('{identifier}')")
        call = (
            f"generate(model, c({', '.join(f'{id}L' for id in ids)}), {NEW}, temperature = 0,"
            " eos_id = NULL)"
        )
        r.time(call)
        generate(model, [ids], **settings)
        compare(
            f"{name}: {NEW} new ids after 32",
            lambda: generate(model, [ids], **settings),  # noqa: B023
            lambda: r.time(call),  # noqa: B023
            MANY_PAIRS,
        )
        streamed = (
            f"generate(model, '{tokenizer.decode(ids)}', {NEW}, temperature = 0, eos_id = NULL,"
            " stream = identity)"
        )
        streamed = streamed.replace("world's", "world\\'s")
        compare(
            f"{name}: the same, text streamed",
            lambda: list(decode_stream(tokenizer, stream(model, ids, **settings), ids)),  # noqa: B023
            lambda: r.time(streamed),  # noqa: B023
            MANY_PAIRS,
        )


if __name__ == "__main__":
    announce()
    main()
