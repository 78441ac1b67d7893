"""Log-probabilities of the complete vocabulary at every position of texts."""

import itertools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from minhub_py.analysis.predictions import Progress, Span, log_normalizers, predict
from minhub_py.analysis.surprisal import refuse_encoder_decoder
from minhub_py.analysis.tokens import encodings, token_strings
from minhub_py.inference.arguments import check_list, decoder_of
from minhub_py.inference.prompts import check_ids
from minhub_py.models.base import LanguageModel
from minhub_py.system.tables import Columns


def logprob_matrix(
    model: LanguageModel,
    tokenizer: Tokenizer,
    texts: str | Iterable[str] | Iterable[Sequence[int]],
    *,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> tuple[Columns, NDArray[np.float32]]:
    """Compute the log-probability of every token of the vocabulary at every position, given the
    tokens before it.

    A row of GPT-2's vocabulary takes 200 kB.

    Args:
        model: A model of this package.
        tokenizer: The model's tokenizer; None if `texts` are token IDs.
        texts: A text, a list of texts, or a list of lists of token IDs.
        out: A .npy file for the matrix, written in bounded memory; an existing file is replaced.
        progress: Called with the number of processed positions and the total.

    Returns:
        Columns that describe the rows: text and position (from 0), token (its string), and id.

        The matrix of shape (tokens, vocabulary), float32, in nats. The row of a text's first token
        is NaN, because it has no context. With `out`, the matrix is `numpy.load(out,
        mmap_mode="r")`.

    Raises:
        ValueError: The model is an encoder-decoder; the tokenizer does not match the model; a token
            ID is out of range; or `out` is not a .npy file.
    """
    model = decoder_of(model, "logprob_matrix()")
    refuse_encoder_decoder(model)
    if not isinstance(texts, str):
        check_list("texts", texts, "texts")
    items: list[Any] = [texts] if isinstance(texts, str) else list(texts)
    if all(isinstance(text, str) for text in items):
        rows = [list(encoding.ids) for encoding in encodings(model, tokenizer, items)]
    else:
        rows = [check_ids(model, text, number) for number, text in enumerate(items)]
    lengths = [len(row) for row in rows]
    offsets = np.cumsum([0, *lengths])
    matrix = MatrixWriter(out, int(offsets[-1]), model.config.vocab_size)

    def consume(
        logits: Tensor, sources: list[int], numbers: list[int], positions: list[int]
    ) -> None:
        logprobs = (logits.float() - log_normalizers(logits)[0].unsqueeze(1)).cpu().numpy()
        for source, row in zip(sources, (offsets[numbers] + positions).tolist(), strict=True):
            matrix.write(row, logprobs[source])

    with matrix:
        for offset, length in zip(offsets.tolist(), lengths, strict=False):
            if length:
                matrix.write(offset, np.full(model.config.vocab_size, np.nan, np.float32))
        predict(model, [Span(row, 1, max(len(row), 1)) for row in rows], consume, progress)
    ids = list(itertools.chain.from_iterable(rows))
    columns = Columns(
        text=np.repeat(np.arange(len(rows)), lengths),
        position=np.arange(len(ids)) - np.repeat(offsets[:-1], lengths),
        token=token_strings(tokenizer, ids),
        id=np.array(ids, np.int64),
    )
    return columns, matrix.result()


class MatrixWriter:
    """A float32 matrix whose rows are written in any order, to memory or to a .npy file.

    The file is temporary until it is complete. It is not memory-mapped: written pages would count
    as memory of this process.
    """

    def __init__(self, out: str | os.PathLike[str] | None, rows: int, columns: int) -> None:
        self.path = None if out is None else Path(out)
        self.shape = (rows, columns)
        if self.path is not None and self.path.suffix != ".npy":
            raise ValueError(f"out must name a .npy file, not {self.path}")

    def __enter__(self) -> "MatrixWriter":
        if self.path is None:
            self.array = np.empty(self.shape, np.float32)
        else:
            self.partial = self.path.with_name(self.path.name + ".part")
            self.file = self.partial.open("wb")
            header = {"descr": "<f4", "fortran_order": False, "shape": self.shape}
            np.lib.format.write_array_header_1_0(self.file, header)
            self.start = self.file.tell()
        return self

    def write(self, row: int, values: NDArray[np.float32]) -> None:
        if self.path is None:
            self.array[row] = values
        else:
            self.file.seek(self.start + 4 * self.shape[1] * row)
            self.file.write(values.astype("<f4").tobytes())

    def __exit__(self, error: object, *_: object) -> None:
        """Rename the temporary file, or remove it after an error."""
        if self.path is not None:
            self.file.close()
            if error is None:
                self.partial.replace(self.path)
            else:
                self.partial.unlink()

    def result(self) -> NDArray[np.float32]:
        """The matrix, memory-mapped if it is in a file."""
        if self.path is None:
            return self.array
        matrix: NDArray[np.float32] = np.load(self.path, mmap_mode="r" if self.shape[0] else None)
        return matrix
