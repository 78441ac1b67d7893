"""The CPU kernels of training, compared with PyTorch's operations."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from training_runs import TINY, Notes

from minhub_py import train
from minhub_py.system import processor
from minhub_py.training import cpu_kernels
from minhub_py.training.cpu_kernels import CPUKernels, attention, dropout, linear


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
    """Bitwise identical without autocast, with an additive mask, with dropout, and for long
    sequences.
    """
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
def test_dropout_has_the_correct_rate_scale_and_gradient(p: float, dtype: torch.dtype) -> None:
    """Rate, scale, mean and gradient are correct; elements are independent; the seed determines the
    result.
    """
    torch.manual_seed(0)
    x = torch.ones(501, 401, dtype=dtype, requires_grad=True)  # not a multiple of eight
    y = dropout(x, p)
    rate = round(p * 256) / 256
    assert y.dtype == dtype
    assert y.shape == x.shape
    assert len(y.unique()) == 2
    assert y.max().item() == pytest.approx(
        1 / (1 - rate), rel=1e-6 if dtype == torch.float32 else 4e-3
    )
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
    [
        ("vendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC\n", "", True),
        ("vendor_id\t: GenuineIntel\nmodel name\t: Intel Xeon\n", "", False),
        ("CPU implementer\t: 0x41\n", "", False),
        (None, "AMD64 Architecture 25 Model 33 Stepping 0, AuthenticAMD", True),
        (None, "Intel64 Architecture 6 Model 85 Stepping 7, GenuineIntel", False),
    ],
)
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
    # on any processor
    monkeypatch.setattr(cpu_kernels, "ONEDNN", torch.ops.mkldnn._linear_pointwise)
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
    cases = [
        (torch.float64, (3, 8), False),
        (torch.bfloat16, (3, 8), False),
        (torch.float32, (3, 8), True),
        (torch.float32, (8,), False),
    ]
    for dtype, shape, autocast in cases:
        x, weight, bias = (
            torch.randn(shape, dtype=dtype),
            torch.randn(4, 8, dtype=dtype),
            torch.randn(4, dtype=dtype),
        )
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
