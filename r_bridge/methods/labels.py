"""Labels by a language model, agreement of raters, and estimates that human labels correct."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from r_bridge.arguments import character, frame, scalar, vector_values
from r_bridge.convert import Character, Frame, Numeric
from r_bridge.methods.text import find_tokenizer
from r_bridge.objects import Model, Session, Tokenizer


def annotate(
    session: Session,
    model: Model,
    texts: Character,
    labels: Character,
    definitions: Character,
    codebook: str | None,
    instruction: str | None,
    example_texts: Character,
    example_labels: Character,
    calibrate: str | None,
    length: str,
    template: str | None,
    premise: str | None,
    chat: object,
    sep: str | None,
    tokenizer: Tokenizer | None,
) -> dict[str, object]:
    """The columns of minhub_py.annotate with NA for missing texts, and the labels."""
    from minhub_py.analysis.annotate import annotate as compute
    from minhub_py.analysis.codebook import codebook_of

    tok = find_tokenizer(model, tokenizer, needed=True)
    source: str | list[str | None] | dict[str | None, str | None] = (
        codebook if codebook is not None else labels
    )
    if definitions is not None:
        source = dict(zip(labels, definitions, strict=True))
    examples = list(zip(example_texts or [], example_labels or [], strict=True))
    book = codebook_of(source, instruction, examples)
    settings: dict[str, Any] = {
        "calibrate": calibrate,
        "length": length,
        "template": template,
        "premise": premise,
        "sep": sep,
        "chat": None if chat is None else bool(np.asarray(chat).reshape(-1)[0]),
        "progress": session.progress,
    }
    columns = compute(model.module, tok, texts or [], book, **settings)
    return {"frame": frame(columns), "labels": character(book.names)}


def decide(
    session: Session,
    model: Model,
    texts: Character,
    questions: Mapping[str, Mapping[str, object]],
    orders: int,
    seed: int,
    options: bool,
    tokenizer: Tokenizer | None,
) -> dict[str, object]:
    """The table of minhub_py.decide, with texts that count from 1.

    questions: by name, {"type", "instructions", "options", "descriptions"}.
    """
    from minhub_py.analysis.decisions import decide as compute

    tok = find_tokenizer(model, tokenizer, needed=True)
    parsed = {name: question_of(dict(question)) for name, question in dict(questions).items()}
    result = compute(
        model.module,
        tok,
        list(texts or []),
        parsed,
        orders=orders,
        seed=seed,
        progress=session.progress,
    )
    return {"frame": frame(result.table(options), from_1=("text",))}


def question_of(question: dict[str, object]) -> dict[str, object]:
    """A question of R in the form of `decide`."""
    kind, instructions = (
        None if question.get(name) is None else scalar(question[name], str)
        for name in ("type", "instructions")
    )
    value: dict[str, object] = {"type": kind, "instructions": instructions}
    options = question.get("options")
    if options is None:
        return value
    descriptions = vector_values(question["descriptions"])
    if kind == "score":
        return {**value, "criteria": descriptions}
    return {**value, "criteria": dict(zip(vector_values(options), descriptions, strict=True))}


def calibrate(
    session: Session,
    table: Mapping[str, Character | Numeric],
    truth: Character | Numeric,
    estimator: str,
    folds: int,
    bins: int,
    seed: int,
    save: str | None,
) -> dict[str, object]:
    """The results of minhub_py.calibrate for a decision table, with calibrated columns for its rows.

    truth: a hand-coded answer for each row.
    """
    from minhub_py.analysis.calibrate import calibrate as compute
    from minhub_py.analysis.coded import text_numbers

    columns = {name: vector_values(values) for name, values in dict(table).items()}
    settings: dict[str, Any] = {"method": estimator, "folds": folds, "bins": bins, "seed": seed}
    result = compute(columns | {"": vector_values(truth)}, "", **settings)
    if save is not None:
        result.save(save)
    calibrated = result.decisions.table(options=True)
    names = [question.name for question in result.decisions.questions]
    rows = [
        text * len(names) + names.index(name)
        for text, name in zip(text_numbers(columns), columns["question"], strict=True)
    ]
    selected = [
        name for name in calibrated if name not in ("text", "question", "type", "temperature")
    ]
    values = {name: [calibrated[name][row] for row in rows] for name in selected}
    cells: dict[str, Iterable[object]] = {
        name: column if name == "answer" else np.array(column) for name, column in values.items()
    }
    return {
        "frame": frame(result.columns),
        "curve": frame(result.curve),
        "decisions": frame(cells),
        "types": character(result.temperature),
        "temperature": np.array(list(result.temperature.values()), float),
    }


def label_agreement(
    session: Session,
    raters: Character,
    level: str,
    categories: object,
    bootstrap: int,
    confidence: float,
    seed: int,
) -> dict[str, object]:
    """The results of minhub_py.agreement. raters: a list of vectors."""
    from minhub_py.analysis.agreement import agreement

    rows = [vector_values(values) for values in raters]
    names = None if categories is None else vector_values(categories)
    settings: dict[str, Any] = {"level": level, "categories": names, "bootstrap": bootstrap}
    result = agreement(*rows, confidence=confidence, seed=seed, **settings)
    return {
        "frame": frame(result.columns),
        "categories": character(map(spelled, result.categories)),
        "units": result.units,
        "confusion": result.confusion,
        "f1": result.f1,
    }


def choose_for_coding(
    session: Session, margin: Numeric, n: int, minimum: float, uncertainty: Numeric, seed: int
) -> Frame:
    """The columns of minhub_py.choose_for_coding."""
    from minhub_py.analysis.estimate import choose_for_coding as choose

    return Frame(choose(margin, n, minimum=minimum, uncertainty=uncertainty, seed=seed))


def corrected_estimate(
    session: Session,
    human: object,
    predicted: object,
    design: object,
    terms: Iterable[str],
    family: str,
    estimator: str,
    probability: Numeric,
    confidence: float,
    cluster: object = None,
    cross_fit: int = 0,
    splits: int = 10,
    seed: int = 0,
) -> dict[str, object]:
    """The results of minhub_py.estimate for a design matrix."""
    from minhub_py.analysis.estimate import codes_of, fit

    groups = None if cluster is None else codes_of(np.array(cluster).tolist(), len(np.array(human)))
    result = fit(
        np.array(human),
        np.array(predicted),
        list(terms),
        np.array(design),
        family,
        estimator,
        probability,
        confidence,
        groups,
        cross_fit,
        splits,
        seed,
    )

    naive = result.naive
    return {
        "frame": frame(result.columns | {"term": result.term}),
        "covariance": result.covariance,
        "method": result.method,
        "power": float(result.power),
        "texts": result.texts,
        "coded": result.coded,
        "naive": None if naive is None else frame(naive.columns | {"term": naive.term}),
    }


def spelled(value: object) -> str:
    """A category as text: numbers as in R."""
    return f"{value:g}" if isinstance(value, float) else str(value)
