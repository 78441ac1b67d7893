"""GPT-Neo, a GPT with alternating global and local attention, in one file.

Sources
    Black et al. (2021), "GPT-Neo: Large Scale Autoregressive Language Modeling with
        Mesh-Tensorflow".
    Reference implementation: EleutherAI's gpt-neo; Hub docs: `transformers`, model_type "gpt_neo".

Differences from similar architectures
    GPT-2     scales its scores by 1 / √D, has q, k and v in one matrix with biases, and attends
    globally in all layers. LSTM      has a recurrent state of fixed size instead of a KV cache, and
    no positions.

Notation
    B batch rows    T new positions    S attended positions (cached and new)
    C channels, hidden_size    H heads    D head size, C / H    V vocabulary
    W window_size, which includes the current position
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from reprlib import repr as brief
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.attention import Past, merge_heads, split_heads
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import KeyValues, Layout
from minhub_py.models.heads import HeadSettings
from minhub_py.models.layers import BlockList
from minhub_py.models.settings import SUMMARY, Positions, check_multiple
from minhub_py.models.steps import Add, Attend, Embed, Linear, Logits, Norm, Step
from minhub_py.system.json_text import JsonObject

MODEL_TYPE = "gpt_neo"


class Attention(nn.Module):
    def __init__(self, config: "GPTNeoConfig", layer: int) -> None:
        super().__init__()
        self.layer, self.heads = layer, config.num_heads
        self.window = config.window_size if config.attention_layers[layer] == "local" else None
        self.dropout = config.attention_dropout
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.out_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.resid_dropout = nn.Dropout(config.resid_dropout)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        q = split_heads(self.q_proj(x), self.heads)  # (B, H, T, D)
        k = split_heads(self.k_proj(x), self.heads)
        v = split_heads(self.v_proj(x), self.heads)
        dropout = self.dropout if self.training else 0.0
        # GPT-Neo was trained without the factor 1 / √D. Its scores are large, so the softmax is in
        # float32.
        y = past.attend(
            self.layer, q, k, v, scale=1.0, window=self.window, dropout=dropout, upcast=True
        )
        return self.resid_dropout(self.out_proj(merge_heads(y)))


class MLP(nn.Module):
    def __init__(self, config: "GPTNeoConfig") -> None:
        super().__init__()
        inner = config.intermediate_size or 4 * config.hidden_size
        self.c_fc = nn.Linear(config.hidden_size, inner)
        self.c_proj = nn.Linear(inner, config.hidden_size)
        self.act = ACTIVATIONS[config.activation_function]
        self.dropout = nn.Dropout(config.resid_dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(self.act(self.c_fc(x))))


class Block(nn.Module):
    def __init__(self, config: "GPTNeoConfig", layer: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.attn = Attention(config, layer)
        self.ln_2 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        x = x + self.attn(self.ln_1(x), past)
        return x + self.mlp(self.ln_2(x))


class GPTNeo(LanguageModel):
    config: "GPTNeoConfig"

    def __init__(self, config: "GPTNeoConfig") -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.hidden_size)
        self.wpe = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.drop = nn.Dropout(config.embed_dropout)
        self.h = BlockList(Block(config, layer) for layer in range(config.num_layers))
        self.ln_f = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        # A tied head is the token embedding itself and has no parameter.
        tied = config.tie_word_embeddings
        self.lm_head = (
            None if tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
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
            projection = module.out_proj if isinstance(module, Attention) else module.c_proj
            nn.init.normal_(projection.weight, std=std / math.sqrt(2 * self.config.num_layers))

    def body(self, idx: Tensor, past: Past) -> Tensor:
        x = self.drop(self.wte(idx) + self.wpe(past.positions))  # (B, T, C)
        for block in self.h:
            x = block(x, past)
        return self.ln_f(x)

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.wte.weight) if self.lm_head is None else self.lm_head(x)

    def cache_layout(self) -> Layout:
        H, D = self.config.num_heads, self.config.hidden_size // self.config.num_heads
        kinds = {"global": None, "local": self.config.window_size}
        return [KeyValues(H, D, kinds[kind]) for kind in self.config.attention_layers]

    def steps(self) -> Iterator[Step]:
        yield Embed(self.wte, self.wpe, dropout=self.drop.p)
        for block in self.h:
            attn, mlp = block.attn, block.mlp
            yield Norm(block.ln_1)
            yield Linear([attn.q_proj, attn.k_proj, attn.v_proj])
            yield Attend(
                attn.heads, attn.heads, 1.0, window=attn.window, upcast=True, dropout=attn.dropout
            )
            yield Add(attn.out_proj, dropout=attn.resid_dropout.p)
            yield Norm(block.ln_2)
            yield Linear([mlp.c_fc], self.config.activation_function)
            yield Add(mlp.c_proj, dropout=mlp.dropout.p)
        yield Norm(self.ln_f)
        yield Logits(self.wte if self.lm_head is None else self.lm_head)


@dataclass(frozen=True)
class GPTNeoConfig(HeadSettings, Positions):
    """The settings of config.json that change the result. Defaults: GPT-Neo 1.3B."""

    TITLE: ClassVar = "GPT-Neo"
    NO_EFFECT: ClassVar = SUMMARY | {"classifier_dropout"}
    DERIVED: ClassVar = ("attention_layers",)  # properties that config.json may repeat

    vocab_size: int = 50257
    max_position_embeddings: int = 2048
    hidden_size: int = 2048
    num_layers: int = field(default=24, metadata={"range": (1, 4096)})
    num_heads: int = 16
    attention_types: list | None = None  # type: ignore[type-arg]  # [[["global", "local"], 12]]; None: alternating
    window_size: int = 256
    # None: 4 * hidden_size
    intermediate_size: int | None = field(default=None, metadata={"range": (1, 2**24)})
    activation_function: str = field(default="gelu_new", metadata={"choices": tuple(ACTIVATIONS)})
    resid_dropout: float = 0.0
    embed_dropout: float = 0.0
    attention_dropout: float = 0.0
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 50256
    eos_token_id: int | list[int] | None = 50256
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        self.drop_unused_labels()
        check_multiple(self, "hidden_size", "num_heads")
        self.attention_layers  # noqa: B018  # checks the pattern

    @property
    def attention_layers(self) -> list[str]:
        """Each layer's attention type: attention_types expanded, so [[["local"], 2]] is local,
        local.
        """
        if self.attention_types is None:
            return [("global", "local")[layer % 2] for layer in range(self.num_layers)]
        try:
            valid = all(
                isinstance(kinds, list | tuple) and kinds and type(count) is int and count > 0
                for kinds, count in self.attention_types
            )
        except (TypeError, ValueError):
            valid = False
        if not valid:
            form = '[[["global", "local"], 12]]'
            raise ValueError(
                f"GPT-Neo: attention_types must look like {form}, not {brief(self.attention_types)}"
            )
        total = sum(len(kinds) * count for kinds, count in self.attention_types)
        if total != self.num_layers:  # before the expansion: a count can be any number
            raise ValueError(
                f"GPT-Neo: attention_types describes {brief(total)} layers, num_layers is"
                f" {self.num_layers}"
            )
        for kind in (kind for kinds, _ in self.attention_types for kind in kinds):
            if kind not in ("global", "local"):
                raise ValueError(
                    f"GPT-Neo: attention_types must contain global and local, not {brief(kind)}"
                )
        return [
            kind for kinds, count in self.attention_types for _ in range(count) for kind in kinds
        ]

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        return {
            **self.hub_head("GPTNeoForCausalLM"),
            "model_type": MODEL_TYPE,
            **self.without_head(),
            "attention_types": self.attention_types or [[self.attention_layers, 1]],
            "attention_layers": self.attention_layers,
        }
