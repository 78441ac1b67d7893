"""Texts, settings and listeners of training runs; runs in child processes; comparisons of the files
of runs.
"""

import csv
import json
import os
import random
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from children import SERVER

from minhub_py import resume, train
from minhub_py.training import Listener, Run
from minhub_py.training.data import Tokens

FAMILY_NAMES = ["gpt2", "gptneo", "lstm"]
TINY: dict[str, Any] = {
    "layers": 2,
    "width": 16,
    "context": 16,
    "batch": 4,
    "steps": 12,
    "warm_up": 3,
    "evaluate_every": 4,
    "checkpoint_every": 3,
    "threads": 1,
}
BUILT_IN = {family: f"minhub/shakespeare-{family}" for family in FAMILY_NAMES}
TIMES = ("tokens_per_second", "seconds")  # columns of losses.csv that depend on the clock


def verses(length: int, seed: int = 0) -> str:
    """Lines of random words with different frequencies."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(1, 7))) for _ in range(300)]
    text = ""
    while len(text) < length:
        text += draw.choice(words[: draw.choice((10, 50, 300))]) + draw.choice(
            (" ", " ", " ", ", ", "\n")
        )
    return text[:length]


TEXT = verses(4000)


class Notes(Listener):
    """Records all callbacks and the initial weights of a run; stops before step `stop`."""

    def __init__(self, stop: int | None = None) -> None:
        self.stop = stop
        self.asked = 0
        self.rows: list[dict[str, Any]] = []
        self.best: list[bool] = []
        self.samples: list[tuple[int, str]] = []
        self.notes: list[str] = []
        self.read: list[tuple[str, int, int]] = []

    def preparing(self, what: str, done: int, total: int) -> None:
        self.read.append((what, done, total))

    def begins(self, trainer: Any) -> None:
        self.trainer = trainer
        self.weights = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}

    def evaluated(self, row: dict[str, Any], best: bool) -> None:
        self.rows.append(row)
        self.best.append(best)

    def sampled(self, step: int, text: str) -> None:
        self.samples.append((step, text))

    def note(self, text: str) -> None:
        self.notes.append(text)

    def asks_to_stop(self) -> bool:
        self.asked += 1
        return self.stop is not None and self.trainer.progress.step >= self.stop


def contents(folder: Path) -> dict[str, Any]:
    """The content of a run's files, without values that depend on the clock."""
    actual: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            actual[str(path.relative_to(folder))] = path.read_bytes()
    if "losses.csv" in actual:
        rows = list(csv.DictReader(actual["losses.csv"].decode().splitlines()))
        actual["losses.csv"] = [
            {name: value for name, value in row.items() if name not in TIMES} for row in rows
        ]
    for name in list(actual):
        if name.endswith("progress.json"):
            actual[name] = {
                key: value for key, value in json.loads(actual[name]).items() if key != "seconds"
            }
        if name == "README.md":
            actual[name] = [
                line
                for line in actual[name].decode().splitlines()
                if not line.startswith("| training time |")
            ]
    return actual


def same(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    """Assert that two runs have equal files; a failure lists the names of the files only."""
    assert sorted(actual) == sorted(expected)
    assert [name for name in expected if actual[name] != expected[name]] == []


def held_out_losses(run: Run) -> list[float]:
    return [row["held_out_loss"] for row in run.losses]


def steps(run: Run) -> list[float]:
    return [row["step"] for row in run.losses]


# C functions
CHANGES = {"open", "writerow", "flush", "rename", "replace", "unlink", "rmdir", "mkdir"}


def in_a_child(function: Callable[..., None], *arguments: object) -> int | None:
    """Call the function in a child process. Returns its exit status, negative for a signal."""
    process = SERVER.Process(target=function, args=arguments)
    process.start()
    process.join(200)
    assert process.exitcode is not None, "the child hangs"
    return process.exitcode


def resume_in_child(folder: Path, listener: Listener | None = None) -> None:
    """Resume a run, in a child process."""
    torch.set_num_threads(1)
    sys.modules["matplotlib"] = None  # type: ignore[assignment]
    resume(folder, listener=listener, progress=False)


def until(last: int, work: Callable[[], object]) -> None:
    """Call `work`, in a child process that sends SIGKILL to itself at the change number `last` of a
    file.
    """
    count = 0

    def count_changes(_frame: object, event: str, function: Any) -> None:
        nonlocal count
        if event != "c_call" or function.__name__ not in CHANGES:
            return
        # opened to read or to sync; str.replace
        if function is not os.open and not isinstance(function.__self__, str):
            count += 1
            if count == last:
                os.kill(os.getpid(), signal.SIGKILL)

    torch.set_num_threads(1)
    sys.modules["matplotlib"] = None  # type: ignore[assignment]
    sys.setprofile(count_changes)
    work()


def stopped(tmp_path: Path, text: Path, stop: int, **settings: Any) -> Path:
    """The folder of a run that stopped before step `stop`."""
    folder = tmp_path / "stopped" / "run"
    with suppress(KeyboardInterrupt):
        train(text, folder, listener=Notes(stop), **settings)
    assert not (folder / "checkpoints" / f"step-{settings['steps']:08}").exists()
    return folder


SHORT = TINY | {
    "steps": 4,
    "evaluate_every": 2,
    "checkpoint_every": 2,
    "layers": 1,
    "dropout": 0.2,
    "sample": "the",
    "sample_tokens": 3,
}


def ids_of(tokens: Tokens) -> list[int]:
    return np.fromfile(tokens.path, tokens.dtype).tolist()


def prepared(tmp_path: Path, texts: Sequence[bytes], **settings: Any) -> tuple[Run, Any]:
    """A run that stopped before its first step, and its tokenizer."""
    paths = []
    for number, data in enumerate(texts):
        paths.append(tmp_path / f"text{number}.txt")
        paths[-1].write_bytes(data)
    run = train(paths, tmp_path / "run", listener=Notes(0), **TINY | settings)
    return run, run.tokenizer
