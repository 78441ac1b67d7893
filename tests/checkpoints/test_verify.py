"""`verify` reports wrong content of valid files."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from corruption import HEADS, WEIGHTS, our_name, problems, save, state_dict
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

pytestmark = pytest.mark.usefixtures("bounded_memory")


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = state_dict(folder)
    change(tensors)
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).write_bytes(safetensors_bytes(tensors))


def test_verify_accepts_valid_files(folder: Path) -> None:
    assert not problems(folder)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_verify_reports_nan_and_infinite_values(value: float, folder: Path) -> None:
    def plant(tensors: dict[str, Tensor]) -> None:
        for tensor in (tensors[first], tensors[last]):
            tensor.view(-1)[-1] = value

    first, *_, last = state_dict(folder)
    rewrite(folder, plant)
    assert f"{first}: 1 of" in problems(folder)
    assert f"{last}: 1 of" in problems(folder)
    assert len(problems(folder).splitlines()) == 2


def test_verify_reports_a_head_that_differs_from_a_tied_embedding(
    family: str, tmp_path: Path
) -> None:
    """A head in a file whose config ties it: equal to the embedding, or a problem."""
    folder = save(family, tmp_path / family, tie_word_embeddings=True)
    head, embedding = HEADS[family]
    rewrite(folder, lambda tensors: tensors.update({head: tensors[embedding].clone()}))
    assert not problems(folder)
    rewrite(folder, lambda tensors: tensors[head].view(-1)[-1].add_(1))
    assert f"{head} differs from {embedding}" in problems(folder)
    rewrite(folder, lambda tensors: tensors.update({head: tensors[embedding].half()}))
    assert not problems(folder)  # equal except for rounding
    rewrite(folder, lambda tensors: tensors.pop(embedding))
    assert our_name(embedding) in problems(folder)


def test_verify_reports_wrong_shapes_and_names(folder: Path) -> None:
    def put(name: str, tensor: Tensor) -> None:
        rewrite(folder, lambda tensors: tensors.update({name: tensor}))

    name, sound = next(iter(state_dict(folder).items()))
    put(name, torch.zeros(3, 4, 5))
    assert f"{our_name(name)} is (3, 4, 5)" in problems(folder)
    rewrite(folder, lambda tensors: tensors.pop(name))
    assert f"missing: {name}" in problems(folder)
    put(name, sound)
    put("no.such.tensor", torch.ones(1))
    assert "unknown: no.such.tensor" in problems(folder)
