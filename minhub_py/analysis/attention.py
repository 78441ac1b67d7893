"""Attention weights of each head.

`Past.attend` records the weights while the model's own `forward` runs, so that they include replaced modules and hooks.
"""

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from minhub_py.analysis import plots
from minhub_py.analysis.tokens import Text, single_row, token_strings
from minhub_py.inference.arguments import model_of
from minhub_py.inference.eval_mode import in_eval_mode
from minhub_py.models.base import EncoderDecoder, LanguageModel
from minhub_py.models.cache import KeyValues, Past

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class AttentionWeights:
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

    def rollout(self) -> Tensor:
        """Attention rollout: how much of each token reaches each layer, if residual connections carry half of it.

        Abnar & Zuidema (2020), "Quantifying Attention Flow in Transformers". With the mean Ā of a layer's heads,
        A = Ā / 2 + I / 2, its rows scaled to a sum of 1, and the result of layer l is A_l … A_1.

        Returns:
            Weights (layers, T, T), float32: [layer, token, token of the text]. Rows sum to 1.

        Raises:
            ValueError: The model has layers without attention.
        """
        if self.layers != list(range(1, len(self.layers) + 1)) or len(self.layers) < self.layer_count:
            raise ValueError("rollout() needs attention in each layer, which this model does not have")
        mixed = (self.weights.mean(dim=1) + torch.eye(len(self.ids))) / 2
        mixed = mixed / mixed.sum(dim=-1, keepdim=True)
        results = [mixed[0]]
        for layer in mixed[1:]:
            results.append(layer @ results[-1])
        return torch.stack(results)

    def plot(
        self, path: str | os.PathLike[str] | None = None, *, layer: int | None = None, head: int | None = None
    ) -> "Figure":
        """Draw heat maps of all heads, the heads of one layer, one head of every layer, or a single head.

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


@torch.no_grad()
def attention_weights(model: Any, tokenizer: Any, text: Text) -> AttentionWeights:
    """Compute the attention weights of each head of each layer, as transformers' `attentions`.

    The weights of a query sum to 1; in GPT-OSS they sum to less, because its sinks are not included. Layers without
    attention, as in Qwen 3.5, are omitted. An encoder-decoder returns the weights of its encoder.

    Args:
        model: A model of this package.
        tokenizer: The model's tokenizer; None if `text` is token IDs.
        text: A string or a list of token IDs.

    Returns:
        The weights, and the tokens and layers that they belong to.

    Raises:
        ValueError: The model has no attention; the text has no tokens or exceeds the context length; or as `embed`.
    """
    model = model_of(model, "attention_weights()")
    if not model.encoder_only and not any(isinstance(layer, KeyValues) for layer in model.cache_layout()):
        raise ValueError(f"{model.config.TITLE} has no attention: use a transformer model")
    ids, tokens, idx = encode_text(model, tokenizer, text)
    weights: dict[int, Tensor] = {}
    past = Past(idx, recorded=weights)
    running, context = in_eval_mode(model)
    with context():
        if isinstance(running, EncoderDecoder):
            running.encode(idx, past)
        else:
            running.body(idx, past)
    layers = sorted(weights)
    return AttentionWeights(
        tokens, ids, [layer + 1 for layer in layers], torch.cat([weights[layer] for layer in layers]).cpu(),
        len(layers) if model.encoder_only or model.encoder_decoder else len(model.cache_layout()),
    )  # fmt: skip


def encode_text(
    model: LanguageModel, tokenizer: Any, text: Text, *, prompt: bool = False
) -> tuple[list[int], list[str | None], Tensor]:
    """The token IDs of a text, their strings, and the IDs as a tensor (1, T) on the model's device.

    prompt: the model continues the text.

    ValueError: the text has no tokens or exceeds the context length.
    """
    ids = single_row(model, tokenizer, text, prompt=prompt)
    return ids, token_strings(tokenizer, ids), torch.tensor([ids], device=next(model.parameters()).device)
