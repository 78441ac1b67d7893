"""Training: parity with a plain loop, resumption of killed runs, and errors of texts, settings and disks.

Models are tiny but real. Processes to be killed are forked from a server that has imported PyTorch.
"""

import csv
import dataclasses
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from children import SERVER
from safetensors.torch import load_file, save_file
from torch import Tensor

from minhub_py import from_pretrained, generate, resume, save_pretrained, tokenizer_from_pretrained, train
from minhub_py.checkpoints import local
from minhub_py.checkpoints.tokenizers.tokenizer import characters, read_tokenizer, train_byte_level_bpe
from minhub_py.inspection import verify
from minhub_py.registry import ARCHITECTURES
from minhub_py.system import processor
from minhub_py.training import Listener, Run, Settings, cpu_kernels, summary
from minhub_py.training.checkpoint import RunFolder
from minhub_py.training.cpu_kernels import CPUKernels, attention, dropout, linear
from minhub_py.training.data import Corpus, DataLoader, Tokens, split_at_words

FAMILY_NAMES = ["gpt2", "gptneo", "lstm"]
TINY: dict[str, Any] = {
    "layers": 2, "width": 16, "context": 16, "batch": 4, "steps": 12, "warm_up": 3, "evaluate_every": 4,
    "checkpoint_every": 3, "threads": 1,
}  # fmt: skip
BUILT_IN = {family: f"minhub/shakespeare-{family}" for family in FAMILY_NAMES}
TIMES = ("tokens_per_second", "seconds")  # columns of losses.csv that depend on the clock


def verses(length: int, seed: int = 0) -> str:
    """Lines of random words with different frequencies."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(1, 7))) for _ in range(300)]
    text = ""
    while len(text) < length:
        text += draw.choice(words[: draw.choice((10, 50, 300))]) + draw.choice((" ", " ", " ", ", ", "\n"))
    return text[:length]


TEXT = verses(4000)


@pytest.fixture
def pictures() -> None:
    """Allow matplotlib in a test."""


@pytest.fixture(autouse=True)
def no_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide matplotlib, because drawing takes longer than everything else in these tests."""
    if "pictures" not in request.fixturenames:
        monkeypatch.setitem(sys.modules, "matplotlib", None)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


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
        actual["losses.csv"] = [{name: value for name, value in row.items() if name not in TIMES} for row in rows]
    for name in list(actual):
        if name.endswith("progress.json"):
            actual[name] = {key: value for key, value in json.loads(actual[name]).items() if key != "seconds"}
        if name == "README.md":
            actual[name] = [
                line for line in actual[name].decode().splitlines() if not line.startswith("| training time |")
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


def plain_loop(family: str, notes: Notes, settings: dict[str, Any]) -> tuple[Any, list[tuple[float, float, float]]]:
    """The model after all steps, and the loss, gradient norm and learning rate of each step."""
    model = ARCHITECTURES[family].Model(notes.trainer.model.config)
    model.load_state_dict(notes.weights)
    model.train()
    decay = settings["weight_decay"]
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": decay},
         {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}],
        betas=(0.9, settings["beta2"]), foreach=False,
    )  # fmt: skip
    state: list[Any] = [None]
    actual = []
    for step in range(settings["steps"]):
        rate = plain_rate(step, settings["steps"], settings["learning_rate"], settings["warm_up"], settings["floor"])
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
def test_training_matches_a_plain_loop(tmp_path: Path, text: Path, family: str, accumulate: int) -> None:
    """Losses, norms, learning rates and weights match. The text is short enough for several epochs of an LSTM."""
    text.write_text(verses(600))
    settings = TINY | {
        "learning_rate": 0.01, "floor": 0.2, "weight_decay": 2.0, "beta2": 0.95, "clip": 0.1, "steps": 20, "warm_up": 5,
        "dropout": 0.0, "evaluate_every": 1,
    }  # fmt: skip
    notes = Notes()
    run = train(text, tmp_path / "run", family=family, accumulate=accumulate, listener=notes, **settings)
    model, expected = plain_loop(family, notes, settings)

    rows = run.losses
    assert [row["train_loss"] for row in rows[1:]] == pytest.approx([loss for loss, _, _ in expected], rel=2e-6)
    assert [row["gradient_norm"] for row in rows[1:]] == pytest.approx([norm for _, norm, _ in expected], rel=1e-4)
    assert [row["learning_rate"] for row in rows[:-1]] == pytest.approx([rate for _, _, rate in expected], rel=1e-12)
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
def test_gradient_accumulation_does_not_change_the_losses(tmp_path: Path, text: Path, family: str) -> None:
    """Validation uses the same streams too; other streams of an LSTM would change the fifth digit."""
    runs = [
        train(text, tmp_path / f"run{pieces}", family=family, accumulate=pieces, **TINY | {"dropout": 0.0})
        for pieces in (1, 2, 4)
    ]
    for run in runs[1:]:
        assert held_out_losses(run) == pytest.approx(held_out_losses(runs[0]), rel=5e-7)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_dropout_is_active_in_training_only(tmp_path: Path, text: Path, family: str) -> None:
    """With a learning rate of 0 the weights are constant, and a loss depends on the batch and on dropout only."""
    settings = TINY | {"learning_rate": 0.0, "family": family, "evaluate_every": 1}
    plain = train(text, tmp_path / "plain", dropout=0.0, **settings)
    dropped = train(text, tmp_path / "dropped", dropout=0.5, **settings)
    assert len(set(held_out_losses(plain))) == 1
    assert held_out_losses(dropped) == held_out_losses(plain)
    for row, dropped_row in zip(plain.losses[1:], dropped.losses[1:], strict=True):
        assert abs(row["train_loss"] - dropped_row["train_loss"]) > 1e-5


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_runs_with_the_same_seed_are_bitwise_identical(tmp_path: Path, text: Path, family: str) -> None:
    settings = TINY | {"family": family, "dropout": 0.2, "sample": "the ", "sample_tokens": 5, "steps": 6}
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


def test_training_preserves_the_callers_random_state_and_threads(tmp_path: Path, text: Path) -> None:
    threads = torch.get_num_threads()
    torch.manual_seed(5)
    expected = torch.rand(9)
    torch.manual_seed(5)
    train(text, tmp_path / "run", **TINY | {"threads": threads + 1, "steps": 2})
    assert torch.equal(torch.rand(9), expected)
    assert torch.get_num_threads() == threads


def test_training_reduces_the_loss(tmp_path: Path, text: Path) -> None:
    """The loss of each architecture falls below the entropy of the letter frequencies."""
    counts = np.array([TEXT.count(char) for char in set(TEXT)]) / len(TEXT)
    entropy = -(counts * np.log(counts)).sum()
    for family in FAMILY_NAMES:
        settings = TINY | {"steps": 120, "width": 32, "evaluate_every": 40, "learning_rate": 0.01, "batch": 8}
        run = train(text, tmp_path / family, family=family, dropout=0.0, **settings)
        assert run.best_loss < entropy
        assert run.losses[-1]["train_loss"] < entropy


# --- CPU kernels


def qkv(*shape: int) -> list[Tensor]:
    return [torch.randn(*shape, requires_grad=True) for _ in range(3)]


@pytest.mark.parametrize("kind", ["causal", "one mask", "a mask per sequence"])
@pytest.mark.parametrize("scale", [None, 1.0])
def test_attention_matches_pytorch(kind: str, scale: float | None) -> None:
    torch.manual_seed(0)
    B, H, T, D = 3, 2, 40, 8
    inputs = qkv(B, H, T, D)
    mask = None
    if kind == "one mask":
        mask = torch.rand(T, T) < 0.4
    elif kind == "a mask per sequence":
        mask = torch.rand(B, 1, T, T) < 0.4
    if mask is not None:
        mask |= torch.eye(T, dtype=torch.bool)  # each position attends to itself
    arguments: dict[str, Any] = {"attn_mask": mask, "is_causal": mask is None, "scale": scale}
    weight = torch.randn(B, H, T, D)

    exact = F.scaled_dot_product_attention(*inputs, **arguments)
    expected = torch.autograd.grad((exact * weight).sum(), inputs)
    with torch.autocast("cpu", torch.bfloat16):
        actual = attention(*inputs, **arguments)
    assert actual.dtype == torch.bfloat16
    gradients = torch.autograd.grad((actual.float() * weight).sum(), inputs)
    for result, reference in zip((actual, *gradients), (exact, *expected), strict=True):
        assert (result.float() - reference).abs().max() < 0.03 * reference.abs().max()


def test_attention_falls_back_to_pytorch() -> None:
    """Bitwise identical without autocast, with an additive mask, with dropout, and for long sequences."""
    torch.manual_seed(0)
    short, long = qkv(1, 2, 8, 4), qkv(1, 1, 600, 4)
    cases: list[tuple[list[Tensor], dict[str, Any], bool]] = [
        (short, {"is_causal": True}, False),
        (short, {"attn_mask": torch.randn(8, 8)}, True),
        (short, {"is_causal": True, "dropout_p": 0.5}, True),
        (short, {}, True),
        (long, {"is_causal": True}, True),
    ]
    for inputs, arguments, autocast in cases:
        results = []
        for function in (attention, F.scaled_dot_product_attention):
            torch.manual_seed(1)
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                results.append(function(*inputs, **arguments))
        assert results[0].dtype == results[1].dtype
        assert torch.equal(*results)


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_statistics(p: float, dtype: torch.dtype) -> None:
    """Rate, scale, mean and gradient are correct; elements are independent; the seed determines the result."""
    torch.manual_seed(0)
    x = torch.ones(501, 401, dtype=dtype, requires_grad=True)  # not a multiple of eight
    y = dropout(x, p)
    rate = round(p * 256) / 256
    assert y.dtype == dtype
    assert y.shape == x.shape
    assert len(y.unique()) == 2
    assert y.max().item() == pytest.approx(1 / (1 - rate), rel=1e-6 if dtype == torch.float32 else 4e-3)
    zeros = (y == 0).double()
    deviation = math.sqrt(rate * (1 - rate))
    assert abs(zeros.mean() - rate) < 5 * deviation / math.sqrt(zeros.numel())
    assert abs(zeros.mean() - p) < 0.01
    assert ((zeros.mean(0) - rate).abs() < 6 * deviation / math.sqrt(501)).all()
    assert ((zeros.mean(1) - rate).abs() < 6 * deviation / math.sqrt(401)).all()
    for lag in range(1, 17):  # neighbours are independent
        flat = zeros.flatten() - zeros.mean()
        assert abs((flat[lag:] * flat[:-lag]).mean()) < 5 * deviation**2 / math.sqrt(zeros.numel())
    [gradient] = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, y)

    torch.manual_seed(0)
    assert torch.equal(dropout(x, p), y)
    assert not torch.equal(dropout(x, p), y)


def test_dropout_falls_back_to_pytorch() -> None:
    x = torch.ones(1000)
    assert dropout(x, 0.5, training=False) is x or torch.equal(dropout(x, 0.5, training=False), x)
    assert torch.equal(dropout(x, 0.0), x)
    assert torch.equal(dropout(x, 1.0), torch.zeros(1000))
    assert 0 <= (dropout(torch.ones(200_000), 0.001) == 0).float().mean() < 0.002
    x = torch.ones(1000)
    assert dropout(x, 0.5, inplace=True) is x
    assert (x == 0).any()
    with pytest.raises(ValueError, match="between 0 and 1"):
        dropout(x, -0.5)
    assert dropout(torch.ones(0), 0.5).shape == (0,)


@pytest.mark.parametrize(
    ("about", "system", "amd"),
    [("vendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC\n", "", True),
     ("vendor_id\t: GenuineIntel\nmodel name\t: Intel Xeon\n", "", False),
     ("CPU implementer\t: 0x41\n", "", False),
     (None, "AMD64 Architecture 25 Model 33 Stepping 0, AuthenticAMD", True),
     (None, "Intel64 Architecture 6 Model 85 Stepping 7, GenuineIntel", False)],
)  # fmt: skip
def test_amd_processors_are_detected(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, about: str | None, system: str, amd: bool
) -> None:
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "cpuinfo")
    if about is not None:
        processor.CPUINFO.write_text(about)
    monkeypatch.setattr("platform.processor", lambda: system)
    assert processor.is_amd.__wrapped__() == amd


@pytest.mark.parametrize("shape", [(9, 24), (3, 5, 24), (2, 3, 5, 24)], ids=str)
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("turned", [True, False])
def test_linear_matches_pytorch(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], with_bias: bool, turned: bool
) -> None:
    """Outputs and gradients match, also for a transposed weight, as in a loaded GPT-2."""
    monkeypatch.setattr(cpu_kernels, "ONEDNN", torch.ops.mkldnn._linear_pointwise)  # on any processor
    torch.manual_seed(0)
    x = torch.randn(shape, requires_grad=True)
    weight = (torch.randn(24, 40).t() if turned else torch.randn(40, 24)).requires_grad_()
    bias = torch.randn(40, requires_grad=True) if with_bias else None
    inputs = [tensor for tensor in (x, weight, bias) if tensor is not None]
    factor = torch.randn(*shape[:-1], 40)
    results = []
    for function in (linear, F.linear):
        y = function(x, weight, bias)
        results.append([y, *torch.autograd.grad((y * factor).sum(), inputs)])
    for result, reference in zip(*results, strict=True):
        torch.testing.assert_close(result, reference, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(linear(x, weight, bias), results[1][0], rtol=1e-5, atol=1e-5)
    frozen = weight.detach()
    [gradient] = torch.autograd.grad((linear(x, frozen, bias) * factor).sum(), x)
    torch.testing.assert_close(gradient, results[1][1], rtol=1e-5, atol=1e-5)


def test_linear_falls_back_to_pytorch() -> None:
    """For other dtypes, under autocast, and for a vector."""
    torch.manual_seed(0)
    cases = [(torch.float64, (3, 8), False), (torch.bfloat16, (3, 8), False), (torch.float32, (3, 8), True),
             (torch.float32, (8,), False)]  # fmt: skip
    for dtype, shape, autocast in cases:
        x, weight, bias = torch.randn(shape, dtype=dtype), torch.randn(4, 8, dtype=dtype), torch.randn(4, dtype=dtype)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            actual, expected = linear(x, weight, bias), F.linear(x, weight, bias)
        assert actual.dtype == expected.dtype
        assert torch.equal(actual, expected)


def test_cpu_kernels_are_active_in_training_only(tmp_path: Path, text: Path) -> None:
    """Dropout shows which implementation is active: its random numbers differ from PyTorch's."""

    def drops() -> Tensor:
        torch.manual_seed(0)
        return F.dropout(torch.ones(1000), 0.5)

    plain = drops()
    with CPUKernels():
        assert not torch.equal(drops(), plain)
    inactive = []

    class Drops(Notes):
        def evaluated(self, row: dict[str, Any], best: bool) -> None:
            inactive.append(torch.equal(drops(), plain))

    train(text, tmp_path / "run", listener=Drops(), dtype="bfloat16", **TINY | {"dropout": 0.3})
    assert inactive == [True] * 4
    assert torch.equal(drops(), plain)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_bfloat16_losses_are_close_to_float32(tmp_path: Path, text: Path, family: str) -> None:
    """Matrix products are bfloat16; the weights remain float32."""
    losses = []
    for dtype in ("float32", "bfloat16"):
        run = train(text, tmp_path / dtype, family=family, dtype=dtype, dropout=0.0, **TINY)
        assert {tensor.dtype for tensor in load_file(run.folder / "model.safetensors").values()} == {torch.float32}
        losses.append(held_out_losses(run))
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=2e-3)


def test_bfloat16_without_onednn_support(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An LSTM's products remain float32, and a note recommends float32."""
    monkeypatch.setattr(sys.modules["minhub_py.models.lstm"], "ONEDNN_BFLOAT16", False)
    monkeypatch.setattr(sys.modules["minhub_py.training.setup"], "has_onednn_bfloat16", lambda: False)
    notes = Notes()
    run = train(text, tmp_path / "run", family="lstm", dtype="bfloat16", listener=notes, **TINY)
    assert any("no fast bfloat16" in note for note in notes.notes)
    assert held_out_losses(run)[-1] < held_out_losses(run)[0]
    with torch.autocast("cpu", torch.bfloat16):
        assert notes.trainer.model.hidden(torch.zeros(1, 2, dtype=torch.int64)).dtype == torch.float32


# --- Resuming a killed run

CHANGES = {"open", "writerow", "flush", "rename", "replace", "unlink", "rmdir", "mkdir"}  # C functions


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
    """Call `work`, in a child process that sends SIGKILL to itself at the change number `last` of a file."""
    count = 0

    def count_changes(_frame: object, event: str, function: Any) -> None:
        nonlocal count
        if event != "c_call" or function.__name__ not in CHANGES:
            return
        if function is not os.open and not isinstance(function.__self__, str):  # opened to read or to sync; str.replace
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


SHORT = TINY | {"steps": 4, "evaluate_every": 2, "checkpoint_every": 2, "layers": 1, "dropout": 0.2, "sample": "the",
                "sample_tokens": 3}  # fmt: skip


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.soak)])
def test_a_run_killed_at_any_file_change_resumes_identically(tmp_path: Path, text: Path, every: int) -> None:
    """A process is killed with SIGKILL at calls that change a file: the best model, the CSV, a sample, a checkpoint.
    Temporary files are truncated. The resumed run has the same files as an uninterrupted run.
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


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_run_killed_repeatedly_resumes_identically(tmp_path: Path, text: Path, family: str) -> None:
    """Seven kills per architecture, each after a random number of steps."""
    settings = TINY | {"family": family, "steps": 40, "evaluate_every": 7, "dropout": 0.1, "accumulate": 2}
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


def test_a_run_killed_before_its_first_checkpoint_resumes_identically(tmp_path: Path, text: Path) -> None:
    """`resume` continues a run with settings.json; otherwise `train` starts it again."""
    uninterrupted = tmp_path / "uninterrupted" / "run"
    train(text, uninterrupted, **SHORT)
    expected = contents(uninterrupted)
    resumable = []
    for last in range(1, 400, 3):
        folder = tmp_path / f"at{last}" / "run"
        assert in_a_child(until, last, partial(train, text, folder, progress=False, **SHORT)) == -signal.SIGKILL
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
    """After a crash or on a full disk, losses.csv and samples.txt may end with any prefix of the new lines."""
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
            assert (folder / name).read_bytes() == (head.splitlines(keepends=True)[0] if name == "losses.csv" else b"")

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
    assert [path.name for path in (folder / "checkpoints").glob("step-*")] == [f"step-{checkpoint:08}"]
    resume(folder)
    same(contents(folder), contents(uninterrupted))


class InterruptsEvaluation(Notes):
    """Sends SIGTERM before the second batch of the evaluation after step 4."""

    def working(self, step: int, task: str, number: int, count: int) -> None:
        if (step, task, number) == (4, "evaluation", 2):
            os.kill(os.getpid(), signal.SIGTERM)
        assert (step, task, number) != (4, "evaluation", 4)


def test_sigterm_stops_within_an_evaluation(tmp_path: Path, text: Path) -> None:
    uninterrupted, folder = tmp_path / "uninterrupted" / "run", tmp_path / "stopped" / "run"
    train(text, uninterrupted, **TINY)
    with pytest.raises(SystemExit):
        train(text, folder, listener=InterruptsEvaluation(), **TINY)
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

    def estimated(self, seconds: float, steps: int, evaluations: int) -> None:
        self.estimates.append((seconds, steps, evaluations))

    def cancelled(self) -> bool:
        return len(self.batches) == self.most


@pytest.mark.parametrize("family", ["gpt2", "lstm"])
def test_a_run_cancelled_before_any_batch_resumes_identically(tmp_path: Path, text: Path, family: str) -> None:
    """An LSTM that carries its state finishes the step first."""
    settings = TINY | {"family": family, "steps": 3, "evaluate_every": 2, "checkpoint_every": 3, "batch": 4,
                       "dropout": 0.1, "accumulate": 2, "evaluate_tokens": 6 * TINY["context"]}  # fmt: skip
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


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_run_stopped_twice_at_every_step_resumes_identically(tmp_path: Path, text: Path, family: str) -> None:
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


def test_resume_with_more_steps(tmp_path: Path, text: Path) -> None:
    """The run continues to the new end of the cosine."""
    run = train(text, tmp_path / "run", family="lstm", **TINY)
    before = run.losses
    after = resume(run.folder, steps=20, evaluate_every=5)
    assert list(map(str, after.losses[: len(before)])) == list(map(str, before))  # a NaN is not equal to itself
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


NEWEST = "checkpoints/step-00000005"
# Advice for each missing or corrupt file of a run; None: the run continues without the file.
LOST = "the run cannot continue, but its best model is intact in RUN; start a new run from it with start='RUN'"
COPY = f"the best model is lost; copy config.json, model.safetensors, tokenizer.json from RUN/{NEWEST} to RUN,"
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
        return stopped(root, root / "text.txt", 5, **TINY | {"layers": 1, "sample": "the", "sample_tokens": 1})


def all_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


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
        if not (path.suffix == ".bin" and way == "is corrupt "):  # invalid token IDs are detected when they are read
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
    assert result.best_loss == json.loads((run / "checkpoints/step-00000006/progress.json").read_text())["best_loss"]
    assert result.best["step"] in (4, 6)


def test_the_advice_names_an_earlier_checkpoint(tmp_path: Path, five_steps: Path) -> None:
    """Two checkpoints remain if the process was killed before it removed the older one."""
    run = tmp_path / "run"
    shutil.copytree(five_steps, run)
    shutil.copytree(run / NEWEST, run / "checkpoints" / "step-00000003")
    (run / NEWEST / "progress.json").unlink()
    with pytest.raises(ValueError, match=f"remove {run / NEWEST}, then run .* to continue from step-00000003"):
        resume(run, progress=False)
    shutil.rmtree(run / NEWEST)
    assert resume(run, progress=False).losses[-1]["step"] == 12


def test_a_run_without_its_checkpoints_does_not_start_again(tmp_path: Path, five_steps: Path) -> None:
    """It would overwrite its best model and its losses."""
    run = tmp_path / "run"
    shutil.copytree(five_steps, run)
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(
        ValueError, match=f"{run / 'checkpoints'} is missing: the run cannot continue, but its best model"
    ):
        resume(run, progress=False)
    (run / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="it has no intact model; start a new run from the text"):
        resume(run, progress=False)


def test_an_optimizer_state_of_another_model_is_rejected(tmp_path: Path, five_steps: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(five_steps, run)
    path = run / NEWEST / "optimizer.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}  # the file is mapped
    path.write_bytes((run / "model.safetensors").read_bytes())
    with pytest.raises(ValueError, match=r"optimizer\.safetensors is corrupt"):
        resume(run, progress=False)
    name = next(iter(tensors))
    save_file(tensors | {name: tensors[name][:1].clone()}, path)
    with pytest.raises(ValueError, match=r"optimizer\.safetensors is corrupt"):
        resume(run, progress=False)


def test_early_stopping(tmp_path: Path, text: Path) -> None:
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
    settings = TINY | {"steps": 20, "learning_rate": 0.5, "warm_up": 10, "evaluate_every": 1, "weight_decay": 0.0}
    run = train(text, tmp_path / "run", family="gpt2", **settings)
    best, last = run.best["step"], run.losses[-1]["step"]
    assert 0 < best < last
    repeated = train(text, tmp_path / "repeated", family="gpt2", listener=Notes(int(best)), **settings)
    assert (run.folder / "model.safetensors").read_bytes() == (
        repeated.files.newest() / "model.safetensors"
    ).read_bytes()
    assert (run.folder / "model.safetensors").read_bytes() != (run.files.newest() / "model.safetensors").read_bytes()


# --- Full disks, permissions and infinite losses


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
    """Without space for the optimizer state, the best model or a line, an error is raised; the run can be resumed."""
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
    folders = [folder, folder / "checkpoints", folder / "checkpoints" / "step-00000003", folder / "tokens"]
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


@pytest.mark.parametrize(("family", "evaluate_every"), [("gpt2", 1), ("gpt2", 1000), ("lstm", 1)])
def test_an_infinite_or_nan_loss_stops_the_run(tmp_path: Path, text: Path, family: str, evaluate_every: int) -> None:
    """The weights grow a thousandfold at each step. The files contain finite weights only."""
    settings = TINY | {
        "family": family, "learning_rate": 100.0, "weight_decay": 10.0, "clip": 0.0, "warm_up": 0, "steps": 60,
        "checkpoint_every": 1, "evaluate_every": evaluate_every,
    }  # fmt: skip
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
        assert from_pretrained(path, device="cpu")(torch.tensor([[0, 1, 2]])).shape == (1, 3, len(set(TEXT)))
    assert all(tensor.isfinite().all() for tensor in load_file(newest / "optimizer.safetensors").values())
    assert all(math.isfinite(loss) for loss in held_out_losses(run))
    with pytest.raises(ValueError, match="the loss is infinite or NaN at step"):
        resume(folder)
    assert run.files.newest() == newest


# --- Invalid texts and settings


BAD_TEXTS: dict[str, tuple[bytes | None, dict[str, Any], str]] = {
    "empty": (b"", {}, "text.txt.*the text is empty"),
    "missing": (None, {}, "text file .*text.txt does not exist"),
    "not UTF-8": (b"plain \xff\xfe text " * 50, {}, "text.txt is not UTF-8 text"),
    "cut inside a character": ("é".encode() * 500 + b"\xc3", {}, "text.txt is not UTF-8 text"),
    "one character": (b"a", {}, "context|held-out"),
    "two characters": (b"ab", {}, "context|held-out"),
    "context": (TEXT.encode(), {"context": 4000}, r"context \(4000\) is longer than the training text \(3600 tok"),
    "held out": (TEXT.encode(), {"held_out": 0.0002}, "held-out text has 1 tokens, but evaluation requires 2"),
    "nothing held out": (TEXT.encode(), {"held_out": 1e-20}, "held-out text has 0 tokens, but evaluation requires 2"),
    "streams": (TEXT.encode(), {"family": "lstm", "batch": 300}, "too short for 300 streams with sequences of 16: "
     ".* a smaller batch or context, or carry=False$"),
    "other characters": ("漢字".encode() * 500, {"tokenizer": BUILT_IN["gpt2"]}, "no token"),
}  # fmt: skip


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


def test_the_shortest_valid_texts(tmp_path: Path, text: Path) -> None:
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
    ({"epochs": 3}, "^unknown setting epochs; the settings are family, start,"),
    ({"family": "albert"}, "family must be one of gpt2, gptneo, "),
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
    ({"tokenizer": "minhub/nothing"}, "no built-in minhub/nothing"),
    ({"start": "minhub/nothing"}, "no built-in minhub/nothing"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "message"), BAD_SETTINGS, ids=str)
def test_invalid_settings_are_reported(tmp_path: Path, text: Path, settings: dict[str, Any], message: str) -> None:
    """The message names the setting and the allowed values. An error leaves no files."""
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        train(text, tmp_path / "run", **TINY | settings)
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


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
        with pytest.raises(FileExistsError, match=f"{name} contains .*: .*choose a(nother| new) folder"):
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


# --- Tokenizers and tokenized data


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


def test_several_files_are_one_text(tmp_path: Path) -> None:
    """The files are concatenated unchanged; the last tenth of the characters is held out."""
    texts = ["\ufeffOne,\r\ntwo\rthree\n" * 40, "vier → fünf 漢字 😀\n" * 33, "x"]
    content = "".join(texts)
    run, tokenizer = prepared(tmp_path, [text.encode() for text in texts], held_out=0.1)
    assert sorted(tokenizer.get_vocab(), key=tokenizer.token_to_id) == sorted(set(content))
    cut = int(len(content) * 0.9)
    corpus = run.corpus
    assert corpus.texts == ["text0.txt", "text1.txt", "text2.txt"]
    assert corpus.characters == len(content) - cut
    assert run.characters_per_token == 1
    assert tokenizer.decode(ids_of(corpus.train)) == content[:cut]
    assert tokenizer.decode(ids_of(corpus.held_out)) == content[cut:]


def test_long_texts_are_read_in_chunks(tmp_path: Path) -> None:
    """Chunks never split a character, for characters of every length in UTF-8."""
    content = "aé→😀 b\r\n" * 9000
    run, tokenizer = prepared(tmp_path, [content[:33_333].encode(), content[33_333:].encode()], held_out=0.25)
    cut = int(len(content) * 0.75)
    assert tokenizer.decode(ids_of(run.corpus.train)) == content[:cut]
    assert tokenizer.decode(ids_of(run.corpus.held_out)) == content[cut:]
    run = train(tmp_path / "text0.txt", tmp_path / "bpe", tokenizer="bpe", vocab_size=300, listener=Notes(0), **TINY)
    cut = int(33_333 * 0.9)
    assert ids_of(run.corpus.train) == run.tokenizer.encode(content[:cut]).ids
    assert ids_of(run.corpus.held_out) == run.tokenizer.encode(content[cut:33_333]).ids


def test_a_bpe_is_trained_on_the_training_text_only(tmp_path: Path) -> None:
    """The held-out text consists of a word that the training text does not contain."""
    learnt, held_out = verses(9000), "zyxwvu " * 150
    content = (learnt + held_out)[:10_000]
    run, tokenizer = prepared(tmp_path, [content.encode()], tokenizer="bpe", vocab_size=400)
    vocabulary = tokenizer.get_vocab()
    assert len(vocabulary) == 400
    assert vocabulary["<|endoftext|>"] == 0
    assert "Ġthe" in vocabulary or any(token.startswith("Ġ") and len(token) > 2 for token in vocabulary)
    assert not any("zy" in token for token in vocabulary)
    assert tokenizer.to_str() == train_byte_level_bpe([learnt], 400).to_str()
    assert ids_of(run.corpus.train) == tokenizer.encode(content[:9000]).ids
    assert ids_of(run.corpus.held_out) == tokenizer.encode(content[9000:]).ids
    assert run.characters_per_token == 1000 / run.corpus.held_out.count
    assert tokenizer.decode(tokenizer.encode("é 漢\n").ids) == "é 漢\n"


def test_chunks_have_the_token_ids_of_the_entire_text(bpe_folder: Path) -> None:
    """For unusual white space, punctuation and special tokens, with tokenizers of one and of two files."""
    tokenizers = [read_tokenizer(bpe_folder), train_byte_level_bpe([verses(9000)], 500)]
    parts = ["a", "the", "of", "1", "23", ".", "!?", "'s", "'", " ", " ", "  ", "\n", "\n\n", "\r\n", "\t", "\u3000",
             "\xa0", "\u2028", "\x85", "\x0b", "\x1c", "\x1f", "\u200b", "\ufeff", "é", "e\u0301", "漢字", "😀",
             "<|endoftext|>"]  # fmt: skip
    draw = random.Random(0)
    cuts = 0
    for _ in range(1500):
        text = "".join(draw.choices(parts, k=draw.randint(1, 25)))
        size = draw.randint(1, 6)
        pieces = list(split_at_words(text[start : start + size] for start in range(0, len(text), size)))
        assert "".join(pieces) == text
        cuts += len(pieces) - 1
        for tokenizer in tokenizers:
            actual = [id for piece in pieces for id in tokenizer.encode(piece, add_special_tokens=False).ids]
            assert actual == tokenizer.encode(text, add_special_tokens=False).ids, (text, pieces)
    assert cuts > 1500


def test_a_text_without_white_space_is_split() -> None:
    pieces = list(split_at_words("漢" * 2**14 for _ in range(40)))
    assert "".join(pieces) == "漢" * (40 * 2**14)
    assert max(map(len, pieces)) < 20 * 2**14


@pytest.mark.parametrize("source", ["built-in", "folder with two files", "more than 16 bits"])
def test_an_existing_tokenizer(tmp_path: Path, bpe_folder: Path, source: str) -> None:
    """The run uses the tokenizer's token IDs, vocabulary size and tokenizer.json."""
    if source == "built-in":
        name, count, dtype = BUILT_IN["gptneo"], 65, "<u2"
    elif source == "folder with two files":
        name, count, dtype = str(bpe_folder), 600, "<u2"
    else:
        name, count, dtype = str(tmp_path / "many"), 70_000, "<u4"
        many = [chr(0x20000 + number) for number in range(70_000 - len(set(TEXT)))] + sorted(set(TEXT))
        (tmp_path / "many").mkdir()
        (tmp_path / "many" / "tokenizer.json").write_text(characters(many).to_str())
    run, tokenizer = prepared(tmp_path, [TEXT.encode()], tokenizer=name, layers=1)
    cut = int(len(TEXT) * 0.9)
    expected = tokenizer_from_pretrained(name)
    assert tokenizer.to_str() == expected.to_str()
    assert ids_of(run.corpus.train) == expected.encode(TEXT[:cut]).ids
    assert ids_of(run.corpus.held_out) == expected.encode(TEXT[cut:]).ids
    assert run.corpus.train.dtype == dtype
    assert run.model.config.vocab_size == count


def test_a_note_lists_characters_without_a_token(tmp_path: Path, text: Path) -> None:
    text.write_text(TEXT.replace("e", "é"))
    notes = Notes(0)
    train(text, tmp_path / "run", tokenizer=BUILT_IN["gpt2"], listener=notes, **TINY)
    assert any("é" in note for note in notes.notes)


# --- Training and evaluation batches


@pytest.fixture
def numbers(tmp_path: Path) -> Tokens:
    """The token IDs 0, 1, 2 … equal their positions."""
    np.arange(1000, dtype="<u2").tofile(tmp_path / "numbers.bin")
    return Tokens(tmp_path / "numbers.bin", "<u2", 1000)


def test_windows_start_at_all_positions(numbers: Tokens) -> None:
    tokens = Tokens(numbers.path, "<u2", 1000)
    windows = DataLoader(tokens, batch=50, context=16, seed=7, carry=False)
    starts = set()
    for step in range(300):
        rows, fresh = windows.at(step, slice(0, 50))
        assert fresh
        assert rows.shape == (50, 17)
        assert torch.equal(rows - rows[:, :1], torch.arange(17).expand(50, 17))
        starts |= set(rows[:, 0].tolist())
        assert torch.equal(windows.at(step, slice(10, 13))[0], rows[10:13])
    assert starts == set(range(1000 - 16))


@pytest.mark.parametrize(("batch", "context"), [(1, 16), (3, 16), (7, 10), (57, 16)])
def test_streams_are_consecutive(numbers: Tokens, batch: int, context: int) -> None:
    """A sequence starts where the previous one ends; an epoch reads nearly all tokens once; offsets differ by epoch."""
    streams = DataLoader(numbers, batch, context, seed=7, carry=True)
    before: Tensor | None = None
    epochs: list[list[int]] = []
    for step in range(300):
        rows, fresh = streams.at(step, slice(0, batch))
        assert rows.shape == (batch, context + 1)
        assert torch.equal(rows - rows[:, :1], torch.arange(context + 1).expand(batch, context + 1))
        assert fresh == (before is None or not torch.equal(rows[:, 0], before[:, -1]))
        if fresh:
            epochs.append([])
        epochs[-1] += rows[:, :-1].flatten().tolist()
        assert torch.equal(streams.at(step, slice(batch // 2, batch))[0], rows[batch // 2 :])
        before = rows
    for read in epochs[:-1]:
        assert len(read) == len(set(read))
        assert len(read) >= 1000 - (batch + 1) * context - batch
    assert len({read[0] for read in epochs}) > 1 or len(epochs) < 6


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
def test_validation_loss_matches_an_independent_computation(tmp_path: Path, text: Path, family: str, most: int) -> None:
    """For sequences of full context and for an LSTM's streams; for the entire text and for a subset."""
    notes = Notes(0)
    run = train(text, tmp_path / "run", family=family, evaluate_tokens=most, dropout=0.3, listener=notes, **TINY)
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
            expected += F.cross_entropy(logits, ids[start + 1 : start + length + 1], reduction="none").tolist()
    assert len(expected) <= most
    assert held_out_losses(run)[0] == pytest.approx(np.mean(expected), rel=1e-6)


# --- Fine-tuning


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_fine_tuning_starts_from_the_model(tmp_path: Path, text: Path, family: str) -> None:
    """Loss, tokenizer and settings are the model's, except dropout; the model's folder is unchanged."""
    source = local.BUILTIN / f"shakespeare-{family}"
    before = contents(source)
    settings = {"context": 16, "batch": 2, "steps": 2, "evaluate_every": 1, "warm_up": 1, "evaluate_tokens": 256}
    notes = Notes()
    run = train(text, tmp_path / "run", start=BUILT_IN[family], dropout=0.25, listener=notes, **settings)
    reference = from_pretrained(BUILT_IN[family], device="cpu")
    for name, tensor in reference.state_dict().items():
        assert torch.equal(notes.weights[name], tensor), name
    assert run.tokenizer.to_str() == tokenizer_from_pretrained(BUILT_IN[family]).to_str()
    changed = {name for name, value in vars(run.model.config).items() if value != getattr(reference.config, name)}
    assert changed == {
        "gpt2": {"embd_pdrop", "resid_pdrop"}, "gptneo": {"embed_dropout", "resid_dropout"}, "lstm": {"dropout"},
    }[family]  # fmt: skip
    [loss] = [row["held_out_loss"] for row in run.losses if row["step"] == 0]
    assert loss != run.losses[1]["held_out_loss"]
    plain = train(text, tmp_path / "plain", start=BUILT_IN[family], learning_rate=0.0, **settings)
    assert held_out_losses(plain) == [loss] * 3
    same(contents(source), before)


def test_fine_tuning_rejects_settings_that_change_the_model(tmp_path: Path, text: Path, bpe_folder: Path) -> None:
    start = BUILT_IN["gpt2"]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"family": "lstm"}, "contains a gpt2 model, not lstm: remove family"),
        ({"layers": 2}, "layers: the sizes of .* are fixed; remove this setting"),
        ({"width": 192}, "width: the sizes of .* are fixed"),
        ({"heads": 6}, "heads: the sizes of .* are fixed"),
        ({"context": 257}, "context must be at most 256 for .*, not 257"),
        ({"config": {"n_layer": 3}}, "n_layer: .* has fixed settings; .*attn_pdrop, embd_pdrop, resid_pdrop"),
        ({"tokenizer": str(bpe_folder)}, "the tokenizer has 600"),
        ({"tokenizer": "bpe"}, "token IDs"),
    ]
    for settings, message in cases:
        with pytest.raises(ValueError, match=message):
            train(text, tmp_path / "run", start=start, steps=1, **settings)
        assert not (tmp_path / "run").exists()


def test_a_fine_tuning_run_without_checkpoint_starts_again_from_the_model(tmp_path: Path, text: Path) -> None:
    first = train(text, tmp_path / "first", family="lstm", **TINY)
    settings = {"context": 16, "batch": 4, "steps": 4, "evaluate_every": 2, "checkpoint_every": 2, "threads": 1}
    uninterrupted = train(text, tmp_path / "uninterrupted" / "run", start=str(first.folder), **settings)
    assert held_out_losses(uninterrupted)[0] == pytest.approx(first.best_loss, rel=1e-6)
    folder = tmp_path / "killed" / "run"
    train(text, folder, start=str(first.folder), listener=Notes(0), **settings)
    shutil.rmtree(folder / "checkpoints")
    for name in ("losses.csv", "model.safetensors", "config.json", "README.md", "tokenizer.json"):
        (folder / name).unlink()
    resume(folder)
    same(contents(folder), contents(uninterrupted.folder))


# --- The folder of a run


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_the_files_of_a_run(tmp_path: Path, text: Path, family: str) -> None:
    notes = Notes()
    run = train(text, tmp_path / "run", family=family, sample="th", sample_tokens=7, listener=notes, **TINY)
    actual = sorted(str(path.relative_to(run.folder)) for path in run.folder.rglob("*") if path.is_file())
    model = ["config.json", "model.safetensors", "tokenizer.json"]
    assert actual == sorted([
        "README.md", *model, "losses.csv", "samples.txt", "settings.json",
        *(f"tokens/{name}" for name in ("train.bin", "held_out.bin", "tokens.json", "tokenizer.json")),
        *(f"checkpoints/step-00000012/{name}" for name in (*model, "optimizer.safetensors", "progress.json")),
    ])  # fmt: skip
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

    run = summary.read(train(text, tmp_path / "run", **TINY | {"steps": 40, "evaluate_every": 2}).folder)
    for count in (2, 3):
        summary.draw([dataclasses.replace(run, name=f"run {number}") for number in range(count)], tmp_path / "x.png")
        picture = imread(tmp_path / "x.png")[:, :, :3]
        curves = picture[:, : int(0.6 * picture.shape[1])].reshape(-1, 3)  # left of the legend
        for colour in summary.COLOURS[:count]:
            assert (np.abs(curves - to_rgb(colour)).max(axis=1) < 0.02).sum() > 50


def test_training_losses_are_drawn_in_the_middle_of_their_steps(
    tmp_path: Path, text: Path, pictures: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training loss is a mean since the previous evaluation; a validation loss belongs to one step."""
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


# --- Memory


def measured(folder: Path, pipe: Any) -> None:
    """Resume a run in a child process and send its peak memory in bytes."""
    resume_in_child(folder)
    pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


@pytest.mark.parametrize("family", ["gpt2", "lstm"])
def test_memory_does_not_grow_with_the_text(tmp_path: Path, text: Path, family: str) -> None:
    """Sparse files of 1 MB and of 1 GB, which occupy no disk space."""
    peaks = []
    for size in (10**6, 10**9):
        settings = TINY | {"batch": 32, "steps": 40, "evaluate_every": 40, "checkpoint_every": 40, "layers": 1}
        run = train(text, tmp_path / str(size), family=family, listener=Notes(0), evaluate_tokens=2**14, **settings)
        about = json.loads((run.folder / "tokens" / "tokens.json").read_text())
        for name in ("train", "held_out"):
            os.truncate(run.folder / "tokens" / f"{name}.bin", size)
            about[name] = size // 2
        (run.folder / "tokens" / "tokens.json").write_text(json.dumps(about))
        receiver, sender = SERVER.Pipe(duplex=False)
        assert in_a_child(measured, run.folder, sender) == 0
        peaks.append(receiver.recv())
    assert peaks[1] < peaks[0] + 10 * 2**20
