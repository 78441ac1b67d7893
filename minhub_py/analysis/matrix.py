"""All that a model predicts in the place of each token: a row of the vocabulary's log-probabilities for each."""

import itertools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from minhub_py.analysis.predictions import Progress, Wanted, log_normalizers, predict
from minhub_py.analysis.surprisal import refuse_encoder_decoder
from minhub_py.analysis.tokens import encodings, token_strings
from minhub_py.inference.arguments import model_of
from minhub_py.inference.generate import check_ids


def logprob_matrix(
    model: Any,
    tokenizer: Any,
    texts: str | Iterable[str] | Iterable[Sequence[int]],
    *,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    """The log-probability (nats) of every id of the vocabulary in the place of every token, given those before it.

    First, columns that say what the rows are: text (its number, from 0), position (in the text, from 0), token, id.
    Second, the matrix (tokens, vocabulary), float32. The row of a text's first token, which nothing predicts, is NaN.
    out: a .npy file for the matrix, which is written in steady memory; `numpy.load(out, mmap_mode="r")` is then what
    is returned. GPT-2's vocabulary makes 200 kB a token.
    ValueError: an encoder-decoder, a tokenizer of another model, an id outside the vocabulary.
    """
    model = model_of(model, "logprob_matrix()")
    refuse_encoder_decoder(model)
    given: list[Any] = [texts] if isinstance(texts, str) else list(texts)
    if all(isinstance(text, str) for text in given):
        rows = [list(encoding.ids) for encoding in encodings(model, tokenizer, given)]
    else:
        rows = [check_ids(model, text, number) for number, text in enumerate(given)]
    lengths = [len(row) for row in rows]
    begins = np.cumsum([0, *lengths])
    matrix = Rows(out, int(begins[-1]), model.config.vocab_size)

    def take(logits: Tensor, places: list[int], numbers: list[int], positions: list[int]) -> None:
        found = (logits.float() - log_normalizers(logits)[0].unsqueeze(1)).cpu().numpy()
        for place, row in zip(places, (begins[numbers] + positions).tolist(), strict=True):
            matrix.set(row, found[place])

    with matrix:
        for begin, length in zip(begins.tolist(), lengths, strict=False):
            if length:
                matrix.set(begin, np.full(model.config.vocab_size, np.nan, np.float32))
        predict(model, [Wanted(row, 1, max(len(row), 1)) for row in rows], take, progress)
    ids = list(itertools.chain.from_iterable(rows))
    columns = {
        "text": np.repeat(np.arange(len(rows)), lengths),
        "position": np.arange(len(ids)) - np.repeat(begins[:-1], lengths),
        "token": token_strings(tokenizer, ids),
        "id": np.array(ids, np.int64),
    }
    return columns, matrix.value()


class Rows:
    """A matrix (rows, columns), float32, whose rows come in any order: in memory, or in a .npy file.

    The file is written beside its place and moved there when it is whole. It is not mapped: pages of it would count as
    this process's memory.
    """

    def __init__(self, out: str | os.PathLike[str] | None, rows: int, columns: int) -> None:
        self.path = None if out is None else Path(out)
        self.shape = (rows, columns)
        if self.path is not None and self.path.suffix != ".npy":
            raise ValueError(f"out must name a .npy file, not {self.path}")

    def __enter__(self) -> "Rows":
        """Make the memory, or open the file. OSError: it cannot be written."""
        if self.path is None:
            self.array = np.empty(self.shape, np.float32)
        else:
            self.draft = self.path.with_name(self.path.name + ".part")
            self.file = self.draft.open("wb")
            header = {"descr": "<f4", "fortran_order": False, "shape": self.shape}
            np.lib.format.write_array_header_1_0(self.file, header)
            self.start = self.file.tell()
        return self

    def set(self, row: int, values: np.ndarray[Any, Any]) -> None:
        """Write a row."""
        if self.path is None:
            self.array[row] = values
        else:
            self.file.seek(self.start + 4 * self.shape[1] * row)
            self.file.write(values.astype("<f4").tobytes())

    def __exit__(self, kind: object, *_: object) -> None:
        """Put the file in its place, or remove it after an error."""
        if self.path is not None:
            self.file.close()
            if kind is None:
                self.draft.replace(self.path)
            else:
                self.draft.unlink()

    def value(self) -> np.ndarray[Any, Any]:
        """The whole matrix; that of a file is mapped, and read as it is used."""
        if self.path is None:
            return self.array
        found: np.ndarray[Any, Any] = np.load(self.path, mmap_mode="r" if self.shape[0] else None)
        return found
