"""GGUF, llama.cpp's format: settings, tokenizer and tensors in one file -> the same as a folder in Hub layout gives.

    "GGUF", version, number of tensors, number of pairs
    pairs        key, type, value: settings as "llama.block_count", and the tokenizer
    tensors      name, shape (the innermost size first), type, offset into the data
    data         from the next multiple of general.alignment on

The tensors are memory-mapped. llama.cpp's package gguf dequantizes tensors in 8 bits or less to float32, one at a time;
with `quantize="auto"` most stay quantized (`auto_quantization`). `gguf_header` reads the header.

`weights_map.gguf` says what the files call the settings and tensors of a family.
Sources: ggml's docs/gguf.md; the types of tensors in ggml/src/ggml-common.h.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from reprlib import repr as brief
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import weights_map
from minhub_py.checkpoints.gguf_header import PLAIN, Stored, mapped, package, read_header
from minhub_py.checkpoints.storage import Checkpoint, Layout
from minhub_py.models import rotary
from minhub_py.system.printable import printable
from weights_map.blocks import TYPES, Blocks
from weights_map.engine import Mapped
from weights_map.gguf import Form

AT_ONCE = 2**18  # numbers that are made float32 together: they stay in a core's cache

# Keys after "<architecture>." that change nothing here, and those that do unless they have this value.
NO_EFFECT = {"vocab_size", "tensor_data_layout", "rope.scaling.finetuned"}
ONLY_VALUE = {"expert_count": 0, "expert_used_count": 0, "attention.causal": True, "rope.scaling.attn_factor": 1.0}
ROPE = {
    "rope.freq_base": "rope_theta",
    "rope.scaling.type": "rope_type",
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
# Keys after "general.sampling.", and their names in generation_config.json.
SAMPLING = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "penalty_repeat": "repetition_penalty"}
# What Llama 3.1, 3.2 and 3.3 have besides their factor; the files hold only what follows from it.
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


class Tensors(Mapping[str, Tensor]):
    """The tensors of a file under its own names, each read when it is asked for."""

    def __init__(self, path: Path, stored: Mapping[str, Stored]) -> None:
        self.path, self.stored = path, stored
        self._data: np.ndarray[Any, Any] | None = None

    def bytes_of(self, name: str) -> "np.ndarray[Any, Any]":
        """The bytes of a tensor, in the mapped file."""
        if self._data is None:
            self._data = mapped(self.path)
        return self._data[self.stored[name].start :][: self.stored[name].size]

    def rows(self, name: str) -> Tensor:
        """A tensor as it lies in the mapped file, uint8: of each row the bytes."""
        return torch.from_numpy(self.bytes_of(name)).view(*self.stored[name].shape[:-1], -1)

    def __getitem__(self, name: str) -> Tensor:
        kind, shape = self.stored[name].type, self.stored[name].shape
        data = self.bytes_of(name)
        if kind in PLAIN:
            return torch.from_numpy(data).view(PLAIN[kind]).view(shape)
        return dequantized(data, kind).view(shape)

    def __contains__(self, name: object) -> bool:
        return name in self.stored  # Mapping's own would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)

    def release(self) -> None:
        """Unmap the file: its pages are free when the tensors given so far are."""
        self._data = None

    @cached_property
    def meta(self) -> dict[str, Tensor]:
        """Shapes and dtypes alone."""
        return {
            name: torch.empty(shape, dtype=PLAIN.get(kind, torch.float32), device="meta")
            for name, (kind, shape, _, _) in self.stored.items()
        }


def dequantized(data: "np.ndarray[Any, Any]", kind: str) -> Tensor:
    """The numbers, in float32, of a tensor's bytes."""
    gguf = package()
    number = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[number]
    result = torch.empty(len(data) // size * block)
    step = AT_ONCE // block
    for first in range(0, len(data) // size, step):
        part = data[first * size : (first + step) * size]
        # One long row: the package takes sixteen rows at a time, in Python.
        with np.errstate(all="ignore"):  # damaged scales are for `minhub verify` to find
            numbers = gguf.quants.dequantize(part.reshape(1, -1), number)
        result[first * block : (first + step) * block] = torch.from_numpy(numbers[0])
    return result


class GGUFCheckpoint(Checkpoint):
    """A GGUF file as if it were a folder in Hub layout: config.json's settings, and tensors by the Hub's names.

    ValueError: the file is damaged, or of an architecture, or with a setting, without code.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.header = read_header(path)
        self._tensors = Tensors(path, self.header.tensors)

    @cached_property
    def form(self) -> Form:
        """What the file calls settings and tensors."""
        name = self.header.metadata.get("general.architecture")
        if not isinstance(name, str) or name not in weights_map.gguf_forms:
            known = ", ".join(weights_map.gguf_forms)
            raise ValueError(f"it holds a model of the architecture {brief(name)}; this package reads {known}")
        return weights_map.gguf_forms[name]

    @cached_property
    def config(self) -> dict[str, Any]:
        """The settings as config.json has them."""
        try:
            return self._config()
        except ValueError as error:
            raise ValueError(f"{self.path}: {printable(str(error))}") from error

    def _config(self) -> dict[str, Any]:
        form, metadata = self.form, self.header.metadata
        vocab_size = self._vocab_size()
        prefix = f"{form.architecture}."
        found = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}

        def number(key: str, otherwise: int | None = None) -> int:
            value = found.setdefault(key, otherwise)
            if type(value) is not int or value < 1:
                raise ValueError(f"{prefix}{key} cannot be {brief(value)}")
            return value

        heads = number("attention.head_count")
        size = number("attention.key_length", number("embedding_length") // heads)
        found.setdefault("attention.head_count_kv", heads)
        settings = {to: found[key] for key, to in form.settings.items() if key in found and key not in ROPE}
        settings |= {to: name in self.header.tensors for name, to in form.flags.items()}
        settings |= form.derive(settings)
        only = ONLY_VALUE | {"attention.value_length": size, "attention.key_length": size,
                             "attention.head_count_kv": heads, "rope.dimension_count": size}  # fmt: skip
        for key, value in found.items():
            known = key in form.settings or key in NO_EFFECT or key in ROPE
            if not known and (key not in only or value != only[key]):
                raise ValueError(f"{prefix}{key} is {brief(value)}, for which this package has no code")
        rope = {to: found[key] for key, to in ROPE.items() if key in found}
        if rope.get("rope_type") == "none":
            rope["rope_type"] = "default"
        if "rope_freqs.weight" in self._tensors:
            rope |= llama3(self._tensors["rope_freqs.weight"], rope, size)
        if settings.pop("partial_rotary_factor", None):
            rope["partial_rotary_factor"] = number("rope.dimension_count") / size
        if rope:
            settings["rope_parameters"] = {"rope_type": "default", **rope}
        return {
            "model_type": form.model_type,
            **settings,
            "vocab_size": vocab_size,
            "tie_word_embeddings": self._is_tied(),
            **self._token_ids(),
        }

    def _vocab_size(self) -> int:
        if "token_embd.weight" not in self._tensors:
            raise ValueError("it has no token_embd.weight, so it holds no language model")
        return self._tensors.stored["token_embd.weight"].shape[0]

    def _is_tied(self) -> bool:
        """Whether the head is the embedding: it is absent, or the same once more."""
        if "output.weight" not in self._tensors:
            return True
        head, embedding = (self._tensors.stored[name] for name in ("output.weight", "token_embd.weight"))
        if head[:2] != embedding[:2]:
            return False
        one, other = (self._tensors.bytes_of(name) for name in ("output.weight", "token_embd.weight"))
        parts = (slice(first, first + 2**20) for first in range(0, head.size, 2**20))
        return all(np.array_equal(one[part], other[part]) for part in parts)

    def _token_ids(self) -> dict[str, Any]:
        """The ids that begin, end and pad a text. What ends a turn of a chat, or a message, ends a text too."""
        names = ("bos", "eos", "padding", "eot", "eom")
        ids = {name: self.header.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in names}
        if not all(type(id) is int for id in ids.values() if id is not None):
            raise ValueError(f"the ids of special tokens cannot be {brief(ids)}")
        ends = list(dict.fromkeys(ids[name] for name in ("eos", "eot", "eom") if ids[name] is not None))
        return {
            "bos_token_id": ids["bos"],
            "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
            "pad_token_id": ids["padding"],
        }

    @property
    def generation_config(self) -> dict[str, Any]:
        """Sampling settings by their names in generation_config.json. Token IDs are in `config`."""
        found = {name: self.header.metadata.get(f"general.sampling.{key}") for key, name in SAMPLING.items()}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def files(self) -> list[Path]:
        """The file itself."""
        return [self.path]

    @property
    def layout(self) -> Layout:
        """Whose names the tensors have."""
        return "hub"

    def auto_quantization(self, name: str, native: Mapped) -> Blocks | str | None:
        """See `Checkpoint`. What cannot be computed from its blocks is kept in int8: nf4 would round it once more."""
        hub = native.sources(name)
        sources = [source for each in hub for source in self._shapes.sources(each)]
        types = {self._tensors.stored[source].type for source in sources}
        if types <= PLAIN.keys():
            return None
        if len(types) == 1 and types <= TYPES.keys() and native.moves(name) and all(map(self._shapes.moves, hub)):
            rows = native.over(self._shapes.over({source: self._tensors.rows(source) for source in sources}))[name]
            if rows.dim() == 2 and rows.stride(1) == 1:  # not turned around
                return Blocks(types.pop(), rows)
        return "int8"

    @cached_property
    def _shapes(self) -> Mapped:
        return Mapped(self.form.table, self._tensors.meta, "hub", SimpleNamespace(**self.config))

    @cached_property
    def meta(self) -> Mapping[str, Tensor]:
        return dict(self._shapes)

    @cached_property
    def _hub(self) -> Mapped:
        return self._shapes.over(self._tensors)

    def stored_as(self, name: str) -> str:
        return self._tensors.stored[self._shapes.sources(name)[0]].type

    def __getitem__(self, name: str) -> Tensor:
        return self._hub[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._hub)

    def __len__(self) -> int:
        return len(self._hub)

    def release(self) -> None:
        self._tensors.release()


def checkpoint_at(path: Path) -> Checkpoint:
    """The checkpoint in a folder, or in a GGUF file. ValueError: it is a file that is damaged or without code."""
    return GGUFCheckpoint(path) if path.is_file() else Checkpoint(path)


def llama3(factors: Tensor, rope: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Llama 3's rope_parameters by which the waves are as many times as long as a file says. ValueError: others."""
    found = {"rope_type": "llama3", "factor": float(str(factors.max().item())), **LLAMA3}
    default = {"rope_type": "default", "rope_theta": rope.get("rope_theta", 10000.0)}
    rotary.check("rope_freqs.weight", default)
    plain, stretched = (
        torch.tensor(rotary.rope_of(settings, size).frequencies) for settings in (default, default | found)
    )
    if factors.shape != plain.shape or not torch.allclose(plain / stretched, factors.float(), rtol=1e-4):
        raise ValueError("rope_freqs.weight stretches the rotary waves by other factors than Llama 3's")
    return found
