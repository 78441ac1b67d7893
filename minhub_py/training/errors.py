"""`DamagedError`: one error for every missing or damaged file of a run, with the file's name."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError


class DamagedError(ValueError):
    """A file of a run is missing or damaged.

    what: "is missing", "is damaged", or why it cannot be read.    advice: what the user can do.
    """

    def __init__(self, path: Path, what: str, advice: str = "") -> None:
        super().__init__(f"{path} {what}" + (f": {advice}" if advice else ""))
        self.path, self.what = path, what


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn any error while reading this file into `DamagedError`."""
    try:
        yield
    except DamagedError:
        raise
    except FileNotFoundError as error:
        raise DamagedError(path, "is damaged" if path.exists() else "is missing") from error
    except OSError as error:
        raise DamagedError(path, f"cannot be read ({error.strerror})" if error.strerror else "is damaged") from error
    except (ValueError, LookupError, TypeError, RuntimeError, SafetensorError) as error:
        raise DamagedError(path, "is damaged") from error


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object. DamagedError: the file is missing or holds something else."""
    with reading(path):
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise TypeError(f"{path} does not hold an object")
        return content
