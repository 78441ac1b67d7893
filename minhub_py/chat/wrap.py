"""Streamed text on a terminal: line breaks between words, and no echo of keys typed during the
output.
"""

import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from minhub_py.system.console import stdin_is_terminal


class WordWrap:
    """Write streamed text with line breaks between words at the terminal's right edge.

    The last word is buffered until it ends; `close` writes it. The width is read for each word,
    because the terminal can be resized.
    """

    def __init__(
        self, write: Callable[[str], object], columns: Callable[[], int] | None = None
    ) -> None:
        self.write = write
        self.columns = columns or (lambda: shutil.get_terminal_size().columns)
        self.column = 0  # of the cursor
        self.blank, self.word = "", ""

    def feed(self, text: str) -> None:
        """Write text, except an unfinished word at its end."""
        for char in text:
            if char == "\n":
                self.close()
                self.write("\n")
                self.column = 0
            elif char in " \t":
                self._end_word()
                self.blank += char
            else:
                self.word += char
                # East Asian text has no spaces
                if width(char) == 2 or width(self.word) >= self.columns():
                    self._end_word()

    def close(self) -> None:
        """Write the remaining word."""
        self._end_word()
        self.blank = ""

    def _end_word(self) -> None:
        """Write the blank and the word. A blank can become a line end; the terminal wraps words
        longer than a line.
        """
        if not self.word:
            return
        columns = self.columns()
        if self.column > columns:  # the terminal became narrower and wrapped the line
            self.column %= columns
        blank = "".join(
            " " * (8 - self.column % 8) if char == "\t" else char for char in self.blank
        )
        if blank and self.column and self.column + len(blank) + width(self.word) > columns:
            blank = "\n"
            self.column = 0
        else:
            self.column += len(blank)
        self.write(blank + self.word)
        self.column += width(self.word)
        if self.column > columns:
            self.column -= columns
        self.blank, self.word = "", ""


def width(text: str) -> int:
    """The number of columns that a text occupies on a terminal."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.category(char) in ("Mn", "Me", "Cf") for char in text)


def wrapped(text: str) -> str:
    """A message with line breaks between words."""
    parts: list[str] = []
    wrap = WordWrap(parts.append)
    wrap.feed(text)
    wrap.close()
    return "".join(parts)


@contextmanager
def without_echo() -> Iterator[None]:
    """Do not echo typed keys, which would mix with the output. The next prompt shows them, also
    after Ctrl-C.
    """
    try:
        import termios
    except ImportError:  # Windows echoes keys only at a prompt
        yield
        return
    if not stdin_is_terminal():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    silent = termios.tcgetattr(sys.stdin)
    silent[3] = silent[3] & ~termios.ECHO | termios.NOFLSH
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
