"""A head for multi-token prediction: one more layer, which predicts the token after the next one.

Sources
    Gloeckle et al. (2024), "Better & Faster Large Language Models via Multi-token Prediction";
        DeepSeek-AI (2024), "DeepSeek-V3 Technical Report", for the sequential form.

At position p the model predicts token p + 1 from its hidden state h_p, the input of its output
head. Given that token, this head predicts token p + 2 with the embedding and the output head of the
model:

    x = W [norm(embedding of token p + 1), norm(h_p)]        h' = norm(layer(x))        logits = output head(h')

The layer has its own keys and values. For token p + 3, h' and token p + 2 take the place of h_p and
token p + 1. Speculative decoding (inference/speculative.py) uses these predictions as draft tokens.

Notation: B batch rows, T positions, C channels.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from minhub_py.models.attention import Past
from minhub_py.models.layers import BlockList, EmbeddingLayer, RMSNorm
from minhub_py.models.rotary import Rope, Rotation
from minhub_py.models.steps import (
    Linear,
    Norm,
    PredictionInputs,
    PredictionStep,
    StoreResidual,
)


class MultiTokenPrediction(nn.Module):
    """The head without the embedding and the output head. layer: a layer of the architecture, with
    `steps`.
    """

    def __init__(self, size: int, eps: float, offset: float, layer: nn.Module) -> None:
        super().__init__()
        self.pre_fc_norm_embedding = RMSNorm(size, eps, offset=offset)
        self.pre_fc_norm_hidden = RMSNorm(size, eps, offset=offset)
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.layers = BlockList([layer])
        self.norm = RMSNorm(size, eps, offset=offset)

    def forward(self, embedded: Tensor, hidden: Tensor, past: Past, rotation: Rotation) -> Tensor:
        """h' (B, T, C), from the embeddings of the next tokens and the hidden states, (B, T, C)
        each.
        """
        x = self.fc(
            torch.cat(
                (self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)), dim=2
            )
        )
        for layer in self.layers:
            x = layer(x, past, rotation)
        return self.norm(x)

    def steps(
        self, tokens: EmbeddingLayer, rope: Rope, activation: str
    ) -> Iterator[PredictionStep]:
        """The computation of `forward` as data. tokens: the embedding."""
        yield PredictionInputs(tokens, self.pre_fc_norm_embedding, self.pre_fc_norm_hidden)
        yield Linear([self.fc])
        yield StoreResidual()
        for layer in self.layers:
            yield from layer.steps(rope, activation)  # type: ignore[operator]
        yield Norm(self.norm)
