"""Text files -> files of token ids -> the rows of each training step.

The text is read in pieces and the ids are memory-mapped, so neither has to fit into memory. The rows of a step depend
only on the seed and the step number, so resuming a run needs no saved generator state.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from minhub_py.checkpoints.tokenizers.tokenizer import encode
from minhub_py.system.spelling import setting
from minhub_py.training.checkpoint import write_whole
from minhub_py.training.errors import DamagedError, read_object, reading

# Number of characters that are read and encoded at a time.
PIECE = 2**14


@dataclass(frozen=True)
class Tokens:
    """A file of token ids: little-endian uint16 or uint32, without a header."""

    path: Path
    dtype: str
    count: int
    below: int = 2**32  # upper bound of the ids, exclusive

    def rows(self, starts: Sequence[int], length: int) -> Tensor:
        """Rows of `length` ids, one from each start: (B, length), int64. DamagedError: an id is out of range."""
        # Mapped anew for each call, so that pages read once do not stay in memory, however large the file.
        ids = np.memmap(self.path, self.dtype, "r", shape=(self.count,))
        rows = np.stack([ids[start : start + length] for start in starts]).astype(np.int64)
        if rows.max() >= self.below:
            raise DamagedError(self.path, "is damaged")
        return torch.from_numpy(rows)


@dataclass(frozen=True)
class Corpus:
    """The token ids of a run: the part that trains and the held-out part."""

    train: Tokens
    held_out: Tokens
    characters: int  # of the held-out text
    texts: list[str]  # names of the text files
    start: str | None = None  # fingerprint of the model that the run fine-tunes

    @classmethod
    def read(cls, folder: Path) -> "Corpus":
        """Read what `prepare` wrote. DamagedError: a file is missing or damaged."""
        about = read_object(folder / "tokens.json")
        with reading(folder / "tokens.json"):
            below = about.get("below", 2**32)  # missing in older runs
            train, held_out = (
                Tokens(folder / f"{name}.bin", about["dtype"], about[name], below) for name in ("train", "held_out")
            )
            size = np.dtype(train.dtype).itemsize
            texts = [str(text) for text in about["texts"]]
            characters = int(about["characters"])
            start = about.get("start")
        for part in (train, held_out):
            with reading(part.path):
                if part.path.stat().st_size != part.count * size:
                    raise ValueError(f"it should have {part.count * size} bytes")
        return cls(train, held_out, characters, texts, start)


def prepare(text: "Text", tokenizer: Tokenizer, folder: Path, start: str | None = None) -> None:
    """Encode a text and write train.bin, held_out.bin and tokens.json.

    start: the fingerprint of the model that the run fine-tunes.
    ValueError: the text is not UTF-8, or not in the tokenizer's vocabulary.
    """
    # The largest token decides: a checkpoint's vocabulary may be padded with ids that never occur.
    below = max(tokenizer.get_vocab().values()) + 1
    dtype = "<u2" if below <= 2**16 else "<u4"
    folder.mkdir(parents=True, exist_ok=True)
    # Characters without a token add nothing to a loss, so they must not count in losses per character.
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
        **({} if start is None else {"start": start}),
    }
    write_whole(folder / "tokens.json", json.dumps(about, indent=2) + "\n")  # last: it marks the others as complete


def _write(path: Path, pieces: Iterable[str], tokenizer: Tokenizer, dtype: str, lost: Sequence[str]) -> tuple[int, int]:
    """Encode and write the pieces. Returns the number of ids, and of the characters without those in `lost`."""
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
    """The same text, cut again before the white space that begins a word; pieces keep about the same length.

    GPT-2's tokenizer splits there too (Radford et al. 2019: a word includes the space before it), so encoding the
    pieces gives the ids of the whole text. Never cut before punctuation: it may begin a special token, and all white
    space before that belongs together.
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
    """Whether tokenizers treat the character as white space; unlike Python, not U+001C to U+001F."""
    return character.isspace() and not "\x1c" <= character <= "\x1f"


class Text:
    """Text files read as one text, without any change, and split into a training part and a held-out part.

    The files are read several times: to count characters, to train a tokenizer, and to encode.
    """

    def __init__(
        self, paths: Sequence[Path], held_out: float, progress: Callable[[str, int, int], object],
        names: Mapping[Path, str] | None = None,
    ) -> None:  # fmt: skip
        """names: display names for files that the user did not name, such as a copy of standard input."""
        self.paths, self.names = paths, names or {}
        self.progress = progress
        for path in paths:
            if not path.is_file():
                raise FileNotFoundError(f"there is no text file {path}: check the name")
        self.bytes = sum(path.stat().st_size for path in paths)
        found: set[str] = set()
        self.length = 0
        for piece in self.pieces("Reading"):
            found.update(piece)
            self.length += len(piece)
        if not self.length:
            shown = ", ".join(self.names.get(path, str(path)) for path in paths)
            raise ValueError(f"{shown}: the text is empty, there is nothing to learn from")
        self.alphabet = sorted(found)
        self.cut = int(self.length * (1 - held_out))

    def pieces(self, what: str) -> Iterator[str]:
        """Read the whole text in pieces. ValueError: a file is not UTF-8."""
        done = 0
        for path in self.paths:
            try:
                with path.open(encoding="utf-8", newline="") as file:  # keep line ends as they are
                    while piece := file.read(PIECE):
                        yield piece
                        done += len(piece.encode())
                        self.progress(what, done, self.bytes)
            except UnicodeDecodeError as error:
                name = self.names.get(path, path)
                raise ValueError(f"{name} is not UTF-8 text ({error.reason}): convert it first") from error

    def train(self, what: str) -> Iterator[str]:
        """Read the training part, which comes first."""
        left = self.cut
        for piece in self.pieces(what):
            if left <= 0:
                return
            yield piece[:left]
            left -= len(piece)

    def held_out(self, what: str) -> Iterator[str]:
        """Read the held-out part, which comes last."""
        skip = self.cut
        for piece in self.pieces(what):
            if skip < len(piece):
                yield piece[max(skip, 0) :]
            skip -= len(piece)


def random_integers(seed: int, step: int, high: int, count: int) -> list[int]:
    """`count` random integers from 0 to `high` - 1, determined by the arguments alone."""
    return np.random.Generator(np.random.PCG64([seed, step])).integers(high, size=count).tolist()


@dataclass(frozen=True)
class Windows:
    """Rows at random places of the text, drawn anew for each step, as in nanoGPT."""

    tokens: Tokens
    batch: int
    context: int
    seed: int

    def at(self, step: int, rows: slice) -> tuple[Tensor, bool]:
        """Selected rows of a step, (B, T + 1): inputs and, shifted by one, targets. True: they continue no row."""
        starts = random_integers(self.seed, step, self.tokens.count - self.context, self.batch)
        return self.tokens.rows(starts[rows], self.context + 1), True


@dataclass(frozen=True)
class Streams:
    """Consecutive rows: row b of a step continues row b of the previous step, so that an LSTM can carry its state.

    The text is cut into one stream per row. After each pass over the text, the streams start at another offset.
    """

    tokens: Tokens
    batch: int
    context: int
    seed: int

    def at(self, step: int, rows: slice) -> tuple[Tensor, bool]:
        """As `Windows.at`. True: the streams start again, so the state must be reset."""
        length = (self.tokens.count - self.context) // self.batch  # of a stream, for any offset
        epoch, place = divmod(step, (length - 1) // self.context)
        [offset] = random_integers(self.seed, epoch, self.context, 1)
        starts = [offset + row * length + place * self.context for row in range(self.batch)]
        return self.tokens.rows(starts[rows], self.context + 1), place == 0


def source_of(tokens: Tokens, batch: int, context: int, seed: int, *, carry: bool) -> Windows | Streams:
    """The source of training rows: `Streams` with `carry`, else `Windows`. ValueError: the text is too short."""
    if tokens.count <= context:
        raise ValueError(
            f"the context ({context}) is longer than the training text ({tokens.count} tokens): give more text, or "
            f"{setting('context', max(1, tokens.count // 8))}"
        )
    if not carry:
        return Windows(tokens, batch, context, seed)
    if (tokens.count - context) // batch <= context:
        raise ValueError(
            f"the training text ({tokens.count} tokens) is too short for {batch} streams with rows of {context}: "
            f"give more text, a smaller {setting('batch')} or {setting('context')}, or {setting('carry', False)}"
        )
    return Streams(tokens, batch, context, seed)


# How the held-out text is read, in order: the starts of rows, their length, and whether the state is reset first.
Rows = list[tuple[list[int], int, bool]]


def held_out_windows(tokens: Tokens, context: int, together: int, most: int) -> Rows:
    """Independent rows of `context` tokens, `together` at a time, at most about `most` tokens, spread over the text.

    ValueError: the text has fewer than 2 ids.
    """
    length = row_length(tokens, context)
    count = (tokens.count - 1) // length
    chosen = np.linspace(0, count - 1, min(count, max(most // length, 1))).round().astype(int)
    starts: list[int] = (chosen * length).tolist()
    return [(starts[i : i + together], length, True) for i in range(0, len(starts), together)]


def held_out_streams(tokens: Tokens, context: int, batch: int, together: int, most: int) -> Rows:
    """`batch` streams of consecutive rows, `together` at a time; at most about `most` tokens, from each stream's start.

    ValueError: the text has fewer than 2 ids.
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
    """`context`, or the length of a shorter text. ValueError: the text has fewer than 2 ids."""
    if tokens.count < 2:
        raise ValueError(f"the held-out text has {tokens.count} tokens and needs at least 2: give more text, or a "
                         f"larger {setting('held_out')}")  # fmt: skip
    return min(context, tokens.count - 1)
