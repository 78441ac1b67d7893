"""Writing checkpoints: config.json and safetensors files, with one tensor in memory at a time."""

import json
import os
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from minhub_py.checkpoints.layout import COMPANIONS
from minhub_py.checkpoints.storage import DTYPES, Layout, checked_dtype
from minhub_py.system.lock import FULL


def unwritable(path: Path, error: OSError, kind: str) -> OSError:
    """The error for a path that cannot be written, with the next step. kind: "file" or "folder"."""
    first = "check its permissions, or " if isinstance(error, PermissionError) else ""
    first = "free disk space, or " if error.errno in FULL else first
    return type(error)(
        f"{path} cannot be written ({error.strerror or error}): {first}name another {kind}"
    )


def write_checkpoint(
    folder: Path,
    tensors: Mapping[str, Tensor],
    config: Mapping[str, object],
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

    All files are written under temporary names and renamed at the end, and outdated files of an
    earlier checkpoint are deleted last: a full disk or an interrupt loses no data.

    Args:
        folder: the target; created if necessary.
        tensors: loaded one at a time.
        config: the content of config.json.
        companions: the content of further files by name, such as "1_Pooling/config.json".
        outdated: names of an earlier checkpoint's companions to delete. By default all, or none
            without `companions`.
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
                "weight_map": {
                    key: name for name, shard in zip(names, shards, strict=True) for key in shard
                },
            }
            draft("model.safetensors.index.json").write_text(
                json.dumps(index, indent=2) + "\n", encoding="utf-8"
            )
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
        raise unwritable(folder, error, "folder") from error
    finally:
        for path in drafts:
            path.unlink(missing_ok=True)


def _checkpoint_files(folder: Path, companions: Collection[str]) -> set[Path]:
    """Files that write_checkpoint() may write. Outdated ones could be loaded instead of the new
    ones.
    """
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
    metadata: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write one safetensors file, with one tensor in memory at a time; the library's writer needs
    all of them.

    planned: shapes and dtypes of the file.    tensors: source of the data.    progress: called with
    each tensor's bytes.    metadata: further texts in the header.
    """
    dtype_names = {dtype: name for name, dtype in DTYPES.items()}
    header: dict[str, object] = {"__metadata__": {"format": "pt", "layout": layout, **metadata}}
    # aligns each tensor to its dtype
    order = sorted(planned, key=lambda name: -planned[name].itemsize)
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
