"""Export of a checkpoint as a GGUF file, readable by llama.cpp and by this package.

The names of settings and tensors are those of the weight tables (weights_map/gguf.py), in the
opposite direction of checkpoints/gguf.py. The package gguf writes the file and quantizes rows;
K-quants are in export/k_quants.py.

Sources: ggml's docs/gguf.md; llama.cpp's converters and, for the types of tensors, its
llama-quant.cpp.
"""

import errno
import math
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import weights_map
from minhub_py.checkpoints.gguf import POOLINGS, UNROTATED, GGUFCheckpoint
from minhub_py.checkpoints.gguf_header import package
from minhub_py.checkpoints.sentence_transformers import read_embedding_settings
from minhub_py.checkpoints.storage import Checkpoint
from minhub_py.checkpoints.writing import unwritable
from minhub_py.export import k_quants
from minhub_py.export.gguf_tokenizer import check_tokenizer, tokenizer_of, tokenizer_pairs
from minhub_py.export.k_quants import FALLBACKS, MIXES, type_in_mix
from minhub_py.export.single_tensors import SingleTensors
from minhub_py.loading.facts import Facts, collect, fit
from minhub_py.loading.files import ModelFiles
from minhub_py.models import rotary
from minhub_py.models.config import read
from minhub_py.models.llama import LlamaConfig
from minhub_py.models.registry import architecture_of
from minhub_py.models.settings import ModelConfig
from minhub_py.models.structure import DecoderConfig, Structure, biases
from minhub_py.system.json_text import JsonMapping, JsonObject
from weights_map.conversion import Mapped
from weights_map.gguf import PACKED, GGUFArchitecture

# Types of matrices, and their numbers as general.file_type.
FILE_TYPES = {
    "Q4_K_S": 14,
    "Q4_K_M": 15,
    "Q5_K_S": 16,
    "Q5_K_M": 17,
    "Q6_K": 18,
    "F32": 0,
    "F16": 1,
    "BF16": 32,
    "Q8_0": 7,
    "Q5_0": 8,
    "Q5_1": 9,
    "Q4_0": 2,
    "Q4_1": 3,
}
# Settings of rope_parameters -> keys.
SCALING = {
    "factor": "rope.scaling.factor",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
}
# Small matrices that llama.cpp does not quantize: routers, convolutions and positions.
PRECISE = ("ffn_gate_inp", "shortconv.conv", "ssm_conv1d", "position_embd", "attn_rel_b")


def write_gguf(
    files: ModelFiles,
    out: Path,
    type: str = "F16",
    progress: Callable[[int, int], object] | None = None,
) -> None:
    """Write a checkpoint, with its config and tokenizer, as one GGUF file, and replace `out`.

    Args:
        files: The files of the model.
        out: The file.
        type: Type of the matrices, a key of `FILE_TYPES`; Q4_K_M and similar are mixes, as in
            llama.cpp. Vectors are F32. A matrix whose rows are not a multiple of the block size has
            another type, as in llama.cpp.
        progress: Called with the number of bytes of the checkpoint that are written, and the total.

    Raises:
        ValueError: llama.cpp has no architecture, setting or tokenizer of this kind, or the
            checkpoint is corrupt.
        OSError: The disk is full or not writable.
    """
    gguf = package()
    if files.adapter is not None:
        raise ValueError(
            f"{files.adapter} is an adapter: merge it into a folder first, then convert the folder"
        )
    checkpoint, facts = files.checkpoint, collect(files)
    model = fit(facts)
    config = model.config.to_hub()
    architecture = gguf_architecture_of(config)
    with advice():
        settings = settings_of(architecture, model.config)
    shapes, tensors = mapped_tensors(checkpoint, architecture, facts)
    pairs: JsonObject = {
        "general.architecture": architecture.name,
        "general.name": out.stem,
        "general.file_type": FILE_TYPES[type],
        "general.quantization_version": 2,
    }
    pairs |= {f"{architecture.name}.{key}": value for key, value in settings.items()}
    with advice():
        tokenizer = tokenizer_of(checkpoint)
        pairs |= pooling_of(checkpoint, architecture) | tokenizer_pairs(
            checkpoint, config, tokenizer
        )
    extra = frequency_factors(model.config)
    writer = gguf.GGUFWriter(None, architecture.name)
    writer.kv_data[0].clear()
    for key, value in pairs.items():
        add_pair(writer, key, value)
    layers, tied = pairs[f"{architecture.name}.block_count"], model.config.tie_word_embeddings
    types = {}
    for name, tensor in {**shapes, **extra}.items():
        types[name] = type_of(
            name, tensor, type_in_mix(name, type, layers, tied) if type in MIXES else type
        )
    for name, tensor in {**shapes, **extra}.items():
        add_tensor_info(writer, name, tensor, types[name])
    with replacing(out, writer) as partial:
        writer.path = partial
        writer.write_header_to_file(partial)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        written_bytes, total = 0, sum(tensor.nbytes for tensor in (shapes | extra).values())
        for name, shape in (shapes | extra).items():
            tensor = extra[name] if name in extra else tensors[name]
            writer.write_tensor_data(quantized(tensor, types[name]))
            written_bytes += shape.nbytes
            if progress is not None:
                progress(written_bytes, total)
        writer.close()
        with advice():
            check_settings(partial, model.config)
            if tokenizer is not None:
                check_tokenizer(partial, tokenizer, checkpoint.path)


class HubNames:
    """A config's settings by their names in config.json, then by the names of its attributes."""

    def __init__(self, config: Any) -> None:
        self._config, self._settings = config, config.effective

    def __getattr__(self, name: str) -> object:
        return self._settings[name] if name in self._settings else getattr(self._config, name)


@contextmanager
def replacing(out: Path, writer: Any) -> Iterator[Path]:
    """A temporary file of a GGUF writer, which replaces `out` at the end. OSError: it cannot be
    written.
    """
    partial = out.with_name(f".{out.name}.partial")
    try:
        try:
            yield partial
        finally:
            writer.close()
        os.replace(partial, out)
    except OSError as error:
        if error.errno is None:  # NumPy's error after it has written a part of a tensor
            error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise unwritable(out, error, "file") from error
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def advice() -> Iterator[None]:
    """Add the next step to the error for a model that llama.cpp does not have in this form."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{error}: convert to a folder instead of a GGUF file") from error


def mapped_tensors(
    checkpoint: Checkpoint, architecture: GGUFArchitecture, facts: Facts
) -> tuple[dict[str, Tensor], Mapped]:
    """The shapes and the values of the tensors by their names in the file."""
    config: Any = facts.config
    table = weights_map.tables[architecture_of(architecture.model_type).model_type]
    hub = Mapped(table, facts.meta, "native", config)
    names = Mapped(architecture.table, hub, "native", HubNames(config))
    is_gguf = isinstance(checkpoint, GGUFCheckpoint)  # its tensors are views of the mapped file
    values = checkpoint if is_gguf else SingleTensors(checkpoint)
    return dict(names), names.over(hub.over(facts.over(values)))


def pooling_of(checkpoint: Checkpoint, architecture: GGUFArchitecture) -> dict[str, int]:
    """The key of the pooling of a text embedding model. ValueError: a GGUF file cannot express its
    embeddings.

    Warns of prompts and lower case, which clients of the file must apply themselves.
    """
    key = f"{architecture.name}.pooling_type"
    if isinstance(checkpoint, GGUFCheckpoint):
        number = checkpoint.header.metadata.get(key)
    else:
        settings = read_embedding_settings(checkpoint.path)
        if settings is None or not settings.has_pooling:
            return {}
        number = next(
            (number for number, name in POOLINGS.items() if settings.pooling == (name,)), None
        )
        if settings.dense or number is None:
            lacking = (
                "dense layers" if settings.dense else f"pooling {' + '.join(settings.pooling)}"
            )
            raise ValueError(
                f"text embeddings of this model have {lacking}, which a GGUF file of"
                f" {architecture.name} cannot express: use the original repository"
            )
        present = {"prompts": any(settings.prompts.values()), "lower case": settings.lower_case}
        if names := [name for name, needed in present.items() if needed]:
            warnings.warn(
                f"the GGUF file lacks the {' and '.join(names)} of the repository's text"
                " embeddings: apply them to each text before embedding",
                stacklevel=3,
            )
    return {} if number is None else {key: number}


def check_settings(path: Path, config: Any) -> None:
    """ValueError: the file, as this package reads it, lacks a setting of the model."""
    written = GGUFCheckpoint(path)
    again = read(architecture_of(written.config["model_type"]).Config, written.config)
    folded = replace(config, **written.architecture.folded)
    actual, expected = effective(again), effective(folded)
    if names := [name for name in expected if not same(actual.get(name), expected[name])]:
        raise ValueError(
            f"llama.cpp's {written.architecture.name} has no setting for {', '.join(names)} of this"
            f" model ({expected[names[0]]!r:.80})"
        )


def effective(config: Any) -> dict[str, object]:
    """The settings that change the logits, in a form that does not depend on the model type."""
    ignored = {
        "architectures",
        "model_type",
        "initializer_range",
        "n_inner",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "rope_local_base_freq",
        "sliding_window_pattern",
        "layer_norm_epsilon",
        "classifier_pooling",
        "classifier_activation",
    }
    structure = structure_of(config)
    if structure is None:
        settings = config.effective
    else:
        settings = {field.name: getattr(structure, field.name) for field in fields(structure)}
        settings["hidden_act"], context = config.hidden_act, config.context_length
        settings["windows"] = [
            None if window and window >= context else window for window in structure.windows
        ]
        ropes = [rope and rotary.rope_of(rope, config.rotated) for rope in structure.ropes]
        settings["ropes"] = [
            rope and (rope.frequencies, rope.short, rope.amplitude) for rope in ropes
        ]
        settings["tie_word_embeddings"] = config.tie_word_embeddings
    settings["context_length"] = config.context_length
    return {
        name: value
        for name, value in settings.items()
        if name not in ignored and not name.endswith(("drop", "dropout"))
    }


def structure_of(config: ModelConfig) -> Structure | None:
    """The structure of Llama and of the general decoder, one of which may be read as the other;
    else None.
    """
    if isinstance(config, DecoderConfig):
        return config.structure
    if not isinstance(config, LlamaConfig):
        return None
    return Structure(
        config.windows,
        [config.rope] * config.num_hidden_layers,
        eps=config.rms_norm_eps,
        biases=biases(config.qkv_bias, config.attention_bias, config.mlp_bias),
        head_norms="before rotation" if config.has_head_norms else "",
    )


def same(first: object, second: object) -> bool:
    """Whether two settings are equal within the precision of float32."""
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(
            same(first[name], second[name]) for name in first
        )
    if isinstance(first, float) and isinstance(second, float | int):
        return math.isclose(first, second, rel_tol=1e-4)
    return bool(first == second)


def gguf_architecture_of(config: JsonMapping) -> GGUFArchitecture:
    """The architecture of GGUF for a config.json. ValueError: llama.cpp has none, or it is not
    known.
    """
    model_type, [name, *_] = config["model_type"], config.get("architectures") or [""]
    architectures = weights_map.gguf_architectures.values()
    of_type = [
        entry
        for entry in architectures
        if model_type in (entry.model_types or (entry.model_type,)) and entry.writes(config)
    ]
    by_class = [
        entry for entry in of_type if entry.class_suffix and name.endswith(entry.class_suffix)
    ]
    for architecture in by_class or of_type:
        return architecture
    names = sorted(
        {name for entry in architectures for name in entry.model_types or (entry.model_type,)}
    )
    raise ValueError(
        f"a model of the type {model_type} cannot be written as GGUF; possible are"
        f" {', '.join(names)}"
    )


def settings_of(architecture: GGUFArchitecture, config: Any) -> JsonObject:
    """The keys after "<architecture>." and their values."""
    hub, computed = config.to_hub(), config.effective
    rope = rope_of(hub)
    width, size, derived = hub[architecture.settings["embedding_length"]], 0, {}
    if "attention.head_count" in architecture.settings:
        heads = hub[architecture.settings["attention.head_count"]]
        size_name = architecture.settings.get("attention.key_length", "head_dim")
        size = hub.get(size_name) or width // heads
        derived = {
            "attention.head_count_kv": heads,
            "attention.key_length": size,
            "feed_forward_length": 4 * width,
            "rope.dimension_count": int(size * rope.get("partial_rotary_factor", 1.0)),
        }
    keys = {}
    for key, name in architecture.settings.items():
        value = (
            None if name in ("partial_rotary_factor", "attention_factor") else computed.get(name)
        )
        value = getattr(config, name, None) if value is None else value
        value = derived.get(key) if value is None else value
        if value is not None:
            keys[key] = value
    keys["vocab_size"] = hub["vocab_size"]
    if "attention.key_length" in keys:
        keys["attention.value_length"] = size
    if architecture.name == "llama":
        keys["rope.dimension_count"] = size
    if rope:
        keys |= rope_keys(rope)
    keys |= (
        {"attention.causal": False}
        if architecture.required.get("attention.causal") is False
        else {}
    )
    keys |= architecture.encode(hub)
    return {key: value for key, value in keys.items() if value is not None}


def rope_of(hub: JsonMapping) -> JsonObject:
    """The rope_parameters, of the layers with full attention if they differ; {} without rotary
    embeddings.
    """
    rope: JsonObject = hub.get("rope_parameters") or {}
    return dict(rope.get("full_attention", rope))


def rope_keys(rope: JsonMapping) -> dict[str, object]:
    """The keys of rotary embeddings. ValueError: llama.cpp has no such setting."""
    keys: JsonObject = {"rope.freq_base": float(rope["rope_theta"])}
    kind = rope["rope_type"]
    if kind in ("linear", "yarn"):
        keys["rope.scaling.type"] = kind
        keys |= {key: rope[name] for name, key in SCALING.items() if rope.get(name) is not None}
    if kind == "longrope":
        keys["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        keys["rope.scaling.attn_factor"] = rotary.rope_of(
            rope, 2 * len(rope["long_factor"])
        ).amplitude
    usual = {
        "rope_type": "yarn",
        **{name: rope[name] for name in ("rope_theta", "factor") if name in rope},
        "original_max_position_embeddings": 1,
    }
    if kind == "yarn" and rotary.rope_of(rope, 4).amplitude != rotary.rope_of(usual, 4).amplitude:
        raise ValueError("llama.cpp supports yarn with its usual attention_factor only")
    if rope.get("llama_4_scaling_beta"):
        raise ValueError("llama.cpp's llama does not support llama_4_scaling_beta")
    return keys


def frequency_factors(config: Any) -> dict[str, Tensor]:
    """Tensors with divisors of the rotary frequencies: Llama 3's, or both sets of longrope."""
    rope = rope_of(config.to_hub())
    if rope.get("rope_type") == "longrope":
        return {
            f"rope_factors_{name}.weight": torch.tensor(rope[f"{name}_factor"])
            for name in ("long", "short")
        }
    if rope.get("rope_type") == "proportional":
        frequencies = torch.tensor(rotary.rope_of(rope, config.global_sizes[0]).frequencies)
        return {"rope_freqs.weight": torch.where(frequencies > 0, 1.0, UNROTATED)}
    if rope.get("rope_type") != "llama3":
        return {}
    size = config.head_size
    scaled = rotary.rope_of(rope, size).frequencies
    default = rotary.rope_of(
        {"rope_type": "default", "rope_theta": rope["rope_theta"]}, size
    ).frequencies
    return {"rope_freqs.weight": torch.tensor(default) / torch.tensor(scaled)}


def type_of(name: str, tensor: Tensor, type: str) -> str:
    """A tensor's type in a file of this type."""
    if name.endswith(PACKED):
        return "MXFP4"
    if (
        tensor.dim() < 2
        or type == "F32"
        or not name.endswith(".weight")
        or name.endswith("_norm.weight")
        or any(part in name for part in PRECISE)
    ):
        return "F32"
    if type in FALLBACKS and tensor.size(-1) % 256:
        type = FALLBACKS[type]
    block, _ = package().GGML_QUANT_SIZES[package().GGMLQuantizationType[type]]
    return type if tensor.size(-1) % block == 0 else "F16"


def quantized(tensor: Tensor, type: str) -> "NDArray[np.float32] | NDArray[np.uint8]":
    """A tensor's rows in a type of the file."""
    gguf = package()
    if type == "MXFP4":  # as stored
        return tensor.contiguous().numpy()
    values = tensor.detach().to(torch.float32).contiguous().numpy()
    if not np.isfinite(values).all():
        raise ValueError("a weight is not finite: run `minhub verify` on the checkpoint")
    if type in FALLBACKS:
        return k_quants.quantize(torch.from_numpy(values), type).numpy()
    return gguf.quants.quantize(values, gguf.GGMLQuantizationType[type])


def add_tensor_info(writer: Any, name: str, tensor: Tensor, type: str) -> None:
    """Add the name, shape and type of a tensor."""
    kind, shape = package().GGMLQuantizationType[type], tuple(tensor.shape)
    packed = name.endswith(PACKED)
    size = shape if packed else package().quants.quant_shape_to_byte_shape(shape, kind)
    writer.add_tensor_info(
        name.removesuffix(PACKED) + ".weight" if packed else name,
        size if kind > 1 else shape,
        np.dtype(np.uint8 if kind > 1 else np.float32),
        math.prod(size),
        raw_dtype=kind,
    )


def add_pair(writer: Any, key: str, value: Any) -> None:
    """Add a key with the type that llama.cpp expects."""
    types = package().GGUFValueType
    if isinstance(value, bool):
        writer.add_key_value(key, value, types.BOOL)
    elif isinstance(value, int):
        writer.add_key_value(key, value, types.UINT32)
    elif isinstance(value, float):
        writer.add_key_value(key, value, types.FLOAT32)
    elif isinstance(value, str):
        writer.add_key_value(key, value, types.STRING)
    elif isinstance(value, np.ndarray):
        number = {
            "f": types.FLOAT32,
            "i": types.INT32,
            "u": types.UINT8 if value.itemsize == 1 else types.UINT32,
        }
        writer.add_key_value(key, value.tolist(), types.ARRAY, sub_type=number[value.dtype.kind])
    else:
        kind = (
            types.STRING
            if isinstance(value[0], str)
            else types.BOOL
            if isinstance(value[0], bool)
            else types.UINT32
        )
        writer.add_key_value(key, list(value), types.ARRAY, sub_type=kind)
