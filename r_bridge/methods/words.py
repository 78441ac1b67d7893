"""Log-probabilities of words and targets, and the matrix of log-probabilities."""

from typing import TYPE_CHECKING

import numpy as np

from r_bridge.arguments import frame, is_text, scalar
from r_bridge.convert import Frame, Numeric, as_array
from r_bridge.methods.text import (
    encode_texts,
    find_tokenizer,
    nonempty,
    prompt_texts,
    token_texts,
)
from r_bridge.objects import Model, Session, Tokenizer

if TYPE_CHECKING:
    from minhub_py.analysis.measures import Measures


def word_logprobs(
    session: Session,
    model: Model,
    words: object,
    by: Numeric,
    word_n: Numeric,
    context: object,
    sep: str,
    ignored: object,
    bos: object,
    tokenizer: Tokenizer | None,
    correct: str | None = None,
    renyi: object = None,
    premise: str | None = None,
    lags: int = 0,
) -> Frame:
    """The columns of minhub_py.word_logprobs. by: text numbers, or NULL.    ignored: token IDs that
    are not counted.
    """
    from minhub_py.analysis import surprisal as analysis
    from minhub_py.analysis.segments import texts_of_words
    from minhub_py.inference.arguments import decoder_of

    decoder_of(model.module, "word_logprobs()")
    tok = find_tokenizer(model, tokenizer, needed=True)
    analysis.refuse_encoder_decoder(model.module)
    words = _texts(words)
    texts = texts_of_words(
        words,
        None if by is None else by.tolist(),
        None if word_n is None else word_n.tolist(),
        None if context is None else _texts(context),
    )
    columns = analysis.segment_logprobs(
        model.module,
        tok,
        texts,
        words,
        sep=sep,
        ignored=_ids(ignored),
        bos=scalar(bos, bool),
        measures=_measures(correct, renyi, premise, ignored, lags),
        progress=session.progress,
    )
    return frame(columns)


def target_logprobs(
    session: Session,
    model: Model,
    contexts: object,
    targets: object,
    sep: str,
    ignored: object,
    bos: object,
    tokenizer: Tokenizer | None,
    correct: str | None = None,
    renyi: object = None,
    premise: str | None = None,
) -> Frame:
    """The columns of minhub_py.target_logprobs. ignored: token IDs that are not counted."""
    from minhub_py.analysis import surprisal as analysis
    from minhub_py.inference.arguments import decoder_of

    decoder_of(model.module, "target_logprobs()")
    tok = find_tokenizer(model, tokenizer, needed=True)
    columns = analysis.pair_logprobs(
        model.module,
        tok,
        _texts(contexts),
        _texts(targets),
        sep=sep,
        ignored=_ids(ignored),
        bos=scalar(bos, bool),
        measures=_measures(correct, renyi, premise, ignored),
        progress=session.progress,
    )
    return frame(columns)


def vocabulary(session: Session, model: Model, tokenizer: Tokenizer | None) -> Frame:
    """Each token's text, for R's regular expressions."""
    tok = find_tokenizer(model, tokenizer, needed=True)
    ids = sorted(tok.get_vocab().values())
    return Frame({"id": np.array(ids, np.int32), "text": prompt_texts(tok, ids)})


def logprob_matrix(
    session: Session, model: Model, texts: object, tokenizer: Tokenizer | None, out: str | None
) -> object:
    """The matrix of minhub_py.logprob_matrix, and a frame that describes its rows; with `out`, the
    frame only.
    """
    from minhub_py.analysis.matrix import logprob_matrix as compute_matrix

    tok = find_tokenizer(model, tokenizer, needed=is_text(texts))
    ids = nonempty(encode_texts(model, tok, texts))
    columns, matrix = compute_matrix(model.module, tok, ids, out=out, progress=session.progress)
    columns["token"] = token_texts(tok, columns["id"].tolist())
    rows = frame(columns, "text", "position", "token", "id", from_1=("text", "position"))
    if out is not None:
        return {"rows": rows}
    return {"rows": rows, "matrix": np.ma.MaskedArray(matrix, np.isnan(matrix))}


def _texts(value: object) -> list[str | None]:
    """A character vector as a list; empty for any other value."""
    return list(value) if isinstance(value, list) else []


def _ids(value: object) -> list[int]:
    return [] if value is None else as_array(value).reshape(-1).tolist()


def _measures(
    correct: str | None, renyi: object, premise: str | None, ignored: object, lags: int = 0
) -> "Measures":
    """The requested measures. ValueError: a wrong value."""
    from minhub_py.analysis.measures import measures_of

    orders = None if renyi is None else as_array(renyi).reshape(-1).tolist()
    return measures_of(correct, orders, premise, lags, ignored=ignored is not None)
