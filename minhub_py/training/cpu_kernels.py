"""Faster replacements for three PyTorch functions in CPU training. The model files are unchanged.

    linear      Only on AMD with AVX-512. In float32 PyTorch calls MKL, which does not use AVX-512 there: 95 billion
                operations/s on one core. oneDNN, which PyTorch includes for 16-bit dtypes, reaches 200. On Intel, and
                on AMD without AVX-512, MKL is faster, by 2 times and more for a weight's gradient. Both compute in
                float32.
    dropout     PyTorch draws one random number per element: 3.8 ms for 786,000 elements. Here one 64-bit number
                serves eight elements: 0.9 ms.
    attention   The backward pass of the fused kernel is slow in bfloat16: 12 ms + 37 ms for 96 heads of 256 positions.
                Matrix products take 8 + 11 ms. In exchange, the (T, T) scores stay in memory, which limits this to
                short sequences, and they are rounded to bfloat16 before the softmax: an error of 0.5 to 1.4 % instead
                of 0.2 %.

`CPUKernels` is active during a forward pass. benchmarks/training.py measures the gain.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from minhub_py.system.processor import is_amd

# oneDNN's linear, which torch.compile uses too; None: slower on this processor, or not available in
# this PyTorch. The processor decides, not a measurement, so that a resumed run is bitwise
# identical.
IS_FASTER = is_amd() and torch.backends.cpu.get_cpu_capability() == "AVX512"
ONEDNN: Callable[..., Tensor] | None = (
    getattr(torch.ops.mkldnn, "_linear_pointwise", None) if IS_FASTER else None
)
MAX_LENGTH = 512  # longest sequence for attention by matrix products


class CPUKernels(TorchFunctionMode):
    """Context manager that replaces three functions of torch.nn.functional.

    active: the number of contexts that are entered.
    """

    active = 0

    def __enter__(self) -> Any:
        CPUKernels.active += 1
        return super().__enter__()

    def __exit__(self, *details: object) -> Any:
        CPUKernels.active -= 1
        return super().__exit__(*details)

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        return REPLACEMENTS.get(func, func)(*args, **kwargs or {})


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear, computed by oneDNN for float32; x (..., in), weight (out, in), bias (out,)."""
    supported = (
        x.dtype == weight.dtype == torch.float32
        and x.dim() > 1
        and not torch.is_autocast_enabled("cpu")
    )
    if ONEDNN is None or not supported:
        return F.linear(x, weight, bias)
    return OneDNNLinear.apply(x.flatten(0, -2), weight, bias).unflatten(0, x.shape[:-1])  # type: ignore[no-untyped-call]


class OneDNNLinear(torch.autograd.Function):
    """x @ weight.T + bias with gradients; x is (N, in)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        return product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        [gradient] = gradients
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            product(gradient, weight.t()) if needs_x else None,
            product(gradient.t(), x.t()) if needs_weight else None,
            gradient.sum(0) if needs_bias else None,
        )


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product x @ weight.T + bias by oneDNN."""
    assert ONEDNN is not None
    return ONEDNN(x, weight, bias, "none", [], "")


def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """F.dropout with p rounded to 256ths: an element is dropped if a random byte is below p * 256.

    Calls F.dropout if rounding would change p by more than 5 %.
    """
    threshold = round(p * 256)
    is_close = abs(threshold / 256 - p) <= 0.05 * p
    if not training or inplace or not (is_close and 0 < threshold < 256):
        return F.dropout(x, p, training, inplace)
    numbers = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
    mask = numbers.view(torch.uint8)[: x.numel()].view(x.shape) >= threshold
    return x * (mask.to(x.dtype) * (256 / (256 - threshold)))


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **kwargs: Any,
) -> Tensor:
    """F.scaled_dot_product_attention by matrix products for short sequences under autocast; q, k, v
    (B, H, T, D).
    """
    B, H, T, D = q.shape
    S = k.size(2)
    supported = (
        is_causal and T == S
        if attn_mask is None
        else attn_mask.dtype == torch.bool and not is_causal
    )
    if not (
        supported
        and T <= MAX_LENGTH
        and not dropout_p
        and not kwargs
        and torch.is_autocast_enabled("cpu")
    ):
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=attn_mask,
            dropout_p=dropout_p,
            is_causal=is_causal,
            scale=scale,
            **kwargs,
        )
    dtype = torch.get_autocast_dtype("cpu")
    if attn_mask is None:
        bias = causal_bias(T, dtype).expand(B * H, T, T)
    else:
        bias = torch.zeros_like(attn_mask, dtype=dtype).masked_fill_(~attn_mask, -torch.inf)
        bias = bias.expand(B, H, T, S).reshape(B * H, T, S)
    q, k, v = (x.to(dtype).reshape(B * H, -1, D) for x in (q, k, v))
    # (B * H, T, S)
    scores = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=D**-0.5 if scale is None else scale)
    with torch.autocast("cpu", enabled=False):  # autocast would compute softmax in float32
        weights = torch.softmax(scores, -1)
    return torch.bmm(weights, v).view(B, H, T, D)


@cache
def causal_bias(T: int, dtype: torch.dtype) -> Tensor:
    """(T, T): minus infinity where a key follows its query, otherwise 0."""
    return torch.full((T, T), -torch.inf, dtype=dtype).triu(1)


REPLACEMENTS: dict[Callable[..., object], Callable[..., object]] = {
    F.linear: linear,
    F.dropout: dropout,
    F.scaled_dot_product_attention: attention,
}
