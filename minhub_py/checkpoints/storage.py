"""Checkpoint files: a folder in Hub layout -> its settings and its lazily opened tensors, and back to files.

safetensors files are memory-mapped: a tensor's bytes are read when they are first used, and are never copied on the
way. Writing goes tensor by tensor, so that neither direction needs the memory of a whole checkpoint.
Sources: the safetensors format (a length, a JSON header, the bytes), and the Hub's `*.index.json` for shards.
"""

import errno
import io
import json
import os
import pickle
import pickletools
import re
from collections.abc import Callable, Iterator, Mapping
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

# safetensors' names of the dtypes that a model may have; U8 holds weights of 4 bits, two a byte.
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "U8": torch.uint8,
}  # fmt: skip
# Those of the mask buffers of old checkpoints, which are dropped, but have a shape.
MASKS = {"BOOL": torch.bool, "I64": torch.int64}
MAX_SETTINGS = 10_000_000  # bytes of a file of settings; published ones have up to a million
MAX_TENSORS = 20_000  # of a checkpoint; published ones of the known families have up to 1,200
# The names in a pickle of a state dict: "module name".
BUILDERS = re.compile(
    r"collections OrderedDict|torch\._utils _rebuild_(tensor|tensor_v2|tensor_v3|parameter|parameter_with_state)"
    r"|torch\._tensor _rebuild_from_type_v2|torch\.nn\.parameter Parameter|torch(\.storage)? \w+Storage"
    r"|torch (Tensor|Size|device|b?float\w+|u?int\d+|bool)"
)


def read_json(path: Path) -> Any:
    """A JSON file's content. ValueError: it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # not UTF-8 is a ValueError too
        raise ValueError(f"{path} is not valid JSON ({error}); it is damaged or cut: fetch it again") from error


def read_object(path: Path, limit: int | None = None) -> dict[str, Any]:
    """Read a JSON file that holds an object. ValueError: it is corrupt, has other content, or over `limit` bytes."""
    if limit is not None and path.stat().st_size > limit:
        raise ValueError(f"{path} has {path.stat().st_size:,} bytes; this package reads settings of {limit:,}")
    content = read_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} should hold a JSON object, not {type(content).__name__}")
    return content


class Checkpoint(Mapping[str, Tensor]):
    """The files of a folder, each read once: its settings, and its tensors by the names in its files.

    A tensor is opened when it is asked for.

    FileNotFoundError: the folder has no weights, or lacks a shard. ValueError: a file is damaged, is no checkpoint,
    or wants to run code.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: dict[Path, Any] = {}

    @cached_property
    def config(self) -> dict[str, Any] | None:
        """config.json; None where there is none."""
        path = self.path / "config.json"
        return read_object(path, MAX_SETTINGS) if path.exists() else None

    @cached_property
    def generation_config(self) -> dict[str, Any]:
        """generation_config.json; empty where there is none."""
        path = self.path / "generation_config.json"
        return read_object(path, MAX_SETTINGS) if path.exists() else {}

    @cached_property
    def files(self) -> list[Path]:
        """The weight files: one, or the shards that an index names."""
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

    def auto_quantization(self, name: str, native: Mapped) -> Blocks | str | None:
        """How `quantize="auto"` keeps one of our tensors: in the blocks of its file, or quantized; None: in floats.

        native: the checkpoint's shapes under our names.
        """
        return None

    def stored_as(self, name: str) -> str:
        """The type that a tensor has in its file."""
        return str(self.meta[name].dtype).removeprefix("torch.")

    @cached_property
    def _places(self) -> dict[str, Path]:
        places: dict[str, Path] = {}
        for file in self.files:
            for name in self._handle(file).keys():  # noqa: SIM118  # a safe_open is no mapping
                if not name.isprintable() or len(name) > 200:  # errors show names, and a terminal obeys them
                    raise ValueError(f"{file} is damaged: it names a tensor {brief(name)}")
                if name in places:
                    raise ValueError(f"{name} is both in {places[name].name} and in {file.name}")
                if len(places) == MAX_TENSORS:
                    raise ValueError(f"{file} has too many tensors; this package reads {MAX_TENSORS:,}")
                places[name] = file
        return places

    @cached_property
    def layout(self) -> Layout:
        """Whose names the tensors have: ours ("native", by `minhub convert --to native`) or the Hub's ("hub")."""
        for file in self.files:
            handle = self._handle(file)
            if not isinstance(handle, dict) and (handle.metadata() or {}).get("layout") == "native":
                return "native"
        return "hub"

    def _handle(self, file: Path) -> Any:
        if file not in self._open:
            self._open[file] = open_safetensors(file) if file.suffix == ".safetensors" else open_pickle(file)
        return self._open[file]

    def __getitem__(self, name: str) -> Tensor:
        file = self._places[name]
        handle = self._handle(file)
        if isinstance(handle, dict):
            checked_dtype(name, handle[name].dtype, DTYPES)
            return handle[name]  # type: ignore[no-any-return]
        checked_dtype(name, handle.get_slice(name).get_dtype(), DTYPES)
        return handle.get_tensor(name)  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def release(self) -> None:
        """Close the files: memory that the tensors given so far mapped is free when they are."""
        # A file in PyTorch's old format cannot be mapped: it would be read as a whole again for every tensor.
        self._open = {
            file: handle for file, handle in self._open.items() if isinstance(handle, dict) and not is_archive(file)
        }

    @cached_property
    def meta(self) -> Mapping[str, Tensor]:
        """Shapes and dtypes alone, as tensors on the meta device: no data is read."""
        result = {}
        for name, file in self._places.items():
            handle = self._handle(file)
            if isinstance(handle, dict):
                shape, stored = handle[name].shape, handle[name].dtype
            else:
                part = handle.get_slice(name)
                shape, stored = part.get_shape(), part.get_dtype()
            dtype = checked_dtype(name, stored, DTYPES | MASKS)
            try:
                result[name] = torch.empty(shape, dtype=dtype, device="meta")
            except (RuntimeError, TypeError, OverflowError) as error:  # sizes beside a 0 can be anything
                raise ValueError(f"{name} has a shape that no tensor can have: {brief(shape)}") from error
        return result


def checked_dtype(name: str, stored: str | torch.dtype, allowed: Mapping[str, torch.dtype]) -> torch.dtype:
    """The dtype that a file of either format gives a tensor. ValueError: it is not one of `allowed`."""
    dtype = allowed.get(stored) if isinstance(stored, str) else stored
    if dtype is None or dtype not in allowed.values():
        if str(stored).startswith(("F8_", "torch.float8_")):
            raise ValueError(
                f"{name} is stored as {stored}: the file is FP8-quantized, which this package does not read. "
                f"Take the repository of the same model in BF16; {setting('quantize', 'int8')} makes it as small"
            )
        raise ValueError(f"{name} is stored as {stored}; this package reads {', '.join(DTYPES)}")
    return dtype


def open_safetensors(path: Path) -> Any:
    """A safe_open of `path`, memory-mapped. ValueError: it is damaged."""
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{path} is damaged or cut ({gist(error)}); delete it and fetch it again") from error


def open_pickle(path: Path) -> dict[str, Tensor]:
    """A .bin or .pt state dict, read by PyTorch's restricted unpickler, memory-mapped where its format allows.

    ValueError: the file is damaged, wants to run code or more memory than it has bytes, or holds something other than
    tensors.
    """
    try:
        check_pickle(path)
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive(path))
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} was refused: it is damaged, or a pickle that holds more than tensors and could run code. "
            "Delete it and fetch it again, or ask for the checkpoint in safetensors format"
        ) from error
    except Exception as error:  # a damaged pickle raises about anything
        # A seek to a wrong place is an OSError, too: all others are of the disk, not of what is on it.
        if isinstance(error, OSError) and error.errno not in (errno.EINVAL, None):
            raise
        raise ValueError(
            f"{path} is damaged or no PyTorch state dict ({gist(error)}); delete it and fetch it again"
        ) from error
    if not isinstance(state, dict) or not all(is_plain(tensor) for tensor in state.values()):
        raise ValueError(f"{path} holds something other than a state dict of plain tensors")
    return {str(name): tensor for name, tensor in state.items()}


def check_pickle(path: Path) -> None:
    """Check the instructions of a pickle without running them: PyTorch's unpickler allows calls that fill memory.

    UnpicklingError: a call other than those that build the tensors of a state dict. ValueError: an archive with records
    that overlap or exceed the file, or no pickle. RuntimeError: a corrupt archive.
    """
    if is_archive(path):
        # PyTorch's own reader: a file may have two directories, and Python's zipfile may choose the other one.
        reader = torch._C.PyTorchFileReader(str(path))
        check_records(path, reader)
        check_calls(io.BytesIO(reader.get_record("data.pkl")))
        return
    with path.open("rb") as file:  # PyTorch's old format: five pickles, then the bytes of the storages
        for _ in range(5):
            check_calls(file)


def is_archive(path: Path) -> bool:
    """Whether PyTorch reads a file as a zip archive. It decides by the first bytes."""
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
            file.seek(start + 8)  # the compression method in a record's own header
            if file.read(2) != bytes(2):
                raise ValueError("its records are compressed; torch.save does not compress")


def check_calls(file: IO[bytes]) -> None:
    """Check one pickle's instructions.

    UnpicklingError: a name other than those that build the tensors of a state dict, or more instructions than the
    pickle's tensors need.
    """
    storages = 0
    for count, (instruction, argument, _) in enumerate(pickletools.genops(file)):
        storages += instruction.name in ("BINPERSID", "PERSID")
        if instruction.name in ("STACK_GLOBAL", "INST") or (
            instruction.name == "GLOBAL" and not BUILDERS.fullmatch(str(argument))
        ):
            raise pickle.UnpicklingError(f"{instruction.name} {argument}")
        # torch.save writes 30 instructions for a tensor, and 10 for the version of a module.
        if count > 10_000 + 1_000 * storages:
            raise pickle.UnpicklingError(f"{count:,} instructions, and {storages:,} tensors")


def is_plain(value: object) -> bool:
    """Whether a pickle's value is a tensor that has its data, each value in a place of its own."""
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
    meta: Mapping[str, Tensor] | None = None,
    dtype: torch.dtype | None = None,
    max_shard_size: int = 5 * 10**9,
    layout: Layout = "hub",
    progress: Callable[[int, int], object] | None = None,
) -> None:
    """Write config.json, safetensors files of at most `max_shard_size` bytes each, and `companions` (None: leave them).

    `tensors` is asked for one tensor at a time, and a larger one has a file of its own; `meta` gives their shapes and
    dtypes beforehand (default: `tensors` itself). Floating tensors become `dtype`, others stay. Files take their names
    when all are whole, and what an earlier checkpoint has left in the folder goes last: a full disk or an interrupt
    loses nothing. `progress(done, total)` hears of bytes.

    ValueError: a tensor that is no weight. OSError: the folder cannot be written.
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
    done, total = 0, sum(tensor.nbytes for tensor in planned.values())

    def hear(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    finished: dict[Path, Path] = {}  # under a passing name -> its own

    def partial(name: str) -> Path:
        path = folder / f".{name}.partial"
        finished[path] = folder / name
        return path

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, shard in zip(names, shards, strict=True):
            write_safetensors(partial(name), shard, tensors, layout, hear)
        if len(shards) > 1:
            index = {
                "metadata": {"total_size": total},
                "weight_map": {key: name for name, shard in zip(names, shards, strict=True) for key in shard},
            }
            partial("model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        for name, data in (companions or {}).items():
            partial(name).write_bytes(data)
        partial("config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        for path, name_at_last in finished.items():
            os.replace(path, name_at_last)
        for path in _left_over(folder, with_companions=companions is not None) - set(finished.values()):
            path.unlink()
    except OSError as error:
        reason = error.strerror or str(error)
        raise type(error)(f"{folder} cannot be written ({reason}): make room, or name another folder") from error
    finally:
        for path in finished:
            path.unlink(missing_ok=True)


def _left_over(folder: Path, *, with_companions: bool) -> set[Path]:
    """Files of an earlier checkpoint in the folder: its shards would be found before the new ones."""
    ours = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json")
    return {
        path for path in folder.iterdir() if ours.fullmatch(path.name) or (with_companions and path.name in COMPANIONS)
    }


def _shards(planned: Mapping[str, Tensor], max_shard_size: int) -> list[dict[str, Tensor]]:
    """Fill one shard after the other, in the given order."""
    shards: list[dict[str, Tensor]] = [{}]
    filled = 0
    for name, tensor in planned.items():
        if shards[-1] and filled + tensor.nbytes > max_shard_size:
            shards.append({})
            filled = 0
        shards[-1][name] = tensor
        filled += tensor.nbytes
    return shards


def write_safetensors(
    path: Path,
    planned: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    layout: str = "hub",
    hear: Callable[[int], object] = lambda count: None,
) -> None:
    """One safetensors file of the tensors `planned` (shapes and dtypes), each asked of `tensors` when its turn comes.

    The library's own writer wants all tensors in memory at once; this one wants one. `hear` is told of bytes.
    """
    names = {dtype: name for name, dtype in DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt", "layout": layout}}
    order = sorted(planned, key=lambda name: -planned[name].itemsize)  # keeps every tensor aligned to its dtype
    offset = 0
    for name in order:
        end = offset + planned[name].nbytes
        header[name] = {
            "dtype": names[planned[name].dtype],
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
            hear(tensor.nbytes)
        file.flush()
        os.fsync(file.fileno())
