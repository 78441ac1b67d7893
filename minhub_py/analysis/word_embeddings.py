"""Contextual word embeddings: the mean of the hidden states of each word's tokens.

A token belongs to the word of its last character, so that the space before a word belongs to the
word. Words are separated by white space.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Encoding, Tokenizer
from torch import Tensor

from minhub_py.analysis.embeddings import batches, compute
from minhub_py.analysis.encoders import special_tokens_before, windows_of_texts
from minhub_py.analysis.hidden_states import Combine, Layers, LayerStates, combined
from minhub_py.analysis.predictions import Progress, Span, Window, windows_of
from minhub_py.analysis.segments import Segments, as_texts, without_unknown
from minhub_py.analysis.tokens import encodings
from minhub_py.inference.arguments import check_tokenizer, model_of
from minhub_py.models.base import LanguageModel
from minhub_py.models.encoder import Encoder
from minhub_py.system.tables import Columns

WORD = re.compile(r"\S+")
TEXTS = 256  # that are encoded together: bounds the memory of encodings


@dataclass(frozen=True)
class WordsOfText:
    """A text's words, and the word of each token; -1 for a special token and white space."""

    words: list[str]
    owners: list[int]

    @classmethod
    def of(cls, text: str, encoding: Encoding) -> "WordsOfText":
        """The words of a text with this encoding."""
        matches = [*WORD.finditer(text)]
        ends = np.array([match.end() for match in matches], np.int64)
        offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
        owners = np.searchsorted(ends, offsets[:, 1])
        owners[(owners == len(ends)) | np.array(encoding.special_tokens_mask, bool)] = -1
        return cls([match.group() for match in matches], owners.tolist())


@torch.no_grad()
def word_embeddings(
    model: LanguageModel,
    tokenizer: Tokenizer,
    texts: Iterable[str | None],
    *,
    layers: int | Sequence[int] = -1,
    combine: Combine = "join",
    progress: Progress | None = None,
) -> tuple[Columns, Tensor]:
    """Compute an embedding of each word in its context: the mean of its tokens' hidden states.

        words, vectors = word_embeddings(model, tokenizer, ["The bank of the river."], layers=[5, 6])

    A text longer than the maximum length of the model is divided into overlapping windows. A token
    has the hidden states of the window with more of its context.

    Args:
        model: A model of this package. An encoder-decoder has the layers of its encoder.
        tokenizer: The model's tokenizer.
        texts: Texts; None for a missing text, which has no words. Words are separated by white
            space.
        layers: Number of the hidden states, or several, as in transformers' `hidden_states`: 0 for
            the embeddings, -1 for the last layer after the final norm.
        combine: How to combine several layers: "join" puts their hidden states one after the other,
            "mean" averages them.
        progress: Called with the number of processed texts and the total.

    Returns:
        Columns with one row per word, in the order of the texts: text and word_n (their numbers,
        from 0), word and tokens (their number); and the embeddings, (words, C), float32, on the
        CPU. A word without a token, because it shares one with the word after it, has 0 tokens and
        NaN.

    Raises:
        ValueError: `layers` or `combine` is invalid; the tokenizer does not match the model; the
            model has hooks or is not a model of this package.
    """
    model = model_of(model, "word_embeddings()")
    check_tokenizer(tokenizer, "encode_batch")
    chosen = Layers.of(layers, combine)
    states = LayerStates(model, "word_embeddings()")
    numbers = chosen.numbers(states)
    rows = [Segments([text or ""], [0]) for text in as_texts("texts", texts)]
    strings = ["".join(row.parts) for row in without_unknown(tokenizer, rows)]
    words_of_texts, vectors, counts = list[list[str]](), list[Tensor](), list[Tensor]()
    for start in range(0, len(strings), TEXTS):
        batch = strings[start : start + TEXTS]
        words, sums, tokens = sums_of_words(states, model, tokenizer, batch, numbers, combine)
        words_of_texts += words
        vectors.append(sums.div_(tokens.unsqueeze(1)) if len(sums) else sums)
        counts.append(tokens)
        if progress is not None:
            progress(start + len(batch), len(strings))
    columns = {
        "text": np.repeat(np.arange(len(words_of_texts)), [len(words) for words in words_of_texts]),
        "word_n": np.concatenate(
            [np.arange(len(words)) for words in words_of_texts] or [np.arange(0)]
        ),
        "word": [word for words in words_of_texts for word in words],
        "tokens": torch.cat([torch.zeros(0), *counts]).long().numpy(),
    }
    filled = [part for part in vectors if len(part)]
    return Columns(columns), torch.cat(filled) if filled else torch.empty(0)


def sums_of_words(
    states: LayerStates,
    model: LanguageModel,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    numbers: Sequence[int],
    combine: Combine,
) -> tuple[list[list[str]], Tensor, Tensor]:
    """The words of each text, the sum (words, C) of the hidden states of each word's tokens, and
    their number (words,).
    """
    compute_all = states_of_encoder if isinstance(model, Encoder) else states_of_decoder
    encoded, results = compute_all(states, model, tokenizer, texts, numbers)
    rows = [WordsOfText.of(*pair) for pair in zip(texts, encoded, strict=True)]
    starts = np.cumsum([0, *(len(row.words) for row in rows)])
    counts, sums = torch.zeros(int(starts[-1])), torch.empty(0)
    for number, first, states_of_layers in results:
        parts = combined(states_of_layers, numbers, combine).float().cpu()
        if not len(sums):
            sums = torch.zeros(len(counts), parts.size(1))
        owners = torch.tensor(rows[number].owners[first : first + len(parts)], dtype=torch.long)
        in_word = owners >= 0
        words = owners[in_word] + int(starts[number])
        sums.index_add_(0, words, parts[in_word])
        counts.index_add_(0, words, torch.ones(len(words)))
    return [row.words for row in rows], sums, counts


def states_of_encoder(
    states: LayerStates,
    model: LanguageModel,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    layers: Sequence[int],
) -> tuple[list[Encoding], Iterator[tuple[int, int, dict[int, Tensor]]]]:
    """The encodings of texts, and the hidden states of parts of them: (text, first token, states
    (T, C) by layer).
    """
    assert isinstance(model, Encoder)
    encoded = windows_of_texts(model, tokenizer, texts)
    before, device = special_tokens_before(tokenizer), next(model.parameters()).device

    def generate() -> Iterator[tuple[int, int, dict[int, Tensor]]]:
        for number, (_, windows) in enumerate(encoded):
            for row, start, first, end in windows:
                result = states.compute(torch.tensor([row.ids], device=device), layers)
                part = slice(before + first - start, before + end - start)
                yield number, first, {layer: x[0, part] for layer, x in result.items()}

    return [encoding for encoding, _ in encoded], generate()


def states_of_decoder(
    states: LayerStates,
    model: LanguageModel,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    layers: Sequence[int],
) -> tuple[list[Encoding], Iterator[tuple[int, int, dict[int, Tensor]]]]:
    """The same for a decoder, or the encoder of an encoder-decoder."""
    encoded = list(encodings(model, tokenizer, texts))
    context = None if states.encoder else model.config.context_length
    windows: list[Window] = []
    for number, encoding in enumerate(encoded):
        span = Span(encoding.ids, 1, len(encoding.ids) + 1)
        windows += windows_of(number, span, context, states.model.invocation)

    def generate() -> Iterator[tuple[int, int, dict[int, Tensor]]]:
        for batch in batches(windows, ragged=not states.encoder):
            result = compute(states, batch, layers)
            for i, window in enumerate(batch):
                part = slice(window.first, len(window.ids))
                parts = {layer: x[i, part] for layer, x in result.items()}
                yield window.text, window.start + window.first, parts

    return encoded, generate()
