"""Phi, small models whose attention and MLP read one norm of the stream side by side, in one file.

Sources
    Gunasekar et al. (2023), "Textbooks Are All You Need" (phi-1); Li et al. (2023), phi-1.5; Javaheripi et al. (2023),
    phi-2. Hub docs: `transformers`, model_type "phi". Phi-3 and Phi-4 are of another model_type.

What differs from its siblings
    GPT-J       one norm too, but pairs of neighbours, no biases in attention, and no groups of heads.
    GPT-NeoX    has a norm for attention and one for the MLP, and no bias in the head.

Notation
    B batch rows    T positions read in this call    S positions attended to (cached and new)
    C channels, hidden_size    H heads of q    G heads of k and v    D head size, C / H
    R numbers of a head that are rotated    V vocabulary
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


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (i, i + R/2) of x (B, H, T, D) by its position's angle; the numbers from R on stay as they are.

    cos, sin: (B or 1, 1, T, R/2).
    """
    half = cos.size(-1)
    first, second, rest = x.split([half, half, x.size(-1) - 2 * half], dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


class Attention(nn.Module):
    def __init__(self, config: "PhiConfig", layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.heads, self.groups, self.size = config.num_attention_heads, config.kv_heads, config.head_size
        self.dropout = config.attention_dropout
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.k_proj = nn.Linear(config.hidden_size, self.groups * self.size)
        self.v_proj = nn.Linear(config.hidden_size, self.groups * self.size)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor, span: Span, cos: Tensor, sin: Tensor) -> Tensor:
        B, T, C = x.shape
        q = rotate(self.q_proj(x).view(B, T, self.heads, -1).transpose(1, 2), cos, sin)  # (B, H, T, D)
        k = rotate(self.k_proj(x).view(B, T, self.groups, -1).transpose(1, 2), cos, sin)  # (B, G, T, D)
        v = self.v_proj(x).view(B, T, self.groups, -1).transpose(1, 2)
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
        return self.dense(y.transpose(1, 2).reshape(B, T, C))


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

    def forward(self, x: Tensor, span: Span, cos: Tensor, sin: Tensor) -> Tensor:
        h = self.input_layernorm(x)
        return x + self.dropout(self.self_attn(h, span, cos, sin)) + self.dropout(self.mlp(h))


class Phi(LanguageModel):
    config: "PhiConfig"

    def __init__(self, config: "PhiConfig") -> None:
        super().__init__()
        self.config = config
        self.rope = rotary.rope_of(config.rope, config.rotated)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.drop = nn.Dropout(config.embd_pdrop)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.final_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=config.initializer_range)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
        # Tied weights: the head is the token embedding itself, so a tied model has no parameter for it, only a bias.
        if config.tie_word_embeddings:
            self.lm_head.register_parameter("weight", None)

    def body(self, idx: Tensor, span: Span) -> Tensor:
        x = self.drop(self.embed_tokens(idx))  # (B, T, C)
        cos, sin, _ = self.rope(span.positions)  # (B or 1, T, R/2)
        cos, sin = cos.to(x.dtype).unsqueeze(1), sin.to(x.dtype).unsqueeze(1)  # (B or 1, 1, T, R/2)
        for block in self.layers:
            x = block(x, span, cos, sin)
        return self.final_layernorm(x)

    def logits(self, x: Tensor) -> Tensor:
        tied = self.config.tie_word_embeddings
        return F.linear(x, self.embed_tokens.weight if tied else self.lm_head.weight, self.lm_head.bias)

    def cache_layout(self) -> list[KeyValues]:
        return [KeyValues(self.config.kv_heads, self.config.head_size)] * self.config.num_hidden_layers

    def steps(self) -> Iterator[Step]:
        block: Any
        yield step("embed", tokens=self.embed_tokens, dropout=self.drop.p)
        for block in self.layers:
            attn, mlp, p = block.self_attn, block.mlp, block.dropout.p
            heads = {"heads": attn.heads, "groups": attn.groups}
            yield step("keep")
            yield step("norm", layer=block.input_layernorm)
            yield step("linear", layers=[attn.q_proj, attn.k_proj, attn.v_proj])
            yield step("rotate", **heads, rope=self.rope)
            yield step("attend", **heads, scale=attn.size**-0.5, dropout=attn.dropout)
            yield step("add", layer=attn.dense, dropout=p)
            yield step("norm", layer=block.input_layernorm, kept=True)  # as before: of what the block was given
            yield step("linear", layers=[mlp.fc1], activation=self.config.hidden_act)
            yield step("add", layer=mlp.fc2, dropout=p)
        yield step("norm", layer=self.final_layernorm)
        tied = self.config.tie_word_embeddings
        yield step("logits", layer=self.embed_tokens if tied else self.lm_head, bias=self.lm_head.bias)


@dataclass(frozen=True)
class PhiConfig:
    """The settings of config.json that change the result, under the Hub's names; defaults are phi-1's."""

    TITLE: ClassVar = "Phi"
    ONLY_VALUE: ClassVar = {"qk_layernorm": False}  # no published model has norms of q and k
    ROPE_NAMES: ClassVar = {"partial_rotary_factor": "partial_rotary_factor"}

    vocab_size: int = 51200
    hidden_size: int = 2048
    intermediate_size: int = 8192
    num_hidden_layers: int = field(default=24, metadata={"range": (1, 4096)})
    num_attention_heads: int = 32
    num_key_value_heads: int | None = field(default=None, metadata={"range": (1, 2**24)})  # None: one for each head
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
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"Phi: hidden_size ({self.hidden_size}) must be a multiple of "
                f"num_attention_heads ({self.num_attention_heads})"
            )
        if self.num_attention_heads % self.kv_heads:
            raise ValueError(
                f"Phi: num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({self.kv_heads})"
            )
        rotary.check("Phi", self.rope, partial=True)
        if self.rotated < 2 or self.rotated % 2:
            raise ValueError(
                f"Phi: partial_rotary_factor rotates {self.rotated} of a head's {self.head_size} numbers: "
                "it must be an even number of at least 2"
            )

    @property
    def kv_heads(self) -> int:
        """G, the heads of k and v."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_size(self) -> int:
        """D."""
        return self.hidden_size // self.num_attention_heads

    @property
    def rotated(self) -> int:
        """R."""
        return int(self.head_size * self.rope["partial_rotary_factor"])

    @property
    def rope(self) -> dict[str, Any]:
        """rope_parameters with what it leaves out."""
        return {"partial_rotary_factor": 0.5, **rotary.completed(self.rope_parameters, self.max_position_embeddings)}

    def to_hub(self) -> dict[str, Any]:
        """The config.json of this model, as transformers reads it."""
        return {
            "architectures": ["PhiForCausalLM"],
            "model_type": "phi",
            **asdict(self),
            "rope_parameters": self.rope,
        }

    @property
    def context_length(self) -> int:
        """The most positions that the model can see at once."""
        return self.max_position_embeddings
