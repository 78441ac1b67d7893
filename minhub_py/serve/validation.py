"""Validation of JSON request bodies.

`Fields` records which fields are read. `Fields.finish` rejects all others by name, except those
without an effect on the result: every field of a request is used or rejected.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from reprlib import repr as brief
from typing import Annotated, Any, TypeVar, overload

from minhub_py.serve.slices import Slices, TooManyError, read_json
from minhub_py.system.printable import printable
from minhub_py.system.shapes import ShapeError, Within, convert

T = TypeVar("T")

MAX_VALUES = 500_000  # in a body, counted before parsing
# lists, objects and members of objects in a body; numbers and texts in lists can be more
MAX_STRUCTURE = 50_000


@dataclass
class RequestError(Exception):
    """An error response. status: HTTP status.    field: the invalid field.    retry_after: seconds."""

    status: int
    message: str
    code: str | None = None
    field: str | None = None
    retry_after: int | None = None


def invalid(message: str, field: str | None = None, code: str | None = None) -> RequestError:
    """The error for an invalid request (400)."""
    return RequestError(400, message, code, field)


class Fields:
    """A JSON object of a request. `path` is its location in the body, for messages.

    Methods return None, or the default, if a field is missing or null. RequestError: a field has
    the wrong type.
    """

    def __init__(self, values: object, path: str = "") -> None:
        if not isinstance(values, Mapping):
            raise invalid(
                f"{path or 'the body'} must be a JSON object, not {brief(values)}", path or None
            )
        self.values, self.path = values, path
        self.read: set[str] = set()  # names of fields
        self.ignore_unknown = False

    @classmethod
    def parse(cls, body: bytes) -> "Slices[Fields]":
        """Parse a body in slices. RequestError: it is not a JSON object in UTF-8, or has too many
        values.
        """
        if body.count(b",") + body.count(b":") > MAX_VALUES:
            raise RequestError(
                413, f"the body has too many values: at most {MAX_VALUES:,}", "too_large"
            )
        try:
            return cls((yield from read_json(body.decode(), MAX_STRUCTURE)))
        except UnicodeDecodeError as error:
            raise invalid(
                f"the body is not UTF-8 text ({error.reason} at byte {error.start})"
            ) from error
        except TooManyError as error:
            raise RequestError(
                413,
                f"the body has too many lists, objects and fields: at most {MAX_STRUCTURE:,}",
                "too_large",
            ) from error
        except ValueError as error:
            raise invalid(f"the body is not JSON: {str(error)[:200]}") from error

    def _name(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    @overload
    def get(self, name: str, shape: type[T]) -> T | None: ...

    @overload
    def get(self, name: str, shape: object = Any) -> Any: ...

    def get(self, name: str, shape: object = Any) -> Any:
        """A field's value in a shape's types; see system/shapes.py."""
        self.read.add(name)
        value = self.values.get(name)
        return None if value is None else shaped(value, shape, self._name(name))

    def integer(
        self, name: str, minimum: int, maximum: int, default: int | None = None
    ) -> int | None:
        """An integer, also in the notation 3.0."""
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            value = int(value)
        if type(value) is not int or not minimum <= value <= maximum:
            raise invalid(
                f"{self._name(name)} must be an integer from {minimum} to {maximum}, not"
                f" {brief(value)}",
                self._name(name),
            )
        return value

    def number(self, name: str) -> float | None:
        """A finite number."""
        value = self.get(name, float)
        return None if value is None else float(value)

    def boolean(self, name: str, default: bool = False) -> bool:
        """A Boolean."""
        value = self.get(name, bool)
        return default if value is None else value

    def string(self, name: str, default: str | None = None) -> str | None:
        """A string."""
        value = self.get(name, str)
        return default if value is None else value

    def strings(self, name: str, maximum: int) -> tuple[str, ...]:
        """The non-empty strings of a string or a list of strings."""
        value = self.get(name, str | Annotated[list[str], Within(0, maximum)])
        return tuple(filter(None, [value] if isinstance(value, str) else value or ()))

    def object(self, name: str) -> "Fields":
        """A nested object, empty if it is missing."""
        value = self.get(name)
        nested = Fields({} if value is None else value, self._name(name))
        nested.ignore_unknown = self.ignore_unknown
        return nested

    def reject(self, *names: str, harmless: Sequence[Any] = (), empty: bool = True) -> None:
        """Reject unsupported fields, except if they have a harmless value. empty: false, 0 and []
        are harmless, too.
        """
        for name in names:
            value = self.get(name)
            is_empty = not value or (isinstance(value, list) and not any(value))
            if value is not None and not (empty and is_empty) and value not in harmless:
                raise invalid(
                    f"{self._name(name)} is not supported: remove it",
                    self._name(name),
                    "unsupported",
                )

    def finish(self, ignored: Collection[str] = (), nested: "Fields | None" = None) -> None:
        """Reject the fields that have not been read, except empty ones and those that do not change
        the result.

        Call it after all fields have been read, and before the result is computed.

        ignored: names of fields that do not change the result.    nested: an object of other
        fields, for a hint.
        """
        if self.ignore_unknown:
            return
        for name, value in self.values.items():
            if (
                name in self.read
                or name in ignored
                or (not value and value is not False and value != 0)
            ):
                continue
            close = get_close_matches(name[:64], self.read, n=1, cutoff=0.8)
            if nested is not None and name in nested.read:
                close = [nested._name(name)]
            hint = f"did you mean {close[0]}? Otherwise " if close else ""
            shown = self._name(printable(name[:64]))
            raise invalid(
                f"{shown} is unknown: {hint}remove it, or start the server with"
                " --ignore-unknown-fields",
                shown,
                "unknown_field",
            )


@overload
def shaped(value: object, shape: type[T], name: str) -> T: ...


@overload
def shaped(value: object, shape: object, name: str) -> Any: ...


def shaped(value: object, shape: object, name: str) -> Any:
    """A value in a shape's types. RequestError: it has another one; the message begins with
    its location.
    """
    try:
        return convert(value, shape, path=name)
    except ShapeError as error:
        raise invalid(str(error), error.path) from error


def finite(logprob: float | None) -> float:
    """A log-probability for JSON, which has no infinity."""
    return -9999.0 if logprob is None or not math.isfinite(logprob) else max(logprob, -9999.0)
