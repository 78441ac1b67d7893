"""The record of a run whose text is not encoded yet, to continue an interrupted preparation.

RUN/tokens/begun.json contains the settings and the text files. settings.json replaces it before the
first step.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minhub_py.system.spelling import train_call
from minhub_py.training.checkpoint import RunFolder
from minhub_py.training.errors import read_object, reading
from minhub_py.training.settings import Settings


@dataclass(frozen=True)
class Preparation:
    """A run's settings, and its text files, each with its size and modification time in
    nanoseconds.
    """

    settings: Settings
    texts: Sequence[tuple[Path, int, int]]
    requested: Sequence[str] = ()  # the settings that have no default

    @classmethod
    def read(cls, folder: RunFolder) -> "Preparation | None":
        """The record in a folder; None if the folder has none, or also has settings.json.
        CorruptError.
        """
        if folder.settings.exists() or not folder.preparation.exists():
            return None
        content = read_object(folder.preparation)
        with reading(folder.preparation):
            texts = [(Path(name), int(size), int(time)) for name, size, time in content["texts"]]
            return cls(Settings(**content["settings"]), texts, content.get("given", []))

    def write(self, folder: RunFolder) -> None:
        """Write the record."""
        texts = [[str(path), size, time] for path, size, time in self.texts]
        content = {
            "settings": json.loads(self.settings.to_json()),
            "texts": texts,
            "given": list(self.requested),
        }
        folder.write(folder.preparation, json.dumps(content, indent=2) + "\n")

    def unchanged_texts(self) -> list[Path]:
        """The text files. ValueError: a text has changed.    FileNotFoundError: a text is missing."""
        for path, size, time in self.texts:
            if size_and_time(path) != (size, time):
                raise ValueError(
                    f"{path} has changed since the run began: start a new run with {train_call()}"
                )
        return [path for path, _, _ in self.texts]


def size_and_time(path: Path) -> tuple[int, int]:
    """Size and modification time of a text. FileNotFoundError: it is missing."""
    if not path.is_file():
        raise FileNotFoundError(f"text file {path} does not exist: check its name")
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns
