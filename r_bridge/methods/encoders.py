"""Masked language models, classification and reranking with text encoders."""

from typing import Any

import numpy as np

from r_bridge.convert import Frame, character
from r_bridge.methods.text import find_tokenizer
from r_bridge.objects import Model, Session, Tokenizer


def masked_tokens(
    session: Session, model: Model, texts: Any, tokenizer: Tokenizer | None, n: int, targets: Any
) -> Frame:
    """The columns of minhub_py.masked_tokens, with texts and masks that count from 1."""
    from minhub_py.analysis.masked import masked_tokens as predict

    tok = find_tokenizer(model, tokenizer, needed=True)
    columns = predict(model.module, tok, texts, n, targets=targets, progress=session.progress)
    return Frame({
        "text": (columns["text"] + 1).astype(np.int32),
        "mask": (columns["mask"] + 1).astype(np.int32),
        "token": character(columns["token"]),
        "id": columns["id"].astype(np.int32),
        "prob": columns["prob"],
        "logprob": columns["logprob"],
    })  # fmt: skip


def masked_logprobs(
    session: Session, model: Model, contexts: Any, targets: Any, after: Any, tokenizer: Tokenizer | None
) -> Frame:
    """The columns of minhub_py.masked_logprobs, and the surprisal in bits. NA for missing targets."""
    from minhub_py.analysis.masked import masked_logprobs as compute

    tok = find_tokenizer(model, tokenizer, needed=True)
    columns = compute(model.module, tok, contexts, targets, after, progress=session.progress)
    logprobs = np.ma.MaskedArray(columns["logprob"], np.isnan(columns["logprob"]))
    return Frame({
        "tokens": columns["tokens"].astype(np.int32), "logprob": logprobs, "surprisal": 0.0 - logprobs / np.log(2)
    })  # fmt: skip


def pseudo_logprobs(session: Session, model: Model, texts: Any, masking: str, tokenizer: Tokenizer | None) -> Frame:
    """The columns of minhub_py.pseudo_logprobs, with texts that count from 1."""
    from minhub_py.analysis.masked import pseudo_logprobs as compute

    tok = find_tokenizer(model, tokenizer, needed=True)
    settings: Any = {"method": masking, "progress": session.progress}
    columns = compute(model.module, tok, texts, **settings)
    return Frame({
        "text": (columns["text"] + 1).astype(np.int32),
        "token": character(columns["token"]),
        "id": columns["id"].astype(np.int32),
        "logprob": columns["logprob"],
    })  # fmt: skip


def classify(
    session: Session, model: Model, texts: Any, labels: Any, hypothesis: str, multi_label: bool,
    tokenizer: Tokenizer | None,
) -> dict[str, Any]:  # fmt: skip
    """The columns of minhub_py.classify with NA for missing texts, and the labels."""
    from minhub_py.analysis.classify import classify as compute

    tok = find_tokenizer(model, tokenizer, needed=True)
    columns = compute(
        model.module, tok, texts, labels, hypothesis=hypothesis, multi_label=multi_label, progress=session.progress
    )
    numbers = {name: np.ma.MaskedArray(values, np.isnan(values)) for name, values in columns.items() if name != "label"}
    return {
        "frame": Frame({"label": character(columns["label"]), **numbers}),
        "labels": character(model.module.config.labels if labels is None else labels),
    }


def rerank(
    session: Session, model: Model, query: str, texts: Any, raw_scores: bool, tokenizer: Tokenizer | None
) -> Frame:
    """The columns of minhub_py.rerank, with texts that count from 1."""
    from minhub_py.analysis.classify import rerank as compute

    tok = find_tokenizer(model, tokenizer, needed=True)
    columns = compute(model.module, tok, query, texts, raw_scores=raw_scores, progress=session.progress)
    return Frame({
        "text": (columns["text"] + 1).astype(np.int32),
        "rank": columns["rank"].astype(np.int32),
        "score": columns["score"],
    })  # fmt: skip
