"""GPT, the first of OpenAI's models, in one file: GPT-2 with norms after attention and MLP.

Sources
    Radford et al. (2018), "Improving Language Understanding by Generative Pre-Training".
    Hub docs: `transformers`, model_type "openai-gpt".

Differences from similar architectures
    GPT-2    normalizes the inputs of attention and MLP, and the stream before the head. Here the
    stream itself is normalized after each of them.

Notation
    B batch rows    T new positions    S attended positions (cached and new)
    C channels, n_embd    H heads    D head size, C / H    V vocabulary
"""

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

# `afn` -> the activation. Its gelu is the approximation by tanh.
NAMES = {"gelu": "gelu_new", "relu": "relu", "silu": "silu", "swish": "silu"}


class Attention(nn.Module):
    def __init__(self, config: "OpenAIGPTConfig", layer: int) -> None:
        super().__init__()
        self.layer, self.heads = layer, config.n_head
        self.scale, self.dropout = (config.n_embd // config.n_head) ** -0.5, config.attn_pdrop
        # OpenAI's Conv1D is a Linear stored (in, out): the weight table transposes it.
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.resid_dropout = nn.Dropout(config.resid_pdrop)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        q, k, v = split_qkv(self.c_attn(x), self.heads, self.heads)  # (B, H, T, D) each
        dropout = self.dropout if self.training else 0.0
        y = past.attend(self.layer, q, k, v, scale=self.scale, dropout=dropout)
        return self.resid_dropout(self.c_proj(merge_heads(y)))


class MLP(nn.Module):
    def __init__(self, config: "OpenAIGPTConfig") -> None:
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd)
        self.act = ACTIVATIONS[config.activation]
        self.dropout = nn.Dropout(config.resid_pdrop)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(self.act(self.c_fc(x))))


class Block(nn.Module):
    def __init__(self, config: "OpenAIGPTConfig", layer: int) -> None:
        super().__init__()
        self.attn = Attention(config, layer)
        self.ln_1 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.mlp = MLP(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        x = self.ln_1(x + self.attn(x, past))
        return self.ln_2(x + self.mlp(x))


class OpenAIGPT(LanguageModel):
    config: "OpenAIGPTConfig"

    def __init__(self, config: "OpenAIGPTConfig") -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd)
        self.drop = nn.Dropout(config.embd_pdrop)
        self.h = BlockList(Block(config, layer) for layer in range(config.n_layer))
        # A tied head is the token embedding itself and has no parameter.
        tied = config.tie_word_embeddings
        self.lm_head = None if tied else nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.init_weights(config.initializer_range)

    def body(self, idx: Tensor, past: Past) -> Tensor:
        x = self.drop(self.wte(idx) + self.wpe(past.positions))  # (B, T, C)
        for block in self.h:
            x = block(x, past)
        return x

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
            yield Linear([attn.c_attn])
            yield Attend(attn.heads, attn.heads, attn.scale, dropout=attn.dropout)
            yield Add(attn.c_proj, dropout=attn.resid_dropout.p)
            yield Norm(block.ln_1, to_residual=True)
            yield Linear([mlp.c_fc], self.config.activation)
            yield Add(mlp.c_proj, dropout=mlp.dropout.p)
            yield Norm(block.ln_2, to_residual=True)
        yield Logits(self.wte if self.lm_head is None else self.lm_head)


@dataclass(frozen=True)
class OpenAIGPTConfig(HeadSettings):
    """The settings of config.json that change the result. Defaults: GPT."""

    TITLE: ClassVar = "GPT"
    NO_EFFECT: ClassVar = SUMMARY | {"n_ctx", "n_special", "predict_special_tokens"}

    vocab_size: int = 40478
    n_positions: int = 512
    n_embd: int = 768
    n_layer: int = field(default=12, metadata={"range": (1, 4096)})
    n_head: int = 12
    afn: str = field(default="gelu", metadata={"choices": tuple(NAMES)})
    resid_pdrop: float = 0.1
    embd_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        self.drop_unused_labels()
        check_multiple(self, "n_embd", "n_head")

    @property
    def activation(self) -> str:
        """The name of `afn` in `ACTIVATIONS`."""
        return NAMES[self.afn]

    @property
    def context_length(self) -> int:
        """Maximum number of positions."""
        return self.n_positions

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        return {
            **self.hub_head("OpenAIGPTLMHeadModel"),
            "model_type": "openai-gpt",
            **self.without_head(),
        }
