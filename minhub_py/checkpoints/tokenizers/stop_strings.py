"""Stop strings in streamed text."""

from collections.abc import Sequence


class StopStrings:
    """Streamed text up to the first complete stop string, independent of how the text is split into
    pieces.

    A suffix that may begin a stop string is delayed. Knuth-Morris-Pratt search: the time is linear
    in the text's length and, once, in the stop strings' length.

    Attributes:
        stopped: whether a stop string has ended the text.
        found: the stop string that has ended the text.
        active: whether stop strings can end the text; it can become true at any time.

    Args:
        stops: stop strings.
        include: stop strings that are a part of the text.
    """

    def __init__(self, stops: Sequence[str], *, include: Sequence[str] = ()) -> None:
        self.stops, self.pending, self.stopped = stops, "", False
        self.include, self.active = include, True
        self.found: str | None = None
        self._borders = [borders(stop) for stop in stops]
        # length of each stop string's longest prefix that the text ends with
        self._matched = [0] * len(stops)

    def add(self, piece: str) -> str:
        """Add a piece. Returns the text that cannot be part of a stop string."""
        if not self.stops or not self.active:
            return piece
        text, start = self.pending + piece, len(self.pending)
        for end, char in enumerate(piece, start + 1):
            for i, (stop, border) in enumerate(zip(self.stops, self._borders, strict=True)):
                length = self._matched[i]
                while length and stop[length] != char:
                    length = border[length - 1]
                self._matched[i] = length + (stop[length] == char)
            complete = [
                len(stop)
                for stop, length in zip(self.stops, self._matched, strict=True)
                if length == len(stop)
            ]
            if complete:
                self.pending, self.stopped = "", True
                self.found = text[end - max(complete) : end]
                return text[: end if self.found in self.include else end - max(complete)]
        certain = len(text) - max(self._matched)
        self.pending = text[certain:]
        return text[:certain]

    def flush(self) -> str:
        """Return the delayed text at the end of the stream."""
        text, self.pending = self.pending, ""
        return text


def borders(text: str) -> list[int]:
    """For each prefix of a text, the length of its longest proper prefix that is also its suffix."""
    lengths, length = [0], 0
    for char in text[1:]:
        while length and text[length] != char:
            length = lengths[length - 1]
        length += text[length] == char
        lengths.append(length)
    return lengths
