"""The examples run as their own first lines say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from minhub_py import from_pretrained, generate, tokenizer_from_pretrained

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(*arguments: object) -> str:
    command = [sys.executable, *map(str, arguments)]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # as in conftest.py
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=200, env=one_thread).stdout


def test_write_text() -> None:
    lines = run(EXAMPLES / "write_text.py").splitlines()
    perplexity = {line[10:]: float(line[:8]) for line in lines[-3:]}
    assert perplexity["What say you to my lord?"] < min(
        perplexity["Wht sy y t my lrd?"], perplexity["The GPU is too hot."]
    )


@pytest.mark.parametrize("family", ["gpt2", "gptneo", "lstm"])
def test_training_lowers_the_loss_and_saves_a_model(tmp_path: Path, family: str) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 100)
    shown = run(EXAMPLES / "train_shakespeare.py", text, family, tmp_path / "out", "--steps", 12, "--every", 6)
    losses = [float(line.split()[4]) for line in shown.splitlines()]
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    model, tokenizer = (load(str(tmp_path / "out")) for load in (from_pretrained, tokenizer_from_pretrained))
    assert len(generate(model, [tokenizer.encode("the ").ids], 5)[0]) == 5
