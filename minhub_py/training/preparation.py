"""The record of a run whose text is not yet encoded: an interrupted preparation continues from it.

RUN/tokens/begun.json has the settings and the names of the texts. settings.json, written before the first step, takes
its place.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minhub_py.system.spelling import train_call
from minhub_py.training.checkpoint import RunFolder, write_whole
from minhub_py.training.errors import read_object, reading
from minhub_py.training.settings import Settings


@dataclass(frozen=True)
class Begun:
    """The settings of a run, and its texts, each with its size and modification time in nanoseconds."""

    settings: Settings
    texts: Sequence[tuple[Path, int, int]]

    @property
    def paths(self) -> list[Path]:
        """The text files."""
        return [path for path, _, _ in self.texts]

    @classmethod
    def of(cls, settings: Settings, paths: Sequence[Path]) -> "Begun":
        """The record of new runs. FileNotFoundError: a text is missing."""
        return cls(settings, [(path.absolute(), *state(path)) for path in paths])

    @classmethod
    def read(cls, folder: RunFolder) -> "Begun | None":
        """The record in a folder; None: the run has settings.json already, or does not exist. DamagedError."""
        if folder.settings.exists() or not folder.begun.exists():
            return None
        content = read_object(folder.begun)
        with reading(folder.begun):
            texts = [(Path(name), int(size), int(time)) for name, size, time in content["texts"]]
            return cls(Settings(**content["settings"]), texts)

    def write(self, folder: RunFolder) -> None:
        """Write the record."""
        content = {
            "settings": json.loads(self.settings.to_json()),
            "texts": [[str(path), size, time] for path, size, time in self.texts],
        }
        with folder.writing(folder.begun):
            write_whole(folder.begun, json.dumps(content, indent=2) + "\n")

    def unchanged_texts(self) -> list[Path]:
        """The text files. ValueError: one has changed.    FileNotFoundError: one is missing."""
        for path, size, time in self.texts:
            if state(path) != (size, time):
                raise ValueError(f"{path} has changed since the run began: start a new one with {train_call()}")
        return self.paths


def state(path: Path) -> tuple[int, int]:
    """Size and modification time of a text. FileNotFoundError: it is missing."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no text file {path}: check the name")
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns
