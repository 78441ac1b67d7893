"""T5, an encoder-decoder in one file: T5 1.0 and 1.1, and FLAN-T5, which is 1.1 tuned to follow
instructions.

Sources
    Raffel et al. (2020), "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
        Transformer", for the model and the relative positions; Shazeer (2020), "GLU Variants", for
        the gated MLP of T5 1.1; Chung et al.
    (2022), "Scaling Instruction-Finetuned Language Models", for FLAN; Zhang & Sennrich (2019) for
        RMS norm.
    Hub docs: `transformers`, model_type "t5".

Differences from similar architectures
    The others are decoders. In T5 the encoder reads the prompt with bidirectional attention; the
    decoder writes a sequence that starts with decoder_start_token_id, and attends to itself and to
    the encoder. Positions are neither learned nor rotary: a bias per head and distance is added to
    the scores, with one table per stack; cross-attention has no bias. Scores are not scaled. Linear
    layers have no biases. The encoder alone (T5EncoderModel) is a text encoder, also with a token
    classification head.

Notation
    B batch rows    T new positions    S attended positions (cached and new)    E encoder positions
    C channels, d_model    H heads    D head size, d_kv: H * D may differ from C    V vocabulary
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.attention import Past, merge_heads, split_heads
from minhub_py.models.cache import EncoderCache, EncoderKeyValues, KeyValues
from minhub_py.models.encoder import Encoder, EncoderDecoder, EncoderDecoderClassifier
from minhub_py.models.heads import HeadSettings, SequenceHead, TokenHead
from minhub_py.models.layers import BlockList, RelativeBias, RMSNorm
from minhub_py.models.steps import (
    Add,
    Attend,
    CacheEncoder,
    CrossAttend,
    Embed,
    Gate,
    HiddenStates,
    Linear,
    Logits,
    Norm,
    Step,
)
from minhub_py.system.json_text import JsonObject


class Attention(nn.Module):
    def __init__(self, config: "T5Config", layer: int) -> None:
        super().__init__()
        self.layer, self.heads, self.dropout = layer, config.num_heads, config.dropout_rate
        inner = config.num_heads * config.d_kv
        self.q = nn.Linear(config.d_model, inner, bias=False)
        self.k = nn.Linear(config.d_model, inner, bias=False)
        self.v = nn.Linear(config.d_model, inner, bias=False)
        self.o = nn.Linear(inner, config.d_model, bias=False)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H, S, D) of x (B, S, C)."""
        return split_heads(self.k(x), self.heads), split_heads(self.v(x), self.heads)

    def forward(self, x: Tensor, past: Past, bias: Tensor, causal: bool) -> Tensor:
        """Self-attention of x (B, T, C). bias: (B or 1, H, T, S)."""
        q, (k, v) = split_heads(self.q(x), self.heads), self.keys_values(x)
        dropout = self.dropout if self.training else 0.0
        # (B, H, T, D)
        y = past.attend(self.layer, q, k, v, scale=1.0, bias=bias, causal=causal, dropout=dropout)
        return self.o(merge_heads(y))

    def cross(self, x: Tensor, past: Past) -> Tensor:
        """Attention of x (B, T, C) to the encoder."""
        dropout = self.dropout if self.training else 0.0
        y = past.cross_attend(
            self.layer, split_heads(self.q(x), self.heads), scale=1.0, dropout=dropout
        )
        return self.o(merge_heads(y))


class MLP(nn.Module):
    def __init__(self, config: "T5Config") -> None:
        super().__init__()
        self.act, self.dropout = ACTIVATIONS[config.dense_act_fn], nn.Dropout(config.dropout_rate)
        C, inner = config.d_model, config.d_ff
        self.wi = None if config.is_gated_act else nn.Linear(C, inner, bias=False)
        self.wi_0 = nn.Linear(C, inner, bias=False) if config.is_gated_act else None
        self.wi_1 = nn.Linear(C, inner, bias=False) if config.is_gated_act else None
        self.wo = nn.Linear(inner, C, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.wi is not None:
            return self.wo(self.dropout(self.act(self.wi(x))))
        return self.wo(self.dropout(self.act(self.wi_0(x)) * self.wi_1(x)))  # type: ignore[misc]


class Block(nn.Module):
    """A block of the encoder, or of the decoder, which has cross-attention between self-attention
    and MLP.
    """

    def __init__(self, config: "T5Config", number: int, is_decoder: bool) -> None:
        super().__init__()
        C, eps, self.is_decoder = config.d_model, config.layer_norm_epsilon, is_decoder
        layer = 2 * number if is_decoder else number  # of the cache
        self.attention_norm, self.attention = RMSNorm(C, eps), Attention(config, layer)
        self.cross_norm = RMSNorm(C, eps) if is_decoder else None
        self.cross_attention = Attention(config, layer + 1) if is_decoder else None
        self.mlp_norm, self.mlp = RMSNorm(C, eps), MLP(config)
        self.dropout = nn.Dropout(config.dropout_rate)

    def forward(self, x: Tensor, past: Past, bias: Tensor) -> Tensor:
        x = self.add(x, self.attention(self.attention_norm(x), past, bias, self.is_decoder))
        if self.cross_norm is not None and self.cross_attention is not None:
            x = self.add(x, self.cross_attention.cross(self.cross_norm(x), past))
        return self.add(x, self.mlp(self.mlp_norm(x)))

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + y, clamped in float16: T5 was trained in bfloat16, and its residual stream exceeds
        float16.
        """
        x = x + self.dropout(y)
        return x.clamp(-65504, 65504) if x.dtype == torch.float16 else x

    def cross(self) -> "tuple[Attention, RMSNorm]":
        """The cross-attention of a block of the decoder, and its norm."""
        assert self.cross_attention is not None
        assert self.cross_norm is not None
        return self.cross_attention, self.cross_norm

    def attend_steps(self, bias: RelativeBias) -> Iterator[Step]:
        """The self-attention as data."""
        attn, p = self.attention, self.dropout.p
        yield Norm(self.attention_norm)
        yield Linear([attn.q, attn.k, attn.v])
        yield Attend(
            attn.heads, attn.heads, 1.0, bias=bias, causal=not bias.bidirectional, dropout=p
        )
        yield Add(attn.o, dropout=p)

    def mlp_steps(self, act: str) -> Iterator[Step]:
        """The MLP as data."""
        mlp: Any = self.mlp
        p = self.dropout.p
        yield Norm(self.mlp_norm)
        if mlp.wi is not None:
            yield Linear([mlp.wi], act, dropout=p)
        else:
            yield Linear([mlp.wi_0, mlp.wi_1])
            yield Gate(act, dropout=p)
        yield Add(mlp.wo, dropout=p)


class Stack(nn.Module):
    def __init__(self, config: "T5Config", layers: int, is_decoder: bool) -> None:
        super().__init__()
        buckets, distance = (
            config.relative_attention_num_buckets,
            config.relative_attention_max_distance,
        )
        self.relative_bias = RelativeBias(
            buckets, config.num_heads, distance, bidirectional=not is_decoder
        )
        self.block = BlockList(Block(config, number, is_decoder) for number in range(layers))
        self.norm = RMSNorm(config.d_model, config.layer_norm_epsilon)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        bias = self.relative_bias(past.positions, past.attended)  # (B or 1, H, T, S)
        for block in self.block:
            x = block(x, past, bias)
        return self.norm(x)

    def encoder_steps(self, shared: nn.Embedding, dropout: float, act: str) -> Iterator[Step]:
        """The computation of the encoder as data, from token IDs to hidden states."""
        yield Embed(shared, dropout=dropout)
        for block in self.block:
            yield from block.attend_steps(self.relative_bias)
            yield from block.mlp_steps(act)
        yield Norm(self.norm, dropout=dropout)


def initialize(model: nn.Module, config: "T5Config") -> None:
    """Scale each matrix for outputs of about 1, and the queries for scores of about 1: nothing
    scales scores.
    """
    factor, C = config.initializer_factor, config.d_model
    for name, parameter in model.named_parameters():
        if name in ("shared.weight", "lm_head.weight"):
            nn.init.normal_(parameter, std=factor)
        elif parameter.dim() == 1:
            nn.init.constant_(parameter, factor)
        else:
            size = config.d_kv if name.endswith("attention.q.weight") else 1
            inputs = C if "relative_bias" in name else parameter.size(1)
            nn.init.normal_(parameter, std=factor * (inputs * size) ** -0.5)


class T5(EncoderDecoder):
    config: "T5Config"

    def __init__(self, config: "T5Config") -> None:
        super().__init__()
        self.config = config
        self.shared = nn.Embedding(config.vocab_size, config.d_model)
        self.drop = nn.Dropout(config.dropout_rate)
        self.encoder = Stack(config, config.num_layers, is_decoder=False)
        self.decoder = Stack(config, config.decoder_layers, is_decoder=True)
        # A tied head is the token embedding itself and has no parameter.
        tied = config.tie_word_embeddings
        self.lm_head = None if tied else nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.scale = config.d_model**-0.5 if config.scale_decoder_outputs else 1.0
        initialize(self, config)

    def encode(self, idx: Tensor, past: Past | None = None) -> EncoderCache:
        x = self.drop(self.encoder(self.drop(self.shared(idx)), past or Past(idx)))  # (B, E, C)
        crosses = [block.cross()[0] for block in self.decoder.block]
        return {cross.layer: cross.keys_values(x) for cross in crosses}

    def body(self, idx: Tensor, past: Past) -> Tensor:
        return self.drop(self.decoder(self.drop(self.shared(idx)), past))  # (B, T, C)

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(
            x * self.scale, self.shared.weight if self.lm_head is None else self.lm_head.weight
        )

    def cache_layout(self) -> list[KeyValues | EncoderKeyValues]:
        shape = (self.config.num_heads, self.config.d_kv)
        return [KeyValues(*shape), EncoderKeyValues(*shape)] * self.config.decoder_layers

    def encoder_steps(self) -> Iterator[Step]:
        yield from self.encoder.encoder_steps(self.shared, self.drop.p, self.config.dense_act_fn)
        for block in self.decoder.block:
            cross, _ = block.cross()
            yield CacheEncoder(cross.heads, [cross.k, cross.v])

    def steps(self) -> Iterator[Step]:
        yield Embed(self.shared, dropout=self.drop.p)
        for block in self.decoder.block:
            (cross, cross_norm), p = block.cross(), self.drop.p
            yield from block.attend_steps(self.decoder.relative_bias)
            yield Norm(cross_norm)
            yield Linear([cross.q])
            yield CrossAttend(cross.heads, 1.0, dropout=p)
            yield Add(cross.o, dropout=p)
            yield from block.mlp_steps(self.config.dense_act_fn)
        yield Norm(self.decoder.norm, dropout=self.drop.p)
        yield Logits(self.shared if self.lm_head is None else self.lm_head, scale=self.scale)


class T5Classifier(EncoderDecoderClassifier, T5):  # type: ignore[misc]  # methods are redefined
    """T5 with a sequence classification head; see `EncoderDecoderClassifier`."""

    config: "T5Config"  # type: ignore[assignment]

    def __init__(self, config: "T5Config") -> None:
        super().__init__(config)
        p, labels = config.classifier_dropout, len(config.labels)
        self.head = SequenceHead(
            self.size, labels, torch.tanh, dropout=p, input_dropout=p, pooling="last"
        )

    @property
    def size(self) -> int:
        return self.config.d_model

    @property
    def token_embedding(self) -> nn.Embedding:
        return self.shared


class T5Encoder(Encoder):
    """The encoder without a decoder, with a token classification head or without a head."""

    config: "T5Config"

    def __init__(self, config: "T5Config") -> None:
        super().__init__()
        self.config = config
        self.shared = nn.Embedding(config.vocab_size, config.d_model)
        self.drop = nn.Dropout(config.dropout_rate)
        self.encoder = Stack(config, config.num_layers, is_decoder=False)
        initialize(self, config)
        labels, p = len(config.labels), config.classifier_dropout
        self.head = TokenHead(self.size, labels, dropout=p) if config.head == "tokens" else None

    @property
    def size(self) -> int:
        return self.config.d_model

    @property
    def token_embedding(self) -> nn.Embedding:
        return self.shared

    def body(self, idx: Tensor, past: Past, token_types: Tensor | None = None) -> Tensor:
        return self.drop(self.encoder(self.drop(self.shared(idx)), past))  # (B, T, C)

    def steps(self) -> Iterator[Step]:
        yield from self.encoder.encoder_steps(self.shared, self.drop.p, self.config.dense_act_fn)
        yield HiddenStates(self.size)


@dataclass(frozen=True)
class T5Config(HeadSettings):
    """The settings of config.json that change the result. Defaults: t5-small."""

    TITLE: ClassVar = "T5"
    NO_EFFECT: ClassVar = frozenset({"n_positions"})
    DERIVED: ClassVar = ("dense_act_fn", "is_gated_act")
    SHARES_A_MISSING_HEAD: ClassVar = True

    vocab_size: int = 32128
    d_model: int = 512
    d_kv: int = 64
    d_ff: int = 2048
    num_layers: int = field(default=6, metadata={"range": (1, 4096)})
    # None: num_layers
    num_decoder_layers: int | None = field(default=None, metadata={"range": (1, 4096)})
    num_heads: int = 8
    relative_attention_num_buckets: int = field(default=32, metadata={"range": (4, 2**24)})
    relative_attention_max_distance: int = 128
    dropout_rate: float = 0.1
    classifier_dropout: float = 0.0
    layer_norm_epsilon: float = 1e-6
    initializer_factor: float = 1.0
    feed_forward_proj: str = field(
        default="relu",
        metadata={"choices": (*ACTIVATIONS, *(f"gated-{name}" for name in ACTIVATIONS))},
    )
    tie_word_embeddings: bool = True
    is_encoder_decoder: bool = True  # of a T5EncoderModel, without effect
    scale_decoder_outputs: bool | None = None  # None: as tie_word_embeddings
    decoder_start_token_id: int = field(default=0, metadata={"range": (0, 2**24)})
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = 1
    pad_token_id: int | None = 0

    def __post_init__(self) -> None:
        if not self.encoder_only:
            self.drop_unused_labels()
            if not self.is_encoder_decoder:
                raise ValueError(
                    "T5: config.json sets is_encoder_decoder to False, which requires architectures"
                    " T5EncoderModel or T5ForTokenClassification"
                )
        object.__setattr__(self, "is_encoder_decoder", not self.encoder_only)
        # In files of T5 1.1, tie_word_embeddings: false also means that the output of the decoder
        # is not scaled. transformers 5 writes true and scale_decoder_outputs. Set here: a
        # checkpoint with a head changes tie_word_embeddings.
        if self.scale_decoder_outputs is None:
            object.__setattr__(self, "scale_decoder_outputs", self.tie_word_embeddings)
        if self.relative_attention_max_distance <= self.relative_attention_num_buckets // 2:
            raise ValueError(
                f"T5: relative_attention_max_distance ({self.relative_attention_max_distance}) must"
                " be more than half of relative_attention_num_buckets"
                f" ({self.relative_attention_num_buckets})"
            )
        if self.decoder_start_token_id >= self.vocab_size:
            raise ValueError(
                f"T5: decoder_start_token_id ({self.decoder_start_token_id}) must be below"
                f" vocab_size ({self.vocab_size})"
            )

    @property
    def encoder_only(self) -> bool:
        """Whether the checkpoint has no decoder."""
        return self.head == "tokens" or (self.architectures or [""])[0].endswith("EncoderModel")

    @property
    def headless(self) -> list[str] | None:
        """See `HeadSettings.headless`."""
        return ["T5EncoderModel"] if self.encoder_only else None

    @property
    def decoder_layers(self) -> int:
        """Number of decoder layers."""
        return self.num_decoder_layers or self.num_layers

    @property
    def is_gated_act(self) -> bool:
        """Whether the MLP is gated."""
        return self.feed_forward_proj.startswith("gated-")

    @property
    def dense_act_fn(self) -> str:
        """The activation of the MLP: "gated-gelu" means the tanh approximation, "gelu" does not."""
        name = self.feed_forward_proj.removeprefix("gated-")
        return "gelu_new" if self.feed_forward_proj == "gated-gelu" else name

    @property
    def effective(self) -> dict[str, object]:
        """See `Effective.effective`; without an absent decoder's settings."""
        decoder = (
            "tie_word_embeddings",
            "scale_decoder_outputs",
            "num_decoder_layers",
            "decoder_start_token_id",
        )
        absent = decoder if self.encoder_only else ()
        return {name: value for name, value in super().effective.items() if name not in absent}

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        return {
            **self.hub_head("T5EncoderModel" if self.headless else "T5ForConditionalGeneration"),
            "model_type": "t5",
            **self.without_head(),
            "num_decoder_layers": self.decoder_layers,
        }

    @property
    def context_length(self) -> None:
        """No maximum: the last bucket contains all larger distances."""
        return
