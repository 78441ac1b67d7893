"""Texts as numbers, what heads attend to, and what layers predict. Texts come as text or as ids."""

from typing import Any

import numpy as np

from r_bridge.convert import Frame, as_array, character, id_rows
from r_bridge.methods.text import find_tokenizer, is_text, token_texts
from r_bridge.objects import Caller, Model, Tokenizer


def embed(
    caller: Caller, model: Model, texts: Any, tokenizer: Tokenizer | None, layer: int, pool: str
) -> dict[str, Any]:
    """The matrix of a row for each text, NA for one without tokens; or, with pool "none", a matrix for each text.

    tokens: with "none", the text of each token, for each text.
    """
    from minhub_py.analysis.embeddings import embed as evaluate
    from minhub_py.analysis.tokens import ids_of_texts

    tok = find_tokenizer(model, tokenizer, needed=is_text(texts))
    rows = texts if is_text(texts) else id_rows(texts, model.module.config.vocab_size)
    if pool == "none":
        rows = ids_of_texts(model.module, tok, rows)
    settings: Any = {"layer": layer, "pool": pool, "progress": caller.progress}
    found = evaluate(model.module, tok, rows, **settings)
    if pool == "none":
        return {"vectors": [as_array(each) for each in found], "tokens": [token_texts(tok, ids) for ids in rows]}
    vectors = as_array(found)
    return {"vectors": np.ma.MaskedArray(vectors, np.isnan(vectors)), "tokens": None}


def attention_weights(caller: Caller, model: Model, text: Any, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """The weights (layers, heads, T, T) of one text, its tokens, and the numbers of the layers."""
    from minhub_py.analysis.attention import attention_weights as evaluate

    tok, [given] = _one(model, tokenizer, text)
    found = evaluate(model.module, tok, given)
    return {
        "weights": found.weights,
        "layers": np.array(found.layers, np.int32),
        "tokens": token_texts(tok, found.ids),
        "ids": np.array(found.ids, np.int32),
    }


def logit_lens(caller: Caller, model: Model, text: Any, tokenizer: Tokenizer | None, n: int) -> dict[str, Any]:
    """A row for each layer, each token of one text, and each of its `n` likeliest next tokens; and the text's ids."""
    from minhub_py.analysis.lens import logit_lens as evaluate

    tok, [given] = _one(model, tokenizer, text)
    found = evaluate(model.module, tok, given, n)
    count, tokens, ranks = found.predicted.shape
    ids = found.predicted.flatten().tolist()
    of_text = token_texts(tok, found.ids)
    return {
        "frame": Frame({
            "layer": np.repeat(np.array(found.layers, np.int32), tokens * ranks),
            "position": np.tile(np.repeat(np.arange(1, tokens + 1, dtype=np.int32), ranks), count),
            "token": character(of_text[place] for _ in range(count) for place in range(tokens) for _ in range(ranks)),
            "rank": np.tile(np.arange(1, ranks + 1, dtype=np.int32), count * tokens),
            "predicted": character(found.names[id] for id in ids),
            "id": np.array(ids, np.int32),
            "prob": found.probs.flatten().double(),
        }),
        "ids": np.array(found.ids, np.int32),
    }  # fmt: skip


def _one(model: Model, tokenizer: Tokenizer | None, text: Any) -> tuple[Any, list[Any]]:
    """The tokenizer, and the only text of a list, as text or as ids."""
    tok = find_tokenizer(model, tokenizer, needed=is_text(text))
    return tok, list(text) if is_text(text) else id_rows(text, model.module.config.vocab_size)
