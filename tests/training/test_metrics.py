"""Metrics of training runs: JSON lines, TensorBoard and Weights & Biases."""

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
from commands import failed, succeeded
from needs import missing, needs, require
from training_runs import TINY

from minhub_py import resume, train
from minhub_py.training import Listener, Run


def finite(run: Run) -> list[dict[str, float]]:
    """The step, losses, learning rate and gradient norm of all evaluations."""
    names = ("step", "train_loss", "held_out_loss", "learning_rate", "gradient_norm")
    return [{name: row[name] for name in names if math.isfinite(row[name])} for row in run.losses]


def evaluations(path: Path) -> list[dict[str, Any]]:
    return [row for row in map(json.loads, path.read_text().splitlines()) if "held_out_loss" in row]


def test_the_file_has_all_evaluations_also_after_a_resumption(tmp_path: Path, text: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    train(text, tmp_path / "run", metrics=path, progress=False, **TINY)
    run = resume(tmp_path / "run", metrics=path, progress=False, steps=20)
    assert evaluations(path) == finite(run)
    assert [row["step"] for row in evaluations(path)] == [0, 4, 8, 12, 16, 20]


def test_another_listener_is_called_as_well_and_can_stop_the_run(
    tmp_path: Path, text: Path
) -> None:
    class Stops(Listener):
        """Stops the run after its first evaluation."""

        def asks_to_stop(self) -> bool:
            return True

    run = train(
        text, tmp_path / "run", metrics=tmp_path / "metrics.jsonl", listener=Stops(), **TINY
    )
    assert (
        [row["step"] for row in evaluations(tmp_path / "metrics.jsonl")]
        == [row["step"] for row in run.losses]
        == [0]
    )


@needs("tensorboard")
def test_tensorboard_reads_the_losses(tmp_path: Path, text: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train(
        text, tmp_path / "run", metrics=f"tensorboard:{tmp_path / 'events'}", progress=False, **TINY
    )
    events = EventAccumulator(os.fspath(tmp_path / "events")).Reload()
    actual = {event.step: event.value for event in events.Scalars("held_out_loss")}
    assert actual == {
        row["step"]: pytest.approx(row["held_out_loss"], rel=1e-6) for row in run.losses
    }


def test_the_command_writes_metrics(tmp_path: Path, text: Path) -> None:
    options = [
        "--layers",
        "1",
        "--width",
        "16",
        "--context",
        "16",
        "--batch",
        "4",
        "--steps",
        "2",
        "--threads",
        "1",
    ]
    succeeded("train", text, "--out", tmp_path / "run", "--metrics", tmp_path / "m.jsonl", *options)
    assert evaluations(tmp_path / "m.jsonl") == finite(Run(tmp_path / "run"))


def test_an_unusable_target_is_an_error_before_the_run_starts(tmp_path: Path, text: Path) -> None:
    path = tmp_path / "missing" / "metrics.jsonl"
    message = f"{path} cannot be written: the folder {path.parent} does not exist"
    with pytest.raises(FileNotFoundError, match=re.escape(message)):
        train(text, tmp_path / "run", metrics=path, **TINY)
    assert message in failed("train", text, "--out", tmp_path / "run", "--metrics", path)
    assert not (tmp_path / "run").exists()


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, text: Path
) -> None:
    require(missing("wandb"), "Weights & Biases is installed")
    output = failed("train", text, "--out", tmp_path / "run", "--metrics", "wandb:project")
    assert "Weights & Biases requires the Python package wandb" in output
    assert "minhub_py[wandb]" in output
    assert not (tmp_path / "run").exists()
