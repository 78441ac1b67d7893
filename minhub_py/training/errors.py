"""`CorruptError`, the error for a missing or corrupt file of a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from minhub_py.system.json_text import JsonObject
from minhub_py.system.shapes import read_json


class CorruptError(ValueError):
    """A file of a run is missing or corrupt. `problem` completes a sentence: "is missing" or "is
    corrupt".
    """

    def __init__(self, path: Path, problem: str = "is corrupt", advice: str = "") -> None:
        super().__init__(f"{path} {problem}" + (f": {advice}" if advice else ""))
        self.path, self.problem = path, problem


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert errors while the file is read to `CorruptError`."""
    try:
        yield
    except CorruptError:
        raise
    except FileNotFoundError as error:
        raise CorruptError(path, "is corrupt" if path.exists() else "is missing") from error
    except OSError as error:
        raise CorruptError(
            path, f"cannot be read ({error.strerror})" if error.strerror else "is corrupt"
        ) from error
    except (ValueError, LookupError, TypeError, RuntimeError, SafetensorError) as error:
        raise CorruptError(path) from error


def read_object(path: Path) -> JsonObject:
    """Read a JSON object. CorruptError: the file is missing or contains something else."""
    with reading(path):
        return read_json(path, JsonObject)
