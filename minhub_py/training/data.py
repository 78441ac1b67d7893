"""Data loading: tokenize text files into files of token IDs, and read each step's batch.

Texts are read in chunks and token IDs are memory-mapped, so neither has to fit into memory. The
batch of a step depends only on the seed and the step number, so a resumed run needs no saved
generator state.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from minhub_py.checkpoints.tokenizers.tokenizer import encode
from minhub_py.system.spelling import setting
from minhub_py.training.checkpoint import write_atomically
from minhub_py.training.errors import CorruptError, read_object, reading
from minhub_py.training.examples import ExampleCorpus
from minhub_py.training.preparation import size_and_time
from minhub_py.training.units import LossUnit, loss_unit

CHUNK = 2**14  # characters that are read and encoded at a time


@dataclass(frozen=True)
class Tokens:
    """A file of token IDs: little-endian uint16 or uint32, without a header."""

    path: Path
    dtype: str
    count: int
    vocab_size: int = 2**32

    def sequences(self, starts: Sequence[int], length: int) -> Tensor:
        """Sequences of `length` token IDs, (B, length), int64. CorruptError: an ID is not in the
        vocabulary.
        """
        # A new memory map for each call lets the system free the pages of earlier calls.
        ids = np.memmap(self.path, self.dtype, "r", shape=(self.count,))
        sequences = np.stack([ids[start : start + length] for start in starts]).astype(np.int64)
        if sequences.max() >= self.vocab_size:
            raise CorruptError(self.path)
        return torch.from_numpy(sequences)


@dataclass(frozen=True)
class Corpus:
    """A run's tokenized data: the training text and the held-out text."""

    train: Tokens
    held_out: Tokens
    characters: int  # of the held-out text
    texts: list[str]  # names of the text files
    start: str | None = None  # fingerprint of the model that the run fine-tunes
    objective: str = "text"

    @property
    def unit(self) -> LossUnit:
        """The unit of losses."""
        return loss_unit(self.objective)

    @classmethod
    def read(cls, folder: Path) -> "Corpus":
        """Read the files that `prepare` wrote. CorruptError: a file is missing or corrupt."""
        metadata = read_object(folder / "tokens.json")
        with reading(folder / "tokens.json"):
            vocab_size = metadata.get("below", 2**32)  # early versions did not write it
            train, held_out = (
                Tokens(folder / f"{name}.bin", metadata["dtype"], metadata[name], vocab_size)
                for name in ("train", "held_out")
            )
            size = np.dtype(train.dtype).itemsize
            texts = [str(text) for text in metadata["texts"]]
            corpus = cls(train, held_out, int(metadata["characters"]), texts, metadata.get("start"))
        for tokens in (train, held_out):
            with reading(tokens.path):
                if tokens.path.stat().st_size != tokens.count * size:
                    raise ValueError("its size is wrong")
        return corpus


def read_corpus(folder: Path) -> Corpus | ExampleCorpus:
    """A run's tokenized data. CorruptError: a file is missing or corrupt."""
    metadata = read_object(folder / "tokens.json")
    if "objective" not in metadata:
        return Corpus.read(folder)
    with reading(folder / "tokens.json"):
        return ExampleCorpus.read(folder, metadata)


def prepare(
    text: "CorpusText", tokenizer: Tokenizer, folder: Path, start: str | None = None
) -> None:
    """Encode a text and write train.bin, held_out.bin and tokens.json.

    start: the fingerprint of the model that the run fine-tunes.
    ValueError: the text is not UTF-8, or not in the tokenizer's vocabulary.
    """
    # The largest token ID decides, because a checkpoint's vocabulary may be padded.
    vocab_size = max(tokenizer.get_vocab().values()) + 1
    dtype = "<u2" if vocab_size <= 2**16 else "<u4"
    folder.mkdir(parents=True, exist_ok=True)
    # Characters without a token do not contribute to the loss, so losses per character must not
    # count them.
    uncounted = [
        char for char in text.alphabet if not encode(tokenizer, char, add_special_tokens=False)
    ]
    counts = {}
    for name, chunks in (("train", text.train), ("held_out", text.held_out)):
        counts[name], characters = _write(
            folder / f"{name}.bin", chunks("Encoding"), tokenizer, dtype, uncounted
        )
    metadata = {
        "dtype": dtype,
        "below": vocab_size,
        **counts,
        "characters": characters,
        "texts": [text.names.get(path, path.name) for path in text.paths],
    }
    metadata |= {} if start is None else {"start": start}
    # The last file: it marks the preparation as complete.
    write_atomically(folder / "tokens.json", json.dumps(metadata, indent=2) + "\n")


def _write(
    path: Path, chunks: Iterable[str], tokenizer: Tokenizer, dtype: str, uncounted: Sequence[str]
) -> tuple[int, int]:
    """Encode and write the text. Returns the numbers of tokens and of characters, without those in
    `uncounted`.
    """
    tokens = characters = 0
    try:
        with path.open("wb") as file:
            for chunk in split_at_words(chunks):
                ids = encode(tokenizer, chunk, add_special_tokens=False)
                if not ids:
                    raise ValueError(
                        f"the tokenizer has no token for any of {chunk[:20]!r} …: use another "
                        f"{setting('tokenizer')}, such as characters"
                    )
                tokens += len(ids)
                characters += len(chunk) - sum(map(chunk.count, uncounted))
                file.write(np.array(ids, dtype).tobytes())
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise
    return tokens, characters


def split_at_words(chunks: Iterable[str]) -> Iterator[str]:
    """The same text in chunks of similar length that end before a word's white space.

    GPT-2's tokenizer splits there too (Radford et al. 2019: a word includes the preceding space),
    so encoding the chunks gives the token IDs of the entire text. The text is not split before
    punctuation: a special token may start there, and the tokenizer treats the white space before it
    as one unit.
    """
    pending = ""
    for chunk in chunks:
        pending += chunk
        words = (
            i
            for i in range(len(pending) - 2, 0, -1)
            if is_space(pending[i]) and pending[i + 1].isalnum()
        )
        if end := next(words, 0):
            yield pending[:end]
            pending = pending[end:]
        elif len(pending) > 8 * CHUNK:  # no white space
            yield pending
            pending = ""
    if pending:
        yield pending


def is_space(character: str) -> bool:
    """Whether tokenizers treat the character as white space. Unlike Python, they exclude U+001C to
    U+001F.
    """
    return character.isspace() and not "\x1c" <= character <= "\x1f"


class CorpusText:
    """Text files read as one unchanged text, and split into a training part and a held-out part.

    The files are read several times: to count characters, to train a tokenizer, and to encode.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        held_out: float,
        progress: Callable[[str, int, int], object],
        names: Mapping[Path, str] | None = None,
    ) -> None:
        """names: display names of temporary files, such as a copy of standard input."""
        self.paths, self.names = paths, names or {}
        self.progress = progress
        self.bytes = sum(size_and_time(path)[0] for path in paths)
        alphabet: set[str] = set()
        self.length = 0
        for chunk in self.chunks("Reading"):
            alphabet.update(chunk)
            self.length += len(chunk)
        if not self.length:
            names_shown = ", ".join(self.names.get(path, str(path)) for path in paths)
            raise ValueError(f"{names_shown}: the text is empty; use a text of 100 kB or more")
        self.alphabet = sorted(alphabet)
        self.split = int(self.length * (1 - held_out))

    def chunks(self, what: str) -> Iterator[str]:
        """Read the entire text in chunks. ValueError: a file is not UTF-8."""
        size = 0
        for path in self.paths:
            try:
                with path.open(encoding="utf-8", newline="") as file:  # preserves line endings
                    while chunk := file.read(CHUNK):
                        yield chunk
                        size += len(chunk.encode())
                        self.progress(what, size, self.bytes)
            except UnicodeDecodeError as error:
                name = self.names.get(path, path)
                raise ValueError(
                    f"{name} is not UTF-8 text ({error.reason}): convert it first"
                ) from error

    def train(self, what: str) -> Iterator[str]:
        """Read the training part, the start of the text."""
        remaining = self.split
        for chunk in self.chunks(what):
            if remaining <= 0:
                return
            yield chunk[:remaining]
            remaining -= len(chunk)

    def held_out(self, what: str) -> Iterator[str]:
        """Read the held-out part, the end of the text."""
        skip = self.split
        for chunk in self.chunks(what):
            if skip < len(chunk):
                yield chunk[max(skip, 0) :]
            skip -= len(chunk)


def random_integers(seed: int, step: int, high: int, count: int) -> list[int]:
    """`count` random integers from 0 to `high` - 1, determined by the arguments alone."""
    return np.random.Generator(np.random.PCG64([seed, step])).integers(high, size=count).tolist()


@dataclass(frozen=True)
class DataLoader:
    """Loads each step's batch.

    carry: False for sequences at random positions, as in nanoGPT. True for consecutive sequences:
    the text is divided into one stream per sequence of the batch, so that an LSTM carries its state
    from step to step. The streams start at another offset in each epoch.
    ValueError: the text is too short.
    """

    tokens: Tokens
    batch: int
    context: int
    seed: int
    carry: bool

    def __post_init__(self) -> None:
        batch, context, count = self.batch, self.context, self.tokens.count
        if count <= context:
            raise ValueError(
                f"the context ({context}) is longer than the training text ({count} tokens): use a"
                f" longer text, or {setting('context', max(1, count // 8))}"
            )
        if self.carry and (count - context) // batch <= context:
            raise ValueError(
                f"the training text ({count} tokens) is too short for {batch} streams with"
                f" sequences of {context}: use a longer text, a smaller {setting('batch')} or"
                f" {setting('context')}, or {setting('carry', False)}"
            )

    def at(self, step: int, shard: slice) -> tuple[Tensor, bool]:
        """A shard of the batch, (B, T + 1): inputs and, shifted by one, targets; and whether the
        state is reset.
        """
        length = self.tokens.count - self.context
        if not self.carry:
            starts, reset = random_integers(self.seed, step, length, self.batch), True
        else:
            length //= self.batch  # of a stream, for any offset
            epoch, index = divmod(step, (length - 1) // self.context)
            [offset] = random_integers(self.seed, epoch, self.context, 1)
            starts = [
                offset + stream * length + index * self.context for stream in range(self.batch)
            ]
            reset = index == 0
        return self.tokens.sequences(starts[shard], self.context + 1), reset


class EvaluationBatch(NamedTuple):
    """Start positions and length of a batch's sequences, and whether an LSTM's state is reset
    before it.
    """

    starts: list[int]
    length: int
    reset: bool


def evaluation_batches(
    tokens: Tokens, context: int, batch: int, size: int, max_tokens: int, carry: bool
) -> list[EvaluationBatch]:
    """The held-out text in batches of `size` sequences, in total about `max_tokens`.

    carry: False for independent sequences, evenly spaced over the text. True for the starts of
    `batch` streams of consecutive sequences.
    ValueError: the text has fewer than 2 tokens.
    """
    last = tokens.count - 1
    if last < 1:
        raise ValueError(
            f"the held-out text has {tokens.count} tokens, but evaluation requires 2: use a longer"
            f" text, or a larger {setting('held_out')}"
        )
    length = min(context, last)
    count = last // length
    if not carry:
        selected = (
            np.linspace(0, count - 1, min(count, max(max_tokens // length, 1))).round().astype(int)
        )
        starts: list[int] = (selected * length).tolist()
        return [
            EvaluationBatch(starts[i : i + size], length, True) for i in range(0, len(starts), size)
        ]
    streams = min(batch, count)
    stream_length = last // streams
    offsets = range(0, min(stream_length, max(max_tokens // streams, length)), length)
    return [
        EvaluationBatch(
            [
                stream * stream_length + offset
                for stream in range(first, min(first + size, streams))
            ],
            min(length, stream_length - offset),
            offset == 0,
        )
        for first in range(0, streams, size)
        for offset in offsets
    ]
