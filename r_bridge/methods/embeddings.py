"""Embeddings, attention weights and predictions of layers. Texts are strings or token IDs."""

from typing import TYPE_CHECKING, Any

import numpy as np

from r_bridge.arguments import character, id_rows, is_text, is_text_or_missing, scalar
from r_bridge.convert import Character, Frame, Numeric, as_array
from r_bridge.methods.text import find_tokenizer, prompt_texts
from r_bridge.objects import Lens, Model, Session, Tokenizer

if TYPE_CHECKING:
    import tokenizers
    from torch import Tensor


def embed(
    session: Session,
    model: Model,
    texts: object,
    tokenizer: Tokenizer | None,
    layer: Numeric,
    combine: str,
    pool: str | None,
    prompt: str | None,
    dimensions: int | None,
    normalize: object,
) -> dict[str, object]:
    """A matrix with one row per text, NA for a missing text; with pool "none" and of ColBERT models,
    one matrix per text; of SPLADE models, the weights for each text.

    With one matrix per text, `tokens` contains each token's text for each text; with weights,
    the tokens of the vocabulary.
    """
    from minhub_py.analysis.embeddings import embed as embed_texts
    from minhub_py.analysis.embeddings import embedded_ids

    as_text = is_text_or_missing(texts)
    tok = find_tokenizer(model, tokenizer, needed=as_text)
    rows: Any = texts if as_text else id_rows(texts, model.module.config.vocab_size)
    if pool == "none":
        rows = embedded_ids(model.module, tok, rows, prompt)
    settings: dict[str, Any] = {
        "layer": numbers_of(layer),
        "combine": combine,
        "pool": pool,
        "prompt": prompt,
        "dimensions": dimensions,
        "normalize": scalar(normalize, bool),
        "progress": session.progress,
    }
    result = embed_texts(model.module, tok, rows, **settings)
    if isinstance(result, list):
        ids = rows if pool == "none" else embedded_ids(model.module, tok, rows, prompt, None)
        return {
            "vectors": [as_array(matrix) for matrix in result],
            "tokens": [prompt_texts(tok, row) for row in ids],
        }
    if result.is_sparse:
        return weights_of_tokens(result, tok)
    vectors = as_array(result)
    return {"vectors": np.ma.MaskedArray(vectors, np.isnan(vectors)), "tokens": None}


def numbers_of(layers: Numeric) -> list[int]:
    """The numbers of layers."""
    return [int(number) for number in np.atleast_1d(layers)]


def weights_of_tokens(
    matrix: "Tensor", tokenizer: "tokenizers.Tokenizer | None"
) -> dict[str, object]:
    """Each text's weights, the largest first, and their tokens; NA for a missing text."""
    vectors, tokens = [], list[list[str | None]]()
    for vector in matrix:
        row = vector.coalesce()
        values, order = row.values().sort(descending=True)
        absent = np.isnan(values.numpy())
        vectors.append(np.ma.MaskedArray(values.double().numpy(), absent))
        ids = row.indices()[0][order].tolist()
        if tokenizer is None or absent.any():
            tokens.append([])
        else:
            tokens.append([tokenizer.id_to_token(id) for id in ids])
    return {"vectors": vectors, "tokens": tokens}


def word_embeddings(
    session: Session,
    model: Model,
    texts: Character,
    tokenizer: Tokenizer | None,
    layer: Numeric,
    combine: str,
) -> dict[str, object]:
    """The texts of the words, which count from 1, the words, and a matrix with one row per word."""
    from minhub_py.analysis.word_embeddings import word_embeddings as compute

    tok = find_tokenizer(model, tokenizer, needed=True)
    settings: dict[str, Any] = {"layers": numbers_of(layer), "combine": combine}
    columns, vectors = compute(model.module, tok, texts, **settings, progress=session.progress)
    values = as_array(vectors)
    return {
        "text": columns["text"].astype(np.int32) + 1,
        "word": character(columns["word"]),
        "vectors": np.ma.MaskedArray(values, np.isnan(values)),
    }


def attention_weights(
    session: Session, model: Model, text: Character | Numeric, tokenizer: Tokenizer | None
) -> dict[str, object]:
    """The attention weights (layers, heads, T, T) of a text, its tokens, and the numbers of the
    layers.
    """
    from minhub_py.analysis.attention import attention_weights as compute_weights

    tok, [row] = _single_text(model, tokenizer, text)
    result = compute_weights(model.module, tok, row)
    return {
        "weights": result.weights,
        "layers": np.array(result.layers, np.int32),
        "tokens": prompt_texts(tok, result.ids),
        "ids": np.array(result.ids, np.int32),
    }


def logit_lens(
    session: Session,
    model: Model,
    text: Character | Numeric,
    tokenizer: Tokenizer | None,
    n: int,
    lens: Lens | None = None,
) -> dict[str, object]:
    """One row per layer, token of a text, and rank of its `n` most likely next tokens; and the
    text's token IDs.
    """
    from minhub_py.analysis.lens import logit_lens as compute_lens

    tok, [row] = _single_text(model, tokenizer, text)
    result = compute_lens(model.module, tok, row, n, lens=None if lens is None else lens.lens)
    count, tokens, ranks = result.predicted.shape
    ids = result.predicted.flatten().tolist()
    texts = prompt_texts(tok, result.ids)
    return {
        "frame": Frame(
            {
                "layer": np.repeat(np.array(result.layers, np.int32), tokens * ranks),
                "position": np.tile(
                    np.repeat(np.arange(1, tokens + 1, dtype=np.int32), ranks), count
                ),
                "token": character(
                    token for _ in range(count) for token in texts for _ in range(ranks)
                ),
                "rank": np.tile(np.arange(1, ranks + 1, dtype=np.int32), count * tokens),
                "predicted": character(result.names[id] for id in ids),
                "id": np.array(ids, np.int32),
                "prob": result.probs.flatten().double(),
            }
        ),
        "ids": np.array(result.ids, np.int32),
    }


def tuned_lens(
    session: Session,
    model: Model,
    texts: object,
    tokenizer: Tokenizer | None,
    steps: int,
    rate: float,
    seed: int,
) -> dict[str, object]:
    """The number of a tuned lens, and the KL divergence (nats) of each layer before and after
    training.
    """
    from minhub_py.analysis.tuned_lens import tuned_lens as train_lens

    tok = find_tokenizer(model, tokenizer, needed=is_text(texts))
    rows = texts if is_text(texts) else id_rows(texts, model.module.config.vocab_size)
    lens = train_lens(
        model.module, tok, rows, steps=steps, rate=rate, seed=seed, progress=session.progress
    )
    return {
        "number": session.add(Lens(lens)),
        "divergence": Frame(
            {
                "layer": np.array(list(lens.before), np.int32),
                "logit_lens": np.array(list(lens.before.values())),
                "tuned_lens": np.array(list(lens.after.values())),
            }
        ),
    }


def _single_text(
    model: Model, tokenizer: Tokenizer | None, text: Character | Numeric
) -> tuple[Any, list[str] | list[list[int]]]:
    """The tokenizer, and a list that contains the text as a string or as token IDs."""
    tok = find_tokenizer(model, tokenizer, needed=is_text(text))
    return tok, list(text) if is_text(text) else id_rows(text, model.module.config.vocab_size)
