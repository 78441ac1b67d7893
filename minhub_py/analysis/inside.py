"""The attention weights of each head, and the predictions of each layer.

`Past.attend` records attention weights while the model's own `forward` runs. Predictions of a layer apply the steps
after the last layer to its hidden states (states.py), as in the logit lens (nostalgebraist, 2020, "interpreting GPT:
the logit lens").
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from minhub_py.analysis.embeddings import Text, ids_of_texts
from minhub_py.analysis.hidden_states import States
from minhub_py.analysis.tokens import texts_of_ids
from minhub_py.inference.arguments import model_of, whole
from minhub_py.inference.eval_mode import in_eval_mode
from minhub_py.models.base import EncoderDecoder, LanguageModel
from minhub_py.models.cache import KeyValues, Past
from minhub_py.models.steps import Linear, Norm, Step

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Positions whose logits are in memory at once.
POSITIONS = 128


@dataclass(frozen=True)
class AttentionWeights:
    """Attention weights of a text.

    tokens, ids: tokens of the text and their IDs.    layers: numbers of the layers with attention, from 1.
    weights: float32 (layers, heads, T, T): [layer, head, query, key].
    """

    tokens: list[str | None]
    ids: list[int]
    layers: list[int]
    weights: Tensor = field(repr=False)

    def plot(
        self, path: str | os.PathLike[str] | None = None, *, layer: int | None = None, head: int | None = None
    ) -> "Figure":
        """A matplotlib figure: all heads, the heads of one layer, one head of every layer, or a single head.

        More than 144 heads are shown as the mean of each layer; `layer` and `head` select them.

        path: output file; its suffix selects the format.    layer, head: numbers from 1.
        ValueError: layer or head is out of range, or matplotlib is missing.
        """
        from minhub_py.analysis.plots import draw_attention

        return draw_attention(self, path, layer, head)


@dataclass(frozen=True)
class LayerPredictions:
    """Predictions of each layer at each token of a text.

    tokens, ids: tokens of the text and their IDs.    layers: numbers of the hidden states: 0 for the embeddings, the
    last for the model's own predictions.    predicted: IDs of the most likely tokens, the most likely first, int64
    (layers, T, n).    probs: their probabilities, float32 (layers, T, n).    names: the string of each predicted ID.
    """

    tokens: list[str | None]
    ids: list[int]
    layers: list[int]
    predicted: Tensor = field(repr=False)
    probs: Tensor = field(repr=False)
    names: dict[int, str | None] = field(repr=False)

    def plot(self, path: str | os.PathLike[str] | None = None, *, start: int = 0, most: int = 14) -> "Figure":
        """A matplotlib figure of the most likely token of each layer (rows) at each token of the text (columns).

        path: output file; its suffix selects the format.    start, most: first token, from 0, and number of tokens.
        ValueError: `start` is beyond the text, or matplotlib is missing.
        """
        from minhub_py.analysis.plots import draw_layers

        return draw_layers(self, path, start, most)


@torch.no_grad()
def attention_weights(model: Any, tokenizer: Any, text: Text) -> AttentionWeights:
    """The attention weights of each head of each layer for a text: transformers' `attentions`.

    The weights of a query sum to 1, in GPT-OSS to less: its sinks are not included. Layers without attention, as in
    Qwen 3.5, are omitted. An encoder-decoder returns the weights of its encoder. text: a string, or token IDs without a
    tokenizer.

    ValueError: a model without attention, or a text without tokens or longer than the context length; see `embed`.
    """
    model = model_of(model, "attention_weights()")
    if not any(isinstance(layer, KeyValues) for layer in model.cache_layout()):
        raise ValueError(f"{model.config.TITLE}: this model has no attention: it carries a state from token to token")
    ids, tokens, idx = read_text(model, tokenizer, text)
    weights: dict[int, Tensor] = {}
    past = Past(idx, recorded=weights)
    running, context = in_eval_mode(model)
    with context():
        if isinstance(running, EncoderDecoder):
            running.encode(idx, past)
        else:
            running.body(idx, past)
    numbers = sorted(weights)
    return AttentionWeights(tokens, ids, [i + 1 for i in numbers], torch.cat([weights[i] for i in numbers]).cpu())


@torch.no_grad()
def logit_lens(model: Any, tokenizer: Any, text: Text, n: int = 5) -> LayerPredictions:
    """The predictions of each layer after each token of a text: its hidden state through the last norm and the head.

    n: number of most likely tokens.    text: a string, or token IDs without a tokenizer.
    ValueError: an encoder-decoder, or a text without tokens or longer than the context length; see `embed`.
    """
    model = model_of(model, "logit_lens()")
    if model.encoder_decoder:
        raise ValueError(
            f"{model.config.TITLE}: the layers of an encoder predict no next token. embed(), in R text_embeddings(), "
            "returns their states"
        )
    n = min(whole("n", n, 1), model.config.vocab_size)
    states = States(model, "logit_lens()")
    ids, tokens, idx = read_text(model, tokenizer, text)
    hidden = states.read(idx, range(states.count + 1))
    # The embeddings of an LSTM can differ in size from the input of its head.
    fitting = [number for number in hidden if number > 0 or not states.recurrent or hidden[0].shape == hidden[1].shape]
    best = [most_likely(states, number, hidden[number][0], n) for number in fitting]
    predicted, probs = (torch.stack(parts).cpu() for parts in zip(*best, strict=True))
    unique = predicted.unique().tolist()
    names = dict(zip(unique, texts_of_ids(tokenizer, unique), strict=True))
    return LayerPredictions(tokens, ids, fitting, predicted, probs, names)


def read_text(model: LanguageModel, tokenizer: Any, text: Text) -> tuple[list[int], list[str | None], Tensor]:
    """The token IDs of a text, their strings, and the IDs (1, T) on the device. ValueError: none, or too many."""
    [ids] = ids_of_texts(model, tokenizer, [text])
    if not ids:
        raise ValueError("the text has no tokens: give it some words")
    limit = None if model.encoder_decoder else model.config.context_length
    if limit is not None and len(ids) > limit:
        raise ValueError(f"the text has {len(ids):,} tokens, and this model sees {limit:,} at once: give a shorter one")
    device = next(model.parameters()).device
    return ids, texts_of_ids(tokenizer, ids), torch.tensor([ids], device=device)


def most_likely(states: States, number: int, x: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """IDs and probabilities (T, n) of the most likely tokens for a hidden state (T, C)."""
    best = []
    for part in x.split(POSITIONS):
        logits = states.model.logits(final(states.tail, part) if number < states.count else part)
        best.append(logits.float().softmax(dim=-1).topk(n, dim=-1))
    return torch.cat([part.indices for part in best]), torch.cat([part.values for part in best])


def final(steps: Sequence[Step], x: Tensor) -> Tensor:
    """The input of the head, for the output of the last layer: most architectures have a norm between them."""
    h = x
    for step in steps:
        if isinstance(step, Norm):
            h = step.layer(x)
        elif isinstance(step, Linear):
            h = torch.cat([layer(h) for layer in step.layers], dim=-1)
    return h
