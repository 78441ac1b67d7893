"""Runs that are killed or stopped resume with bitwise identical results. Killed processes are
forked from a server.
"""

import os
import random
import re
import shutil
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from children import SERVER
from pairs import with_variants
from training_runs import (
    FAMILY_NAMES,
    SHORT,
    TEXT,
    TINY,
    Notes,
    contents,
    held_out_losses,
    in_a_child,
    resume_in_child,
    same,
    steps,
    stopped,
    until,
)

from minhub_py import resume, train
from minhub_py.training import Listener, Run, Settings
from minhub_py.training.checkpoint import RunFolder

# --- Resuming a killed run


@pytest.mark.slow
@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.soak)])
def test_a_run_killed_at_any_file_change_resumes_identically(
    tmp_path: Path, text: Path, every: int
) -> None:
    """A process is killed with SIGKILL at calls that change a file: the best model, the CSV, a
    sample, a checkpoint. Temporary files are truncated. The resumed run has the same files as an
    uninterrupted run.
    """
    uninterrupted = tmp_path / "uninterrupted" / "run"
    train(text, uninterrupted, **SHORT)
    expected = contents(uninterrupted)
    before = stopped(tmp_path, text, 3, **SHORT)
    killed = 0
    for last in range(1, 500, every):
        folder = tmp_path / f"at{last}" / "run"
        shutil.copytree(before, folder)
        status = in_a_child(until, last, partial(resume, folder, progress=False))
        if status == 0:
            break
        assert status == -signal.SIGKILL
        killed += 1
        for path in folder.rglob("*partial*"):
            if path.is_file():
                os.truncate(path, path.stat().st_size // 2)
        resume(folder)
        same(contents(folder), expected)
        shutil.rmtree(folder.parent)
    assert killed > 30 / every


class Pulse(Listener):
    """Writes a byte to a pipe before each step."""

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe

    def asks_to_stop(self) -> bool:
        self.pipe.send_bytes(b".")
        return False


def resume_with_pulse(folder: Path, pipe: Any) -> None:
    """Resume a run, in a child process."""
    resume_in_child(folder, Pulse(pipe))


@pytest.mark.parametrize("family", with_variants(FAMILY_NAMES, ["gpt2"]))
def test_a_run_killed_repeatedly_resumes_identically(
    tmp_path: Path, text: Path, family: str
) -> None:
    """Seven kills per architecture, each after a random number of steps."""
    settings = TINY | {
        "family": family,
        "steps": 40,
        "evaluate_every": 7,
        "dropout": 0.1,
        "accumulate": 2,
    }
    uninterrupted, folder = tmp_path / "uninterrupted" / "run", tmp_path / "killed" / "run"
    train(text, uninterrupted, **settings)
    train(text, folder, listener=Notes(0), **settings)
    draw = random.Random(FAMILY_NAMES.index(family))
    for _ in range(7):
        receiver, sender = SERVER.Pipe(duplex=False)
        process = SERVER.Process(target=resume_with_pulse, args=(folder, sender))
        process.start()
        sender.close()
        for _ in range(draw.randint(1, 9)):
            receiver.recv_bytes()
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        receiver.close()
    resume(folder)
    same(contents(folder), contents(uninterrupted))


@pytest.mark.slow
def test_a_run_killed_before_its_first_checkpoint_resumes_identically(
    tmp_path: Path, text: Path
) -> None:
    """`resume` continues a run with settings.json; otherwise `train` starts it again."""
    uninterrupted = tmp_path / "uninterrupted" / "run"
    train(text, uninterrupted, **SHORT)
    expected = contents(uninterrupted)
    resumable = []
    for last in range(1, 400, 3):
        folder = tmp_path / f"at{last}" / "run"
        assert (
            in_a_child(until, last, partial(train, text, folder, progress=False, **SHORT))
            == -signal.SIGKILL
        )
        resumable.append((folder / "settings.json").exists())
        if list(folder.glob("checkpoints/step-*")):
            break
        if resumable[-1]:
            resume(folder)
        else:
            train(text, folder, **SHORT)
        same(contents(folder), expected)
    assert resumable.count(False) > 2
    assert resumable.count(True) > 2


def test_incomplete_lines_are_removed_on_resume(tmp_path: Path, text: Path) -> None:
    """After a crash or on a full disk, losses.csv and samples.txt may end with any prefix of the
    new lines.
    """
    text.write_bytes(TEXT.replace("\n", "\r\n").replace("e", "é").encode())
    settings = SHORT | {"sample": "é\r\n", "sample_tokens": 20}
    uninterrupted = tmp_path / "uninterrupted" / "run"
    train(text, uninterrupted, **settings)
    before = stopped(tmp_path, text, 3, **settings)
    folder = tmp_path / "cut" / "run"
    row_count = len(RunFolder(before).read_rows())
    for name in ("losses.csv", "samples.txt"):
        head, full = (run.joinpath(name).read_bytes() for run in (before, uninterrupted))
        # The times in the lines of the two runs have different lengths.
        full = head + b"".join(full.splitlines(keepends=True)[len(head.splitlines()) :])
        assert len(head) < len(full)
        for length in range(len(head), len(full)):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(full[:length])
            if name == "losses.csv":  # an incomplete line is ignored
                assert len(RunFolder(folder).read_rows()) == row_count
            RunFolder(folder).truncate_after(3)
            assert (folder / name).read_bytes() == head, full[len(head) : length]
        for length in range(len(head)):  # without a checkpoint only the heading of the CSV remains
            (folder / name).write_bytes(full[:length])
            RunFolder(folder).truncate_after(-1)
            assert (folder / name).read_bytes() == (
                head.splitlines(keepends=True)[0] if name == "losses.csv" else b""
            )

    shutil.rmtree(folder)
    shutil.copytree(before, folder)
    for name in ("losses.csv", "samples.txt"):
        (folder / name).write_bytes((uninterrupted / name).read_bytes()[:-3])
    resume(folder)
    same(contents(folder), contents(uninterrupted))


# --- Resuming a stopped run


class Interrupts(Notes):
    """Sends signals to the process after step 4."""

    def __init__(self, numbers: Sequence[int]) -> None:
        super().__init__()
        self.numbers = numbers

    def evaluated(self, row: dict[str, Any], best: bool) -> None:
        for number in self.numbers if row["step"] == 4 else ():
            os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    ("numbers", "raised", "checkpoint"),
    [
        ([signal.SIGINT], KeyboardInterrupt, 4),
        ([signal.SIGTERM], SystemExit, 4),
        ([signal.SIGINT, signal.SIGINT], KeyboardInterrupt, 3),
    ],
)
def test_a_signal_stops_with_a_checkpoint(
    tmp_path: Path, text: Path, numbers: list[int], raised: type[BaseException], checkpoint: int
) -> None:
    """A second Ctrl-C stops at once, with the previous checkpoint."""
    uninterrupted, folder = tmp_path / "uninterrupted" / "run", tmp_path / "stopped" / "run"
    settings = TINY | {"family": "lstm", "sample": "the", "sample_tokens": 3}
    train(text, uninterrupted, **settings)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(raised) as caught:
        train(text, folder, listener=Interrupts(numbers), **settings)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    if raised is SystemExit:
        assert caught.value.code == 128 + signal.SIGTERM
    assert [path.name for path in (folder / "checkpoints").glob("step-*")] == [
        f"step-{checkpoint:08}"
    ]
    resume(folder)
    same(contents(folder), contents(uninterrupted))


class InterruptsEvaluation(Notes):
    """Sends SIGTERM before the second batch of the evaluation after step 4."""

    def working(self, step: int, task: str, number: int, count: int) -> None:
        if (step, task, number) == (4, "evaluation", 2):
            os.kill(os.getpid(), signal.SIGTERM)
        assert (step, task, number) != (4, "evaluation", 4)

    def stopping(self, pending: str) -> None:
        self.pending = pending


def test_sigterm_stops_within_an_evaluation(tmp_path: Path, text: Path) -> None:
    """The listener receives the pending batch at once."""
    uninterrupted, folder = tmp_path / "uninterrupted" / "run", tmp_path / "stopped" / "run"
    train(text, uninterrupted, **TINY)
    listener = InterruptsEvaluation()
    with pytest.raises(SystemExit):
        train(text, folder, listener=listener, **TINY)
    assert re.fullmatch(r"batch 2 of \d+ of the evaluation", listener.pending)
    newest = Run(folder).files.newest()
    assert newest is not None
    assert newest.name == "step-00000004"
    resume(folder)
    same(contents(folder), contents(uninterrupted))


class Cancels(Notes):
    """Records every batch, and cancels the run after `most` of them."""

    def __init__(self, most: int | None = None) -> None:
        super().__init__()
        self.most = most
        self.batches: list[tuple[int, str, int, int]] = []
        self.estimates: list[tuple[float, int, int]] = []

    def working(self, step: int, task: str, number: int, count: int) -> None:
        self.batches.append((step, task, number, count))

    def estimated(self, seconds: float, steps: int, evaluations: int, step_seconds: float) -> None:
        assert 0 < steps * step_seconds < seconds
        self.estimates.append((seconds, steps, evaluations))

    def cancelled(self) -> bool:
        return len(self.batches) == self.most


def test_a_run_without_remaining_steps_has_no_estimate(tmp_path: Path, text: Path) -> None:
    """A resumed run has its first evaluation after some steps, here after the last one."""
    train(text, tmp_path / "run", **TINY | {"steps": 2, "evaluate_every": 2})
    recorded = Cancels()
    assert resume(tmp_path / "run", steps=3, listener=recorded).losses[-1]["step"] == 3
    assert recorded.estimates == []


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "lstm"])
def test_a_run_cancelled_before_any_batch_resumes_identically(
    tmp_path: Path, text: Path, family: str
) -> None:
    """An LSTM that carries its state finishes the step first."""
    settings = TINY | {
        "family": family,
        "steps": 3,
        "evaluate_every": 2,
        "checkpoint_every": 3,
        "batch": 4,
        "dropout": 0.1,
        "accumulate": 2,
        "evaluate_tokens": 6 * TINY["context"],
    }
    expected, folder = tmp_path / "uninterrupted" / "run", tmp_path / "stopped" / "run"
    recorded = Cancels()
    train(text, expected, listener=recorded, **settings)
    assert {("step", 1, 2), ("step", 2, 2)} <= {batch[1:] for batch in recorded.batches}
    assert any(task == "evaluation" and batch == 2 for _, task, batch, _ in recorded.batches)
    [(seconds, steps, evaluations)] = recorded.estimates
    assert (seconds > 0, steps, evaluations) == (True, 3, 3)
    for number, (step, task, batch, _) in enumerate(recorded.batches):
        if task == "step" and (batch == 1 or family == "lstm"):
            continue
        cancelled = Cancels(number)
        train(text, folder, listener=cancelled, **settings)
        assert cancelled.batches == recorded.batches[:number]
        newest = None if (step, task) == (0, "evaluation") else f"step-{step:08}"
        for _ in range(2):
            checkpoint = resume(folder, listener=Cancels(1 if task == "step" else 0)).files.newest()
            assert (checkpoint.name if checkpoint else None) == newest
        resume(folder)
        same(contents(folder), contents(expected))
        shutil.rmtree(folder.parent)


@pytest.mark.parametrize("family", with_variants(FAMILY_NAMES, ["gpt2"]))
def test_a_run_stopped_twice_at_every_step_resumes_identically(
    tmp_path: Path, text: Path, family: str
) -> None:
    """Also before the first step, and immediately after a resume."""
    uninterrupted, folder = tmp_path / "uninterrupted" / "run", tmp_path / "stopped" / "run"
    settings = TINY | {"family": family, "steps": 6, "dropout": 0.2, "accumulate": 2, "patience": 4}
    train(text, uninterrupted, **settings)
    train(text, folder, listener=Notes(0), **settings)
    for step in range(7):
        for _ in range(2):
            assert resume(folder, listener=Notes(step)).files.newest().name == f"step-{step:08}"
    resume(folder)
    same(contents(folder), contents(uninterrupted))


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path, text: Path) -> None:
    run = train(text, tmp_path / "run", **TINY)
    before = contents(run.folder)
    listener = Notes()
    resume(run.folder, listener=listener)
    same(contents(run.folder), before)
    assert listener.rows == []


def test_resume_continues_to_a_higher_number_of_steps(tmp_path: Path, text: Path) -> None:
    """The run continues to the new end of the cosine."""
    run = train(text, tmp_path / "run", family="lstm", **TINY)
    before = run.losses
    after = resume(run.folder, steps=20, evaluate_every=5)
    # a NaN is not equal to itself
    assert list(map(str, after.losses[: len(before)])) == list(map(str, before))
    assert steps(after) == [0, 4, 8, 12, 15, 20]
    assert after.settings.steps == 20
    assert after.losses[-2]["learning_rate"] > after.losses[-1]["learning_rate"]
    assert after.best_loss == min(held_out_losses(after))
    assert after.files.newest().name == "step-00000020"


def test_resume_does_not_need_the_text(tmp_path: Path, text: Path) -> None:
    uninterrupted, folder = tmp_path / "uninterrupted" / "run", tmp_path / "stopped" / "run"
    train(text, uninterrupted, **TINY)
    train(text, folder, listener=Notes(5), **TINY)
    text.unlink()
    same(contents(resume(folder).folder), contents(uninterrupted))


FIXED = """family start tokenizer vocab_size held_out layers width heads context dropout config batch accumulate
learning_rate warm_up floor weight_decay beta2 clip carry seed dtype speed""".split()


@pytest.mark.parametrize("name", FIXED)
def test_fixed_settings_cannot_change(tmp_path: Path, name: str) -> None:
    """The error is raised before any file is read; `speed` is not a setting."""
    tmp_path.joinpath("settings.json").write_text(Settings().to_json())
    before = contents(tmp_path)
    message = f"^unknown setting {name}" if name == "speed" else f"^{name} cannot change"
    with pytest.raises(ValueError, match=message):
        resume(tmp_path, **{name: 1})
    same(contents(tmp_path), before)


def test_a_failed_resume_changes_nothing(tmp_path: Path, text: Path) -> None:
    folder = stopped(tmp_path, text, 3, **TINY)
    before = contents(folder)
    for changes in ({"device": "nonsense"}, {"steps": 0}, {"steps": 2}, {"sample": ""}):
        with pytest.raises(ValueError, match=next(iter(changes))):
            resume(folder, **changes)
        same(contents(folder), before)
    train(text, tmp_path / "uninterrupted" / "run", **TINY)
    same(contents(resume(folder).folder), contents(tmp_path / "uninterrupted" / "run"))


def test_resume_requires_a_run(tmp_path: Path) -> None:
    for folder in (tmp_path / "nothing", tmp_path):
        with pytest.raises(FileNotFoundError, match=r"not a run of train\(\)"):
            resume(folder)
    assert list(tmp_path.iterdir()) == []
