"""Mixtures of experts: files, memory and quantized experts. tests/support/cases/mixtral.py has the
architectures.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from guarantees import RUNNER, assert_same
from references import LENGTH, assert_close, ids_of, random_model
from safetensors.torch import load_file, save_file

import minhub_py
from minhub_py.inference.native_runner import runner_of
from minhub_py.inference.quantize import QuantizedExperts
from minhub_py.models.experts import ExpertMatrices, route
from weights_map.mixtral import unstack_transposed


def mapped_ranges(file: Path) -> list[tuple[int, int]]:
    """The addresses at which this process has mapped a file."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    return [
        tuple(int(end, 16) for end in line[0].split("-")) for line in lines if line[-1] == str(file)
    ]  # type: ignore[misc]


@torch.inference_mode()
def test_experts_stay_in_the_mapped_file(load, tmp_path: Path) -> None:
    """Separate, and stacked as in transformers' memory: neither is copied."""
    _, model, folder = load("qwen3_moe")
    tensors = load_file(folder / "model.safetensors")
    stacked = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for layer in range(2):
        prefix = f"model.layers.{layer}.mlp.experts."
        parts = {
            part: torch.stack([tensors[f"{prefix}{e}.{part}_proj.weight"] for e in range(6)])
            for part in ("gate", "up", "down")
        }
        stacked[f"{prefix}gate_up_proj"] = torch.cat((parts["gate"], parts["up"]), dim=1)
        stacked[f"{prefix}down_proj"] = parts["down"]
    save_file(stacked, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    for path in (folder, tmp_path):
        ours = minhub_py.from_pretrained(path, device="cpu")
        ranges = mapped_ranges(path / "model.safetensors")
        matrices = [module for module in ours.modules() if isinstance(module, ExpertMatrices)]
        assert len(matrices) == 6
        for weight in (weight for module in matrices for weight in module.parameters()):
            assert any(start <= weight.data_ptr() < end for start, end in ranges)
        assert_close(ours(ids_of(1)), model(ids_of(1)), 2e-6)


@pytest.mark.parametrize(("channels", "inner"), [(5, 3), (6, 3), (3, 6), (4, 4)])
def test_transposed_experts_are_converted_in_both_directions(channels: int, inner: int) -> None:
    operation = unstack_transposed("num_experts")
    gate_up, down = torch.randn(2, channels, 2 * inner), torch.randn(2, inner, channels)
    native = operation.to_native([gate_up, down], 2)
    assert all(matrix.is_contiguous() for matrix in native)
    for expert in range(2):
        assert torch.equal(native[expert], gate_up[expert, :, :inner].t())
        assert torch.equal(native[2 + expert], gate_up[expert, :, inner:].t())
        assert torch.equal(native[4 + expert], down[expert].t())
    back = operation.to_hub(native, 2)
    assert torch.equal(back[0], gate_up)
    assert torch.equal(back[1], down)
    views = operation.to_native([gate_up.transpose(1, 2), down.transpose(1, 2).contiguous()], 2)
    assert all(torch.equal(a, b) for a, b in zip(views, native, strict=True))


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["int8", "nf4"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_native_quantized_experts_match_forward(load, kind: str, dtype: str) -> None:
    """The same in one call, in chunks, and in a batch."""
    model = minhub_py.from_pretrained(
        load("qwen3_moe-all-experts")[2], device="cpu", quantize=kind, dtype=dtype
    )
    experts = [module for module in model.modules() if isinstance(module, QuantizedExperts)]
    assert {module.kind for module in experts} == {kind}
    assert len(experts) == 6
    runner = runner_of(model)
    assert type(runner) is RUNNER
    ids = ids_of(1)[0].tolist()
    result = runner.forward({0: ids}, runner.new_cache(1, LENGTH), every=True, exact=True).clone()
    expected = model(torch.tensor([ids]))[0].float()
    error = ((result - expected).square().mean() / expected.square().mean()).sqrt()
    assert error < (2e-3 if dtype == "float32" else 0.1)
    cache = runner.new_cache(1, LENGTH)
    pieces = [
        runner.forward({0: ids[start:end]}, cache, every=True, exact=True).clone()
        for start, end in pairwise((0, 13, 14, 15, LENGTH))
    ]
    assert_same(torch.cat(pieces), result, dtype)
    cache = runner.new_cache(3, LENGTH)
    rows = runner.forward({0: ids[:5], 1: ids[:40], 2: ids[:2]}, cache, exact=True)
    assert_same(rows, result[[4, 39, 1]], dtype)


def test_weights_of_experts_follow_the_rules() -> None:
    """The rules of gpt_oss, mixtral, olmoe and lfm2_moe, each by its definition."""
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(7, 4, generator=generator), torch.randn(9, 4, generator=generator)
    bias = torch.randn(9, generator=generator)
    logits = x @ weight.t()
    probabilities = logits.softmax(dim=1)
    values, indices = probabilities.topk(3, dim=1)
    for normalize, expected in ((True, values / values.sum(dim=1, keepdim=True)), (False, values)):
        weights, experts = route(x, weight, None, 3, normalize)
        assert torch.equal(experts, indices)
        torch.testing.assert_close(weights, expected)
    _, indices = (logits.sigmoid() + bias).topk(3, dim=1)
    values = logits.sigmoid().gather(1, indices)
    for normalize, expected in (
        (True, values / (values.sum(dim=1, keepdim=True) + 1e-6)),
        (False, values),
    ):
        weights, experts = route(x, weight, None, 3, normalize, True, 2.5, bias)
        assert torch.equal(experts, indices)
        torch.testing.assert_close(weights, 2.5 * expected)


@torch.inference_mode()
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_invalid_scores_select_distinct_experts(value: float) -> None:
    model: Any = random_model("mixtral")
    model.layers[0].mlp.gate.weight.fill_(value)
    runner = runner_of(model)
    assert type(runner) is RUNNER
    result = runner.forward({0: ids_of(1)[0].tolist()}, runner.new_cache(1, LENGTH), every=True)
    assert result.isnan().any()


@torch.inference_mode()
def test_bias_of_the_choice_selects_but_does_not_weight() -> None:
    """transformers' random models have no bias: here one changes the choice, in `forward` and in C."""
    model: Any = random_model("lfm2_moe")
    ids = ids_of(1)
    before = model(ids)
    for block in model.layers[1:]:
        block.mlp.expert_bias.copy_(torch.linspace(-1, 1, 6))
    after = model(ids)
    assert (after - before).abs().max() > 0.01 * before.abs().max()
    runner = runner_of(model)
    assert type(runner) is RUNNER
    assert_close(
        runner.forward({0: ids[0].tolist()}, runner.new_cache(1, LENGTH), every=True), after[0]
    )
