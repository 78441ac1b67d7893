"""Logit lens: the predictions of each layer (nostalgebraist, 2020, "interpreting GPT: the logit
lens").

The steps after the last layer, the final norm and the head, are applied to the hidden states of
every layer.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from minhub_py.analysis import plots
from minhub_py.analysis.attention import encode_text
from minhub_py.analysis.hidden_states import LayerStates, steps_after_layers
from minhub_py.analysis.tokens import Text, token_strings
from minhub_py.inference.arguments import check_integer, decoder_of
from minhub_py.models.base import LanguageModel
from minhub_py.models.steps import Linear, Norm, Step
from minhub_py.system.tables import Columns, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Positions whose logits are in memory at once.
POSITIONS = 128


@dataclass(frozen=True)
class LayerPredictions(Result):
    """Predictions of each layer at each token of a text.

    Attributes:
        tokens: The string of each token.
        ids: The token IDs.
        layers: Numbers of the hidden states: 0 for the embeddings, the last for the model's own
            predictions.
        predicted: IDs of the most likely tokens in descending order, int64 (layers, T, n).
        probs: Their probabilities, float32 (layers, T, n).
        names: The string of each predicted token ID.
    """

    tokens: list[str | None]
    ids: list[int]
    layers: list[int]
    predicted: Tensor = field(repr=False)
    probs: Tensor = field(repr=False)
    names: dict[int, str | None] = field(repr=False)

    def table(self) -> Columns:
        """A row for each prediction: layer, position (from 0), token, rank (from 1), predicted and
        prob.
        """
        layer, position, rank = np.indices(tuple(self.predicted.shape)).reshape(3, -1)
        ids = self.predicted.flatten().tolist()
        return Columns(
            {
                "layer": np.array(self.layers)[layer],
                "position": position,
                "token": [self.tokens[number] for number in position],
                "rank": rank + 1,
                "predicted": [self.names[id] for id in ids],
                "prob": self.probs.flatten().numpy(),
            }
        )

    def heading(self) -> list[str]:
        """The numbers of layers and tokens."""
        return [f"Predictions of {len(self.layers)} layers", f"{len(self.ids):,} tokens"]

    def plot(
        self, path: str | os.PathLike[str] | None = None, *, start: int = 0, most: int = 14
    ) -> "Figure":
        """Draw the most likely token of each layer (rows) at each token of the text (columns).

        Args:
            path: Output file; its suffix selects the format.
            start: Index of the first token, from 0.
            most: Maximum number of tokens.

        Returns:
            The matplotlib figure.

        Raises:
            ValueError: `start` exceeds the text, or matplotlib is not installed.
        """
        names = {id: plots.token_label(name, id) for id, name in self.names.items()}
        tokens = plots.token_labels(self.tokens, self.ids)
        best = self.probs[:, :, 0], self.predicted[:, :, 0]
        return plots.plot_logit_lens(*best, self.layers, self.ids, names, tokens, path, start, most)


@torch.no_grad()
def logit_lens(
    model: LanguageModel,
    tokenizer: Tokenizer,
    text: Text,
    n: int = 5,
    *,
    lens: Callable[[int, Tensor], Tensor] | None = None,
) -> LayerPredictions:
    """Compute each layer's predictions of the next token: its hidden states, after the final norm
    and the head.

    Args:
        model: A model of this package.
        tokenizer: The model's tokenizer; None if `text` is token IDs.
        text: A string or a list of token IDs.
        n: Number of most likely tokens.
        lens: A `TunedLens` of the model, which maps the hidden states first.

    Returns:
        The most likely tokens of each layer after each token of the text, and their probabilities.

    Raises:
        ValueError: The model is an encoder-decoder; the text has no tokens or exceeds the context
            length; or as `embed`.
    """
    model = decoder_of(model, "logit_lens()")
    if model.encoder_decoder:
        raise ValueError(
            f"{model.config.TITLE}: the layers of an encoder predict no next token. embed(), in R"
            " text_embeddings(), returns their states"
        )
    n = min(check_integer("n", n, 1), model.config.vocab_size)
    states = LayerStates(model, "logit_lens()")
    ids, tokens, idx = encode_text(model, tokenizer, text, prompt=True)
    hidden = states.compute(idx, range(states.count + 1))
    # The embeddings of an LSTM can differ in size from the input of its head.
    layers = [
        layer
        for layer in hidden
        if layer > 0 or not states.recurrent or hidden[0].shape == hidden[1].shape
    ]
    mapped = {
        layer: hidden[layer][0] if lens is None else lens(layer, hidden[layer][0])
        for layer in layers
    }
    best = [most_likely(states, layer, mapped[layer], n) for layer in layers]
    predicted, probs = (torch.stack(tensors).cpu() for tensors in zip(*best, strict=True))
    unique = predicted.unique().tolist()
    names = dict(zip(unique, token_strings(tokenizer, unique), strict=True))
    return LayerPredictions(tokens, ids, layers, predicted, probs, names)


def most_likely(states: LayerStates, layer: int, x: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """IDs and probabilities (T, n) of the most likely tokens for a layer's hidden states (T, C)."""
    best, tail = [], steps_after_layers(states.model.steps())
    for chunk in x.split(POSITIONS):
        logits = states.model.logits(chunk if layer == states.count else final(tail, chunk))
        best.append(logits.float().softmax(dim=-1).topk(n, dim=-1))
    return torch.cat([chunk.indices for chunk in best]), torch.cat([chunk.values for chunk in best])


def final(steps: Sequence[Step], x: Tensor) -> Tensor:
    """The input of the head, for the output of the last layer: most architectures have a norm
    between them.
    """
    h = x
    for step in steps:
        if isinstance(step, Norm):
            h = step.layer(x)
        elif isinstance(step, Linear):
            h = torch.cat([layer(h) for layer in step.layers], dim=-1)
    return h
