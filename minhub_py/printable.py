"""Text of strangers made fit to be shown: a terminal obeys control characters, wherever they come from.

File names, tensor names, settings, tokens and messages of a repository are somebody else's. An escape sequence in one
of them could clear the screen, set the window's title, or hide a line. What leaves the program goes through here.
"""

import unicodedata


def printable(text: str) -> str:
    r"""`text` in one line, with what is no visible character written out, as Python's repr does: \n, \x1b, \u202e."""
    return "".join(_visible(char) for char in text) if not text.isprintable() else text


def displayed(text: str) -> str:
    """`text` as a terminal may show it: its lines and its letters stay, control characters are written out."""
    return "".join(
        char if char in "\n\r\t" or unicodedata.category(char) not in ("Cc", "Cs") else _visible(char) for char in text
    )


def gist(error: BaseException) -> str:
    """What a library says of a file, fit for a message: it may quote the file at length, or in control characters."""
    first = (str(error).splitlines() or [""])[0] or type(error).__name__
    return printable(first[:300])


def _visible(char: str) -> str:
    if char.isprintable() or unicodedata.category(char) == "Zs":  # spaces of other widths
        return char
    return ascii(char)[1:-1]
