"""MPT: GPT-2's block without biases, with ALiBi instead of positions. In one file.

Sources
    MosaicML (2023), "Introducing MPT-7B"; Press et al. (2022), "Train Short, Test Long", for ALiBi.
    Hub docs: `transformers`, model_type "mpt".

Differences from similar architectures
    BLOOM    has biases and a norm of the embeddings.
    OLMo     clips q, k and v, too, and has rotary embeddings and a gated MLP.

Notation
    B batch rows    T new positions    S attended positions (cached and new)
    C channels, d_model    H heads    D head size, C / H    V vocabulary
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models.attention import Past, merge_heads, split_qkv
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import KeyValues, Layout
from minhub_py.models.config import NO_EFFECT, ONLY_VALUE
from minhub_py.models.heads import HeadSettings
from minhub_py.models.layers import ALiBi, BlockList, clipped
from minhub_py.models.settings import Effective, check_multiple
from minhub_py.models.steps import Add, Attend, Embed, Linear, Logits, Norm, Step
from minhub_py.system.json_text import JsonObject
from minhub_py.system.shapes import fits

# Settings in attn_config. Of the first three, other values have another result; the last two have
# no effect.
ATTENTION = {
    "attn_type": "multihead_attention",
    "qk_ln": False,
    "alibi": True,
    "prefix_lm": False,
    "attn_pdrop": 0,
    "clip_qkv": None,
    "softmax_scale": None,
    "alibi_bias_max": 8,
}
SET_BY_MODEL = ("attn_pdrop", "clip_qkv", "softmax_scale", "alibi_bias_max")
WITHOUT_EFFECT = NO_EFFECT | {"attn_impl", "attn_uses_sequence_id"}


class Attention(nn.Module):
    def __init__(self, config: "MPTConfig", layer: int) -> None:
        super().__init__()
        C = config.d_model
        self.layer, self.heads, self.scale = layer, config.n_heads, config.scale
        self.clip, self.dropout = config.clip_qkv, config.dropout
        self.Wqkv = nn.Linear(C, 3 * C, bias=False)
        self.out_proj = nn.Linear(C, C, bias=False)

    def forward(self, x: Tensor, past: Past, bias: Tensor) -> Tensor:
        qkv = clipped(self.Wqkv(x), self.clip)
        q, k, v = split_qkv(qkv, self.heads, self.heads)  # (B, H, T, D) each
        dropout = self.dropout if self.training else 0.0
        # (B, H, T, D)
        y = past.attend(
            self.layer, q, k, v, scale=self.scale, bias=bias, dropout=dropout, upcast=True
        )
        return self.out_proj(merge_heads(y))


class MLP(nn.Module):
    def __init__(self, config: "MPTConfig") -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.d_model, 4 * config.d_model, bias=False)
        self.down_proj = nn.Linear(4 * config.d_model, config.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.gelu(self.up_proj(x)))


class Block(nn.Module):
    def __init__(self, config: "MPTConfig", layer: int) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(config.d_model, config.layer_norm_epsilon, bias=False)
        self.attn = Attention(config, layer)
        self.norm_2 = nn.LayerNorm(config.d_model, config.layer_norm_epsilon, bias=False)
        self.ffn = MLP(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, past: Past, bias: Tensor) -> Tensor:
        x = x + self.dropout(self.attn(self.norm_1(x), past, bias))
        return x + self.dropout(self.ffn(self.norm_2(x)))


class MPT(LanguageModel):
    config: "MPTConfig"

    def __init__(self, config: "MPTConfig") -> None:
        super().__init__()
        self.config = config
        self.alibi = ALiBi.of(config.n_heads, config.alibi_bias_max)
        self.wte = nn.Embedding(config.vocab_size, config.d_model)
        self.blocks = BlockList(Block(config, layer) for layer in range(config.n_layers))
        self.norm_f = nn.LayerNorm(config.d_model, config.layer_norm_epsilon, bias=False)
        # A tied head is the token embedding itself and has no parameter.
        tied = config.tie_word_embeddings
        self.lm_head = None if tied else nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.init_weights(config.initializer_range)

    def body(self, idx: Tensor, past: Past) -> Tensor:
        x = self.wte(idx)  # (B, T, C)
        bias = self.alibi(past.positions, past.attended)  # (B or 1, H, T, S)
        for block in self.blocks:
            x = block(x, past, bias)
        return self.norm_f(x)

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.wte.weight) if self.lm_head is None else self.lm_head(x)

    def cache_layout(self) -> Layout:
        return [
            KeyValues(self.config.n_heads, self.config.d_model // self.config.n_heads)
        ] * self.config.n_layers

    def steps(self) -> Iterator[Step]:
        yield Embed(self.wte)
        for block in self.blocks:
            attn, p = block.attn, block.dropout.p
            yield Norm(block.norm_1)
            yield Linear([attn.Wqkv], clip=attn.clip)
            yield Attend(
                attn.heads,
                attn.heads,
                attn.scale,
                bias=self.alibi,
                upcast=True,
                dropout=attn.dropout,
            )
            yield Add(attn.out_proj, dropout=p)
            yield Norm(block.norm_2)
            yield Linear([block.ffn.up_proj], "gelu")
            yield Add(block.ffn.down_proj, dropout=p)
        yield Norm(self.norm_f)
        yield Logits(self.wte if self.lm_head is None else self.lm_head)


@dataclass(frozen=True)
class MPTConfig(HeadSettings, Effective):
    """The settings of config.json that change the result. Defaults: transformers'.

    attn_config: settings of attention, see `ATTENTION`; attn_pdrop is the dropout of the outputs of
    attention and MLP, too.
    """

    TITLE: ClassVar = "MPT"
    ONLY_VALUE: ClassVar = {
        "no_bias": True,
        "logit_scale": None,
        "expansion_ratio": 4,
        "emb_pdrop": 0.0,
        "resid_pdrop": 0.0,
    }
    # positions are never learned with ALiBi
    NO_EFFECT: ClassVar = frozenset(
        "learned_pos_emb init_device init_config embedding_fraction norm_type verbose tokenizer_name"
        " n_inner".split()
    )
    DERIVED: ClassVar = ("clip_qkv", "alibi_bias_max")

    vocab_size: int = 50368
    d_model: int = 2048
    n_layers: int = field(default=24, metadata={"range": (1, 4096)})
    n_heads: int = 16
    max_seq_len: int = field(default=2048, metadata={"range": (1, 2**31)})
    attn_config: dict | None = None  # type: ignore[type-arg]
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        self.drop_unused_labels()
        check_multiple(self, "d_model", "n_heads")
        allowed: JsonObject = {**ONLY_VALUE, **ATTENTION}
        for name, value in self.stated_attention.items():
            if name in allowed and value == allowed[name]:
                continue
            limit = 1 if name == "attn_pdrop" else 1e6
            if name not in SET_BY_MODEL or not fits(value, float) or not 0 <= value <= limit:
                raise ValueError(
                    f"MPT: attn_config has {name} {value!r:.80}, which is not supported"
                )

    @property
    def stated_attention(self) -> JsonObject:
        """The settings of attn_config with an effect."""
        return {
            name: value
            for name, value in (self.attn_config or {}).items()
            if name not in WITHOUT_EFFECT and not name.startswith("_")
        }

    @property
    def attention(self) -> JsonObject:
        """attn_config with defaults."""
        stated = self.stated_attention
        return {name: stated.get(name, default) for name, default in ATTENTION.items()}

    @property
    def clip_qkv(self) -> float | None:
        """The largest absolute value of q, k and v; None for no limit."""
        return self.attention["clip_qkv"] or None

    @property
    def alibi_bias_max(self) -> float:
        """The exponent of the smallest slope."""
        return self.attention["alibi_bias_max"]

    @property
    def scale(self) -> float:
        """The factor of the scores."""
        scale: float | None = self.attention["softmax_scale"]
        return (self.d_model // self.n_heads) ** -0.5 if scale is None else scale

    @property
    def dropout(self) -> float:
        """Of attention weights, and of the outputs of attention and MLP."""
        return float(self.attention["attn_pdrop"])

    @property
    def context_length(self) -> int:
        """Maximum number of positions."""
        return self.max_seq_len

    @property
    def effective(self) -> dict[str, object]:
        """See `Effective.effective`."""
        settings = {
            **super().effective,
            "clip_qkv": self.clip_qkv,
            "alibi_bias_max": self.alibi_bias_max,
            "scale": self.scale,
        }
        del settings["attn_config"]
        return settings

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        settings = {**self.without_head(), "attn_config": self.attention}
        return {**self.hub_head("MptForCausalLM"), "model_type": "mpt", **settings}
