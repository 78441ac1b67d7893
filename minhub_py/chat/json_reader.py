"""Incremental search for the end of a JSON value."""

from minhub_py.chat.markers import is_marker

CLOSING = {"{": "}", "[": "]"}
SCALAR = frozenset("0123456789+-.eEtrufalsn")
SPACE = frozenset(" \t\r\n")


class JSONReader:
    """Reads a JSON value that arrives in pieces. Only its brackets, strings and characters are checked."""

    def __init__(self) -> None:
        self.closing: list[str] = []
        self.in_string = self.escaped = self.begun = self.scalar = False

    def scan(self, text: str, start: int) -> tuple[int, bool]:
        """Continue at a position. Returns the position after the read text, and whether the value is complete.

        ValueError: the text is not JSON.
        """
        for index in range(start, len(text)):
            char = text[index]
            if self.in_string:
                if self.escaped:
                    self.escaped = False
                elif char == "\\":
                    self.escaped = True
                elif char == '"':
                    self.in_string = False
                    if not self.closing:
                        return index + 1, True
                continue
            if self.scalar and not self.closing and char not in SCALAR:
                return index, True
            if char in SPACE:
                continue
            if char in CLOSING:
                self.closing.append(CLOSING[char])
            elif self.closing and char == self.closing[-1]:
                self.closing.pop()
                if not self.closing:
                    return index + 1, True
            elif char == '"':
                self.in_string = True
            elif char in SCALAR:
                self.scalar = not self.closing
            elif is_marker(char) or not self.closing or char not in ",:":
                raise ValueError(f"{char!r} is not JSON")
            self.begun = True
        return len(text), False
