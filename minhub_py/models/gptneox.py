"""GPT-NeoX, a GPT with rotary positions whose attention and MLP read the same stream side by side, in one file.

Sources
    Black et al. (2022), "GPT-NeoX-20B"; Biderman et al. (2023), "Pythia".
    Parallel residual: Wang & Komatsuzaki (2021), GPT-J. Rotary positions: Su et al. (2021), "RoFormer".
    Hub docs: `transformers`, model_type "gpt_neox".

What differs from its siblings
    GPT-2    learns its positions, and its MLP reads what attention has added.
    Llama    rotates all of a head, where NeoX rotates a quarter; RMS norm, no biases, a gated MLP.

Notation
    B batch rows    T positions read in this call    S positions attended to (cached and new)
    C channels, hidden_size    H heads    D head size, C / H    R numbers of a head that are rotated    V vocabulary
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
    def __init__(self, config: "GPTNeoXConfig", layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.heads, self.size = config.num_attention_heads, config.head_size
        self.dropout = config.attention_dropout
        # The Hub's rows lie head by head, q, k and v of each; the weight table makes them all q, all k, all v.
        self.query_key_value = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=config.attention_bias)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=config.attention_bias)

    def forward(self, x: Tensor, span: Span, cos: Tensor, sin: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = self.query_key_value(x).split(C, dim=2)  # each (B, T, C)
        q = rotate(q.view(B, T, self.heads, -1).transpose(1, 2), cos, sin)  # (B, H, T, D)
        k = rotate(k.view(B, T, self.heads, -1).transpose(1, 2), cos, sin)
        v = v.view(B, T, self.heads, -1).transpose(1, 2)
        k, v, seen = span.update(self.layer, k, v)  # (B, H, S, D), (B, H, S, D), (B or 1, S)
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
    def __init__(self, config: "GPTNeoXConfig") -> None:
        super().__init__()
        self.dense_h_to_4h = nn.Linear(config.hidden_size, config.intermediate_size)
        self.dense_4h_to_h = nn.Linear(config.intermediate_size, config.hidden_size)
        self.act = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        return self.dense_4h_to_h(self.act(self.dense_h_to_4h(x)))


class Block(nn.Module):
    def __init__(self, config: "GPTNeoXConfig", layer: int) -> None:
        super().__init__()
        self.parallel = config.use_parallel_residual
        self.input_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.post_attention_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.attention = Attention(config, layer)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, x: Tensor, span: Span, cos: Tensor, sin: Tensor) -> Tensor:
        y = x + self.dropout(self.attention(self.input_layernorm(x), span, cos, sin))
        # In parallel the MLP does not see what attention has just added. Two norms of one stream, not one.
        return y + self.dropout(self.mlp(self.post_attention_layernorm(x if self.parallel else y)))


class GPTNeoX(LanguageModel):
    config: "GPTNeoXConfig"

    def __init__(self, config: "GPTNeoXConfig") -> None:
        super().__init__()
        self.config = config
        self.rope = rotary.rope_of(config.rope, config.rotated)
        self.embed_in = nn.Embedding(config.vocab_size, config.hidden_size)
        self.drop = nn.Dropout(config.hidden_dropout)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.final_layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        # Tied weights: the head is the token embedding itself, so a tied model has no parameter for it.
        tied = config.tie_word_embeddings
        self.embed_out = None if tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=config.initializer_range)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def body(self, idx: Tensor, span: Span) -> Tensor:
        x = self.drop(self.embed_in(idx))  # (B, T, C)
        cos, sin, _ = self.rope(span.positions)  # (B or 1, T, R/2)
        cos, sin = cos.to(x.dtype).unsqueeze(1), sin.to(x.dtype).unsqueeze(1)  # (B or 1, 1, T, R/2)
        for block in self.layers:
            x = block(x, span, cos, sin)
        return self.final_layer_norm(x)

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.embed_in.weight) if self.embed_out is None else self.embed_out(x)

    def cache_layout(self) -> list[KeyValues]:
        return [KeyValues(self.config.num_attention_heads, self.config.head_size)] * self.config.num_hidden_layers

    def steps(self) -> Iterator[Step]:
        block: Any
        yield step("embed", tokens=self.embed_in, dropout=self.drop.p)
        for block in self.layers:
            attn, mlp, p = block.attention, block.mlp, block.dropout.p
            if block.parallel:
                yield step("keep")
            yield step("norm", layer=block.input_layernorm)
            yield step("linear", layers=[attn.query_key_value])
            yield step("rotate", heads=attn.heads, rope=self.rope)
            yield step("attend", heads=attn.heads, scale=attn.size**-0.5, dropout=attn.dropout)
            yield step("add", layer=attn.dense, dropout=p)
            yield step("norm", layer=block.post_attention_layernorm, kept=block.parallel)
            yield step("linear", layers=[mlp.dense_h_to_4h], activation=self.config.hidden_act)
            yield step("add", layer=mlp.dense_4h_to_h, dropout=p)
        yield step("norm", layer=self.final_layer_norm)
        yield step("logits", layer=self.embed_in if self.embed_out is None else self.embed_out)


@dataclass(frozen=True)
class GPTNeoXConfig:
    """The settings of config.json that change the result, under the Hub's names; defaults are GPT-NeoX 20B's."""

    TITLE: ClassVar = "GPT-NeoX"
    NO_EFFECT: ClassVar = frozenset({"classifier_dropout"})
    ROPE_NAMES: ClassVar = {"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"}

    vocab_size: int = 50432
    hidden_size: int = 6144
    num_hidden_layers: int = field(default=44, metadata={"range": (1, 4096)})
    num_attention_heads: int = 64
    intermediate_size: int = 24576
    hidden_act: str = field(default="gelu", metadata={"choices": tuple(ACTIVATIONS)})
    rope_parameters: dict | None = None  # type: ignore[type-arg]  # rope_type, rope_theta, partial_rotary_factor
    use_parallel_residual: bool = True
    attention_bias: bool = True
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    max_position_embeddings: int = field(default=2048, metadata={"range": (1, 2**31)})
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-5
    tie_word_embeddings: bool = False
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 2
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"GPT-NeoX: hidden_size ({self.hidden_size}) must be a multiple of "
                f"num_attention_heads ({self.num_attention_heads})"
            )
        rotary.check("GPT-NeoX", self.rope, partial=True)
        if self.rotated < 2 or self.rotated % 2:
            raise ValueError(
                f"GPT-NeoX: partial_rotary_factor rotates {self.rotated} of a head's {self.head_size} numbers: "
                "it must be an even number of at least 2"
            )

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
        return {"partial_rotary_factor": 0.25, **rotary.completed(self.rope_parameters, self.max_position_embeddings)}

    def to_hub(self) -> dict[str, Any]:
        """The config.json of this model, as transformers reads it."""
        return {
            "architectures": ["GPTNeoXForCausalLM"],
            "model_type": "gpt_neox",
            **asdict(self),
            "rope_parameters": self.rope,
        }

    @property
    def context_length(self) -> int:
        """The most positions that the model can see at once."""
        return self.max_position_embeddings
