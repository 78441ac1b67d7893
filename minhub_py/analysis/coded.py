"""Decision tables, and hand-coded answers to a table's questions."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from reprlib import repr as brief
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minhub_py.analysis.decisions import Decisions
from minhub_py.analysis.questions import TYPES, Question, Type
from minhub_py.analysis.tokens import is_missing
from minhub_py.system.spelling import call_name, setting

# A table of `Decisions.table(options=True)`, as columns or a data frame. It may lack the column text.
Table = Mapping[str, Any]
# Hand-coded answers by question, one per text and None or "" for texts without one; rows or a data
# frame with the columns text, question and answer; or the name of a column of the decision table.
Truth = Mapping[str, Iterable[object]] | Iterable[Mapping[str, object]] | str
Indices = NDArray[np.int64]
TOLERANCE = 1e-3  # of the sum of a row's probabilities, which tables may round


def decisions_of(source: Decisions | Table) -> Decisions:
    """Decisions, or a decision table's decisions, with its texts in the order of the rows.

    ValueError: the table lacks a column, or the rows of a question.
    """
    if isinstance(source, Decisions):
        return source
    columns = columns_of(source)
    options = [name for name in columns if name.startswith("prob_")]
    if not options:
        raise ValueError(
            "the decision table has no columns prob_OPTION: compute it with"
            f" {setting('options', True)}"
        )
    texts = text_numbers(columns)
    rows: dict[str, dict[int, int]] = {}
    for row, (text, name) in enumerate(zip(texts, columns["question"], strict=True)):
        rows.setdefault(str(name), {})[text] = row
    questions, values, scores, spreads = list[Question](), [], [], []
    temperature = temperatures_of(columns)
    for name, by_text in rows.items():
        first = next(iter(by_text.values()))
        kind = columns["type"][first]
        if kind not in TYPES:
            raise ValueError(f"the type of question {name!r} must be {', '.join(TYPES)}")
        table = np.full((max(texts) + 1, len(options)), np.nan)
        for text, row in by_text.items():
            table[text] = [columns[option][row] for option in options]
        others = [
            row for other, by_text in rows.items() if other != name for row in by_text.values()
        ]
        used = np.array(
            [
                is_option(
                    option.removeprefix("prob_"),
                    kind,
                    column,
                    alone=all(is_empty(columns[option][row]) for row in others),
                )
                for option, column in zip(options, table.T, strict=True)
            ]
        )
        names = tuple(o.removeprefix("prob_") for o, u in zip(options, used, strict=True) if u)
        if not names:
            raise ValueError(f"the decision table has no probability for question {name!r}")
        check_sums(table[:, used], name, names)
        questions.append(Question(name, kind, None, names, (), (None,) * len(names)))
        values.append(table[:, used])
        with np.errstate(divide="ignore"):
            scores.append(np.log(table[None, :, used]) * temperature[kind])
        spread = np.full_like(values[-1], np.nan)
        for text, row in by_text.items():
            if not np.isnan(values[-1][text]).any():
                spread[text, values[-1][text].argmax()] = columns["spread"][row]
        spreads.append(spread)
    return Decisions(tuple(questions), tuple(values), tuple(spreads), tuple(scores), temperature)


def is_option(name: str, kind: Type, column: NDArray[np.float64], *, alone: bool) -> bool:
    """Whether a column of probabilities belongs to a question. Empty cells of other questions'
    options may be 0; a rare option's probabilities may be rounded to 0. alone: whether the column
    is empty for other questions.
    """
    if np.isnan(column).all():
        return False
    if np.nanmax(np.abs(column)) > 0:
        return True
    return {"noul": name in ("true", "false"), "score": name.isdecimal(), "choice": alone}[kind]


def temperatures_of(columns: Mapping[str, Sequence[Any]]) -> dict[Type, float]:
    """The temperature of each type of question, NaN if it is empty. ValueError: it is not above 0,
    or a type has several.
    """
    result: dict[Type, float] = {}
    for kind, value in zip(columns["type"], columns["temperature"], strict=True):
        if value <= 0:
            raise ValueError(
                f"the column temperature has {value:g}, and temperatures are above 0: pass the table"
                f" of {call_name('decide')}"
            )
        previous = result.get(kind, math.nan)
        if previous != value and not math.isnan(previous) and not math.isnan(value):
            raise ValueError(
                f"the column temperature has {previous:g} and {value:g} for questions of type {kind}:"
                f" pass the table of one call of {call_name('decide')}"
            )
        result[kind] = value if math.isnan(previous) else previous
    return result


def check_sums(values: NDArray[np.float64], question: str, options: Sequence[str]) -> None:
    """ValueError: the probabilities (texts, options) of a text do not add up to 1."""
    sums = np.nansum(values[~np.isnan(values).all(axis=1)], axis=1)
    if len(wrong := sums[np.abs(sums - 1) > TOLERANCE]):
        raise ValueError(
            f"the columns {', '.join(f'prob_{option}' for option in options)} of question"
            f" {question!r} add up to {wrong[0]:g}, not 1: rename or remove those that are not"
            " options"
        )


def columns_of(table: Table) -> dict[str, list[object]]:
    """A table's columns as lists; numbers are floats, with NaN for empty cells.

    ValueError: a column is missing, lengths differ, or a cell is not a number.
    """
    if not hasattr(table, "keys") or not hasattr(table, "__getitem__"):
        raise ValueError(
            f"decisions must be the result of {call_name('decide')} or its table, not {brief(table)}"
        )
    columns = {str(name): list(table[name]) for name in table.keys()}  # noqa: SIM118 (a data frame)
    required = ("question", "type", "spread", "temperature")
    if absent := [name for name in required if name not in columns]:
        raise ValueError(
            f"the decision table must have the column {absent[0]}: pass the table of"
            f" {call_name('decide')}"
        )
    if len({len(values) for values in columns.values()}) > 1:
        raise ValueError("the columns of the decision table have different lengths")
    # A job writes a row without a question for a text that has a problem.
    numbers = [row for row, name in enumerate(columns["question"]) if not is_empty(name)]
    if not numbers:
        raise ValueError("the decision table has no rows with a question")
    return {
        name: [
            number_of(values[row], name, row) if is_numeric(name) else values[row]
            for row in numbers
        ]
        for name, values in columns.items()
    }


def is_numeric(column: str) -> bool:
    """Whether a column of a decision table that calibration and estimates use has numbers."""
    return column in ("spread", "temperature") or column.startswith("prob_")


def is_empty(value: object) -> bool:
    """Whether a cell of a table is empty."""
    return is_missing(value) or value == ""


def text_numbers(columns: Mapping[str, Sequence[object]]) -> list[int]:
    """The number of each row's text, in order. Each further row of a question with the same text is
    another text. Without the column text, each row of a question is a text.
    """
    names = columns.get("text", [None] * len(columns["question"]))
    numbers: dict[tuple[object, int], int] = {}
    counts: dict[tuple[object, object], int] = {}
    result = list[int]()
    for pair in zip(names, columns["question"], strict=True):
        counts[pair] = counts.get(pair, -1) + 1
        result.append(numbers.setdefault((pair[0], counts[pair]), len(numbers)))
    return result


def number_of(value: object, column: str, row: int) -> float:
    """A cell of a table, NaN if it is empty. ValueError: it is not a number."""
    try:
        return math.nan if is_empty(value) else float(str(value))
    except ValueError as error:
        advice = ": rename a column that is not an option" if column.startswith("prob_") else ""
        raise ValueError(
            f"row {row + 1} of the column {column} of the decision table is {brief(value)}, not a"
            f" number{advice}"
        ) from error


def truth_of(source: Decisions | Table, truth: Any) -> Any:
    """Hand-coded answers, as rows if they are a column of the table or a data frame, and as a list
    if they are a generator. ValueError: the table lacks the column.
    """
    if hasattr(truth, "to_dict") and hasattr(truth, "columns"):  # of pandas
        return truth.to_dict("records")
    if isinstance(truth, Iterator):
        return list(truth)
    if not isinstance(truth, str):
        return truth
    columns = {} if isinstance(source, Decisions) else columns_of(source)
    if truth not in columns:
        raise ValueError(f"the decision table has no column {truth!r} with hand-coded answers")
    return [
        {"text": text, "question": name, "answer": answer}
        for text, name, answer in zip(
            text_numbers(columns), columns["question"], columns[truth], strict=True
        )
    ]


def coded_answers(decisions: Decisions, truth: Truth) -> list[Indices]:
    """For each question, the index of each text's hand-coded option (texts,); -1 without one.

    ValueError: an unknown question, text or option, a wrong length, or a text coded twice.
    """
    count = len(decisions.probabilities[0])
    by_name = {question.name: question for question in decisions.questions}
    answers = {name: np.full(count, -1) for name in by_name}
    for text, name, answer in cells_of(truth, by_name, count):
        if is_empty(answer):
            continue
        if answers[name][text] >= 0:
            raise ValueError(f"question {name!r} of text {text} has two hand-coded answers")
        answers[name][text] = option_index(by_name[name], answer)
    if all((indices < 0).all() for indices in answers.values()):
        raise ValueError("no text has a hand-coded answer")
    return list(answers.values())


def cells_of(
    truth: Truth, questions: Mapping[str, Question], count: int
) -> Iterable[tuple[int, str, object]]:
    """Text, question and answer of each cell. ValueError: a question or a text is unknown."""
    if isinstance(truth, Mapping):
        for name, answers in truth.items():
            check_name(name, questions)
            values = list(answers)
            if len(values) != count:
                raise ValueError(
                    f"question {name!r} has {len(values)} hand-coded answers for {count} texts:"
                    " pass one per text, with None for texts without one"
                )
            yield from ((text, name, answer) for text, answer in enumerate(values))
        return
    if isinstance(truth, str) or not isinstance(truth, Iterable):
        raise ValueError(
            "hand-coded answers must be lists by question, or rows with text, question and answer,"
            f" not {brief(truth)}"
        )
    for row in truth:
        if not isinstance(row, Mapping) or not {"text", "question", "answer"} <= row.keys():
            raise ValueError(f"a hand-coded row must have text, question and answer: {brief(row)}")
        name, text = str(row["question"]), row["text"]
        check_name(name, questions)
        try:
            number = int(str(text))
        except ValueError as error:
            raise ValueError(
                f"text must be the number of a text from 0, not {brief(text)}"
            ) from error
        if not 0 <= number < count:
            raise ValueError(f"text {number} does not exist: there are {count} texts from 0")
        yield number, name, row["answer"]


def check_name(name: object, questions: Mapping[str, Question]) -> None:
    """ValueError: the question is unknown."""
    if name not in questions:
        raise ValueError(f"question {name!r} is unknown: the questions are {', '.join(questions)}")


def option_index(question: Question, answer: object) -> int:
    """A hand-coded option's index. ValueError: it is unknown."""
    if question.type == "noul" and isinstance(answer, bool | np.bool_):
        answer = "true" if answer else "false"
    spelled = str(answer)
    if question.type == "noul":
        spelled = spelled.lower()
    elif question.type == "score":
        spelled = level_name(spelled)
    if spelled not in question.options:
        raise ValueError(
            f"{brief(answer)} is not an answer to question {question.name!r}: use"
            f" {' or '.join(sorted(question.options)[:8])}"
        )
    return question.options.index(spelled)


def level_name(spelled: str) -> str:
    """The name of a score's level: 2.0 is 2."""
    try:
        number = float(spelled)
    except ValueError:
        return spelled
    return str(int(number)) if number.is_integer() else spelled


def outcome(
    decisions: Decisions, truth: object, question: str | None, option: str | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Human and predicted labels (texts,) as numbers: of an option 1 or 0 and its probability, of a
    score the level and its expectation. NaN without a human label.

    truth: hand-coded answers, also those to the question as a list.
    ValueError: the question or the option is unknown or must be given.
    """
    by_name = {typed.name: number for number, typed in enumerate(decisions.questions)}
    if question is None and len(by_name) > 1:
        raise ValueError(f"question must be one of {', '.join(by_name)}")
    name = next(iter(by_name)) if question is None else question
    check_name(name, {typed.name: typed for typed in decisions.questions})
    number = by_name[name]
    typed, probabilities = decisions.questions[number], decisions.probabilities[number]
    answers: Any = truth if isinstance(truth, Mapping) or are_rows(truth) else {name: truth}
    coded = coded_answers(decisions, answers)[number]
    if option is None and typed.type == "score":
        levels = np.array([int(level) for level in typed.options], float)
        return np.where(coded < 0, np.nan, levels[coded]), probabilities @ levels
    if option is None and typed.type == "choice":
        raise ValueError(
            f"option must be one of {', '.join(typed.options)}: the outcome of a choice is whether"
            " an option is the answer"
        )
    index = option_index(typed, "true" if option is None else option)
    return np.where(coded < 0, np.nan, coded == index), probabilities[:, index]


def are_rows(truth: object) -> bool:
    """Whether hand-coded answers are rows."""
    return isinstance(truth, Sequence) and any(isinstance(row, Mapping) for row in truth)
