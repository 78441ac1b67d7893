"""Predictability of words, and the whole matrix of log-probabilities."""

from typing import Any

import numpy as np

from r_bridge.convert import Frame, as_array, one
from r_bridge.methods.text import _prompt_rows, find_tokenizer, is_text, token_texts
from r_bridge.objects import Caller, Model, Tokenizer


def word_logprobs(
    caller: Caller, model: Model, words: Any, by: Any, word_n: Any, context: Any, sep: str, ignored: Any, bos: Any,
    tokenizer: Tokenizer | None,
) -> Frame:  # fmt: skip
    """The columns of minhub_py.word_logprobs. by: numbers of texts, or NULL.    ignored: ids that add nothing."""
    from minhub_py.analysis import surprisal as analysis

    tok = find_tokenizer(model, tokenizer, needed=True)
    analysis.refuse_encoder_decoder(model.module)
    given = _texts(words)
    texts = analysis.texts_of_words(
        given, None if by is None else by.tolist(), None if word_n is None else word_n.tolist(),
        None if context is None else _texts(context),
    )  # fmt: skip
    found = analysis.segment_logprobs(
        model.module, tok, texts, len(given), sep=sep, ignored=_ids(ignored), bos=one(bos, bool),
        progress=caller.progress,
    )  # fmt: skip
    return _frame(found)


def target_logprobs(
    caller: Caller, model: Model, contexts: Any, targets: Any, sep: str, ignored: Any, bos: Any,
    tokenizer: Tokenizer | None,
) -> Frame:  # fmt: skip
    """The columns of minhub_py.target_logprobs. ignored: ids that add nothing."""
    from minhub_py.analysis import surprisal as analysis

    tok = find_tokenizer(model, tokenizer, needed=True)
    return _frame(
        analysis.pair_logprobs(
            model.module, tok, _texts(contexts), _texts(targets), sep=sep, ignored=_ids(ignored), bos=one(bos, bool),
            progress=caller.progress,
        )
    )  # fmt: skip


def vocabulary(caller: Caller, model: Model, tokenizer: Tokenizer | None) -> Frame:
    """The text of every token, for R's own regular expressions."""
    tok = find_tokenizer(model, tokenizer, needed=True)
    ids = sorted(tok.get_vocab().values())
    return Frame({"id": np.array(ids, np.int32), "text": token_texts(tok, ids)})


def logprob_matrix(caller: Caller, model: Model, texts: Any, tokenizer: Tokenizer | None, out: str | None) -> Any:
    """The matrix of minhub_py.logprob_matrix, and a frame that says what its rows are; the latter alone with `out`."""
    from minhub_py.analysis.matrix import logprob_matrix as evaluate

    tok = find_tokenizer(model, tokenizer, needed=is_text(texts))
    columns, matrix = evaluate(model.module, tok, _prompt_rows(model, tok, texts), out=out, progress=caller.progress)
    rows = Frame({
        "text": (columns["text"] + 1).astype(np.int32),
        "position": (columns["position"] + 1).astype(np.int32),
        "token": token_texts(tok, columns["id"].tolist()),
        "id": columns["id"].astype(np.int32),
    })  # fmt: skip
    if out is not None:
        return {"rows": rows}
    missing = np.isnan(matrix)
    return {"rows": rows, "matrix": np.ma.MaskedArray(matrix, missing)}


def _texts(value: Any) -> list[str | None]:
    """A character vector, of which all may be NA, or none be there."""
    return list(value) if isinstance(value, list) else []


def _ids(value: Any) -> list[int]:
    return [] if value is None else as_array(value).reshape(-1).tolist()


def _frame(columns: dict[str, Any]) -> Frame:
    """NaN as R's NA."""
    return Frame({
        name: values.astype(np.int32) if name == "tokens" else np.ma.MaskedArray(values, np.isnan(values))
        for name, values in columns.items()
    })  # fmt: skip
