"""OLMo 2, a Llama that norms what its layers give instead of what they read, in one file.

Sources
    Team OLMo (2024), "2 OLMo 2 Furious". Norms after the layers: Liu et al. (2022), "Swin Transformer V2"; norms of q
    and k: Henry et al. (2020), "Query-Key Normalization". For the rest see models/llama.py.
    Hub docs: `transformers`, model_type "olmo2".

What differs from its siblings
    Llama     norms before attention and MLP; q and k are not normed.
    Qwen 3    norms each head of q and k by itself; OLMo 2 all heads of q at once, and all of k.
    Gemma 2   norms before the layers and after them.

Notation
    B batch rows    T positions read in this call    S positions attended to (cached and new)
    C channels, hidden_size    H heads of q    G heads of k and v, H / G of q to each    D head size    V vocabulary
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.inference.cache import KeyValues, Span
from minhub_py.models import rotary
from minhub_py.models.base import ACTIVATIONS, LanguageModel, Step, step


class RMSNorm(nn.Module):
    """x / sqrt(mean of x²) · weight, over the last dimension, in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(dim=-1, keepdim=True) + self.eps)
        return (self.weight * y).to(x.dtype)  # rounded once, after the factor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (i, i + D/2) of x (B, H, T, D) by its position's angle; cos, sin (B or 1, 1, T, D/2), float32."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, config: "Olmo2Config", layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.heads, self.groups, self.size = config.num_attention_heads, config.kv_heads, config.head_dim
        self.dropout = config.attention_dropout
        C, bias, eps = config.hidden_size, config.attention_bias, config.rms_norm_eps
        self.q_proj = nn.Linear(C, self.heads * self.size, bias=bias)
        self.k_proj = nn.Linear(C, self.groups * self.size, bias=bias)
        self.v_proj = nn.Linear(C, self.groups * self.size, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.size, C, bias=bias)
        self.q_norm = RMSNorm(self.heads * self.size, eps)
        self.k_norm = RMSNorm(self.groups * self.size, eps)

    def forward(self, x: Tensor, span: Span, cos: Tensor, sin: Tensor) -> Tensor:
        B, T, C = x.shape
        q = self.q_norm(self.q_proj(x)).view(B, T, self.heads, self.size)  # one norm over all heads
        k = self.k_norm(self.k_proj(x)).view(B, T, self.groups, self.size)
        v = self.v_proj(x).view(B, T, self.groups, self.size).transpose(1, 2)  # (B, G, T, D)
        q = rotate(q.transpose(1, 2), cos, sin)  # (B, H, T, D)
        k = rotate(k.transpose(1, 2), cos, sin)  # (B, G, T, D)
        k, v, seen = span.update(self.layer, k, v)  # (B, G, S, D), (B, G, S, D), (B or 1, S)
        if self.heads != self.groups:
            k = k.repeat_interleave(self.heads // self.groups, dim=1)  # (B, H, S, D)
            v = v.repeat_interleave(self.heads // self.groups, dim=1)
        mask = span.mask(seen)  # (B or 1, 1, T, S), or None
        y = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True if mask is None and T > 1 else False,  # noqa: SIM210  # torch.compile needs a branch
        )  # (B, H, T, D)
        return self.o_proj(y.transpose(1, 2).reshape(B, T, C))


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

    def forward(self, x: Tensor, span: Span, cos: Tensor, sin: Tensor) -> Tensor:
        # The layers read the stream as it is; what they add is normed.
        x = x + self.post_attention_layernorm(self.self_attn(x, span, cos, sin))
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
        # Tied weights: the head is the token embedding itself, so a tied model has no parameter for it.
        tied = config.tie_word_embeddings
        self.lm_head = None if tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=config.initializer_range)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def body(self, idx: Tensor, span: Span) -> Tensor:
        x = self.embed_tokens(idx)  # (B, T, C)
        cos, sin, _ = self.rope(span.positions)  # (B or 1, T, D/2)
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)  # (B or 1, 1, T, D/2); not rounded to 16 bits
        for block in self.layers:
            x = block(x, span, cos, sin)
        return self.norm(x)

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.embed_tokens.weight) if self.lm_head is None else self.lm_head(x)

    def cache_layout(self) -> list[KeyValues]:
        return [KeyValues(self.config.kv_heads, self.config.head_dim)] * self.config.num_hidden_layers

    def steps(self) -> Iterator[Step]:
        block: Any
        yield step("embed", tokens=self.embed_tokens)
        for block in self.layers:
            attn, mlp = block.self_attn, block.mlp
            heads = {"heads": attn.heads, "groups": attn.groups}
            yield step("copy")
            yield step("linear", layers=[attn.q_proj, attn.k_proj, attn.v_proj])
            yield step("rotate", **heads, rope=self.rope, q_norm=attn.q_norm, k_norm=attn.k_norm, whole=True)
            yield step("attend", **heads, scale=attn.size**-0.5, dropout=attn.dropout)
            yield step("add", layer=attn.o_proj, norm=block.post_attention_layernorm)
            yield step("copy")
            yield step("linear", layers=[mlp.gate_proj, mlp.up_proj])
            yield step("gate", activation=self.config.hidden_act)
            yield step("add", layer=mlp.down_proj, norm=block.post_feedforward_layernorm)
        yield step("rms_norm", layer=self.norm)
        yield step("logits", layer=self.embed_tokens if self.lm_head is None else self.lm_head)


@dataclass(frozen=True)
class Olmo2Config:
    """The settings of config.json that change the result, under the Hub's names; defaults are OLMo 2 7B's sizes."""

    TITLE: ClassVar = "OLMo 2"
    DERIVED: ClassVar = ("head_dim",)

    vocab_size: int = 50304
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = field(default=32, metadata={"range": (1, 4096)})
    num_attention_heads: int = 32
    num_key_value_heads: int | None = field(default=None, metadata={"range": (1, 2**24)})  # None: one for each head
    hidden_act: str = field(default="silu", metadata={"choices": tuple(ACTIVATIONS)})
    max_position_embeddings: int = field(default=2048, metadata={"range": (1, 2**31)})
    rms_norm_eps: float = 1e-5
    rope_parameters: dict | None = None  # type: ignore[type-arg]  # rope_type, rope_theta and what belongs to the type
    attention_bias: bool = False
    attention_dropout: float = 0.0
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = 50279
    pad_token_id: int | None = 1

    def __post_init__(self) -> None:
        for name, count in (("hidden_size", self.num_attention_heads), ("num_attention_heads", self.kv_heads)):
            if getattr(self, name) % count:
                other = "num_attention_heads" if name == "hidden_size" else "num_key_value_heads"
                raise ValueError(f"OLMo 2: {name} ({getattr(self, name)}) must be a multiple of {other} ({count})")
        if self.head_dim % 2:
            raise ValueError(f"OLMo 2: the head size ({self.head_dim}) must be even: positions rotate pairs")
        rotary.check("OLMo 2", self.rope)

    @property
    def kv_heads(self) -> int:
        """G, the heads of k and v."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_dim(self) -> int:
        """D."""
        return self.hidden_size // self.num_attention_heads

    @property
    def rope(self) -> dict[str, Any]:
        """rope_parameters with what it leaves out."""
        return rotary.completed(self.rope_parameters, self.max_position_embeddings)

    def to_hub(self) -> dict[str, Any]:
        """The config.json of this model, as transformers reads it."""
        return {
            "architectures": ["Olmo2ForCausalLM"],
            "model_type": "olmo2",
            **asdict(self),
            "rope_parameters": self.rope,
        }

    @property
    def context_length(self) -> int:
        """The most positions that the model can see at once."""
        return self.max_position_embeddings
