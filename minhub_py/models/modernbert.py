"""ModernBERT, an encoder with rotary positions and local attention.

Sources
    Warner et al. (2024), "Smarter, Better, Faster, Longer" (ModernBERT); Su et al. (2021),
        "RoFormer", for rotary positions; Shazeer (2020), "GLU Variants", for the gated MLP; Beltagy
        et al. (2020), "Longformer", for local attention.
    Hub docs: `transformers`, model_type "modernbert".

Differences from similar architectures
    bert      has learned positions, token types and biases, and norms the sums with the residual
              stream. ModernBERT norms the input of attention and MLP; layer 0 has no norm before
              attention, as the embeddings are normed.
    gemma3    is a decoder. Both alternate global and local layers with a rope_theta each; here the
              first of three layers is global, and a local layer attends to local_attention // 2
              positions on both sides.

Notation
    B batch rows    T positions    C channels, hidden_size    H heads    D head size, C / H    V
    vocabulary
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from minhub_py.models import rotary
from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.attention import Past, merge_heads, split_qkv
from minhub_py.models.encoder import Encoder
from minhub_py.models.heads import HeadSettings, MaskedLMHead, SequenceHead, TokenHead
from minhub_py.models.layers import BlockList
from minhub_py.models.rotary import Rotation
from minhub_py.models.settings import Positions
from minhub_py.models.steps import (
    Add,
    Attend,
    Embed,
    Gate,
    HiddenStates,
    Linear,
    Norm,
    Rotate,
    Step,
)
from minhub_py.system.json_text import JsonObject

FULL, SLIDING = "full_attention", "sliding_attention"


class Attention(nn.Module):
    def __init__(self, config: "ModernBertConfig", layer: int) -> None:
        super().__init__()
        C = config.hidden_size
        self.layer, self.heads, self.dropout = (
            layer,
            config.num_attention_heads,
            config.attention_dropout,
        )
        self.kind, self.window, self.scale = (
            config.kinds[layer],
            config.windows[layer],
            (C // self.heads) ** -0.5,
        )
        self.qkv, self.o = nn.Linear(C, 3 * C, bias=False), nn.Linear(C, C, bias=False)
        self.drop = nn.Dropout(config.attention_dropout)

    def forward(self, x: Tensor, past: Past, rotation: Rotation) -> Tensor:
        q, k, v = split_qkv(self.qkv(x), self.heads, self.heads)  # (B, H, T, D) each
        q, k = rotation(q, k)
        dropout = self.dropout if self.training else 0.0
        y = past.attend(
            self.layer, q, k, v, scale=self.scale, window=self.window, causal=False, dropout=dropout
        )  # (B, H, T, D)
        return self.drop(self.o(merge_heads(y)))


class MLP(nn.Module):
    """The first half of the first layer's output is activated, and multiplied by the second half."""

    def __init__(self, config: "ModernBertConfig") -> None:
        super().__init__()
        self.wi = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.wo = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.act, self.dropout = (
            ACTIVATIONS[config.hidden_activation],
            nn.Dropout(config.mlp_dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        x, gate = self.wi(x).chunk(2, dim=-1)
        return self.wo(self.dropout(self.act(x) * gate))


class Block(nn.Module):
    def __init__(self, config: "ModernBertConfig", layer: int) -> None:
        super().__init__()
        self.attention_norm = norm_of(config) if layer > 0 else None
        self.attention = Attention(config, layer)
        self.mlp_norm, self.mlp = norm_of(config), MLP(config)

    def forward(self, x: Tensor, past: Past, rotation: Rotation) -> Tensor:
        x = x + self.attention(
            x if self.attention_norm is None else self.attention_norm(x), past, rotation
        )
        return x + self.mlp(self.mlp_norm(x))


class ModernBert(Encoder):
    config: "ModernBertConfig"

    def __init__(self, config: "ModernBertConfig") -> None:
        super().__init__()
        self.config = config
        size = config.hidden_size // config.num_attention_heads
        self.ropes = {
            kind: rotary.rope_of(config.ropes[kind], size) for kind in sorted(set(config.kinds))
        }
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.norm = norm_of(config)
        self.layers = BlockList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.final_norm = norm_of(config)
        self.drop = nn.Dropout(config.embedding_dropout)
        self.head = head_of(config)
        self.init_weights(config.initializer_range)

    @property
    def token_embedding(self) -> nn.Embedding:
        return self.embed_tokens

    def body(self, idx: Tensor, past: Past, token_types: Tensor | None = None) -> Tensor:
        x = self.drop(self.norm(self.embed_tokens(idx)))  # (B, T, C)
        # Products in float32, as in training.
        rotations = {
            kind: Rotation(rope, past.positions, torch.float32) for kind, rope in self.ropes.items()
        }
        for block, kind in zip(self.layers, self.config.kinds, strict=True):
            x = block(x, past, rotations[kind])
        return self.final_norm(x)

    def steps(self) -> Iterator[Step]:
        yield Embed(self.embed_tokens)
        yield Norm(self.norm, to_residual=True, dropout=self.drop.p)
        for block in self.layers:
            attn, mlp = block.attention, block.mlp
            if block.attention_norm is not None:
                yield Norm(block.attention_norm)
            yield Linear([attn.qkv])
            yield Rotate(attn.heads, attn.heads, self.ropes[attn.kind])
            yield Attend(
                attn.heads, attn.heads, attn.scale, attn.window, causal=False, dropout=attn.dropout
            )
            yield Add(attn.o, dropout=attn.dropout)
            yield Norm(block.mlp_norm)
            yield Linear([mlp.wi])
            yield Gate(self.config.hidden_activation, dropout=mlp.dropout.p)
            yield Add(mlp.wo)
        yield Norm(self.final_norm)
        yield HiddenStates(self.config.hidden_size)


def norm_of(config: "ModernBertConfig") -> nn.LayerNorm:
    """A layer norm without bias."""
    return nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=False)


def head_of(config: "ModernBertConfig") -> nn.Module | None:
    """The head of the checkpoint."""
    C, labels, p = config.hidden_size, len(config.labels), config.classifier_dropout
    act = ACTIVATIONS[config.classifier_activation]
    if config.head == "masked_lm":
        norm, tied = norm_of(config), config.tie_word_embeddings
        return MaskedLMHead(C, C, config.vocab_size, act, norm, bias=False, tied=tied)
    if config.head == "sequence":
        pooling: Literal["cls", "mean"] = "mean" if config.classifier_pooling == "mean" else "cls"
        return SequenceHead(C, labels, act, norm_of(config), False, pooling, dropout=p)
    if config.head in ("tokens", "questions"):
        return TokenHead(
            C, labels if config.head == "tokens" else 2, dropout=p, act=act, norm=norm_of(config)
        )
    return None


@dataclass(frozen=True)
class ModernBertConfig(HeadSettings, Positions):
    """The settings of config.json that change the result. Defaults: ModernBERT-base."""

    TITLE: ClassVar = "ModernBERT"
    IS_ENCODER: ClassVar = True
    ONLY_VALUE: ClassVar[Mapping[str, object]] = {
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "classifier_bias": False,
        "decoder_bias": True,
        "is_decoder": False,
        "is_causal": False,
    }
    NO_EFFECT: ClassVar = frozenset(
        """
        reference_compile repad_logits_with_grad sparse_prediction sparse_pred_ignore_index deterministic_flash_attn
        initializer_cutoff_factor cls_token_id mask_token_id layer_norm_eps position_embedding_type
        gradient_checkpointing
        """.split()
    )

    vocab_size: int = 50368
    hidden_size: int = 768
    intermediate_size: int = 1152
    num_hidden_layers: int = field(default=22, metadata={"range": (1, 4096)})
    num_attention_heads: int = 12
    hidden_activation: str = field(default="gelu", metadata={"choices": tuple(ACTIVATIONS)})
    max_position_embeddings: int = 8192
    norm_eps: float = 1e-5
    global_attn_every_n_layers: int = field(default=3, metadata={"range": (1, 4096)})
    layer_types: list[str] | None = None  # None: every n-th layer is global, from the first
    local_attention: int = 128  # positions on both sides of the current one
    rope_parameters: dict | None = None  # type: ignore[type-arg]  # one per layer type
    # rope_theta of global and local layers in older files
    global_rope_theta: float | None = field(default=None, metadata={"range": (1, 1e12)})
    local_rope_theta: float | None = field(default=None, metadata={"range": (1, 1e12)})
    attention_dropout: float = 0.0
    embedding_dropout: float = 0.0
    mlp_dropout: float = 0.0
    classifier_pooling: str = field(default="cls", metadata={"choices": ("cls", "mean")})
    classifier_activation: str = field(default="gelu", metadata={"choices": tuple(ACTIVATIONS)})
    classifier_dropout: float = 0.0
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 50281
    eos_token_id: int | list[int] | None = 50282
    pad_token_id: int | None = 50283

    def __post_init__(self) -> None:
        if self.hidden_size % (2 * self.num_attention_heads):
            raise ValueError(
                f"ModernBERT: hidden_size ({self.hidden_size}) must be a multiple of"
                f" num_attention_heads ({self.num_attention_heads}), with an even head size:"
                " because rotary embeddings rotate pairs"
            )
        for kind in sorted(set(self.kinds)):
            rotary.check("ModernBERT", self.ropes[kind])

    @property
    def kinds(self) -> list[str]:
        """Each layer's type."""
        count = self.num_hidden_layers
        if self.layer_types is None:
            return [
                SLIDING if layer % self.global_attn_every_n_layers else FULL
                for layer in range(count)
            ]
        if len(self.layer_types) != count or not set(self.layer_types) <= {FULL, SLIDING}:
            raise ValueError(
                f"ModernBERT: layer_types must be {FULL} or {SLIDING} for each of {count} layers"
            )
        return list(self.layer_types)

    @property
    def windows(self) -> list[int | None]:
        """Each layer's window, on both sides and with the current position; None for all
        positions.
        """
        return [self.local_attention // 2 + 1 if kind == SLIDING else None for kind in self.kinds]

    @property
    def ropes(self) -> dict[str, JsonObject]:
        """rope_parameters of each layer type, with defaults."""
        parameters = self.rope_parameters or {}
        if not all(
            kind in (FULL, SLIDING) and isinstance(rope, dict | None)
            for kind, rope in parameters.items()
        ):
            raise ValueError(
                f"ModernBERT: rope_parameters must contain settings for {FULL} and {SLIDING}"
            )
        ropes = {}
        older = {FULL: ("global_rope_theta", 160000.0), SLIDING: ("local_rope_theta", 10000.0)}
        for kind, (name, default) in older.items():
            rope, theta = parameters.get(kind) or {}, getattr(self, name)
            if theta is not None and rope.get("rope_theta", theta) != theta:
                raise ValueError(
                    f"ModernBERT: config.json has two values of {name}: {theta} and"
                    f" {rope['rope_theta']}"
                )
            ropes[kind] = rotary.completed(
                {"rope_theta": theta or default, **rope}, self.max_position_embeddings
            )
        return ropes

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        settings = {"model_type": "modernbert", **self.hub_settings("ModernBert")}
        del settings["global_attn_every_n_layers"]
        ropes = self.ropes
        thetas = {
            "global_rope_theta": ropes[FULL]["rope_theta"],
            "local_rope_theta": ropes[SLIDING]["rope_theta"],
        }
        return {**settings, **thetas, "layer_types": self.kinds, "rope_parameters": ropes}
