"""Escape control characters in text from files, so that a terminal can show it safely.

File names, tensor names, settings, tokens and messages of a repository are untrusted. An escape
sequence in one of them could clear the screen, set the window's title, or hide a line. All output
passes through this module.
"""

import unicodedata


def printable(text: str) -> str:
    r"""`text` on one line, with invisible characters escaped as in Python's repr: \n, \x1b, \u202e."""
    return "".join(_visible(char) for char in text) if not text.isprintable() else text


def displayed(text: str) -> str:
    """`text` with control characters escaped, except line ends and tabs."""
    return "".join(
        (
            char
            if char in "\n\r\t" or unicodedata.category(char) not in ("Cc", "Cs")
            else _visible(char)
        )
        for char in text
    )


def reason_of(error: BaseException) -> str:
    """The first line of an exception's message, shortened and escaped: libraries may quote a file
    at length.
    """
    first = (str(error).splitlines() or [""])[0] or type(error).__name__
    return printable(first[:300])


def _visible(char: str) -> str:
    if char.isprintable() or unicodedata.category(char) == "Zs":  # spaces of any width
        return char
    return ascii(char)[1:-1]
