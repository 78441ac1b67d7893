"""R's spelling of settings and calls in messages. The service sets it for every call of R."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Any

from minhub_py.system.spelling import Spelling, use_spelling

# Settings with other names in R, where many functions have an argument of the name `start`; in Python, `from` is a
# keyword.
R_NAMES = {"start": "from"}


class RSpelling(Spelling):
    """Settings as arguments and commands as calls, for R users."""

    train = "minhub_train()"

    def setting(self, name: str, value: Any = None) -> str:
        """An argument: batch = 8, carry = FALSE, from = "run"."""
        name = R_NAMES.get(name, name)
        if value is None:
            return name
        return f"{name} = {str(value).upper() if isinstance(value, bool) else _text(value)}"

    def download(self, identifier: str, revision: str) -> str:
        """The call of from_pretrained(), which downloads missing files."""
        more = [] if revision == "main" else [self.setting("revision", revision)]
        return f"from_pretrained({', '.join([_text(identifier), *more])})"

    def resume(self, folder: str | PathLike[str], **changes: Any) -> str:
        """The call of minhub_resume()."""
        settings = [self.setting(*change) for change in changes.items()]
        return f"minhub_resume({', '.join([_text(str(folder)), *settings])})"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@contextmanager
def in_words_of_r() -> Iterator[None]:
    """Messages about settings and runs name R's arguments and functions."""
    with use_spelling(RSpelling()):
        yield
