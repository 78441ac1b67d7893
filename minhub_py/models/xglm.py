"""XGLM: a decoder with computed positions, for 30 languages.

Sources
    Lin et al. (2022), "Few-shot Learning with Multilingual Generative Language Models". Positions:
        Vaswani et al.
    (2017), "Attention Is All You Need".
    Hub docs: `transformers`, model_type "xglm".

Differences from similar architectures
    OPT           learns its positions. XGLM adds sines and cosines of position + 2, and scales its
    embeddings. Sinusoidal    has norms after attention and MLP, and alternates sine and cosine;
    XGLM has halves.

Notation
    B batch rows    T new positions    S attended positions (cached and new)
    C channels, hidden_size    H heads    D head size    V vocabulary
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.attention import Past, merge_heads, split_heads
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import KeyValues, Layout
from minhub_py.models.heads import HeadSettings
from minhub_py.models.layers import BlockList, scaled, sinusoidal_positions
from minhub_py.models.settings import Positions, check_multiple
from minhub_py.models.steps import Add, AddSinusoids, Attend, Embed, Linear, Logits, Norm, Step
from minhub_py.system.json_text import JsonObject

NAMES = {
    "num_layers": "num_hidden_layers",
    "attention_heads": "num_attention_heads",
    "d_model": "hidden_size",
    "ffn_dim": "intermediate_size",
    "activation_function": "hidden_act",
    "init_std": "initializer_range",
}
FIRST = 2  # the row of the first position
EPSILON = 1e-5  # of all norms


def sinusoid_frequencies(size: int) -> tuple[float, ...]:
    """The frequencies of sines and cosines, half of `size` each. Vaswani et al. (2017), as in
    tensor2tensor.
    """
    half = size // 2
    return tuple(
        torch.exp(
            torch.arange(half, device="cpu").float() * -(math.log(10000) / (half - 1))
        ).tolist()
    )


class Attention(nn.Module):
    def __init__(self, config: "XGLMConfig", layer: int) -> None:
        super().__init__()
        C = config.hidden_size
        self.layer, self.heads, self.scale = (
            layer,
            config.num_attention_heads,
            config.head_size**-0.5,
        )
        self.dropout = config.attention_dropout
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(C, C) for _ in "qkvo")

    def forward(self, x: Tensor, past: Past) -> Tensor:
        q, k, v = (
            split_heads(layer(x), self.heads) for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        dropout = self.dropout if self.training else 0.0
        y = past.attend(self.layer, q, k, v, scale=self.scale, dropout=dropout)  # (B, H, T, D)
        return self.o_proj(merge_heads(y))


class MLP(nn.Module):
    def __init__(self, config: "XGLMConfig") -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size)
        self.act = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.up_proj(x)))


class Block(nn.Module):
    def __init__(self, config: "XGLMConfig", layer: int) -> None:
        super().__init__()
        self.input_layernorm = nn.LayerNorm(config.hidden_size, EPSILON)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = nn.LayerNorm(config.hidden_size, EPSILON)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        x = x + self.dropout(self.self_attn(self.input_layernorm(x), past))
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))


class XGLM(LanguageModel):
    config: "XGLMConfig"

    def __init__(self, config: "XGLMConfig") -> None:
        super().__init__()
        self.config = config
        self.scale = config.hidden_size**0.5 if config.scale_embedding else None
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.sinusoids = sinusoid_frequencies(config.hidden_size)
        self.drop = nn.Dropout(config.dropout)
        self.layers = BlockList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size, EPSILON)
        # A tied head is the token embedding itself and has no parameter.
        tied = config.tie_word_embeddings
        self.lm_head = (
            None if tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        )
        self.init_weights(config.initializer_range)

    def body(self, idx: Tensor, past: Past) -> Tensor:
        x = self.embed_tokens(idx)  # (B, T, C)
        if self.scale is not None:
            x = scaled(x, self.scale)
        x = self.drop(
            x + sinusoidal_positions(past.positions + FIRST, list(self.sinusoids)).to(x.dtype)
        )
        for block in self.layers:
            x = block(x, past)
        return self.norm(x)

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.embed_tokens.weight) if self.lm_head is None else self.lm_head(x)

    def cache_layout(self) -> Layout:
        return [
            KeyValues(self.config.num_attention_heads, self.config.head_size)
        ] * self.config.num_hidden_layers

    def steps(self) -> Iterator[Step]:
        yield Embed(self.embed_tokens, scale=self.scale)
        yield AddSinusoids(
            self.sinusoids, FIRST, self.config.max_position_embeddings, dropout=self.drop.p
        )
        for block in self.layers:
            attn, mlp, p = block.self_attn, block.mlp, block.dropout.p
            yield Norm(block.input_layernorm)
            yield Linear([attn.q_proj, attn.k_proj, attn.v_proj])
            yield Attend(attn.heads, attn.heads, attn.scale, dropout=attn.dropout)
            yield Add(attn.o_proj, dropout=p)
            yield Norm(block.post_attention_layernorm)
            yield Linear([mlp.up_proj], self.config.hidden_act)
            yield Add(mlp.down_proj, dropout=p)
        yield Norm(self.norm)
        yield Logits(self.embed_tokens if self.lm_head is None else self.lm_head)


@dataclass(frozen=True)
class XGLMConfig(HeadSettings, Positions):
    """The settings of config.json that change the result. Defaults: XGLM 564M."""

    TITLE: ClassVar = "XGLM"
    MODEL_TYPE: ClassVar = "xglm"
    ARCHITECTURE: ClassVar = "XGLMForCausalLM"
    ALIASES: ClassVar = {"xglm": NAMES}
    ONLY_VALUE: ClassVar = {"activation_dropout": 0.0, "layerdrop": 0.0}

    vocab_size: int = 256008
    hidden_size: int = 1024
    intermediate_size: int = 4096
    num_hidden_layers: int = field(default=24, metadata={"range": (1, 4096)})
    num_attention_heads: int = 16
    hidden_act: str = field(default="gelu", metadata={"choices": tuple(ACTIVATIONS)})
    max_position_embeddings: int = field(default=2048, metadata={"range": (1, 2**31)})
    dropout: float = 0.1
    attention_dropout: float = 0.1
    initializer_range: float = 0.02
    scale_embedding: bool = True
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 2
    pad_token_id: int | None = 1

    def __post_init__(self) -> None:
        self.drop_unused_labels()
        check_multiple(self, "hidden_size", "num_attention_heads")
        if self.hidden_size % 2 or self.hidden_size < 4:
            raise ValueError(
                f"XGLM: d_model ({self.hidden_size}) must be even, because positions are sines and"
                " cosines"
            )

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
