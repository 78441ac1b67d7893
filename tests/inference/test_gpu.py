"""Tests that need a GPU (`make gpu`): results of CUDA compared with the CPU, and several GPUs by
NCCL.
"""

import os
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import ARCHITECTURES
from needs import require

from minhub_py import (
    from_pretrained,
    generate,
    gpt2,
    save_pretrained,
    score,
    tokenizer_from_pretrained,
    train,
)
from minhub_py.models.config import read
from minhub_py.models.registry import architecture_of

pytestmark = pytest.mark.gpu

CASES = {name: cases.settings(name) for cases in ARCHITECTURES.values() for name in cases.few}
COMMAND = ["minhub/shakespeare-gpt2", "ROMEO:", "-n", "40", "--temperature", "0"]


@pytest.fixture(scope="module", params=CASES)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Any]:
    """A small model of each family on the CPU and on the GPU."""
    settings = deepcopy(CASES[request.param])
    family = architecture_of(settings["model_type"])
    torch.manual_seed(0)
    model = family.Model(read(family.Config, settings))
    folder = tmp_path_factory.mktemp(request.param)
    save_pretrained(model, folder)
    return from_pretrained(folder, device="cpu"), from_pretrained(folder, device="cuda")


def test_a_family_gives_the_logits_of_the_cpu_with_and_without_a_cache(
    pair: tuple[Any, Any],
) -> None:
    one, other = pair
    ids = torch.randint(61, (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected, actual = one(ids), other(ids.cuda())
        cache = other.new_cache(2, 40)
        parts = [other(part.cuda(), cache) for part in ids.split([17, 1, 22], dim=1)]
    tolerance = 1e-4 * expected.abs().max().item()
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(torch.cat(parts, dim=1).cpu(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ["gpt2", "gptneo", "lstm"])
def test_text_and_scores_of_a_trained_model_are_those_of_the_cpu(name: str) -> None:
    one, other = (
        from_pretrained(f"minhub/shakespeare-{name}", device=device) for device in ("cpu", "cuda")
    )
    prompts = [[1, 2, 3], list(range(30))]
    for settings in ({"temperature": 0}, {"temperature": 0.8, "top_p": 0.9, "seed": 1}):
        assert generate(other, prompts, 40, **settings) == generate(one, prompts, 40, **settings)
    for actual, expected in zip(score(other, prompts), score(one, prompts), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits_stay_close(dtype: str) -> None:
    exact = from_pretrained("minhub/shakespeare-gpt2", device="cpu")
    model = from_pretrained("minhub/shakespeare-gpt2", device="cuda", dtype=dtype)
    ids = torch.arange(40).unsqueeze(0)
    with torch.inference_mode():
        actual, expected = model(ids.cuda()), exact(ids)
    assert (actual.float().softmax(-1).cpu() - expected.softmax(-1)).abs().max() < 0.06


def test_training_on_a_gpu_follows_training_on_the_cpu(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over a lazy dog and sees it run " * 120)
    settings: dict[str, Any] = {
        "layers": 2,
        "width": 32,
        "context": 16,
        "batch": 8,
        "steps": 8,
        "evaluate_every": 4,
        "dropout": 0.0,
        "dtype": "float32",
    }
    runs = [train(text, tmp_path / device, device=device, **settings) for device in ("cpu", "cuda")]
    one, other = (run.best["held_out_loss"] for run in runs)
    assert abs(one - other) < 1e-3


def test_two_gpus_share_a_model(tmp_path: Path) -> None:
    require(torch.cuda.device_count() > 1, "there are fewer than two GPUs")
    tokenizer = tokenizer_from_pretrained(COMMAND[0])
    model = gpt2(
        vocab_size=tokenizer.get_vocab_size(), n_positions=64, n_embd=32, n_layer=2, n_head=4
    )
    save_pretrained(model, tmp_path, tokenizer)
    alone, both = (
        subprocess.run(
            [
                sys.executable,
                "-m",
                "minhub_py",
                "generate",
                str(tmp_path),
                *COMMAND[1:],
                *arguments,
            ],
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
            env=dict(os.environ),
        )
        for arguments in (["--device", "cpu"], ["--device", "cuda", "--tensor-parallel", "2"])
    )
    assert (both.returncode, both.stdout) == (0, alone.stdout), both.stderr
