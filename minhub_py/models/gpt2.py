"""GPT-2, the decoder-only transformer, in one file.

Sources
    Radford et al. (2019), "Language Models are Unsupervised Multitask Learners".
    Reference implementation: OpenAI's gpt-2 (TensorFlow); Hub docs: `transformers`, model_type
        "gpt2".

Differences from similar architectures
    GPT-Neo   has no biases in q, k and v, does not scale its scores, and alternates global and
    local layers. LSTM      has a recurrent state of fixed size instead of a KV cache, and no
    positions.

Notation
    B batch rows    T new positions    C channels, n_embd    H heads    D head size, C / H    V
    vocabulary
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.attention import Past, merge_heads, split_qkv
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import KeyValues, Layout
from minhub_py.models.heads import HeadSettings
from minhub_py.models.layers import BlockList
from minhub_py.models.settings import SUMMARY, check_multiple
from minhub_py.models.steps import Add, Attend, Embed, Linear, Logits, Norm, Step
from minhub_py.system.json_text import JsonObject

MODEL_TYPE = "gpt2"


class Attention(nn.Module):
    def __init__(self, config: "GPT2Config", layer: int) -> None:
        super().__init__()
        self.layer, self.heads = layer, config.n_head
        self.scale = (config.n_embd // config.n_head) ** -0.5 if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            self.scale /= layer + 1
        self.dropout, self.upcast = config.attn_pdrop, config.reorder_and_upcast_attn
        # OpenAI's Conv1D is a Linear stored (in, out): the weight table transposes it.
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.resid_dropout = nn.Dropout(config.resid_pdrop)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        q, k, v = split_qkv(self.c_attn(x), self.heads, self.heads)  # (B, H, T, D) each
        dropout = self.dropout if self.training else 0.0
        y = past.attend(self.layer, q, k, v, scale=self.scale, dropout=dropout, upcast=self.upcast)
        return self.resid_dropout(self.c_proj(merge_heads(y)))


class MLP(nn.Module):
    def __init__(self, config: "GPT2Config") -> None:
        super().__init__()
        inner = config.n_inner or 4 * config.n_embd
        self.c_fc = nn.Linear(config.n_embd, inner)
        self.c_proj = nn.Linear(inner, config.n_embd)
        self.act = ACTIVATIONS[config.activation_function]
        self.dropout = nn.Dropout(config.resid_pdrop)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(self.act(self.c_fc(x))))


class Block(nn.Module):
    def __init__(self, config: "GPT2Config", layer: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.attn = Attention(config, layer)
        self.ln_2 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        x = x + self.attn(self.ln_1(x), past)
        return x + self.mlp(self.ln_2(x))


class GPT2(LanguageModel):
    config: "GPT2Config"

    def __init__(self, config: "GPT2Config") -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd)
        self.drop = nn.Dropout(config.embd_pdrop)
        self.h = BlockList(Block(config, layer) for layer in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        # A tied head is the token embedding itself and has no parameter.
        self.lm_head = (
            None
            if config.tie_word_embeddings
            else nn.Linear(config.n_embd, config.vocab_size, bias=False)
        )
        self.apply(self._initialize)

    def _initialize(self, module: nn.Module) -> None:
        """Section 2.3 of the paper: the weights of projections onto the residual stream decrease
        with its depth.
        """
        std = self.config.initializer_range
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, Attention | MLP):
            nn.init.normal_(module.c_proj.weight, std=std / math.sqrt(2 * self.config.n_layer))

    def body(self, idx: Tensor, past: Past) -> Tensor:
        x = self.drop(self.wte(idx) + self.wpe(past.positions))  # (B, T, C)
        for block in self.h:
            x = block(x, past)
        return self.ln_f(x)

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.wte.weight) if self.lm_head is None else self.lm_head(x)

    def cache_layout(self) -> Layout:
        return [
            KeyValues(self.config.n_head, self.config.n_embd // self.config.n_head)
        ] * self.config.n_layer

    def steps(self) -> Iterator[Step]:
        yield Embed(self.wte, self.wpe, dropout=self.drop.p)
        for block in self.h:
            attn, mlp = block.attn, block.mlp
            yield Norm(block.ln_1)
            yield Linear([attn.c_attn])
            yield Attend(
                attn.heads, attn.heads, attn.scale, upcast=attn.upcast, dropout=attn.dropout
            )
            yield Add(attn.c_proj, dropout=attn.resid_dropout.p)
            yield Norm(block.ln_2)
            yield Linear([mlp.c_fc], self.config.activation_function)
            yield Add(mlp.c_proj, dropout=mlp.dropout.p)
        yield Norm(self.ln_f)
        yield Logits(self.wte if self.lm_head is None else self.lm_head)


@dataclass(frozen=True)
class GPT2Config(HeadSettings):
    """The settings of config.json that change the result. Defaults: GPT-2 124M."""

    TITLE: ClassVar = "GPT-2"
    # n_ctx: a copy of n_positions
    NO_EFFECT: ClassVar = SUMMARY | {"n_ctx", "n_special", "predict_special_tokens"}

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = field(default=12, metadata={"range": (1, 4096)})
    n_head: int = 12
    n_inner: int | None = field(default=None, metadata={"range": (1, 2**24)})  # None: 4 * n_embd
    activation_function: str = field(default="gelu_new", metadata={"choices": tuple(ACTIVATIONS)})
    resid_pdrop: float = 0.1
    embd_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    reorder_and_upcast_attn: bool = False
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 50256
    eos_token_id: int | list[int] | None = 50256
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        self.drop_unused_labels()
        check_multiple(self, "n_embd", "n_head")

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        return {**self.hub_head("GPT2LMHeadModel"), "model_type": MODEL_TYPE, **self.without_head()}

    @property
    def context_length(self) -> int:
        """Maximum number of positions."""
        return self.n_positions
