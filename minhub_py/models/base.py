"""What every language model has beside its mathematics: a config, checks of ids, a cache, and words for its steps."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.inference.cache import Cache, Layout, Memory, Span


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


class ModelConfig(Protocol):
    """What the configs of all families share. A family's file has its own, a frozen dataclass (minhub_py/config.py)."""

    TITLE: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def vocab_size(self) -> int:
        """Ids are below it."""

    @property
    def context_length(self) -> int | None:
        """The most positions that the model can see at once; None: any number."""

    @property
    def tie_word_embeddings(self) -> bool:
        """Whether the head is the input embedding."""

    @property
    def eos_token_id(self) -> int | list[int] | None:
        """The ids that end a text."""

    def to_hub(self) -> dict[str, Any]:
        """The config.json of a model."""


class EncoderDecoderConfig(ModelConfig, Protocol):
    """What it has beside that, of an encoder-decoder."""

    @property
    def decoder_start_token_id(self) -> int:
        """The id that each text of the decoder begins with."""


class LanguageModel(nn.Module):
    """A decoder-only language model. A family's file says what `body`, `logits`, `cache_layout` and `steps` are.

    Notation: B batch rows, T positions read in this call, C channels, V vocabulary.
    """

    config: ModelConfig
    encoder_decoder = False
    # Content of generation_config.json, set by `from_pretrained`; chat/defaults.py reads the sampling settings.
    generation_config: Mapping[str, Any] = MappingProxyType({})

    @property
    def decoder_start(self) -> int | None:
        """The id that each text begins with, in an encoder-decoder."""
        return None

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


class EncoderDecoder(LanguageModel):
    """A language model of two parts: an encoder reads a source, and a decoder writes a text, attending to the source.

    A family's file says what `encode` and `encoder_steps` are, beside what it says of the decoder as in any other
    family: `body`, which finds the source by `span.source`, `logits`, `cache_layout` and `steps`.

    Notation: B batch rows, E ids of the source, T positions of the decoder read in this call, V vocabulary.
    """

    encoder_decoder = True
    config: EncoderDecoderConfig

    @property
    def decoder_start(self) -> int:
        """The id that each text begins with."""
        return self.config.decoder_start_token_id

    def encode(self, idx: Tensor) -> Memory:
        """The encoder: what each layer of cross attention attends to, from the source's ids (B, E), without padding."""
        raise NotImplementedError

    def encoder_steps(self) -> Iterator[Step]:
        """The same as `encode`, as data; see `steps`."""
        raise NotImplementedError

    def forward(self, idx: Tensor | None, decoder_idx: Tensor, cache: Cache | None = None) -> Tensor:  # type: ignore[override]
        """Logits (B, T, V) of the next id at each position of `decoder_idx` (B, T), given the sources `idx` (B, E).

        A text that the decoder writes begins with the config's decoder_start_token_id; `decoder_inputs` puts it there.
        With a cache the positions of `decoder_idx` follow those it holds, and it is updated in place. It keeps what the
        encoder has made of the sources, too: `idx` is None in the calls after the first.
        TypeError, ValueError: as in other models, for either of the two; no source.
        """
        memory = None
        if idx is not None:
            self.check(idx, None)
            memory = self.encode(idx)
            if cache is not None:
                cache.remember(memory)
        elif cache is None:
            raise ValueError(f"{self.config.TITLE}: without a cache, give the ids of the source too")
        return self.logits(self.hidden(decoder_idx, cache, memory))

    def hidden(self, idx: Tensor, cache: Cache | None = None, memory: Memory | None = None) -> Tensor:
        """The decoder's part of `forward`: (B, T, C), what the head makes logits of, from the decoder's ids."""
        self.check(idx, cache)
        span = Span(idx, cache, memory)
        x = self.body(idx, span)
        span.end()
        return x

    def decoder_inputs(self, targets: Tensor) -> Tensor:
        """The ids (B, T) at whose positions the logits are those of `targets` (B, T): one later, after the start."""
        starts = torch.full_like(targets[:, :1], self.decoder_start)
        return torch.cat((starts, targets[:, :-1]), dim=1)
