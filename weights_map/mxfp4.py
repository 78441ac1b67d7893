"""MXFP4, the 4-bit floating-point format of GPT-OSS's experts.

A 4-bit value is a sign and one of eight magnitudes. Each block of 32 values shares a scale, which
is a power of two.

Two layouts contain the same codes and scales:

    Hub     blocks (…, in / 32, 16), two adjacent values per byte, and scales (…, in / 32)
    GGUF    rows (…, 17 · in / 32): for each block its scale, then 16 bytes with values j and j + 16

Source: Open Compute Project (2023), "OCP Microscaling Formats (MX) Specification", version 1.0.
"""

import torch
from torch import Tensor

SIZES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
BIAS = 127  # of the scale's exponent
NAN_SCALE = 255  # marks a block of NaN


def unpack_mxfp4(blocks: Tensor, scales: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Dequantize the weights of E experts to (E, in, out), for x (…, in) @ weights.

    Args:
        blocks: (E, out, in / 32, 16) uint8, two values per byte, the first in the low half.
        scales: (E, out, in / 32) uint8, the exponent plus 127.
        dtype: of the result.

    Raises:
        ValueError: other shapes or dtypes.
    """
    if (
        blocks.dtype != torch.uint8
        or scales.dtype != torch.uint8
        or blocks.shape != (*scales.shape, 16)
    ):
        raise ValueError(
            "MXFP4 experts must be blocks (E, out, in / 32, 16) and scales (E, out, in / 32), both uint8, not "
            f"{tuple(blocks.shape)} {blocks.dtype} and {tuple(scales.shape)} {scales.dtype}"
        )
    E, out, block_count, _ = blocks.shape
    values_of = torch.tensor(
        SIZES + tuple(-size for size in SIZES), dtype=dtype, device=blocks.device
    )
    weights = torch.empty(E, block_count * 32, out, dtype=dtype, device=blocks.device)
    # one at a time: intermediate tensors are several times larger than the result
    for expert in range(E):
        # (out, block_count, 16, 2)
        codes = torch.stack((blocks[expert] & 15, blocks[expert] >> 4), dim=-1)
        values = values_of[codes.int()].flatten(-2)  # (out, block_count, 32)
        exponents = scales[expert].int().unsqueeze(-1) - BIAS  # (out, block_count, 1)
        weights[expert] = torch.ldexp(values, exponents).flatten(-2).t()
    return weights


def to_gguf(blocks: Tensor, scales: Tensor) -> Tensor:
    """GGUF's rows (E, out, 17 · in / 32) of blocks (E, out, in / 32, 16) and scales (E, out, in /
    32), all uint8.
    """
    rows = blocks.new_empty(*scales.shape, 17)
    for expert in range(len(blocks)):  # intermediate tensors are larger than the result
        # (out, in / 32, 32)
        codes = torch.stack((blocks[expert] & 15, blocks[expert] >> 4), dim=-1).flatten(-2)
        rows[expert, ..., 1:] = codes[..., :16] | codes[..., 16:] << 4
    rows[..., 0] = scales
    return rows.flatten(-2)


def from_gguf(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks (E, out, in / 32, 16) and scales (E, out, in / 32) of GGUF's rows (E, out, 17 · in /
    32), all uint8.
    """
    rows = rows.unflatten(-1, (-1, 17))
    blocks = rows.new_empty(*rows.shape[:-1], 16)
    for expert in range(len(rows)):
        halves = rows[expert, ..., 1:]
        first, second = (
            torch.cat((halves & 15, halves >> 4), dim=-1).unflatten(-1, (16, 2)).unbind(-1)
        )
        blocks[expert] = first | second << 4
    return blocks, rows[..., 0].contiguous()
