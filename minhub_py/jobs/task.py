"""A task of a job: the texts of a chunk, its results, and notes about rows without one."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from minhub_py.system.json_text import JsonMapping, JsonObject
from minhub_py.system.table_writers import Column

Results = list[JsonObject]


@dataclass(frozen=True)
class RowText:
    """A text. row: its number in the entire input, from 0.    extra: the value of the task's
    additional column.

    ids: at least one token ID, except for a word.
    """

    row: int
    text: str
    ids: list[int]
    extra: str = ""


@dataclass(frozen=True)
class Task:
    """An operation on texts.

    run: called as run(model, tokenizer, texts, **settings); returns the rows of results for each
    text.
    columns: the columns of the results.
    chunk: the number of texts computed together, the most that is lost in a kill.
    verb: the label of the progress bar.
    exact: with the C decoder, results are bitwise identical for any number of threads. Otherwise,
        and without the decoder, a resumed job requires the same number.
    models: the models that compute the task.
    more_columns: further columns of the results, which depend on the settings.
    extra: the option that names an additional input column: "target", or "by", whose values
        identify the text to which a word belongs. With "by", a chunk contains complete texts.
    options: the command's names of the options "column" and `extra`, where they differ.
    """

    run: Callable[..., list[Results]]
    columns: tuple[Column, ...]
    chunk: int
    verb: str
    exact: bool = True
    extra: Literal["", "target", "by"] = ""
    models: Literal["all", "decoders", "encoders"] = "decoders"
    more_columns: Callable[[JsonMapping], Sequence[Column]] | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def all_columns(self, settings: Mapping[str, object]) -> Sequence[Column]:
        """The columns of the results with these settings."""
        return (*self.columns, *(() if self.more_columns is None else self.more_columns(settings)))


def note_rows(texts: Sequence[RowText], problem: str) -> None:
    """Note why rows have no result."""
    for text in texts:
        warnings.warn(f"row {text.row + 1} has no result: {problem}", stacklevel=2)


def note_problems(texts: Sequence[RowText], problems: Mapping[int, str]) -> None:
    """Note the problems of rows, by their numbers."""
    for text in texts:
        if text.row in problems:
            note_rows([text], f"the text {problems[text.row]}")


def plain(values: Any) -> list[object]:
    """A column as values of Python. Numbers in float32 have the fewest digits that identify them;
    NaN is None.
    """
    if not hasattr(values, "dtype"):
        return list(values)
    values = (
        [float(str(value)) for value in values]
        if str(values.dtype) == "float32"
        else values.tolist()
    )
    return [None if isinstance(value, float) and math.isnan(value) else value for value in values]
