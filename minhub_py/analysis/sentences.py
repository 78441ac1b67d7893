"""Division of texts at the ends of sentences."""

import re
from collections.abc import Callable, Iterator

# The end of a sentence and the white space after it; CJK and others have no white space. A line
# break ends a sentence, too.
END = re.compile(r"(?:[.!?…؟۔।॥።]+[\"'”’»)\]]*(?=\s)|[。！？｡]+[”’」』）]*|(?=\n))(\s*)")


def sentences(text: str) -> Iterator[tuple[str, str]]:
    """Each sentence of a text, and the white space after it."""
    start = 0
    for match in END.finditer(text):
        if match.end() > start and match.end() > match.start():
            yield text[start : match.start(1)], match[1]
            start = match.end()
    if text[start:]:
        yield text[start:], ""


def parts(text: str, fits: Callable[[str], bool]) -> list[tuple[str, str]]:
    """The sentences of a line joined to parts that fit, and the white space after each part.

    A sentence that does not fit is a separate part.
    """
    result: list[tuple[str, str]] = []
    for sentence, space in sentences(text):
        if result and "\n" not in result[-1][1]:
            joined = result[-1][0] + result[-1][1] + sentence
            if fits(joined):
                result[-1] = joined, space
                continue
        result.append((sentence, space))
    return result
