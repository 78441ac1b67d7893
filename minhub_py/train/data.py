"""Text files -> ids in files of their own -> the rows of each step.

The text is read in pieces and its ids are memory-mapped, so neither has to fit into memory. Which rows a step reads
depends on the seed and the step alone: a run that goes on needs to remember nothing else.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minhub_py.files.tokenizer import encode
from minhub_py.train.checkpoint import write_whole
from minhub_py.train.damage import DamagedError, read_object, reading
from minhub_py.train.words import setting

# Characters that are read and encoded at a time.
PIECE = 2**14


@dataclass(frozen=True)
class Tokens:
    """A file of ids, little-endian uint16 or uint32, one after the other."""

    path: Path
    dtype: str
    count: int
    below: int = 2**32  # what all ids are below

    def rows(self, starts: Sequence[int], length: int) -> Tensor:
        """The ids from each of `starts` on: (B, length), int64. DamagedError: they are ids of no token."""
        # A mapping of each step's own: pages that were read once do not stay in memory, however large the file.
        ids = np.memmap(self.path, self.dtype, "r", shape=(self.count,))
        rows = np.stack([ids[start : start + length] for start in starts]).astype(np.int64)
        if rows.max() >= self.below:
            raise DamagedError(self.path, "is damaged")
        return torch.from_numpy(rows)


@dataclass(frozen=True)
class Corpus:
    """What trains and what measures."""

    train: Tokens
    held_out: Tokens
    characters: int  # that the held-out ids stand for
    texts: list[str]  # the files' names

    @classmethod
    def read(cls, folder: Path) -> "Corpus":
        """What `prepare` has written. DamagedError: a file is missing or damaged."""
        about = read_object(folder / "tokens.json")
        with reading(folder / "tokens.json"):
            below = about.get("below", 2**32)  # which older runs do not say
            train, held_out = (
                Tokens(folder / f"{name}.bin", about["dtype"], about[name], below) for name in ("train", "held_out")
            )
            size = np.dtype(train.dtype).itemsize
            texts = [str(text) for text in about["texts"]]
            characters = int(about["characters"])
        for part in (train, held_out):
            with reading(part.path):
                if part.path.stat().st_size != part.count * size:
                    raise ValueError(f"it should have {part.count * size} bytes")
        return cls(train, held_out, characters, texts)


def prepare(text: "Text", tokenizer: Any, folder: Path) -> None:
    """Write train.bin, held_out.bin and tokens.json.

    ValueError: the text is not UTF-8, or not in the tokenizer's vocabulary.
    """
    # Ids beyond the largest token's do not occur, whatever a checkpoint's padded vocabulary says.
    below = max(tokenizer.get_vocab().values()) + 1
    dtype = "<u2" if below <= 2**16 else "<u4"
    folder.mkdir(parents=True, exist_ok=True)
    # Characters that no token stands for cost a model nothing, so they do not count when losses are compared.
    lost = [char for char in text.alphabet if not encode(tokenizer, char, add_special_tokens=False)]
    counts = {}
    for name, part in (("train", text.train), ("held_out", text.held_out)):
        counts[name], characters = _write(folder / f"{name}.bin", part("Encoding"), tokenizer, dtype, lost)
    about = {
        "dtype": dtype,
        "below": below,
        **counts,
        "characters": characters,
        "texts": [text.names.get(path, path.name) for path in text.paths],
    }
    write_whole(folder / "tokens.json", json.dumps(about, indent=2) + "\n")  # last: where it is, the others are whole


def _write(path: Path, pieces: Iterable[str], tokenizer: Any, dtype: str, lost: Sequence[str]) -> tuple[int, int]:
    """The number of ids, and of the characters that they stand for."""
    count = characters = 0
    try:
        with path.open("wb") as file:
            for piece in at_words(pieces):
                ids = encode(tokenizer, piece, add_special_tokens=False)
                if not ids and piece:
                    raise ValueError(
                        f"the tokenizer has no token for any of {piece[:20]!r} …: let the run make its own tokenizer"
                    )
                count += len(ids)
                characters += len(piece) - sum(map(piece.count, lost))
                file.write(np.array(ids, dtype).tobytes())
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise
    return count, characters


def at_words(pieces: Iterable[str]) -> Iterator[str]:
    """The same text in pieces of about the same length, cut before the white space that begins a word.

    There GPT-2's tokenizer cuts too, so the ids are those of the whole text (Radford et al. 2019: a word takes the
    space before it along). Not before a sign: it may begin a special token, which all of the white space stands before.
    """
    held = ""
    for piece in pieces:
        held += piece
        words = (i for i in range(len(held) - 2, 0, -1) if is_white(held[i]) and held[i + 1].isalnum())
        if cut := next(words, 0):
            yield held[:cut]
            held = held[cut:]
        elif len(held) > 8 * PIECE:  # no white space at all
            yield held
            held = ""
    if held:
        yield held


def is_white(character: str) -> bool:
    """As the tokenizer sees it, to which the separators U+001C to U+001F are none."""
    return character.isspace() and not "\x1c" <= character <= "\x1f"


class Text:
    """The texts, one after the other, as they stand. It is read three times: counted, learnt from, and encoded."""

    def __init__(
        self, paths: Sequence[Path], held_out: float, progress: Callable[[str, int, int], object],
        names: Mapping[Path, str] | None = None,
    ) -> None:  # fmt: skip
        """names: what to call files that are not the user's own."""
        self.paths, self.names = paths, names or {}
        self.progress = progress
        for path in paths:
            if not path.is_file():
                raise FileNotFoundError(f"There is no text file {path}: check its name")
        self.bytes = sum(path.stat().st_size for path in paths)
        found: set[str] = set()
        self.length = 0
        for piece in self.pieces("Reading"):
            found.update(piece)
            self.length += len(piece)
        if not self.length:
            shown = ", ".join(self.names.get(path, str(path)) for path in paths)
            raise ValueError(f"{shown}: the text is empty, there is nothing to learn")
        self.alphabet = sorted(found)
        self.cut = int(self.length * (1 - held_out))

    def pieces(self, what: str) -> Iterator[str]:
        """All of it. ValueError: it is not UTF-8."""
        done = 0
        for path in self.paths:
            try:
                with path.open(encoding="utf-8", newline="") as file:  # line ends as they stand
                    while piece := file.read(PIECE):
                        yield piece
                        done += len(piece.encode())
                        self.progress(what, done, self.bytes)
            except UnicodeDecodeError as error:
                name = self.names.get(path, path)
                raise ValueError(f"{name} is not UTF-8 text ({error.reason}): convert it first") from error

    def train(self, what: str) -> Iterator[str]:
        """The first part."""
        left = self.cut
        for piece in self.pieces(what):
            if left <= 0:
                return
            yield piece[:left]
            left -= len(piece)

    def held_out(self, what: str) -> Iterator[str]:
        """The last part."""
        skip = self.cut
        for piece in self.pieces(what):
            if skip < len(piece):
                yield piece[max(skip, 0) :]
            skip -= len(piece)


def random_integers(seed: int, step: int, high: int, count: int) -> list[int]:
    """`count` integers from 0 to `high` - 1 that depend on nothing but the arguments."""
    return np.random.Generator(np.random.PCG64([seed, step])).integers(high, size=count).tolist()


@dataclass(frozen=True)
class Windows:
    """Rows that start anywhere, drawn anew for each step: what is nanoGPT's way."""

    tokens: Tokens
    batch: int
    context: int
    seed: int

    def at(self, step: int, rows: slice) -> tuple[Tensor, bool]:
        """Those of a step's rows (B, T + 1): inputs and, one further, targets. True: they follow on nothing."""
        starts = random_integers(self.seed, step, self.tokens.count - self.context, self.batch)
        return self.tokens.rows(starts[rows], self.context + 1), True


@dataclass(frozen=True)
class Streams:
    """Rows that follow on: row b of a step goes on where row b of the step before ended. For an LSTM's state.

    The text is cut into one stream for each row; each time it has been read, its beginning is moved.
    """

    tokens: Tokens
    batch: int
    context: int
    seed: int

    def at(self, step: int, rows: slice) -> tuple[Tensor, bool]:
        """As `Windows.at`; True: they begin anew, and so does the state."""
        length = (self.tokens.count - self.context) // self.batch  # of a stream, at any shift
        turn, place = divmod(step, (length - 1) // self.context)
        [shift] = random_integers(self.seed, turn, self.context, 1)
        starts = [shift + row * length + place * self.context for row in range(self.batch)]
        return self.tokens.rows(starts[rows], self.context + 1), place == 0


def source_of(tokens: Tokens, batch: int, context: int, seed: int, *, carry: bool) -> Windows | Streams:
    """The rows of a run. ValueError: the text is shorter than they are, and what would do."""
    if tokens.count <= context:
        raise ValueError(
            f"the context ({context}) is longer than the text that trains ({tokens.count} tokens): give more text, or "
            f"{setting('context', max(1, tokens.count // 8))}"
        )
    if not carry:
        return Windows(tokens, batch, context, seed)
    if (tokens.count - context) // batch <= context:
        raise ValueError(
            f"the text that trains ({tokens.count} tokens) is too short for {batch} rows of {context} that follow on: "
            f"give more text, a smaller {setting('batch')} or {setting('context')}, or {setting('carry', False)}"
        )
    return Streams(tokens, batch, context, seed)


# What is read of the held-out text, in order: the starts of rows, their length, and whether they begin anew.
Rows = list[tuple[list[int], int, bool]]


def held_out_windows(tokens: Tokens, context: int, together: int, most: int) -> Rows:
    """Contexts by themselves, one after the other, `together` at a time; of a long text so many that they are evenly
    spread and have about `most` tokens. ValueError: it has no 2 ids.
    """
    length = row_length(tokens, context)
    count = (tokens.count - 1) // length
    chosen = np.linspace(0, count - 1, min(count, max(most // length, 1))).round().astype(int)
    starts: list[int] = (chosen * length).tolist()
    return [(starts[i : i + together], length, True) for i in range(0, len(starts), together)]


def held_out_streams(tokens: Tokens, context: int, batch: int, together: int, most: int) -> Rows:
    """`batch` streams, each read in rows that follow on, `together` streams at a time, and of a long text
    the beginning of each. ValueError: it has no 2 ids.
    """
    length = row_length(tokens, context)
    streams = min(batch, (tokens.count - 1) // length)
    each = (tokens.count - 1) // streams
    places = range(0, min(each, max(most // streams, length)), length)
    return [
        ([stream * each + place for stream in range(first, min(first + together, streams))],
         min(length, each - place), place == 0)
        for first in range(0, streams, together)
        for place in places
    ]  # fmt: skip


def row_length(tokens: Tokens, context: int) -> int:
    """A context, or as much as there is. ValueError: nothing that could be predicted."""
    if tokens.count < 2:
        raise ValueError(f"the held-out text has {tokens.count} tokens, and needs 2 at least: give more text, or a "
                         f"larger {setting('held_out')}")  # fmt: skip
    return min(context, tokens.count - 1)
