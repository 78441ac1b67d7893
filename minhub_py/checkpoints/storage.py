"""Checkpoint files: settings and lazily loaded tensors of a folder in Hub layout.

safetensors files are memory-mapped: a tensor's data is read on first use and is not copied.
`writing.py` is the reverse direction, `pickles.py` reads PyTorch's older formats.

Sources: the safetensors format (header length, JSON header, data), and the Hub's `*.index.json` for
shards.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from reprlib import repr as brief
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from minhub_py.checkpoints.layout import AGENT_SETTINGS, WEIGHTS, folder_gguf_hint, shard_names
from minhub_py.checkpoints.pickles import cannot_map, is_archive, mapping_message, open_pickle
from minhub_py.system.json_text import JsonObject
from minhub_py.system.printable import reason_of
from minhub_py.system.shapes import read_json
from minhub_py.system.spelling import setting
from weights_map.blocks import Blocks
from weights_map.conversion import Mapped

T = TypeVar("T")
Layout = Literal["hub", "native"]

# Supported dtypes by their safetensors names. U8 stores two 4-bit weights per byte.
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U8": torch.uint8,
}
# Dtypes of mask buffers in old checkpoints. The buffers are dropped, but their shapes are listed.
MASKS = {"BOOL": torch.bool, "I64": torch.int64}
# Last part of the names of integers that GPTQ, AWQ and compressed-tensors store.
PACKED = ("qweight", "qzeros", "g_idx", "weight_packed", "weight_shape", "weight_zero_point")
MAX_SETTINGS = 10_000_000  # bytes of a settings file; published files have up to a million
# Settings of Laya with an effect after training.
AGENT_NAMES = (
    "encoder",
    "head_layers",
    "act_costs",
    "max_len",
    "head_max_len",
    "temperature",
    "temperature_by_options",
    "option_layout",
)
MAX_TENSORS = 20_000  # per checkpoint; published checkpoints have up to 1,200


def read_settings(folder: Path, *names: str) -> dict[str, object]:
    """The settings in JSON files of a folder, some of which may be missing; later files take
    precedence.
    """
    paths = [folder / name for name in names]
    return {
        key: value
        for path in paths
        if path.exists()
        for key, value in read_json(path, JsonObject, limit=MAX_SETTINGS).items()
    }


def agent_settings(folder: Path) -> JsonObject | None:
    """The settings of a Laya checkpoint in one dictionary, without those of training; None for
    other folders. ValueError: its encoder is not ModernBERT. FileNotFoundError: it lacks the
    encoder's settings.
    """
    path, encoder_path = folder / AGENT_SETTINGS, folder / "encoder" / "config.json"
    if not path.exists():
        return None
    agent = read_json(path, JsonObject, limit=MAX_SETTINGS)
    if not encoder_path.exists():
        raise FileNotFoundError(
            f"{folder} has {AGENT_SETTINGS}, but no encoder/config.json: copy this file there, too"
        )
    encoder = read_json(encoder_path, JsonObject, limit=MAX_SETTINGS)
    if encoder.get("model_type") != "modernbert":
        raise ValueError(
            f"{encoder_path} describes a {brief(encoder.get('model_type'))}: of Laya's encoders,"
            " only modernbert is supported"
        )
    own = {name: agent[name] for name in AGENT_NAMES if name in agent}
    encoder = {name: value for name, value in encoder.items() if name not in AGENT_NAMES}
    return {**encoder, **own, "model_type": "laya", "architectures": ["LayaForDecision"]}


class Contents(NamedTuple):
    """The tensors of a checkpoint, from the headers of its files.

    meta: shapes and dtypes by stored name, on the meta device.    files: the file of each tensor.
    layout: of the names, "native" (written by `minhub convert --to native`) or "hub".
    """

    meta: Mapping[str, Tensor]
    files: Mapping[str, Path]
    layout: Layout


class Checkpoint(Mapping[str, Tensor]):
    """Settings and tensors of a folder. Tensors have their stored names and are loaded on access.

    FileNotFoundError: the folder has no weights, or a shard is missing. ValueError: a file is
    corrupt, not a checkpoint, or a pickle that contains code.

    dtypes: supported dtypes by their safetensors names.    has_blocks: whether weights may be stored
    in blocks, or in integers that become blocks; `quantize="auto"` uses them.
    biases: names of the biases of quantized weights.
    """

    dtypes: ClassVar[Mapping[str, torch.dtype]] = DTYPES
    max_tensors: ClassVar[int] = MAX_TENSORS
    has_blocks = False
    biases: Sequence[str] = ()

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: dict[Path, Any] = {}

    @cached_property
    def config(self) -> JsonObject | None:
        """The content of config.json, or of the settings of Laya; None without these files."""
        path = self.path / "config.json"
        if not path.exists():
            return agent_settings(self.path)
        return read_json(path, JsonObject, limit=MAX_SETTINGS)

    @cached_property
    def generation_config(self) -> JsonObject:
        """The content of generation_config.json; empty without this file."""
        path = self.path / "generation_config.json"
        return read_json(path, JsonObject, limit=MAX_SETTINGS) if path.exists() else {}

    @cached_property
    def files(self) -> list[Path]:
        """The weight file, or the shards of an index."""
        for name in (*WEIGHTS, "model.pt"):
            path = self.path / name
            if not path.is_file():
                continue
            if not name.endswith(".index.json"):
                return [path]
            files = [self.path / shard for shard in shard_names(path, str(path))]
            for file in files:
                if not file.is_file():
                    raise FileNotFoundError(
                        f"{path} names {file.name}, which is missing: download the checkpoint again"
                    )
            return files
        hint = folder_gguf_hint(self.path) or " Check the path"
        raise FileNotFoundError(f"{self.path} has no weights (none of {', '.join(WEIGHTS)}).{hint}")

    def auto_quantization(self, names: Sequence[str], native: Mapped) -> Blocks | str | None:
        """The representation of native tensors with `quantize="auto"`: the file's blocks, a type,
        or None for floats.

        names: one tensor, or the matrices of all experts.    native: the checkpoint's shapes by
        native name.
        """
        return None

    def stored_dtype(self, name: str) -> str:
        """The name of a tensor's dtype in its file."""
        return str(self.contents.meta[name].dtype).removeprefix("torch.")

    @cached_property
    def contents(self) -> Contents:
        """The names, shapes and dtypes of all tensors. Reads the headers of the files, no data."""
        meta: dict[str, Tensor] = {}
        files: dict[str, Path] = {}
        layout: Layout = "hub"
        for file in self.files:
            handle = self._open[file] = open_tensors(file)
            is_pickle = isinstance(handle, dict)
            if not is_pickle and (handle.metadata() or {}).get("layout") == "native":
                layout = "native"
            for name in handle.keys():  # noqa: SIM118  # a safe_open is not a mapping
                if not name.isprintable() or len(name) > 200:  # names appear in error messages
                    raise ValueError(f"{file} is corrupt: it contains a tensor named {brief(name)}")
                if name in files:
                    raise ValueError(f"{name} is both in {files[name].name} and in {file.name}")
                if len(files) == self.max_tensors:
                    raise ValueError(
                        f"{file} has too many tensors; the maximum is {self.max_tensors:,}"
                    )
                files[name] = file
                tensor = handle[name] if is_pickle else handle.get_slice(name)
                shape, stored = (
                    (tensor.shape, tensor.dtype)
                    if is_pickle
                    else (tensor.get_shape(), tensor.get_dtype())
                )
                dtype = checked_dtype(name, stored, {**self.dtypes, **MASKS})
                meta[name] = meta_tensor(name, shape, dtype)
        return Contents(meta, files, layout)

    def __getitem__(self, name: str) -> Tensor:
        file = self.contents.files[name]
        if file not in self._open:
            self._open[file] = open_tensors(file)
        handle = self._open[file]
        is_pickle = isinstance(handle, dict)
        checked_dtype(
            name,
            handle[name].dtype if is_pickle else handle.get_slice(name).get_dtype(),
            self.dtypes,
        )
        return handle[name] if is_pickle else handle.get_tensor(name)  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[str]:
        return iter(self.contents.meta)

    def __len__(self) -> int:
        return len(self.contents.meta)

    def release(self) -> None:
        """Close the files. Their mapped memory is freed together with the tensors that use it."""
        # PyTorch's old format cannot be mapped: closing it would read the complete file again for
        # each tensor.
        self._open = {
            file: handle
            for file, handle in self._open.items()
            if isinstance(handle, dict) and not is_archive(file)
        }


def meta_tensor(name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor without data. ValueError: a file declares an invalid shape."""
    try:
        return torch.empty(shape, dtype=dtype, device="meta")
    # with a size of 0, the other sizes are unchecked
    except (RuntimeError, TypeError, OverflowError) as error:
        raise ValueError(f"{name} has the invalid shape {brief(shape)}") from error


def checked_dtype(
    name: str, stored: str | torch.dtype, allowed: Mapping[str, torch.dtype]
) -> torch.dtype:
    """The torch dtype of a stored dtype. ValueError: it is not one of `allowed`."""
    dtype = allowed.get(stored) if isinstance(stored, str) else stored
    if dtype is None or dtype not in allowed.values():
        if str(stored).startswith(("F8_", "torch.float8_")):
            raise ValueError(
                f"{name} is stored as {stored}, but config.json has no quantization_config that"
                " names its scales: download config.json again, or use the BF16 repository of the"
                f" same model; {setting('quantize', 'int8')} reduces it to the same size"
            )
        if name.rpartition(".")[2] in PACKED:
            raise ValueError(
                f"{name} is stored as {stored}, but config.json has no quantization_config that"
                " describes its format: download config.json again, or add the settings of"
                " quantize_config.json to it as quantization_config"
            )
        raise ValueError(f"{name} is stored as {stored}; supported dtypes are {', '.join(DTYPES)}")
    return dtype


def open_tensors(path: Path) -> Any:
    """An open safetensors file, memory-mapped, or the state dict of a pickle.

    ValueError: the file is corrupt, or a pickle that contains code. MemoryError: it cannot be
    mapped.
    """
    if path.suffix != ".safetensors":
        return open_pickle(path)
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, RuntimeError, OverflowError, MemoryError) as error:
        if cannot_map(error):
            raise MemoryError(mapping_message(path)) from error
        raise ValueError(
            f"{path} is corrupt or truncated ({reason_of(error)}): delete it and download it again"
        ) from error
