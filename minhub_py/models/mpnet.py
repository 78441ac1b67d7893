"""MPNet, an encoder with bidirectional attention and relative positions.

Sources
    Song et al. (2020), "MPNet: Masked and Permuted Pre-training for Language Understanding"; Raffel
        et al. (2020), "T5", for the relative positions.
    Hub docs: `transformers`, model_type "mpnet".

Differences from similar architectures
    bert      has no relative positions, but token types. MPNet adds a bias per head and distance to
              the scores, with one table for all layers.
    roberta   counts positions in the same way, without padding tokens; its ID of the padding token
    is a setting.

Notation
    B batch rows    T positions    C channels, hidden_size    H heads    D head size, C / H    V
    vocabulary
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.attention import Past, merge_heads, split_heads
from minhub_py.models.encoder import Encoder
from minhub_py.models.heads import HeadSettings, MaskedLMHead, SequenceHead, TokenHead
from minhub_py.models.layers import BlockList, RelativeBias, counted_positions
from minhub_py.models.steps import (
    Add,
    AddPositions,
    Attend,
    Embed,
    HiddenStates,
    Linear,
    Norm,
    Step,
)
from minhub_py.system.json_text import JsonObject

PAD = 1  # ID of the padding token. transformers has the same constant and ignores pad_token_id.
BUCKETS, MAX_DISTANCE = 32, 128  # of the relative positions


class Attention(nn.Module):
    def __init__(self, config: "MPNetConfig", layer: int) -> None:
        super().__init__()
        C = config.hidden_size
        self.layer, self.heads, self.dropout = (
            layer,
            config.num_attention_heads,
            config.attention_probs_dropout_prob,
        )
        self.scale = (C // self.heads) ** -0.5
        self.q, self.k, self.v, self.o = (nn.Linear(C, C) for _ in range(4))

    def forward(self, x: Tensor, past: Past, bias: Tensor) -> Tensor:
        """Attention of x (B, T, C). bias: (1, H, T, T)."""
        # (B, H, T, D) each
        q, k, v = (split_heads(layer(x), self.heads) for layer in (self.q, self.k, self.v))
        dropout = self.dropout if self.training else 0.0
        y = past.attend(
            self.layer, q, k, v, scale=self.scale, bias=bias, causal=False, dropout=dropout
        )
        return self.o(merge_heads(y))


class Block(nn.Module):
    def __init__(self, config: "MPNetConfig", layer: int) -> None:
        super().__init__()
        C, inner, eps = config.hidden_size, config.intermediate_size, config.layer_norm_eps
        self.attention = Attention(config, layer)
        self.attention_norm = nn.LayerNorm(C, eps=eps)
        self.fc1, self.fc2 = nn.Linear(C, inner), nn.Linear(inner, C)
        self.mlp_norm = nn.LayerNorm(C, eps=eps)
        self.act, self.dropout = (
            ACTIVATIONS[config.hidden_act],
            nn.Dropout(config.hidden_dropout_prob),
        )

    def forward(self, x: Tensor, past: Past, bias: Tensor) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x, past, bias)))
        return self.mlp_norm(x + self.dropout(self.fc2(self.act(self.fc1(x)))))


class MPNet(Encoder):
    config: "MPNetConfig"

    def __init__(self, config: "MPNetConfig") -> None:
        super().__init__()
        self.config = config
        C = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, C)
        self.embed_positions = nn.Embedding(config.max_position_embeddings, C)
        self.norm = nn.LayerNorm(C, eps=config.layer_norm_eps)
        self.relative_bias = RelativeBias(
            BUCKETS, config.num_attention_heads, MAX_DISTANCE, bidirectional=True
        )
        self.layers = BlockList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.drop = nn.Dropout(config.hidden_dropout_prob)
        self.head = head_of(config)
        self.init_weights(config.initializer_range)

    @property
    def token_embedding(self) -> nn.Embedding:
        return self.embed_tokens

    def body(self, idx: Tensor, past: Past, token_types: Tensor | None = None) -> Tensor:
        x = self.embed_tokens(idx) + self.embed_positions(counted_positions(idx, PAD))  # (B, T, C)
        x = self.drop(self.norm(x))
        bias = self.relative_bias(past.positions, past.attended)  # (1, H, T, T)
        for block in self.layers:
            x = block(x, past, bias)
        return x

    def steps(self) -> Iterator[Step]:
        act, p = self.config.hidden_act, self.drop.p
        yield Embed(self.embed_tokens)
        yield AddPositions(self.embed_positions, self.config.first_position, PAD)
        yield Norm(self.norm, to_residual=True, dropout=p)
        for block in self.layers:
            attn = block.attention
            yield Linear([attn.q, attn.k, attn.v])
            yield Attend(
                attn.heads,
                attn.heads,
                attn.scale,
                bias=self.relative_bias,
                causal=False,
                dropout=attn.dropout,
            )
            yield Add(attn.o, dropout=p)
            yield Norm(block.attention_norm, to_residual=True)
            yield Linear([block.fc1], act)
            yield Add(block.fc2, dropout=p)
            yield Norm(block.mlp_norm, to_residual=True)
        yield HiddenStates(self.config.hidden_size)


def head_of(config: "MPNetConfig") -> nn.Module | None:
    """The head of the checkpoint."""
    C, labels, p = config.hidden_size, len(config.labels), config.hidden_dropout_prob
    if config.head == "masked_lm":
        norm = nn.LayerNorm(C, eps=config.layer_norm_eps)
        tied = config.tie_word_embeddings
        return MaskedLMHead(
            C, C, config.vocab_size, F.gelu, norm, bias=True, tied=tied, own_bias=True
        )
    if config.head == "sequence":
        return SequenceHead(C, labels, ACTIVATIONS["tanh"], dropout=p, input_dropout=p)
    if config.head == "questions":
        return TokenHead(C, 2)
    return TokenHead(C, labels, dropout=p) if config.head == "tokens" else None


@dataclass(frozen=True)
class MPNetConfig(HeadSettings):
    """The settings of config.json that change the result. Defaults: mpnet-base."""

    TITLE: ClassVar = "MPNet"
    IS_ENCODER: ClassVar = True
    ONLY_VALUE: ClassVar = {
        "relative_attention_num_buckets": BUCKETS,
        "is_decoder": False,
        "is_causal": False,
    }
    NO_EFFECT: ClassVar = frozenset(
        {"classifier_dropout", "gradient_checkpointing", "layer_norm_epsilon"}
    )

    vocab_size: int = 30527
    hidden_size: int = 768
    num_hidden_layers: int = field(default=12, metadata={"range": (1, 4096)})
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = field(default="gelu", metadata={"choices": tuple(ACTIVATIONS)})
    max_position_embeddings: int = field(default=512, metadata={"range": (PAD + 2, 2**24)})
    layer_norm_eps: float = 1e-12
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 2
    pad_token_id: int | None = field(default=PAD, metadata={"choices": (PAD,)})

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"MPNet: hidden_size ({self.hidden_size}) must be a multiple of num_attention_heads"
                f" ({self.num_attention_heads})"
            )

    @property
    def uncounted_token(self) -> int:
        """The padding token, which positions do not count (layers.counted_positions)."""
        return PAD

    @property
    def first_position(self) -> int:
        """The row of the position embedding for the first token."""
        return PAD + 1

    @property
    def context_length(self) -> int:
        """Maximum number of positions."""
        return self.max_position_embeddings - self.first_position

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        return {"model_type": "mpnet", **self.hub_settings("MPNet")}
