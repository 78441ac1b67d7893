"""MXFP4, the 4-bit floating point in which GPT-OSS's files hold the weights of their experts.

Each number of 4 bits is a sign and one of the eight sizes below. 32 of them share a scale, a power of two.
Source: Open Compute Project (2023), "OCP Microscaling Formats (MX) Specification", version 1.0.
"""

import torch
from torch import Tensor

SIZES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
BIAS = 127  # of the exponent that a scale is
NAN_SCALE = 255  # no exponent: the 32 numbers are NaN


def unpack_mxfp4(blocks: Tensor, scales: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """The weights (E, in, out) of E experts, as GPT-OSS multiplies by them: x (…, in) @ weights.

    blocks: (E, out, in / 32, 16) uint8, two numbers a byte, the first in its low half.
    scales: (E, out, in / 32) uint8, the exponent of two plus 127.
    ValueError: shapes or dtypes that are not these.
    """
    if blocks.dtype != torch.uint8 or scales.dtype != torch.uint8 or blocks.shape != (*scales.shape, 16):
        raise ValueError(
            f"MXFP4 is blocks (E, out, in / 32, 16) and scales (E, out, in / 32), both uint8, not "
            f"{tuple(blocks.shape)} {blocks.dtype} and {tuple(scales.shape)} {scales.dtype}"
        )
    E, out, groups, _ = blocks.shape
    numbers = torch.tensor(SIZES + tuple(-size for size in SIZES), dtype=dtype, device=blocks.device)
    weights = torch.empty(E, groups * 32, out, dtype=dtype, device=blocks.device)
    for expert in range(E):  # one by one: what lies between is several times as large as the result
        pairs = torch.stack((blocks[expert] & 15, blocks[expert] >> 4), dim=-1)  # (out, groups, 16, 2)
        values = numbers[pairs.int()].flatten(-2)  # (out, groups, 32)
        exponents = scales[expert].int().unsqueeze(-1) - BIAS  # (out, groups, 1)
        weights[expert] = torch.ldexp(values, exponents).flatten(-2).t()
    return weights
