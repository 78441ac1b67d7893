"""Adapters of all architectures: a round trip through files, and the same result as merged weights."""

from pathlib import Path

import pytest
import torch
from adapters import random_adapter
from references import FEW, assert_close, ids_of, random_model

from minhub_py.loading.adapters.attach import attach
from minhub_py.loading.adapters.fit import read_adapter
from minhub_py.loading.adapters.merge import merge


@pytest.mark.parametrize("name", FEW)
@torch.no_grad()
def test_an_adapter_computes_the_same_as_merged_weights(name: str, tmp_path: Path) -> None:
    model = random_model(name)
    adapted = attach(model, read_adapter(random_adapter(model, tmp_path), model))
    expected, base = adapted(ids_of(1, 9)), model(ids_of(1, 9))
    assert (expected - base).abs().max() > 1e-2 * base.abs().max()
    assert_close(merge(adapted)(ids_of(1, 9)), expected)
