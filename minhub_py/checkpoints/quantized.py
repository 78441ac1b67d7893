"""Folders whose weights are quantized in one of the Hub's formats, with the interface of a folder
with floats.

config.json's `quantization_config` names the format. The tensors decide which weights are quantized,
so that the lists of modules (`modules_to_not_convert`, `ignore`, `targets`) are not needed. Scales of
activations and of the KV cache are ignored: they serve kernels that compute in 8 bits, and here the
weights alone are quantized.

A weight is dequantized to float32 on access, and its users convert it to the dtype that they need.
With `quantize="auto"`, integers of 4 and 8 bits become blocks of GGUF's types with the same values
(`auto_quantization`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from reprlib import repr as brief
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from minhub_py.checkpoints.storage import DTYPES, Checkpoint, Contents
from minhub_py.system.json_text import JsonMapping, JsonObject
from weights_map.blocks import Blocks
from weights_map.conversion import Mapped
from weights_map.quantized import (
    AWQ,
    GPTQ,
    RANGES,
    Levels,
    PackedIntegers,
    Scaled,
    WeightForm,
    block_type,
    to_blocks,
)

NAME = "quantization_config"
# Ends of the names of tensors that do not change the weights.
ACTIVATIONS = tuple(
    f"{name}_{kind}"
    for name in (".input", ".output", ".activation", ".k", ".v", ".q", ".kv_cache")
    for kind in ("scale", "zero_point")
)


class StoredTensors(Checkpoint):
    """The tensors as stored."""

    dtypes = MappingProxyType(
        {
            **DTYPES,
            "F8_E4M3": torch.float8_e4m3fn,
            "F8_E5M2": torch.float8_e5m2,
            "F8_E8M0": torch.float8_e8m0fnu,
            "I8": torch.int8,
            "I32": torch.int32,
            "I64": torch.int64,
        }
    )
    max_tensors = 5 * Checkpoint.max_tensors  # a weight consists of up to five


class QuantizedWeight(NamedTuple):
    """A weight of a checkpoint. parts: names of the stored tensors by their roles in the form."""

    form: WeightForm
    parts: Mapping[str, str]
    shape: tuple[int, ...]


class QuantizedCheckpoint(Checkpoint):
    """A folder with quantized weights. Names and shapes describe the dequantized weights.

    ValueError: a part of a weight is missing or has the wrong shape.
    """

    def __init__(self, path: Path, settings: JsonMapping, forms: Sequence[WeightForm]) -> None:
        """settings: the content of config.json.    forms: of `forms_of`."""
        super().__init__(path)
        self.stored, self.forms = StoredTensors(path), forms
        self.config = without_quantization(settings)
        self.has_blocks = any(form.integers for form in forms)

    @property
    def files(self) -> list[Path]:
        return self.stored.files

    @cached_property
    def weights(self) -> dict[str, QuantizedWeight]:
        """The quantized weights by name."""
        meta = self.stored.contents.meta
        weights: dict[str, QuantizedWeight] = {}
        for name, tensor in meta.items():
            form = next((form for form in self.forms if form.applies(name, tensor)), None)
            if form is None:
                continue
            stem = name.removesuffix(form.codes)
            parts = {"codes": name, **parts_of(form, stem, meta)}
            tensors = {role: meta[part] for role, part in parts.items()}
            if "shape" in parts:  # its values are the shape of the weight
                tensors["shape"] = self.stored[parts["shape"]]
            with self.named(name):
                form.check_dtypes(tensors)
                shape = form.shape(tensors)
            weights[stem + form.target] = QuantizedWeight(form, parts, shape)
        if not weights:
            raise ValueError(
                f"{self.path}: config.json has a {NAME}, but no weight is quantized in this format:"
                f" delete {NAME} from config.json if the weights are floats"
            )
        return weights

    @property
    def biases(self) -> list[str]:  # type: ignore[override]
        return [
            f"{name.removesuffix(weight.form.target)}.bias"
            for name, weight in self.weights.items()
            if weight.form.codes == GPTQ.codes
            and f"{name.removesuffix(weight.form.target)}.bias" in self.stored.contents.meta
        ]

    @cached_property
    def contents(self) -> Contents:
        """See `Checkpoint`. Dequantized weights have the dtype of most other floats."""
        stored, weights = self.stored.contents, self.weights
        parts = {part for weight in weights.values() for part in weight.parts.values()}
        meta = {
            name: tensor
            for name, tensor in stored.meta.items()
            if name not in parts and not name.endswith(ACTIVATIONS)
        }
        if double := sorted(meta.keys() & weights.keys()):
            raise ValueError(f"{self.path}: {double[0]} is stored both quantized and as floats")
        dtype = main_dtype(meta.values())
        files = {name: stored.files[name] for name in meta}
        for name, weight in weights.items():
            meta[name] = torch.empty(weight.shape, dtype=dtype, device="meta")
            files[name] = stored.files[weight.parts["codes"]]
        return Contents(meta, files, stored.layout)

    @contextmanager
    def named(self, name: str) -> Iterator[None]:
        """Name the file and the tensor in the error of a corrupt weight."""
        try:
            yield
        except ValueError as error:
            raise ValueError(f"{self.path}: {name} is corrupt: {error}") from error

    def parts(self, name: str) -> dict[str, Tensor]:
        """The stored tensors of a quantized weight, by their roles."""
        return {role: self.stored[part] for role, part in self.weights[name].parts.items()}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.weights:
            return self.stored[name]
        with self.named(name):
            return self.weights[name].form.weight(self.parts(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self.contents.meta)

    def __len__(self) -> int:
        return len(self.contents.meta)

    def auto_quantization(self, names: Sequence[str], native: Mapped) -> Blocks | str | None:
        """See `Checkpoint`. Integers that do not fit a block type become int8. Floats stay floats."""
        sources = dict.fromkeys(source for name in names for source in native.sources(name))
        levels: dict[str, Levels | None] = {}
        for source in sources:
            if source in self.weights:
                with self.named(source):
                    levels[source] = self.weights[source].form.levels(self.parts(source))
        integers = {source: level for source, level in levels.items() if level is not None}
        if not integers:
            return None
        types = {block_type(level) for level in integers.values()}
        if len(integers) < len(sources) or None in types or not all(map(native.permutes, names)):
            return "int8"
        type = [type for type in RANGES if type in types][-1]
        rows = {source: to_blocks(level, type).rows for source, level in integers.items()}
        tensors = native.over(rows)
        parts = [tensors[name] for name in names]
        if not all(part.dim() == 2 and part.stride(1) == 1 for part in parts):  # transposed
            return "int8"
        return Blocks(type, torch.cat(parts) if len(parts) > 1 else parts[0])

    def stored_dtype(self, name: str) -> str:
        weight = self.weights.get(name)
        if weight is None:
            return self.stored.stored_dtype(name)
        return weight.form.describe(
            {role: self.stored.contents.meta[part] for role, part in weight.parts.items()}
        )

    def release(self) -> None:
        self.stored.release()


def main_dtype(tensors: Iterable[Tensor]) -> torch.dtype:
    """The dtype of most floats; bfloat16 if there are none."""
    sizes = Counter[torch.dtype]()
    for tensor in tensors:
        if tensor.is_floating_point():
            sizes[tensor.dtype] += tensor.numel()
    return sizes.most_common(1)[0][0] if sizes else torch.bfloat16


def parts_of(form: WeightForm, stem: str, names: Mapping[str, Tensor]) -> dict[str, str]:
    """The names of the further tensors of a weight, by their roles. ValueError: one is missing."""
    parts: dict[str, str] = {}
    for role, ends in {**form.required, **form.optional}.items():
        name = next((stem + end for end in ends if stem + end in names), None)
        if name is not None:
            parts[role] = name
        elif role in form.required:
            raise ValueError(
                f"{stem}{form.codes} lacks {stem}{ends[0]}: download the checkpoint again"
            )
    return parts


def quantization_of(config: JsonMapping) -> JsonMapping | None:
    """The quantization_config of a config.json, which a multimodal model may have in text_config."""
    text = config.get("text_config")
    settings = config.get(NAME) or (text.get(NAME) if isinstance(text, dict) else None)
    return settings if isinstance(settings, dict) else None


def without_quantization(config: JsonMapping) -> JsonObject:
    """The settings of config.json without quantization_config."""
    return {
        name: without_quantization(value)
        if name == "text_config" and isinstance(value, dict)
        else value
        for name, value in config.items()
        if name != NAME
    }


def forms_of(settings: JsonMapping | None) -> Sequence[WeightForm]:
    """The forms of the weights of a quantization_config; none for methods that this module does not
    have, which the model's config supports or rejects.

    ValueError: a setting of a supported method is not supported.
    """
    method = settings.get("quant_method") if settings else None
    if settings is None or not isinstance(method, str):
        return ()
    match method:
        case "fp8":
            check_setting(settings, "expert_dtype", None, "fp8")
            return [Scaled(block_of(settings, "weight_block_size"))]
        case "gptq" | "awq":
            check_setting(settings, "bits", *((4, 8) if method == "gptq" else (4,)))
            for name in ("rotation", "adapter"):  # gptqmodel's changes of the computation
                check_setting(settings, name, None)
            group = group_of({"group_size": 128, **settings})
            if method == "awq":
                check_setting(settings, format_name(settings, "version"), None, "gemm", "GEMM")
                return [AWQ(group)]
            format = format_name(settings, "checkpoint_format")
            check_setting(settings, format, None, "gptq", "gptq_v2")
            check_setting(settings, "is_marlin_format", None, False)
            return [GPTQ(group, offset=0 if settings.get(format) == "gptq_v2" else 1)]
        case "compressed-tensors":
            return compressed_forms(settings)
    return ()


def format_name(settings: JsonMapping, older: str) -> str:
    """The name of the setting with the format: its older name if it is used."""
    return older if settings.get(older) is not None else "format"


def compressed_forms(settings: JsonMapping) -> Sequence[WeightForm]:
    """The forms of compressed-tensors. The groups of layers may differ in their formats."""
    for name in ("sparsity_config", "transform_config"):
        value = settings.get(name)
        if isinstance(value, dict) and value.get("format") == "dense":
            continue
        check_setting(settings, name, None, {})
    check_setting(settings, "quantization_status", None, "compressed", "frozen")
    groups = settings.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise unsupported("config_groups", groups, "groups of layers")
    forms: dict[WeightForm, None] = {}
    for group in groups.values():
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict):
            raise unsupported("config_groups", group, "groups with quantized weights")
        format = group.get("format") or settings.get("format")
        if format == "pack-quantized":
            check_setting(weights, "num_bits", 4, 8)
            forms[PackedIntegers(group_of(weights))] = None
        elif format in ("float-quantized", "int-quantized", "naive-quantized"):
            check_setting(weights, "num_bits", 8)
            size = group_of(weights)
            block = block_of(weights, "block_structure") or (None if size is None else (1, size))
            forms[Scaled(block, integers=weights.get("type", "int") == "int")] = None
        else:
            raise unsupported(
                "format", format, "pack-quantized, float-quantized, int-quantized, naive-quantized"
            )
    if len({(type(form), form.integers) for form in forms}) < len(forms):
        raise unsupported("config_groups", groups, "one size of groups or blocks for each format")
    return list(forms)


def check_setting(settings: JsonMapping, name: str, *supported: object) -> None:
    """ValueError: the setting has another value."""
    value = settings.get(name)
    if not any(value == allowed and type(value) is type(allowed) for allowed in supported):
        raise unsupported(name, value, ", ".join(map(repr, supported)))


def unsupported(name: str, value: object, supported: str) -> ValueError:
    """The error for a value of a setting."""
    return ValueError(
        f"config.json's {NAME} sets {name} to {brief(value)}, which is not supported (only"
        f" {supported}): use the repository of the same model in BF16 or F16"
    )


def group_of(settings: JsonMapping) -> int | None:
    """The number of inputs of a group; None for all. ValueError: the setting is invalid."""
    size = settings.get("group_size")
    if size is None or (type(size) is int and size == -1):
        return None
    if type(size) is not int or not 1 <= size <= 2**24:
        raise unsupported("group_size", size, "-1 or a number of inputs")
    return size


def block_of(settings: JsonMapping, name: str) -> tuple[int, int] | None:
    """The numbers of outputs and inputs of a block. ValueError: the setting is invalid."""
    sizes = settings.get(name)
    if sizes is None:
        return None
    if not (
        isinstance(sizes, list)
        and len(sizes) == 2
        and all(type(size) is int and 1 <= size <= 2**24 for size in sizes)
    ):
        raise unsupported(name, sizes, "two numbers")
    return sizes[0], sizes[1]
