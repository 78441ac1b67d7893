"""The base classes of text encoders, of decoders with a classification head, and of
encoder-decoders.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from minhub_py.models.attention import Past
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import Cache, EncoderCache, Layout
from minhub_py.models.heads import LastTokenHead, last_of
from minhub_py.models.layers import EmbeddingLayer
from minhub_py.models.settings import ModelConfig, hidden_size
from minhub_py.models.steps import HiddenStates, Logits, Step


class EncoderConfig(ModelConfig, Protocol):
    """An encoder's additional attributes."""

    @property
    def architectures(self) -> list[str] | None:
        """The classes of the transformers model."""

    @property
    def head(self) -> str | None:
        """The head of the checkpoint: "masked_lm", "sequence", "tokens", "questions" or None."""

    @property
    def labels(self) -> list[str]:
        """A classification head's labels."""


class EncoderDecoderConfig(ModelConfig, Protocol):
    """An encoder-decoder's additional attributes."""

    @property
    def decoder_start_token_id(self) -> int | None:
        """The first token ID of each decoder sequence; None: bos_token_id."""


class Encoder(LanguageModel):
    """A text encoder with bidirectional attention. Its head is a module `head` (models/heads.py),
    or None.

    A model file defines `body`, `steps`, and `token_embedding`, the embedding that a masked-LM head
    shares.

    Notation: B batch rows, T positions, C channels, V vocabulary.
    """

    encoder_only = True
    config: EncoderConfig
    head: nn.Module | None

    def forward(  # type: ignore[override]
        self,
        idx: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        """The result of the head for token IDs `idx` (B, T), int64; without a head the hidden
        states (B, T, C).

        A masked-LM head returns logits (B, T, V); a sequence classification head (B, labels); a
        token classification head (B, T, labels); a question answering head (B, T, 2), the scores of
        an answer's start and end.

        attention_mask: (B, T), 1 or True for tokens and 0 or False for padding; default: no
        padding. Results at padding tokens are meaningless.
        token_type_ids: (B, T), the segment of each token in a pair of texts; default: 0. Models
        without token types ignore it.
        TypeError, ValueError: as for other models, or a mask or token types that do not fit.
        """
        x = self.hidden_states(idx, attention_mask, token_type_ids)
        return x if self.head is None else self.head_of(x, attention_mask)

    def hidden_states(
        self,
        idx: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        """The hidden states (B, T, C) of the last layer. See `forward` for the arguments."""
        self.check(idx, None)
        for name, tensor in (
            ("attention_mask", attention_mask),
            ("token_type_ids", token_type_ids),
        ):
            if tensor is not None and tensor.shape != idx.shape:
                raise ValueError(
                    f"{self.config.TITLE}: {name} must be {tuple(idx.shape)}, not"
                    f" {tuple(tensor.shape)}"
                )
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
    def token_embedding(self) -> EmbeddingLayer:
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
    """A decoder with a sequence classification head: a text's labels, from the hidden state of
    its last token.

    `classifier_of` combines it with a decoder. Attention remains causal.
    Padding tokens at the end of a text are ignored, also without a mask.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        self.remove_head()
        self.head = LastTokenHead(self.size, len(config.labels))
        nn.init.normal_(self.head.out.weight, std=getattr(config, "initializer_range", 0.02))

    @property
    def size(self) -> int:
        """The number of channels that the head reads."""
        return hidden_size(self.config)

    @property
    def pad(self) -> int | None:
        """The token ID of padding."""
        return getattr(self.config, "pad_token_id", None)

    @property
    def token_embedding(self) -> EmbeddingLayer:
        """The embedding of tokens, which the head does not use."""
        names = ("embed_tokens", "embed_in", "wte")
        return next(module for name in names if (module := getattr(self, name, None)) is not None)

    def forward(  # type: ignore[override]
        self,
        idx: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        """Scores (B, labels). See `Encoder.forward`; a text has no token types."""
        return self.head_of(
            self.hidden_states(idx, attention_mask), self.tokens(idx, attention_mask)
        )

    def tokens(self, idx: Tensor, attention_mask: Tensor | None) -> Tensor:
        """The mask (B, T) of tokens without padding."""
        mask = torch.ones_like(idx) if attention_mask is None else attention_mask
        return mask.bool() & (idx != self.pad) if self.pad is not None else mask.bool()

    def hidden_states(
        self,
        idx: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        """See `Encoder.hidden_states`. ValueError: padding that is not at the end."""
        if attention_mask is not None and attention_mask.shape == idx.shape and idx.size(1) > 1:
            mask = attention_mask.bool()
            if bool((mask[:, 1:] & ~mask[:, :-1]).any()):
                raise ValueError(
                    f"{self.config.TITLE}: padding must be at the end of a text, not at its"
                    " beginning"
                )
        return super().hidden_states(idx, attention_mask)

    def body(self, idx: Tensor, past: Past, token_types: Tensor | None = None) -> Tensor:
        x: Tensor = super(Encoder, self).body(idx, past)
        return x

    def steps(self) -> Iterator[Step]:
        for step in super(Encoder, self).steps():
            if not isinstance(step, Logits):
                yield step
        yield HiddenStates(self.size)


class EncoderDecoderClassifier(Classifier):
    """An encoder-decoder with a sequence classification head: the decoder reads the text, too,
    shifted by one position.

    The head reads the decoder's hidden state at the end of the text, eos_token_id, which the
    tokenizers append. A model file combines it with the encoder-decoder and defines `head`.
    """

    encoder_decoder = False

    def hidden_states(
        self,
        idx: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        """See `Classifier.hidden_states`. ValueError: a text does not end with eos_token_id."""
        x = super().hidden_states(idx, attention_mask)
        end = self.config.eos_token_id
        ends = end if isinstance(end, list) else [end]
        if any(
            last not in ends for last in last_of(idx, self.tokens(idx, attention_mask)).tolist()
        ):
            raise ValueError(
                f"{self.config.TITLE}: a text must end with token ID {end} (eos_token_id), where"
                " the classification head reads: use the tokenizer of this model"
            )
        return x

    def body(self, idx: Tensor, past: Past, token_types: Tensor | None = None) -> Tensor:
        model: Any = self
        decoder_idx = model.decoder_inputs(idx)
        decoder_past = Past(
            decoder_idx, encoder=model.encode(idx, past), attended_tokens=past.attended_tokens
        )
        return super().body(decoder_idx, decoder_past)


@cache
def classifier_of(decoder: type[LanguageModel]) -> type[LanguageModel]:
    """The class of a decoder with a sequence classification head in place of the output head."""
    return type(
        f"{decoder.__name__}Classifier", (Classifier, decoder), {"__module__": decoder.__module__}
    )


def channels_of(model: LanguageModel) -> int:
    """C, the number of channels of a text's embedding before dense layers."""
    return model.size if isinstance(model, Encoder) else hidden_size(model.config)


class EncoderDecoder(LanguageModel):
    """An encoder-decoder: the encoder reads a prompt, the decoder writes a sequence and attends to
    the encoder.

    A model file defines `encode` and `encoder_steps`, and the methods of a `LanguageModel` for the
    decoder.

    Notation: B batch rows, E encoder positions, T new decoder positions, V vocabulary.
    """

    encoder_decoder = True
    config: EncoderDecoderConfig

    @property
    def decoder_start(self) -> int:
        """The first token ID of each decoder sequence. ValueError: config.json names none."""
        start = self.config.decoder_start_token_id
        start = getattr(self.config, "bos_token_id", None) if start is None else start
        if start is None:
            raise ValueError(
                f"{self.config.TITLE}: config.json has no decoder_start_token_id: add it"
            )
        return start

    def encode(self, idx: Tensor, past: Past | None = None) -> EncoderCache:
        """The encoder: keys and values of each cross-attention layer, for token IDs (B, E) without
        padding.

        past: the positions of `idx`, without a cache, to record attention weights.
        """
        raise NotImplementedError

    def encoder_steps(self) -> Iterator[Step]:
        """The computation of `encode` as data; see `steps`."""
        raise NotImplementedError

    def forward(  # type: ignore[override]
        self, idx: Tensor | None, decoder_idx: Tensor, cache: Cache | None = None
    ) -> Tensor:
        """Compute the logits of the next token at each decoder position.

        Args:
            idx: Token IDs (B, E) of the encoder, without padding; None to use the encoder output in
                the cache.
            decoder_idx: Token IDs (B, T) of the decoder. A sequence begins with the config's
                decoder_start_token_id, which `decoder_inputs` inserts.
            cache: Cached positions that the new decoder positions follow, and the encoder output;
                updated in place.

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
            raise ValueError(
                f"{self.config.TITLE}: without a cache, pass idx, the token IDs of the encoder"
            )
        return self.logits(self.hidden(decoder_idx, cache, encoder))

    def hidden(
        self, idx: Tensor, cache: Cache | None = None, encoder: EncoderCache | None = None
    ) -> Tensor:
        """The decoder's part of `forward`: the input (B, T, C) of the head, for the decoder's token
        IDs.
        """
        self.check(idx, cache, self.output_size)
        past = Past(idx, cache, encoder)
        x = self.body(idx, past)
        past.finish()
        return x

    def decoder_inputs(self, targets: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Shift `targets` (B, T) by one: the decoder's token IDs (B, T) whose logits predict the
        targets. lengths: (B, 1), the numbers of tokens before padding; None without padding.
        """
        starts = torch.full_like(targets[:, :1], self.decoder_start)
        return torch.cat((starts, targets[:, :-1]), dim=1)
