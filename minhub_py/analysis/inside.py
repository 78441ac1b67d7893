"""Looking inside a model: what each head attends to, and what each layer would predict next.

Both are made of the hidden states (states.py). The steps from a layer's beginning to its attention make queries and
keys of a state, and these the weights that PyTorch's fused attention does not tell. The steps after the last layer make
a prediction of the state of any layer, as of the last (nostalgebraist, 2020, "interpreting GPT: the logit lens").
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from minhub_py.analysis.embed import Text, ids_of_texts
from minhub_py.analysis.states import States
from minhub_py.analysis.tokens import texts_of_ids
from minhub_py.arguments import model_of, whole
from minhub_py.models.base import Step
from minhub_py.torchscript import distance_bias, heads_of, rotate, rotations

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Positions whose logits are in memory at once.
POSITIONS = 128


@dataclass(frozen=True)
class AttentionWeights:
    """How much each token of a text attends to each, in each head.

    tokens, ids: of the text.    layers: the numbers, from 1, of the layers that attend.    weights: float32 (layers,
    heads, T, T): [layer, head, query, key].
    """

    tokens: list[str | None]
    ids: list[int]
    layers: list[int]
    weights: Tensor = field(repr=False)

    def plot(
        self, path: str | os.PathLike[str] | None = None, *, layer: int | None = None, head: int | None = None
    ) -> "Figure":
        """A matplotlib figure: all heads of all layers, or those of a layer, or one of them, with its tokens.

        path: where to write it, in the format of its suffix.    layer, head: numbers from 1.
        ValueError: there is no such layer or head, or matplotlib is missing.
        """
        from minhub_py.analysis.plots import draw_attention

        return draw_attention(self, path, layer, head)


@dataclass(frozen=True)
class LayerPredictions:
    """What each layer would predict next, at each token of a text.

    tokens, ids: of the text.    layers: the numbers of the states: 0 is the embeddings, the last the model's own.
    predicted: ids of the likeliest tokens, the likeliest first, int64 (layers, T, n).    probs: their probabilities,
    float32, of the same shape.    names: the text of each id that is predicted.
    """

    tokens: list[str | None]
    ids: list[int]
    layers: list[int]
    predicted: Tensor = field(repr=False)
    probs: Tensor = field(repr=False)
    names: dict[int, str | None] = field(repr=False)

    def plot(self, path: str | os.PathLike[str] | None = None, *, start: int = 0, most: int = 14) -> "Figure":
        """A matplotlib figure: the likeliest token of each layer (rows) at each token of the text (columns).

        path: where to write it, in the format of its suffix.    start, most: which tokens of the text to show, from 0.
        ValueError: there are none from `start` on, or matplotlib is missing.
        """
        from minhub_py.analysis.plots import draw_layers

        return draw_layers(self, path, start, most)


@torch.no_grad()
def attention_weights(model: Any, tokenizer: Any, text: Text) -> AttentionWeights:
    """How much each token of a text attends to each, in each head of each layer: transformers' `attentions`.

    The weights of a query sum to 1; less in GPT-OSS, whose sinks take a share. Layers without attention, as Qwen 3.5
    has them, are left out. Those of an encoder-decoder are its encoder's. text: a string, or ids without a tokenizer.

    ValueError: a model without attention, a text without tokens or longer than the context, and as `embed`.
    """
    model = model_of(model, "attention_weights()")
    states = States(model, "attention_weights()")
    attending = [number for number, steps in enumerate(states.layers) if steps[-1][0] == "attend"]
    if not attending:
        raise ValueError(f"{model.config.TITLE}: this model has no attention: it carries a state from token to token")
    ids, tokens, idx = read_text(states, tokenizer, text)
    found = states.read(idx, attending)
    weights = torch.cat([weights_of(states.layers[number], found[number]).cpu() for number in attending])
    return AttentionWeights(tokens, ids, [number + 1 for number in attending], weights)


@torch.no_grad()
def logit_lens(model: Any, tokenizer: Any, text: Text, n: int = 5) -> LayerPredictions:
    """What each layer would predict after each token of a text, if it were the last: its state through norm and head.

    n: how many of the likeliest tokens.    text: a string, or ids without a tokenizer.
    ValueError: an encoder-decoder, a text without tokens or longer than the context, and as `embed`.
    """
    model = model_of(model, "logit_lens()")
    if model.encoder_decoder:
        raise ValueError(
            f"{model.config.TITLE}: the layers of an encoder predict no next token. embed(), in R text_embeddings(), "
            "returns their states"
        )
    n = min(whole("n", n, 1), model.config.vocab_size)
    states = States(model, "logit_lens()")
    ids, tokens, idx = read_text(states, tokenizer, text)
    found = states.read(idx, range(states.count + 1))
    # An LSTM's embeddings may be of another size than what its head takes.
    fitting = [number for number in found if number > 0 or not states.recurrent or found[0].shape == found[1].shape]
    best = [likeliest(states, number, found[number][0], n) for number in fitting]
    predicted, probs = (torch.stack(parts).cpu() for parts in zip(*best, strict=True))
    known = predicted.unique().tolist()
    names = dict(zip(known, texts_of_ids(tokenizer, known), strict=True))
    return LayerPredictions(tokens, ids, fitting, predicted, probs, names)


def read_text(states: States, tokenizer: Any, text: Text) -> tuple[list[int], list[str | None], Tensor]:
    """The ids of a text, their texts, and the ids (1, T) where the model is. ValueError: none, or too many."""
    [ids] = ids_of_texts(states.model, tokenizer, [text])
    if not ids:
        raise ValueError("the text has no tokens: give it some words")
    limit = None if states.encoder else states.model.config.context_length
    if limit is not None and len(ids) > limit:
        raise ValueError(f"the text has {len(ids):,} tokens, and this model sees {limit:,} at once: give a shorter one")
    device = next(states.model.parameters()).device
    return ids, texts_of_ids(tokenizer, ids), torch.tensor([ids], device=device)


def likeliest(states: States, number: int, x: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Ids and probabilities (T, n) of the likeliest tokens by a state (T, C)."""
    found = []
    for part in x.split(POSITIONS):
        logits = states.model.logits(final(states.tail, part) if number < states.count else part)
        found.append(logits.float().softmax(dim=-1).topk(n, dim=-1))
    return torch.cat([each.indices for each in found]), torch.cat([each.values for each in found])


def final(steps: Sequence[Step], x: Tensor) -> Tensor:
    """What the head is given, of what the last layer gives: most families have a norm between."""
    h = x
    for operation, keywords in steps:
        if operation in ("norm", "rms_norm"):
            h = keywords["layer"](x)
        elif operation == "linear":
            h = torch.cat([layer(h) for layer in keywords["layers"]], dim=-1)
    return h


def weights_of(steps: Sequence[Step], x: Tensor) -> Tensor:
    """The attention weights (1, H, T, T), float32, of a layer that is given x (1, T, C): its steps as far as that."""
    h = x
    for operation, keywords in steps:
        if operation in ("norm", "rms_norm"):
            h = keywords["layer"](x)
        elif operation == "linear":
            h = torch.cat([layer(h) for layer in keywords["layers"]], dim=2)
        elif operation == "rotate":
            h = turned(h, **keywords)
    return attention(h, **steps[-1][1])


def turned(
    h: Tensor, heads: int, rope: Any, groups: int | None = None, q_norm: Any = None, k_norm: Any = None,
    plus_one: bool = False, whole: bool = False, interleaved: bool = False, gate: bool = False,
) -> Tensor:  # fmt: skip
    """The step `rotate`, after which the gates are gone: they do not change the weights."""
    groups = groups or heads
    if gate:
        parts = h.unflatten(2, [2 * (heads + groups), -1])
        h = torch.cat([parts[:, :, 0 : 2 * heads : 2], parts[:, :, 2 * heads :]], dim=2).flatten(2)
    angles = rotations(h[:, :, 0], list(rope.frequencies), rope.amplitude, rope.growth, rope.original)
    q_weight, k_weight, eps = (None, None, 0.0) if q_norm is None else (q_norm.weight, k_norm.weight, q_norm.eps)
    return rotate(h, heads, groups, angles, interleaved, q_weight, k_weight, eps, plus_one, whole)


def attention(
    h: Tensor, heads: int, scale: float, groups: int | None = None, window: int | None = None,
    softcap: float | None = None, sinks: Tensor | None = None, bias: Any = None, both_ways: bool = False, **_: Any,
) -> Tensor:  # fmt: skip
    """The step `attend`, as far as the weights: (B, H, T, T) of q, k and v side by side in h (B, T, (H + 2G) * D)."""
    q, k, _v = heads_of(h.float(), heads, groups or heads)
    T = h.size(1)
    scores = q @ k.transpose(2, 3) * scale  # (B, H, T, T)
    if bias is not None:
        scores = scores + distance_bias(bias.weight.float(), h[:, :, 0], bias.far, both_ways)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if not both_ways:
        place = torch.arange(T, device=h.device)
        back = place.unsqueeze(1) - place  # how far each key lies before each query
        scores = scores.masked_fill((back < 0) | (back >= (window or T)), -torch.inf)
    if sinks is not None:
        more = sinks.float().view(1, heads, 1, 1).expand(h.size(0), heads, T, 1)
        scores = torch.cat((scores, more), dim=3)
    return scores.softmax(dim=3)[..., :T]
