"""Data-parallel training over gloo gives the result of one process.

One test starts torchrun, and its processes as forks of a server that has imported PyTorch
(test_tensor_parallel.py starts them as new Pythons). The others fork their processes with
torchrun's environment variables. To import PyTorch in each process takes half a minute on a busy
machine.
"""

import csv
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from children import SERVER
from fast_python import python
from safetensors import safe_open

from minhub_py.checkpoints.storage import Checkpoint
from minhub_py.cli.main import main
from minhub_py.training import Run, resume, train

SETTINGS: dict[str, Any] = {
    "layers": 2,
    "width": 32,
    "context": 16,
    "batch": 8,
    "steps": 8,
    "evaluate_every": 4,
    "checkpoint_every": 4,
    "evaluate_tokens": 500,
    "dropout": 0.0,
    "accumulate": 2,
    "threads": 1,
    "sample": "the",
    "sample_tokens": 8,
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = "the quick brown fox jumps over a lazy dog and sees it run".split()
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(" ".join(random.Random(1).choices(words, k=1500)))
    return path


def torchrun(processes: int, *arguments: object) -> tuple[int, str]:
    """The exit status of torchrun, and its processes' standard error."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(processes),
    ]
    command += ["--no-python", python(), "-m", "minhub_py", "train", *map(str, arguments)]
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    return result.returncode, result.stderr


def forked(processes: int, *arguments: object) -> tuple[int, str]:
    """As `torchrun`, with forked processes that have its environment variables and its store."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(processes),
    }
    with tempfile.NamedTemporaryFile("r") as errors:
        children = []
        for rank in range(processes):
            own = environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            child = SERVER.Process(
                target=minhub_train, args=(own, list(map(str, arguments)), errors.name)
            )
            child.start()
            children.append(child)
        for child in children:
            child.join(200)
            child.kill()  # it may be waiting for a failed process
            child.join()
        return max(abs(child.exitcode or 0) for child in children), errors.read()


def minhub_train(environment: dict[str, str], arguments: list[str], errors: str) -> None:
    """Run `minhub train` in a child process."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    with open(errors, "a", encoding="utf-8", buffering=1) as sys.stderr:
        main(["train", *arguments], prog_name="minhub")


def as_options(settings: dict[str, Any]) -> list[str]:
    return [
        word
        for name, value in settings.items()
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]


def losses(run: Path) -> list[list[float]]:
    with (run / "losses.csv").open() as file:
        names = ("step", "train_loss", "held_out_loss", "gradient_norm")
        return [[float(row[name] or 0) for name in names] for row in csv.DictReader(file)]


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return dict(Checkpoint(folder))


@pytest.mark.parametrize(
    ("family", "strategy"), [("gpt2", "ddp"), ("gptneo", "fsdp"), ("lstm", "ddp"), ("lstm", "fsdp")]
)
def test_two_processes_match_one_process(
    text: Path, tmp_path: Path, family: str, strategy: str
) -> None:
    run = train(text, tmp_path / "one", family=family, **SETTINGS)
    start = torchrun if family == "gpt2" else forked
    options = [
        "--out",
        tmp_path / "two",
        "--family",
        family,
        "--parallel",
        strategy,
        *as_options(SETTINGS),
    ]
    status, errors = start(2, text, *options)
    assert status == 0, errors
    assert f"2 processes ({strategy})" in errors
    assert errors.count("STEP  TRAINING") == 1  # only the main process prints
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert [row[0] for row in two] == [0, 4, 8]
    torch.testing.assert_close(torch.tensor(two), torch.tensor(one), rtol=2e-6, atol=2e-6)
    expected, actual = tensors(tmp_path / "one"), tensors(tmp_path / "two")
    assert expected.keys() == actual.keys()
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name], rtol=1e-4, atol=2e-5)
    assert Run(tmp_path / "two").files.samples.read_text() == run.files.samples.read_text()


def test_a_sharded_run_resumes_with_another_world_size(text: Path, tmp_path: Path) -> None:
    one, many = tmp_path / "one", tmp_path / "many"
    train(text, one, family="lstm", **SETTINGS)
    resume(one, steps=16)
    resume(one, steps=24)
    for count, arguments in (
        (2, [text, "--out", many, "--family", "lstm", "--parallel", "fsdp", *as_options(SETTINGS)]),
        (4, ["--resume", many, "--steps", 16]),
    ):
        status, errors = forked(count, *arguments)
        assert status == 0, errors
    resume(many, steps=24)
    torch.testing.assert_close(
        torch.tensor(losses(many)), torch.tensor(losses(one)), rtol=5e-6, atol=5e-6
    )
    assert [row[0] for row in losses(many)] == [0, 4, 8, 12, 16, 20, 24]
    state = safe_open(
        next((many / "checkpoints").iterdir()) / "optimizer.safetensors", framework="pt"
    )
    assert state.get_tensor("state.h").shape == (2, 8, 32)  # the state of the entire batch


def test_a_batch_that_is_not_divisible_by_the_world_size_is_rejected(
    text: Path, tmp_path: Path
) -> None:
    status, errors = forked(
        2, text, "--out", tmp_path / "run", *as_options(SETTINGS | {"batch": 6})
    )
    assert status == 1
    assert "3 sequences cannot be divided among 2 processes" in errors
    assert not (tmp_path / "run").exists()
