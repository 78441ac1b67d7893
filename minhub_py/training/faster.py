"""Faster replacements for three slow PyTorch functions when training on a CPU. The model files are not changed.

    linear      On AMD with AVX-512 alone. PyTorch calls MKL in float32, which does not use AVX-512 there: 95 billion
                operations/s on one core. oneDNN, which PyTorch includes for 16-bit types, reaches 200; on Intel, and
                on AMD without AVX-512, it is MKL that is faster, 2 times and more for a weight's gradient. Both
                compute in float32.
    dropout     PyTorch draws one random number per element: 3.8 ms for 786,000 elements. Here one 64-bit number
                serves eight elements: 0.9 ms.
    attention   The backward pass of the fused kernel is slow in bfloat16: 12 ms + 37 ms for 96 heads of 256 positions.
                Matrix products take 8 + 11 ms, at a price: the (T, T) scores are kept in memory, so this is only for
                short rows, and they are rounded to bfloat16 before the softmax: an error of 0.5 to 1.4 % instead of
                0.2 %.

`Faster` is active during a forward pass. tests/benchmarks/training.py measures the gain.
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

# oneDNN's linear, which torch.compile uses too; None: it is not the faster one here, or this PyTorch does not have it.
# The processor decides and no measurement, so that a resumed run computes the same bits.
IS_FASTER = is_amd() and torch.backends.cpu.get_cpu_capability() == "AVX512"
ONEDNN: Callable[..., Tensor] | None = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if IS_FASTER else None
# The longest row for which matrix products are the faster attention.
SHORT = 512


class Faster(TorchFunctionMode):
    """Context manager that replaces three functions of torch.nn.functional."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.linear:
            return linear(*args, **kwargs)
        if func is F.dropout:
            return dropout(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return attention(*args, **kwargs)
        return func(*args, **kwargs)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear, by oneDNN for float32 where it is faster; x (..., in), weight (out, in), bias (out,)."""
    usable = x.dtype == weight.dtype == torch.float32 and x.dim() > 1 and not torch.is_autocast_enabled("cpu")
    if ONEDNN is None or not usable:
        return F.linear(x, weight, bias)
    return OneDNNLinear.apply(x.flatten(0, -2), weight, bias).unflatten(0, x.shape[:-1])  # type: ignore[no-untyped-call]


class OneDNNLinear(torch.autograd.Function):
    """x @ weight.T + bias with its gradients; x is (N, in)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The result, (N, out)."""
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of x, weight and bias."""
        x, weight = ctx.saved_tensors
        [gradient] = gradients
        wanted = ctx.needs_input_grad
        return (
            product(gradient, weight.t()) if wanted[0] else None,
            product(gradient.t(), x.t()) if wanted[1] else None,
            gradient.sum(0) if wanted[2] else None,
        )


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product x @ weight.T + bias, by oneDNN."""
    assert ONEDNN is not None
    return ONEDNN(x, weight, bias, "none", [], "")


def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """F.dropout with p rounded to 256ths: an element is dropped if a random byte is below p * 256.

    Where rounding would change p by more than 5 %, it is F.dropout itself.
    """
    threshold = round(p * 256)
    near = abs(threshold / 256 - p) <= 0.05 * p
    if not training or inplace or not (near and 0 < threshold < 256):
        return F.dropout(x, p, training, inplace)
    numbers = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
    kept = numbers.view(torch.uint8)[: x.numel()].view(x.shape) >= threshold
    return x * (kept.to(x.dtype) * (256 / (256 - threshold)))


def attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, **other: Any,
) -> Tensor:  # fmt: skip
    """F.scaled_dot_product_attention, by matrix products where they are faster; q, k, v (B, H, T, D)."""
    B, H, T, D = q.shape
    S = k.size(2)
    known = is_causal and T == S if attn_mask is None else attn_mask.dtype == torch.bool and not is_causal
    if not (known and T <= SHORT and not dropout_p and not other and torch.is_autocast_enabled("cpu")):
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, **other
        )
    dtype = torch.get_autocast_dtype("cpu")
    if attn_mask is None:
        hidden = causal_bias(T, dtype).expand(B * H, T, T)
    else:
        hidden = torch.zeros_like(attn_mask, dtype=dtype).masked_fill_(~attn_mask, -torch.inf)
        hidden = hidden.expand(B, H, T, S).reshape(B * H, T, S)
    q, k, v = (x.to(dtype).reshape(B * H, -1, D) for x in (q, k, v))
    scores = torch.baddbmm(hidden, q, k.transpose(1, 2), alpha=D**-0.5 if scale is None else scale)  # (B * H, T, S)
    with torch.autocast("cpu", enabled=False):  # with autocast, softmax would make a copy in float32
        weights = torch.softmax(scores, -1)
    return torch.bmm(weights, v).view(B, H, T, D)


@cache
def causal_bias(T: int, dtype: torch.dtype) -> Tensor:
    """(T, T): minus infinity where a key comes after its query, otherwise 0."""
    return torch.full((T, T), -torch.inf, dtype=dtype).triu(1)
