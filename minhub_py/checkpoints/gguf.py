"""GGUF, llama.cpp's format: settings, tokenizer and tensors of one file, with the interface of a
folder in Hub layout.

    "GGUF", version, number of tensors, number of pairs
    pairs        key, type, value: settings such as "llama.block_count", and the tokenizer
    tensors      name, shape (the innermost size first), type, offset into the data
    data         starts at the next multiple of general.alignment

The tensors are memory-mapped. llama.cpp's package gguf dequantizes quantized tensors to float32,
one at a time; with `quantize="auto"` most stay quantized (`auto_quantization`). `gguf_header` reads
the header, and `weights_map.gguf` maps the names of settings and tensors.

Sources: ggml's docs/gguf.md; the types of tensors in ggml/src/ggml-common.h.
"""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from reprlib import repr as brief
from types import SimpleNamespace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import weights_map
from minhub_py.checkpoints.gguf_header import (
    FLOAT_TYPES,
    Header,
    StoredTensor,
    memory_map,
    package,
    read_header,
)
from minhub_py.checkpoints.sentence_transformers import EmbeddingSettings
from minhub_py.checkpoints.storage import Checkpoint, Contents
from minhub_py.models import rotary
from minhub_py.system.json_text import JsonObject
from minhub_py.system.printable import printable
from weights_map.blocks import TYPES, Blocks
from weights_map.conversion import Mapped
from weights_map.gguf import PACKED, GGUFArchitecture
from weights_map.quantized import TERNARY, ternary_levels, to_blocks

CHUNK = 2**18  # elements dequantized at a time: they fit into a core's cache

# Keys after "<architecture>." that do not change the result, and keys that are supported with one
# value only.
IGNORED_KEYS = {
    "vocab_size",
    "tensor_data_layout",
    "rope.scaling.finetuned",
    "pooling_type",
    "rope.dimension_sections",
    "n_deepstack_layers",
}  # the last two are for images
REQUIRED_VALUES = {
    "expert_count": 0,
    "expert_used_count": 0,
    "attention.causal": True,
    "rope.scaling.attn_factor": 1.0,
}
ROPE_KEYS = {
    "rope.freq_base": "rope_theta",
    "rope.scaling.type": "rope_type",
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
# Keys after "general.sampling.", and their names in generation_config.json.
SAMPLING_KEYS = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
# Poolings of text embeddings by the value of "<architecture>.pooling_type"; 0 is none.
POOLINGS = {1: "mean", 2: "cls", 3: "lasttoken"}
UNROTATED = 1e30  # the frequency factor of pairs that do not rotate
# Rotary settings of Llama 3.1, 3.2 and 3.3. The files store the resulting frequency factors
# instead.
LLAMA3_ROPE = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


class Tensors(Mapping[str, Tensor]):
    """The tensors of a file by their GGUF names, loaded on access. Those with the suffix `PACKED`
    stay in MXFP4.
    """

    def __init__(self, path: Path, stored: Mapping[str, StoredTensor]) -> None:
        self.path, self.stored = path, stored
        self._data: NDArray[np.uint8] | None = None

    def bytes_of(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a tensor in the mapped file."""
        if self._data is None:
            self._data = memory_map(self.path)
        return self._data[self.stored[name].start :][: self.stored[name].size]

    def rows(self, name: str) -> Tensor:
        """A tensor as stored in the mapped file: uint8 (…, bytes of a row)."""
        return torch.from_numpy(self.bytes_of(name)).view(*self.stored[name].shape[:-1], -1)

    def block_type(self, name: str) -> str:
        """The type of `blocks`."""
        type = self.stored[name].type
        return "Q4_0" if type in TERNARY else type

    def blocks(self, name: str) -> Blocks:
        """A tensor in blocks as stored. Ternary ones become Q4_0, which has the same values."""
        rows, type = self.rows(name), self.stored[name].type
        if type in TERNARY:
            levels = ternary_levels(rows.flatten(0, -2), self[name].flatten(0, -2), type)
            rows = to_blocks(levels, "Q4_0").rows.view(*rows.shape[:-1], -1)
        return Blocks(self.block_type(name), rows)

    def __getitem__(self, name: str) -> Tensor:
        type, shape = self.stored[name].type, self.stored[name].shape
        data = self.bytes_of(name)
        if name.endswith(PACKED):
            return self.rows(name)
        if type in FLOAT_TYPES:
            return torch.from_numpy(data).view(FLOAT_TYPES[type]).view(shape)
        return dequantize(data, type).view(shape)

    def __contains__(self, name: object) -> bool:
        return name in self.stored  # Mapping's method would load the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)

    def release(self) -> None:
        """Unmap the file. Its memory is freed together with the tensors that use it."""
        self._data = None

    @cached_property
    def meta(self) -> dict[str, Tensor]:
        """Shapes and dtypes of all tensors, on the meta device."""
        return {name: meta_of(name, stored) for name, stored in self.stored.items()}


def meta_of(name: str, stored: StoredTensor) -> Tensor:
    """The shape and dtype of a tensor."""
    if name.endswith(PACKED):
        rows = math.prod(stored.shape[:-1])
        return torch.empty(
            *stored.shape[:-1], stored.size // rows, dtype=torch.uint8, device="meta"
        )
    return torch.empty(
        stored.shape, dtype=FLOAT_TYPES.get(stored.type, torch.float32), device="meta"
    )


def dequantize(data: NDArray[np.uint8], type: str) -> Tensor:
    """The float32 values of a tensor's bytes."""
    gguf = package()
    number = gguf.GGMLQuantizationType[type]
    block, size = gguf.GGML_QUANT_SIZES[number]
    result = torch.empty(len(data) // size * block)
    step = CHUNK // block
    for first in range(0, len(data) // size, step):
        chunk = data[first * size : (first + step) * size]
        # One long row: the package takes sixteen rows at a time, in Python.
        with np.errstate(all="ignore"):  # `minhub verify` reports corrupt scales
            values = gguf.quants.dequantize(chunk.reshape(1, -1), number)
        result[first * block : (first + step) * block] = torch.from_numpy(values[0])
    return result


def with_separate_head(header: Header) -> dict[str, StoredTensor]:
    """The tensors of a file by name. A head for multi-token prediction, the last block, is named
    `nextn`.
    """
    architecture = header.metadata.get("general.architecture")
    blocks, heads = (
        header.metadata.get(f"{architecture}.{key}")
        for key in ("block_count", "nextn_predict_layers")
    )
    if heads != 1 or type(blocks) is not int:
        return header.tensors
    prefix = f"blk.{blocks - 1}."
    return {
        (
            f"nextn.{name.removeprefix(prefix).removeprefix('nextn.')}"
            if name.startswith(prefix)
            else name
        ): tensor
        for name, tensor in header.tensors.items()
    }


class GGUFCheckpoint(Checkpoint):
    """A GGUF file with the interface of a folder in Hub layout: Hub settings, and tensors by their
    Hub names.

    ValueError: the file is corrupt, or its architecture or a setting is not supported.
    """

    has_blocks = True

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.header = read_header(path)

    @cached_property
    def _tensors(self) -> Tensors:
        """The tensors by their names in the rows of the architecture."""
        stored = with_separate_head(self.header)
        names = self.architecture.names({name: tensor.type for name, tensor in stored.items()})
        return Tensors(self.path, {names[name]: tensor for name, tensor in stored.items()})

    @cached_property
    def architecture(self) -> GGUFArchitecture:
        """The mapping between GGUF's and the Hub's names."""
        name = self.header.metadata.get("general.architecture")
        if not isinstance(name, str) or name not in weights_map.gguf_architectures:
            supported = ", ".join(weights_map.gguf_architectures)
            raise ValueError(
                f"the architecture {brief(name)} is not supported; supported are {supported}"
            )
        with_experts = weights_map.gguf_architectures.get(f"{name} with experts")
        if with_experts is not None and self.header.metadata.get(f"{name}.expert_count"):
            return with_experts
        architecture = weights_map.gguf_architectures[name]
        if architecture.alternative and architecture.alternative[0] in self.header.tensors:
            return architecture.alternative[1]
        return architecture

    @cached_property
    def config(self) -> JsonObject:
        """The settings by their names in config.json."""
        try:
            return self._config()
        except ValueError as error:
            raise ValueError(f"{self.path}: {printable(str(error))}") from error

    def _config(self) -> dict[str, object]:
        architecture, metadata = self.architecture, self.header.metadata
        if "token_embd.weight" not in self._tensors:
            raise ValueError("it has no token_embd.weight, so it is not a language model")
        prefix = f"{architecture.name}."
        values = {
            key.removeprefix(prefix): value
            for key, value in metadata.items()
            if key.startswith(prefix)
        }

        def number(key: str, default: int | None = None) -> int:
            value = values.setdefault(key, default)
            if type(value) is not int or value < 1:
                raise ValueError(f"{prefix}{key} cannot be {brief(value)}")
            return value

        if "block_count" not in values:
            raise ValueError(f"it has no {prefix}block_count")
        heads = size = 0  # of a model without attention
        if "attention.head_count" in architecture.settings:
            heads = number("attention.head_count")
            size = number("attention.key_length", number("embedding_length") // heads)
        values.setdefault("attention.head_count_kv", heads)
        settings = {
            name: values[key]
            for key, name in architecture.settings.items()
            if key in values and key not in ROPE_KEYS
        }
        settings |= {name: tensor in self._tensors for tensor, name in architecture.flags.items()}
        settings |= {
            name: self._tensors.stored[tensor].shape[0]
            for tensor, name in architecture.sizes.items()
            if tensor in self._tensors
        }
        settings |= {
            name: [
                layer
                for layer in range(number("block_count"))
                if template.format(layer) in self._tensors
            ]
            for template, name in architecture.layers_with.items()
        }
        settings |= architecture.folded
        settings |= architecture.derive(settings)
        required = {
            **REQUIRED_VALUES,
            **architecture.required,
            "attention.value_length": size,
            "attention.key_length": size,
            "attention.head_count_kv": heads,
            "rope.dimension_count": size,
        }
        supported = {*architecture.settings, *architecture.ignored, *IGNORED_KEYS, *ROPE_KEYS}
        for key, value in values.items():
            if key not in supported and (key not in required or value != required[key]):
                raise ValueError(f"{prefix}{key} is {brief(value)}, which is not supported")
        rope = {name: values[key] for key, name in ROPE_KEYS.items() if key in values}
        if rope.get("rope_type") == "none":
            rope["rope_type"] = "default"
        if rope.get("rope_type") == "yarn":
            rope |= architecture.yarn
        if "rope_freqs.weight" in self._tensors:
            rope |= scaled_rope(self._tensors["rope_freqs.weight"], rope, size)
        if "rope_factors_long.weight" in self._tensors:
            rope |= {
                "rope_type": "longrope",
                "attention_factor": settings.get("attention_factor", 1.0),
            }
            rope |= {
                f"{name}_factor": self._tensors[f"rope_factors_{name}.weight"].tolist()
                for name in ("short", "long")
            }
        settings.pop("attention_factor", None)
        if settings.pop("partial_rotary_factor", None):
            rope["partial_rotary_factor"] = number("rope.dimension_count") / size
        if rope:
            settings["rope_parameters"] = {"rope_type": "default", **rope}
        if architecture.rope_by_type:
            sliding = {
                "rope_type": "default",
                "rope_theta": settings.pop("rope_local_base_freq", 10000.0),
            }
            settings["rope_parameters"] = {
                "full_attention": settings.get("rope_parameters"),
                "sliding_attention": sliding,
            }
        return {
            "model_type": architecture.model_type,
            **settings,
            "vocab_size": self._tensors.stored["token_embd.weight"].shape[0],
            "tie_word_embeddings": self._is_tied(),
            **self._token_ids(),
        }

    def _is_tied(self) -> bool:
        """Whether the head is missing or a copy of the embedding."""
        if "output.weight" not in self._tensors:
            return True
        names = ("output.weight", "token_embd.weight")
        head, embedding = (self._tensors.stored[name] for name in names)
        if (head.type, head.shape) != (embedding.type, embedding.shape):
            return False
        head_data, embedding_data = (self._tensors.bytes_of(name) for name in names)
        chunks = (slice(first, first + 2**20) for first in range(0, head.size, 2**20))
        return all(np.array_equal(head_data[chunk], embedding_data[chunk]) for chunk in chunks)

    def _token_ids(self) -> dict[str, object]:
        """The token IDs for begin, end and padding. The ends of a chat turn (eot) and message (eom)
        are ends, too.
        """
        names = ("bos", "eos", "padding", "eot", "eom")
        ids = {name: self.header.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in names}
        if not all(type(id) is int for id in ids.values() if id is not None):
            raise ValueError(f"the IDs of special tokens cannot be {brief(ids)}")
        ends = list(
            dict.fromkeys(ids[name] for name in ("eos", "eot", "eom") if ids[name] is not None)
        )
        return {
            "bos_token_id": ids["bos"],
            "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
            "pad_token_id": ids["padding"],
        }

    @property
    def generation_config(self) -> JsonObject:
        """Sampling settings by their names in generation_config.json. Token IDs are in `config`."""
        values = {
            name: self.header.metadata.get(f"general.sampling.{key}")
            for key, name in SAMPLING_KEYS.items()
        }
        return {name: value for name, value in values.items() if value is not None}

    @property
    def embedding_settings(self) -> EmbeddingSettings | None:
        """The settings of text embeddings; None without a pooling. Embeddings are normalized, as in
        llama.cpp.

        Warns of the settings that the files of this architecture lack. ValueError: the pooling is
        not supported.
        """
        architecture = self.architecture
        pooling = self.header.metadata.get(f"{architecture.name}.pooling_type", 0)
        if pooling != 0 and pooling not in POOLINGS:
            raise ValueError(
                f"{self.path}: {architecture.name}.pooling_type is {brief(pooling)}, which is not"
                " supported: use the original repository"
            )
        if architecture.assumed:
            warnings.warn(
                f"{printable(str(self.path))} lacks some settings; assumed are"
                f" {architecture.assumed}. The original repository has all settings",
                stacklevel=6,
            )
        return EmbeddingSettings(pooling=(POOLINGS[pooling],), normalize=True) if pooling else None

    @property
    def files(self) -> list[Path]:
        return [self.path]

    def auto_quantization(self, names: Sequence[str], native: Mapped) -> Blocks | str | None:
        """See `Checkpoint`. Tensors whose blocks cannot be used become int8: nf4 would lose further
        accuracy.
        """
        hub_names = [hub_name for name in names for hub_name in native.sources(name)]
        sources = dict.fromkeys(
            source for hub_name in hub_names for source in self._shapes.sources(hub_name)
        )
        types = {self._tensors.stored[source].type for source in sources}
        if types <= FLOAT_TYPES.keys():
            return None
        permuted = all(map(native.permutes, names)) and all(map(self._shapes.permutes, hub_names))
        if len(types) == 1 and types <= {*TYPES, *TERNARY} and permuted:
            rows = {source: self._tensors.blocks(source).rows for source in sources}
            tensors = native.over(self._shapes.over(rows))
            parts = [tensors[name] for name in names]
            if all(part.dim() == 2 and part.stride(1) == 1 for part in parts):  # not transposed
                [type] = {self._tensors.block_type(source) for source in sources}
                return Blocks(type, concatenated(parts))
        return "int8"

    @cached_property
    def _shapes(self) -> Mapped:
        """Shapes by Hub name."""
        return Mapped(
            self.architecture.table, self._tensors.meta, "hub", SimpleNamespace(**self.config)
        )

    @cached_property
    def contents(self) -> Contents:
        """See `Checkpoint`. The names and shapes are the Hub's."""
        meta = dict(self._shapes)
        return Contents(meta, dict.fromkeys(meta, self.path), "hub")

    @cached_property
    def _hub(self) -> Mapped:
        """Tensors by Hub name."""
        return self._shapes.over(self._tensors)

    def stored_dtype(self, name: str) -> str:
        return self._tensors.stored[self._shapes.sources(name)[0]].type

    def __getitem__(self, name: str) -> Tensor:
        return self._hub[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._hub)

    def __len__(self) -> int:
        return len(self._hub)

    def release(self) -> None:
        if "_tensors" in vars(self):
            self._tensors.release()


def concatenated(parts: Sequence[Tensor]) -> Tensor:
    """Matrices of equal shape, one below the other; a view if they are so in memory, as experts in
    a file are.
    """
    first = parts[0]
    if all(
        part.data_ptr() == first.data_ptr() + number * first.nbytes and part.is_contiguous()
        for number, part in enumerate(parts)
    ):
        return first.as_strided((len(parts) * first.size(0), first.size(1)), first.stride())
    return torch.cat(list(parts))


def scaled_rope(factors: Tensor, rope: Mapping[str, object], size: int) -> dict[str, object]:
    """The rope_parameters for the frequency factors of a file: Llama 3's, or Gemma 4's, which has 1
    and a huge factor.

    ValueError: the factors are neither.
    """
    rotates = factors == 1
    if bool((rotates | (factors >= UNROTATED)).all()):
        return {
            "rope_type": "proportional",
            "partial_rotary_factor": int(rotates.sum()) / len(factors),
        }
    scaled = {"rope_type": "llama3", "factor": float(str(factors.max().item())), **LLAMA3_ROPE}
    default = {"rope_type": "default", "rope_theta": rope.get("rope_theta", 10000.0)}
    rotary.check("rope_freqs.weight", default)
    frequencies, scaled_frequencies = (
        torch.tensor(rotary.rope_of(settings, size).frequencies)
        for settings in (default, default | scaled)
    )
    if factors.shape != frequencies.shape or not torch.allclose(
        frequencies / scaled_frequencies, factors.float(), rtol=1e-4
    ):
        raise ValueError(
            "rope_freqs.weight has other factors than Llama 3's and Gemma 4's, which is not"
            " supported"
        )
    return scaled
