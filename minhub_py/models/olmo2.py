"""OLMo 2, a Llama with norms after attention and MLP instead of before them, in one file.

Sources
    Team OLMo (2024), "2 OLMo 2 Furious". Norms after the layers: Liu et al. (2022), "Swin Transformer V2"; norms of q
    and k: Henry et al. (2020), "Query-Key Normalization". For the rest see models/llama.py.
    Hub docs: `transformers`, model_type "olmo2".

Differences from similar architectures
    Llama     has norms before attention and MLP, and no norms of q and k.
    Qwen 3    norms each head of q and k; OLMo 2 norms all heads of q together, and all heads of k.
    Gemma 2   has norms before and after attention and MLP.

Notation
    B batch rows    T new positions    S attended positions (cached and new)
    C channels, hidden_size    H query heads    G KV heads    D head size    V vocabulary
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models import rotary
from minhub_py.models.base import ACTIVATIONS, Classifier, LanguageModel
from minhub_py.models.cache import KeyValues, Layout, Past
from minhub_py.models.heads import HeadSettings
from minhub_py.models.layers import RMSNorm, merge_heads, split_heads
from minhub_py.models.rotary import Rotation
from minhub_py.models.settings import check_multiple
from minhub_py.models.steps import Add, Attend, Embed, Gate, Linear, LoadResidual, Logits, Norm, Rotate, Step


class Attention(nn.Module):
    def __init__(self, config: "Olmo2Config", layer: int) -> None:
        super().__init__()
        C, size, bias, eps = config.hidden_size, config.head_dim, config.attention_bias, config.rms_norm_eps
        self.layer, self.heads, self.kv_heads = layer, config.num_attention_heads, config.kv_heads
        self.scale, self.dropout = size**-0.5, config.attention_dropout
        self.q_proj = nn.Linear(C, self.heads * size, bias=bias)
        self.k_proj = nn.Linear(C, self.kv_heads * size, bias=bias)
        self.v_proj = nn.Linear(C, self.kv_heads * size, bias=bias)
        self.o_proj = nn.Linear(self.heads * size, C, bias=bias)
        self.q_norm = RMSNorm(self.heads * size, eps)  # one norm over all heads
        self.k_norm = RMSNorm(self.kv_heads * size, eps)

    def forward(self, x: Tensor, past: Past, rotation: Rotation) -> Tensor:
        q = split_heads(self.q_norm(self.q_proj(x)), self.heads)  # (B, H, T, D)
        k = split_heads(self.k_norm(self.k_proj(x)), self.kv_heads)  # (B, G, T, D)
        v = split_heads(self.v_proj(x), self.kv_heads)
        q, k = rotation(q, k)
        dropout = self.dropout if self.training else 0.0
        y = past.attend(self.layer, q, k, v, scale=self.scale, dropout=dropout)  # (B, H, T, D)
        return self.o_proj(merge_heads(y))


class MLP(nn.Module):
    def __init__(self, config: "Olmo2Config") -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.act = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, config: "Olmo2Config", layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)
        self.post_feedforward_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, past: Past, rotation: Rotation) -> Tensor:
        # Attention and MLP read the stream itself; their outputs are normed.
        x = x + self.post_attention_layernorm(self.self_attn(x, past, rotation))
        return x + self.post_feedforward_layernorm(self.mlp(x))


class Olmo2(LanguageModel):
    config: "Olmo2Config"

    def __init__(self, config: "Olmo2Config") -> None:
        super().__init__()
        self.config = config
        self.rope = rotary.rope_of(config.rope, config.head_dim)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        # A tied head is the token embedding itself and has no parameter.
        tied = config.tie_word_embeddings
        self.lm_head = None if tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.init_weights(config.initializer_range)

    def body(self, idx: Tensor, past: Past) -> Tensor:
        x = self.embed_tokens(idx)  # (B, T, C)
        rotation = Rotation(self.rope, past.positions, torch.float32)  # not rounded to 16 bits
        for block in self.layers:
            x = block(x, past, rotation)
        return self.norm(x)

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.embed_tokens.weight) if self.lm_head is None else self.lm_head(x)

    def cache_layout(self) -> Layout:
        return [KeyValues(self.config.kv_heads, self.config.head_dim)] * self.config.num_hidden_layers

    def steps(self) -> Iterator[Step]:
        block: Any
        yield Embed(self.embed_tokens)
        for block in self.layers:
            attn, mlp = block.self_attn, block.mlp
            heads = attn.heads, attn.kv_heads
            yield LoadResidual()
            yield Linear([attn.q_proj, attn.k_proj, attn.v_proj])
            yield Rotate(*heads, self.rope, attn.q_norm, attn.k_norm, all_heads=True)
            yield Attend(*heads, attn.scale, dropout=attn.dropout)
            yield Add(attn.o_proj, block.post_attention_layernorm)
            yield LoadResidual()
            yield Linear([mlp.gate_proj, mlp.up_proj])
            yield Gate(self.config.hidden_act)
            yield Add(mlp.down_proj, block.post_feedforward_layernorm)
        yield Norm(self.norm)
        yield Logits(self.embed_tokens if self.lm_head is None else self.lm_head)


class Olmo2Classifier(Classifier, Olmo2):
    """Olmo2 with a sequence classification head in place of the output head."""

    config: "Olmo2Config"


@dataclass(frozen=True)
class Olmo2Config(HeadSettings):
    """The settings of config.json that change the result. Defaults: OLMo 2 7B."""

    TITLE: ClassVar = "OLMo 2"
    DERIVED: ClassVar = ("head_dim",)

    vocab_size: int = 50304
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = field(default=32, metadata={"range": (1, 4096)})
    num_attention_heads: int = 32
    num_key_value_heads: int | None = field(default=None, metadata={"range": (1, 2**24)})  # None: num_attention_heads
    hidden_act: str = field(default="silu", metadata={"choices": tuple(ACTIVATIONS)})
    max_position_embeddings: int = field(default=2048, metadata={"range": (1, 2**31)})
    rms_norm_eps: float = 1e-5
    rope_parameters: dict | None = None  # type: ignore[type-arg]  # rope_type, rope_theta and others
    attention_bias: bool = False
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
        if self.head_dim % 2:
            raise ValueError(f"OLMo 2: the head size ({self.head_dim}) must be even: positions rotate pairs")
        rotary.check("OLMo 2", self.rope)

    @property
    def kv_heads(self) -> int:
        """G."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_dim(self) -> int:
        """D."""
        return self.hidden_size // self.num_attention_heads

    @property
    def rope(self) -> dict[str, Any]:
        """rope_parameters with defaults."""
        return rotary.completed(self.rope_parameters, self.max_position_embeddings)

    def to_hub(self) -> dict[str, Any]:
        """The config.json of this model for transformers."""
        settings = {**self.without_head(), "rope_parameters": self.rope}
        return {**self.hub_head("Olmo2ForCausalLM"), "model_type": "olmo2", **settings}

    @property
    def context_length(self) -> int:
        """Maximum number of positions."""
        return self.max_position_embeddings
