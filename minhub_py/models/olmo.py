"""OLMo, the first version: Llama with norms without weights. In one file.

Sources
    Groeneveld et al. (2024), "OLMo: Accelerating the Science of Language Models"; models/llama.py for
        the rest.
    Hub docs: `transformers`, model_type "olmo". OLMo 2 and 3 have another model_type.

Differences from similar architectures
    Llama     has RMS norms with weights. OLMo 1.7 also clips q, k and v.
    OLMo 2    has RMS norms after attention and MLP, and norms of q and k.

Notation
    B batch rows    T new positions    S attended positions (cached and new)
    C channels, hidden_size    H query heads    G KV heads    D head size, C / H    V vocabulary
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models import rotary
from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.attention import Past, merge_heads, split_heads
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import KeyValues, Layout
from minhub_py.models.heads import HeadSettings
from minhub_py.models.layers import BlockList, clipped
from minhub_py.models.mlp import GatedMLP
from minhub_py.models.rotary import Rotation
from minhub_py.models.settings import Positions, check_multiple, check_rotated
from minhub_py.models.steps import Add, Attend, Embed, Linear, Logits, Norm, Rotate, Step
from minhub_py.system.json_text import JsonObject

EPSILON = 1e-5


def norm(channels: int) -> nn.LayerNorm:
    """Layer norm without weight and bias."""
    return nn.LayerNorm(channels, EPSILON, elementwise_affine=False)


class Attention(nn.Module):
    def __init__(self, config: "OlmoConfig", layer: int) -> None:
        super().__init__()
        C, D, bias = config.hidden_size, config.head_size, config.attention_bias
        self.layer, self.heads, self.kv_heads = layer, config.num_attention_heads, config.kv_heads
        self.scale, self.dropout, self.clip = D**-0.5, config.attention_dropout, config.clip_qkv
        self.q_proj = nn.Linear(C, self.heads * D, bias=bias)
        self.k_proj = nn.Linear(C, self.kv_heads * D, bias=bias)
        self.v_proj = nn.Linear(C, self.kv_heads * D, bias=bias)
        self.o_proj = nn.Linear(self.heads * D, C, bias=bias)

    def forward(self, x: Tensor, past: Past, rotation: Rotation) -> Tensor:
        q = split_heads(clipped(self.q_proj(x), self.clip), self.heads)  # (B, H, T, D)
        k = split_heads(clipped(self.k_proj(x), self.clip), self.kv_heads)  # (B, G, T, D)
        v = split_heads(clipped(self.v_proj(x), self.clip), self.kv_heads)
        q, k = rotation(q, k)
        dropout = self.dropout if self.training else 0.0
        y = past.attend(self.layer, q, k, v, scale=self.scale, dropout=dropout)  # (B, H, T, D)
        return self.o_proj(merge_heads(y))


class Block(nn.Module):
    def __init__(self, config: "OlmoConfig", layer: int) -> None:
        super().__init__()
        C = config.hidden_size
        self.input_layernorm, self.post_attention_layernorm = norm(C), norm(C)
        self.self_attn = Attention(config, layer)
        self.mlp = GatedMLP(C, config.intermediate_size, config.hidden_act)

    def forward(self, x: Tensor, past: Past, rotation: Rotation) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), past, rotation)
        return x + self.mlp(self.post_attention_layernorm(x))


class Olmo(LanguageModel):
    config: "OlmoConfig"

    def __init__(self, config: "OlmoConfig") -> None:
        super().__init__()
        self.config = config
        self.rope = rotary.rope_of(config.rope, config.head_size)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = BlockList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = norm(config.hidden_size)
        # A tied head is the token embedding itself and has no parameter.
        tied = config.tie_word_embeddings
        self.lm_head = (
            None if tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        )
        self.init_weights(config.initializer_range)

    def body(self, idx: Tensor, past: Past) -> Tensor:
        x = self.embed_tokens(idx)  # (B, T, C)
        # cosine and sine are not rounded to 16 bits
        rotation = Rotation(self.rope, past.positions, torch.float32)
        for block in self.layers:
            x = block(x, past, rotation)
        return self.norm(x)

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.embed_tokens.weight) if self.lm_head is None else self.lm_head(x)

    def cache_layout(self) -> Layout:
        return [
            KeyValues(self.config.kv_heads, self.config.head_size)
        ] * self.config.num_hidden_layers

    def steps(self) -> Iterator[Step]:
        yield Embed(self.embed_tokens)
        for block in self.layers:
            attn = block.self_attn
            heads = attn.heads, attn.kv_heads
            yield Norm(block.input_layernorm)
            yield Linear([attn.q_proj, attn.k_proj, attn.v_proj], clip=attn.clip)
            yield Rotate(*heads, self.rope)
            yield Attend(*heads, attn.scale, dropout=attn.dropout)
            yield Add(attn.o_proj)
            yield Norm(block.post_attention_layernorm)
            yield from block.mlp.steps()
        yield Norm(self.norm)
        yield Logits(self.embed_tokens if self.lm_head is None else self.lm_head)


@dataclass(frozen=True)
class OlmoConfig(HeadSettings, Positions):
    """The settings of config.json that change the result. Defaults: OLMo 7B."""

    TITLE: ClassVar = "OLMo"
    NO_EFFECT: ClassVar = frozenset({"pretraining_tp"})

    vocab_size: int = 50304
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = field(default=32, metadata={"range": (1, 4096)})
    num_attention_heads: int = 32
    # None: num_attention_heads
    num_key_value_heads: int | None = field(default=None, metadata={"range": (1, 2**24)})
    hidden_act: str = field(default="silu", metadata={"choices": tuple(ACTIVATIONS)})
    max_position_embeddings: int = field(default=2048, metadata={"range": (1, 2**31)})
    rope_parameters: dict | None = None  # type: ignore[type-arg]  # rope_type, rope_theta and others
    attention_bias: bool = False
    # the largest absolute value of q, k and v
    clip_qkv: float | None = field(default=None, metadata={"range": (1e-6, 1e6)})
    attention_dropout: float = 0.0
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = 50279
    pad_token_id: int | None = 1

    def __post_init__(self) -> None:
        self.drop_unused_labels()
        check_multiple(self, "hidden_size", "num_attention_heads")
        check_multiple(self, "num_attention_heads", "num_key_value_heads")
        rotary.check("OLMo", self.rope)
        check_rotated("OLMo", self.head_size, self.head_size)

    @property
    def kv_heads(self) -> int:
        """Number of KV heads (G)."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_size(self) -> int:
        """Number of channels of a head (D)."""
        return self.hidden_size // self.num_attention_heads

    @property
    def rope(self) -> JsonObject:
        """rope_parameters with defaults."""
        return rotary.completed(self.rope_parameters, self.max_position_embeddings)

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        settings = {**self.without_head(), "rope_parameters": self.rope}
        return {**self.hub_head("OlmoForCausalLM"), "model_type": "olmo", **settings}
