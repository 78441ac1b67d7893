"""Quantization to the formats Q4_K, Q5_K and Q6_K of weights_map/blocks.py, which the package gguf
reads only.

Among a few candidates, a group of 32 (Q6_K: 16) weights has the scale with the smallest weighted
squared error. The scales of a block of 256 are then rounded to 6 (8) bits, and the codes computed
again with the rounded scales.

Source: llama.cpp, ggml/src/ggml-quants.c, make_qkx2_quants and make_qx_quants; llama-quant.cpp for
the mixes of types.
"""

import re

import torch
from torch import Tensor

CHUNK = 2**13  # blocks at a time
# Mixes: the type of most matrices, of the head, of the more precise layers of attn_v and ffn_down,
# of a fused attn_qkv.
MIXES = {
    "Q4_K_S": ("Q4_K", "Q6_K", "Q5_K", "Q4_K"),
    "Q4_K_M": ("Q4_K", "Q6_K", "Q6_K", "Q5_K"),
    "Q5_K_S": ("Q5_K", "Q6_K", "Q5_K", "Q5_K"),
    "Q5_K_M": ("Q5_K", "Q6_K", "Q6_K", "Q6_K"),
    "Q6_K": ("Q6_K", "Q6_K", "Q6_K", "Q6_K"),
}
# The type of a matrix whose rows are not a multiple of 256.
FALLBACKS = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}


def type_in_mix(name: str, mix: str, layers: int, tied: bool) -> str:
    """A matrix's type by its name in the file."""
    base, head, precise, fused = MIXES[mix]
    if name == "output.weight" or (tied and name == "token_embd.weight"):
        return head
    match = re.fullmatch(r"blk\.(\d+)\.(attn_v|ffn_down|attn_qkv)\.weight", name)
    if match is None:
        return base
    layer, eighth = int(match[1]), layers // 8
    if match[2] == "attn_qkv":
        return fused
    if mix.endswith("_S"):
        first = 4 if match[2] == "attn_v" else eighth
        return precise if layer < first else base
    return (
        precise if layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2 else base
    )


def quantize(weights: Tensor, type: str) -> Tensor:
    """The rows (out, bytes) uint8 of weights (out, in), in a multiple of 256, as Q4_K, Q5_K or
    Q6_K.
    """
    blocks = weights.float().reshape(-1, 256)
    pack = q6_k if type == "Q6_K" else lambda part: q45_k(part, 4 if type == "Q4_K" else 5)
    return torch.cat([pack(part) for part in blocks.split(CHUNK)]).reshape(len(weights), -1)


def q45_k(blocks: Tensor, bits: int) -> Tensor:
    """Blocks (N, 256) as Q4_K or Q5_K: weight = scale · code - offset, per group of 32."""
    groups, top = blocks.unflatten(1, (8, 32)), 2**bits - 1
    scales, offsets = fit_with_offset(groups, top)
    # (N, 1) of the block
    scale, offset = (value.amax(dim=1, keepdim=True) / 63 for value in (scales, offsets))
    scale, offset = scale.half(), offset.half()
    scales, offsets = (
        (value / part.float().clamp_min(1e-30)).round().clamp(0, 63)
        for value, part in ((scales, scale), (offsets, offset))
    )
    step, shift = scale.float() * scales, offset.float() * offsets
    codes = (
        ((groups + shift.unsqueeze(2)) / step.clamp_min(1e-30).unsqueeze(2)).round().clamp(0, top)
    )
    codes = (codes * (step > 0).unsqueeze(2)).to(torch.uint8)  # (N, 8, 32)
    low, high = scales.to(torch.uint8).split(4, dim=1), offsets.to(torch.uint8).split(4, dim=1)
    packed = [
        low[0] | low[1] >> 4 << 6,
        high[0] | high[1] >> 4 << 6,
        low[1] & 15 | (high[1] & 15) << 4,
    ]
    pairs = codes.unflatten(1, (4, 2)) & 15
    nibbles = (pairs[:, :, 0] | pairs[:, :, 1] << 4).flatten(1)
    fifth = [bits_of([(codes[:, group] >> 4) << group for group in range(8)])] if bits == 5 else []
    return torch.cat(
        [scale.view(torch.uint8), offset.view(torch.uint8), *packed, *fifth, nibbles], dim=1
    )


def bits_of(parts: list[Tensor]) -> Tensor:
    """The bits of several bytes in one."""
    return torch.stack(parts).sum(dim=0, dtype=torch.uint8)


def fit_with_offset(groups: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Scales and offsets (N, 8) of the smallest error of scale · code - offset, weighted by the
    size of the weights.
    """
    importance = groups.square().mean(dim=2, keepdim=True).sqrt() + groups.abs()
    low, high = groups.amin(dim=2).clamp_max(0), groups.amax(dim=2)
    span = (high - low).clamp_min(1e-30)
    best = torch.full_like(span, torch.inf)
    scales, offsets = span / top, -low
    total, first = importance.sum(dim=2), (importance * groups).sum(dim=2)
    for number in range(-1, 10):  # the candidates: spans of a few codes more or less
        inverse = (top + 0.1 * number - 0.2) / span
        codes = ((groups - low.unsqueeze(2)) * inverse.unsqueeze(2)).round().clamp(0, top)
        x1, x2 = (importance * codes).sum(dim=2), (importance * codes * codes).sum(dim=2)
        xl = (importance * groups * codes).sum(dim=2)
        determinant = (total * x2 - x1 * x1).clamp_min(1e-30)
        scale = (total * xl - first * x1) / determinant
        offset = (x2 * first - x1 * xl) / determinant
        scale = torch.where(offset > 0, xl / x2.clamp_min(1e-30), scale)
        offset = offset.clamp_max(0)
        error = (
            importance * (scale.unsqueeze(2) * codes + offset.unsqueeze(2) - groups).square()
        ).sum(dim=2)
        better = (error < best) & (scale > 0)
        best = torch.where(better, error, best)
        scales, offsets = torch.where(better, scale, scales), torch.where(better, -offset, offsets)
    return scales * (high > low), offsets


def q6_k(blocks: Tensor) -> Tensor:
    """Blocks (N, 256) as Q6_K: weight = scale · (code - 32), per group of 16."""
    groups = blocks.unflatten(1, (16, 16))
    largest = groups.gather(2, groups.abs().argmax(dim=2, keepdim=True)).squeeze(2)
    safe = torch.where(largest == 0, 1.0, largest)
    best, scales = torch.zeros_like(largest), torch.zeros_like(largest)
    weights = groups.square()
    for number in range(-9, 10):
        codes = (groups * (-(32 + 0.1 * number) / safe).unsqueeze(2)).round().clamp(-32, 31)
        xl, l2 = (weights * groups * codes).sum(dim=2), (weights * codes * codes).sum(dim=2)
        score = torch.where(l2 > 0, xl * xl / l2.clamp_min(1e-30), 0)
        better = score > best
        best, scales = (
            torch.where(better, score, best),
            torch.where(better, xl / l2.clamp_min(1e-30), scales),
        )
    extreme = scales.gather(1, scales.abs().argmax(dim=1, keepdim=True))
    scale = (extreme / -128).half()  # (N, 1)
    inverse = torch.where(scale == 0, 0.0, 1 / scale.float())
    factors = (scales * inverse).round().clamp(-128, 127)
    step = (scale.float() * factors).unsqueeze(2)
    codes = (
        torch.where(step == 0, 0.0, groups / torch.where(step == 0, 1.0, step))
        .round()
        .clamp(-32, 31)
        + 32
    )
    codes = codes.to(torch.uint8).reshape(-1, 2, 4, 32)  # halves, quarters
    low = torch.cat(
        [
            codes[:, :, 0] & 15 | (codes[:, :, 2] & 15) << 4,
            codes[:, :, 1] & 15 | (codes[:, :, 3] & 15) << 4,
        ],
        2,
    )
    high = bits_of([(codes[:, :, quarter] >> 4) << 2 * quarter for quarter in range(4)])
    return torch.cat(
        [
            low.flatten(1),
            high.flatten(1),
            factors.to(torch.int8).view(torch.uint8),
            scale.view(torch.uint8),
        ],
        dim=1,
    )
