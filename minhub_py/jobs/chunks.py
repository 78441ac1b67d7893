"""Durable storage of a job's results, one part file per chunk, in a folder next to the output.

    OUT.parts/job.json          the job's record: input, model, settings
    OUT.parts/part-00000012     the results of chunk 12
    OUT.parts/joined            the output file before it is moved to OUT
    OUT.parts/joined-files/     the output files, if OUT is a folder
    OUT.parts/finished          a copy of job.json; marks the output as complete and ready to move

Files are written to a temporary name, flushed and renamed, so each file is either complete or
absent. If the process is killed while it moves the output, the next start completes the move.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from minhub_py.system.json_text import JsonObject
from minhub_py.system.lock import FULL, exclusive
from minhub_py.system.shapes import read_json
from minhub_py.system.table_writers import sync


class Parts:
    """The part files of a job with the output `out`."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out.with_name(f"{out.name}.parts")
        self.joined, self.joined_files = self.folder / "joined", self.folder / "joined-files"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder. BusyError: another process writes the same output."""
        with self.os_errors():
            self.folder.mkdir(parents=True, exist_ok=True)
        with exclusive(
            self.folder / "lock",
            f"another process is writing {self.out}: wait until it ends, or set another --out",
        ):
            yield

    def read_record(self, name: str = "job.json") -> JsonObject | None:
        """Read the job's record; None if it does not exist. ValueError: it is corrupt."""
        path = self.folder / name
        return record_in(path, f"remove {self.folder} to start again") if path.exists() else None

    def start(self, record: Mapping[str, object]) -> None:
        """Remove existing parts and start a job with a new record."""
        with self.os_errors():
            self.folder.mkdir(exist_ok=True)  # absent after `recover`
            for path in self.folder.iterdir():
                if path.name != "lock":
                    remove(path)
            self._write_file("job.json", json.dumps(record, indent=2).encode())

    def completed(self) -> set[int]:
        """The numbers of the completed chunks."""
        return {int(path.name.removeprefix("part-")) for path in self.folder.glob("part-*")}

    def is_empty(self) -> bool:
        """Whether the folder exists and contains no results."""
        return self.folder.exists() and {path.name for path in self.folder.iterdir()} <= {
            "lock",
            "job.json",
        }

    def write(self, number: int, content: bytes) -> None:
        """Write the part of a chunk. OSError: the disk is full; existing parts are unchanged."""
        with self.os_errors():
            self._write_file(f"part-{number:08}", content)

    def read(self, number: int) -> JsonObject:
        """Read the part of a chunk. ValueError: it is corrupt."""
        return record_in(
            self.folder / f"part-{number:08}", "remove it, and run the same command again"
        )

    def finish(self, record: Mapping[str, object], overwrite: bool) -> None:
        """Move the joined files to the output, and remove the folder. FileExistsError: as in
        `recover`.
        """
        with self.os_errors():
            self._write_file("finished", json.dumps(record).encode())
        self.recover(overwrite)

    def recover(self, overwrite: bool) -> JsonObject | None:
        """Complete an interrupted `finish`. Returns the job's record, or None if there is nothing
        to complete.

        FileExistsError: without `overwrite`, an output has appeared during the job.
        """
        record = self.read_record("finished")
        if record is None:
            return None
        appeared = []
        with self.os_errors():
            if self.joined.exists() and not move(self.joined, self.out, overwrite):
                appeared.append(self.out)
            if self.joined_files.exists():
                self.out.mkdir(exist_ok=True)
                for path in sorted(self.joined_files.iterdir()):
                    if not move(path, self.out / path.name, overwrite):
                        appeared.append(self.out / path.name)
                sync(self.out)
            sync(self.out.parent)
        if appeared:
            raise FileExistsError(
                f"another program has written {appeared[0]} during the job: move that file and run"
                " the same command again, or add --overwrite. The results are complete"
            )
        self.remove()
        return record

    def contents(self, outputs: Sequence[Path]) -> dict[Path, Path]:
        """Each output's joined file, before `finish`."""
        return {
            path: self.joined if path == self.out else self.joined_files / path.name
            for path in outputs
        }

    def remove(self) -> None:
        """Remove the folder. The file `finished` is removed last, so that an interruption is
        recoverable.
        """
        for path in sorted(self.folder.iterdir(), key=lambda path: path.name == "finished"):
            remove(path)
        self.folder.rmdir()

    @contextmanager
    def os_errors(self) -> Iterator[None]:
        """Add the path and a solution to an OSError, such as a full disk or missing permissions."""
        try:
            yield
        except OSError as error:
            advice = (
                "free disk space"
                if error.errno in FULL
                else "check its permissions, or set another --out"
            )
            reason = error.strerror or error
            raise type(error)(f"{self.folder} cannot be written ({reason}): {advice}") from error

    def _write_file(self, name: str, content: bytes) -> None:
        draft, path = self.folder / f".{name}", self.folder / name
        try:
            draft.write_bytes(content)
            sync(draft)
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)
        sync(self.folder)


def move(path: Path, target: Path, overwrite: bool) -> bool:
    """Rename a file. Returns False if `target` is another file, without `overwrite`."""
    if not overwrite:
        try:
            os.link(path, target)  # a rename would replace a file that appears now
        except FileExistsError:
            if not path.samefile(target):
                return False
        except OSError:  # a file system without hard links
            if target.exists():
                return False
            os.replace(path, target)
            return True
        path.unlink()
        return True
    os.replace(path, target)
    return True


def record_in(path: Path, advice: str) -> JsonObject:
    """Read a JSON object. ValueError: the file is corrupt."""
    try:
        return read_json(path, JsonObject)
    except ValueError as error:
        raise ValueError(f"{path} is corrupt: {advice}") from error


def remove(path: Path) -> None:
    """Remove a file, or a folder with its content."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
