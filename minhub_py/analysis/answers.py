"""Question answering: the parts of a text that answer a question, by a head that scores starts and
ends.

Sources
    Devlin et al. (2019), "BERT", section 4.2, for the head.
    The question answering pipeline of transformers 4, for the windows and the choice of answers.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from minhub_py.analysis.encoders import (
    TEXTS,
    Input,
    check_ids,
    head_output,
    hidden_states,
    limit_of,
)
from minhub_py.analysis.predictions import Progress
from minhub_py.analysis.segments import as_texts
from minhub_py.checkpoints.tokenizers.tokenizer import working
from minhub_py.inference.arguments import check_integer, check_tokenizer, model_of
from minhub_py.models.encoder import Encoder
from minhub_py.system.tables import Columns

Floats = NDArray[np.float32] | NDArray[np.float64]
WINDOW, STRIDE = 384, 128  # transformers' defaults, in tokens


@dataclass(frozen=True)
class Answer:
    """An answer: its characters `start` to `end` of the context, and its probability."""

    text: str
    start: int
    end: int
    score: float


def answer_questions(
    model: Encoder,
    tokenizer: Tokenizer,
    question: str | Iterable[str | None],
    context: str | Iterable[str | None],
    *,
    k: int = 1,
    no_answer: bool = False,
    max_answer: int = 15,
    window: int = WINDOW,
    stride: int | None = None,
    progress: Progress | None = None,
) -> Columns:
    """Find the answers to questions in texts, with a checkpoint for question answering.

        answer_questions(model, tokenizer, "Where does Hamlet live?", "Hamlet lives in Denmark.")
        answer_questions(model, tokenizer, "Where does he live?", ["Hamlet lives in Denmark.", "Lear is in Britain."])

    A long context is divided into overlapping windows. Equal answers in several places count as
    one, with the sum of their probabilities.

    Args:
        model: An encoder with a question answering head.
        tokenizer: The model's tokenizer.
        question: A question, or a list with one for each context.
        context: A text, or a list of texts; None for a missing text. A single one belongs to all
            questions.
        k: Maximum number of answers to each question.
        no_answer: Whether "no answer" can be an answer, for models that were trained with such
            questions.
        max_answer: Maximum number of tokens of an answer.
        window: Maximum number of tokens of a question with a part of its context.
        stride: Number of tokens in which two parts of a context overlap; less if the question
            leaves no room. Default: 128, or half of the window if that is less.
        progress: Called with the number of processed tokens and the total.

    Returns:
        Columns with one row per answer, in the order of the texts: text (the number of the question
        and its context, from 0), rank (from 1), answer, start and end (the positions of its
        characters: `context[start:end]`) and score (its probability). "No answer" is an empty
        string. A missing or empty question or context has one row without an answer: answer None,
        start and end -1, score NaN.

    Raises:
        ValueError: The model has no question answering head; the numbers of questions and contexts
            differ; a question leaves no room for its context.
    """
    model = model_of(model, "answer_questions()")
    check_answers(model.config, "answer_questions()")
    k, max_answer = check_integer("k", k, 1), check_integer("max_answer", max_answer, 1)
    window = min(check_integer("window", window, 1), limit_of(model, max_length_of(model)))
    stride = min(window // 2, STRIDE) if stride is None else check_integer("stride", stride, 0)
    check_tokenizer(tokenizer, "encode_batch")
    questions, contexts = pairs_of(question, context)
    columns: dict[str, list[object]] = {
        name: [] for name in ("text", "rank", "answer", "start", "end", "score")
    }
    for first in range(0, len(questions), TEXTS):
        numbers = range(first, min(first + TEXTS, len(questions)))
        present = [number for number in numbers if questions[number] and contexts[number]]
        rows = [(questions[number] or "", contexts[number] or "") for number in present]
        windows = [[*windows_of(model, tokenizer, *row, window, stride)] for row in rows]
        scores = iter(
            scores_of_windows(model, [part for parts in windows for part in parts], progress)
        )
        answers = {
            number: best_answers(
                [(part, next(scores)) for part in parts], text, k, no_answer, max_answer
            )
            for number, parts, (_, text) in zip(present, windows, rows, strict=True)
        }
        for number in numbers:
            for rank, answer in enumerate(
                answers.get(number, [Answer("", -1, -1, float("nan"))]), 1
            ):
                text = answer.text if number in answers else None
                for name, value in zip(
                    columns,
                    (number, rank, text, answer.start, answer.end, answer.score),
                    strict=True,
                ):
                    columns[name].append(value)
    kinds = {"answer": None, "score": np.float32}
    return Columns(
        (name, values if name == "answer" else np.array(values, kinds.get(name, np.int64)))
        for name, values in columns.items()
    )


def check_answers(config: object, call: str) -> None:
    """ValueError: the checkpoint has no question answering head."""
    if getattr(config, "head", None) != "questions":
        raise ValueError(
            f"{call} needs a question answering head, which this checkpoint does not have: use a"
            " checkpoint with an architecture …ForQuestionAnswering"
        )


def max_length_of(model: Encoder) -> int | None:
    """The maximum number of tokens of the checkpoint, if its files set one."""
    settings = model.embedding_settings
    return None if settings is None else settings.max_length


def pairs_of(
    question: str | Iterable[str | None], context: str | Iterable[str | None]
) -> tuple[list[str | None], list[str | None]]:
    """The question and the context of each pair. ValueError: their numbers differ."""
    questions = as_texts("question", [question] if isinstance(question, str) else question)
    contexts = as_texts("context", [context] if isinstance(context, str) else context)
    if isinstance(question, str):
        questions = questions * len(contexts)
    elif isinstance(context, str):
        contexts = contexts * len(questions)
    if len(questions) != len(contexts):
        raise ValueError(
            f"{len(questions)} questions for {len(contexts)} contexts: pass one question per"
            " context, or a single one"
        )
    return questions, contexts


@dataclass(frozen=True)
class ContextWindow:
    """A question with a part of its context.

    words, offsets: the word and the characters of each token.    spans: each word's characters
    of the context.
    usable: whether a token can be the start or end of an answer.    is_special: whether the first
    token is special.
    """

    input: Input
    words: Sequence[int | None]
    offsets: Sequence[tuple[int, int]]
    spans: Mapping[int, tuple[int, int]]
    usable: NDArray[np.bool_]
    is_special: bool

    def characters(self, start: int, end: int) -> tuple[int, int]:
        """The characters of the words that contain the tokens from `start` to `end`."""
        first, last = (
            None if word is None else self.spans.get(word)
            for word in (self.words[start], self.words[end])
        )
        if first is None or last is None:
            return self.offsets[start][0], self.offsets[end][1]
        return first[0], last[1]


def windows_of(
    model: Encoder, tokenizer: Tokenizer, question: str, context: str, size: int, stride: int
) -> Iterator[ContextWindow]:
    """The windows of a question and its context. ValueError: the question is too long."""
    with working(tokenizer):
        first, second = tokenizer.encode_batch([question, context], add_special_tokens=False)
        room = size - tokenizer.num_special_tokens_to_add(True) - len(first.ids)
        if room < 1:
            raise ValueError(
                f"a question of {len(first.ids)} tokens leaves no room for its context: the maximum"
                f" is {size} tokens"
            )
        # Read before `post_process`, which excludes the spaces of byte-level tokens once more.
        words, offsets = second.word_ids, second.offsets
        overlap = stride if stride < room else room // 2
        second.truncate(room, stride=overlap)
        encoding = tokenizer.post_process(first, second)
    for number, part in enumerate((encoding, *encoding.overflowing)):
        check_ids(model, part.ids)
        yield window_of(part, types_like(encoding, part), words, offsets, number * (room - overlap))


def types_like(first: Encoding, part: Encoding) -> list[int]:
    """A part's token types, from the first one's: the library gives type 0 to all tokens of
    other parts.
    """
    types: list[int] = first.type_ids
    count = part.sequence_ids.count(1)
    if not count:
        return types
    before, end = first.sequence_ids.index(1), len(first) - first.sequence_ids[::-1].index(1)
    return [*types[:before], *[types[before]] * count, *types[end:]]


def window_of(
    part: Encoding,
    types: list[int],
    words: Sequence[int | None],
    offsets: Sequence[tuple[int, int]],
    start: int,
) -> ContextWindow:
    """The window of an encoding whose part of the context begins with token `start`.

    The first special token means "no answer". As in transformers, its other occurrences, in a text
    that contains it, are not excluded from answers.
    """
    inside = np.array([number == 1 for number in part.sequence_ids])
    is_special = bool(part.special_tokens_mask[0])
    usable = inside | (np.array(part.ids) == part.ids[0]) if is_special else inside
    tokens = np.flatnonzero(inside).tolist()
    characters = list(part.offsets)
    spans: dict[int, tuple[int, int]] = {}
    for number, token in enumerate(tokens, start):
        characters[token], word = offsets[number], words[number]
        if word is not None:
            spans[word] = spans.get(word, offsets[number])[0], offsets[number][1]
    return ContextWindow(
        Input(part.ids, types), part.word_ids, characters, spans, usable, is_special
    )


@torch.inference_mode()
def scores_of_windows(
    model: Encoder, windows: Sequence[ContextWindow], progress: Progress | None
) -> list[Floats]:
    """The scores of starts and ends (T, 2), float32, of each window."""
    inputs = [window.input for window in windows]
    results: list[Floats] = [np.empty(0)] * len(inputs)
    for i, x in hidden_states(model, inputs, progress):
        results[i] = head_output(model, x).numpy()
    return results


def best_answers(
    windows: Iterable[tuple[ContextWindow, Floats]],
    context: str,
    k: int,
    no_answer: bool,
    max_answer: int,
) -> list[Answer]:
    """The most likely answers of a context, from its windows and their scores."""
    answers: dict[str, Answer] = {}  # by the text in lower case
    none = math.inf
    for window, scores in windows:
        values = np.where(window.usable[:, None], scores, np.float32(-10000.0))
        values = np.exp(values - values.max(axis=0))
        values /= values.sum(axis=0)
        none = min(none, float(values[0, 0] * values[0, 1]))
        values[0] = 0.0
        for start, end, score in spans_of(values, 2 * k + 10, max_answer):
            if window.usable[start] and window.usable[end]:
                first, last = window.characters(start, end)
                answer = answers.get(
                    context[first:last].lower(), Answer(context[first:last], first, last, 0.0)
                )
                answers[answer.text.lower()] = replace(answer, score=answer.score + score)
    candidates = [*answers.values(), *([Answer("", 0, 0, none)] if no_answer else [])]
    return sorted(candidates, key=lambda answer: -answer.score)[:k]


def spans_of(values: Floats, count: int, longest: int) -> Iterator[tuple[int, int, float]]:
    """(start, end, probability) of the most likely spans of at most `longest` tokens. values: (T,
    2).
    """
    products = np.tril(np.triu(np.outer(values[:, 0], values[:, 1])), longest - 1).ravel()
    best = (
        np.argpartition(-products, count)[:count]
        if len(products) > count
        else np.arange(len(products))
    )
    for index in best[np.argsort(-products[best], kind="stable")].tolist():
        yield (*divmod(index, len(values)), float(products[index]))
