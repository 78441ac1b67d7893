"""Text embeddings: the pooled hidden states of a layer."""

from collections.abc import Iterable, Iterator, Sequence
from reprlib import repr as brief
from typing import Any, Literal, overload

import torch
from torch import Tensor

from minhub_py.analysis.hidden_states import HiddenStates
from minhub_py.analysis.predictions import Progress, Span, Window, windows_of
from minhub_py.analysis.tokens import Text, ids_of_texts
from minhub_py.inference.arguments import model_of
from minhub_py.inference.torch_runner import CHUNK

# Tokens per batch, including padding: bounds the memory, and suffices to use each weight often.
TOKENS = 1024


@overload
def embed(
    model: Any, tokenizer: Any, texts: Iterable[Text], *, layer: int = -1, pool: Literal["mean", "last"] = "mean",
    progress: Progress | None = None,
) -> Tensor: ...  # fmt: skip


@overload
def embed(
    model: Any, tokenizer: Any, texts: Iterable[Text], *, layer: int = -1, pool: Literal["none"],
    progress: Progress | None = None,
) -> list[Tensor]: ...  # fmt: skip


@torch.no_grad()
def embed(
    model: Any,
    tokenizer: Any,
    texts: Iterable[Text],
    *,
    layer: int = -1,
    pool: Literal["mean", "last", "none"] = "mean",
    progress: Progress | None = None,
) -> Tensor | list[Tensor]:
    """Compute text embeddings from the hidden states of a layer.

        vectors = embed(model, tokenizer, ["A good film.", "A bad film."])
        torch.cosine_similarity(vectors[0], vectors[1], dim=0)

    A text longer than the context length is split into overlapping windows, as in `score`: each token is preceded by
    at least half a context.

    Args:
        model: A model of this package.
        tokenizer: The model's tokenizer; None if all texts are token IDs.
        texts: Strings or lists of token IDs. None and NaN are missing texts.
        layer: Number of the hidden states, as in transformers' `hidden_states`: 0 for the embeddings, -1 for the last
            layer after the final norm. An encoder-decoder has the layers of its encoder.
        pool: "mean" of all tokens of a text, including special tokens of the tokenizer; "last" token; or "none".
        progress: Called with the number of processed tokens and the total.

    Returns:
        Embeddings of shape (N, C), float32, on the CPU. With pool="none", a list of N tensors of shape (T, C). A
        missing or empty text has a row of NaN, or a tensor of shape (0, C).

    Raises:
        ValueError: `layer`, `pool` or a token ID is out of range; the tokenizer does not match the model; the model has
            hooks or is not a model of this package.
    """
    model = model_of(model, "embed()")
    if pool not in ("mean", "last", "none"):
        raise ValueError(f'pool must be "mean", "last" or "none", not {brief(pool)}')
    states = HiddenStates(model, "embed()")
    number = states.number(layer)
    rows = ids_of_texts(model, tokenizer, texts)
    context = None if states.encoder else model.config.context_length
    # The windows in which `score` predicts the token after each token.
    spans = [Span(ids, 1, len(ids) + 1) for ids in rows]
    windows = [window for row, span in enumerate(spans) for window in windows_of(row, span, context)]
    size = compute(states, [[0]], number).size(-1)
    vectors = torch.full((0 if pool == "none" else len(rows), size), torch.nan)
    matrices = [torch.empty(0, size) for _ in rows] if pool == "none" else []
    processed, total = 0, sum(map(len, rows))
    for batch in batches(windows, ragged=not states.encoder):
        x = compute(states, [window.ids for window in batch], number)  # (B, T, C)
        new = [x[i, window.first : len(window.ids)].float() for i, window in enumerate(batch)]
        if pool == "none":
            for window, part in zip(batch, new, strict=True):
                matrices[window.text] = torch.cat((matrices[window.text], part.cpu()))
        else:
            pooled = [part[-1] if pool == "last" else part.sum(dim=0) / len(rows[window.text])
                      for window, part in zip(batch, new, strict=True)]  # fmt: skip
            for window, vector in zip(batch, torch.stack(pooled).cpu(), strict=True):
                adds = pool == "mean" and window.start > 0
                vectors[window.text] = vectors[window.text] + vector if adds else vector
        processed += sum(map(len, new))
        if progress is not None:
            progress(processed, total)
    return matrices if pool == "none" else vectors


def batches(windows: Sequence[Window], ragged: bool) -> Iterator[list[Window]]:
    """Batches of windows of similar length, or, unless `ragged`, of equal length.

    Windows are sorted by length, the longest first, so that running out of memory shows at once. The sort is stable and
    all windows of a text except the last have the context length, so that a text's windows stay in order.
    """
    batch: list[Window] = []
    for window in sorted(windows, key=lambda window: len(window.ids), reverse=True):
        longest = len(batch[0].ids) if batch else 0
        if batch and ((len(batch) + 1) * longest > TOKENS or not (ragged or len(window.ids) == longest)):
            yield batch
            batch = []
        batch.append(window)
    if batch:
        yield batch


def compute(states: HiddenStates, rows: Sequence[list[int]], layer: int) -> Tensor:
    """The states (B, T, C) of token IDs, the longest row first. Values at padding positions are undefined.

    Rows are padded at the end, where padding does not change the states of a causal model.
    """
    device = next(states.model.parameters()).device
    longest = len(rows[0])
    idx = torch.tensor([ids + [0] * (longest - len(ids)) for ids in rows], device=device)
    if longest <= TOKENS or states.encoder or states.recurrent:
        return states.compute(idx, (layer,))[layer]
    cache = states.model.new_cache(1, longest)
    return torch.cat([states.compute(chunk, (layer,), cache)[layer] for chunk in idx.split(CHUNK, dim=1)], dim=1)
