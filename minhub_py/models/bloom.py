"""BLOOM: a decoder with ALiBi, a bias of the attention scores by the distance, instead of
positions.

Sources
    BigScience Workshop (2022), "BLOOM"; Press et al. (2022), "Train Short, Test Long", for ALiBi.
    Hub docs: `transformers`, model_type "bloom".

Differences from similar architectures
    GPT-2       has learned positions. BLOOM adds a bias to the scores instead, and normalizes its
    embeddings. GPT-NeoX    has rotary embeddings; q, k and v are fused in the same order in the
    Hub's files.

Notation
    B batch rows    T new positions    S attended positions (cached and new)
    C channels, hidden_size    H heads    D head size    V vocabulary
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.attention import Past, merge_heads, split_heads
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import KeyValues, Layout
from minhub_py.models.heads import HeadSettings
from minhub_py.models.layers import ALiBi, BlockList
from minhub_py.models.settings import Positions, check_multiple
from minhub_py.models.steps import Add, Attend, Embed, Linear, Logits, Norm, Step
from minhub_py.system.json_text import JsonObject

NAMES = {
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "seq_length": "max_position_embeddings",
}
ACTIVATION = "gelu_pytorch_tanh"


class Attention(nn.Module):
    def __init__(self, config: "BloomConfig", layer: int) -> None:
        super().__init__()
        C = config.hidden_size
        self.layer, self.heads, self.scale = (
            layer,
            config.num_attention_heads,
            config.head_size**-0.5,
        )
        self.dropout = config.attention_dropout
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(C, C) for _ in "qkvo")

    def forward(self, x: Tensor, past: Past, bias: Tensor) -> Tensor:
        q, k, v = (
            split_heads(layer(x), self.heads) for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        dropout = self.dropout if self.training else 0.0
        # (B, H, T, D)
        y = past.attend(
            self.layer, q, k, v, scale=self.scale, bias=bias, dropout=dropout, upcast=True
        )
        return self.o_proj(merge_heads(y))


class MLP(nn.Module):
    def __init__(self, config: "BloomConfig") -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, 4 * config.hidden_size)
        self.down_proj = nn.Linear(4 * config.hidden_size, config.hidden_size)
        self.act = ACTIVATIONS[ACTIVATION]

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.up_proj(x)))


class Block(nn.Module):
    def __init__(self, config: "BloomConfig", layer: int) -> None:
        super().__init__()
        self.input_layernorm = nn.LayerNorm(config.hidden_size, config.layer_norm_epsilon)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = nn.LayerNorm(config.hidden_size, config.layer_norm_epsilon)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, x: Tensor, past: Past, bias: Tensor) -> Tensor:
        x = x + self.dropout(self.self_attn(self.input_layernorm(x), past, bias))
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))


class Bloom(LanguageModel):
    config: "BloomConfig"

    def __init__(self, config: "BloomConfig") -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.embedding_norm = nn.LayerNorm(config.hidden_size, config.layer_norm_epsilon)
        self.alibi = ALiBi.of(config.num_attention_heads)
        self.layers = BlockList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_epsilon)
        # A tied head is the token embedding itself and has no parameter.
        tied = config.tie_word_embeddings
        self.lm_head = (
            None if tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        )
        self.init_weights(config.initializer_range)

    def body(self, idx: Tensor, past: Past) -> Tensor:
        x = self.embedding_norm(self.embed_tokens(idx))  # (B, T, C)
        bias = self.alibi(past.positions, past.attended)  # (B or 1, H, T, S)
        for block in self.layers:
            x = block(x, past, bias)
        return self.norm(x)

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.embed_tokens.weight) if self.lm_head is None else self.lm_head(x)

    def cache_layout(self) -> Layout:
        return [
            KeyValues(self.config.num_attention_heads, self.config.head_size)
        ] * self.config.num_hidden_layers

    def steps(self) -> Iterator[Step]:
        yield Embed(self.embed_tokens)
        yield Norm(self.embedding_norm, to_residual=True)
        for block in self.layers:
            attn, mlp, p = block.self_attn, block.mlp, block.dropout.p
            yield Norm(block.input_layernorm)
            yield Linear([attn.q_proj, attn.k_proj, attn.v_proj])
            yield Attend(
                attn.heads,
                attn.heads,
                attn.scale,
                bias=self.alibi,
                upcast=True,
                dropout=attn.dropout,
            )
            yield Add(attn.o_proj, dropout=p)
            yield Norm(block.post_attention_layernorm)
            yield Linear([mlp.up_proj], ACTIVATION)
            yield Add(mlp.down_proj, dropout=p)
        yield Norm(self.norm)
        yield Logits(self.embed_tokens if self.lm_head is None else self.lm_head)


@dataclass(frozen=True)
class BloomConfig(HeadSettings, Positions):
    """The settings of config.json that change the result. Defaults: BLOOM 560M.

    max_position_embeddings is seq_length of config.json. ALiBi has no maximum; the models have seen
    2,048 tokens.
    """

    TITLE: ClassVar = "BLOOM"
    MODEL_TYPE: ClassVar = "bloom"
    ARCHITECTURE: ClassVar = "BloomForCausalLM"
    ALIASES: ClassVar = {"bloom": {**NAMES, "n_embed": "hidden_size"}}
    ONLY_VALUE: ClassVar = {"apply_residual_connection_post_layernorm": False}
    NO_EFFECT: ClassVar = frozenset(
        "pretraining_tp slow_but_exact attention_softmax_in_fp32 bias_dropout_fusion"
        " masked_softmax_fusion offset_alibi skip_bias_add skip_bias_add_qkv n_inner".split()
    )

    vocab_size: int = 250880
    hidden_size: int = 1024
    num_hidden_layers: int = field(default=24, metadata={"range": (1, 4096)})
    num_attention_heads: int = 16
    max_position_embeddings: int = field(default=2048, metadata={"range": (1, 2**31)})
    layer_norm_epsilon: float = 1e-5
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    pad_token_id: int | None = 3

    def __post_init__(self) -> None:
        self.drop_unused_labels()
        check_multiple(self, "hidden_size", "num_attention_heads")

    @property
    def head_size(self) -> int:
        """The head size (D)."""
        return self.hidden_size // self.num_attention_heads

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        settings = self.without_head()
        renamed = {new: settings.pop(old) for new, old in NAMES.items()}
        return {
            **self.hub_head(self.ARCHITECTURE),
            "model_type": self.MODEL_TYPE,
            **renamed,
            **settings,
        }
