"""Quantized weights in GGUF's block formats. A row consists of blocks of codes with scales.

    type        block                                                                           bits per weight
    Q8_0        32 signed 8-bit codes, float16 scale: weight = scale * code                                 8.5
    Q4_0, Q5_0  32 codes of 4 or 5 bits: weight = scale * (code - 8), scale * (code - 16)              4.5, 5.5
    Q4_1, Q5_1  32 codes of 4 or 5 bits: weight = scale * code + offset                                    5, 6
    IQ4_NL      32 codes of one of 16 values, float16 scale                                                 4.5
    MXFP4       32 codes of one of 16 values, scale 2^n (mxfp4.py; codes in another order)                 4.25
    Q2_K        256 codes; 4-bit scale and offset per 16 codes, float16 scales for both                     2.6
    Q3_K        256 codes; 6-bit scale per 16 codes, float16 scale                                          3.4
    Q4_K, Q5_K  256 codes; 6-bit scale and offset per 32 codes, float16 scales for both                4.5, 5.5
    Q6_K        256 codes; 8-bit scale per 16 codes, float16 scale                                          6.6
    IQ4_XS      256 codes as IQ4_NL's; 6-bit scale per 32 codes, float16 scale                             4.25

Source: ggml/src/ggml-common.h and ggml-quants.c. The C decoder's implementation is in
native/blocks.h and k_quants.h.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from weights_map.mxfp4 import SIZES

# The levels of IQ4_NL and IQ4_XS.
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


class Blocks(NamedTuple):
    """A weight (out, in) in the file's format. rows: (out, bytes) uint8.    type: a key of `TYPES`."""

    type: str
    rows: Tensor


class Type(NamedTuple):
    """A block format. size: weights per block.    width: bytes per block.    unpack: (…, width) to
    (…, size).
    """

    size: int
    width: int
    unpack: Callable[[Tensor], Tensor]


def unpack_rows(rows: Tensor, name: str) -> Tensor:
    """Dequantize rows (…, bytes) to float32 weights (…, in)."""
    type = TYPES[name]
    return type.unpack(rows.unflatten(-1, (-1, type.width))).flatten(-2)


def float16_at(blocks: Tensor, offset: int) -> Tensor:
    """The float16 value at a byte offset of each block, as float32 (…, 1)."""
    return blocks[..., offset : offset + 2].contiguous().view(torch.float16).float()


def unpack_halves(codes: Tensor) -> Tensor:
    """The low halves of all bytes, then the high halves."""
    return torch.cat((codes & 15, codes >> 4), dim=-1)


def unpack_bits(codes: Tensor) -> Tensor:
    """Each byte's bits, the lowest first, as (…, 8 * bytes)."""
    return (
        codes.unsqueeze(-1) >> torch.arange(8, device=codes.device, dtype=torch.uint8) & 1
    ).flatten(-2)


def q8_0(blocks: Tensor) -> Tensor:
    return float16_at(blocks, 0) * blocks[..., 2:].view(torch.int8).float()


def q4_0(blocks: Tensor) -> Tensor:
    return float16_at(blocks, 0) * (unpack_halves(blocks[..., 2:]).float() - 8)


def q4_1(blocks: Tensor) -> Tensor:
    return float16_at(blocks, 0) * unpack_halves(blocks[..., 4:]).float() + float16_at(blocks, 2)


def q5_0(blocks: Tensor) -> Tensor:
    codes = unpack_halves(blocks[..., 6:]) | unpack_bits(blocks[..., 2:6]) << 4
    return float16_at(blocks, 0) * (codes.float() - 16)


def q5_1(blocks: Tensor) -> Tensor:
    codes = unpack_halves(blocks[..., 8:]) | unpack_bits(blocks[..., 4:8]) << 4
    return float16_at(blocks, 0) * codes.float() + float16_at(blocks, 2)


def scales_and_offsets(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and offsets (…, 8, 1) of 32 weights each. Bytes 4 to 15 contain 6 bits of each."""
    first, second, third = blocks[..., 4:16].unflatten(-1, (3, 4)).unbind(-2)
    scales = torch.cat((first & 63, (third & 15) | (first >> 6 << 4)), dim=-1)
    offsets = torch.cat((second & 63, (third >> 4) | (second >> 6 << 4)), dim=-1)
    return (float16_at(blocks, 0) * scales).unsqueeze(-1), (
        float16_at(blocks, 2) * offsets
    ).unsqueeze(-1)


def four_bits(codes: Tensor) -> Tensor:
    """128 bytes to codes (…, 8, 32): for each 32 bytes, the low halves, then the high halves."""
    return unpack_halves(codes.unflatten(-1, (4, 32))).flatten(-2).unflatten(-1, (8, 32))


def q4_k(blocks: Tensor) -> Tensor:
    scales, offsets = scales_and_offsets(blocks)
    return (scales * four_bits(blocks[..., 16:]) - offsets).flatten(-2)


def q5_k(blocks: Tensor) -> Tensor:
    scales, offsets = scales_and_offsets(blocks)
    fifth = unpack_bits(blocks[..., 16:48]).unflatten(-1, (32, 8)).transpose(-1, -2)
    return (scales * (four_bits(blocks[..., 48:]) | fifth << 4) - offsets).flatten(-2)


def q6_k(blocks: Tensor) -> Tensor:
    low = unpack_halves(blocks[..., :128].unflatten(-1, (2, 64)))  # (…, 2, 128)
    shifts = torch.arange(0, 8, 2, device=blocks.device, dtype=torch.uint8).view(4, 1)
    high = (blocks[..., 128:192].unflatten(-1, (2, 1, 32)) >> shifts & 3).flatten(-2)
    codes = (low | high << 4).float() - 32
    scales = float16_at(blocks, 208) * blocks[..., 192:208].view(torch.int8).float()
    return (codes.flatten(-2).unflatten(-1, (16, 16)) * scales.unsqueeze(-1)).flatten(-2)


def q2_k(blocks: Tensor) -> Tensor:
    both = blocks[..., :16]
    scales, offsets = (
        float16_at(blocks, at) * part for at, part in ((80, both & 15), (82, both >> 4))
    )
    codes = two_bits(blocks[..., 16:80]).unflatten(-1, (16, 16))
    return (scales.unsqueeze(-1) * codes - offsets.unsqueeze(-1)).flatten(-2)


def q3_k(blocks: Tensor) -> Tensor:
    third = unpack_bits(blocks[..., :32]).unflatten(-1, (32, 8)).transpose(-1, -2).flatten(-2)
    codes = (two_bits(blocks[..., 32:96]) | third << 2).float() - 4
    low, high = unpack_halves(blocks[..., 96:104]), blocks[..., 104:108]
    scales = (
        low | torch.cat([high >> shift & 3 for shift in (0, 2, 4, 6)], dim=-1) << 4
    ).float() - 32
    return (
        codes.unflatten(-1, (16, 16)) * (float16_at(blocks, 108) * scales).unsqueeze(-1)
    ).flatten(-2)


def two_bits(codes: Tensor) -> Tensor:
    """64 bytes to codes (…, 256): for each 32 bytes, the lowest two bits of all, then the next two."""
    parts = codes.unflatten(-1, (2, 32))
    return torch.stack([parts >> shift & 3 for shift in (0, 2, 4, 6)], dim=-2).flatten(-3)


def iq4_nl(blocks: Tensor) -> Tensor:
    return float16_at(blocks, 0) * levels(unpack_halves(blocks[..., 2:]), IQ4)


def iq4_xs(blocks: Tensor) -> Tensor:
    low = torch.stack((blocks[..., 4:8] & 15, blocks[..., 4:8] >> 4), dim=-1).flatten(-2)
    high = torch.cat(
        [blocks[..., 2 + part, None] >> shift & 3 for part in (0, 1) for shift in (0, 2, 4, 6)],
        dim=-1,
    )
    scales = (float16_at(blocks, 0) * ((low | high << 4).float() - 32)).unsqueeze(-1)
    return (scales * levels(unpack_halves(blocks[..., 8:].unflatten(-1, (8, 16))), IQ4)).flatten(-2)


def mxfp4(blocks: Tensor) -> Tensor:
    # of a float32, for twice the values; 0 and 1 are below the smallest exponent
    exponents = blocks[..., :1].int()
    scales = torch.where(exponents < 2, 2**21 << exponents, (exponents - 1) << 23).view(
        torch.float32
    )
    return scales * (
        2 * levels(unpack_halves(blocks[..., 1:]), (*SIZES, *(-size for size in SIZES)))
    )


def levels(codes: Tensor, values: Sequence[float]) -> Tensor:
    """The values of codes."""
    return torch.tensor(values, dtype=torch.float32, device=codes.device)[codes.int()]


TYPES = {
    "Q8_0": Type(32, 34, q8_0),
    "Q4_0": Type(32, 18, q4_0),
    "Q4_1": Type(32, 20, q4_1),
    "Q5_0": Type(32, 22, q5_0),
    "Q5_1": Type(32, 24, q5_1),
    "IQ4_NL": Type(32, 18, iq4_nl),
    "MXFP4": Type(32, 17, mxfp4),
    "Q2_K": Type(256, 84, q2_k),
    "Q3_K": Type(256, 110, q3_k),
    "Q4_K": Type(256, 144, q4_k),
    "Q5_K": Type(256, 176, q5_k),
    "Q6_K": Type(256, 210, q6_k),
    "IQ4_XS": Type(256, 136, iq4_xs),
}
