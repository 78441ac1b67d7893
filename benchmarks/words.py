"""Predictability of words compared with the R package pangoling: equal numbers, and the time of
both, interleaved.

    python benchmarks/words.py [--sentences 1000] [--words 6 18] [--width 768 --layers 12]

The model is a random GPT-2 with the GPT-2 tokenizer of ../shared/data. One R session calls both
packages on the same sentences, interleaved: this package by its worker, pangoling by reticulate and
transformers. Without pangoling in R's library, only this package is measured. `RETICULATE_PYTHON`
names the Python with transformers, if it is not this one: pangoling 1.0.3 needs transformers below
5, and reticulate before 1.37 needs numpy below 2.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from machine import announce

from minhub_py import gpt2, save_pretrained

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared" / "data"

CONFIG = (
    '{"tokenizer_class": "GPT2Tokenizer", "model_max_length": 1024, "eos_token": "<|endoftext|>"}'
)

PROGRAM = """
arguments <- commandArgs(TRUE)
library(minhubpy)
options(pangoling.verbose = 0, minhubpy.quiet = TRUE)
sentences <- strsplit(readLines(arguments[2]), " ")
table <- data.frame(word = unlist(sentences), item = rep(seq_along(sentences), lengths(sentences)))
there <- requireNamespace("pangoling", quietly = TRUE)
model <- gpt2_from_pretrained(arguments[1])
ours <- function(rows) word_logprobs(model, table$word[rows], by = table$item[rows])
theirs <- function(rows) {
  suppressMessages(pangoling::causal_words_pred(table$word[rows], by = table$item[rows], model = arguments[1]))
}
first <- which(table$item == 1)
invisible(ours(first)) # loads the model
if (there) invisible(theirs(first))
parts <- split(seq_len(nrow(table)), table$item %% 5)
seconds <- c(ours = 0, theirs = 0)
worst <- 0
for (rows in parts) {
  seconds["ours"] <- seconds["ours"] + system.time(mine <- ours(rows))[["elapsed"]]
  if (there) {
    seconds["theirs"] <- seconds["theirs"] + system.time(other <- theirs(rows))[["elapsed"]]
    stopifnot(identical(is.na(mine), is.na(other)))
    worst <- max(worst, abs(mine - other), na.rm = TRUE)
  }
}
all <- system.time(ours(seq_len(nrow(table))))[["elapsed"]]
cat(sprintf(
  "%d sentences, %d words: minhubpy %.1f s in five calls, %.1f s in one\\n",
  length(sentences), nrow(table), seconds[["ours"]], all
))
if (there) cat(sprintf(
  "pangoling %.1f s: %.1f times as long; largest difference %.1e\\n",
  seconds[["theirs"]], seconds[["theirs"]] / seconds[["ours"]], worst
))
"""


def main() -> None:
    """Write the checkpoint and the sentences, and run R."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument(
        "--words", type=int, nargs=2, default=(6, 18), help="of a sentence: from, to"
    )
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
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
        checkpoint = folder / "random-gpt2"
        torch.manual_seed(0)
        save_pretrained(
            gpt2(n_embd=options.width, n_layer=options.layers, n_head=options.width // 64),
            checkpoint,
        )
        for name in ("vocab.json", "merges.txt"):
            shutil.copy(SHARED / "gpt2-tokenizer" / name, checkpoint)
        (checkpoint / "tokenizer_config.json").write_text(CONFIG)
        words = (SHARED / "tiny-shakespeare" / "input.txt").read_text().split()
        chance = random.Random(1)
        lengths = [chance.randint(*options.words) for _ in range(options.sentences)]
        starts = [chance.randrange(len(words) - options.words[1]) for _ in lengths]
        lines = [
            " ".join(words[start : start + length])
            for start, length in zip(starts, lengths, strict=True)
        ]
        (folder / "sentences.txt").write_text("\n".join(lines) + "\n")
        (folder / "words.R").write_text(PROGRAM)
        library = os.pathsep.join(filter(None, [str(folder), os.environ.get("R_LIBS")]))
        environment = {"RETICULATE_PYTHON": sys.executable} | os.environ
        environment |= {"R_LIBS": library, "MINHUBPY_PYTHON": sys.executable, "HF_HUB_OFFLINE": "1"}
        subprocess.run(
            ["Rscript", folder / "words.R", checkpoint, folder / "sentences.txt"],
            env=environment,
            check=True,
        )


if __name__ == "__main__":
    announce()
    main()
