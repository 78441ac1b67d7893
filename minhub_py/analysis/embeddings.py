"""Texts as numbers: a row of hidden states for each text."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from reprlib import repr as brief
from typing import Any, Literal, overload

import torch
from torch import Tensor

from minhub_py.analysis.hidden_states import States
from minhub_py.analysis.tokens import encodings
from minhub_py.inference.arguments import model_of
from minhub_py.inference.batch import context_start
from minhub_py.inference.generate import check_ids
from minhub_py.inference.torch_runner import CHUNK
from minhub_py.models.base import LanguageModel

Text = str | Sequence[int] | None
POOLS = ("mean", "last", "none")
# Ids that are read together, padding included: bounds the memory, and is enough that each weight read is used often.
TOKENS = 1024


@overload
def embed(
    model: Any, tokenizer: Any, texts: Iterable[Text], *, layer: int = -1, pool: Literal["mean", "last"] = "mean",
    progress: Callable[[int, int], object] | None = None,
) -> Tensor: ...  # fmt: skip


@overload
def embed(
    model: Any, tokenizer: Any, texts: Iterable[Text], *, layer: int = -1, pool: Literal["none"],
    progress: Callable[[int, int], object] | None = None,
) -> list[Tensor]: ...  # fmt: skip


@torch.no_grad()
def embed(
    model: Any,
    tokenizer: Any,
    texts: Iterable[Text],
    *,
    layer: int = -1,
    pool: Literal["mean", "last", "none"] = "mean",
    progress: Callable[[int, int], object] | None = None,
) -> Tensor | list[Tensor]:
    """The hidden states of texts, pooled to a row for each: (N, C) float32 on the CPU, in the order of `texts`.

        vectors = embed(model, tokenizer, ["A good film.", "A bad film."])
        torch.cosine_similarity(vectors[0], vectors[1], dim=0)

    texts: strings, or lists of ids, for which the tokenizer may be None.    layer: 0 is the embeddings, -1 the last
    layer, after the last norm, as in transformers' `hidden_states`; those of an encoder-decoder are its encoder's.
    pool: "mean" of a text's tokens, those included that the tokenizer adds; the "last" token; or "none": a list of
    (T, C), a row for each token.    progress(done, total): hears of tokens.

    A text that is missing (None, NaN) or empty has a row of NaN, or none at all. A text longer than the context is read
    in overlapping parts, by the rule of `score`: each token has half a context or more before it.

    ValueError: a layer that the model does not have, a tokenizer of another model, hooks on the model, no model of this
    package.
    """
    model = model_of(model, "embed()")
    if pool not in POOLS:
        raise ValueError(f'pool must be "mean", "last" or "none", not {brief(pool)}')
    states = States(model, "embed()")
    number = states.number(layer)
    rows = ids_of_texts(model, tokenizer, texts)
    context = None if states.encoder else model.config.context_length
    pieces = [piece for row, ids in enumerate(rows) for piece in pieces_of(row, ids, context)]
    width = read(states, [[0]], number).size(-1)
    pooled = torch.full((0 if pool == "none" else len(rows), width), torch.nan)
    tokens = [torch.empty(0, width) for _ in rows] if pool == "none" else []
    done, total = 0, sum(map(len, rows))
    for batch in batches(pieces, ragged=not states.encoder):
        x = read(states, [piece.ids for piece in batch], number)  # (B, T, C)
        new = [part[piece.skip : len(piece.ids)].float() for piece, part in zip(batch, x, strict=True)]
        if pool == "none":
            for piece, part in zip(batch, new, strict=True):
                tokens[piece.row] = torch.cat((tokens[piece.row], part.cpu()))
        else:
            shares = [part[-1] if pool == "last" else part.sum(dim=0) / len(rows[piece.row])
                      for piece, part in zip(batch, new, strict=True)]  # fmt: skip
            for piece, part in zip(batch, torch.stack(shares).cpu(), strict=True):
                adds = pool == "mean" and piece.begin > 0
                pooled[piece.row] = pooled[piece.row] + part if adds else part
        done += sum(map(len, new))
        if progress is not None:
            progress(done, total)
    return tokens if pool == "none" else pooled


def ids_of_texts(model: LanguageModel, tokenizer: Any, texts: Iterable[Text]) -> list[list[int]]:
    """The ids of each text; none where it is missing or empty.

    ValueError: something else than texts and ids, or ids that are not of the model's vocabulary.
    """
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise ValueError(f"texts must be a list of texts, not {brief(texts)}")
    given = [None if is_missing(text) else text for text in texts]
    strings = [text for text in given if isinstance(text, str) and text]
    encoded = iter([encoding.ids for encoding in encodings(model, tokenizer, strings)] if strings else [])
    rows: list[list[int]] = []
    for number, text in enumerate(given):
        if text is None or (hasattr(text, "__len__") and len(text) == 0):
            rows.append([])
        elif isinstance(text, str):
            rows.append(next(encoded))
        elif isinstance(text, Iterable):
            try:
                rows.append(check_ids(model, text, number))
            except ValueError as error:
                raise ValueError(f"texts: {error}") from error
        else:
            raise ValueError(f"texts must be strings, or lists of ids; number {number} is {brief(text)}")
    return rows


def is_missing(text: object) -> bool:
    """Whether it is None, NaN, or what pandas has for a missing value."""
    return text is None or type(text).__name__ == "NAType" or (isinstance(text, float) and math.isnan(text))


@dataclass(frozen=True)
class Piece:
    """Ids of a text that are read at once. begin: their place in it.    skip: those that an earlier piece had, too."""

    row: int
    ids: list[int]
    begin: int
    skip: int


def pieces_of(row: int, ids: list[int], context: int | None) -> Iterator[Piece]:
    """A text in pieces that fit the context. Each id is read in the one from whose states `score` predicts the next."""
    done = 0
    while done < len(ids):
        begin = context_start(done + 1, context)
        end = len(ids) if context is None else min(len(ids), begin + context)
        yield Piece(row, ids[begin:end], begin, done - begin)
        done = end


def batches(pieces: Sequence[Piece], ragged: bool) -> Iterator[list[Piece]]:
    """Pieces to read together: of about one length, or of exactly one.

    The longest come first, so that a lack of memory shows at once. Those of one text stay in order: but for the last,
    all are as long as the context.
    """
    batch: list[Piece] = []
    for piece in sorted(pieces, key=lambda piece: len(piece.ids), reverse=True):
        longest = len(batch[0].ids) if batch else 0
        if batch and ((len(batch) + 1) * longest > TOKENS or not (ragged or len(piece.ids) == longest)):
            yield batch
            batch = []
        batch.append(piece)
    if batch:
        yield batch


def read(states: States, rows: Sequence[list[int]], layer: int) -> Tensor:
    """The states (B, T, C) of rows of ids, the longest first. What stands beyond the end of a row means nothing.

    Rows are padded at their ends, where no id of a causal model sees it.
    """
    device = next(states.model.parameters()).device
    longest = len(rows[0])
    idx = torch.tensor([ids + [0] * (longest - len(ids)) for ids in rows], device=device)
    if longest <= TOKENS or states.encoder or states.recurrent:
        return states.read(idx, (layer,))[layer]
    cache = states.model.new_cache(1, longest)
    return torch.cat([states.read(part, (layer,), cache)[layer] for part in idx.split(CHUNK, dim=1)], dim=1)
