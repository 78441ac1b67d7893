"""The runner that calls the model's `forward`: on any device, and for modified models too."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from minhub_py.inference.eval_mode import has_hooks, in_eval_mode
from minhub_py.inference.unmodified import is_of_this_package
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import Cache, EncoderCache
from minhub_py.models.encoder import EncoderDecoder

Result = TypeVar("Result")

# Positions per call of `forward`; bounds its memory.
CHUNK = 256


class Runner(Protocol):
    """Runs a model on sequences with a KV cache: by its `forward` (PyTorch) or by its `steps` (C)."""

    # whether several tokens per call are bitwise identical to one token per call
    supports_drafts: bool
    # of the results with `exact`; None if they depend on the number of tokens per call
    kernels: str | None
    channels: int  # C of `hidden`; 0 if `supports_drafts` is False

    def new_cache(self, rows: int, size: int, drafts: int = 0) -> Cache:
        """A cache for `forward` with `rows` rows of at most `size` positions.

        drafts: maximum number of draft tokens per step. Limited by memory for recurrent layers: see
        `Cache.removable`.
        """

    def encode(self, ids: Sequence[int], cache: Cache, row: int) -> None:
        """Run the encoder of an encoder-decoder and fill a row's encoder cache, before its
        first `forward`.
        """

    def forward(
        self,
        texts: Mapping[int, Sequence[int]],
        cache: Cache,
        every: bool = False,
        exact: bool = False,
        hidden: Tensor | None = None,
    ) -> Tensor:
        """Append tokens to rows of a cache and return logits, valid until the next call.

        texts: {row: token IDs}, at least one token per row, in ascending order of the rows.
        every: return the logits of every token (tokens, V) instead of each row's last token (rows,
        V).
        exact: if `supports_drafts`, return the logits of token-by-token decoding even where that is
        slower.
        hidden: of an unmodified model, receives the input of the head for every token, (tokens, C)
        float32.
        ValueError: the cache has too few positions.
        """


class TorchRunner:
    """Runs the model's `forward`: each sequence separately, in chunks, or one token of all rows
    together.
    """

    supports_drafts = False
    kernels: str | None = None
    channels = 0

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self._mode: bool | None = None  # `model.training` at the time of `_in_eval_mode`

    def new_cache(self, rows: int, size: int, drafts: int = 0) -> Cache:
        """See `Runner`. Without drafts."""
        return self.model.new_cache(rows, size)

    def encode(self, ids: Sequence[int], cache: Cache, row: int) -> None:
        """See `Runner`. Prompts are encoded one at a time, so that other prompts do not change the
        result.
        """
        idx = self._tensor([ids])
        with cache.row(row) as one_row:
            one_row.set_encoder(self._call_in_eval_mode(lambda model: encoded(model, idx)))

    def forward(
        self,
        texts: Mapping[int, Sequence[int]],
        cache: Cache,
        every: bool = False,
        exact: bool = False,
        hidden: Tensor | None = None,
    ) -> Tensor:
        """See `Runner`."""
        if all(len(ids) == 1 for ids in texts.values()) and list(texts) == list(
            range(len(cache.lengths))
        ):
            return self._logits(list(texts.values()), cache, hidden=hidden)[:, -1]
        parts, first = [], 0
        for row, ids in texts.items():
            with cache.row(row) as one_row:
                chunks = []
                for start in range(0, len(ids), CHUNK):
                    chunk = ids[start : start + CHUNK]
                    states = None if hidden is None else hidden[first : first + len(chunk)]
                    chunks.append(self._logits([chunk], one_row, every, states)[0])
                    first += len(chunk)
            parts += chunks if every else chunks[-1:]
        return torch.cat(parts)

    def _logits(
        self,
        rows: Sequence[Sequence[int]],
        cache: Cache,
        every: bool = False,
        hidden: Tensor | None = None,
    ) -> Tensor:
        """Logits (B, T, V) with `every`, else of the last position (B, 1, V). hidden: see `Runner`."""
        idx = self._tensor(rows)
        if hidden is not None:
            x = self._call_in_eval_mode(lambda model: model.hidden(idx, cache))
            hidden.copy_(x.flatten(0, 1))
            return self._call_in_eval_mode(lambda model: model.logits(x if every else x[:, -1:]))
        return self._call_in_eval_mode(
            lambda model: all_logits(model, idx, cache) if every else last_logits(model, idx, cache)
        )

    def _tensor(self, rows: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(
            [list(ids) for ids in rows], device=next(self.model.parameters()).device
        )

    def _call_in_eval_mode(self, function: Callable[[LanguageModel], Result]) -> Result:
        """Call a function of the model in eval mode. `model.training` may change between calls."""
        if self._mode != self.model.training:
            self._mode, self._in_eval_mode = self.model.training, in_eval_mode(self.model)
        model, context = self._in_eval_mode
        with context():
            return function(model)


def encoded(model: LanguageModel, idx: Tensor) -> EncoderCache:
    """The encoder's output for a prompt."""
    assert isinstance(model, EncoderDecoder)
    return model.encode(idx)


def all_logits(model: LanguageModel, idx: Tensor, cache: Cache) -> Tensor:
    """The logits of `forward` (B, T, V) for tokens that follow the cache."""
    logits: Tensor = model(None, idx, cache) if model.encoder_decoder else model(idx, cache)
    return logits


def last_logits(model: LanguageModel, idx: Tensor, cache: Cache) -> Tensor:
    """The last position's logits (B, 1, V). The large tensor of all logits is avoided if `forward`
    is unmodified.
    """
    if not is_of_this_package(model) or has_hooks(model):
        return all_logits(model, idx, cache)[:, -1:]
    return model.logits(model.hidden(idx, cache)[:, -1:])
