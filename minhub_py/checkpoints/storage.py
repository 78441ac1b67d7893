"""Checkpoint files: settings and lazily loaded tensors of a folder in Hub layout.

safetensors files are memory-mapped: a tensor's data is read on first use and is not copied. `writing.py` is the reverse
direction, `pickles.py` reads PyTorch's older formats.

Sources: the safetensors format (header length, JSON header, data), and the Hub's `*.index.json` for shards.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from reprlib import repr as brief
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from minhub_py.checkpoints.layout import WEIGHTS, folder_gguf_hint, shard_names
from minhub_py.checkpoints.pickles import cannot_map, is_archive, mapping_message, open_pickle
from minhub_py.system.printable import gist
from minhub_py.system.shapes import read_json
from minhub_py.system.spelling import setting
from weights_map.blocks import Blocks
from weights_map.conversion import Mapped

Layout = Literal["hub", "native"]

# Supported dtypes by their safetensors names. U8 stores two 4-bit weights per byte.
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "U8": torch.uint8,
}  # fmt: skip
# Dtypes of mask buffers in old checkpoints. The buffers are dropped, but their shapes are listed.
MASKS = {"BOOL": torch.bool, "I64": torch.int64}
MAX_SETTINGS = 10_000_000  # bytes of a settings file; published files have up to a million
MAX_TENSORS = 20_000  # per checkpoint; published checkpoints have up to 1,200


def read_settings(folder: Path, *names: str) -> dict[str, Any]:
    """The settings in JSON files of a folder, some of which may be missing; later files take precedence."""
    paths = [folder / name for name in names]
    return {
        key: value
        for path in paths
        if path.exists()
        for key, value in read_json(path, dict[str, Any], limit=MAX_SETTINGS).items()
    }


class Checkpoint(Mapping[str, Tensor]):
    """Settings and tensors of a folder. Tensors have their stored names and are loaded on access.

    FileNotFoundError: the folder has no weights, or a shard is missing. ValueError: a file is corrupt, not a
    checkpoint, or a pickle that contains code.
    """

    adapter: Path | None = None  # the folder of an adapter that belongs to the model

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: dict[Path, Any] = {}

    @cached_property
    def config(self) -> dict[str, Any] | None:
        """The content of config.json; None without this file."""
        path = self.path / "config.json"
        return read_settings(self.path, path.name) if path.exists() else None

    @cached_property
    def generation_config(self) -> dict[str, Any]:
        """The content of generation_config.json; empty without this file."""
        return read_settings(self.path, "generation_config.json")

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
        """The representation of native tensors with `quantize="auto"`: the file's blocks, a type, or None for floats.

        names: one tensor, or the matrices of all experts.    native: the checkpoint's shapes by native name.
        """
        return None

    def stored_dtype(self, name: str) -> str:
        """The name of a tensor's dtype in its file."""
        return str(self.meta[name].dtype).removeprefix("torch.")

    @cached_property
    def _file_of(self) -> dict[str, Path]:
        """The file of each tensor."""
        locations: dict[str, Path] = {}
        for file in self.files:
            for name in self._handle(file).keys():  # noqa: SIM118  # a safe_open is not a mapping
                if not name.isprintable() or len(name) > 200:  # names appear in error messages
                    raise ValueError(f"{file} is corrupt: it contains a tensor named {brief(name)}")
                if name in locations:
                    raise ValueError(f"{name} is both in {locations[name].name} and in {file.name}")
                if len(locations) == MAX_TENSORS:
                    raise ValueError(f"{file} has too many tensors; the maximum is {MAX_TENSORS:,}")
                locations[name] = file
        return locations

    @cached_property
    def layout(self) -> Layout:
        """The tensors' names: "native" (written by `minhub convert --to native`) or "hub"."""
        for file in self.files:
            handle = self._handle(file)
            if not isinstance(handle, dict) and (handle.metadata() or {}).get("layout") == "native":
                return "native"
        return "hub"

    def _handle(self, file: Path) -> Any:
        """An open safetensors file, or the state dict of a pickle."""
        if file not in self._open:
            self._open[file] = open_safetensors(file) if file.suffix == ".safetensors" else open_pickle(file)
        return self._open[file]

    def __getitem__(self, name: str) -> Tensor:
        handle = self._handle(self._file_of[name])
        is_dict = isinstance(handle, dict)
        checked_dtype(name, handle[name].dtype if is_dict else handle.get_slice(name).get_dtype(), DTYPES)
        return handle[name] if is_dict else handle.get_tensor(name)  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)

    def release(self) -> None:
        """Close the files. Their mapped memory is freed together with the tensors that use it."""
        # PyTorch's old format cannot be mapped: closing it would read the complete file again for each tensor.
        self._open = {
            file: handle for file, handle in self._open.items() if isinstance(handle, dict) and not is_archive(file)
        }

    @cached_property
    def meta(self) -> Mapping[str, Tensor]:
        """Shapes and dtypes of all tensors, on the meta device. Reads no data."""
        result = {}
        for name, file in self._file_of.items():
            handle = self._handle(file)
            if isinstance(handle, dict):
                shape, stored = handle[name].shape, handle[name].dtype
            else:
                tensor = handle.get_slice(name)
                shape, stored = tensor.get_shape(), tensor.get_dtype()
            dtype = checked_dtype(name, stored, DTYPES | MASKS)
            try:
                result[name] = torch.empty(shape, dtype=dtype, device="meta")
            except (RuntimeError, TypeError, OverflowError) as error:  # with a size of 0, the other sizes are unchecked
                raise ValueError(f"{name} has the invalid shape {brief(shape)}") from error
        return result


def checked_dtype(name: str, stored: str | torch.dtype, allowed: Mapping[str, torch.dtype]) -> torch.dtype:
    """The torch dtype of a stored dtype. ValueError: it is not one of `allowed`."""
    dtype = allowed.get(stored) if isinstance(stored, str) else stored
    if dtype is None or dtype not in allowed.values():
        if str(stored).startswith(("F8_", "torch.float8_")):
            raise ValueError(
                f"{name} is stored as {stored}: FP8-quantized files are not supported. Use the BF16 repository of the "
                f"same model; {setting('quantize', 'int8')} reduces it to the same size"
            )
        raise ValueError(f"{name} is stored as {stored}; supported dtypes are {', '.join(DTYPES)}")
    return dtype


def open_safetensors(path: Path) -> Any:
    """Open a file with safe_open, memory-mapped. ValueError: it is corrupt. MemoryError: it cannot be mapped."""
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, RuntimeError, OverflowError, MemoryError) as error:
        if cannot_map(error):
            raise MemoryError(mapping_message(path)) from error
        raise ValueError(f"{path} is corrupt or truncated ({gist(error)}): delete it and download it again") from error
