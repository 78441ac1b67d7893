"""Runs interrupted before their first step, and two processes in one folder."""

import io
import json
import os
import shutil
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from children import SERVER
from click.testing import CliRunner
from training_runs import SHORT, TEXT, TINY, Notes, contents, in_a_child, same, until

from minhub_py import (
    from_pretrained,
    gpt2,
    resume,
    save_pretrained,
    tokenizer_from_pretrained,
    train,
)
from minhub_py.checkpoints.tokenizers.tokenizer import characters
from minhub_py.cli.main import main
from minhub_py.system.lock import BusyError
from minhub_py.training import Listener, Run


class Stop(Notes):
    """Raises an exception at the first report of a stage of the preparation."""

    def __init__(self, what: str, error: BaseException) -> None:
        super().__init__()
        self.what, self.error = what, error

    def preparing(self, what: str, done: int, total: int) -> None:
        if what == self.what:
            raise self.error


@pytest.mark.parametrize("what", ["Reading", "Learning tokens", "Encoding"])
def test_resume_continues_an_interrupted_preparation(tmp_path: Path, text: Path, what: str) -> None:
    settings = SHORT | {"tokenizer": "bpe", "vocab_size": 260}
    uninterrupted, folder = tmp_path / "uninterrupted" / "run", tmp_path / "stopped" / "run"
    train(text, uninterrupted, **settings)
    for error in (KeyboardInterrupt(), SystemExit(143)):
        with pytest.raises(type(error)):
            train(text, folder, listener=Stop(what, error), **settings)
        with pytest.raises(
            FileNotFoundError,
            match=r"preparation of its text was interrupted: continue it with resume\('.*'\)",
        ):
            Run(folder)
        with pytest.raises(type(error)):
            resume(folder, listener=Stop(what, error))
        same(contents(resume(folder).folder), contents(uninterrupted))
        shutil.rmtree(folder)
    # `train` starts again.
    with pytest.raises(KeyboardInterrupt):
        train(text, folder, listener=Stop(what, KeyboardInterrupt()), **settings)
    same(contents(train(text, folder, **settings).folder), contents(uninterrupted))


@pytest.mark.slow
def test_a_run_killed_during_its_preparation_resumes_identically(
    tmp_path: Path, text: Path
) -> None:
    """The process is killed at changes of files before the first step."""
    uninterrupted = tmp_path / "uninterrupted" / "run"
    train(text, uninterrupted, **SHORT)
    expected = contents(uninterrupted)
    resumed = 0
    for last in range(1, 200, 3):
        folder = tmp_path / f"at{last}" / "run"
        assert (
            in_a_child(until, last, partial(train, text, folder, progress=False, **SHORT))
            == -signal.SIGKILL
        )
        if (folder / "losses.csv").exists():
            break
        if (
            not (folder / "tokens" / "begun.json").exists()
            and not (folder / "settings.json").exists()
        ):
            continue
        resume(folder)
        same(contents(folder), expected)
        resumed += 1
    assert resumed > 2


def test_resume_continues_with_a_copy_of_a_stream(tmp_path: Path, text: Path) -> None:
    uninterrupted, folder = tmp_path / "uninterrupted" / "run", tmp_path / "stopped" / "run"
    train(io.BytesIO(TEXT.encode()), uninterrupted, **SHORT)
    with pytest.raises(KeyboardInterrupt):
        train(
            io.BytesIO(TEXT.encode()),
            folder,
            listener=Stop("Encoding", KeyboardInterrupt()),
            **SHORT,
        )
    same(contents(resume(folder).folder), contents(uninterrupted))

    class Broken(io.BytesIO):
        def read(self, count: int | None = -1) -> bytes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(Broken(), tmp_path / "new" / "run", **SHORT)
    assert not (tmp_path / "new").exists()


def test_an_error_in_the_preparation_leaves_no_files(tmp_path: Path, text: Path) -> None:
    with pytest.raises(ValueError, match="a reason"):
        train(
            text,
            tmp_path / "new" / "run",
            listener=Stop("Encoding", ValueError("a reason")),
            **SHORT,
        )
    assert not (tmp_path / "new").exists()


def test_resume_rejects_a_changed_text(tmp_path: Path, text: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(text, folder, listener=Stop("Encoding", KeyboardInterrupt()), **SHORT)
    before, times = contents(folder), text.stat()
    text.write_text(TEXT + "more")
    with pytest.raises(
        ValueError,
        match=r"text.txt has changed since the run began: start a new run with train\(\)",
    ):
        resume(folder)
    text.unlink()
    with pytest.raises(FileNotFoundError, match=r"text file .*text.txt does not exist"):
        resume(folder)
    same(contents(folder), before)
    text.write_text(TEXT)
    os.utime(text, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert resume(folder).best_loss > 0


def test_the_command_prints_how_to_continue(tmp_path: Path, text: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(text, folder, listener=Stop("Encoding", KeyboardInterrupt()), **TINY)
    errors = CliRunner().invoke(main, ["compare", str(folder)]).stderr
    assert f"interrupted: continue it with minhub train --resume {folder}" in errors
    result = CliRunner().invoke(main, ["train", "--resume", str(folder)])
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(main, ["train", "--resume", str(folder)])
    assert result.exit_code == 0, result.output
    assert (
        f"finished already, after step 12; for more steps: minhub train --resume {folder}"
        " --steps 24" in result.stderr
    )
    assert "TRAINING" not in result.stderr  # an empty table
    assert "The best model, of step" in result.stderr


def test_resume_rejects_a_changed_model_to_fine_tune(tmp_path: Path, text: Path) -> None:
    """A run without a checkpoint starts again from the model's files, which must be unchanged."""
    source, folder = tmp_path / "source", tmp_path / "run"
    tokenizer = characters(sorted(set(TEXT)))
    sizes: dict[str, Any] = {
        "vocab_size": 32,
        "n_positions": 16,
        "n_embd": 16,
        "n_layer": 1,
        "n_head": 2,
    }
    torch.manual_seed(1)
    save_pretrained(gpt2(**sizes), source, tokenizer)
    settings = {"start": str(source), "steps": 2, "batch": 4, "threads": 1}
    train(text, folder, listener=Notes(0), **settings)
    shutil.rmtree(folder / "checkpoints")
    before = from_pretrained(source)
    save_pretrained(gpt2(**sizes), source, tokenizer)
    with pytest.raises(
        ValueError,
        match="source has changed since the run .* began, and the run has no checkpoint yet",
    ):
        resume(folder)
    save_pretrained(before, source, tokenizer_from_pretrained(source))
    resume(folder)
    assert json.loads((folder / "tokens" / "tokens.json").read_text())["start"]


def test_resume_rejects_a_changed_model_after_the_text_was_encoded(
    tmp_path: Path, text: Path
) -> None:
    """The new model may have another tokenizer, so that the token IDs are wrong."""
    source, folder = tmp_path / "source", tmp_path / "run"
    sizes: dict[str, Any] = {
        "vocab_size": 32,
        "n_positions": 16,
        "n_embd": 16,
        "n_layer": 1,
        "n_head": 2,
    }
    save_pretrained(gpt2(**sizes), source, characters(sorted(set(TEXT))))
    settings = {"start": str(source), "steps": 2, "batch": 4, "threads": 1}
    train(text, folder, listener=Notes(0), **settings)
    # The state of a process that was killed after tokens.json and before settings.json.
    (folder / "tokens" / "begun.json").write_text(
        json.dumps(
            {
                "settings": json.loads((folder / "settings.json").read_text()),
                "texts": [[str(text), text.stat().st_size, text.stat().st_mtime_ns]],
            }
        )
    )
    for path in folder.iterdir():
        if path.name != "tokens":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    save_pretrained(gpt2(**sizes), source, characters(sorted(set(TEXT), reverse=True)))
    with pytest.raises(
        ValueError, match="source has changed since the run .* began: start a new run"
    ):
        resume(folder)


class Pause(Listener):
    """Reports its first step through a pipe and waits for a reply."""

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe

    def asks_to_stop(self) -> bool:
        if self.pipe:
            self.pipe.send_bytes(b".")
            self.pipe.recv_bytes()
            self.pipe = None
        return False


def train_and_pause(text: Path, folder: Path, pipe: Any) -> None:
    """Train in a child process."""
    sys.modules["matplotlib"] = None  # type: ignore[assignment]
    train(text, folder, listener=Pause(pipe), **SHORT)


@pytest.mark.parametrize("killed", [False, True])
def test_a_second_process_cannot_train_in_the_same_folder(
    tmp_path: Path, text: Path, killed: bool
) -> None:
    uninterrupted, folder = tmp_path / "uninterrupted" / "run", tmp_path / "two" / "run"
    train(text, uninterrupted, **SHORT)
    connection, child_connection = SERVER.Pipe()
    process = SERVER.Process(target=train_and_pause, args=(text, folder, child_connection))
    process.start()
    child_connection.close()
    connection.recv_bytes()
    with pytest.raises(BusyError, match="another process is training in .*run: wait until it ends"):
        resume(folder)
    with pytest.raises(FileExistsError, match="contains a run already"):
        train(text, folder, **SHORT)
    if killed:
        process.kill()
    else:
        connection.send_bytes(b".")
    process.join()
    resume(folder)  # the lock is released when its process ends
    same(contents(folder), contents(uninterrupted))


def test_a_second_process_cannot_prepare_in_the_same_folder(tmp_path: Path, text: Path) -> None:
    folder = tmp_path / "run"

    class Second(Notes):
        def preparing(self, what: str, done: int, total: int) -> None:
            with pytest.raises(BusyError, match="another process is training in"):
                train(text, folder, **SHORT)
            super().preparing(what, done, total)

    second = Second()
    train(text, folder, listener=second, **SHORT)
    assert {what for what, _, _ in second.read} == {"Reading", "Encoding"}
    train(text, tmp_path / "uninterrupted", **SHORT)
    assert (
        Run(folder).losses[-1]["held_out_loss"]
        == Run(tmp_path / "uninterrupted").losses[-1]["held_out_loss"]
    )
