"""Training: parity with a plain loop, reproducible runs, validation and early stopping."""

import math
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor
from training_runs import (
    FAMILY_NAMES,
    TEXT,
    TINY,
    Notes,
    contents,
    held_out_losses,
    ids_of,
    same,
    steps,
    verses,
)

from minhub_py import from_pretrained, resume, train
from minhub_py.models.registry import ARCHITECTURES
from minhub_py.training import Run
from minhub_py.training.data import Corpus, DataLoader

# --- Parity with a plain loop


def plain_loss(family: str, model: Any, rows: Tensor, state: list[Any]) -> Tensor:
    """The loss of sequences (B, T + 1); `state` carries an LSTM's state, but not its gradient."""
    if family == "lstm":
        x, after = model.lstm(model.embedding(rows[:, :-1]), state[0])
        state[0] = tuple(tensor.detach() for tensor in after)
        logits = model.head(x)
    else:
        logits = model(rows[:, :-1])
    return F.cross_entropy(logits.reshape(-1, logits.size(-1)), rows[:, 1:].reshape(-1))


def plain_rate(step: int, count: int, peak: float, warm_up: int, floor: float) -> float:
    """The learning rate: linear warmup, then half a cosine."""
    if step < warm_up:
        return peak * (step + 1) / warm_up
    angle = math.pi * (step - warm_up) / (count - warm_up)
    return peak * floor + peak * (1 - floor) * (math.cos(angle) + 1) / 2


def plain_loop(
    family: str, notes: Notes, settings: dict[str, Any]
) -> tuple[Any, list[tuple[float, float, float]]]:
    """The model after all steps, and the loss, gradient norm and learning rate of each step."""
    model = ARCHITECTURES[family].Model(notes.trainer.model.config)
    model.load_state_dict(notes.weights)
    model.train()
    decay = settings["weight_decay"]
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": decay},
            {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
        ],
        betas=(0.9, settings["beta2"]),
        foreach=False,
    )
    state: list[Any] = [None]
    actual = []
    for step in range(settings["steps"]):
        rate = plain_rate(
            step,
            settings["steps"],
            settings["learning_rate"],
            settings["warm_up"],
            settings["floor"],
        )
        rows, fresh = notes.trainer.loader.at(step, slice(0, settings["batch"]))
        if fresh:
            state = [None]
        loss = plain_loss(family, model, rows, state)
        optimizer.zero_grad()
        loss.backward()
        norm = math.sqrt(sum(p.grad.double().square().sum().item() for p in model.parameters()))
        if norm > settings["clip"] > 0:
            for p in model.parameters():
                p.grad.mul_(settings["clip"] / norm)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        actual.append((loss.item(), norm, rate))
    return model, actual


@pytest.mark.parametrize("family", FAMILY_NAMES)
@pytest.mark.parametrize("accumulate", [1, 4])
def test_training_matches_a_plain_loop(
    tmp_path: Path, text: Path, family: str, accumulate: int
) -> None:
    """Losses, norms, learning rates and weights match. The text is short enough for several epochs
    of an LSTM.
    """
    text.write_text(verses(600))
    settings = TINY | {
        "learning_rate": 0.01,
        "floor": 0.2,
        "weight_decay": 2.0,
        "beta2": 0.95,
        "clip": 0.1,
        "steps": 20,
        "warm_up": 5,
        "dropout": 0.0,
        "evaluate_every": 1,
    }
    notes = Notes()
    run = train(
        text, tmp_path / "run", family=family, accumulate=accumulate, listener=notes, **settings
    )
    model, expected = plain_loop(family, notes, settings)

    rows = run.losses
    assert [row["train_loss"] for row in rows[1:]] == pytest.approx(
        [loss for loss, _, _ in expected], rel=2e-6
    )
    assert [row["gradient_norm"] for row in rows[1:]] == pytest.approx(
        [norm for _, norm, _ in expected], rel=1e-4
    )
    assert [row["learning_rate"] for row in rows[:-1]] == pytest.approx(
        [rate for _, _, rate in expected], rel=1e-12
    )
    assert max(norm for _, norm, _ in expected) > 0.15  # gradients are clipped
    if family == "lstm":
        fresh = [notes.trainer.loader.at(step, slice(0, 1))[1] for step in range(20)]
        assert 1 < sum(fresh) < 10
    last = from_pretrained(run.files.newest(), device="cpu").state_dict()
    for name, tensor in model.state_dict().items():
        # The exact gradient of a key's bias is zero; Adam amplifies its rounding error.
        if not name.endswith("c_attn.bias"):
            torch.testing.assert_close(last[name], tensor, rtol=1e-4, atol=2e-5, msg=name)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_gradient_accumulation_does_not_change_the_losses(
    tmp_path: Path, text: Path, family: str
) -> None:
    """Validation uses the same streams too; other streams of an LSTM would change the fifth digit."""
    runs = [
        train(
            text,
            tmp_path / f"run{pieces}",
            family=family,
            accumulate=pieces,
            **TINY | {"dropout": 0.0},
        )
        for pieces in (1, 2, 4)
    ]
    for run in runs[1:]:
        assert held_out_losses(run) == pytest.approx(held_out_losses(runs[0]), rel=5e-7)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_dropout_is_active_in_training_only(tmp_path: Path, text: Path, family: str) -> None:
    """With a learning rate of 0 the weights are constant, and a loss depends on the batch and on
    dropout only.
    """
    settings = TINY | {"learning_rate": 0.0, "family": family, "evaluate_every": 1}
    plain = train(text, tmp_path / "plain", dropout=0.0, **settings)
    dropped = train(text, tmp_path / "dropped", dropout=0.5, **settings)
    assert len(set(held_out_losses(plain))) == 1
    assert held_out_losses(dropped) == held_out_losses(plain)
    for row, dropped_row in zip(plain.losses[1:], dropped.losses[1:], strict=True):
        assert abs(row["train_loss"] - dropped_row["train_loss"]) > 1e-5


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_runs_with_the_same_seed_are_bitwise_identical(
    tmp_path: Path, text: Path, family: str
) -> None:
    settings = TINY | {
        "family": family,
        "dropout": 0.2,
        "sample": "the ",
        "sample_tokens": 5,
        "steps": 6,
    }
    folders = [tmp_path / name / "run" for name in "abc"]
    for folder, seed in zip(folders, (1, 1, 2), strict=True):
        torch.rand(random.randint(1, 9))  # the global generator has no effect
        train(text, folder, seed=seed, **settings)
    first, repeated, different = map(contents, folders)
    same(repeated, first)
    assert first["model.safetensors"] != different["model.safetensors"]
    assert first["losses.csv"][0]["held_out_loss"] != different["losses.csv"][0]["held_out_loss"]
    sources = [
        DataLoader(Corpus.read(folder / "tokens").train, 4, 16, seed, carry=False)
        for folder, seed in zip(folders, (1, 1, 2), strict=True)
    ]
    assert not torch.equal(sources[0].at(0, slice(4))[0], sources[2].at(0, slice(4))[0])


def test_training_preserves_the_callers_random_state_and_threads(
    tmp_path: Path, text: Path
) -> None:
    threads = torch.get_num_threads()
    torch.manual_seed(5)
    expected = torch.rand(9)
    torch.manual_seed(5)
    train(text, tmp_path / "run", **TINY | {"threads": threads + 1, "steps": 2})
    assert torch.equal(torch.rand(9), expected)
    assert torch.get_num_threads() == threads


@pytest.mark.slow
def test_training_reduces_the_loss(tmp_path: Path, text: Path) -> None:
    """The loss of each architecture falls below the entropy of the letter frequencies."""
    counts = np.array([TEXT.count(char) for char in set(TEXT)]) / len(TEXT)
    entropy = -(counts * np.log(counts)).sum()
    for family in FAMILY_NAMES:
        settings = TINY | {
            "steps": 120,
            "width": 32,
            "evaluate_every": 40,
            "learning_rate": 0.01,
            "batch": 8,
        }
        run = train(text, tmp_path / family, family=family, dropout=0.0, **settings)
        assert run.best_loss < entropy
        assert run.losses[-1]["train_loss"] < entropy


# --- bfloat16


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_bfloat16_losses_are_close_to_float32(tmp_path: Path, text: Path, family: str) -> None:
    """Matrix products are bfloat16; the weights remain float32."""
    losses = []
    for dtype in ("float32", "bfloat16"):
        run = train(text, tmp_path / dtype, family=family, dtype=dtype, dropout=0.0, **TINY)
        assert {
            tensor.dtype for tensor in load_file(run.folder / "model.safetensors").values()
        } == {torch.float32}
        losses.append(held_out_losses(run))
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=2e-3)


def test_without_onednn_support_an_lstm_stays_in_float32(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An LSTM's products remain float32, and a note recommends float32."""
    monkeypatch.setattr("minhub_py.models.lstm.ONEDNN_BFLOAT16", False)
    monkeypatch.setattr("minhub_py.training.setup.has_onednn_bfloat16", lambda: False)
    notes = Notes()
    run = train(text, tmp_path / "run", family="lstm", dtype="bfloat16", listener=notes, **TINY)
    assert any("no fast bfloat16" in note for note in notes.notes)
    assert held_out_losses(run)[-1] < held_out_losses(run)[0]
    with torch.autocast("cpu", torch.bfloat16):
        assert (
            notes.trainer.model.hidden(torch.zeros(1, 2, dtype=torch.int64)).dtype == torch.float32
        )


# --- Early stopping


def test_a_run_without_improvement_stops_early(tmp_path: Path, text: Path) -> None:
    """With a learning rate of 0 the first evaluation remains the best."""
    settings = TINY | {"learning_rate": 0.0, "dropout": 0.0, "steps": 40}
    listener = Notes()
    run = train(text, tmp_path / "run", patience=2, listener=listener, **settings)
    assert steps(run) == [0, 4, 8]
    assert listener.best == [True, False, False]
    assert run.files.newest().name == "step-00000008"
    assert run.best["step"] == 0
    assert steps(resume(run.folder)) == [0, 4, 8]
    assert steps(resume(run.folder, patience=4)) == [0, 4, 8, 12, 16]


def test_the_folder_contains_the_best_model_not_the_last(tmp_path: Path, text: Path) -> None:
    """An excessive learning rate raises the loss from the middle of the run."""
    settings = TINY | {
        "steps": 20,
        "learning_rate": 0.5,
        "warm_up": 10,
        "evaluate_every": 1,
        "weight_decay": 0.0,
    }
    run = train(text, tmp_path / "run", family="gpt2", **settings)
    best, last = run.best["step"], run.losses[-1]["step"]
    assert 0 < best < last
    repeated = train(
        text, tmp_path / "repeated", family="gpt2", listener=Notes(int(best)), **settings
    )
    assert (run.folder / "model.safetensors").read_bytes() == (
        repeated.files.newest() / "model.safetensors"
    ).read_bytes()
    assert (run.folder / "model.safetensors").read_bytes() != (
        run.files.newest() / "model.safetensors"
    ).read_bytes()


# --- Infinite and NaN losses


@pytest.mark.parametrize(("family", "evaluate_every"), [("gpt2", 1), ("gpt2", 1000), ("lstm", 1)])
def test_an_infinite_or_nan_loss_stops_the_run(
    tmp_path: Path, text: Path, family: str, evaluate_every: int
) -> None:
    """The weights grow a thousandfold at each step. The files contain finite weights only."""
    settings = TINY | {
        "family": family,
        "learning_rate": 100.0,
        "weight_decay": 10.0,
        "clip": 0.0,
        "warm_up": 0,
        "steps": 60,
        "checkpoint_every": 1,
        "evaluate_every": evaluate_every,
    }
    folder = tmp_path / "run"
    with pytest.raises(ValueError, match="the loss is infinite or NaN at step") as caught:
        train(text, folder, **settings)
    run = Run(folder)
    newest = run.files.newest()
    assert f"the checkpoint {newest.name} is intact" in str(caught.value)
    step, named = int(newest.name[5:]), int(re.search(r"at step (\d+)", str(caught.value))[1])
    assert 0 < step < named <= step + 2
    for path in (folder, newest):
        tensors = load_file(path / "model.safetensors")
        assert all(tensor.isfinite().all() for tensor in tensors.values())
        assert from_pretrained(path, device="cpu")(torch.tensor([[0, 1, 2]])).shape == (
            1,
            3,
            len(set(TEXT)),
        )
    assert all(
        tensor.isfinite().all() for tensor in load_file(newest / "optimizer.safetensors").values()
    )
    assert all(math.isfinite(loss) for loss in held_out_losses(run))
    with pytest.raises(ValueError, match="the loss is infinite or NaN at step"):
        resume(folder)
    assert run.files.newest() == newest


# --- Held-out text


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_held_out_text_is_not_trained_on(tmp_path: Path, text: Path, family: str) -> None:
    """The last tenth consists of characters that the training text does not contain."""
    text.write_text(TEXT[:900] + "XYZ!" * 25)
    notes = Notes()
    run = train(text, tmp_path / "run", family=family, listener=notes, **TINY)
    trained = run.tokenizer.encode(TEXT[:900]).ids
    for step in range(300):
        rows, _ = notes.trainer.loader.at(step, slice(0, 4))
        assert set(rows.flatten().tolist()) <= set(trained)
    assert set(ids_of(run.corpus.held_out)).isdisjoint(trained)


@pytest.mark.parametrize("family", FAMILY_NAMES)
@pytest.mark.parametrize("most", [2**20, 16 * 8])
def test_validation_loss_matches_an_independent_computation(
    tmp_path: Path, text: Path, family: str, most: int
) -> None:
    """For sequences of full context and for an LSTM's streams; for the entire text and for a
    subset.
    """
    notes = Notes(0)
    run = train(
        text,
        tmp_path / "run",
        family=family,
        evaluate_tokens=most,
        dropout=0.3,
        listener=notes,
        **TINY,
    )
    ids = torch.tensor(ids_of(run.corpus.held_out))
    model = ARCHITECTURES[family].Model(notes.trainer.model.config)
    model.load_state_dict(notes.weights)
    model.eval()
    rows, length = (4, (len(ids) - 1) // 4) if family == "lstm" else ((len(ids) - 1) // 16, 16)
    starts = [row * length for row in range(rows)]
    if most < len(ids) and family == "lstm":
        length = most // 4
    elif most < len(ids):
        starts = [16 * round(number * (rows - 1) / 7) for number in range(8)]
    expected = []
    with torch.no_grad():
        for start in starts:
            logits = model(ids[start : start + length].unsqueeze(0))[0]
            expected += F.cross_entropy(
                logits, ids[start + 1 : start + length + 1], reduction="none"
            ).tolist()
    assert len(expected) <= most
    assert held_out_losses(run)[0] == pytest.approx(np.mean(expected), rel=1e-6)
