"""Incremental reading of text that arrives in pieces: strings, patterns and JSON values."""

from collections.abc import Generator, Sequence
from typing import Any

from minhub_py.chat.tool_format import ID

# Yields when it needs further text, and returns a result.
Steps = Generator[None, None, Any]
CLOSING = {"{": "}", "[": "]"}
SCALAR = frozenset("0123456789+-.eEtrufalsn")
INSIDE = SCALAR | frozenset(" \t\r\n,:")


class TextReader:
    """Reads internal text (chat/markers.py) from `position`.

    ended: no further text arrives.    exhausted: a read required text after the end.
    """

    def __init__(self) -> None:
        self.text, self.position = "", 0
        self.ended = self.exhausted = False

    def _peek(self) -> Steps:
        """The next character; "" at the end."""
        while self.position >= len(self.text) and not self.ended:
            yield
        self.exhausted = self.exhausted or self.position >= len(self.text)
        return self.text[self.position : self.position + 1]

    def _skip_spaces(self) -> Steps:
        while (yield from self._peek()).isspace():
            self.position += 1

    def _expect(self, pattern: str) -> Steps:
        """Read a pattern with any white space; `ID` matches a call ID, and a digit matches a
        number.

        Returns whether it follows; otherwise, nothing is read.
        """
        start, index = self.position, 0
        pattern = "".join(pattern.split())
        while index < len(pattern):
            yield from self._skip_spaces()
            char, expected = (yield from self._peek()), pattern[index]
            index += 1
            if expected == ID:
                while (char := (yield from self._peek())) and char != pattern[index : index + 1]:
                    self.position += 1
            elif expected.isdigit() and char.isdigit():
                while (yield from self._peek()).isdigit():
                    self.position += 1
                while pattern[index : index + 1].isdigit():
                    index += 1
            elif char == expected:
                self.position += 1
            else:
                self.position = start
                return False
        return True

    def _until(self, stops: Sequence[str], limit: int | None = None) -> Steps:
        """Read the text before the first of several strings; None if the reply ends or the text is
        too long before.
        """
        longest = max(map(len, stops))
        searched = self.position
        while True:
            indices = [index for stop in stops if (index := self.text.find(stop, searched)) >= 0]
            if indices:
                text = self.text[self.position : min(indices)]
                self.position = min(indices)
                return text
            if self.ended or (limit is not None and len(self.text) - self.position > limit):
                self.exhausted = self.exhausted or self.ended
                return None
            searched = max(self.position, len(self.text) - longest + 1)
            yield

    def _value(self) -> Steps:
        """A JSON value's text. ValueError: it is not JSON; only brackets, strings and
        characters are checked.
        """
        yield from self._skip_spaces()
        start, closing, in_string = self.position, list[str](), False
        while char := (yield from self._peek()):
            self.position += 1
            if in_string:
                if char == "\\":
                    yield from self._peek()
                    self.position += 1
                in_string = char != '"'
            elif char == '"':
                in_string = True
            elif char in CLOSING:
                closing.append(CLOSING[char])
            elif closing and char == closing[-1]:
                closing.pop()
            elif char not in (INSIDE if closing else SCALAR):
                raise ValueError(f"{char!r} is not JSON")
            elif not closing and (
                (following := (yield from self._peek())) in SCALAR or not following
            ):
                continue
            if not closing and not in_string:
                return self.text[start : self.position]
        raise ValueError("the reply ends in a call")
