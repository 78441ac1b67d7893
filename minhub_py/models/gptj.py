"""GPT-J, with a parallel residual: attention and MLP read the same norm of the stream. In one file.

Sources
    Wang & Komatsuzaki (2021), "GPT-J-6B"; its mesh-transformer-jax. Rotary positions: Su et al.
        (2021), "RoFormer".
    Hub docs: `transformers`, model_type "gptj".

Differences from similar architectures
    GPT-NeoX    has a norm for attention and another for the MLP, and rotates the pairs (i, i +
                R/2); GPT-J rotates (2i, 2i + 1). Only the MLP and the head have biases.
    Phi         has one norm, too, rotates the pairs (i, i + R/2), and has biases in all layers.

Notation
    B batch rows    T new positions    S attended positions (cached and new)
    C channels, n_embd    H heads    D head size, C / H    R rotary_dim    V vocabulary
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
from minhub_py.models.settings import SUMMARY, check_multiple
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
    def __init__(self, config: "GPTJConfig", layer: int) -> None:
        super().__init__()
        self.layer, self.heads, self.scale = (
            layer,
            config.n_head,
            (config.n_embd // config.n_head) ** -0.5,
        )
        self.dropout = config.attn_pdrop
        self.q_proj = nn.Linear(config.n_embd, config.n_embd, bias=False)
        self.k_proj = nn.Linear(config.n_embd, config.n_embd, bias=False)
        self.v_proj = nn.Linear(config.n_embd, config.n_embd, bias=False)
        self.out_proj = nn.Linear(config.n_embd, config.n_embd, bias=False)

    def forward(self, x: Tensor, past: Past, rotation: Rotation) -> Tensor:
        q = split_heads(self.q_proj(x), self.heads)  # (B, H, T, D)
        k = split_heads(self.k_proj(x), self.heads)
        v = split_heads(self.v_proj(x), self.heads)
        q, k = rotation(q, k)
        dropout = self.dropout if self.training else 0.0
        # In float32: scores in float16 can overflow.
        # (B, H, T, D)
        y = past.attend(self.layer, q, k, v, scale=self.scale, dropout=dropout, upcast=True)
        return self.out_proj(merge_heads(y))


class MLP(nn.Module):
    def __init__(self, config: "GPTJConfig") -> None:
        super().__init__()
        inner = config.n_inner or 4 * config.n_embd
        self.fc_in = nn.Linear(config.n_embd, inner)
        self.fc_out = nn.Linear(inner, config.n_embd)
        self.act = ACTIVATIONS[config.activation_function]

    def forward(self, x: Tensor) -> Tensor:
        return self.fc_out(self.act(self.fc_in(x)))


class Block(nn.Module):
    def __init__(self, config: "GPTJConfig", layer: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.attn = Attention(config, layer)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(config.resid_pdrop)

    def forward(self, x: Tensor, past: Past, rotation: Rotation) -> Tensor:
        h = self.ln_1(x)
        return x + self.dropout(self.attn(h, past, rotation)) + self.dropout(self.mlp(h))


class GPTJ(LanguageModel):
    config: "GPTJConfig"
    lm_head: nn.Linear

    def __init__(self, config: "GPTJConfig") -> None:
        super().__init__()
        self.config = config
        self.rope = rotary.rope_of(rotary.completed(None, config.n_positions), config.rotary_dim)
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.drop = nn.Dropout(config.embd_pdrop)
        self.h = BlockList(Block(config, layer) for layer in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size)
        self.init_weights(config.initializer_range)
        # A tied head is the token embedding itself: it has a bias and no weight.
        if config.tie_word_embeddings:
            self.lm_head.register_parameter("weight", None)

    def body(self, idx: Tensor, past: Past) -> Tensor:
        x = self.drop(self.wte(idx))  # (B, T, C)
        rotation = Rotation(self.rope, past.positions, x.dtype, interleaved=True)
        for block in self.h:
            x = block(x, past, rotation)
        return self.ln_f(x)

    def logits(self, x: Tensor) -> Tensor:
        tied = self.config.tie_word_embeddings
        return F.linear(x, self.wte.weight if tied else self.lm_head.weight, self.lm_head.bias)

    def cache_layout(self) -> Layout:
        return [
            KeyValues(self.config.n_head, self.config.n_embd // self.config.n_head)
        ] * self.config.n_layer

    def steps(self) -> Iterator[Step]:
        yield Embed(self.wte, dropout=self.drop.p)
        for block in self.h:
            attn, mlp, p = block.attn, block.mlp, block.dropout.p
            yield SaveResidual()
            yield Norm(block.ln_1)
            yield Linear([attn.q_proj, attn.k_proj, attn.v_proj])
            yield Rotate(attn.heads, attn.heads, self.rope, interleaved=True)
            yield Attend(attn.heads, attn.heads, attn.scale, upcast=True, dropout=attn.dropout)
            yield Add(attn.out_proj, dropout=p)
            yield Norm(block.ln_1, saved=True)  # the norm of the block's input again
            yield Linear([mlp.fc_in], self.config.activation_function)
            yield Add(mlp.fc_out, dropout=p)
        yield Norm(self.ln_f)
        if self.lm_head is not None:
            yield Logits(
                self.wte if self.config.tie_word_embeddings else self.lm_head, self.lm_head.bias
            )


@dataclass(frozen=True)
class GPTJConfig(HeadSettings):
    """The settings of config.json that change the result. Defaults: GPT-J 6B."""

    TITLE: ClassVar = "GPT-J"
    ONLY_VALUE: ClassVar = {"rotary": True, "scale_attn_weights": True}
    NO_EFFECT: ClassVar = SUMMARY | {"n_ctx"}  # an old copy of n_positions

    vocab_size: int = 50400
    n_positions: int = 2048
    n_embd: int = 4096
    n_layer: int = field(default=28, metadata={"range": (1, 4096)})
    n_head: int = 16
    n_inner: int | None = field(default=None, metadata={"range": (1, 2**24)})  # None: 4 * n_embd
    rotary_dim: int = 64
    activation_function: str = field(default="gelu_new", metadata={"choices": tuple(ACTIVATIONS)})
    resid_pdrop: float = 0.0
    embd_pdrop: float = 0.0
    attn_pdrop: float = 0.0
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False
    bos_token_id: int | None = 50256
    eos_token_id: int | list[int] | None = 50256
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        self.drop_unused_labels()
        check_multiple(self, "n_embd", "n_head")
        size = self.n_embd // self.n_head
        if self.rotary_dim % 2 or self.rotary_dim > size:
            raise ValueError(
                f"GPT-J: rotary_dim ({self.rotary_dim}) must be even, and at most a head's {size}"
                " numbers"
            )

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        return {**self.hub_head("GPTJForCausalLM"), "model_type": "gptj", **self.without_head()}

    @property
    def context_length(self) -> int:
        """Maximum number of positions."""
        return self.n_positions
