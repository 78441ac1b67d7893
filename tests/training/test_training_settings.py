"""Invalid settings and texts of training are reported."""

import math
from pathlib import Path
from typing import Any

import pytest
from training_runs import BUILT_IN, TEXT, TINY, steps

from minhub_py import train

BAD_TEXTS: dict[str, tuple[bytes | None, dict[str, Any], str]] = {
    "empty": (b"", {}, "text.txt.*the text is empty"),
    "missing": (None, {}, "text file .*text.txt does not exist"),
    "not UTF-8": (b"plain \xff\xfe text " * 50, {}, "text.txt is not UTF-8 text"),
    "cut inside a character": ("é".encode() * 500 + b"\xc3", {}, "text.txt is not UTF-8 text"),
    "one character": (b"a", {}, "context|held-out"),
    "two characters": (b"ab", {}, "context|held-out"),
    "context": (
        TEXT.encode(),
        {"context": 4000},
        r"context \(4000\) is longer than the training text \(3600 tok",
    ),
    "held out": (
        TEXT.encode(),
        {"held_out": 0.0002},
        "held-out text has 1 tokens, but evaluation requires 2",
    ),
    "nothing held out": (
        TEXT.encode(),
        {"held_out": 1e-20},
        "held-out text has 0 tokens, but evaluation requires 2",
    ),
    "streams": (
        TEXT.encode(),
        {"family": "lstm", "batch": 300},
        (
            "too short for 300 streams with sequences of 16: "
            ".* a smaller batch or context, or carry=False$"
        ),
    ),
    "other characters": ("漢字".encode() * 500, {"tokenizer": BUILT_IN["gpt2"]}, "no token"),
}


@pytest.mark.parametrize("name", BAD_TEXTS)
def test_invalid_texts_are_reported(tmp_path: Path, name: str) -> None:
    """An error leaves no files, and a valid text can use the same folder."""
    data, settings, message = BAD_TEXTS[name]
    text = tmp_path / "text.txt"
    if data is not None:
        text.write_bytes(data)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        train(text, tmp_path / "run", **TINY | {"steps": 1} | settings)
    assert [path.name for path in tmp_path.iterdir()] == (["text.txt"] if data is not None else [])
    text.write_text(TEXT)
    (tmp_path / "run").mkdir()
    train(text, tmp_path / "run", **TINY | {"steps": 1})


def test_the_shortest_valid_texts_are_trained_on(tmp_path: Path, text: Path) -> None:
    """One token more than the context, and two held-out tokens."""
    text.write_text("abcdefghijklmnopq" + "ab")
    for family in ("gpt2", "lstm"):
        run = train(text, tmp_path / family, family=family, carry=False, held_out=0.1, **TINY)
        assert (run.corpus.train.count, run.corpus.held_out.count) == (17, 2)
        assert math.isfinite(run.best_loss)
    text.write_text(TEXT[:121] + "ab")
    run = train(text, tmp_path / "streams", family="lstm", held_out=0.02, **TINY | {"batch": 6})
    assert steps(run) == [0, 4, 8, 12]


BAD_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"layer": 2, "widht": 3}, "^unknown settings layer, widht; did you mean layers, width\\?$"),
    ({"layer": 3}, "^unknown setting layer; did you mean layers\\?$"),
    ({"rounds": 3}, "^unknown setting rounds; the settings are family, start,"),
    ({"family": "nomic"}, "family must be one of gpt2, "),
    ({"steps": 0}, "steps must be at least 1, not 0"),
    ({"steps": 2.5}, "steps must be an integer, not 2.5"),
    ({"steps": True}, "steps must be an integer, not True"),
    ({"steps": None}, "steps must be an integer, not None"),
    ({"batch": 0}, "batch must be at least 1"),
    ({"batch": 4, "accumulate": 3}, "multiple of accumulate"),
    ({"context": 0}, "context must be at least 1"),
    ({"layers": 0}, "layers must be at least 1"),
    ({"width": -1}, "width must be at least 1"),
    ({"warm_up": -1}, "warm_up must be at least 0"),
    ({"seed": -1}, "seed must be between 0 and 9223372036854775807, not -1"),
    ({"seed": 2**63}, "seed must be between 0 and"),
    ({"vocab_size": 256}, "vocab_size must be at least 257"),
    ({"patience": 0}, "patience must be at least 1"),
    ({"threads": 0}, "threads must be between 1 and 1024, not 0"),
    ({"learning_rate": math.nan}, "learning_rate must be between 0 and 100, not nan"),
    ({"learning_rate": 1e6}, "learning_rate must be between 0 and 100"),
    ({"learning_rate": "fast"}, "learning_rate must be a number, not 'fast'"),
    ({"dropout": 1.0}, "dropout must be between 0 and 0.99"),
    ({"held_out": 0}, "held_out must be above 0"),
    ({"held_out": 0.95}, "held_out must be between 0 and 0.9"),
    ({"floor": 1.5}, "floor must be between 0 and 1"),
    ({"beta2": 1.0}, "beta2 must be between 0 and 0.99999"),
    ({"clip": -1.0}, "clip must be at least 0"),
    ({"clip": math.nan}, "clip must be at least 0"),
    ({"weight_decay": -0.1}, "weight_decay must be between 0 and 10"),
    ({"dtype": "float16"}, "dtype must be auto or float32 or bfloat16, not 'float16'"),
    ({"parallel": "pipeline"}, "parallel must be ddp or fsdp"),
    ({"config": "window_size=3"}, "config must be a mapping"),
    ({"config": {"windows": 3}}, "^config: unknown setting windows; the settings of gpt2 are .*n_layer"),
    ({"config": {"n_layers": 3}}, "^config: unknown setting n_layers; did you mean n_layer\\?$"),
    ({"config": {"n_positions": 8}}, "context must be at most 8"),
    ({"config": {"vocab_size": 3}}, "3 token IDs"),
    ({"family": "lstm", "heads": 2}, "heads: lstm has no attention heads"),
    ({"width": 16, "heads": 3}, "16.*multiple of.*3"),
    ({"device": "abacus"}, "device 'abacus' is unknown"),
    ({"sample": ""}, "sample"),
    ({"epochs": 2}, "epochs has no effect without start: remove it"),
    ({"vocab_size": 400}, "vocab_size has no effect without tokenizer='bpe': remove it"),
    ({"beta": 0.2}, "beta has no effect without preference pairs"),
    ({"scale": 2.0}, "scale has no effect without pairs or triplets"),
    ({"margin": 2.0}, "margin has no effect without triplets"),
    ({"keep_weight": 2.0}, "keep_weight has no effect without rows whose column keep is true"),
    ({"na": ["."]}, "na has no effect without files with examples"),
    ({"na": [1]}, "na must be a list of texts"),
    ({"tokenizer": "minhub/nothing"}, "no built-in minhub/nothing"),
    ({"start": "minhub/nothing"}, "no built-in minhub/nothing"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "message"), BAD_SETTINGS, ids=str)
def test_invalid_settings_are_reported(
    tmp_path: Path, text: Path, settings: dict[str, Any], message: str
) -> None:
    """The message names the setting and the allowed values. An error leaves no files."""
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        train(text, tmp_path / "run", **TINY | settings)
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]
