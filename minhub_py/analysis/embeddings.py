"""Text embeddings: the pooled hidden states of a layer.

sparse.py computes sparse embeddings, and token_vectors.py one vector per token.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from reprlib import repr as brief
from typing import Literal, overload

import torch
from tokenizers import Tokenizer
from torch import Tensor

from minhub_py.analysis.encoders import (
    Input,
    counted,
    hidden_states,
    truncated_inputs,
)
from minhub_py.analysis.hidden_states import Combine, Layers, LayerStates, combined
from minhub_py.analysis.predictions import Progress, Span, Window, windows_of
from minhub_py.analysis.sparse import normalized, sparse_embeddings
from minhub_py.analysis.token_vectors import kept_ids, token_vectors
from minhub_py.analysis.tokens import Text, ids_of_texts
from minhub_py.checkpoints.pooling import finished, pooled
from minhub_py.checkpoints.sentence_transformers import EmbeddingSettings
from minhub_py.checkpoints.token_modules import Splade
from minhub_py.inference.arguments import check_integer, model_of
from minhub_py.inference.torch_runner import CHUNK
from minhub_py.models.base import LanguageModel
from minhub_py.models.encoder import Encoder
from minhub_py.models.lora import starting_at

# Tokens per batch, including padding: bounds the memory, and suffices to use each weight often.
TOKENS = 1024
Pool = Literal["mean", "last", "cls", "max", "splade"]
POOLS = {
    "mean": "mean",
    "last": "lasttoken",
    "cls": "cls",
    "max": "max",
    "splade": "splade",
    "none": "none",
}


@overload
def embed(
    model: LanguageModel,
    tokenizer: Tokenizer | None,
    texts: Iterable[Text],
    *,
    layer: int | Sequence[int] = -1,
    combine: Combine = "join",
    pool: Pool | None = None,
    prompt: str | None = None,
    dimensions: int | None = None,
    normalize: bool | None = None,
    progress: Progress | None = None,
) -> Tensor: ...


@overload
def embed(
    model: LanguageModel,
    tokenizer: Tokenizer | None,
    texts: Iterable[Text],
    *,
    layer: int | Sequence[int] = -1,
    combine: Combine = "join",
    pool: Literal["none"],
    prompt: str | None = None,
    dimensions: int | None = None,
    normalize: bool | None = None,
    progress: Progress | None = None,
) -> list[Tensor]: ...


@torch.no_grad()
def embed(
    model: LanguageModel,
    tokenizer: Tokenizer | None,
    texts: Iterable[Text],
    *,
    layer: int | Sequence[int] = -1,
    combine: Combine = "join",
    pool: Pool | Literal["none"] | None = None,
    prompt: str | None = None,
    dimensions: int | None = None,
    normalize: bool | None = None,
    progress: Progress | None = None,
) -> Tensor | list[Tensor]:
    """Compute text embeddings.

        vectors = embed(model, tokenizer, ["A good film.", "A bad film."])
        similarity(vectors)

    For repositories of sentence-transformers, the defaults equal its `encode`: pooling, dense
    layers, normalization, maximum length and default prompt follow the repository. Other models use
    the mean of the last layer's hidden states.

    Embeddings of SPLADE models are sparse: the weight of each token of the vocabulary. ColBERT
    models have one vector per token; the prompts "query" and "document" also determine the maximum
    length, and which tokens have a vector. `similarity` and `search` compare all three kinds.

    An encoder, or a decoder in a repository of sentence-transformers, truncates a text at the
    maximum length; the special tokens that the tokenizer adds remain. Another decoder splits a text
    longer than its context length into overlapping windows, as in `score`: each token is preceded
    by at least half a context.

    Args:
        model: A model of this package.
        tokenizer: The model's tokenizer; None if all texts are token IDs.
        texts: Strings or lists of token IDs. None and NaN are missing texts.
        layer: Number of the hidden states, as in transformers' `hidden_states`: 0 for the
            embeddings, -1 for the last layer after the final norm. An encoder-decoder has the
            layers of its encoder. Or several, whose hidden states are combined before the pooling.
        combine: How to combine several layers: "join" puts their hidden states one after the other,
            "mean" averages them.
        pool: "mean" of all tokens of a text, including special tokens of the tokenizer; "last" or
            first ("cls") token; "max"; "splade", for checkpoints with a masked-LM head; or "none".
            Default: the repository's pooling, with its dense layers and normalization, or "mean".
        prompt: Name of a prompt of the repository, such as "query", which is put before each text.
            Default: the repository's default prompt.
        dimensions: Number of leading dimensions to return, for models trained with Matryoshka
            representation learning. Of a sparse embedding, the number of largest weights to keep.
        normalize: Whether to divide each embedding by its length at the end. Default: as the
            repository.
        progress: Called with the number of processed tokens and the total.

    Returns:
        Embeddings of shape (N, C), float32, on the CPU. With pool="none" and of ColBERT models, a
        list of N tensors of shape (T, C). Sparse embeddings are a sparse tensor (N, V) in COO
        layout. A missing text has a row of NaN, or a tensor of shape (0, C); an empty text, too,
        unless the model is an encoder. A missing text's sparse row has one element, NaN.

    Raises:
        ValueError: `layer`, `combine`, `pool`, `dimensions` or a token ID is out of range; the prompt is
            unknown; the checkpoint has no masked-LM head for "splade"; the tokenizer does not match
            the model; the model has hooks or is not a model of this package.
    """
    model = model_of(model, "embed()")
    if pool not in (None, *POOLS):
        raise ValueError(
            f'pool must be "mean", "last", "cls", "max", "splade" or "none", not {brief(pool)}'
        )
    if dimensions is not None:
        dimensions = check_integer("dimensions", dimensions, 1)
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise ValueError(f"texts must be a list of texts, not {brief(texts)}")
    layers = Layers.of(layer, combine)
    settings = settings_for(model, pool, layers)
    text = prompt_of(settings, prompt)
    rows = list(texts)
    if settings.splade is not None:
        weights = sparse_embeddings(model, tokenizer, rows, settings, text, dimensions, progress)
        return normalized(weights) if normalize else weights
    if settings.tokens is not None:
        vectors = token_vectors(model, tokenizer, rows, settings, text, prompt, progress)
        return [finished(x, settings, dimensions, normalize) for x in vectors]
    compute_all = embeddings_of_inputs if truncates(model) else embeddings_of_windows
    results = compute_all(model, tokenizer, rows, settings, layers, text, progress)
    if isinstance(results, list):  # the hidden states, without the repository's layers
        if dimensions is None and not normalize:
            return results
        plain = EmbeddingSettings()
        return [finished(x.clone(), plain, dimensions, normalize) for x in results]
    return finished(results, settings, dimensions, normalize)


def settings_for(model: LanguageModel, pool: str | None, layers: Layers) -> EmbeddingSettings:
    """The repository's settings, or those for a pooling or layers. ValueError: sparse embeddings of
    a layer.
    """
    settings = model.embedding_settings or EmbeddingSettings()
    if pool == "splade":
        if not layers.last:
            raise ValueError('pool="splade" uses the last layer: remove layer')
        return (
            settings
            if settings.splade is not None
            else replace(
                settings,
                pooling=("splade",),
                dense=(),
                normalize=False,
                dimensions=None,
                tokens=None,
                splade=Splade(),
            )
        )
    if pool is None and layers.last:
        return settings
    pooling = settings.pooling if settings.splade is None else ("mean",)
    return replace(
        settings,
        pooling=(POOLS[pool],) if pool is not None else pooling,
        dense=(),
        normalize=False,
        dimensions=settings.dimensions if settings.splade is None and layers.single else None,
        splade=None,
        tokens=None,
    )


def truncates(model: LanguageModel) -> bool:
    """Whether texts are truncated at the maximum length, instead of being divided into windows."""
    return isinstance(model, Encoder) or model.embedding_settings is not None


def prompt_of(settings: EmbeddingSettings, name: str | None) -> str:
    """A prompt's text. ValueError: the prompt is unknown."""
    if name is None:
        return settings.prompts.get(settings.default_prompt or "", "")
    if name not in settings.prompts and (settings.prompts or name not in ("query", "document")):
        names = ", ".join(settings.prompts) or "none"
        raise ValueError(f"the repository has no prompt {brief(name)}; its prompts are: {names}")
    return settings.prompts.get(name, "")


def embedded_ids(
    model: LanguageModel,
    tokenizer: Tokenizer | None,
    texts: Iterable[Text],
    prompt: str | None = None,
    pool: Literal["none"] | None = "none",
) -> list[list[int]]:
    """The token IDs of each text whose states `embed` computes, with the prompt; empty for a
    missing text.

    pool: None for the tokens that have a vector in the repository's embeddings.
    """
    settings = model.embedding_settings or EmbeddingSettings()
    text = prompt_of(settings, prompt)
    if pool is None and settings.tokens is not None:
        return kept_ids(model, tokenizer, list(texts), settings, text, prompt)
    if truncates(model):
        inputs = truncated_inputs(model, tokenizer, list(texts), settings, text)
        return [[] if row is None else list(row.ids) for row in inputs]
    return ids_of_texts(
        model, tokenizer, [text + row if isinstance(row, str) else row for row in texts]
    )


def embeddings_of_inputs(
    model: LanguageModel,
    tokenizer: Tokenizer | None,
    texts: list[Text],
    settings: EmbeddingSettings,
    layers: Layers,
    prompt: str,
    progress: Progress | None,
) -> Tensor | list[Tensor]:
    """The pooled hidden states of texts that are truncated at the maximum length."""
    inputs = truncated_inputs(model, tokenizer, texts, settings, prompt)
    numbers = [number for number, row in enumerate(inputs) if row is not None]
    rows = [row for row in inputs if row is not None]
    if not isinstance(model, Encoder):
        size, states = hidden_states_of_decoder(model, rows, layers)
    elif layers.last:
        size, states = model.size, hidden_states(model, rows)
    else:
        size, states = hidden_states_of_encoder(model, rows, layers)
    no_pooling = settings.pooling == ("none",)
    matrices = [torch.empty(0, size)] * len(texts) if no_pooling else []
    # Written to in place: a list of vectors would take as much memory again.
    vectors = torch.full((0 if no_pooling else len(texts), size * len(settings.pooling)), torch.nan)
    for i, x in counted(states, sum(len(row.ids) for row in rows), progress):
        if no_pooling:
            matrices[numbers[i]] = x
        else:
            vectors[numbers[i]] = pooled(x, settings, rows[i].prompt)
    return matrices if no_pooling else vectors


def hidden_states_of_encoder(
    model: Encoder, inputs: Sequence[Input], layers: Layers
) -> tuple[int, Iterator[tuple[int, Tensor]]]:
    """The size of hidden states in layers, and (index, hidden states (T, C), float32) of each input,
    one input after the other.
    """
    states = LayerStates(model, "embed()")
    numbers = layers.numbers(states)
    device = next(model.parameters()).device

    def generate() -> Iterator[tuple[int, Tensor]]:
        for i, row in enumerate(inputs):
            result = states.compute(torch.tensor([row.ids], device=device), numbers)
            yield i, combined(result, numbers, layers.combine)[0].float().cpu()

    return model.size * (len(numbers) if layers.combine == "join" else 1), generate()


def hidden_states_of_decoder(
    model: LanguageModel, inputs: Sequence[Input], layers: Layers
) -> tuple[int, Iterator[tuple[int, Tensor]]]:
    """The size of hidden states in layers, and (index, hidden states (T, C), float32) of each
    input.
    """
    states = LayerStates(model, "embed()")
    numbers = layers.numbers(states)
    spans = [Span(row.ids, 1, len(row.ids) + 1) for row in inputs]
    windows = [
        window
        for i, span in enumerate(spans)
        for window in windows_of(i, span, None, states.model.invocation)
    ]

    def generate() -> Iterator[tuple[int, Tensor]]:
        for batch in batches(windows, ragged=not states.encoder):
            x = combined(compute(states, batch, numbers), numbers, layers.combine)  # (B, T, C)
            for window, row in zip(batch, x, strict=True):
                yield window.text, row[: len(window.ids)].float().cpu()

    return size_of(states, numbers, layers.combine), generate()


def size_of(states: LayerStates, numbers: Sequence[int], combine: Combine) -> int:
    """The size of the combined hidden states."""
    one_token = compute(states, [Window([0], 0, 0, 0)], numbers)
    return combined(one_token, numbers, combine).size(-1)


def embeddings_of_windows(
    model: LanguageModel,
    tokenizer: Tokenizer | None,
    texts: list[Text],
    settings: EmbeddingSettings,
    layers: Layers,
    prompt: str,
    progress: Progress | None,
) -> Tensor | list[Tensor]:
    """The pooled hidden states of a decoder, or of an encoder-decoder's encoder."""
    [mode] = settings.pooling if len(settings.pooling) == 1 else ("several",)
    if mode not in ("mean", "lasttoken", "none"):
        raise ValueError(
            f'{model.config.TITLE}: pool must be "mean", "last" or "none", not {brief(mode)}'
        )
    states = LayerStates(model, "embed()")
    numbers = layers.numbers(states)
    if prompt:
        texts = [prompt + text if isinstance(text, str) else text for text in texts]
    rows = ids_of_texts(model, tokenizer, texts)
    context = None if states.encoder else model.config.context_length
    # The windows in which `score` predicts the token after each token.
    spans = [Span(ids, 1, len(ids) + 1) for ids in rows]
    windows = [
        window
        for row, span in enumerate(spans)
        for window in windows_of(row, span, context, states.model.invocation)
    ]
    size = size_of(states, numbers, layers.combine)
    vectors = torch.full((0 if mode == "none" else len(rows), size), torch.nan)
    matrices = [torch.empty(0, size) for _ in rows] if mode == "none" else []
    processed, total = 0, sum(map(len, rows))
    for batch in batches(windows, ragged=not states.encoder):
        x = combined(compute(states, batch, numbers), numbers, layers.combine)  # (B, T, C)
        new = [x[i, window.first : len(window.ids)].float() for i, window in enumerate(batch)]
        if mode == "none":
            for window, part in zip(batch, new, strict=True):
                matrices[window.text] = torch.cat((matrices[window.text], part.cpu()))
        else:
            parts = [
                part[-1] if mode == "lasttoken" else part.sum(dim=0) / len(rows[window.text])
                for window, part in zip(batch, new, strict=True)
            ]
            for window, vector in zip(batch, torch.stack(parts).cpu(), strict=True):
                adds = mode == "mean" and window.start > 0
                vectors[window.text] = vectors[window.text] + vector if adds else vector
        processed += sum(map(len, new))
        if progress is not None:
            progress(processed, total)
    return matrices if mode == "none" else vectors


def batches(windows: Sequence[Window], ragged: bool) -> Iterator[list[Window]]:
    """Batches of windows of similar length, or, unless `ragged`, of equal length.

    Windows are sorted by length, the longest first, so that running out of memory shows at once.
    The sort is stable and all windows of a text except the last have the context length, so that a
    text's windows stay in order.
    """
    batch: list[Window] = []
    for window in sorted(windows, key=lambda window: len(window.ids), reverse=True):
        longest = len(batch[0].ids) if batch else 0
        if batch and (
            (len(batch) + 1) * longest > TOKENS or not (ragged or len(window.ids) == longest)
        ):
            yield batch
            batch = []
        batch.append(window)
    if batch:
        yield batch


def compute(
    states: LayerStates, windows: Sequence[Window], layers: Sequence[int]
) -> dict[int, Tensor]:
    """The states (B, T, C) of windows, the longest first, by layer. Values at padding positions are
    undefined.

    Rows are padded at the end, where padding does not change a causal model's states.
    """
    device = next(states.model.parameters()).device
    longest = len(windows[0].ids)
    idx = torch.tensor(
        [window.ids + [0] * (longest - len(window.ids)) for window in windows], device=device
    )
    if longest <= TOKENS or states.encoder or states.recurrent:
        with starting_at(states.model, [window.adapter_start for window in windows]):
            return states.compute(idx, layers)
    cache = states.model.new_cache(1, longest)
    cache.adapter_starts = [windows[0].adapter_start]
    chunks = [states.compute(chunk, layers, cache) for chunk in idx.split(CHUNK, dim=1)]
    return {layer: torch.cat([chunk[layer] for chunk in chunks], dim=1) for layer in layers}
