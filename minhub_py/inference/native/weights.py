"""Pointers to a model's weights for the C decoder.

Weights remain where PyTorch stores them: in floats, quantized, or in a mapped file's blocks.
"""

import ctypes
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.inference.native.library import BLOCKS, DTYPES, MXFP4, Matrix, UnsupportedError
from minhub_py.inference.quantize import Quantized
from minhub_py.models.experts import ExpertMatrices, ExpertWeights, Packed
from minhub_py.models.layers import EmbeddingLayer, HeadLayerNorm, RMSNorm
from minhub_py.models.lora import LoRALinear

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


class Weights:
    """Describes weights as `Matrix`. UnsupportedError: a dtype or memory layout without a C
    implementation.

    by_columns: compute products with float32 weights for many tokens, as texts of an encoder have.
    references, arrays: tensors and arrays to which the pointers point.    width: the largest number
    of inputs so far.
    formats: of the matrices, numbers of `DTYPES` and `BLOCKS`.
    """

    def __init__(self, by_columns: bool = False) -> None:
        self.by_columns = by_columns
        self.references: list[Tensor] = []
        self.arrays: list[ctypes.Array[ctypes.c_void_p]] = []
        self.formats: set[int] = set()
        self.width = 0

    def factor(self, norm: RMSNorm | None) -> int | None:
        """A pointer to an RMS norm's factor."""
        return None if norm is None else self.floats(norm.weight.float() + norm.offset)

    def head_factor(self, norm: RMSNorm | HeadLayerNorm | nn.LayerNorm | None) -> int | None:
        """A pointer to the factor of a norm of heads; a layer norm's is followed by its bias, zeros
        for each head, or the bias of all heads.
        """
        if isinstance(norm, nn.LayerNorm):
            return self.floats(torch.cat((norm.weight, norm.bias)).float())
        if not isinstance(norm, HeadLayerNorm):
            return self.factor(norm)
        return self.floats(F.pad(norm.weight.float().flatten(), (0, norm.weight.size(1))))

    def matrix(self, source: Any) -> Matrix:
        """A layer's weight, or a weight. A layer's adapter is merged."""
        if isinstance(source, LoRALinear):
            if source.invocation is not None:
                raise UnsupportedError("an activated adapter of this layer")
            source = source.weight.detach()
        is_quantized = isinstance(source, Quantized)
        weight = (
            source.codes
            if is_quantized
            else source
            if isinstance(source, Tensor)
            else source.weight
        )
        check_memory(weight)
        if weight.dtype not in DTYPES:
            raise UnsupportedError(f"a weight in {weight.dtype}")
        rows, columns = source.shape if is_quantized else weight.shape
        self.width = max(self.width, columns)
        by_row, by_column = weight.stride()
        size = weight.element_size()
        dtype = (
            BLOCKS.get(source.kind, DTYPES[weight.dtype]) if is_quantized else DTYPES[weight.dtype]
        )
        matrix = Matrix(weight.data_ptr(), None, rows, columns, by_row * size, dtype, 0)
        if by_column != 1 and columns > 1:
            if by_row != 1 or weight.dtype != torch.float32:
                raise UnsupportedError(f"a weight with strides {weight.stride()}")
            matrix.stride, matrix.transposed = by_column * size, 1
        dense = weight.numel() // weight.size(1 if matrix.transposed else 0) * size
        if max(rows, columns) > 1 and matrix.stride < dense:
            raise UnsupportedError(f"a weight with strides {weight.stride()}")
        if is_quantized:
            matrix.scales = self.floats(source.scales)
            matrix.int8_inputs = source.int8_activations
        self.formats.add(dtype)
        matrix.by_columns = (
            self.by_columns and weight.dtype == torch.float32 and not matrix.transposed
        )
        self.references.append(weight.detach())
        return matrix

    def floats(self, vector: Tensor | None) -> int | None:
        """A pointer to a vector in float32."""
        if vector is None:
            return None
        check_memory(vector)
        self.references.append(vector.detach().float().contiguous())
        return self.references[-1].data_ptr()

    def contiguous(self, tensor: Tensor, *dtypes: torch.dtype) -> Tensor:
        """A contiguous tensor with one of these dtypes."""
        check_memory(tensor)
        if tensor.dtype not in dtypes or not tensor.is_contiguous():
            raise UnsupportedError(
                f"weights of experts in {tensor.dtype} with strides {tensor.stride()}"
            )
        self.references.append(tensor.detach())
        return self.references[-1]

    def expert_pointers(self, weights: ExpertWeights) -> tuple[Matrix, tuple[list[int], list[int]]]:
        """The shape and format of the experts' matrices, and pointers to the data and scales of
        each.
        """
        matrix, tables = self._expert_pointers(weights)
        self.formats.add(matrix.dtype)
        return matrix, tables

    def _expert_pointers(
        self, weights: ExpertWeights
    ) -> tuple[Matrix, tuple[list[int], list[int]]]:
        shape = weights.shape[1:]
        if isinstance(weights, Quantized):
            rows, columns = shape
            codes = self.contiguous(weights.codes, torch.int8, torch.uint8)
            dtype, stride = BLOCKS.get(weights.kind, DTYPES[codes.dtype]), codes.size(2)
            matrix = Matrix(None, None, rows, columns, stride, dtype, 0)
            matrix.int8_inputs = weights.int8_activations
            if weights.kind in BLOCKS:
                return matrix, (pointers_into(codes), [])
            return matrix, (
                pointers_into(codes),
                pointers_into(self.contiguous(weights.scales, torch.float32)),
            )
        if isinstance(weights, ExpertMatrices):
            rows, columns = shape
            matrices = [self.contiguous(matrix, *FLOATS) for matrix in weights.parameters()]
            if len({matrix.dtype for matrix in matrices}) > 1:
                raise UnsupportedError("experts in different dtypes")
            dtype, stride = DTYPES[matrices[0].dtype], columns * matrices[0].element_size()
            return Matrix(None, None, rows, columns, stride, dtype, 0), (
                [m.data_ptr() for m in matrices],
                [],
            )
        columns, rows = shape
        if isinstance(weights, Packed):
            blocks, scales = (
                self.contiguous(weights.blocks, torch.uint8),
                self.contiguous(weights.scales, torch.uint8),
            )
            matrix = Matrix(None, None, rows, columns, columns // 2, MXFP4, 0)
            return matrix, (pointers_into(blocks), pointers_into(scales))
        assert isinstance(weights, Tensor)
        floats = self.contiguous(weights, *FLOATS)
        matrix = Matrix(
            None, None, rows, columns, rows * floats.element_size(), DTYPES[floats.dtype], 1
        )
        return matrix, (pointers_into(floats), [])

    def pointers(self, addresses: list[int]) -> int:
        """The address of an array of pointers."""
        self.arrays.append((ctypes.c_void_p * len(addresses))(*addresses))
        return ctypes.addressof(self.arrays[-1])


def pointers_into(tensor: Tensor) -> list[int]:
    """The address of each part of a contiguous tensor in its first dimension."""
    start, stride = tensor.data_ptr(), tensor.stride(0) * tensor.element_size()
    return [start + number * stride for number in range(tensor.size(0))]


def check_memory(tensor: Tensor) -> None:
    """UnsupportedError: the tensor is not a plain tensor in memory of the CPU."""
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
    if not plain or tensor.device.type != "cpu":
        raise UnsupportedError(
            f"a {type(tensor).__name__} ({tensor.layout}) on {tensor.device.type}"
        )


def rounded(scale: float, layer: EmbeddingLayer) -> float:
    """The factor of an embedding's rows, in their dtype."""
    dtype = layer.dtype if isinstance(layer, Quantized) else layer.weight.dtype
    return torch.tensor(scale, dtype=dtype).item()
