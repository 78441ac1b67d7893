"""Files of a run that are missing or damaged: one error for all of them, which names the file."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError


class DamagedError(ValueError):
    """A file of a run cannot be used. what: "is missing", "is damaged", or why it cannot be read."""

    def __init__(self, path: Path, what: str, advice: str = "") -> None:
        super().__init__(f"{path} {what}" + (f": {advice}" if advice else ""))
        self.path, self.what = path, what


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever fails in reading this file is `DamagedError`."""
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
    """A JSON file of a run. DamagedError: it is missing, or holds no object."""
    with reading(path):
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise TypeError(f"{path} holds no object")
        return content
