"""Phi, small models with a parallel residual: attention and MLP read the same norm of the stream.
In one file.

Sources
    Gunasekar et al. (2023), "Textbooks Are All You Need" (phi-1); Li et al. (2023), phi-1.5;
        Javaheripi et al. (2023), phi-2. Hub docs: `transformers`, model_type "phi". Phi-3 and Phi-4
        have another model_type.

Differences from similar architectures
    GPT-J       has one norm, too, rotates the pairs (2i, 2i + 1), and has no biases in attention.
    GPT-NeoX    has a norm for attention and another for the MLP, and no bias in the head.

Notation
    B batch rows    T new positions    S attended positions (cached and new)
    C channels, hidden_size    H query heads    G KV heads    D head size, C / H
    R rotated numbers of a head    V vocabulary
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models import rotary
from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.attention import Past, merge_heads, split_heads
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import KeyValues, Layout
from minhub_py.models.heads import HeadSettings
from minhub_py.models.layers import BlockList
from minhub_py.models.rotary import Rotation
from minhub_py.models.settings import Positions, check_multiple, check_rotated
from minhub_py.models.steps import (
    Add,
    Attend,
    Embed,
    Linear,
    Logits,
    Norm,
    Rotate,
    SaveResidual,
    Step,
)
from minhub_py.system.json_text import JsonObject


class Attention(nn.Module):
    def __init__(self, config: "PhiConfig", layer: int) -> None:
        super().__init__()
        self.layer, self.heads, self.kv_heads = layer, config.num_attention_heads, config.kv_heads
        self.scale, self.dropout = config.head_size**-0.5, config.attention_dropout
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.k_proj = nn.Linear(config.hidden_size, self.kv_heads * config.head_size)
        self.v_proj = nn.Linear(config.hidden_size, self.kv_heads * config.head_size)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor, past: Past, rotation: Rotation) -> Tensor:
        q = split_heads(self.q_proj(x), self.heads)  # (B, H, T, D)
        k = split_heads(self.k_proj(x), self.kv_heads)  # (B, G, T, D)
        v = split_heads(self.v_proj(x), self.kv_heads)
        q, k = rotation(q, k)
        dropout = self.dropout if self.training else 0.0
        y = past.attend(self.layer, q, k, v, scale=self.scale, dropout=dropout)  # (B, H, T, D)
        return self.dense(merge_heads(y))


class MLP(nn.Module):
    def __init__(self, config: "PhiConfig") -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)
        self.act = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, config: "PhiConfig", layer: int) -> None:
        super().__init__()
        self.input_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.self_attn = Attention(config, layer)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(config.resid_pdrop)

    def forward(self, x: Tensor, past: Past, rotation: Rotation) -> Tensor:
        h = self.input_layernorm(x)
        return x + self.dropout(self.self_attn(h, past, rotation)) + self.dropout(self.mlp(h))


class Phi(LanguageModel):
    config: "PhiConfig"
    lm_head: nn.Linear

    def __init__(self, config: "PhiConfig") -> None:
        super().__init__()
        self.config = config
        self.rope = rotary.rope_of(config.rope, config.rotated)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.drop = nn.Dropout(config.embd_pdrop)
        self.layers = BlockList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.final_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.init_weights(config.initializer_range)
        # A tied head is the token embedding itself: it has a bias and no weight.
        if config.tie_word_embeddings:
            self.lm_head.register_parameter("weight", None)

    def body(self, idx: Tensor, past: Past) -> Tensor:
        x = self.drop(self.embed_tokens(idx))  # (B, T, C)
        rotation = Rotation(self.rope, past.positions, x.dtype)
        for block in self.layers:
            x = block(x, past, rotation)
        return self.final_layernorm(x)

    def logits(self, x: Tensor) -> Tensor:
        tied = self.config.tie_word_embeddings
        return F.linear(
            x, self.embed_tokens.weight if tied else self.lm_head.weight, self.lm_head.bias
        )

    def cache_layout(self) -> Layout:
        return [
            KeyValues(self.config.kv_heads, self.config.head_size)
        ] * self.config.num_hidden_layers

    def steps(self) -> Iterator[Step]:
        yield Embed(self.embed_tokens, dropout=self.drop.p)
        for block in self.layers:
            attn, mlp, p = block.self_attn, block.mlp, block.dropout.p
            heads = attn.heads, attn.kv_heads
            yield SaveResidual()
            yield Norm(block.input_layernorm)
            yield Linear([attn.q_proj, attn.k_proj, attn.v_proj])
            yield Rotate(*heads, self.rope)
            yield Attend(*heads, attn.scale, dropout=attn.dropout)
            yield Add(attn.dense, dropout=p)
            yield Norm(block.input_layernorm, saved=True)  # the norm of the block's input again
            yield Linear([mlp.fc1], self.config.hidden_act)
            yield Add(mlp.fc2, dropout=p)
        yield Norm(self.final_layernorm)
        if self.lm_head is not None:
            yield Logits(
                self.embed_tokens if self.config.tie_word_embeddings else self.lm_head,
                self.lm_head.bias,
            )


@dataclass(frozen=True)
class PhiConfig(HeadSettings, Positions):
    """The settings of config.json that change the result. Defaults: phi-1."""

    TITLE: ClassVar = "Phi"
    ONLY_VALUE: ClassVar = {"qk_layernorm": False}  # no published model has norms of q and k
    ROPE_NAMES: ClassVar = {"partial_rotary_factor": "partial_rotary_factor"}

    vocab_size: int = 51200
    hidden_size: int = 2048
    intermediate_size: int = 8192
    num_hidden_layers: int = field(default=24, metadata={"range": (1, 4096)})
    num_attention_heads: int = 32
    # None: num_attention_heads
    num_key_value_heads: int | None = field(default=None, metadata={"range": (1, 2**24)})
    hidden_act: str = field(default="gelu_new", metadata={"choices": tuple(ACTIVATIONS)})
    rope_parameters: dict | None = None  # type: ignore[type-arg]  # rope_type, rope_theta, partial_rotary_factor
    attention_dropout: float = 0.0
    resid_pdrop: float = 0.0
    embd_pdrop: float = 0.0
    max_position_embeddings: int = field(default=2048, metadata={"range": (1, 2**31)})
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-5
    tie_word_embeddings: bool = False
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        self.drop_unused_labels()
        check_multiple(self, "hidden_size", "num_attention_heads")
        check_multiple(self, "num_attention_heads", "num_key_value_heads")
        rotary.check("Phi", self.rope, partial=True)
        check_rotated("Phi", self.rotated, self.head_size)

    @property
    def kv_heads(self) -> int:
        """Number of KV heads (G)."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_size(self) -> int:
        """Number of channels of a head (D)."""
        return self.hidden_size // self.num_attention_heads

    @property
    def rotated(self) -> int:
        """Number of rotated channels of a head (R)."""
        return int(self.head_size * self.rope["partial_rotary_factor"])

    @property
    def rope(self) -> JsonObject:
        """rope_parameters with defaults."""
        return {
            "partial_rotary_factor": 0.5,
            **rotary.completed(self.rope_parameters, self.max_position_embeddings),
        }

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        settings = {**self.without_head(), "rope_parameters": self.rope}
        return {**self.hub_head("PhiForCausalLM"), "model_type": "phi", **settings}
