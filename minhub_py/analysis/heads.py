"""Scores of attention heads on repeated random tokens.

Source: Olsson et al. (2022), "In-context Learning and Induction Heads".
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from minhub_py.analysis.attention import attention_weights
from minhub_py.inference.arguments import check_integer, decoder_of
from minhub_py.models.base import LanguageModel
from minhub_py.system.tables import Columns, Result

SCORES = ("induction", "previous_token", "duplicate_token")


@dataclass(frozen=True)
class HeadScores(Result):
    """Scores from 0 to 1 of each head, float32 (layers, heads).

    Attributes:
        layers: Numbers of the layers with attention, from 1.
        induction: Mean weight from a token of the repetition to the token after its first
            occurrence.
        previous_token: Mean weight from a token to the token before it.
        duplicate_token: Mean weight from a token of the repetition to its first occurrence.
    """

    layers: list[int]
    induction: Tensor
    previous_token: Tensor
    duplicate_token: Tensor

    def table(self) -> Columns:
        """A row for each head: layer and head (from 1), induction, previous_token and
        duplicate_token.
        """
        count = self.induction.size(1)
        scores = {name: getattr(self, name).flatten().numpy() for name in SCORES}
        heads = np.tile(np.arange(1, count + 1), len(self.layers))
        return Columns({"layer": np.repeat(self.layers, count), "head": heads, **scores})

    def heading(self) -> list[str]:
        """The numbers of layers and heads."""
        return [f"Scores of {len(self.layers)} layers with {self.induction.size(1)} heads"]


def head_scores(
    model: LanguageModel, *, length: int = 50, samples: int = 4, seed: int = 0
) -> HeadScores:
    """Score each head on sequences of `length` random tokens that are repeated once.

    With L = `length`, the induction score is the mean attention weight from position i to i - L + 1
    over the positions of the repetition, the duplicate-token score that to i - L, and the
    previous-token score the mean weight from i to i - 1 over all positions except the first. The
    model's bos_token_id, if any, precedes the sequence.

    Args:
        model: A decoder-only transformer of this package, or the result of `intervene`.
        length: The number of random tokens, at least 2. The sequence has twice as many.
        samples: The number of sequences.
        seed: The seed of the tokens.

    Returns:
        Each head's scores.

    Raises:
        ValueError: An encoder, an encoder-decoder or a model without attention; a sequence that
            exceeds the context length.
    """
    model = decoder_of(model, "head_scores()")
    if model.encoder_decoder:
        raise ValueError(
            f"head_scores() needs a decoder-only model, not {model.config.TITLE}: use"
            " attention_weights()"
        )
    length, samples = check_integer("length", length, 2), check_integer("samples", samples, 1)
    limit = model.config.context_length
    bos = getattr(model.config, "bos_token_id", None)
    start = [bos] if isinstance(bos, int) and 0 <= bos < model.config.vocab_size else []
    if limit is not None and 2 * length + len(start) > limit:
        raise ValueError(
            f"length must be at most {(limit - len(start)) // 2} for a context length of {limit:,}"
        )
    generator = torch.Generator().manual_seed(seed)
    totals: list[Tensor] = []
    layers: list[int] = []
    for _ in range(samples):
        ids = torch.randint(model.config.vocab_size, (length,), generator=generator).tolist()
        result = attention_weights(model, None, start + ids + ids)
        layers = result.layers
        second = torch.arange(len(start) + length, len(start) + 2 * length)
        later = torch.arange(1, len(start) + 2 * length)
        pairs = ((second, second - length + 1), (later, later - 1), (second, second - length))
        totals.append(
            torch.stack(
                [result.weights[:, :, queries, keys].mean(dim=-1) for queries, keys in pairs]
            )
        )
    return HeadScores(layers, *torch.stack(totals).mean(dim=0))
