"""Attention weights of each head.

`RecordedPast` records the weights while the model's `forward` runs, so that they include replaced
modules and hooks.
"""

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from minhub_py.analysis import plots
from minhub_py.analysis.tokens import Text, single_row, token_strings
from minhub_py.checkpoints.tokenizers.paired import source_tokenizer
from minhub_py.inference.arguments import model_of
from minhub_py.inference.eval_mode import in_eval_mode
from minhub_py.models.attention import Past
from minhub_py.models.attention import attention_weights as weights_of
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import KeyValues
from minhub_py.models.encoder import EncoderDecoder
from minhub_py.system import html
from minhub_py.system.tables import Columns, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class AttentionWeights(Result):
    """Attention weights of a text.

    Attributes:
        tokens: The string of each token.
        ids: The token IDs.
        layers: Numbers of the layers with attention, from 1.
        weights: Weights of shape (layers, heads, T, T), float32: [layer, head, query, key].
        layer_count: The number of layers of the model, including those without attention.
    """

    tokens: list[str | None]
    ids: list[int]
    layers: list[int]
    weights: Tensor = field(repr=False)
    layer_count: int = 0

    def table(self) -> Columns:
        """A row for each weight: layer and head (from 1), query and key (positions from 0) and
        weight.
        """
        numbers = np.indices(tuple(self.weights.shape)).reshape(4, -1)
        names = ("layer", "head", "query", "key")
        columns = Columns(
            zip(
                names,
                (np.array(self.layers)[numbers[0]], numbers[1] + 1, *numbers[2:]),
                strict=True,
            )
        )
        return Columns(columns | {"weight": self.weights.flatten().numpy()})

    def _repr_html_(self) -> str:
        layers, heads = self.weights.shape[:2]
        tokens = [
            str(id) if token is None else token
            for token, id in zip(self.tokens, self.ids, strict=True)
        ]
        return html.note(
            [f"Attention weights of {layers} layers with {heads} heads", f"{len(tokens):,} tokens"]
        ) + (html.text(" ".join(tokens[: html.MAX_ROWS])))

    def rollout(self) -> Tensor:
        """Attention rollout: how much of each token reaches each layer, if residual connections
        carry half of it.

        Abnar & Zuidema (2020), "Quantifying Attention Flow in Transformers". With the mean Ā of a
        layer's heads, A = Ā / 2 + I / 2, its rows scaled to a sum of 1, and the result of layer l
        is A_l … A_1.

        Returns:
            Weights (layers, T, T), float32: [layer, token, token of the text]. Rows sum to 1.

        Raises:
            ValueError: The model has layers without attention.
        """
        if (
            self.layers != list(range(1, len(self.layers) + 1))
            or len(self.layers) < self.layer_count
        ):
            raise ValueError(
                "rollout() needs attention in each layer, which this model does not have"
            )
        mixed = (self.weights.mean(dim=1) + torch.eye(len(self.ids))) / 2
        mixed = mixed / mixed.sum(dim=-1, keepdim=True)
        results = [mixed[0]]
        for layer in mixed[1:]:
            results.append(layer @ results[-1])
        return torch.stack(results)

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        layer: int | None = None,
        head: int | None = None,
    ) -> "Figure":
        """Draw heat maps of all heads, the heads of one layer, one head of every layer, or a single
        head.

        More than 144 heads are shown as the mean of each layer; `layer` and `head` select them.

        Args:
            path: Output file; its suffix selects the format.
            layer: Number of a layer, from 1.
            head: Number of a head, from 1.

        Returns:
            The matplotlib figure.

        Raises:
            ValueError: `layer` or `head` is out of range, or matplotlib is not installed.
        """
        tokens = plots.token_labels(self.tokens, self.ids)
        return plots.plot_attention(self.weights, self.layers, tokens, path, layer, head)


class RecordedPast(Past):
    """A forward call that records each layer's attention weights in `recorded`, float32 (B, H,
    T, S).
    """

    allows_blocks = False

    def __init__(self, idx: Tensor) -> None:
        super().__init__(idx)
        self.recorded: dict[int, Tensor] = {}

    def attention(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        causal: bool,
        scale: float,
        softcap: float | None,
        sinks: Tensor | None,
        dropout: float,
        upcast: bool,
    ) -> Tensor:
        """Record the weights, and return the attention."""
        self.recorded[layer] = weights_of(q.float(), k.float(), mask, causal, scale, softcap, sinks)
        return super().attention(
            layer, q, k, v, mask, causal, scale, softcap, sinks, dropout, upcast
        )


@torch.no_grad()
def attention_weights(
    model: LanguageModel, tokenizer: Tokenizer | None, text: Text
) -> AttentionWeights:
    """Compute the attention weights of each head of each layer, as transformers' `attentions`.

    The weights of a query sum to 1; in GPT-OSS they sum to less, because its sinks are not
    included. Layers without attention, as in Qwen 3.5, are omitted. An encoder-decoder returns the
    weights of its encoder.

    Args:
        model: A model of this package.
        tokenizer: The model's tokenizer; None if `text` is token IDs.
        text: A string or a list of token IDs.

    Returns:
        The weights, and the tokens and layers that they belong to.

    Raises:
        ValueError: The model has no attention; the text has no tokens or exceeds the context
            length; or as `embed`.
    """
    model = model_of(model, "attention_weights()")
    if not model.encoder_only and not any(
        isinstance(layer, KeyValues) for layer in model.cache_layout()
    ):
        raise ValueError(f"{model.config.TITLE} has no attention: use a transformer model")
    ids, tokens, idx = encode_text(model, tokenizer, text)
    past = RecordedPast(idx)
    running, context = in_eval_mode(model)
    with context():
        if isinstance(running, EncoderDecoder):
            running.encode(idx, past)
        else:
            running.body(idx, past)
    weights = past.recorded
    numbers = sorted(weights)
    if model.encoder_only or model.encoder_decoder:
        layers, count = [number + 1 for number in numbers], len(numbers)
    else:
        caches = model.caches()
        layers = [
            layer for layer, own in enumerate(caches, 1) for number in own if number in weights
        ]
        count = len(caches)
    stacked = torch.cat([weights[number] for number in numbers]).cpu()
    return AttentionWeights(tokens, ids, layers, stacked, count)


def encode_text(
    model: LanguageModel, tokenizer: Tokenizer | None, text: Text, *, prompt: bool = False
) -> tuple[list[int], list[str | None], Tensor]:
    """The token IDs of a text, their strings, and the IDs as a tensor (1, T) on the model's device.

    prompt: the model continues the text.

    ValueError: the text has no tokens or exceeds the context length.
    """
    ids = single_row(model, tokenizer, text, prompt=prompt)
    return (
        ids,
        token_strings(source_tokenizer(tokenizer), ids),
        torch.tensor([ids], device=next(model.parameters()).device),
    )
