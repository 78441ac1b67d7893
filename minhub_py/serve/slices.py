"""Long computations of the event loop in slices, so that the request of one client does not delay
the others.

A call of json.loads or json.dumps holds the GIL in any thread: half a million values would stop the
event loop and the models for a second. Here they are read and written a few thousand at a time.
"""

import asyncio
import gc
import json
import re
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

from minhub_py.system.json_text import JsonObject, check_depth, decoder

T = TypeVar("T")
Slices = Generator[None, None, T]  # yields between slices, and returns the result
SLICE = 2_000  # values, a few milliseconds
CHARACTERS = 16_000  # of JSON that are read at once
# Elements of a list that are neither lists nor objects, with their commas.
_run = re.compile(rf'(?:[ \t\n\r]*(?:"[^"\\]*"|[-+.\w]+)[ \t\n\r]*,){{1,{SLICE}}}').match
_space = re.compile(r"[ \t\n\r]*").match


def _end_of_space(text: str, position: int) -> int:
    """The position after white space."""
    match = _space(text, position)
    return position if match is None else match.end()


class TooManyError(ValueError):
    """A JSON text has too many lists, objects and members of objects."""


class Turns:
    """Runs computations in slices. Requests take turns, and all slices together take at most half
    of the time.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()  # first come, first served

    async def run(self, slices: Slices[T]) -> T:
        """The result of a computation. The first slice does not wait, so that short ones are not
        delayed.
        """
        try:
            run_slice(slices)
            while True:
                async with self._lock:
                    start = time.monotonic()
                    run_slice(slices)
                    # for the others, and for the models' threads
                    await asyncio.sleep(time.monotonic() - start)
        except StopIteration as result:
            value: T = result.value
            return value


def run_slice(slices: Slices[object]) -> None:
    """Run a slice. StopIteration: it was the last one."""
    with without_collection():
        next(slices)


@contextmanager
def without_collection() -> Iterator[None]:
    """Without garbage collection: it would traverse all objects for each few thousand new ones."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def write_list(elements: Iterable[object], cost: int = 1) -> Slices[str]:
    """A list as JSON. cost: number of values of an element."""
    parts, iterator = [], iter(elements)
    while part := list(islice(iterator, max(SLICE // cost, 1))):
        parts.append(
            json.dumps(part, ensure_ascii=False, allow_nan=False, separators=(",", ":"))[1:-1]
        )
        yield
    return f"[{','.join(parts)}]"


def read_json(text: str, most: int) -> Slices[object]:
    """A JSON text. ValueError: as in `json_text.parse`.    TooManyError.

    most: maximum number of lists, objects and members of objects.
    """
    reader = _SliceReader(text)
    count = total = 0
    while not reader.complete:
        size = reader.advance()
        count += size
        if reader.structure > most:
            raise TooManyError
        if count - total >= SLICE:
            total = count
            yield
    return reader.result


class _SliceReader:
    """The state of a text that is being read. The end of the text is read at once."""

    def __init__(self, text: str) -> None:
        self.text, self.position = text, _end_of_space(text, 0)
        self.decoder: Any = decoder(text)
        self.in_end = False  # whether the depth of the text's end is checked
        self.open: list[list[object] | JsonObject] = []
        self.keys: list[str] = []  # of the current member of each; "" in a list
        self.structure = 0
        self.complete, self.result = False, None

    def advance(self) -> int:
        """Read values, or the beginning of a list or an object. Returns the cost in values."""
        start = self.position
        if self.open and isinstance(self.open[-1], list) and (run := _run(self.text, start)):
            values = self._elements(run[0], start)
            self.open[-1].extend(values)
            self.position = _end_of_space(self.text, run.end())
            return len(values) + len(run[0]) // 100
        opening = self.text[start : start + 1]
        if opening not in ("[", "{") or self.in_end:
            self._add(self._scanned())
            return 1 + (self.position - start) // 100
        check_depth("[", len(self.open))
        if len(self.text) - start <= CHARACTERS:
            check_depth(self.text[start:], len(self.open))
            self.in_end = True
            return 0
        self.structure += 1
        container: list[object] | dict[str, object] = [] if opening == "[" else {}
        self.position = _end_of_space(self.text, start + 1)
        if self.text[self.position : self.position + 1] == ("]" if opening == "[" else "}"):
            self.position += 1
            self._add(container)
            return 1
        self.open.append(container)
        self.keys.append("")
        if isinstance(container, dict):
            self._read_key()
        return 1

    def _elements(self, run: str, start: int) -> list[object]:
        """The values of elements with their commas."""
        try:
            values: list[object] = self.decoder.decode(f"[{run[:-1]}]")
        except json.JSONDecodeError as error:
            raise json.JSONDecodeError(error.msg, self.text, start + error.pos - 1) from None
        return values

    def _scanned(self) -> Any:
        """The value at the position."""
        try:
            value, self.position = self.decoder.scan_once(self.text, self.position)
        except StopIteration as error:
            raise json.JSONDecodeError("Expecting value", self.text, error.value) from None
        return value

    def _read_key(self) -> None:
        """Read the key of an object's next member."""
        if self.text[self.position : self.position + 1] != '"':
            raise json.JSONDecodeError(
                "Expecting property name enclosed in double quotes", self.text, self.position
            )
        self.structure += 1
        self.keys[-1] = self._scanned()
        self.position = _end_of_space(self.text, self.position)
        if self.text[self.position : self.position + 1] != ":":
            raise json.JSONDecodeError("Expecting ':' delimiter", self.text, self.position)
        self.position = _end_of_space(self.text, self.position + 1)

    def _add(self, value: Any) -> None:
        """Add a value to its list or object, and close those that end after it."""
        while self.open:
            container = self.open[-1]
            if isinstance(container, dict):
                container[self.keys[-1]] = value
            else:
                container.append(value)
            self.position = _end_of_space(self.text, self.position)
            next_character = self.text[self.position : self.position + 1]
            if next_character == ",":
                self.position = _end_of_space(self.text, self.position + 1)
                if isinstance(container, dict):
                    self._read_key()
                return
            if next_character != ("}" if isinstance(container, dict) else "]"):
                raise json.JSONDecodeError("Expecting ',' delimiter", self.text, self.position)
            self.position += 1
            value = self.open.pop()
            self.keys.pop()
        self.position = _end_of_space(self.text, self.position)
        if self.position < len(self.text):
            raise json.JSONDecodeError("Extra data", self.text, self.position)
        self.complete, self.result = True, value
