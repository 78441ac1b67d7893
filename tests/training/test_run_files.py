"""A run's files: missing and corrupt ones, full disks, read-only folders, and loss curves."""

import dataclasses
import json
import math
import os
import re
import resource
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from children import SERVER
from safetensors.torch import load_file, save_file
from training_runs import (
    FAMILY_NAMES,
    SHORT,
    TEXT,
    TINY,
    Notes,
    contents,
    held_out_losses,
    in_a_child,
    same,
    steps,
    stopped,
)

from minhub_py import from_pretrained, generate, resume, save_pretrained, train
from minhub_py.loading.inspection import verify
from minhub_py.training import summary

# --- Missing and corrupt files


NEWEST = "checkpoints/step-00000005"
# Advice for each missing or corrupt file of a run; None: the run continues without the file.
LOST = (
    "the run cannot continue, but its best model is intact in RUN; start a new run from it with"
    " start='RUN'"
)
COPY = (
    f"the best model is lost; copy config.json, model.safetensors, tokenizer.json from RUN/{NEWEST}"
    " to RUN,"
)
FILES: dict[str, str | None] = {
    "settings.json": LOST,
    "tokens/train.bin": LOST,
    "tokens/held_out.bin": LOST,
    "tokens/tokens.json": LOST,
    "tokens/tokenizer.json": "copy RUN/tokenizer.json to RUN/tokens, then run resume('RUN')",
    "config.json": f"copy RUN/{NEWEST}/config.json to RUN, then run resume('RUN')",
    "model.safetensors": f"{COPY} then run resume('RUN')",
    "tokenizer.json": f"copy RUN/{NEWEST}/tokenizer.json to RUN, then run resume('RUN')",
    "losses.csv": "remove it, then run resume('RUN') to continue without the earlier losses",
    "samples.txt": None,
    "README.md": None,
    f"{NEWEST}/config.json": f"copy RUN/config.json to RUN/{NEWEST}, then run resume('RUN')",
    f"{NEWEST}/model.safetensors": LOST,
    f"{NEWEST}/optimizer.safetensors": LOST,
    f"{NEWEST}/progress.json": LOST,
    f"{NEWEST}/tokenizer.json": None,
}
WAYS: dict[str, Callable[[bytes], bytes] | None] = {
    "is missing": None,
    "is corrupt": lambda data: data[: len(data) // 2],
    "is corrupt ": lambda data: b"\xff" * len(data),
}


@pytest.fixture(scope="module")
def five_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that stopped after step 5; its best model is of step 4."""
    root = tmp_path_factory.mktemp("five")
    (root / "text.txt").write_text(TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        return stopped(
            root, root / "text.txt", 5, **TINY | {"layers": 1, "sample": "the", "sample_tokens": 1}
        )


def all_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_table_lists_every_file_of_a_run(five_steps: Path) -> None:
    assert sorted(all_of(five_steps)) == sorted(FILES)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FILES)
def test_a_missing_or_corrupt_file_is_reported_with_advice(
    tmp_path: Path, five_steps: Path, name: str, way: str
) -> None:
    """The message names the file and how to recover; nothing changes, and the advice works."""
    run = tmp_path / "run"
    shutil.copytree(five_steps, run)
    advice, change, path = FILES[name], WAYS[way], run / name
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change(path.read_bytes()))
    if name == "losses.csv" and way != "is corrupt ":  # incomplete lines are ignored
        advice = None
    if advice is not None:
        before = all_of(run)
        with pytest.raises(ValueError, match=r".") as caught:
            resume(run, progress=False)
        assert str(caught.value) == f"{path} {way.strip()}: {advice.replace('RUN', str(run))}"
        # invalid token IDs are detected when they are read
        if not (path.suffix == ".bin" and way == "is corrupt "):
            assert all_of(run) == before
        if advice.startswith("remove it"):
            path.unlink()
        if source := re.match("copy RUN/(.*) to RUN", advice):
            shutil.copy(run / source[1], path)
        if "best model is lost" in advice:
            for source in ("config.json", "model.safetensors", "tokenizer.json"):
                shutil.copy(run / NEWEST / source, run)
        if advice == LOST:
            assert from_pretrained(run, device="cpu")(torch.tensor([[0]])).isfinite().all()
            return
    result = resume(run, steps=6, progress=False)
    assert result.losses[-1]["step"] == 6
    assert (
        result.best_loss
        == json.loads((run / "checkpoints/step-00000006/progress.json").read_text())["best_loss"]
    )
    assert result.best["step"] in (4, 6)


def test_the_advice_names_an_earlier_checkpoint(tmp_path: Path, five_steps: Path) -> None:
    """Two checkpoints remain if the process was killed before it removed the older one."""
    run = tmp_path / "run"
    shutil.copytree(five_steps, run)
    shutil.copytree(run / NEWEST, run / "checkpoints" / "step-00000003")
    (run / NEWEST / "progress.json").unlink()
    with pytest.raises(
        ValueError, match=f"remove {run / NEWEST}, then run .* to continue from step-00000003"
    ):
        resume(run, progress=False)
    shutil.rmtree(run / NEWEST)
    assert resume(run, progress=False).losses[-1]["step"] == 12


def test_a_run_without_its_checkpoints_does_not_start_again(
    tmp_path: Path, five_steps: Path
) -> None:
    """It would overwrite its best model and its losses."""
    run = tmp_path / "run"
    shutil.copytree(five_steps, run)
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(
        ValueError,
        match=f"{run / 'checkpoints'} is missing: the run cannot continue, but its best model",
    ):
        resume(run, progress=False)
    (run / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="it has no intact model; start a new run from the text"):
        resume(run, progress=False)


def test_an_optimizer_state_of_another_model_is_rejected(tmp_path: Path, five_steps: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(five_steps, run)
    path = run / NEWEST / "optimizer.safetensors"
    # the file is mapped
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    path.write_bytes((run / "model.safetensors").read_bytes())
    with pytest.raises(ValueError, match=r"optimizer\.safetensors is corrupt"):
        resume(run, progress=False)
    name = next(iter(tensors))
    save_file(tensors | {name: tensors[name][:1].clone()}, path)
    with pytest.raises(ValueError, match=r"optimizer\.safetensors is corrupt"):
        resume(run, progress=False)


# --- Full disks and permissions


def bounded(size: int, work: Callable[[], object]) -> str:
    """The error message of `work` with files limited to `size` bytes, which resembles a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        work()
    except OSError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    raise AssertionError("no file reached the limit")


def test_a_full_disk_loses_nothing(tmp_path: Path, text: Path) -> None:
    """Without space for the optimizer state, the best model or a line, an error is raised; the run
    can be resumed.
    """
    settings = SHORT | {"width": 32}
    uninterrupted = tmp_path / "uninterrupted" / "run"
    train(text, uninterrupted, **settings)
    before = stopped(tmp_path, text, 3, **settings)
    model = (before / "model.safetensors").stat().st_size
    for number, size in enumerate([int(1.5 * model), model // 2, 300]):
        folder = tmp_path / str(number) / "run"
        shutil.copytree(before, folder)
        message = bounded(size, partial(resume, folder, progress=False))
        assert "cannot be written (File too large): free disk space" in message, message
        assert str(folder) in message
        for model_folder in (folder, folder / "checkpoints" / "step-00000003"):
            assert from_pretrained(model_folder, device="cpu").config.n_embd == 32
        resume(folder)
        same(contents(folder), contents(uninterrupted))


def test_a_full_disk_at_the_start_leaves_no_files(tmp_path: Path, text: Path) -> None:
    for size in (100, 1000):
        bounded(size, partial(train, text, tmp_path / "run", **SHORT))
        assert not (tmp_path / "run" / "settings.json").exists()
        assert not (tmp_path / "run").exists()


def as_nobody(folder: Path, pipe: Any) -> None:
    """Resume the run in `folder`, in a child process without root's permissions."""
    torch.set_num_threads(1)
    sys.modules["matplotlib"] = None  # type: ignore[assignment]
    os.chdir(folder.parent)
    if os.getuid() == 0:
        os.setuid(65534)
    try:
        resume(folder.name)
    except OSError as error:
        pipe.send(f"{type(error).__name__}: {error}")
    else:
        pipe.send("finished")


def test_a_read_only_folder_is_reported(tmp_path: Path, text: Path) -> None:
    folder = stopped(tmp_path, text, 3, **SHORT)
    before = contents(folder)
    folders = [
        folder,
        folder / "checkpoints",
        folder / "checkpoints" / "step-00000003",
        folder / "tokens",
    ]
    tmp_path.chmod(0o755)
    for path in folders:
        path.chmod(0o555)
    receiver, sender = SERVER.Pipe(duplex=False)
    try:
        assert in_a_child(as_nobody, folder, sender) == 0
    finally:
        for path in folders:
            path.chmod(0o755)
    message = receiver.recv()
    assert message.startswith("PermissionError: ")
    assert "run" in message
    same(contents(folder), before)

    (tmp_path / "file").write_text("content")
    with pytest.raises(OSError, match="file"):
        train(text, tmp_path / "file" / "run", **SHORT)
    with pytest.raises(OSError, match="file"):
        train(text, tmp_path / "file", **SHORT)
    assert (tmp_path / "file").read_text() == "content"


def test_existing_files_are_never_overwritten(tmp_path: Path, text: Path) -> None:
    """A folder with a run, a model or other files is rejected, also if a setting is invalid."""
    run = train(text, tmp_path / "run", **TINY | {"steps": 1})
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "README.md").write_text("content")
    (tmp_path / "words" / "tokens").mkdir(parents=True)
    (tmp_path / "words" / "tokens" / "notes.txt").write_text("content")
    save_pretrained(run.model, tmp_path / "model")
    (tmp_path / "empty").mkdir()
    before = contents(tmp_path)
    for name in ("run", "notes", "words", "model"):
        with pytest.raises(
            FileExistsError, match=f"{name} contains .*: .*choose a(nother| new) folder"
        ):
            train(text, tmp_path / name, **TINY)
        with pytest.raises((FileExistsError, ValueError), match=r"."):
            train(text, tmp_path / name, tokenizer="minhub/nothing", **TINY)
    with pytest.raises(ValueError, match="context"):
        train(text, tmp_path / "empty", **TINY | {"context": 10_000})
    assert (tmp_path / "empty").is_dir()
    with pytest.raises(ValueError, match="no text to train on"):
        train([], tmp_path / "none", **TINY)
    same(contents(tmp_path), before)
    assert not (tmp_path / "none").exists()


# --- A run's folder


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_run_has_the_documented_files(tmp_path: Path, text: Path, family: str) -> None:
    notes = Notes()
    run = train(
        text, tmp_path / "run", family=family, sample="th", sample_tokens=7, listener=notes, **TINY
    )
    actual = sorted(
        str(path.relative_to(run.folder)) for path in run.folder.rglob("*") if path.is_file()
    )
    model = ["config.json", "model.safetensors", "tokenizer.json"]
    assert actual == sorted(
        [
            "README.md",
            *model,
            "losses.csv",
            "samples.txt",
            "settings.json",
            *(
                f"tokens/{name}"
                for name in ("train.bin", "held_out.bin", "tokens.json", "tokenizer.json")
            ),
            *(
                f"checkpoints/step-00000012/{name}"
                for name in (*model, "optimizer.safetensors", "progress.json")
            ),
        ]
    )
    for path in map(run.folder.joinpath, actual):  # a pickle, or a zip file of PyTorch
        assert not path.read_bytes().startswith((b"\x80", b"PK"))
    assert verify(str(run.folder))["problems"] == []

    assert steps(run) == [0, 4, 8, 12]
    assert [row["tokens"] for row in run.losses] == [64 * step for step in steps(run)]
    assert {type(row[name]) for row in run.losses for name in ("step", "tokens")} == {int}
    assert math.isnan(run.losses[0]["train_loss"])
    assert [row["held_out_loss"] for row in notes.rows] == held_out_losses(run)
    assert run.best_loss == min(held_out_losses(run))
    assert [step for step, _ in notes.samples] == [0, 4, 8, 12]
    assert all(sample.startswith("th") and len(sample) == 9 for _, sample in notes.samples)
    assert (run.folder / "samples.txt").read_text() == "".join(
        f"==== step {step}\n{sample}\n\n" for step, sample in notes.samples
    )
    assert {what for what, _, _ in notes.read} >= {"Reading", "Encoding"}
    assert all(0 < done <= total == len(TEXT) for _, done, total in notes.read)
    assert len(generate(run.model, [run.tokenizer.encode("the").ids], 5)[0]) == 5
    card = (run.folder / "README.md").read_text()
    assert f"{run.best_loss:.4f} nats per token" in card
    assert f"{notes.trainer.parameters:,} parameters" in card
    assert any("matplotlib" in note for note in notes.notes)


def test_transformers_loads_the_model(tmp_path: Path, text: Path) -> None:
    from transformers import AutoModelForCausalLM

    for family in ("gpt2", "gptneo"):
        run = train(text, tmp_path / family, family=family, **TINY)
        reference = AutoModelForCausalLM.from_pretrained(run.folder).eval()
        ids = torch.tensor([run.tokenizer.encode(TEXT[:16]).ids])
        with torch.no_grad():
            torch.testing.assert_close(run.model(ids), reference(ids).logits, rtol=1e-4, atol=1e-5)


def test_the_loss_curves_are_a_png_file(tmp_path: Path, text: Path, pictures: None) -> None:
    from matplotlib.image import imread

    run = train(text, tmp_path / "_odd $name$ {x}", **TINY)
    data = (run.folder / "losses.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    picture = imread(run.folder / "losses.png")
    assert picture.shape[0] > 400
    assert picture.shape[1] > 700
    assert len(np.unique(picture.reshape(-1, picture.shape[2]), axis=0)) > 50
    assert resume(run.folder, listener=Notes(0)).folder.joinpath("losses.png").exists()


def test_equal_curves_remain_visible(tmp_path: Path, text: Path, pictures: None) -> None:
    from matplotlib.colors import to_rgb
    from matplotlib.image import imread

    run = summary.read(
        train(text, tmp_path / "run", **TINY | {"steps": 40, "evaluate_every": 2}).folder
    )
    for count in (2, 3):
        summary.draw(
            [dataclasses.replace(run, name=f"run {number}") for number in range(count)],
            tmp_path / "x.png",
        )
        picture = imread(tmp_path / "x.png")[:, :, :3]
        curves = picture[:, : int(0.6 * picture.shape[1])].reshape(-1, 3)  # left of the legend
        for colour in summary.COLOURS[:count]:
            assert (np.abs(curves - to_rgb(colour)).max(axis=1) < 0.02).sum() > 50


def test_the_axis_shows_the_losses_of_all_steps(tmp_path: Path, text: Path, pictures: None) -> None:
    run = summary.read(
        train(text, tmp_path / "run", **TINY | {"steps": 40, "evaluate_every": 2}).folder
    )
    high = [
        {**row, "held_out_loss": row["held_out_loss"] + 50 * (row["step"] == 0)} for row in run.rows
    ]
    [axes] = summary.draw([dataclasses.replace(run, rows=high)], tmp_path / "x.png").axes
    low, top = axes.get_ylim()
    drawn = np.concatenate([np.asarray(line.get_ydata(), float) for line in axes.lines])
    assert low < np.nanmin(drawn) < np.nanmax(drawn) < top
    assert np.nanmax(drawn) > 50


def test_training_losses_are_drawn_in_the_middle_of_their_steps(
    tmp_path: Path, text: Path, pictures: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training loss is a mean since the previous evaluation; a validation loss belongs to one
    step.
    """
    from matplotlib.axes import Axes

    lines: dict[str, list[float]] = {}
    plot = Axes.plot

    def recorded(axes: Axes, x: list[float], y: list[float], *args: Any, **kwargs: Any) -> Any:
        lines[kwargs.get("label", "").partition(":")[0]] = [float(step) for step in x]
        return plot(axes, x, y, *args, **kwargs)

    monkeypatch.setattr(Axes, "plot", recorded)
    train(text, tmp_path / "run", **TINY | {"steps": 10})
    assert lines["held out"] == [0, 4, 8, 10]
    assert lines["training"][1:] == [2, 6, 9]
