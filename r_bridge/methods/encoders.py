"""Masked language models, classification and reranking with text encoders."""

from typing import Any

import numpy as np

from r_bridge.arguments import character
from r_bridge.convert import Frame
from r_bridge.methods.text import find_tokenizer
from r_bridge.objects import Model, Session, Tokenizer


def masked_tokens(
    session: Session, model: Model, texts: Any, tokenizer: Tokenizer | None, n: int, targets: Any
) -> Frame:
    """The columns of minhub_py.masked_tokens, with texts and masks that count from 1. Missing texts have no rows.

    R warns about masks beyond the maximum length.
    """
    from minhub_py.analysis.masked import predict_masks

    tok = find_tokenizer(model, tokenizer, needed=True)
    present = np.array([number for number, text in enumerate(texts) if text is not None], np.int64)
    columns, _ = predict_masks(model.module, tok, [texts[i] for i in present], n, targets, session.progress)
    columns["text"] = present[columns["text"]]
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
    from minhub_py.analysis.masked import score_targets

    tok = find_tokenizer(model, tokenizer, needed=True)
    columns, _ = score_targets(model.module, tok, contexts, targets, after, session.progress)
    logprobs = np.ma.MaskedArray(columns["logprob"], np.isnan(columns["logprob"]))
    return Frame({
        "tokens": columns["tokens"].astype(np.int32), "logprob": logprobs, "surprisal": 0.0 - logprobs / np.log(2)
    })  # fmt: skip


def pseudo_logprobs(session: Session, model: Model, texts: Any, masking: str, tokenizer: Tokenizer | None) -> Frame:
    """The columns of minhub_py.pseudo_logprobs, with texts that count from 1."""
    from minhub_py.analysis.masked import score_tokens

    tok = find_tokenizer(model, tokenizer, needed=True)
    columns, _ = score_tokens(model.module, tok, texts, masking, session.progress)
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


def classify_tokens(
    session: Session, model: Model, texts: Any, aggregation: str, ignore: Any, tokenizer: Tokenizer | None,
    stride: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The columns of minhub_py.classify_tokens, with texts and characters that count from 1, and the labels."""
    from minhub_py.analysis.token_labels import classify_tokens as compute

    tok = find_tokenizer(model, tokenizer, needed=True)
    settings: Any = {"aggregation": aggregation, "ignore": tuple(ignore or ()), "stride": stride}
    columns = compute(model.module, tok, texts, **settings, progress=session.progress)
    labels = model.module.config.labels
    if aggregation != "none":
        labels = list(dict.fromkeys(label.split("-", 1)[-1] for label in labels))
    return {
        "frame": Frame({
            "text": (columns["text"] + 1).astype(np.int32),
            "word": character(columns["word"]),
            "start": (columns["start"] + 1).astype(np.int32),
            "end": columns["end"].astype(np.int32),
            "label": character(columns["label"]),
            "prob": columns["prob"],
        }),
        "labels": character(labels),
    }  # fmt: skip


def rerank(
    session: Session, model: Model, query: str, texts: Any, instruction: str | None, raw_scores: bool,
    tokenizer: Tokenizer | None,
) -> Frame:  # fmt: skip
    """The columns of minhub_py.rerank, with texts that count from 1."""
    from minhub_py.analysis.classify import rerank as compute

    tok = find_tokenizer(model, tokenizer, needed=True)
    columns = compute(
        model.module, tok, query, texts, raw_scores=raw_scores, instruction=instruction, progress=session.progress
    )
    return Frame({
        "text": (columns["text"] + 1).astype(np.int32),
        "rank": columns["rank"].astype(np.int32),
        "score": columns["score"],
    })  # fmt: skip
