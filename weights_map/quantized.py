"""Quantized weights of the Hub's checkpoints: dequantization to float32, and their integers as GGUF's
blocks.

    form            tensors of a weight (out, in), by the end of their names              weight
    Scaled          "weight" in FP8 or 8-bit integers; "_scale" or "_scale_inv" for the
                    tensor, each output, group of inputs, or block                scale * code
    GPTQ            "qweight" (in, out) packed along the inputs; "scales" and
                    "qzeros" (groups, out); "g_idx": the group of each input      scale * (code - zero)
    AWQ             the same, packed along the outputs in another order, without
                    "g_idx"                                                       scale * (code - zero)
    PackedIntegers  "weight_packed" (out, in), "weight_scale" (out, groups),
                    "weight_shape"; "weight_zero_point" packed along the outputs  scale * (code - zero)

Products are computed in float32 and rounded once, to the requested dtype. The references compute in
the dtype of the scales, where each product is rounded once, too: the values are equal in this dtype.

Sources: transformers' integrations/finegrained_fp8.py; compressed-tensors' compressors; AutoGPTQ's
qlinear_cuda.py and gptqmodel's conversion between gptq and gptq_v2; AutoAWQ's packing_utils.py.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from weights_map.blocks import Blocks, float16_at

Parts = Mapping[str, Tensor]  # role -> tensor
Names = Mapping[str, tuple[str, ...]]  # role -> ends of the name, in the order of preference
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
INTEGERS = (torch.int32, torch.int64)
# The block types with integers times a scale, the fewest bits first, and the range of the integers.
RANGES = {"Q4_0": (-8, 7), "Q5_0": (-16, 15), "Q8_0": (-128, 127)}
TERNARY = {"TQ1_0": 52, "TQ2_0": 64}  # GGUF's types with -1, 0 and 1, and the offset of a scale


class Levels(NamedTuple):
    """A weight (out, in) of integers times scales.

    values: (out, in) int16.    scales: (out, groups) in float.    groups: of each input (in,); None
    if groups are consecutive and have one size.
    """

    values: Tensor
    scales: Tensor
    groups: Tensor | None = None


class WeightForm(ABC):
    """The tensors that a quantized weight consists of.

    codes: end of the name of the codes, which `target` replaces in the name of the weight.
    required, optional: further tensors.    integers: whether the codes are integers.
    dtypes: of the tensors with one of a few dtypes, by role.
    """

    codes: ClassVar[str]
    target: ClassVar[str]
    required: ClassVar[Names]
    optional: ClassVar[Names] = {}
    dtypes: ClassVar[Mapping[str, Sequence[torch.dtype]]] = {
        "codes": (torch.int32,),
        "zeros": (torch.int32,),
        "groups": INTEGERS,
        "shape": INTEGERS,
    }
    integers: bool = True

    def applies(self, name: str, tensor: Tensor) -> bool:
        """Whether a stored tensor has the codes of a weight in this form."""
        return name.endswith(self.codes)

    def check_dtypes(self, parts: Parts) -> None:
        """ValueError: a part has another dtype, so that its bytes are not what the form describes."""
        for role, tensor in parts.items():
            dtypes = self.dtypes.get(role, (tensor.dtype,))
            if tensor.dtype not in dtypes:
                raise ValueError(
                    f"its {role} have the dtype {name_of(tensor.dtype)}, not"
                    f" {' or '.join(map(name_of, dtypes))}"
                )

    @abstractmethod
    def shape(self, parts: Parts) -> tuple[int, ...]:
        """The shape of the weight, from the shapes of its parts. ValueError: they do not fit."""

    @abstractmethod
    def levels(self, parts: Parts) -> Levels | None:
        """The integers of a weight; None if its codes are floats."""

    @abstractmethod
    def describe(self, parts: Parts) -> str:
        """The format of the codes, for reports."""

    def weight(self, parts: Parts) -> Tensor:
        """The weight in float32."""
        levels = self.levels(parts)
        assert levels is not None
        return dequantize(levels)


@dataclass(frozen=True)
class Scaled(WeightForm):
    """FP8 or 8-bit integers. block: outputs and inputs of a scale, if there are blocks or groups."""

    codes: ClassVar[str] = ""
    target: ClassVar[str] = ""
    required: ClassVar[Names] = {"scale": ("_scale_inv", "_scale")}
    optional: ClassVar[Names] = {"zeros": ("_zero_point",)}
    dtypes: ClassVar[Mapping[str, Sequence[torch.dtype]]] = {}

    block: tuple[int, int] | None = None
    integers: bool = False

    def applies(self, name: str, tensor: Tensor) -> bool:
        dtypes = (torch.int8,) if self.integers else FLOAT8
        return tensor.dtype in dtypes and not name.endswith("_zero_point")

    def shape(self, parts: Parts) -> tuple[int, ...]:
        self.spans(parts)
        if "zeros" in parts and parts["zeros"].numel() != parts["scale"].numel():
            check_shape("zero point", parts["zeros"], parts["scale"].shape)
        return tuple(parts["codes"].shape)

    def spans(self, parts: Parts) -> tuple[int, int]:
        """The outputs and inputs of a scale."""
        shape, scale = parts["codes"].shape, tuple(parts["scale"].shape)
        if len(shape) < 2:
            raise ValueError(f"the weight has the shape {tuple(shape)}, which is not a matrix")
        *experts, rows, columns = shape
        if math.prod(scale) == math.prod(experts):
            return rows, columns
        if scale in ((*experts, rows), (*experts, rows, 1)):
            return 1, columns
        if self.block is not None:
            grid = (-(-rows // self.block[0]), -(-columns // self.block[1]))
            if scale == (*experts, *grid):
                return self.block
        blocks = "" if self.block is None else f" or blocks of {' x '.join(map(str, self.block))}"
        raise ValueError(
            f"the scale has the shape {scale}, which does not fit a weight {tuple(shape)} with a"
            f" scale for all, for each output{blocks}"
        )

    def grid(self, parts: Parts, role: str) -> Tensor:
        """Scales or zero points (…, rows, columns) of blocks."""
        *experts, rows, columns = parts["codes"].shape
        height, width = self.spans(parts)
        return parts[role].view(*experts, -(-rows // height), -(-columns // width))

    def weight(self, parts: Parts) -> Tensor:
        rows, columns = parts["codes"].shape[-2:]
        height, width = self.spans(parts)
        result = parts["codes"].float()
        if "zeros" in parts:
            zeros = spread(self.grid(parts, "zeros").float(), height, rows)
            each_block(result, zeros, width, columns, torch.Tensor.sub_)
        scales = spread(floats(self.grid(parts, "scale")), height, rows)
        each_block(result, scales, width, columns, torch.Tensor.mul_)
        return result

    def levels(self, parts: Parts) -> Levels | None:
        codes = parts["codes"]
        height, width = self.spans(parts)
        if not self.integers or codes.dim() != 2 or codes.size(1) % width:
            return None
        values = codes.short()
        if "zeros" in parts:
            zeros = spread(self.grid(parts, "zeros").short(), height, codes.size(0))
            values = values - zeros.repeat_interleave(width, 1)
        return Levels(values, spread(floats(self.grid(parts, "scale")), height, codes.size(0)))

    def describe(self, parts: Parts) -> str:
        return name_of(parts["codes"].dtype)


@dataclass(frozen=True)
class GPTQ(WeightForm):
    """Integers of 4 or 8 bits, with groups of inputs.

    group: inputs of a group; None for all.    offset: added to the stored zero points.
    """

    codes: ClassVar[str] = ".qweight"
    target: ClassVar[str] = ".weight"
    required: ClassVar[Names] = {"scales": (".scales",), "zeros": (".qzeros",)}
    optional: ClassVar[Names] = {"groups": (".g_idx",)}

    group: int | None
    offset: int

    def shape(self, parts: Parts) -> tuple[int, ...]:
        check_matrices(parts, "codes", "scales", "zeros")
        groups, outputs = parts["scales"].shape
        bits = self.bits(parts)
        inputs = parts["codes"].size(0) * 32 // bits
        check_shape("qweight", parts["codes"], (inputs * bits // 32, outputs))
        check_shape("qzeros", parts["zeros"], (groups, outputs * bits // 32))
        if "groups" in parts:
            check_shape("g_idx", parts["groups"], (inputs,))
        else:
            check_groups(groups, inputs, self.group)
        return outputs, inputs

    def bits(self, parts: Parts) -> int:
        """The bits of a code. gptqmodel has 4 in some layers of a model, and 8 in others."""
        bits = parts["zeros"].size(1) * 32 / max(1, parts["scales"].size(1))
        if bits not in (4, 8):
            raise ValueError(f"the codes have {bits:g} bits; supported are 4 and 8")
        return int(bits)

    def levels(self, parts: Parts) -> Levels:
        bits = self.bits(parts)
        codes = unpack(parts["codes"].T, bits)
        zeros = (unpack(parts["zeros"], bits).T + self.offset) & (2**bits - 1)
        groups = input_groups(parts.get("groups"), codes.size(1), self.group, zeros.size(1))
        return centered(codes, zeros, parts["scales"].T, groups)

    def describe(self, parts: Parts) -> str:
        return f"gptq, {self.bits(parts)} bits"


@dataclass(frozen=True)
class AWQ(WeightForm):
    """Integers of 4 bits. group: inputs of a group; None for all.

    Eight outputs of a word are in the order 0, 2, 4, 6, 1, 3, 5, 7 of the gemm kernel.
    """

    codes: ClassVar[str] = ".qweight"
    target: ClassVar[str] = ".weight"
    required: ClassVar[Names] = {"scales": (".scales",), "zeros": (".qzeros",)}

    group: int | None

    def shape(self, parts: Parts) -> tuple[int, ...]:
        check_matrices(parts, "codes", "scales", "zeros")
        inputs, outputs = parts["codes"].size(0), parts["codes"].size(1) * 8
        groups = parts["scales"].size(0)
        check_shape("scales", parts["scales"], (groups, outputs))
        check_shape("qzeros", parts["zeros"], (groups, outputs // 8))
        check_groups(groups, inputs, self.group)
        return outputs, inputs

    def levels(self, parts: Parts) -> Levels:
        codes, zeros = (
            unpack(parts[role], 4)
            .unflatten(1, (-1, 2, 4))
            .transpose(2, 3)
            .flatten(1)
            .T.contiguous()
            for role in ("codes", "zeros")
        )
        groups = input_groups(None, codes.size(1), self.group, zeros.size(1))
        return centered(codes, zeros, parts["scales"].T, groups)

    def describe(self, parts: Parts) -> str:
        return "awq, 4 bits"


@dataclass(frozen=True)
class PackedIntegers(WeightForm):
    """compressed-tensors' integers of 4 or 8 bits. group: inputs of a group; None for all."""

    codes: ClassVar[str] = ".weight_packed"
    target: ClassVar[str] = ".weight"
    required: ClassVar[Names] = {"scale": (".weight_scale",), "shape": (".weight_shape",)}
    optional: ClassVar[Names] = {
        "zeros": (".weight_zero_point",),
        "groups": (".weight_g_idx",),
    }

    group: int | None

    def shape(self, parts: Parts) -> tuple[int, ...]:
        check_matrices(parts, "codes")
        sizes = tuple(parts["shape"].flatten().long().tolist())
        if len(sizes) != 2 or sizes[0] != parts["codes"].size(0):
            raise ValueError(
                f"weight_shape is {sizes}, and weight_packed has {parts['codes'].size(0)} rows"
            )
        outputs, inputs = sizes
        bits, groups = self.bits(parts), self.groups(parts)
        if "zeros" in parts:
            check_shape("zero point", parts["zeros"], (-(-outputs * bits // 32), groups))
        if "groups" in parts:
            check_shape("g_idx", parts["groups"], (inputs,))
        else:
            check_groups(groups, inputs, None if groups == 1 else self.group)
        return outputs, inputs

    def bits(self, parts: Parts) -> int:
        """The bits of a code."""
        inputs, words = int(parts["shape"].flatten().long()[1]), parts["codes"].size(1)
        for bits in (4, 8):
            if words == -(-inputs * bits // 32):
                return bits
        raise ValueError(
            f"weight_packed has {words} words for {inputs} inputs; supported are 4 and 8 bits"
        )

    def groups(self, parts: Parts) -> int:
        """The number of groups."""
        scale, outputs = parts["scale"], parts["codes"].size(0)
        if scale.numel() == 1:
            return 1
        if scale.dim() not in (1, 2) or scale.size(0) != outputs:
            raise ValueError(
                f"the scale has the shape {tuple(scale.shape)}, and the weight {outputs} outputs"
            )
        return scale.numel() // max(1, outputs)

    def levels(self, parts: Parts) -> Levels:
        outputs, inputs = parts["shape"].flatten().long().tolist()
        bits, groups = self.bits(parts), self.groups(parts)
        codes = unpack(parts["codes"], bits)[:, :inputs]
        scales = parts["scale"].expand(outputs, 1) if groups == 1 else parts["scale"]
        if groups == 1 and parts["scale"].numel() == outputs:
            scales = parts["scale"].view(outputs, 1)
        if "zeros" in parts:
            zeros = unpack(parts["zeros"].T, bits)[:, :outputs].T
        else:
            zeros = codes.new_full((outputs, groups), 2 ** (bits - 1))
        index = parts.get("groups")
        if index is not None and bool((index == -1).all()):  # no order
            index = None
        size = None if groups == 1 else self.group
        return centered(codes, zeros, scales, input_groups(index, inputs, size, groups))

    def describe(self, parts: Parts) -> str:
        return "packed integers"


def name_of(dtype: torch.dtype) -> str:
    """A dtype's name."""
    return str(dtype).removeprefix("torch.")


def check_matrices(parts: Parts, *roles: str) -> None:
    """ValueError: a part is not a matrix."""
    for role in roles:
        if parts[role].dim() != 2:
            raise ValueError(f"its {role} have the shape {tuple(parts[role].shape)}, not a matrix")


def check_shape(name: str, tensor: Tensor, expected: Sequence[int]) -> None:
    """ValueError: the tensor has another shape."""
    if tuple(tensor.shape) != tuple(expected):
        raise ValueError(f"its {name} has the shape {tuple(tensor.shape)}, not {tuple(expected)}")


def check_groups(groups: int, inputs: int, size: int | None) -> None:
    """ValueError: another number of groups than the inputs have. size: of a group; None for all."""
    expected = 1 if size is None else -(-inputs // size)
    if groups != expected:
        raise ValueError(
            f"it has scales for {groups} groups; {inputs} inputs in groups of {size or inputs} have"
            f" {expected}"
        )


def unpack(words: Tensor, bits: int) -> Tensor:
    """The codes (rows, columns) of 32-bit words (rows, words), from the lowest bits, as int16."""
    codes = words.contiguous().view(torch.uint8)
    if bits == 4:
        codes = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2)
    return codes.short()


def input_groups(index: Tensor | None, inputs: int, size: int | None, groups: int) -> Tensor | None:
    """The group of each input; None if groups are consecutive and have one size.

    index: as stored.    ValueError: it names a group that does not exist.
    """
    consecutive = torch.arange(inputs) // (size or inputs)
    if index is not None and not torch.equal(index.long(), consecutive):
        if bool(((index < 0) | (index >= groups)).any()):
            raise ValueError(f"g_idx names a group that is not one of {groups}")
        return index.long()
    return None if groups * (size or inputs) == inputs else consecutive


def centered(codes: Tensor, zeros: Tensor, scales: Tensor, groups: Tensor | None) -> Levels:
    """The levels of codes (out, in) and zero points (out, groups)."""
    if groups is None:
        values = (codes.unflatten(1, (zeros.size(1), -1)) - zeros.unsqueeze(2)).flatten(1)
    else:
        values = codes - zeros[:, groups]
    return Levels(values, scales, groups)


def dequantize(levels: Levels) -> Tensor:
    """The weight (out, in) in float32."""
    values, scales = levels.values.float(), levels.scales.float()
    if levels.groups is not None:
        return values * scales[:, levels.groups]
    return (values.unflatten(1, (scales.size(1), -1)) * scales.unsqueeze(2)).flatten(1)


def floats(scales: Tensor) -> Tensor:
    """Scales in float32. Bytes are exponents of 2, as in MXFP8."""
    if scales.dtype == torch.uint8:
        scales = scales.view(torch.float8_e8m0fnu)
    return scales.float()


def spread(grid: Tensor, height: int, rows: int) -> Tensor:
    """Repeat the values of each block for all of its rows."""
    return grid.repeat_interleave(height, -2)[..., :rows, :]


def each_block(
    weight: Tensor,
    grid: Tensor,
    width: int,
    columns: int,
    apply: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """Apply an operation in place to each row of each block, without a grid of the weight's size."""
    full = columns // width
    apply(weight[..., : full * width].unflatten(-1, (full, width)), grid[..., :full].unsqueeze(-1))
    if columns % width:
        apply(weight[..., full * width :], grid[..., full:])


def block_type(levels: Levels) -> str | None:
    """The block type with the fewest bits that has exactly this weight; None without such a type."""
    inputs, scales = levels.values.size(1), levels.scales
    if levels.groups is not None or inputs % (32 * scales.size(1)):
        return None
    if not torch.equal(scales.half().float(), scales.float()):  # also if one is not a number
        return None
    low, high = (int(value) for value in levels.values.aminmax())
    fitting = (type for type, (least, most) in RANGES.items() if least <= low and high <= most)
    return next(fitting, None)


def to_blocks(levels: Levels, type: str) -> Blocks:
    """The weight in blocks of a type of `RANGES`."""
    inputs, groups = levels.values.size(1), levels.scales.size(1)
    scales = levels.scales.half().repeat_interleave(inputs // groups // 32, 1)
    heads = scales.contiguous().unsqueeze(2).view(torch.uint8)
    values = levels.values.unflatten(1, (-1, 32))
    if type == "Q8_0":
        parts = [heads, values.to(torch.int8).view(torch.uint8)]
    else:
        codes = (values - RANGES[type][0]).to(torch.uint8)
        parts = [heads, codes[..., :16] & 15 | codes[..., 16:] << 4]
        if type == "Q5_0":
            parts.insert(1, gathered_bits(codes >> 4))
    return Blocks(type, torch.cat(parts, dim=2).flatten(1))


def gathered_bits(values: Tensor) -> Tensor:
    """Zeros and ones (…, 8 n) uint8 as bits (…, n), the lowest bit first."""
    # The product has the bit of byte i at 56 + i, from the term of 2 ** (56 - 7 * i).
    product = values.contiguous().view(torch.int64) * 0x0102040810204080
    return (product >> 56 & 255).to(torch.uint8)


def ternary_levels(rows: Tensor, weights: Tensor, type: str) -> Levels:
    """The levels of rows (out, bytes) in a type of `TERNARY` with dequantized weights (out, in)."""
    scales = float16_at(rows.unflatten(1, (-1, TERNARY[type] + 2)), TERNARY[type]).squeeze(2)
    values = weights.unflatten(1, (scales.size(1), -1)) / scales.unsqueeze(2)
    # corrupt or zero scales give other weights or zeros
    return Levels(values.nan_to_num(0, 0, 0).round().clamp(-8, 7).flatten(1).short(), scales)
