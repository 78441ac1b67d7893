"""GPT-NeoX, a GPT with rotary positions and a parallel residual: attention and MLP read the same
stream. In one file.

Sources
    Black et al. (2022), "GPT-NeoX-20B"; Biderman et al. (2023), "Pythia".
    Parallel residual: Wang & Komatsuzaki (2021), GPT-J. Rotary positions: Su et al. (2021),
        "RoFormer".
    Hub docs: `transformers`, model_type "gpt_neox".

Differences from similar architectures
    GPT-2    has learned positions, and its MLP reads the stream after attention.
    Llama    rotates whole heads, NeoX a quarter of them; Llama has RMS norm, no biases, and a gated
    MLP.

Notation
    B batch rows    T new positions    S attended positions (cached and new)
    C channels, hidden_size    H heads    D head size, C / H    R rotated numbers of a head    V
    vocabulary
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models import rotary
from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.attention import Past, merge_heads, split_qkv
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
    def __init__(self, config: "GPTNeoXConfig", layer: int) -> None:
        super().__init__()
        self.layer, self.heads, self.scale = (
            layer,
            config.num_attention_heads,
            config.head_size**-0.5,
        )
        self.dropout = config.attention_dropout
        # The Hub's rows are sorted by head, with q, k and v of each; the weight table sorts them by
        # q, k and v.
        self.query_key_value = nn.Linear(
            config.hidden_size, 3 * config.hidden_size, bias=config.attention_bias
        )
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=config.attention_bias)

    def forward(self, x: Tensor, past: Past, rotation: Rotation) -> Tensor:
        q, k, v = split_qkv(self.query_key_value(x), self.heads, self.heads)  # (B, H, T, D) each
        q, k = rotation(q, k)
        dropout = self.dropout if self.training else 0.0
        y = past.attend(self.layer, q, k, v, scale=self.scale, dropout=dropout)  # (B, H, T, D)
        return self.dense(merge_heads(y))


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

    def forward(self, x: Tensor, past: Past, rotation: Rotation) -> Tensor:
        y = x + self.dropout(self.attention(self.input_layernorm(x), past, rotation))
        # In parallel the MLP reads the stream before attention, with its own norm.
        return y + self.dropout(self.mlp(self.post_attention_layernorm(x if self.parallel else y)))


class GPTNeoX(LanguageModel):
    config: "GPTNeoXConfig"

    def __init__(self, config: "GPTNeoXConfig") -> None:
        super().__init__()
        self.config = config
        self.rope = rotary.rope_of(config.rope, config.rotated)
        self.embed_in = nn.Embedding(config.vocab_size, config.hidden_size)
        self.drop = nn.Dropout(config.hidden_dropout)
        self.layers = BlockList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.final_layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        # A tied head is the token embedding itself and has no parameter.
        tied = config.tie_word_embeddings
        self.embed_out = (
            None if tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        )
        self.init_weights(config.initializer_range)

    def body(self, idx: Tensor, past: Past) -> Tensor:
        x = self.drop(self.embed_in(idx))  # (B, T, C)
        rotation = Rotation(self.rope, past.positions, x.dtype)
        for block in self.layers:
            x = block(x, past, rotation)
        return self.final_layer_norm(x)

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.embed_in.weight) if self.embed_out is None else self.embed_out(x)

    def cache_layout(self) -> Layout:
        return [
            KeyValues(self.config.num_attention_heads, self.config.head_size)
        ] * self.config.num_hidden_layers

    def remove_head(self) -> None:
        """See `LanguageModel.remove_head`."""
        self.embed_out = None

    def steps(self) -> Iterator[Step]:
        yield Embed(self.embed_in, dropout=self.drop.p)
        for block in self.layers:
            attn, mlp, p = block.attention, block.mlp, block.dropout.p
            if block.parallel:
                yield SaveResidual()
            yield Norm(block.input_layernorm)
            yield Linear([attn.query_key_value])
            yield Rotate(attn.heads, attn.heads, self.rope)
            yield Attend(attn.heads, attn.heads, attn.scale, dropout=attn.dropout)
            yield Add(attn.dense, dropout=p)
            yield Norm(block.post_attention_layernorm, saved=block.parallel)
            yield Linear([mlp.dense_h_to_4h], self.config.hidden_act)
            yield Add(mlp.dense_4h_to_h, dropout=p)
        yield Norm(self.final_layer_norm)
        yield Logits(self.embed_in if self.embed_out is None else self.embed_out)


@dataclass(frozen=True)
class GPTNeoXConfig(HeadSettings, Positions):
    """The settings of config.json that change the result. Defaults: GPT-NeoX 20B."""

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
        self.drop_unused_labels()
        check_multiple(self, "hidden_size", "num_attention_heads")
        rotary.check("GPT-NeoX", self.rope, partial=True)
        check_rotated("GPT-NeoX", self.rotated, self.head_size)

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
            "partial_rotary_factor": 0.25,
            **rotary.completed(self.rope_parameters, self.max_position_embeddings),
        }

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        settings = {**self.without_head(), "rope_parameters": self.rope}
        return {**self.hub_head("GPTNeoXForCausalLM"), "model_type": "gpt_neox", **settings}
