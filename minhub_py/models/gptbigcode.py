"""GPT-BigCode (SantaCoder, StarCoder), a GPT-2 with one KV head, in one file.

Sources
    Ben Allal et al. (2023), "SantaCoder"; Li et al. (2023), "StarCoder".
    Multi-query attention: Shazeer (2019), "Fast Transformer Decoding: One Write-Head is All You
        Need".
    Hub docs: `transformers`, model_type "gpt_bigcode".

Differences from similar architectures
    GPT-2    has a KV head for each query head; here there is one, so the KV cache is H times
    smaller. Llama    has several KV heads, and rotary instead of learned positions.

Notation
    B batch rows    T new positions    S attended positions (cached and new)
    C channels, n_embd    H query heads    G KV heads, 1 or H    D head size, C / H    V vocabulary
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


class Attention(nn.Module):
    def __init__(self, config: "GPTBigCodeConfig", layer: int) -> None:
        super().__init__()
        self.layer, self.heads, self.kv_heads = layer, config.n_head, config.kv_heads
        size = config.n_embd // config.n_head
        self.scale = size**-0.5 if config.scale_attn_weights else 1.0
        self.dropout = config.attn_pdrop
        self.c_attn = nn.Linear(config.n_embd, config.n_embd + 2 * self.kv_heads * size)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.resid_dropout = nn.Dropout(config.resid_pdrop)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        # (B, H, T, D), (B, G, T, D) twice
        q, k, v = split_qkv(self.c_attn(x), self.heads, self.kv_heads)
        dropout = self.dropout if self.training else 0.0
        y = past.attend(self.layer, q, k, v, scale=self.scale, dropout=dropout)  # (B, H, T, D)
        return self.resid_dropout(self.c_proj(merge_heads(y)))


class MLP(nn.Module):
    def __init__(self, config: "GPTBigCodeConfig") -> None:
        super().__init__()
        inner = config.n_inner or 4 * config.n_embd
        self.c_fc = nn.Linear(config.n_embd, inner)
        self.c_proj = nn.Linear(inner, config.n_embd)
        self.act = ACTIVATIONS[config.activation_function]
        self.dropout = nn.Dropout(config.resid_pdrop)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(self.act(self.c_fc(x))))


class Block(nn.Module):
    def __init__(self, config: "GPTBigCodeConfig", layer: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.attn = Attention(config, layer)
        self.ln_2 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        x = x + self.attn(self.ln_1(x), past)
        return x + self.mlp(self.ln_2(x))


class GPTBigCode(LanguageModel):
    config: "GPTBigCodeConfig"

    def __init__(self, config: "GPTBigCodeConfig") -> None:
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
        """As in GPT-2: the weights of projections onto the residual stream decrease with its depth."""
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
            KeyValues(self.config.kv_heads, self.config.n_embd // self.config.n_head)
        ] * self.config.n_layer

    def steps(self) -> Iterator[Step]:
        yield Embed(self.wte, self.wpe, dropout=self.drop.p)
        for block in self.h:
            attn, mlp = block.attn, block.mlp
            yield Norm(block.ln_1)
            yield Linear([attn.c_attn])
            yield Attend(attn.heads, attn.kv_heads, attn.scale, dropout=attn.dropout)
            yield Add(attn.c_proj, dropout=attn.resid_dropout.p)
            yield Norm(block.ln_2)
            yield Linear([mlp.c_fc], self.config.activation_function)
            yield Add(mlp.c_proj, dropout=mlp.dropout.p)
        yield Norm(self.ln_f)
        yield Logits(self.wte if self.lm_head is None else self.lm_head)


@dataclass(frozen=True)
class GPTBigCodeConfig(HeadSettings):
    """The settings of config.json that change the result. Defaults: transformers."""

    TITLE: ClassVar = "GPT-BigCode"
    # The softmax is float32 here; the other settings belong to an old inference server.
    NO_EFFECT: ClassVar = SUMMARY | {
        "attention_softmax_in_fp32",
        "scale_attention_softmax_in_fp32",
        "inference_runner",
        "max_batch_size",
        "max_sequence_length",
        "pad_key_length",
        "pre_allocate_kv_cache",
        "validate_runner_input",
    }
    DERIVED: ClassVar = ("num_key_value_heads", "heads_in_turn")

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = field(default=12, metadata={"range": (1, 4096)})
    n_head: int = 12
    n_inner: int | None = field(default=None, metadata={"range": (1, 2**24)})  # None: 4 * n_embd
    activation_function: str = field(
        default="gelu_pytorch_tanh", metadata={"choices": tuple(ACTIVATIONS)}
    )
    multi_query: bool = True
    resid_pdrop: float = 0.1
    embd_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    scale_attn_weights: bool = True
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 50256
    eos_token_id: int | list[int] | None = 50256
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        self.drop_unused_labels()
        check_multiple(self, "n_embd", "n_head")

    @property
    def kv_heads(self) -> int:
        """Number of KV heads (G)."""
        return 1 if self.multi_query else self.n_head

    @property
    def num_key_value_heads(self) -> int:
        """The Hub's name for G."""
        return self.kv_heads

    @property
    def heads_in_turn(self) -> int:
        """Heads whose q, k and v alternate in the file; they do not with one KV head."""
        return 1 if self.multi_query else self.n_head

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        return {
            **self.hub_head("GPTBigCodeForCausalLM"),
            "model_type": "gpt_bigcode",
            **self.without_head(),
        }

    @property
    def context_length(self) -> int:
        """Maximum number of positions."""
        return self.n_positions
