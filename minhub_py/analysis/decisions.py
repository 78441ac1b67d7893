"""Typed decisions: questions about a text, with a probability for every answer and no generation.

A question has one of three types, as in the System One API of transformers 5.24:

    choice    criteria map each option to a description or None; the answer is an option
    score     criteria list descriptions of the levels, lowest first; the answer is a level from 0
    noul      true or false; criteria may describe both

The prompt lists the options with labels of one token (Yes and No, or A, B, C, …), and the logits of
the labels after the prompt are the scores of the options. Probabilities are a softmax of the scores
divided by the temperature of the question's type. A repository may contain its own labels,
temperatures and prompt (decision.json, decision_template.jinja).

A decision model (JevForDecision of transformers) has a linear layer for the scores, and reads them at
the positions that its prompt marks. Laya is an encoder, which scores a mark before each option.

Questions about one text share its prefix in the KV cache, and texts are computed in batches. A
text's results are bitwise identical to a single call's.

Sources
    transformers' decision/ and pipelines/decision.py for prompts, answers and files.
    Guo et al. (2017), "On Calibration of Modern Neural Networks", for temperatures.
    Pezeshkpour and Hruschka (2024), "Large Language Models Sensitivity to the Order of Options in
    Multiple-Choice Questions", for the mean over orders of the options.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from minhub_py.analysis.decision_prompts import (
    DecisionPrompts,
    InvalidTextError,
    Prompted,
    State,
)
from minhub_py.analysis.encoders import Input, head_output, hidden_states
from minhub_py.analysis.option_prompts import OptionPrompts
from minhub_py.analysis.predictions import Progress, Span, predict
from minhub_py.analysis.questions import (
    TYPES,
    DecisionSettings,
    Question,
    Type,
    parse_questions,
)
from minhub_py.inference.arguments import check_integer, check_tokenizer, decoder_of, model_of
from minhub_py.models.base import LanguageModel
from minhub_py.models.heads import DecisionHead
from minhub_py.models.laya import Laya, LayaConfig
from minhub_py.models.settings import ModelConfig
from minhub_py.system.json_text import JsonObject
from minhub_py.system.tables import Columns, Result

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Decisions(Result):
    """The answers of `decide`.

    Attributes:
        questions: The questions, in the order of the call.
        probabilities: For each question, (texts, options) float64; NaN for a missing text.
        spreads: For each question, the standard deviation of each probability over the orders of
            the options, (texts, options); zeros for one order.
        scores: For each question, (orders, texts, options) float64 before the division by the
            temperature; options in the order of the question.
        temperature: Temperature by type of question; NaN for calibrated probabilities, which have
            several.
        tokens: Number of tokens of all prompts.
    """

    questions: tuple[Question, ...]
    probabilities: tuple[Floats, ...]
    spreads: tuple[Floats, ...]
    scores: tuple[Floats, ...] = field(repr=False)
    temperature: Mapping[Type, float]
    tokens: int = field(default=0, repr=False)

    def table(self, options: bool = False) -> Columns:
        """One row per text and question: text and question (number and name), type, answer (None
        for a missing text), prob (of the answer), confidence and score (NaN where the type has
        none), spread (of the answer's probability over the orders of the options), and temperature
        (of the question's type).

        options: with a column `prob_OPTION` for each option of any question.
        """
        rows = [
            (number, question, probabilities[number], spreads[number])
            for number in range(len(self.probabilities[0]))
            for question, probabilities, spreads in zip(
                self.questions, self.probabilities, self.spreads, strict=True
            )
        ]
        answers = [None if np.isnan(p).any() else question.answer(p) for _, question, p, _ in rows]
        best = [
            -1 if answer is None else int(p.argmax())
            for answer, (_, _, p, _) in zip(answers, rows, strict=True)
        ]
        columns: dict[str, object] = {
            "text": np.array([number for number, *_ in rows]),
            "question": [question.name for _, question, *_ in rows],
            "type": [question.type for _, question, *_ in rows],
            "answer": [
                None if i < 0 else question.options[i]
                for i, (_, question, *_) in zip(best, rows, strict=True)
            ],
            "prob": np.array(
                [np.nan if i < 0 else p[i] for i, (_, _, p, _) in zip(best, rows, strict=True)]
            ),
        }
        for name in ("confidence", "score"):
            columns[name] = np.array(
                [np.nan if answer is None else answer.get(name, np.nan) for answer in answers]
            )
        columns["spread"] = np.array(
            [np.nan if i < 0 else s[i] for i, (*_, s) in zip(best, rows, strict=True)]
        )
        columns["temperature"] = np.array([self.temperature[q.type] for _, q, *_ in rows])
        if options:
            names = dict.fromkeys(name for question in self.questions for name in question.options)
            for name in names:
                columns[f"prob_{name}"] = np.array(
                    [
                        p[question.options.index(name)] if name in question.options else np.nan
                        for _, question, p, _ in rows
                    ]
                )
        return Columns(columns)

    def answers(self, text: int = 0) -> dict[str, JsonObject]:
        """The answers about a text by question, in the form of the System One API."""
        return {
            question.name: question.answer(probabilities[text])
            for question, probabilities in zip(self.questions, self.probabilities, strict=True)
        }


def decide(
    model: LanguageModel,
    tokenizer: Tokenizer,
    texts: State | Iterable[State | None] | None,
    questions: Mapping[str, Mapping[str, object]],
    *,
    settings: DecisionSettings | None = None,
    orders: int = 1,
    seed: int = 0,
    progress: Progress | None = None,
) -> Decisions:
    """Answer typed questions about texts: a probability for every answer, without generating.

        questions = {"tone": {"type": "choice", "criteria": {"calm": None, "angry": None}}}
        decide(model, tokenizer, ["I was charged twice."], questions).table()

    Args:
        model: A chat model of this package, or a decision model: JevForDecision or Laya.
        tokenizer: The model's tokenizer, whose files contain the chat template.
        texts: The states: a text, a dict (sent as JSON), or a list of them; None for a missing
            text.
        questions: The questions by name, each with type, instructions and criteria.
        settings: Labels, temperatures and prompt. Default: the repository's.
        orders: Number of orders of the options whose mean probability is the result. Options are
            rotated, so that each has each position equally often; levels of a score are reversed in
            every second order.
        seed: Of the permutations after a full rotation.
        progress: Called with the number of processed prompts (Laya: tokens) and the total.

    Raises:
        ValueError: A question is invalid or has more options than labels; a label is not one token,
            or two labels are the same token; the model has no chat template; a text is empty, or
            its prompt exceeds the context length.
    """
    rows = [texts] if texts is None or isinstance(texts, str | Mapping) else list(texts)
    result, problems = answer(
        model,
        tokenizer,
        rows,
        questions,
        settings=settings,
        orders=orders,
        seed=seed,
        progress=progress,
    )
    for number, problem in problems.items():
        raise ValueError(f"text {number} {problem}" if len(rows) > 1 else f"the text {problem}")
    return result


def answer(
    model: LanguageModel,
    tokenizer: Tokenizer,
    texts: Sequence[State | None],
    questions: Mapping[str, Mapping[str, object]],
    *,
    settings: DecisionSettings | None = None,
    orders: int = 1,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[Decisions, dict[int, str]]:
    """The result of `decide`, with NaN for texts that have a problem, and the problem of each of
    them by number.
    """
    model = model_of(model, "decide()")
    if not isinstance(model.config, LayaConfig):
        model = decoder_of(model, "decide()", decision=True)
    check_tokenizer(tokenizer, "encode_batch")
    if settings is None:
        settings = DecisionSettings.of(tokenizer)
    parsed = parse_questions(questions, settings)
    orders = check_integer("orders", orders, 1)
    variants = [permuted(parsed, order, seed) for order in range(orders)]
    score = scores_at_marks if isinstance(model.config, LayaConfig) else scores_after_prompts
    ordered, problems, tokens = score(
        model, tokenizer, settings, texts, [questions for questions, _ in variants], progress
    )
    values = [np.full(scores.shape, np.nan) for scores in ordered]
    for order, (_, indices) in enumerate(variants):
        for value, scores, index in zip(values, ordered, indices, strict=True):
            value[order][:, index] = scores[order]
    values = [
        value / settings.scale_of(question) for question, value in zip(parsed, values, strict=True)
    ]
    temperature = {kind: settings.temperature_of(kind) for kind in TYPES}
    by_order = [
        probabilities_of(value, temperature[question.type])
        for question, value in zip(parsed, values, strict=True)
    ]
    means, spreads = ([f(value, axis=0) for value in by_order] for f in (np.mean, np.std))
    result = Decisions(
        tuple(parsed), tuple(means), tuple(spreads), tuple(values), temperature, tokens
    )
    return result, problems


# The scores (orders, texts, options) of each question, NaN for texts that are missing or have a
# problem; the problem of each of these by number; and the number of tokens.
Scored = tuple[list[Floats], dict[int, str], int]


def scores_after_prompts(
    model: LanguageModel,
    tokenizer: Tokenizer,
    settings: DecisionSettings,
    texts: Sequence[State | None],
    variants: Sequence[Sequence[Question]],
    progress: Progress | None,
) -> Scored:
    """The scores of the options by a language model, or by a decision head at marks of its prompt.

    variants: the questions with their options in each order.
    """
    prompts = DecisionPrompts(tokenizer, settings)
    rows = [rows_of(model.config, prompts, question) for question in variants[0]]
    index = {question.name: number for number, question in enumerate(variants[0])}
    values = empty_scores(variants, len(texts))
    spans, targets, problems = list[Span](), list[tuple[int, int, int]](), dict[int, str]()
    tokens = 0
    for number, state in enumerate(texts):
        if state is None:
            continue
        try:
            prompted = [
                (order, prompt)
                for order, questions in enumerate(variants)
                for prompt in prompts.prompts(state, questions)
            ]
            check_lengths(model, [prompt for _, prompt in prompted])
        except InvalidTextError as error:
            problems[number] = str(error)
            continue
        for order, prompt in prompted:
            tokens += len(prompt.ids)
            for question, mark in zip(prompt.questions, prompt.marks, strict=True):
                spans.append(Span(prompt.ids, mark, mark + 1))
                targets.append((order, number, index[question.name]))

    def consume(logits: Tensor, positions: list[int], numbers: list[int], _: list[int]) -> None:
        for position, span in zip(positions, numbers, strict=True):
            order, number, kind = targets[span]
            scores = logits[position, rows[kind]].double().cpu().numpy()
            values[kind][order, number] = scores

    predict(model, spans, consume, progress)
    return values, problems, tokens


def scores_at_marks(
    model: LanguageModel,
    tokenizer: Tokenizer,
    settings: DecisionSettings,
    texts: Sequence[State | None],
    variants: Sequence[Sequence[Question]],
    progress: Progress | None,
) -> Scored:
    """The scores of the options by Laya, an encoder. See `scores_after_prompts`."""
    assert isinstance(model, Laya)
    prompts = OptionPrompts(tokenizer, model.config)
    values = empty_scores(variants, len(texts))
    inputs, targets, problems = list[Input](), list[tuple[Floats, list[int]]](), dict[int, str]()
    for number, state in enumerate(texts):
        if state is None:
            continue
        try:
            prompted = [prompts.prompts(state, questions) for questions in variants]
        except InvalidTextError as error:
            problems[number] = str(error)
            continue
        for order, row in enumerate(prompted):
            for kind, prompt in enumerate(row):
                inputs.append(Input(prompt.ids, [prompt.type] * len(prompt.ids)))
                targets.append((values[kind][order, number], prompt.marks))
    for i, x in hidden_states(model, inputs, progress):
        scores, marks = targets[i]
        scores[:] = head_output(model, x[marks]).double().numpy()
    return values, problems, sum(len(row.ids) for row in inputs)


def empty_scores(variants: Sequence[Sequence[Question]], texts: int) -> list[Floats]:
    """NaN (orders, texts, options) for each question."""
    return [np.full((len(variants), texts, len(q.options)), np.nan) for q in variants[0]]


def probabilities_of(scores: Floats, temperature: float) -> Floats:
    """The softmax of scores (…, options) divided by the temperature."""
    scaled = scores / temperature
    weights = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def rows_of(config: ModelConfig, prompts: DecisionPrompts, question: Question) -> list[int]:
    """The logits that are the scores of a question's options: of the tokens of their labels, or
    rows of the decision head. ValueError: a label is not one token, or there are too many options.
    """
    head: DecisionHead | None = getattr(config, "decision_head", None)
    if head is None:
        return prompts.label_ids(question)
    try:
        return list(head.rows(question.type, len(question.options)))
    except ValueError as error:
        raise ValueError(f"question {question.name!r}: {error}") from error


def check_lengths(model: LanguageModel, prompts: Sequence[Prompted]) -> None:
    """InvalidTextError: a prompt exceeds the context length."""
    limit, longest = model.config.context_length, max(len(prompt.ids) for prompt in prompts)
    if limit is not None and longest > limit:
        raise InvalidTextError(
            f"has a prompt of {longest:,} tokens, but the model's context length is {limit:,}:"
            " shorten the text"
        )


def permuted(
    questions: Sequence[Question], order: int, seed: int
) -> tuple[list[Question], list[list[int]]]:
    """The questions with their options in an order, and the original index of each option. The first
    order is the given one.
    """
    results, indices = list[Question](), list[list[int]]()
    for question in questions:
        count = len(question.options)
        chosen = list(range(count))
        if question.type == "score":
            chosen = chosen[::-1] if order % 2 else chosen
        else:  # each option has each position once in `count` orders
            turn, shift = divmod(order, count)
            if turn:
                chosen = np.random.default_rng([seed, turn]).permutation(count).tolist()
            chosen = chosen[shift:] + chosen[:shift]
        results.append(question.reordered(chosen))
        indices.append(chosen)
    return results, indices
