"""Several texts in one row, without padding."""

from collections.abc import Sequence

import torch
from torch import Tensor

from minhub_py.models.attention import KeysAndValues, Past


class PackedPast(Past):
    """A forward call of texts that follow each other in `idx` (1, T), without a cache.

    Each text has its own positions and attends to itself only.

    lengths: the number of tokens of each text.
    """

    def __init__(self, idx: Tensor, lengths: Sequence[int]) -> None:
        super().__init__(idx)
        self.texts = [Past(text) for text in idx.split(list(lengths), dim=1)]
        self.positions = torch.cat([text.positions for text in self.texts], dim=1)
        self.size = self.end = max(lengths)

    def attend_to(
        self,
        layer: int,
        q: Tensor,
        keys_values: KeysAndValues,
        *,
        bias: Tensor | None = None,
        **settings: object,
    ) -> Tensor:
        """`Past.attend_to` within each text. ValueError: a bias, which belongs to the positions of
        one text.
        """
        if bias is not None:
            raise ValueError("packed texts cannot have a bias of attention")
        lengths = [text.length for text in self.texts]
        k, v, _ = keys_values
        parts = zip(
            self.texts, *(tensor.split(lengths, dim=2) for tensor in (q, k, v)), strict=True
        )
        results = [
            text.attend_to(layer, q, (k, v, text.positions), **settings) for text, q, k, v in parts
        ]
        return torch.cat(results, dim=2)
