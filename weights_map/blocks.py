"""Weights in types of GGUF, as they lie in the file: each row is a number of blocks, codes with their scales.

    Q8_0            32 codes of 8 bits, with signs, and a float16 scale: weight = scale * code. 8.5 bits a weight
    Q4_0, Q5_0      32 codes of 4 or 5 bits: scale * (code - 8), scale * (code - 16). 4.5, 5.5
    Q4_1, Q5_1      the same with an offset: scale * code + offset. 5, 6
    Q4_K, Q5_K      256 codes; each 32 have a scale and an offset of 6 bits, which a block's two float16 numbers scale.
                    4.5, 5.5
    Q6_K            256 codes; each 16 have a scale of 8 bits, which a block's float16 scales. 6.6

Source: ggml/src/ggml-common.h and ggml-quants.c. native/kernels.h (`unblock`) has the same for the compiled reader.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Blocks(NamedTuple):
    """A weight (out, in) as the file has it: rows (out, bytes) uint8, of a type in `TYPES`."""

    type: str
    rows: Tensor


class Type(NamedTuple):
    """size: weights of a block.    width: its bytes.    unpack: blocks (…, width) -> weights (…, size), float32."""

    size: int
    width: int
    unpack: Callable[[Tensor], Tensor]


def unpack_rows(rows: Tensor, name: str) -> Tensor:
    """The float32 weights (…, in) of rows (…, bytes) of a type."""
    kind = TYPES[name]
    return kind.unpack(rows.unflatten(-1, (-1, kind.width))).flatten(-2)


def half(blocks: Tensor, at: int) -> Tensor:
    """The float16 number at a byte of each block: (…, 1), float32."""
    return blocks[..., at : at + 2].contiguous().view(torch.float16).float()


def halves(codes: Tensor) -> Tensor:
    """The low halves of all bytes, then the high ones."""
    return torch.cat((codes & 15, codes >> 4), dim=-1)


def bit_by_bit(codes: Tensor) -> Tensor:
    """The bits of each byte, the lowest first: (…, 8 * bytes)."""
    return (codes.unsqueeze(-1) >> torch.arange(8, device=codes.device, dtype=torch.uint8) & 1).flatten(-2)


def q8_0(blocks: Tensor) -> Tensor:
    return half(blocks, 0) * blocks[..., 2:].view(torch.int8).float()


def q4_0(blocks: Tensor) -> Tensor:
    return half(blocks, 0) * (halves(blocks[..., 2:]).float() - 8)


def q4_1(blocks: Tensor) -> Tensor:
    return half(blocks, 0) * halves(blocks[..., 4:]).float() + half(blocks, 2)


def q5_0(blocks: Tensor) -> Tensor:
    codes = halves(blocks[..., 6:]) | bit_by_bit(blocks[..., 2:6]) << 4
    return half(blocks, 0) * (codes.float() - 16)


def q5_1(blocks: Tensor) -> Tensor:
    codes = halves(blocks[..., 8:]) | bit_by_bit(blocks[..., 4:8]) << 4
    return half(blocks, 0) * codes.float() + half(blocks, 2)


def scales_and_offsets(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Of each 32 of 256 weights, (…, 8, 1): 6 bits each, in 12 bytes from the fourth on."""
    first, second, third = blocks[..., 4:16].unflatten(-1, (3, 4)).unbind(-2)
    scales = torch.cat((first & 63, (third & 15) | (first >> 6 << 4)), dim=-1)
    offsets = torch.cat((second & 63, (third >> 4) | (second >> 6 << 4)), dim=-1)
    return (half(blocks, 0) * scales).unsqueeze(-1), (half(blocks, 2) * offsets).unsqueeze(-1)


def four_bits(codes: Tensor) -> Tensor:
    """(…, 8, 32) of 128 bytes: of each 32 bytes the low halves, then the high ones."""
    return halves(codes.unflatten(-1, (4, 32))).flatten(-2).unflatten(-1, (8, 32))


def q4_k(blocks: Tensor) -> Tensor:
    scales, offsets = scales_and_offsets(blocks)
    return (scales * four_bits(blocks[..., 16:]) - offsets).flatten(-2)


def q5_k(blocks: Tensor) -> Tensor:
    scales, offsets = scales_and_offsets(blocks)
    fifth = bit_by_bit(blocks[..., 16:48]).unflatten(-1, (32, 8)).transpose(-1, -2)
    return (scales * (four_bits(blocks[..., 48:]) | fifth << 4) - offsets).flatten(-2)


def q6_k(blocks: Tensor) -> Tensor:
    low = halves(blocks[..., :128].unflatten(-1, (2, 64)))  # (…, 2, 128)
    shifts = torch.arange(0, 8, 2, device=blocks.device, dtype=torch.uint8).view(4, 1)
    high = (blocks[..., 128:192].unflatten(-1, (2, 1, 32)) >> shifts & 3).flatten(-2)
    codes = (low | high << 4).float() - 32
    scales = half(blocks, 208) * blocks[..., 192:208].view(torch.int8).float()
    return (codes.flatten(-2).unflatten(-1, (16, 16)) * scales.unsqueeze(-1)).flatten(-2)


TYPES = {
    "Q8_0": Type(32, 34, q8_0),
    "Q4_0": Type(32, 18, q4_0),
    "Q4_1": Type(32, 20, q4_1),
    "Q5_0": Type(32, 22, q5_0),
    "Q5_1": Type(32, 24, q5_1),
    "Q4_K": Type(256, 144, q4_k),
    "Q5_K": Type(256, 176, q5_k),
    "Q6_K": Type(256, 210, q6_k),
}
