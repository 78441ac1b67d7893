"""Base classes of language models, and checks of their inputs."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models.cache import Cache, EncoderCache, Layout, Past
from minhub_py.models.experts import ExpertMatrices
from minhub_py.models.heads import LastTokenHead
from minhub_py.models.steps import HiddenStates, Logits, PredictionStep, Step


def tanh_gelu(x: Tensor) -> Tensor:
    """The tanh approximation of GELU, Hendrycks & Gimpel (2016)."""
    return F.gelu(x, approximate="tanh")


# Activations by their names in config.json.
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


class ModelConfig(Protocol):
    """The common attributes of all configs. A model file defines its own frozen dataclass (minhub_py/config.py)."""

    TITLE: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def vocab_size(self) -> int:
        """Number of token IDs."""

    @property
    def context_length(self) -> int | None:
        """Maximum number of positions; None for no maximum."""

    @property
    def tie_word_embeddings(self) -> bool:
        """Whether the head shares the weight of the input embedding."""

    @property
    def eos_token_id(self) -> int | list[int] | None:
        """Token IDs that end a sequence."""

    def to_hub(self) -> dict[str, Any]:
        """The config.json of a model."""


class EncoderConfig(ModelConfig, Protocol):
    """The additional attributes of an encoder."""

    @property
    def architectures(self) -> list[str] | None:
        """The classes of the transformers model."""

    @property
    def head(self) -> str | None:
        """The head of the checkpoint: "masked_lm", "sequence", "tokens" or None."""

    @property
    def labels(self) -> list[str]:
        """The labels of a classification head."""


class EncoderDecoderConfig(ModelConfig, Protocol):
    """The additional attributes of an encoder-decoder."""

    @property
    def decoder_start_token_id(self) -> int:
        """The first token ID of each decoder sequence."""


class LanguageModel(nn.Module):
    """A decoder-only language model. A model file defines `body`, `logits`, `cache_layout` and `steps`.

    Notation: B batch rows, T new positions, C channels, V vocabulary.
    """

    config: ModelConfig
    encoder_decoder = False
    encoder_only = False
    without_head = False  # an embedding model, whose checkpoint has no output head
    # Content of generation_config.json, set by `from_pretrained`; chat/defaults.py reads the sampling settings.
    generation_config: Mapping[str, Any] = MappingProxyType({})
    # Settings of text embeddings, set by `from_pretrained` (checkpoints/sentence_transformers.py); None: the default.
    embedding_settings: Any = None
    # Models with an adapter that share this model's weights, by name.
    adapters: Mapping[str, "LanguageModel"] = MappingProxyType({})
    # Of a model with an adapter: the adapter (adapters/files.py), and the tokens that activate it (models/lora.py).
    attached: Any = None
    invocation: Any = None
    _base: "tuple[LanguageModel, ...]" = ()  # a tuple, so that the base is not a submodule

    @property
    def base(self) -> "LanguageModel | None":
        """The model without its adapter; None for a model without an adapter."""
        return self._base[0] if self._base else None

    def adapter(self, name: str | None) -> "LanguageModel":
        """The model with the adapter `name`, or with None the model without an adapter. Weights are shared.

        Raises:
            KeyError: There is no adapter with this name.
        """
        base = self.base or self
        if name is None:
            return base
        if name not in base.adapters:
            raise KeyError(f"there is no adapter {name!r}: available are {', '.join(base.adapters) or 'none'}")
        return base.adapters[name]

    @property
    def decoder_start(self) -> int | None:
        """The first token ID of each decoder sequence, for an encoder-decoder."""
        return None

    def body(self, idx: Tensor, past: Past) -> Tensor:
        """The input (B, T, C) of the head, for token IDs (B, T). `past`: their positions and the cache."""
        raise NotImplementedError

    def logits(self, x: Tensor) -> Tensor:
        """The head: (B, T, V) from (B, T, C)."""
        raise NotImplementedError

    def cache_layout(self) -> Layout:
        """The cache of each layer."""
        raise NotImplementedError

    def steps(self) -> Iterator[Step]:
        """The computation of `forward` as data (models/steps.py).

        The native runner, quantization, TorchScript, tensor parallelism and analysis use it.
        """
        raise NotImplementedError

    def mtp_layout(self) -> Layout:
        """The cache of a head for multi-token prediction (mtp.py), for models with such a head."""
        raise NotImplementedError

    def mtp_steps(self) -> Iterator[PredictionStep]:
        """The computation of a head for multi-token prediction as data."""
        raise NotImplementedError

    def forward(self, idx: Tensor, cache: Cache | None = None) -> Tensor:
        """Compute the logits of the next token at each position.

        Args:
            idx: Token IDs (B, T), int64 or int32.
            cache: Cached positions that the new positions follow, from `new_cache`; updated in place.

        Returns:
            Logits (B, T, V) in the dtype of the model.

        Raises:
            TypeError: `idx` is not an integer tensor.
            ValueError: A token ID is outside the vocabulary, or the positions do not fit the model or the cache.
        """
        return self.logits(self.hidden(idx, cache))

    def hidden(self, idx: Tensor, cache: Cache | None = None) -> Tensor:
        """The first part of `forward`: the input (B, T, C) of the head."""
        self.check(idx, cache)
        past = Past(idx, cache)
        x = self.body(idx, past)
        past.finish()
        return x

    def init_weights(self, std: float) -> None:
        """Draw the weights of linear layers, embeddings and experts from N(0, std²), and set biases to zero."""
        for module in self.modules():
            if isinstance(module, ExpertMatrices):
                for weight in module.parameters():
                    nn.init.normal_(weight, std=std)
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def new_cache(self, batch_size: int, max_length: int, lookahead: int = 0, drafts: int = 0) -> Cache:
        """Allocate a cache with the model's dtype and device.

        Args:
            batch_size: Number of rows.
            max_length: Maximum number of positions per row.
            lookahead: Additional positions of layers with a window, for runners that reject draft tokens.
            drafts: Additional states of recurrent layers, the maximum number of draft tokens to reject.
        """
        return Cache(self.cache_layout(), batch_size, max_length, lookahead, next(self.parameters()), drafts)

    def generate(self, *_: Any, **__: Any) -> NoReturn:
        """TypeError: functions generate text for all models; the message names them."""
        raise TypeError(
            "a model has no method generate(): call complete(model, tokenizer, text), or generate(model, [token_ids]), "
            "from minhub_py"
        )

    def check(self, idx: Any, cache: Cache | None) -> None:
        """TypeError, ValueError: see `forward`."""
        title, limit = self.config.TITLE, self.config.context_length
        if cache is not None and not isinstance(cache, Cache):
            raise TypeError(
                f"{title}: the second argument is a cache from model.new_cache(), not {type(cache).__name__}; for a "
                "loss, compare the logits with targets: F.cross_entropy(model(x).flatten(0, 1), y.flatten())"
            )
        if not isinstance(idx, Tensor) or idx.dtype not in (torch.int64, torch.int32):
            kind = idx.dtype if isinstance(idx, Tensor) else type(idx).__name__
            raise TypeError(f"{title}: idx must be a LongTensor (B, T), such as torch.tensor([token_ids]), not {kind}")
        if idx.dim() != 2 or not idx.numel():
            raise ValueError(f"{title}: idx must be (B, T) with at least one token ID, not {tuple(idx.shape)}")
        longest = idx.size(1) + (0 if cache is None else max(cache.lengths))
        if limit is not None and longest > limit:
            name = next(name for name in ("n_positions", "max_position_embeddings") if hasattr(self.config, name))
            raise ValueError(f"{title}: {longest} positions; this model has {limit} ({name})")
        if cache is not None and (idx.size(0) != len(cache.lengths) or (cache.bounded and longest > cache.max_length)):
            room = f" rows of {cache.max_length}" if cache.bounded else " rows"
            raise ValueError(
                f"{title}: {idx.size(0)} rows of {longest} positions do not fit a cache of {len(cache.lengths)}{room}"
            )
        # On a GPU the check would synchronize with the device; CUDA's own assertion catches a bad token ID there.
        if idx.device.type == "cpu" and not torch.compiler.is_compiling():
            low, high = torch.aminmax(idx)
            if low < 0 or high >= self.config.vocab_size:
                raise ValueError(f"{title}: token IDs must be 0 to {self.config.vocab_size - 1}, not {low} to {high}")


class Encoder(LanguageModel):
    """A text encoder with bidirectional attention. Its head is a module `head` (models/heads.py), or None.

    A model file defines `body`, `steps`, and `token_embedding`, the embedding that a masked-LM head shares.

    Notation: B batch rows, T positions, C channels, V vocabulary.
    """

    encoder_only = True
    config: EncoderConfig
    head: nn.Module | None

    def forward(  # type: ignore[override]
        self, idx: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """The result of the head for token IDs `idx` (B, T), int64; without a head the hidden states (B, T, C).

        A masked-LM head returns logits (B, T, V); a sequence classification head (B, labels); a token classification
        head (B, T, labels).

        attention_mask: (B, T), 1 or True for tokens and 0 or False for padding; default: no padding. Results at padding
        tokens are meaningless.
        token_type_ids: (B, T), the segment of each token in a pair of texts; default: 0. Models without token types
        ignore it.
        TypeError, ValueError: as for other models, or a mask or token types that do not fit.
        """
        x = self.hidden_states(idx, attention_mask, token_type_ids)
        return x if self.head is None else self.head_of(x, attention_mask)

    def hidden_states(
        self, idx: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """The hidden states (B, T, C) of the last layer. See `forward` for the arguments."""
        self.check(idx, None)
        for name, tensor in (("attention_mask", attention_mask), ("token_type_ids", token_type_ids)):
            if tensor is not None and tensor.shape != idx.shape:
                raise ValueError(f"{self.config.TITLE}: {name} must be {tuple(idx.shape)}, not {tuple(tensor.shape)}")
        past = Past(idx, attended_tokens=None if attention_mask is None else attention_mask.bool())
        return self.body(idx, past, token_type_ids)

    def hidden(self, idx: Tensor, cache: Cache | None = None) -> Tensor:
        """`hidden_states` without padding and token types."""
        return self.hidden_states(idx)

    def body(self, idx: Tensor, past: Past, token_types: Tensor | None = None) -> Tensor:
        """The hidden states (B, T, C) of token IDs and token types (B, T)."""
        raise NotImplementedError

    def head_of(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """The result of the head for hidden states (B, T, C)."""
        assert self.head is not None
        return self.head(x, self.token_embedding, attention_mask)

    @property
    def token_embedding(self) -> nn.Module:
        """The embedding of tokens."""
        raise NotImplementedError

    @property
    def size(self) -> int:
        """C, the number of channels of a hidden state."""
        return int(getattr(self.config, "hidden_size"))  # noqa: B009  # every encoder has it

    def cache_layout(self) -> Layout:
        """Empty: an encoder computes all positions at once."""
        return []


class Classifier(Encoder):
    """A decoder with a sequence classification head: the labels of a text, from the hidden state of its last token.

    `classifier_of` combines it with a decoder. Attention remains causal.
    Padding tokens at the end of a text are ignored, also without a mask.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        setattr(self, "lm_head" if hasattr(self, "lm_head") else "embed_out", None)
        self.head = LastTokenHead(self.size, len(config.labels))
        nn.init.normal_(self.head.out.weight, std=getattr(config, "initializer_range", 0.02))

    @property
    def size(self) -> int:
        """The number of channels that the head reads. Configs name it differently."""
        config = self.config
        return int(
            next(getattr(config, name) for name in ("embedding_size", "n_embd", "hidden_size") if hasattr(config, name))
        )

    @property
    def pad(self) -> int | None:
        """The token ID of padding."""
        return getattr(self.config, "pad_token_id", None)

    @property
    def token_embedding(self) -> nn.Module:
        """The embedding of tokens, which the head does not use."""
        names = ("embed_tokens", "embed_in", "wte")
        return next(module for name in names if isinstance(module := getattr(self, name, None), nn.Module))

    def forward(  # type: ignore[override]
        self, idx: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Scores (B, labels). See `Encoder.forward`; a text has no token types."""
        return self.head_of(self.hidden_states(idx, attention_mask), self.tokens(idx, attention_mask))

    def tokens(self, idx: Tensor, attention_mask: Tensor | None) -> Tensor:
        """The mask (B, T) of tokens without padding."""
        mask = torch.ones_like(idx) if attention_mask is None else attention_mask
        return mask.bool() & (idx != self.pad) if self.pad is not None else mask.bool()

    def hidden_states(
        self, idx: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """See `Encoder.hidden_states`. ValueError: padding that is not at the end."""
        if attention_mask is not None and attention_mask.shape == idx.shape and idx.size(1) > 1:
            mask = attention_mask.bool()
            if bool((mask[:, 1:] & ~mask[:, :-1]).any()):
                raise ValueError(f"{self.config.TITLE}: padding must be at the end of a text, not at its beginning")
        return super().hidden_states(idx, attention_mask)

    def body(self, idx: Tensor, past: Past, token_types: Tensor | None = None) -> Tensor:
        x: Tensor = super(Encoder, self).body(idx, past)
        return x

    def steps(self) -> Iterator[Step]:
        for step in super(Encoder, self).steps():
            if not isinstance(step, Logits):
                yield step
        yield HiddenStates(self.size)


@cache
def classifier_of(decoder: type[LanguageModel]) -> type[LanguageModel]:
    """The class of a decoder with a sequence classification head in place of the output head."""
    return type(f"{decoder.__name__}Classifier", (Classifier, decoder), {"__module__": decoder.__module__})


class EncoderDecoder(LanguageModel):
    """An encoder-decoder: the encoder reads a prompt, the decoder writes a sequence and attends to the encoder.

    A model file defines `encode` and `encoder_steps`, and the methods of a `LanguageModel` for the decoder.

    Notation: B batch rows, E encoder positions, T new decoder positions, V vocabulary.
    """

    encoder_decoder = True
    config: EncoderDecoderConfig

    @property
    def decoder_start(self) -> int:
        """The first token ID of each decoder sequence."""
        return self.config.decoder_start_token_id

    def encode(self, idx: Tensor, past: Past | None = None) -> EncoderCache:
        """The encoder: keys and values of each cross-attention layer, for token IDs (B, E) without padding.

        past: the positions of `idx`, without a cache, to record attention weights.
        """
        raise NotImplementedError

    def encoder_steps(self) -> Iterator[Step]:
        """The computation of `encode` as data; see `steps`."""
        raise NotImplementedError

    def forward(self, idx: Tensor | None, decoder_idx: Tensor, cache: Cache | None = None) -> Tensor:  # type: ignore[override]
        """Compute the logits of the next token at each decoder position.

        Args:
            idx: Token IDs (B, E) of the encoder, without padding; None to use the encoder output in the cache.
            decoder_idx: Token IDs (B, T) of the decoder. A sequence begins with the config's decoder_start_token_id,
                which `decoder_inputs` inserts.
            cache: Cached positions that the new decoder positions follow, and the encoder output; updated in place.

        Returns:
            Logits (B, T, V) in the dtype of the model.

        Raises:
            TypeError: As for `LanguageModel.forward`.
            ValueError: As for `LanguageModel.forward`, or `idx` is missing in the first call.
        """
        encoder = None
        if idx is not None:
            self.check(idx, None)
            encoder = self.encode(idx)
            if cache is not None:
                cache.set_encoder(encoder)
        elif cache is None:
            raise ValueError(f"{self.config.TITLE}: without a cache, pass idx, the token IDs of the encoder")
        return self.logits(self.hidden(decoder_idx, cache, encoder))

    def hidden(self, idx: Tensor, cache: Cache | None = None, encoder: EncoderCache | None = None) -> Tensor:
        """The decoder's part of `forward`: the input (B, T, C) of the head, for the decoder's token IDs."""
        self.check(idx, cache)
        past = Past(idx, cache, encoder)
        x = self.body(idx, past)
        past.finish()
        return x

    def decoder_inputs(self, targets: Tensor) -> Tensor:
        """Shift `targets` (B, T) by one: the decoder's token IDs (B, T) whose logits predict the targets."""
        starts = torch.full_like(targets[:, :1], self.decoder_start)
        return torch.cat((starts, targets[:, :-1]), dim=1)
