"""NaN and infinity in queries and keys reach the logits of short texts, where PyTorch's fused
attention drops them.
"""

from typing import Any

import pytest
import torch
from references import random_model

from minhub_py.inference.batch import Batch
from minhub_py.inference.torch_runner import TorchRunner
from minhub_py.models.attention import attention
from minhub_py.models.steps import Attend, Linear


def with_query(value: float, name: str, dtype: torch.dtype) -> Any:
    """A model whose first layer has a query with this value."""
    model = random_model(name).to(dtype)
    steps = list(model.steps())
    first = next(number for number, step in enumerate(steps) if isinstance(step, Attend))
    layer = [step for step in steps[:first] if isinstance(step, Linear)][-1].layers[0]
    layer.weight.data[0] = value
    return model


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral-window", "bloom"])
def test_nan_in_the_weights_of_queries_reaches_the_logits(name: str, dtype: torch.dtype) -> None:
    model = with_query(float("nan"), name, dtype)
    for length in (1, 2, 5, 15, 16, 17):
        ids = torch.arange(length).unsqueeze(0)
        assert model(ids).isnan().all()
        cache = model.new_cache(1, 20)
        model(ids, cache)
        assert model(ids[:, :1], cache).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_short_prompt_with_nan_is_an_error_without_the_decoder(
    value: float, dtype: torch.dtype
) -> None:
    model = with_query(value, "gpt2", dtype)
    batch = Batch(model, 1, 20, runner=TorchRunner(model))
    batch.admit([1, 2], 3)
    with pytest.raises(ValueError, match="logits are NaN or infinite"):
        batch.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_a_corrupt_query_changes_only_its_own_output(dtype: torch.dtype, masked: bool) -> None:
    for S in (1, 3, 15, 16, 40):
        mask = torch.ones(S, S, dtype=torch.bool).tril() if masked else None
        q, k, v = (torch.randn(1, 2, S, 8).to(dtype) for _ in range(3))
        expected = attention(q, k, v, mask, not masked, 0.3)
        q[:, :, -1, 0] = float("nan")
        result = attention(q, k, v, mask, not masked, 0.3)
        assert result[:, :, -1].isnan().all()
        assert torch.equal(result[:, :, :-1], expected[:, :, :-1])


def test_a_single_corrupt_key_reaches_the_output() -> None:
    q, k, v = torch.randn(3, 1, 2, 1, 8)
    k[:, 0, 0, 3] = float("nan")
    result = attention(q, k, v, None, True, 0.3)
    assert result[:, 0].isnan().all()
    assert result[:, 1].isfinite().all()
