"""The prefix cache on disk: prefixes survive a restart, and programs that use the same folder share
them.

    FOLDER/KEY/BEGIN-END-HASH

KEY is a SHA-256 of everything that determines the cached numbers: the weights and their dtypes, the
model's class and config, the cache's layout and dtype, the code of this package and its C decoder,
the kernels and PyTorch. HASH names the first END token IDs. A file contains them, and they are
compared:

    magic, KEY, BEGIN, END (64 bytes)    token IDs (int32)    cache of positions BEGIN to END    SHA-256 of the above

Keys and values of all positions are stored in blocks of BLOCK positions. A sequence that continues
another one adds its new blocks only, and prompts restore the blocks that they have in common. A
ring that has overwritten positions and a recurrent state cannot be cut: they are stored completely
(BEGIN = 0), for prompts that contain all their tokens.

Only results of the C decoder are stored, which do not depend on how a prompt is divided into calls:
a restored prefix is bitwise identical to a computed one. Two threads read and write, so that other
sequences continue meanwhile. A file appears under its name when it is complete. A corrupt,
truncated or foreign file is a miss and is deleted.
"""

import hashlib
import json
import os
import re
import stat
import struct
import time
import uuid
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from functools import cache as cached
from pathlib import Path
from threading import Lock

import torch
from torch import Tensor, nn

from minhub_py.inference.prefixes import CachedPrefix
from minhub_py.inference.torch_runner import Runner
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import Cache, State

BLOCK = 64  # positions per file; shorter prefixes are not stored
MAGIC = b"minhub prefix 1\n"
HEAD = struct.Struct("<16s32sQQ")
NAME = re.compile(r"(\d{1,9})-(\d{1,9})-([0-9a-f]{32})")
PARTIAL = re.compile(r"[0-9a-f]{32}\.partial")
ABANDONED = 60.0  # age in seconds of a partial file whose program was killed
MAX_PENDING = 2**28  # bytes that wait to be written; further prefixes are not stored


class DiskCache:
    """The prefix cache on disk of one model.

    folder: created if it is missing. Files have mode 0600: their token IDs reveal the prompts.
    max_bytes: size of the folder. The least recently used files are deleted first.

    ValueError: the folder cannot be created or written.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int) -> None:
        self.root, self.max_bytes = Path(folder).absolute(), max_bytes
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write(self.root / uuid.uuid4().hex, []).unlink()
        except OSError as error:
            raise ValueError(
                f"the cache folder {str(folder)!r} cannot be written ({error.strerror}): choose"
                " another folder, or change its mode"
            ) from error
        self.key: str | None = None
        self.writing = True
        self.pending = 0  # bytes
        # of the folder at the latest scan, and of the files written since
        self.size: int | None = None
        self.unscanned = 0  # bytes written since the latest scan
        self.lock = Lock()
        self.reader, self.writer = (
            ThreadPoolExecutor(1, f"minhub cache {name}") for name in ("reader", "writer")
        )

    def attach(self, model: LanguageModel, runner: Runner, cache: Cache) -> bool:
        """Use the cache for a batch of the model. Returns False if the results of the runner cannot
        be stored.

        cache: the batch's, for its layout. The weights are hashed by the first call, and after
        `weights_changed`.
        """
        if runner.kernels is None or model.encoder_decoder:
            if self.writing:
                self.writing = False
                self._note(
                    "not used: "
                    + (
                        "an encoder-decoder has no prefixes"
                        if model.encoder_decoder
                        else (
                            "PyTorch computes this model, with results that depend on the number of"
                            " tokens per call"
                        )
                    )
                )
            return False
        if self.key is None:
            # With an activated adapter, the base computes the stored prefixes, which end at the
            # invocation.
            weights = model if model.invocation is None or model.base is None else model.base
            self.key = key_of(weights, runner.kernels, cache)
            self.folder = self.root / self.key
            # Of a recurrent layer, only the last state is stored.
            self.buffers = [
                [
                    (
                        (
                            (1, *tensor.shape[2:])
                            if isinstance(layer, State)
                            else tuple(tensor.shape[1:])
                        ),
                        tensor.dtype,
                    )
                    for tensor in tensors
                ]
                for layer, tensors in zip(cache.layout, cache.layers, strict=True)
            ]
            self.template = copy(cache)
            self.template.layers = []
        return True

    def weights_changed(self) -> None:
        """Hash the weights again when the cache is attached the next time."""
        self.key = None

    def load(self, ids: Sequence[int], known: int) -> "Future[CachedPrefix | None] | None":
        """Read the longest prefix of a prompt with more than `known` tokens, at most all tokens
        except the last.

        Returns None if the prompt is too short. If no prefix matches, the future's result is None.
        """
        if self.key is None or len(ids) - 1 < max(BLOCK, known + 1):
            return None
        return self.reader.submit(self._load, list(ids), known)

    def store(self, prefix: CachedPrefix) -> None:
        """Write a prefix in the background, unless it is short, on disk already, or too much waits
        to be written.

        Of a prefix with an activated adapter, the tokens before its start.
        """
        if prefix.adapter_start is not None:
            prefix = CachedPrefix(prefix.ids[: prefix.adapter_start], prefix.cache)
        available = prefix.cache.has_prefix(0, len(prefix.ids))
        if self.key is None or not self.writing or len(prefix.ids) < BLOCK or not available:
            return
        with self.lock:
            if self.pending and self.pending + prefix.cache.size > MAX_PENDING:
                return
            self.pending += prefix.cache.size
        self.writer.submit(self._store, prefix, self.folder)

    def flush(self) -> None:
        """Wait until all prefixes are written."""
        self.writer.submit(lambda: None).result()

    def close(self) -> None:
        """Write the remaining prefixes and stop the threads."""
        self.reader.shutdown(cancel_futures=True)
        self.writer.shutdown()

    def _note(self, text: str) -> None:
        from minhub_py.system.console import note

        note(f"Note: the prefix cache in {self.root} is {text}")

    # In the reader's thread

    @torch.inference_mode()
    def _load(self, ids: list[int], known: int) -> CachedPrefix | None:
        for files in self._matches(ids, known):
            prefix = self._read(ids, files)
            if prefix is not None and len(prefix.ids) > known:
                self._touch(files)
                return prefix
        return None

    def _matches(self, ids: list[int], known: int) -> list[list[Path]]:
        """Each prefix's files on disk with more than `known` tokens, the longest prefix first."""
        try:
            names = set(os.listdir(self.folder))
        except OSError:
            return []
        ends = {int(match[2]) for name in names if (match := NAME.fullmatch(name))}
        wholes, blocks = list[list[Path]](), list[Path]()
        for end, digest in digests(ids, sorted(end for end in ends if BLOCK <= end < len(ids))):
            if f"0-{end}-{digest}" in names:
                wholes.append([self.folder / f"0-{end}-{digest}"])
            if end == BLOCK * (len(blocks) + 1) and f"{end - BLOCK}-{end}-{digest}" in names:
                blocks.append(self.folder / f"{end - BLOCK}-{end}-{digest}")
        matches = sorted(
            [*wholes, blocks], key=lambda files: end_of(files[-1]) if files else 0, reverse=True
        )
        return [files for files in matches if files and end_of(files[-1]) > known]

    def _read(self, ids: list[int], files: list[Path]) -> CachedPrefix | None:
        """The prefix in consecutive files, up to the first invalid file."""
        row, length = self._new_row(end_of(files[-1])), 0
        for path in files:
            end = end_of(path)
            parts = list(slices(row, length, end))
            head = HEAD.pack(MAGIC, bytes.fromhex(self.folder.name), length, end) + packed(
                ids[:end]
            )
            content = read(path, len(head) + sum(part.nbytes for part in parts) + 32)
            if (
                content is None
                or content[: len(head)] != head
                or digest(memoryview(content)[:-32]) != content[-32:]
            ):
                with suppress(OSError):
                    path.unlink()
                break
            offset = len(head)
            for part in parts:
                data = torch.frombuffer(
                    content, dtype=part.dtype, count=part.numel(), offset=offset
                )
                part.copy_(data.view(part.shape))
                offset += part.nbytes
            length = end
        row.lengths = [length]
        return CachedPrefix(ids[:length], row) if length else None

    def _new_row(self, length: int) -> Cache:
        """A cache with one row, as `Cache.copy_of` returns."""
        row = copy(self.template)
        row.layers = [
            [
                torch.empty(
                    (
                        (1, *size)
                        if isinstance(layer, State)
                        else (1, size[0], min(length, size[1]), size[2])
                    ),
                    dtype=dtype,
                )
                for size, dtype in sizes
            ]
            for layer, sizes in zip(row.layout, self.buffers, strict=True)
        ]
        row.lengths, row.encoder_lengths, row.adapter_starts = [length], [0], [None]
        return row

    def _touch(self, files: Sequence[Path]) -> None:
        """Mark files as used. Blocks of a sequence have equal times: later ones are deleted first."""
        now = time.time_ns()
        for path in files:
            with suppress(OSError):
                os.utime(path, ns=(now, now))

    # In the writer's thread

    def _store(self, prefix: CachedPrefix, folder: Path) -> None:
        try:
            if self.writing:
                # the folder or a partial file is deleted meanwhile
                with suppress(FileNotFoundError):
                    self._store_files(prefix, folder)
        except OSError as error:
            self.writing = False
            self._note(
                f"not written any more ({error.strerror}): replies continue without; free space and"
                " restart"
            )
        finally:
            with self.lock:
                self.pending -= prefix.cache.size

    @torch.inference_mode()
    def _store_files(self, prefix: CachedPrefix, folder: Path) -> None:
        length = len(prefix.ids)
        # Blocks require that each position is available.
        ends = list(range(BLOCK, length + 1, BLOCK)) if prefix.cache.has_prefix(0, 1) else [length]
        begin, files = 0, []
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for end, name in digests(prefix.ids, ends):
            path = folder / f"{begin}-{end}-{name}"
            files.append(path)
            if not path.exists():
                parts = [memoryview(as_bytes(part)) for part in slices(prefix.cache, begin, end)]
                head = HEAD.pack(MAGIC, bytes.fromhex(folder.name), begin, end) + packed(
                    prefix.ids[:end]
                )
                size = len(head) + sum(map(len, parts)) + 32
                self._make_room(size)
                self._write(path, [head, *parts, digest(head, *parts)])
            begin = end
        self._touch(files)

    def _write(self, path: Path, parts: Sequence[bytes | memoryview]) -> Path:
        """Write a file under a temporary name, then rename it."""
        partial = path.with_name(f"{uuid.uuid4().hex}.partial")
        try:
            with os.fdopen(
                os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
            ) as file:
                file.writelines(parts)
            os.replace(partial, path)
        except OSError as error:
            with suppress(OSError):
                partial.unlink()
            # Windows: another program has it open
            if not (isinstance(error, PermissionError) and path.exists()):
                raise
        return path

    def _make_room(self, size: int) -> None:
        """Delete files until `size` bytes fit. Files of other programs are counted by a scan now
        and then.
        """
        if (
            self.size is None
            or self.size + size > self.max_bytes
            or self.unscanned > self.max_bytes // 20
        ):
            entries = sorted(self._scan())
            self.size, self.unscanned = sum(entry[2] for entry in entries), 0
            for _, _, bytes_, path in entries:
                if self.size + size <= self.max_bytes:
                    break
                with suppress(OSError):
                    path.unlink()
                self.size -= bytes_
        self.size += size
        self.unscanned += size

    def _scan(self) -> Iterator[tuple[float, int, int, Path]]:
        """(time of the last use, -BEGIN, size, path) of each file of a cache. Removes abandoned
        partial files.
        """
        for folder in self.root.iterdir():
            if not re.fullmatch(r"[0-9a-f]{64}", folder.name):
                continue
            for path in folder.iterdir():
                with suppress(OSError):
                    state = path.lstat()
                    if match := NAME.fullmatch(path.name):
                        yield state.st_mtime, -int(match[1]), state.st_size, path
                    elif PARTIAL.fullmatch(path.name) and time.time() - state.st_mtime > ABANDONED:
                        path.unlink()


def slices(row: Cache, begin: int, end: int) -> Iterator[Tensor]:
    """The tensors of the positions `begin` to `end` of a cache with one row; a state and a full
    ring completely.
    """
    for layer, tensors in zip(row.layout, row.layers, strict=True):
        for tensor in tensors:
            yield tensor if isinstance(layer, State) else tensor[:, :, begin:end]


def digests(ids: Sequence[int], ends: Sequence[int]) -> Iterator[tuple[int, str]]:
    """(end, HASH of the token IDs before it) for ascending ends."""
    total, begin = hashlib.sha256(), 0
    for end in ends:
        total.update(packed(ids[begin:end]))
        yield end, total.hexdigest()[:32]
        begin = end


def packed(ids: Sequence[int]) -> bytes:
    """Token IDs as int32."""
    return array("i", ids).tobytes()


def end_of(path: Path) -> int:
    """The END in a file's name."""
    return int(path.name.split("-")[1])


def digest(*parts: bytes | memoryview | bytearray) -> bytes:
    """The SHA-256 of parts."""
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.digest()


def read(path: Path, size: int) -> bytearray | None:
    """The content of a regular file of this user with exactly `size` bytes. None: another file, or
    an error.
    """
    flags = (
        os.O_RDONLY
        | getattr(os, "O_NOFOLLOW", 0)
        | getattr(os, "O_NONBLOCK", 0)
        | getattr(os, "O_BINARY", 0)
    )
    with suppress(OSError), os.fdopen(os.open(path, flags), "rb", buffering=0) as file:
        state = os.fstat(file.fileno())
        owned = not hasattr(os, "geteuid") or state.st_uid == os.geteuid()
        if stat.S_ISREG(state.st_mode) and owned and state.st_size == size:
            content = bytearray(size)
            view = memoryview(content)
            while view and (count := file.readinto(view)):
                view = view[count:]
            return None if view else content
    return None


def as_bytes(tensor: Tensor) -> memoryview:
    """A tensor's bytes on a CPU."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data


def key_of(model: LanguageModel, kernels: str, cache: Cache) -> str:
    """The KEY of a model: a SHA-256 in hex of everything that determines the numbers of `cache`."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        hashes = list(
            threads.map(
                lambda item: digest(as_bytes(item[1])).hex() if item[1].numel() else "", tensors
            )
        )
    weights = [
        [name, str(tensor.dtype), tensor.shape, tensor.stride(), value]
        for (name, tensor), value in zip(tensors, hashes, strict=True)
    ]
    modules = [
        [name, type(module).__qualname__, *settings_of(module)]
        for name, module in model.named_modules()
    ]
    sizes = [
        tuple(tensor.shape[1:])
        for layer, tensors in zip(cache.layout, cache.layers, strict=True)
        if getattr(layer, "window", None) is not None
        for tensor in tensors
    ]
    content = [
        weights,
        modules,
        repr(model.config),
        repr(cache.layout),
        str(cache.dtype),
        sizes,
        kernels,
        code(),
        torch.__version__,
        torch.backends.cpu.get_cpu_capability(),
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def settings_of(module: nn.Module) -> list[str]:
    """A module's quantization, the dtype of its unpacked weight, and the rounding of its
    activations.
    """
    return [str(getattr(module, name, "")) for name in ("kind", "dtype", "rounds_activations")]


@cached
def code() -> str:
    """A SHA-256 in hex of the Python code that computes: models, and their translation for the C
    decoder.
    """
    package = Path(__file__).parent.parent
    files = sorted([*(package / "models").rglob("*.py"), *(package / "inference").rglob("*.py")])
    return digest(*(file.read_bytes() for file in files)).hex()
