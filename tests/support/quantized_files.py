"""Folders with quantized weights in the Hub's formats, written from their specifications, and the
weights that the formats define.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from minhub_py import from_config, save_pretrained

Tensors = dict[str, Tensor]
# From a weight's name and values: the stored tensors, and the weight in float32.
Quantizer = Callable[[str, Tensor], tuple[Tensors, Tensor]]
LLAMA = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
}
F8 = torch.float8_e4m3fn


def generator(name: str) -> torch.Generator:
    return torch.Generator().manual_seed(sum(name.encode()))


def fp8(
    shape: Callable[[int, int], tuple[int, ...]],
    ends: tuple[str, ...] = ("_scale_inv",),
    dtype: torch.dtype = torch.float32,
) -> Quantizer:
    """Codes in FP8 with scales. shape: of the scales, for a weight's rows and columns."""

    def quantize(name: str, weight: Tensor) -> tuple[Tensors, Tensor]:
        sizes = shape(*weight.shape)
        scale = (torch.rand(sizes, generator=generator(name)) * 0.01 + 0.001).to(dtype)
        if dtype == torch.float8_e8m0fnu:
            scale = torch.full(sizes, 2.0**-7).to(dtype)
        codes = (weight * 100).to(F8)
        stored = {name + end: scale for end in ends[:1]}
        stored |= {name.removesuffix("weight") + end: torch.tensor([0.5]) for end in ends[1:]}
        grid = scale.view(-1, 1) if scale.dim() == 1 else scale
        reference = Fp8Dequantize(None)._dequantize_one(codes, grid, torch.float32)
        return {name: codes, **stored}, reference

    return quantize


def words(codes: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Codes (rows, columns) as 32-bit words (rows, columns * bits / 32). order: the column of each
    code of a word.
    """
    count = 32 // bits
    parts = codes.long().unflatten(1, (-1, count))
    total = torch.zeros(parts.shape[:2], dtype=torch.int64)
    for place, column in enumerate(order or range(count)):
        total |= parts[..., column] << (place * bits)
    return (total - (total >> 31 << 32)).to(torch.int32)  # two's complement


def groups(
    name: str, weight: Tensor, bits: int, size: int, symmetric: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Random codes (out, in), zero points and scales (out, groups)."""
    random, (outputs, inputs) = generator(name), weight.shape
    codes = torch.randint(0, 2**bits, (outputs, inputs), generator=random)
    shape = (outputs, inputs // size)
    scales = (torch.rand(shape, generator=random) * 0.1 / 2 ** (bits - 4) + 0.01).to(dtype)
    zeros = torch.randint(0, 2**bits, shape, generator=random)
    return codes, torch.full_like(zeros, 2 ** (bits - 1)) if symmetric else zeros, scales


def product(codes: Tensor, zeros: Tensor, scales: Tensor, index: Tensor) -> Tensor:
    return (codes - zeros[:, index]).float() * scales[:, index].float()


def gptq(
    bits: int = 4,
    size: int = 32,
    symmetric: bool = True,
    offset: int = 1,
    order: str = "stored",
) -> Quantizer:
    """offset: subtracted from the zero points.    order: of g_idx, "stored", "mixed" or "absent"."""

    def quantize(name: str, weight: Tensor) -> tuple[Tensors, Tensor]:
        inputs = weight.size(1)
        width = inputs if size == -1 else size
        codes, zeros, scales = groups(name, weight, bits, width, symmetric, torch.float16)
        index = torch.arange(inputs) // width
        if order == "mixed":
            index = index[torch.randperm(inputs, generator=generator(name))]
        stem = name.removesuffix("weight")
        stored = {
            f"{stem}qweight": words(codes, bits).T.contiguous(),
            f"{stem}qzeros": words((zeros.T - offset) % 2**bits, bits),
            f"{stem}scales": scales.T.contiguous(),
        }
        if order != "absent":
            stored[f"{stem}g_idx"] = index.to(torch.int32)
        return stored, product(codes, zeros, scales, index)

    return quantize


def awq(size: int = 32) -> Quantizer:
    def quantize(name: str, weight: Tensor) -> tuple[Tensors, Tensor]:
        width = weight.size(1) if size == -1 else size
        codes, zeros, scales = groups(name, weight, 4, width, False, torch.float16)
        stem, order = name.removesuffix("weight"), (0, 2, 4, 6, 1, 3, 5, 7)
        stored = {
            f"{stem}qweight": words(codes.T, 4, order),
            f"{stem}qzeros": words(zeros.T, 4, order),
            f"{stem}scales": scales.T.contiguous(),
        }
        return stored, product(codes, zeros, scales, torch.arange(weight.size(1)) // width)

    return quantize


def packed(bits: int = 4, size: int = 32, symmetric: bool = True) -> Quantizer:
    def quantize(name: str, weight: Tensor) -> tuple[Tensors, Tensor]:
        width = weight.size(1) if size == -1 else size
        codes, zeros, scales = groups(name, weight, bits, width, symmetric, torch.bfloat16)
        stored = {
            f"{name}_packed": words(codes, bits),
            f"{name}_scale": scales,
            f"{name}_shape": torch.tensor(weight.shape),
        }
        if not symmetric:
            stored[f"{name}_zero_point"] = words(zeros.T, bits).T.contiguous()
        return stored, product(codes, zeros, scales, torch.arange(weight.size(1)) // width)

    return quantize


def int8(size: int | None = None, symmetric: bool = True) -> Quantizer:
    def quantize(name: str, weight: Tensor) -> tuple[Tensors, Tensor]:
        width = size or weight.size(1)
        codes, zeros, scales = groups(name, weight, 8, width, symmetric, torch.bfloat16)
        stored = {name: (codes - 128).to(torch.int8), f"{name}_scale": scales}
        if not symmetric:
            stored[f"{name}_zero_point"] = (zeros - 128).to(torch.int8)
        return stored, product(codes, zeros, scales, torch.arange(weight.size(1)) // width)

    return quantize


def compressed(format: str, **weights: Any) -> dict[str, Any]:
    """A quantization_config of compressed-tensors."""
    scheme = {"targets": ["Linear"], "weights": {"num_bits": 8, "symmetric": True, **weights}}
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": scheme},
    }


FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
FLOAT, INT, PACKED = "float-quantized", "int-quantized", "pack-quantized"
# Name -> quantization_config and the writer of a weight.
FP8_FILES: dict[str, tuple[dict[str, Any], Quantizer]] = {
    "fp8-block": (
        {**FP8, "weight_block_size": [32, 16]},
        fp8(lambda rows, columns: (rows // 32, columns // 16)),
    ),
    "fp8-ue8m0": (
        {**FP8, "weight_block_size": [1, 32], "scale_fmt": "ue8m0"},
        fp8(lambda rows, columns: (rows, columns // 32), dtype=torch.float8_e8m0fnu),
    ),
    "fp8-tensor": (
        {**FP8, "activation_scheme": "static", "weight_block_size": None},
        fp8(lambda rows, columns: (), ("_scale_inv", "activation_scale")),
    ),
    "fp8-vllm": (
        {**FP8, "activation_scheme": "static"},
        fp8(lambda rows, columns: (1,), ("_scale", "input_scale")),
    ),
    "float-tensor": (
        compressed(FLOAT, type="float", strategy="tensor"),
        fp8(lambda rows, columns: (1,), ("_scale", "input_scale"), torch.bfloat16),
    ),
    "float-channel": (
        compressed(FLOAT, type="float", strategy="channel"),
        fp8(lambda rows, columns: (rows, 1), ("_scale",), torch.bfloat16),
    ),
    "float-block": (
        compressed(FLOAT, type="float", strategy="block", block_structure=[32, 16]),
        fp8(lambda rows, columns: (rows // 32, columns // 16), ("_scale",), torch.bfloat16),
    ),
}
INTEGER_FILES: dict[str, tuple[dict[str, Any], Quantizer]] = {
    "gptq": (GPTQ, gptq()),
    "gptq-no-g_idx": (GPTQ, gptq(order="absent")),
    "gptq-asymmetric": ({**GPTQ, "sym": False}, gptq(symmetric=False)),
    "gptq_v2": (
        {**GPTQ, "sym": False, "checkpoint_format": "gptq_v2"},
        gptq(symmetric=False, offset=0),
    ),
    "gptq-desc_act": ({**GPTQ, "desc_act": True}, gptq(order="mixed")),
    "gptq-one-group": ({**GPTQ, "group_size": -1}, gptq(size=-1)),
    "gptq-8": ({**GPTQ, "bits": 8}, gptq(bits=8)),
    "gptq-8-asymmetric": ({**GPTQ, "bits": 8, "sym": False}, gptq(bits=8, symmetric=False)),
    "awq": (AWQ, awq()),
    "awq-one-group": ({**AWQ, "group_size": -1}, awq(size=-1)),
    "packed": (
        compressed(PACKED, num_bits=4, type="int", strategy="group", group_size=32),
        packed(),
    ),
    "packed-asymmetric": (
        compressed(
            PACKED, num_bits=4, type="int", strategy="group", group_size=32, symmetric=False
        ),
        packed(symmetric=False),
    ),
    "packed-8": (compressed(PACKED, type="int", strategy="channel"), packed(8, size=-1)),
    "int8": (compressed(INT, type="int", strategy="channel"), int8()),
    "int8-groups": (
        compressed(INT, type="int", strategy="group", group_size=32, symmetric=False),
        int8(32, symmetric=False),
    ),
}
FILES = FP8_FILES | INTEGER_FILES


def write_quantized(
    folder: Path,
    name: str,
    model_type: str = "llama",
    dtype: torch.dtype = torch.bfloat16,
    floats: str = "nothing",
    **settings: Any,
) -> tuple[Path, Tensors]:
    """A folder with the projections of a model's layers in a format of `FILES`, and the other
    weights in a dtype. Returns also its weights in float32 by their Hub names.

    floats: part of the names of projections that are not quantized.
    """
    config, quantize = FILES[name]
    torch.manual_seed(0)
    plain = folder.with_name(f"{folder.name}-plain")
    model = from_config(model_type, **{**LLAMA, **settings})
    save_pretrained(model.to(dtype), plain)
    stored, weights = {}, {}
    for key, tensor in load_file(plain / "model.safetensors").items():
        if key.endswith("_proj.weight") and floats not in key:
            parts, weights[key] = quantize(key, tensor.float())
            stored |= parts
        else:
            stored[key] = tensor
            weights[key] = tensor.float()
    folder.mkdir()
    middle = len(stored) // 2  # two shards
    names = sorted(stored)
    index = {}
    for number, part in enumerate((names[:middle], names[middle:]), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({key: stored[key].contiguous() for key in part}, folder / file)
        index |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    content = json.loads((plain / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, "quantization_config": config}))
    return folder, weights
