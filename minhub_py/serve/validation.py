"""Reading the JSON that clients send: each field with its type and range, and one clear error where it has neither.

Fields that no one reads are ignored, as clients send many; one that would change the result is refused by name.
"""

import gc
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from reprlib import repr as brief
from typing import Any

# Values of a body, counted before it is parsed: a million take half a second, in which no other client is served.
MOST_ELEMENTS = 500_000


@dataclass
class RefusedError(Exception):
    """A request that gets no reply. status: HTTP's.    field: the one that is to blame.    retry: seconds to wait."""

    status: int
    message: str
    code: str | None = None
    field: str | None = None
    retry: int | None = None


def bad(message: str, field: str | None = None, code: str | None = None) -> RefusedError:
    """A request that the client has to mend."""
    return RefusedError(400, message, code, field)


class Fields:
    """A JSON object that a client has sent. `where`: its place within the body, for messages."""

    def __init__(self, values: Any, where: str = "") -> None:
        if not isinstance(values, Mapping):
            raise bad(f"{where or 'the body'} must be a JSON object, not {brief(values)}", where or None)
        self.values, self.where = values, where

    @classmethod
    def parse(cls, body: bytes) -> "Fields":
        """A body. RefusedError: it is no JSON object in UTF-8, or has too many elements."""
        if body.count(b",") + body.count(b":") > MOST_ELEMENTS:
            raise RefusedError(413, f"the body has too many elements: at most {MOST_ELEMENTS:,}", "too_large")
        try:
            with without_collections():
                return cls(json.loads(body.decode(), parse_constant=_no_number))
        except UnicodeDecodeError as error:
            raise bad(f"the body is not UTF-8 text ({error.reason} at byte {error.start})") from error
        except (ValueError, RecursionError) as error:
            raise bad(f"the body is not JSON: {str(error)[:200] or 'nested too deeply'}") from error

    def _name(self, name: str) -> str:
        return f"{self.where}.{name}" if self.where else name

    def _wrong(self, name: str, wanted: str, value: Any) -> RefusedError:
        return bad(f"{self._name(name)} must be {wanted}, not {brief(value)}", self._name(name))

    def get(self, name: str) -> Any:
        """A value as it is; None where it is missing."""
        return self.values.get(name)

    def whole(self, name: str, least: int, most: int, default: int | None = None) -> int | None:
        """A whole number; 3.0 is one, too."""
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self._wrong(name, f"a whole number from {least} to {most}", value)
        return value

    def number(self, name: str) -> float | None:
        """A number."""
        value = self.get(name)
        if value is None:
            return None
        try:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError
            return float(value)
        except (TypeError, OverflowError) as error:
            raise self._wrong(name, "a number", value) from error

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def text(self, name: str, default: str | None = None) -> str | None:
        """A string."""
        value = self.get(name)
        return default if value is None else checked_text(value, self._name(name))

    def texts(self, name: str, most: int) -> tuple[str, ...]:
        """The non-empty ones of a string or a list of strings."""
        value = self.get(name)
        values = [] if value is None else [value] if isinstance(value, str) else value
        if not isinstance(values, list) or len(values) > most:
            raise self._wrong(name, f"a string or a list of at most {most} strings", value)
        return tuple(each for each in (checked_text(each, self._name(name)) for each in values) if each)

    def object(self, name: str) -> "Fields":
        """An object within the object; an empty one where it is missing."""
        value = self.get(name)
        return Fields({} if value is None else value, self._name(name))

    def refuse(self, *names: str, harmless: tuple[Any, ...] = ()) -> None:
        """RefusedError: one of these fields asks for what no model here does. Empty values ask for nothing."""
        for name in names:
            value = self.get(name)
            if value and value not in harmless and not (isinstance(value, list) and not any(value)):
                raise bad(f"{self._name(name)} is not supported: leave it out", self._name(name), "unsupported")


@contextmanager
def without_collections() -> Iterator[None]:
    """Pause the cyclic garbage collector: a million small lists take a second with it, and 0.1 s without."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def checked_text(value: Any, name: str) -> str:
    """A string that can be written. RefusedError: it is none, or has half a surrogate pair."""
    if not isinstance(value, str):
        raise bad(f"{name} must be a string, not {brief(value)}", name)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise bad(f"{name} holds half of a surrogate pair, which is no text", name) from error
    return value


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def finite(logprob: float | None) -> float:
    """A log-probability as JSON can hold it."""
    return -9999.0 if logprob is None or not math.isfinite(logprob) else max(logprob, -9999.0)
