"""Masked language models, classification and reranking with text encoders."""

from typing import Any

import numpy as np

from r_bridge.arguments import character, frame
from r_bridge.convert import Character, Frame
from r_bridge.methods.text import find_tokenizer
from r_bridge.objects import Model, Session, Tokenizer


def masked_tokens(
    session: Session,
    model: Model,
    texts: list[str],
    tokenizer: Tokenizer | None,
    n: int,
    targets: list[str],
) -> Frame:
    """The columns of minhub_py.masked_tokens, with texts and masks that count from 1. Missing texts
    have no rows.

    R warns about masks beyond the maximum length.
    """
    from minhub_py.analysis.masked import predict_masks

    tok = find_tokenizer(model, tokenizer, needed=True)
    present = np.array([number for number, text in enumerate(texts) if text is not None], np.int64)
    columns, _ = predict_masks(
        model.module, tok, [texts[i] for i in present], n, targets, session.progress
    )
    columns["text"] = present[columns["text"]]
    return frame(columns, "text", "mask", "token", "id", "prob", "logprob", from_1=("text", "mask"))


def masked_logprobs(
    session: Session,
    model: Model,
    contexts: Character,
    targets: Character,
    after: Character,
    tokenizer: Tokenizer | None,
) -> Frame:
    """The columns of minhub_py.masked_logprobs, and the surprisal in bits. NA for missing targets."""
    from minhub_py.analysis.masked import score_targets

    tok = find_tokenizer(model, tokenizer, needed=True)
    columns, _ = score_targets(model.module, tok, contexts, targets, after, session.progress)
    return frame(
        columns | {"surprisal": 0.0 - columns["logprob"] / np.log(2)},
        "tokens",
        "logprob",
        "surprisal",
    )


def pseudo_logprobs(
    session: Session, model: Model, texts: Character, masking: str, tokenizer: Tokenizer | None
) -> Frame:
    """The columns of minhub_py.pseudo_logprobs, with texts that count from 1."""
    from minhub_py.analysis.masked import score_tokens

    tok = find_tokenizer(model, tokenizer, needed=True)
    columns, _ = score_tokens(model.module, tok, texts, masking, session.progress)
    return frame(columns, "text", "token", "id", "logprob", from_1=("text",))


def classify(
    session: Session,
    model: Model,
    texts: Character,
    labels: list[str],
    hypothesis: str,
    multi_label: bool,
    tokenizer: Tokenizer | None,
) -> dict[str, object]:
    """The columns of minhub_py.classify with NA for missing texts, and the labels."""
    from minhub_py.analysis.classify import classify as compute

    tok = find_tokenizer(model, tokenizer, needed=True)
    columns = compute(
        model.module,
        tok,
        texts,
        labels,
        hypothesis=hypothesis,
        multi_label=multi_label,
        progress=session.progress,
    )
    return {
        "frame": frame(columns),
        "labels": character(model.module.config.labels if labels is None else labels),
    }


def classify_tokens(
    session: Session,
    model: Model,
    texts: Character,
    aggregation: str,
    ignore: Character,
    tokenizer: Tokenizer | None,
    stride: int | None = None,
) -> dict[str, object]:
    """The columns of minhub_py.classify_tokens, with texts and characters that count from 1, and
    the labels.
    """
    from minhub_py.analysis.token_labels import classify_tokens as compute

    tok = find_tokenizer(model, tokenizer, needed=True)
    settings: dict[str, Any] = {
        "aggregation": aggregation,
        "ignore": tuple(ignore or ()),
        "stride": stride,
    }
    columns = compute(model.module, tok, texts, **settings, progress=session.progress)
    labels = model.module.config.labels
    if aggregation != "none":
        labels = list(dict.fromkeys(label.split("-", 1)[-1] for label in labels))
    labelled = frame(
        columns, "text", "word", "start", "end", "label", "prob", from_1=("text", "start")
    )
    return {"frame": labelled, "labels": character(labels)}


def answer_questions(
    session: Session,
    model: Model,
    question: Character,
    texts: Character,
    n: int,
    no_answer: bool,
    max_answer: int,
    stride: int | None,
    tokenizer: Tokenizer | None,
) -> Frame:
    """The columns of minhub_py.answer_questions, with texts and characters that count from 1. NA
    for missing texts.
    """
    from minhub_py.analysis.answers import answer_questions as compute

    tok = find_tokenizer(model, tokenizer, needed=True)
    columns = compute(
        model.module,
        tok,
        question,
        texts,
        k=n,
        no_answer=no_answer,
        max_answer=max_answer,
        stride=stride,
        progress=session.progress,
    )
    absent = columns["start"] < 0
    columns |= {name: np.ma.MaskedArray(columns[name], absent) for name in ("start", "end")}
    return frame(
        columns, "text", "rank", "answer", "start", "end", "score", from_1=("text", "start")
    )


def rerank(
    session: Session,
    model: Model,
    query: str,
    texts: list[str],
    instruction: str | None,
    raw_scores: bool,
    tokenizer: Tokenizer | None,
) -> Frame:
    """The columns of minhub_py.rerank, with texts that count from 1."""
    from minhub_py.analysis.classify import rerank as compute

    tok = find_tokenizer(model, tokenizer, needed=True)
    columns = compute(
        model.module,
        tok,
        query,
        texts,
        raw_scores=raw_scores,
        instruction=instruction,
        progress=session.progress,
    )
    return frame(columns, "text", "rank", "score", from_1=("text",))
