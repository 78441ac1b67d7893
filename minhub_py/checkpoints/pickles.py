"""State dicts in PyTorch's pickle formats, which are untrusted: only tensors are loaded.

Sources: PyTorch's serialization (a zip archive, or in older versions five pickles and the data of
the storages).
"""

import errno
import io
import os
import pickle
import pickletools
import re
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from minhub_py.system.printable import reason_of

# Names that the pickle of a state dict may contain, as "module name".
ALLOWED_NAMES = re.compile(
    r"collections OrderedDict|torch\._utils"
    r" _rebuild_(tensor|tensor_v2|tensor_v3|parameter|parameter_with_state)"
    r"|torch\._tensor _rebuild_from_type_v2|torch\.nn\.parameter Parameter|torch(\.storage)?"
    r" \w+Storage"
    r"|torch (Tensor|Size|device|b?float\w+|u?int\d+|bool)"
)


def open_pickle(path: Path) -> dict[str, Tensor]:
    """Load a .bin or .pt state dict with PyTorch's restricted unpickler, memory-mapped if the
    format allows it.

    ValueError: the file is corrupt, could run code, needs more memory than its size, or contains
    other objects than tensors. MemoryError: it cannot be mapped.
    """
    try:
        check_pickle(path)
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive(path))
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} is rejected: it is corrupt, or a pickle with other objects than tensors, which"
            " could run code. Delete it and download it again, or use a checkpoint in safetensors"
            " format"
        ) from error
    except Exception as error:  # corrupt pickles raise exceptions of many types
        if cannot_map(error):
            raise MemoryError(mapping_message(path)) from error
        # A seek to an invalid position is an OSError, too. Other OSErrors are errors of the disk.
        if isinstance(error, OSError) and error.errno not in (errno.EINVAL, None):
            raise
        raise ValueError(
            f"{path} is corrupt or not a PyTorch state dict ({reason_of(error)}): delete it and download"
            " it again"
        ) from error
    if not isinstance(state, dict) or not all(is_plain_tensor(tensor) for tensor in state.values()):
        raise ValueError(f"{path} is not a state dict of plain tensors")
    return {str(name): tensor for name, tensor in state.items()}


def check_pickle(path: Path) -> None:
    """Check the instructions of a pickle without running them: PyTorch's unpickler allows calls
    that fill memory.

    UnpicklingError: a call other than those that build the tensors of a state dict. ValueError: an
    archive with records that overlap or exceed the file, or not a pickle. RuntimeError: a corrupt
    archive.
    """
    if is_archive(path):
        # PyTorch's own reader: a file may have two directories, and Python's zipfile may choose the
        # other one.
        reader = torch._C.PyTorchFileReader(str(path))
        check_records(path, reader)
        check_calls(io.BytesIO(reader.get_record("data.pkl")))
        return
    # PyTorch's old format: five pickles, then the data of the storages
    with path.open("rb") as file:
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
        (
            reader.get_record_header_offset(name),
            reader.get_record_offset(name) + reader.get_record_size(name),
        )
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

    UnpicklingError: a name that is not in ALLOWED_NAMES, or more instructions than its tensors
    need.
    """
    storages = 0
    for count, (instruction, argument, _) in enumerate(pickletools.genops(file)):
        storages += instruction.name in ("BINPERSID", "PERSID")
        if instruction.name in ("STACK_GLOBAL", "INST") or (
            instruction.name == "GLOBAL" and not ALLOWED_NAMES.fullmatch(str(argument))
        ):
            raise pickle.UnpicklingError(f"{instruction.name} {argument}")
        # torch.save writes 30 instructions for a tensor, and 10 for a module's version.
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


def cannot_map(error: BaseException) -> bool:
    """Whether the operating system refused to map a file: safetensors raises MemoryError, PyTorch
    RuntimeError.

    PyTorch's allocator is not meant: corrupt pickles require memory that does not exist.
    """
    message = str(error)
    return os.strerror(errno.ENOMEM) in message and "DefaultCPUAllocator" not in message


def mapping_message(path: Path) -> str:
    """The message if a file cannot be mapped."""
    size = path.stat().st_size / 1e9
    return (
        f"{path} cannot be mapped into memory ({size:.1f} GB): the system limits the memory of this"
        " process, and the file is not corrupt. Raise the limit (ulimit -v, vm.overcommit_memory),"
        " or use a checkpoint with smaller files"
    )
