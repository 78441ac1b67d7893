"""What every language model has beside its mathematics: checks of its ids, a cache, and words for its steps."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.inference.cache import Cache, Layout, Span


def tanh_gelu(x: Tensor) -> Tensor:
    """The approximation that Hendrycks & Gimpel (2016) give."""
    return F.gelu(x, approximate="tanh")


# The activations of config.json by the Hub's names.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": tanh_gelu,
    "gelu_pytorch_tanh": tanh_gelu,
    "gelu_fast": tanh_gelu,
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
    "tanh": torch.tanh,
}

Step = tuple[str, dict[str, Any]]


def step(operation: str, /, **keywords: Any) -> Step:
    """One operation of `LanguageModel.steps`."""
    return operation, keywords


class LanguageModel(nn.Module):
    """A decoder-only language model. A family's file says what `body`, `logits`, `cache_layout` and `steps` are.

    Notation: B batch rows, T positions read in this call, C channels, V vocabulary.
    """

    config: Any

    def body(self, idx: Tensor, span: Span) -> Tensor:
        """What the head makes logits of, (B, T, C), from ids (B, T); `span` knows their positions and the cache."""
        raise NotImplementedError

    def logits(self, x: Tensor) -> Tensor:
        """The head: (B, T, V) from (B, T, C)."""
        raise NotImplementedError

    def cache_layout(self) -> Layout:
        """What each layer keeps of the ids that were read."""
        raise NotImplementedError

    def steps(self) -> Iterator[Step]:
        """The same as `forward`, as data: operations of the vocabulary in inference/compiled.py.

        The compiled reader, `quantize` and `save_torchscript` are made from it.
        """
        raise NotImplementedError

    def forward(self, idx: Tensor, cache: Cache | None = None) -> Tensor:
        """Logits (B, T, V) of the next id at each position of `idx` (B, T), int64.

        With a cache the positions follow those it holds, and it is updated in place.
        TypeError: `idx` is no tensor of whole numbers.
        ValueError: an id outside the vocabulary, or more positions than the model or the cache has.
        """
        return self.logits(self.hidden(idx, cache))

    def hidden(self, idx: Tensor, cache: Cache | None = None) -> Tensor:
        """The first part of `forward`: (B, T, C), what the head makes logits of."""
        self.check(idx, cache)
        span = Span(idx, cache)
        x = self.body(idx, span)
        span.end()
        return x

    def new_cache(self, batch_size: int, max_length: int, lookahead: int = 0) -> Cache:
        """A cache for `batch_size` rows of at most `max_length` positions, in the model's dtype and device.

        lookahead: positions that layers with a window keep beyond it, for readers that take ids back.
        """
        return Cache(self.cache_layout(), batch_size, max_length, lookahead, like=next(self.parameters()))

    def check(self, idx: Any, cache: Cache | None) -> None:
        """TypeError, ValueError: see `forward`."""
        title, limit = self.config.TITLE, self.config.context_length
        if not isinstance(idx, Tensor) or idx.dtype not in (torch.int64, torch.int32):
            kind = idx.dtype if isinstance(idx, Tensor) else type(idx).__name__
            raise TypeError(f"{title}: idx must be a LongTensor (B, T), as torch.tensor([ids]) gives it, not {kind}")
        if idx.dim() != 2 or not idx.numel():
            raise ValueError(f"{title}: idx must be (B, T) with at least one id, not {tuple(idx.shape)}")
        longest = idx.size(1) + (0 if cache is None else max(cache.lengths))
        if limit is not None and longest > limit:
            name = next(name for name in ("n_positions", "max_position_embeddings") if hasattr(self.config, name))
            raise ValueError(f"{title}: {longest} positions; this model has {limit} ({name})")
        if cache is not None and (idx.size(0) != len(cache.lengths) or (cache.bounded and longest > cache.max_length)):
            room = f" rows of {cache.max_length}" if cache.bounded else " rows"
            raise ValueError(
                f"{title}: {idx.size(0)} rows of {longest} positions do not fit a cache of {len(cache.lengths)}{room}"
            )
        # On a GPU the check would wait for the device; there CUDA's own assertion catches a bad id.
        if idx.device.type == "cpu" and not torch.compiler.is_compiling():
            low, high = torch.aminmax(idx)
            if low < 0 or high >= self.config.vocab_size:
                raise ValueError(f"{title}: ids must be 0 to {self.config.vocab_size - 1}, not {low} to {high}")
