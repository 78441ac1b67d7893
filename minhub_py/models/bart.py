"""BART and its relatives, encoder-decoders in one file: BART, PLBART, mBART, Pegasus, Marian, and
M2M100 with NLLB.

Sources
    Lewis et al. (2020), "BART"; Ahmad et al. (2021), "PLBART"; Liu et al. (2020), "Multilingual
        Denoising Pre-training for Neural Machine Translation" (mBART); Zhang et al. (2020),
        "PEGASUS"; Junczys-Dowmunt et al. (2018), "Marian"; Fan et al. (2021), "Beyond
        English-Centric Multilingual Machine Translation" (M2M100); NLLB Team (2022), "No Language
        Left Behind". Positions: Vaswani et al. (2017), "Attention Is All You Need".
    Hub docs: `transformers`, model_types "bart", "plbart", "mbart", "pegasus", "marian", "m2m_100".

Differences from similar architectures
    T5       has relative positions and RMS norms, and no biases. Here positions are added to the
             embeddings, and norms and linear layers have biases.
    OPT, XGLM    are the decoders alone, with norms before attention and MLP.

    model type      norms     norm of embeddings   positions   first row   bias of logits
    bart, plbart    after     yes                  learned     2           yes
    mbart           before    yes                  learned     2           yes
    pegasus         before    no                   computed    0           yes
    marian          after     no                   computed    0           yes
    m2m_100         before    no                   computed    pad + 1     no

    With norms before attention and MLP, each stack ends with a norm. A Marian model may have
    separate embeddings for two vocabularies.

Notation
    B batch rows    T new positions    S attended positions (cached and new)    E encoder positions
    C channels, d_model    H heads    D head size, C / H    V vocabulary of the decoder
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.attention import Past, merge_heads, split_heads
from minhub_py.models.cache import EncoderCache, EncoderKeyValues, KeyValues
from minhub_py.models.encoder import EncoderDecoder, EncoderDecoderClassifier
from minhub_py.models.heads import HeadSettings, SequenceHead
from minhub_py.models.layers import scaled, sinusoidal_positions
from minhub_py.models.settings import Positions, check_multiple, unavailable
from minhub_py.models.steps import (
    Add,
    AddPositions,
    AddSinusoids,
    Attend,
    CacheEncoder,
    CrossAttend,
    Embed,
    Linear,
    Logits,
    Norm,
    Step,
)
from minhub_py.models.xglm import sinusoid_frequencies

# The beginning of transformers' class names.
NAMES = {
    "bart": "Bart",
    "plbart": "PLBart",
    "mbart": "MBart",
    "pegasus": "Pegasus",
    "marian": "Marian",
    "m2m_100": "M2M100",
}
LEARNED = ("bart", "plbart", "mbart")  # positions, and a norm of the embeddings
LANGUAGE_LAST = ("mbart", "plbart")  # the last token of texts
NORMS_BEFORE = ("mbart", "pegasus", "m2m_100")
FIRST = 2  # row of the position 0 of learned positions


class Attention(nn.Module):
    def __init__(self, config: "BartConfig", heads: int, layer: int) -> None:
        super().__init__()
        C = config.d_model
        self.layer, self.heads, self.dropout = layer, heads, config.attention_dropout
        self.scale = (C // heads) ** -0.5
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(C, C) for _ in "qkvo")

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H, S, D) of x (B, S, C)."""
        return split_heads(self.k_proj(x), self.heads), split_heads(self.v_proj(x), self.heads)

    def forward(self, x: Tensor, past: Past, causal: bool) -> Tensor:
        """Self-attention of x (B, T, C)."""
        q, (k, v) = split_heads(self.q_proj(x), self.heads), self.keys_values(x)
        dropout = self.dropout if self.training else 0.0
        y = past.attend(self.layer, q, k, v, scale=self.scale, causal=causal, dropout=dropout)
        return self.out_proj(merge_heads(y))  # from (B, H, T, D)

    def cross(self, x: Tensor, past: Past) -> Tensor:
        """Attention of x (B, T, C) to the encoder."""
        q, dropout = split_heads(self.q_proj(x), self.heads), self.dropout if self.training else 0.0
        y = past.cross_attend(self.layer, q, scale=self.scale, dropout=dropout)
        return self.out_proj(merge_heads(y))


class Block(nn.Module):
    """A block of the encoder, or of the decoder, which has cross-attention between self-attention
    and MLP.
    """

    def __init__(self, config: "BartConfig", number: int, is_decoder: bool) -> None:
        super().__init__()
        C, side = config.d_model, "decoder" if is_decoder else "encoder"
        heads, inner = (
            getattr(config, f"{side}_{name}") for name in ("attention_heads", "ffn_dim")
        )
        layer = 2 * number if is_decoder else number  # of the cache
        self.is_decoder, self.before = is_decoder, config.norms_before
        self.self_attn = Attention(config, heads, layer)
        self.self_attn_layer_norm = nn.LayerNorm(C)
        self.encoder_attn = Attention(config, heads, layer + 1) if is_decoder else None
        self.encoder_attn_layer_norm = nn.LayerNorm(C) if is_decoder else None
        self.fc1, self.fc2 = nn.Linear(C, inner), nn.Linear(inner, C)
        self.final_layer_norm = nn.LayerNorm(C)
        self.act = ACTIVATIONS[config.activation_function]
        self.dropout = nn.Dropout(config.dropout)
        self.activation_dropout = nn.Dropout(config.activation_dropout)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        cross, norm = self.encoder_attn, self.encoder_attn_layer_norm
        if self.before:
            x = x + self.dropout(
                self.self_attn(self.self_attn_layer_norm(x), past, self.is_decoder)
            )
            if cross is not None and norm is not None:
                x = x + self.dropout(cross.cross(norm(x), past))
            return self.clamped(x + self.dropout(self.mlp(self.final_layer_norm(x))))
        # After: the norms apply to the stream itself.
        x = self.self_attn_layer_norm(x + self.dropout(self.self_attn(x, past, self.is_decoder)))
        if cross is not None and norm is not None:
            x = norm(x + self.dropout(cross.cross(x, past)))
        return self.clamped(self.final_layer_norm(x + self.dropout(self.mlp(x))))

    def mlp(self, x: Tensor) -> Tensor:
        return self.fc2(self.activation_dropout(self.act(self.fc1(x))))

    def clamped(self, x: Tensor) -> Tensor:
        """An encoder's residual stream can exceed float16: it is clamped, as in transformers."""
        clamps = x.dtype == torch.float16 and not self.is_decoder
        return x.clamp(-64504, 64504) if clamps else x

    def steps(self, act: str) -> Iterator[Step]:
        """The block as data."""
        attn, cross, p = self.self_attn, self.encoder_attn, self.dropout.p
        yield from self.norm_before(self.self_attn_layer_norm)
        yield Linear([attn.q_proj, attn.k_proj, attn.v_proj])
        yield Attend(
            attn.heads, attn.heads, attn.scale, causal=self.is_decoder, dropout=attn.dropout
        )
        yield Add(attn.out_proj, dropout=p)
        yield from self.norm_after(self.self_attn_layer_norm)
        if cross is not None and self.encoder_attn_layer_norm is not None:
            yield from self.norm_before(self.encoder_attn_layer_norm)
            yield Linear([cross.q_proj])
            yield CrossAttend(cross.heads, cross.scale, dropout=cross.dropout)
            yield Add(cross.out_proj, dropout=p)
            yield from self.norm_after(self.encoder_attn_layer_norm)
        yield from self.norm_before(self.final_layer_norm)
        yield Linear([self.fc1], act, dropout=self.activation_dropout.p)
        yield Add(self.fc2, dropout=p)
        yield from self.norm_after(self.final_layer_norm)

    def norm_before(self, norm: nn.LayerNorm) -> Iterator[Step]:
        if self.before:
            yield Norm(norm)

    def norm_after(self, norm: nn.LayerNorm) -> Iterator[Step]:
        if not self.before:
            yield Norm(norm, to_residual=True)


class BartStack(nn.Module):
    """The encoder or the decoder, without the embedding if both share it."""

    def __init__(self, config: "BartConfig", is_decoder: bool) -> None:
        super().__init__()
        C = config.d_model
        layers = config.decoder_layers if is_decoder else config.encoder_layers
        rows = config.target_size if is_decoder else config.vocab_size
        self.embed_tokens = (
            None if config.share_encoder_decoder_embeddings else nn.Embedding(rows, C)
        )
        positions = config.max_position_embeddings
        self.embed_positions = (
            nn.Embedding(positions + FIRST, C) if config.learned_positions else None
        )
        self.frequencies = config.frequencies  # of computed positions
        self.layernorm_embedding = nn.LayerNorm(C) if config.learned_positions else None
        self.layers = nn.ModuleList(Block(config, number, is_decoder) for number in range(layers))
        self.layer_norm = nn.LayerNorm(C) if config.norms_before else None
        self.drop, self.act = nn.Dropout(config.dropout), config.activation_function
        self.scale = C**0.5 if config.scale_embedding else None
        self.positions, self.first = positions, config.first_position
        self.exact = config.exact_positions

    def forward(self, tokens: nn.Embedding, idx: Tensor, past: Past) -> Tensor:
        x = tokens(idx)  # (B, T, C)
        if self.scale is not None:
            x = scaled(x, self.scale)
        if self.embed_positions is not None and self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x + self.embed_positions(past.positions + self.first))
        else:
            positions = past.positions + self.first
            x = x + sinusoidal_positions(positions, list(self.frequencies), self.exact).to(x.dtype)
        x = self.drop(x)
        for block in self.layers:
            x = block(x, past)
        return x if self.layer_norm is None else self.layer_norm(x)

    def steps(self, tokens: nn.Embedding) -> Iterator[Step]:
        """The computation of the stack as data, from token IDs to the input of the head."""
        block: Any
        p = self.drop.p
        yield Embed(tokens, scale=self.scale)
        if self.embed_positions is not None and self.layernorm_embedding is not None:
            yield AddPositions(self.embed_positions, self.first)
            yield Norm(self.layernorm_embedding, to_residual=True, dropout=p)
        else:
            yield AddSinusoids(
                self.frequencies, self.first, self.positions, dropout=p, exact=self.exact
            )
        for block in self.layers:
            yield from block.steps(self.act)
        if self.layer_norm is not None:
            yield Norm(self.layer_norm)


class Bart(EncoderDecoder):
    config: "BartConfig"

    def __init__(self, config: "BartConfig") -> None:
        super().__init__()
        self.config = config
        V, C = config.target_size, config.d_model
        self.shared = nn.Embedding(V, C) if config.share_encoder_decoder_embeddings else None
        self.encoder = BartStack(config, is_decoder=False)
        self.decoder = BartStack(config, is_decoder=True)
        # A tied head is the decoder's embedding itself and has no parameter.
        self.lm_head = None if config.tie_word_embeddings else nn.Linear(C, V, bias=False)
        bias = torch.zeros(V) if config.logits_bias else None
        self.register_buffer("final_logits_bias", bias)
        self.init_weights(config.init_std)

    @property
    def output_size(self) -> int:
        return self.config.target_size

    def decoder_inputs(self, targets: Tensor, lengths: Tensor | None = None) -> Tensor:
        """See `EncoderDecoder.decoder_inputs`. In mBART and PLBART, the last token of a target, its
        language, is the decoder's first.
        """
        if self.config.model_type not in LANGUAGE_LAST:
            return super().decoder_inputs(targets, lengths)
        last = targets[:, -1:] if lengths is None else targets.gather(1, lengths - 1)
        return torch.cat((last, targets[:, :-1]), dim=1)

    @property
    def source_embedding(self) -> nn.Embedding:
        """The embedding of the encoder's tokens."""
        return self.encoder.embed_tokens or self.shared  # type: ignore[return-value]

    @property
    def target_embedding(self) -> nn.Embedding:
        """The embedding of the decoder's tokens."""
        return self.decoder.embed_tokens or self.shared  # type: ignore[return-value]

    def encode(self, idx: Tensor, past: Past | None = None) -> EncoderCache:
        x = self.encoder(self.source_embedding, idx, past or Past(idx))  # (B, E, C)
        crosses: Any = [block.encoder_attn for block in self.decoder.layers]
        return {cross.layer: cross.keys_values(x) for cross in crosses}

    def body(self, idx: Tensor, past: Past) -> Tensor:
        return self.decoder(self.target_embedding, idx, past)  # (B, T, C)

    def logits(self, x: Tensor) -> Tensor:
        head = self.target_embedding if self.lm_head is None else self.lm_head
        return F.linear(x, head.weight, self.final_logits_bias)

    def remove_head(self) -> None:
        super().remove_head()
        self.final_logits_bias = None

    def cache_layout(self) -> list[KeyValues | EncoderKeyValues]:
        heads = self.config.decoder_attention_heads
        shape = (heads, self.config.d_model // heads)
        return [KeyValues(*shape), EncoderKeyValues(*shape)] * self.config.decoder_layers

    def encoder_steps(self) -> Iterator[Step]:
        block: Any
        yield from self.encoder.steps(self.source_embedding)
        for block in self.decoder.layers:
            cross = block.encoder_attn
            yield CacheEncoder(cross.heads, [cross.k_proj, cross.v_proj])

    def steps(self) -> Iterator[Step]:
        yield from self.decoder.steps(self.target_embedding)
        head = self.target_embedding if self.lm_head is None else self.lm_head
        yield Logits(head, bias=self.final_logits_bias)


class BartClassifier(EncoderDecoderClassifier, Bart):  # type: ignore[misc]
    """BART with a sequence classification head; see `EncoderDecoderClassifier`."""

    config: "BartConfig"  # type: ignore[assignment]

    def __init__(self, config: "BartConfig") -> None:
        super().__init__(config)
        p = config.classifier_dropout
        self.head = SequenceHead(
            self.size, len(config.labels), torch.tanh, dropout=p, input_dropout=p, pooling="last"
        )

    @property
    def size(self) -> int:
        return self.config.d_model

    @property
    def token_embedding(self) -> nn.Embedding:
        return self.source_embedding


@dataclass(frozen=True)
class BartConfig(HeadSettings, Positions):
    """The settings of config.json that change the result. Defaults: bart-large."""

    TITLE: ClassVar = "BART"
    # Without effect are the numbers that follow from the weights, and layer dropout, which training
    # does not apply.
    NO_EFFECT: ClassVar = frozenset(
        """
        num_hidden_layers extra_pos_embeddings add_bias_logits classif_dropout
        force_bos_token_to_be_generated max_new_tokens encoder_layerdrop decoder_layerdrop
        """.split()
    )
    DERIVED: ClassVar = (
        "hidden_size",
        "num_attention_heads",
        "normalize_before",
        "normalize_embedding",
        "add_final_layer_norm",
        "static_position_embeddings",
    )
    SHARES_A_MISSING_HEAD: ClassVar = True
    DEFAULTS: ClassVar = {
        "bart": {},
        "plbart": {"vocab_size": 50005, "encoder_layers": 6, "decoder_layers": 6, "encoder_ffn_dim": 3072,
                   "decoder_ffn_dim": 3072, "encoder_attention_heads": 12, "decoder_attention_heads": 12,
                   "d_model": 768, "attention_dropout": 0.1, "scale_embedding": True,
                   "decoder_start_token_id": None},
        "mbart": {"decoder_start_token_id": None},
        "pegasus": {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1, "decoder_start_token_id": 0,
                    "forced_eos_token_id": 1},
        "marian": {"vocab_size": 58101, "pad_token_id": 58100, "bos_token_id": None, "eos_token_id": 0,
                   "decoder_start_token_id": 58100, "forced_eos_token_id": 0},
        "m2m_100": {"vocab_size": 128112, "activation_function": "relu", "attention_dropout": 0.1,
                    "scale_embedding": True, "forced_eos_token_id": None, "logits_bias": False},
    }  # fmt: skip

    model_type: str = "bart"
    vocab_size: int = 50265
    decoder_vocab_size: int | None = field(  # None: vocab_size
        default=None, metadata={"range": (1, 2**24), "model_types": ("marian",)}
    )
    share_encoder_decoder_embeddings: bool = True
    max_position_embeddings: int = field(default=1024, metadata={"range": (1, 2**31)})
    encoder_layers: int = field(default=12, metadata={"range": (1, 4096)})
    encoder_ffn_dim: int = 4096
    encoder_attention_heads: int = 16
    decoder_layers: int = field(default=12, metadata={"range": (1, 4096)})
    decoder_ffn_dim: int = 4096
    decoder_attention_heads: int = 16
    activation_function: str = field(default="gelu", metadata={"choices": tuple(ACTIVATIONS)})
    d_model: int = 1024
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    classifier_dropout: float = 0.0
    init_std: float = 0.02
    scale_embedding: bool = False
    tie_word_embeddings: bool = True
    is_encoder_decoder: bool = True
    # None: bos_token_id
    decoder_start_token_id: int | None = field(default=2, metadata={"range": (0, 2**24)})
    forced_bos_token_id: int | None = field(default=None, metadata={"range": (0, 2**24)})
    forced_eos_token_id: int | list[int] | None = 2
    bad_words_ids: list[list[int]] | None = None
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 2
    pad_token_id: int | None = 1
    # whether the checkpoint has a bias of the logits, see `with_tensors`
    logits_bias: bool = True

    def __post_init__(self) -> None:
        self.drop_unused_labels()
        for side in ("encoder", "decoder"):
            check_multiple(self, "d_model", f"{side}_attention_heads")
        if not self.is_encoder_decoder:
            raise ValueError("BART: config.json sets is_encoder_decoder to False")
        if self.head == "sequence" and self.model_type != "bart":
            raise ValueError(
                f"BART: a {self.model_type} model has no sequence classification head, which"
                " config.json names in architectures"
            )
        if not self.learned_positions and (self.d_model % 2 or self.d_model < 4):
            raise ValueError(
                f"BART: d_model ({self.d_model}) must be even, because positions are sines and"
                " cosines"
            )
        if self.share_encoder_decoder_embeddings and self.target_size != self.vocab_size:
            raise ValueError(
                f"BART: decoder_vocab_size ({self.target_size}) must be vocab_size"
                f" ({self.vocab_size}), because encoder and decoder share their embedding"
            )
        start = self.decoder_start_token_id
        if start is not None and start >= self.target_size:
            raise ValueError(
                f"BART: decoder_start_token_id ({start}) must be below the decoder's vocab_size"
                f" ({self.target_size})"
            )

    @property
    def separate_embeddings(self) -> bool:
        """Whether encoder and decoder have an embedding each."""
        return not self.share_encoder_decoder_embeddings

    @property
    def target_size(self) -> int:
        """The number of the decoder's token IDs (V)."""
        return self.decoder_vocab_size or self.vocab_size

    @property
    def norms_before(self) -> bool:
        """Whether norms are before attention and MLP, and at the end of each stack."""
        return self.model_type in NORMS_BEFORE

    @property
    def learned_positions(self) -> bool:
        """Whether positions are learned; the embeddings are then normed."""
        return self.model_type in LEARNED

    @property
    def exact_positions(self) -> bool:
        """Whether the angles of computed positions are computed in float64."""
        return self.model_type != "m2m_100"

    @property
    def frequencies(self) -> tuple[float, ...]:
        """The frequencies of computed positions."""
        if self.learned_positions:
            return ()
        if self.exact_positions:
            return tuple(10000 ** (-2 * i / self.d_model) for i in range(self.d_model // 2))
        return sinusoid_frequencies(self.d_model)

    @property
    def first_position(self) -> int:
        """The row or number of the position 0."""
        if self.model_type == "m2m_100":
            return (self.pad_token_id or 0) + 1
        return FIRST if self.learned_positions else 0

    # Settings of old files

    @property
    def hidden_size(self) -> int:
        return self.d_model

    @property
    def num_attention_heads(self) -> int:
        return self.encoder_attention_heads

    @property
    def static_position_embeddings(self) -> bool:
        return not self.learned_positions

    normalize_before = add_final_layer_norm = norms_before
    normalize_embedding = learned_positions

    def with_tensors(self, names: Collection[str]) -> "BartConfig":
        """The config for a checkpoint with tensors of these names.

        A body's files have no bias of the logits, which is then zero. A model without tied
        embeddings has one for the encoder and one for the decoder, as in transformers.
        """
        names = {name.removeprefix("model.") for name in names}
        separate = not self.tie_word_embeddings and "encoder.embed_tokens.weight" in names
        return replace(
            self,
            logits_bias="final_logits_bias" in names,
            share_encoder_decoder_embeddings=self.share_encoder_decoder_embeddings and not separate,
        )

    def to_hub(self) -> dict[str, object]:
        """The config.json of this model for transformers."""
        end = "MTModel" if self.model_type == "marian" else "ForConditionalGeneration"
        dropped = {*unavailable(self, self.model_type), "logits_bias"}
        if self.model_type != "marian" and self.share_encoder_decoder_embeddings:
            dropped.add("share_encoder_decoder_embeddings")
        settings = {**self.without_head(), "model_type": self.model_type}
        return {
            **self.hub_head(NAMES[self.model_type] + end),
            **{name: value for name, value in settings.items() if name not in dropped},
        }
