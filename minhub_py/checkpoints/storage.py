"""Checkpoint files: settings and lazily loaded tensors of a folder in Hub layout, and the reverse.

safetensors files are memory-mapped: a tensor's data is read on first use and is not copied. Tensors are written one at
a time. Neither direction needs the memory of a complete checkpoint.

Sources: the safetensors format (header length, JSON header, data), and the Hub's `*.index.json` for shards.
"""

import errno
import io
import json
import os
import pickle
import pickletools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from reprlib import repr as brief
from typing import IO, Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from minhub_py.checkpoints.layout import COMPANIONS, WEIGHTS, folder_gguf_hint, shard_names
from minhub_py.system.printable import gist
from minhub_py.system.spelling import setting
from weights_map.blocks import Blocks
from weights_map.engine import Mapped

Layout = Literal["hub", "native"]

# Supported dtypes by their safetensors names. U8 stores two 4-bit weights per byte.
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "U8": torch.uint8,
}  # fmt: skip
# Dtypes of mask buffers in old checkpoints. The buffers are dropped, but their shapes are listed.
MASKS = {"BOOL": torch.bool, "I64": torch.int64}
MAX_SETTINGS = 10_000_000  # bytes of a settings file; published files have up to a million
MAX_TENSORS = 20_000  # per checkpoint; published checkpoints have up to 1,200
# Names that the pickle of a state dict may contain, as "module name".
ALLOWED_NAMES = re.compile(
    r"collections OrderedDict|torch\._utils _rebuild_(tensor|tensor_v2|tensor_v3|parameter|parameter_with_state)"
    r"|torch\._tensor _rebuild_from_type_v2|torch\.nn\.parameter Parameter|torch(\.storage)? \w+Storage"
    r"|torch (Tensor|Size|device|b?float\w+|u?int\d+|bool)"
)


def read_json(path: Path) -> Any:
    """Read a JSON file. ValueError: it is corrupt."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise ValueError(f"{path} is not valid JSON ({error}): download it again") from error


def read_object(path: Path, limit: int | None = None) -> dict[str, Any]:
    """Read a JSON file that contains an object. ValueError: it is corrupt, has other content, or over `limit` bytes."""
    if limit is not None and path.stat().st_size > limit:
        raise ValueError(f"{path} has {path.stat().st_size:,} bytes; the maximum for settings is {limit:,}")
    content = read_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} should contain a JSON object, not {type(content).__name__}")
    return content


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
        return read_object(path, MAX_SETTINGS) if path.exists() else None

    @cached_property
    def generation_config(self) -> dict[str, Any]:
        """The content of generation_config.json; empty without this file."""
        path = self.path / "generation_config.json"
        return read_object(path, MAX_SETTINGS) if path.exists() else {}

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


def cannot_map(error: BaseException) -> bool:
    """Whether the operating system refused to map a file: safetensors raises MemoryError, PyTorch RuntimeError.

    PyTorch's allocator is not meant: corrupt pickles require memory that does not exist.
    """
    message = str(error)
    return os.strerror(errno.ENOMEM) in message and "DefaultCPUAllocator" not in message


def mapping_message(path: Path) -> str:
    """The message if a file cannot be mapped."""
    size = path.stat().st_size / 1e9
    return (
        f"{path} cannot be mapped into memory ({size:.1f} GB): the system limits the memory of this process, and the "
        "file is not corrupt. Raise the limit (ulimit -v, vm.overcommit_memory), or use a checkpoint with smaller files"
    )


def open_pickle(path: Path) -> dict[str, Tensor]:
    """Load a .bin or .pt state dict with PyTorch's restricted unpickler, memory-mapped if the format allows it.

    ValueError: the file is corrupt, could run code, needs more memory than its size, or contains other objects than
    tensors. MemoryError: it cannot be mapped.
    """
    try:
        check_pickle(path)
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive(path))
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} is rejected: it is corrupt, or a pickle with other objects than tensors, which could run code. "
            "Delete it and download it again, or use a checkpoint in safetensors format"
        ) from error
    except Exception as error:  # corrupt pickles raise exceptions of many types
        if cannot_map(error):
            raise MemoryError(mapping_message(path)) from error
        # A seek to an invalid position is an OSError, too. Other OSErrors are errors of the disk.
        if isinstance(error, OSError) and error.errno not in (errno.EINVAL, None):
            raise
        raise ValueError(
            f"{path} is corrupt or not a PyTorch state dict ({gist(error)}): delete it and download it again"
        ) from error
    if not isinstance(state, dict) or not all(is_plain_tensor(tensor) for tensor in state.values()):
        raise ValueError(f"{path} is not a state dict of plain tensors")
    return {str(name): tensor for name, tensor in state.items()}


def check_pickle(path: Path) -> None:
    """Check the instructions of a pickle without running them: PyTorch's unpickler allows calls that fill memory.

    UnpicklingError: a call other than those that build the tensors of a state dict. ValueError: an archive with records
    that overlap or exceed the file, or not a pickle. RuntimeError: a corrupt archive.
    """
    if is_archive(path):
        # PyTorch's own reader: a file may have two directories, and Python's zipfile may choose the other one.
        reader = torch._C.PyTorchFileReader(str(path))
        check_records(path, reader)
        check_calls(io.BytesIO(reader.get_record("data.pkl")))
        return
    with path.open("rb") as file:  # PyTorch's old format: five pickles, then the data of the storages
        for _ in range(5):
            check_calls(file)


def is_archive(path: Path) -> bool:
    """Whether PyTorch reads a file as a zip archive. It checks the first bytes only."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def check_records(path: Path, reader: Any) -> None:
    """ValueError: the records of an archive overlap, exceed the file, or are compressed."""
    names = reader.get_all_records()
    spans = sorted(
        (reader.get_record_header_offset(name), reader.get_record_offset(name) + reader.get_record_size(name))
        for name in names
    )
    starts = [start for start, _ in spans[1:]] + [path.stat().st_size]
    if any(end > next_start for (_, end), next_start in zip(spans, starts, strict=True)):
        raise ValueError("its records overlap, exceed the file, or are compressed")
    with path.open("rb") as file:
        for start, _ in spans:
            file.seek(start + 8)  # the compression method in the record's local header
            if file.read(2) != bytes(2):
                raise ValueError("its records are compressed; torch.save does not compress")


def check_calls(file: IO[bytes]) -> None:
    """Check the instructions of one pickle.

    UnpicklingError: a name that is not in ALLOWED_NAMES, or more instructions than its tensors need.
    """
    storages = 0
    for count, (instruction, argument, _) in enumerate(pickletools.genops(file)):
        storages += instruction.name in ("BINPERSID", "PERSID")
        if instruction.name in ("STACK_GLOBAL", "INST") or (
            instruction.name == "GLOBAL" and not ALLOWED_NAMES.fullmatch(str(argument))
        ):
            raise pickle.UnpicklingError(f"{instruction.name} {argument}")
        # torch.save writes 30 instructions for a tensor, and 10 for the version of a module.
        if count > 10_000 + 1_000 * storages:
            raise pickle.UnpicklingError(f"{count:,} instructions, and {storages:,} tensors")


def is_plain_tensor(value: object) -> bool:
    """Whether a value is a dense CPU tensor whose elements do not share memory."""
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and value.nbytes <= value.untyped_storage().nbytes()
    )


def write_checkpoint(
    folder: Path,
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any],
    *,
    companions: Mapping[str, bytes] | None = None,
    outdated: Collection[str] | None = None,
    meta: Mapping[str, Tensor] | None = None,
    dtype: torch.dtype | None = None,
    max_shard_size: int = 5 * 10**9,
    layout: Layout = "hub",
    progress: Callable[[int, int], object] | None = None,
) -> None:
    """Write config.json and safetensors shards to a folder.

    All files are written under temporary names and renamed at the end, and outdated files of an earlier checkpoint are
    deleted last: a full disk or an interrupt loses no data.

    Args:
        folder: the target; created if necessary.
        tensors: loaded one at a time.
        config: the content of config.json.
        companions: the content of further files by name, such as "1_Pooling/config.json".
        outdated: names of an earlier checkpoint's companions to delete. By default all, or none without `companions`.
        meta: shapes and dtypes of `tensors`; by default `tensors`.
        dtype: the dtype for floating-point tensors. None keeps their dtypes.
        max_shard_size: in bytes. A larger tensor has a separate shard.
        layout: "native" for tensors with native names.
        progress: called with the bytes written and the total.

    Raises:
        ValueError: a tensor has an unsupported dtype.
        OSError: the folder cannot be written.
    """
    planned = {
        name: tensor.to("meta", dtype if dtype and tensor.is_floating_point() else tensor.dtype)
        for name, tensor in (meta or tensors).items()
    }
    for name, tensor in planned.items():
        checked_dtype(name, tensor.dtype, DTYPES)
    shards = _shards(planned, max_shard_size)
    names = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    if len(shards) == 1:
        names = ["model.safetensors"]
    written, total = 0, sum(tensor.nbytes for tensor in planned.values())

    def count(size: int) -> None:
        nonlocal written
        written += size
        if progress is not None:
            progress(written, total)

    drafts: dict[Path, Path] = {}  # temporary path -> final path

    def draft(name: str) -> Path:
        final = folder / name
        final.parent.mkdir(exist_ok=True)
        path = final.with_name(f".{final.name}.partial")
        drafts[path] = final
        return path

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, shard in zip(names, shards, strict=True):
            write_safetensors(draft(name), shard, tensors, layout, count)
        if len(shards) > 1:
            index = {
                "metadata": {"total_size": total},
                "weight_map": {key: name for name, shard in zip(names, shards, strict=True) for key in shard},
            }
            draft("model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        for name, data in (companions or {}).items():
            draft(name).write_bytes(data)
        draft("config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        for path, final in drafts.items():
            os.replace(path, final)
        if outdated is None:
            outdated = () if companions is None else COMPANIONS
        for path in _checkpoint_files(folder, outdated) - set(drafts.values()):
            path.unlink()
    except OSError as error:
        reason = error.strerror or str(error)
        raise type(error)(f"{folder} cannot be written ({reason}): make room, or name another folder") from error
    finally:
        for path in drafts:
            path.unlink(missing_ok=True)


def _checkpoint_files(folder: Path, companions: Collection[str]) -> set[Path]:
    """Files that write_checkpoint() may write. Outdated ones could be loaded instead of the new ones."""
    weights = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json")
    files = {path for path in folder.iterdir() if weights.fullmatch(path.name)}
    return files | {folder / name for name in companions if (folder / name).is_file()}


def _shards(planned: Mapping[str, Tensor], max_shard_size: int) -> list[dict[str, Tensor]]:
    """Assign tensors to shards in their order."""
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in planned.items():
        if shards[-1] and size + tensor.nbytes > max_shard_size:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    return shards


def write_safetensors(
    path: Path,
    planned: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    layout: str = "hub",
    progress: Callable[[int], object] = lambda size: None,
) -> None:
    """Write one safetensors file, with one tensor in memory at a time; the library's writer needs all of them.

    planned: shapes and dtypes of the file.    tensors: source of the data.    progress: called with the bytes of each
    tensor.
    """
    dtype_names = {dtype: name for name, dtype in DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt", "layout": layout}}
    order = sorted(planned, key=lambda name: -planned[name].itemsize)  # aligns each tensor to its dtype
    offset = 0
    for name in order:
        end = offset + planned[name].nbytes
        header[name] = {
            "dtype": dtype_names[planned[name].dtype],
            "shape": list(planned[name].shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            tensor = tensors[name].detach().to("cpu", planned[name].dtype).contiguous()
            file.write(tensor.flatten().view(torch.uint8).numpy().data)
            progress(tensor.nbytes)
        file.flush()
        os.fsync(file.fileno())
