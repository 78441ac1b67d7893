"""The results of a job on disk, until all are there: a folder beside the output, with one file a chunk.

    OUT.parts/job.json          what is being done: input, model, settings
    OUT.parts/part-00000012     the results of chunk 12
    OUT.parts/joined            the output in the making, where OUT is a file
    OUT.parts/joined-files/     the same, where OUT is a folder
    OUT.parts/finished          that is complete, and belongs in its place; has what job.json has

A file is written under another name, flushed and renamed: it is there as a whole or not at all. A kill while the output
is put in its place is made up for at the next start.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from minhub_py.jobs.formats import sync
from minhub_py.system.lock import FULL, exclusive


class Parts:
    """The folder of parts that belongs to an output."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out.with_name(f"{out.name}.parts")
        self.joined, self.joined_files = self.folder / "joined", self.folder / "joined-files"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out. BusyError: another process writes the same output."""
        with self.writing():
            self.folder.mkdir(parents=True, exist_ok=True)
        with exclusive(
            self.folder / "lock", f"another process is writing {self.out}: wait for its end, or give another --out"
        ):
            yield

    def record(self, name: str = "job.json") -> dict[str, Any] | None:
        """What the parts are of; None: there are none yet. ValueError: it is damaged."""
        path = self.folder / name
        return read(path, f"remove {self.folder} to start again") if path.exists() else None

    def begin(self, record: Mapping[str, Any]) -> None:
        """Start anew, with another record."""
        with self.writing():
            self.folder.mkdir(exist_ok=True)
            for path in self.folder.iterdir():
                if path.name != "lock":
                    remove(path)
            self._write("job.json", json.dumps(record, indent=2).encode())

    def numbers(self) -> set[int]:
        """The chunks whose parts are there."""
        names = [path.name for path in self.folder.iterdir()] if self.folder.exists() else []
        return {int(name.removeprefix("part-")) for name in names if name.startswith("part-")}

    def are_none(self) -> bool:
        """Whether there is nothing to lose in the folder."""
        return self.folder.exists() and {path.name for path in self.folder.iterdir()} <= {"lock", "job.json"}

    def put(self, number: int, content: bytes) -> None:
        """Write a part. OSError: there is no room; the others are intact."""
        with self.writing():
            self._write(f"part-{number:08}", content)

    def get(self, number: int) -> dict[str, Any]:
        """Read a part. ValueError: it is damaged."""
        return read(self.folder / f"part-{number:08}", "remove it, and run the same command again")

    def finish(self, record: Mapping[str, Any]) -> None:
        """Let what was joined become the output, and remove the folder."""
        with self.writing():
            self._write("finished", json.dumps(record).encode())
        self.recover()

    def recover(self) -> dict[str, Any] | None:
        """Do what a kill has cut short in `finish`. Returns what it was finishing; None: nothing."""
        record = self.record("finished")
        if record is None:
            return None
        with self.writing():
            if self.joined.exists():
                os.replace(self.joined, self.out)
            if self.joined_files.exists():
                self.out.mkdir(exist_ok=True)
                for path in self.joined_files.iterdir():
                    os.replace(path, self.out / path.name)
                sync(self.out)
            sync(self.out.parent)
        self.forget()
        return record

    def forget(self) -> None:
        """Remove the folder; what says that the output is complete goes last."""
        for path in sorted(self.folder.iterdir(), key=lambda path: path.name == "finished"):
            remove(path)
        self.folder.rmdir()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Add advice to an OSError: the disk is full, or permission is denied."""
        try:
            yield
        except OSError as error:
            advice = "make room" if error.errno in FULL else "check its permissions, or give another --out"
            reason = error.strerror or error
            raise type(error)(f"{self.folder} cannot be written ({reason}): {advice}") from error

    def _write(self, name: str, content: bytes) -> None:
        draft, path = self.folder / f".{name}", self.folder / name
        try:
            draft.write_bytes(content)
            sync(draft)
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)
        sync(self.folder)


def read(path: Path, advice: str) -> dict[str, Any]:
    """An object of JSON. ValueError: the file is damaged."""
    try:
        return dict(json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {advice}") from error


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
