"""The base class of language models."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NoReturn

from torch import Tensor, nn

from minhub_py.models.attention import Past
from minhub_py.models.cache import Cache, Layout
from minhub_py.models.experts import ExpertMatrices
from minhub_py.models.inputs import check_inputs
from minhub_py.models.layers import LinearLayer
from minhub_py.models.settings import ModelConfig
from minhub_py.models.steps import PredictionStep, Step
from minhub_py.system.json_text import JsonMapping


class LanguageModel(nn.Module):
    """A decoder-only language model. A model file defines `body`, `logits`, `cache_layout` and
    `steps`.

    Notation: B batch rows, T new positions, C channels, V vocabulary.
    """

    config: ModelConfig
    encoder_decoder = False
    encoder_only = False
    lm_head: LinearLayer | None  # the output head; None if the embedding's weight replaces it
    without_head = False  # an embedding model, whose checkpoint has no output head
    # Content of generation_config.json, set by `from_pretrained`; chat/defaults.py reads the
    # sampling settings.
    generation_config: JsonMapping = MappingProxyType({})
    # Content of config.json that concerns generation only, set by `from_pretrained`: settings of
    # tasks, and settings that newer models have in generation_config.json.
    task_settings: JsonMapping = MappingProxyType({})
    # Settings of text embeddings, set by `from_pretrained` (checkpoints/sentence_transformers.py);
    # None: the default.
    embedding_settings: Any = None
    # Models with an adapter that share this model's weights, by name.
    adapters: Mapping[str, "LanguageModel"] = MappingProxyType({})
    # Of a model with an adapter: the adapter (adapters/files.py), and the tokens that activate it
    # (models/lora.py).
    attached: Any = None
    invocation: Any = None
    _base: "tuple[LanguageModel, ...]" = ()  # a tuple, so that the base is not a submodule

    @property
    def base(self) -> "LanguageModel | None":
        """The model without its adapter; None for a model without an adapter."""
        return self._base[0] if self._base else None

    def adapter(self, name: str | None) -> "LanguageModel":
        """The model with the adapter `name`, or with None the model without an adapter. Weights are
        shared.

        Raises:
            KeyError: There is no adapter with this name.
        """
        base = self.base or self
        if name is None:
            return base
        if name not in base.adapters:
            raise KeyError(
                f"there is no adapter {name!r}: available are {', '.join(base.adapters) or 'none'}"
            )
        return base.adapters[name]

    @property
    def decoder_start(self) -> int | None:
        """The first token ID of each decoder sequence, for an encoder-decoder."""
        return None

    @property
    def output_size(self) -> int:
        """The number of token IDs that the model predicts (V)."""
        return self.config.vocab_size

    def body(self, idx: Tensor, past: Past) -> Tensor:
        """The input (B, T, C) of the head, for token IDs (B, T). `past`: their positions and the
        cache.
        """
        raise NotImplementedError

    def remove_head(self) -> None:
        """Remove the output head, for a classifier."""
        self.lm_head = None

    def logits(self, x: Tensor) -> Tensor:
        """The head: (B, T, V) from (B, T, C)."""
        raise NotImplementedError

    def cache_layout(self) -> Layout:
        """Each layer's cache."""
        raise NotImplementedError

    def caches(self) -> list[list[int]]:
        """The elements of `cache_layout` that each layer has, as numbers from 0."""
        return [[number] for number in range(len(self.cache_layout()))]

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
            cache: Cached positions that the new positions follow, from `new_cache`; updated in
                place.

        Returns:
            Logits (B, T, V) in the dtype of the model.

        Raises:
            TypeError: `idx` is not an integer tensor.
            ValueError: A token ID is outside the vocabulary, or the positions do not fit the model
                or the cache.
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
        """Draw the weights of linear layers, embeddings and experts from N(0, std²), and set biases
        to zero.
        """
        for module in self.modules():
            if isinstance(module, ExpertMatrices):
                for weight in module.parameters():
                    nn.init.normal_(weight, std=std)
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def new_cache(
        self, batch_size: int, max_length: int, lookahead: int = 0, drafts: int = 0
    ) -> Cache:
        """Allocate a cache with the model's dtype and device.

        Args:
            batch_size: Number of rows.
            max_length: Maximum number of positions per row.
            lookahead: Additional positions of layers with a window, for runners that reject draft
                tokens.
            drafts: Additional states of recurrent layers, the maximum number of draft tokens to
                reject.
        """
        return Cache(
            self.cache_layout(), batch_size, max_length, lookahead, next(self.parameters()), drafts
        )

    def generate(self, *_: object, **__: object) -> NoReturn:
        """TypeError: functions generate text for all models; the message names them."""
        raise TypeError(
            "a model has no method generate(): call complete(model, tokenizer, text), or"
            " generate(model, [token_ids]), from minhub_py"
        )

    def check(self, idx: object, cache: Cache | None, size: int | None = None) -> None:
        """TypeError, ValueError: see `forward`.    size: number of token IDs; default: vocab_size."""
        check_inputs(self.config, idx, cache, self.config.vocab_size if size is None else size)
