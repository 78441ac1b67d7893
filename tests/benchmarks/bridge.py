"""What R pays for the way to Python: R's calls against Python's own, interleaved in one run.

    python tests/benchmarks/bridge.py

An R session waits for commands on its standard input, so that each pair of measurements is made within moments.
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

from minhub_py import from_pretrained, generate, gpt2, save_pretrained, stream, tokenizer_from_pretrained
from minhub_py.files.tokenizer import decode_stream

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"
PAIRS = 5
MANY_PAIRS = 11  # where a few per cent are to be told from noise
NEW = 64

# Each line that R reads is code; it answers with the seconds that it took.
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
    """R at the other end of a pipe."""

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
        """Seconds that one line of R code takes."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(code + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("seconds "):
                return float(line.split()[1])
        raise SystemExit(f"R ended: {code}")


def clock(work: Callable[[], Any]) -> float:
    """Seconds that a piece of Python takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(name: str, python: Callable[[], Any], r: Callable[[], float], count: int = PAIRS) -> None:
    """Print Python's and R's medians, and Python's time as a share of R's, pair by pair."""
    pairs = [(clock(python), r()) for _ in range(count)]
    share = statistics.median(p / q for p, q in pairs)
    mine, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"{name:<58} Python {mine:8.3f} s   R {theirs:8.3f} s   R's speed of Python's {share:6.1%}")


def main() -> None:
    """All comparisons."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["R", "CMD", "INSTALL", "--no-docs", f"--library={folder}", ROOT / "r_bridge" / "minhubpy"],
                       check=True, capture_output=True)  # fmt: skip
        start_up(folder)
        r = RSession(folder)
        calls(r)
        arrays(r, Path(folder))
        texts(r)
        generation(r, Path(folder))


def start_up(library: str) -> None:
    """library(minhubpy), and the first call against Python's own import of torch."""
    environment = os.environ | {"R_LIBS": library, "MINHUBPY_PYTHON": sys.executable}
    loaded, first, imported = [], [], []
    for _ in range(PAIRS):
        code = """
            t0 <- proc.time()[[3]]; library(minhubpy); t1 <- proc.time()[[3]]
            invisible(minhubpy:::ask('warm_up')); cat(t1 - t0, proc.time()[[3]] - t1)
        """
        run = subprocess.run(["Rscript", "-e", code], env=environment, capture_output=True, text=True, check=True)
        seconds = [float(number) for number in run.stdout.split()]
        loaded.append(seconds[0])
        first.append(seconds[1])
        imported.append(clock(lambda: subprocess.run([sys.executable, "-c", "import torch"], check=True)))
    print(f"library(minhubpy): {statistics.median(loaded):.3f} s")
    print(f"first call, torch imported: {statistics.median(first):.2f} s; python -c 'import torch': "
          f"{statistics.median(imported):.2f} s; more by {statistics.median(map(float.__sub__, first, imported)):.2f} s"
          )  # fmt: skip


def calls(r: RSession) -> None:
    """An empty call, a thousand at a time."""
    r.time("minhub_start()")
    each = [r.time("for (i in 1:1000) minhubpy:::ask('nothing')") for _ in range(PAIRS)]
    print(f"an empty call: {statistics.median(each):.3f} ms")


def arrays(r: RSession, folder: Path) -> None:
    """Logits (1, 1024, 50257) as an R array, of a model that computes them in next to no time."""
    torch.manual_seed(0)
    model = gpt2(n_layer=1, n_head=1, n_embd=16).eval()
    save_pretrained(model, folder / "thin")
    r.time(f"thin <- gpt2_from_pretrained('{folder / 'thin'}')")
    ids = torch.arange(1024).unsqueeze(0)
    megabytes = 1024 * 50257 * 4 / 1e6
    speeds = []
    for _ in range(PAIRS):
        with torch.inference_mode():
            mine = clock(lambda: model(ids))
        speeds.append(megabytes / (r.time("logits <- thin(0:1023); rm(logits)") - mine))
    print(f"logits (1, 1024, 50257) to an R array: {statistics.median(speeds):.0f} MB/s of float32, "
          f"from {min(speeds):.0f} to {max(speeds):.0f}")  # fmt: skip


def texts(r: RSession) -> None:
    """encode_batch on 10 MB in lines, and decode_batch."""
    text = (SHARED / "tiny-shakespeare" / "input.txt").read_text() * 9
    lines = text.split("\n")
    tokenizer = tokenizer_from_pretrained(str(SHARED / "gpt2-tokenizer"))
    r.time(f"tok <- tokenizer_from_pretrained('{SHARED / 'gpt2-tokenizer'}')")
    r.time(f"lines <- rep(readLines('{SHARED / 'tiny-shakespeare' / 'input.txt'}'), 9)")
    name = f"encode_batch, {len(text) / 1e6:.0f} MB in {len(lines):,} lines"
    compare(name, lambda: tokenizer.encode_batch(lines), lambda: r.time("ids <- tok$encode_batch(lines)"))
    rows = [encoding.ids for encoding in tokenizer.encode_batch(lines)]
    r.time("rows <- lapply(ids, function(one) one$ids)")
    compare("decode_batch of the same", lambda: tokenizer.decode_batch(rows), lambda: r.time("tok$decode_batch(rows)"))


def generation(r: RSession, folder: Path) -> None:
    """A GPT-2 of 124M, and a built-in one whose tokens are so quick that the way shows."""
    torch.manual_seed(0)
    save_pretrained(gpt2(), folder / "gpt2", tokenizer_from_pretrained(str(SHARED / "gpt2-tokenizer")))
    prompt = "All the world's a stage, and all the men and women merely players. " * 2
    for name, identifier in (("124M", str(folder / "gpt2")), ("built-in", "minhub/shakespeare-gpt2")):
        model, tokenizer = from_pretrained(identifier), tokenizer_from_pretrained(identifier)
        ids = tokenizer.encode(prompt).ids[:32]
        settings = {"max_new_tokens": NEW, "temperature": 0, "eos_id": None}
        r.time(f"model <- from_pretrained('{identifier}')")
        given = f"generate(model, c({', '.join(f'{id}L' for id in ids)}), {NEW}, temperature = 0, eos_id = NULL)"
        r.time(given)
        generate(model, [ids], **settings)
        compare(
            f"{name}: {NEW} new ids after 32",
            lambda: generate(model, [ids], **settings),  # noqa: B023
            lambda: r.time(given),  # noqa: B023
            MANY_PAIRS,
        )
        streamed = (
            f"generate(model, '{tokenizer.decode(ids)}', {NEW}, temperature = 0, eos_id = NULL, stream = identity)"
        )
        streamed = streamed.replace("world's", "world\\'s")
        compare(
            f"{name}: the same, text streamed",
            lambda: list(decode_stream(tokenizer, stream(model, ids, **settings), ids)),  # noqa: B023
            lambda: r.time(streamed),  # noqa: B023
            MANY_PAIRS,
        )


if __name__ == "__main__":
    main()
