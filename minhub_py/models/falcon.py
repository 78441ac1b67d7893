"""Falcon: attention and MLP in parallel, few KV heads, and rotary embeddings or ALiBi. In one file.

Sources
    Almazrouei et al. (2023), "The Falcon Series of Open Language Models"; Penedo et al. (2023), "The
        RefinedWeb Dataset", for Falcon RW.
    Hub docs: `transformers`, model_type "falcon".

Differences from similar architectures
    GPT-NeoX    has a KV head for each query head, biases, and rotates a part of each head.
    BLOOM       has ALiBi, too, but attention before the MLP, and exact products of ALiBi.

    Falcon 7B           one KV head; attention and MLP read the same norm
    Falcon 40B, 180B    `new_decoder_architecture`: several KV heads, and a norm for each of both
    Falcon 2 11B        the same with one norm
    Falcon RW           a KV head for each query head, ALiBi, biases; the MLP reads the stream after
    attention

Notation
    B batch rows    T new positions    S attended positions (cached and new)
    C channels, hidden_size    H query heads    G KV heads    D head size, C / H    V vocabulary
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
from minhub_py.models.layers import ALiBi, BlockList
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
    def __init__(self, config: "FalconConfig", layer: int) -> None:
        super().__init__()
        C, D = config.hidden_size, config.head_size
        self.layer, self.heads, self.kv_heads = layer, config.num_attention_heads, config.kv_heads
        self.scale, self.dropout = D**-0.5, config.attention_dropout
        # The Hub's rows are sorted by KV head; the weight table sorts them by q, k and v.
        self.query_key_value = nn.Linear(C, C + 2 * self.kv_heads * D, bias=config.bias)
        self.dense = nn.Linear(C, C, bias=config.bias)

    def forward(
        self, x: Tensor, past: Past, rotation: Rotation | None, bias: Tensor | None
    ) -> Tensor:
        # (B, H, T, D), (B, G, T, D) twice
        q, k, v = split_qkv(self.query_key_value(x), self.heads, self.kv_heads)
        if rotation is not None:
            q, k = rotation(q, k)
        y = past.attend(  # (B, H, T, D)
            self.layer,
            q,
            k,
            v,
            scale=self.scale,
            bias=bias,
            dropout=self.dropout if self.training else 0.0,
            upcast=bias is not None,
        )
        return self.dense(merge_heads(y))


class MLP(nn.Module):
    def __init__(self, config: "FalconConfig") -> None:
        super().__init__()
        C, inner = config.hidden_size, config.inner
        self.dense_h_to_4h = nn.Linear(C, inner, bias=config.bias)
        self.dense_4h_to_h = nn.Linear(inner, C, bias=config.bias)
        self.act = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        return self.dense_4h_to_h(self.act(self.dense_h_to_4h(x)))


class Block(nn.Module):
    def __init__(self, config: "FalconConfig", layer: int) -> None:
        super().__init__()
        C, eps = config.hidden_size, config.layer_norm_epsilon
        self.parallel = config.is_parallel
        self.input_layernorm = nn.LayerNorm(C, eps)
        self.mlp_norm = nn.LayerNorm(C, eps) if config.norms == 2 else None
        self.attention = Attention(config, layer)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(
        self, x: Tensor, past: Past, rotation: Rotation | None, bias: Tensor | None
    ) -> Tensor:
        h = self.input_layernorm(x)
        y = x + self.dropout(self.attention(h, past, rotation, bias))
        # In parallel the MLP reads the stream before attention.
        if self.mlp_norm is not None:
            h = self.mlp_norm(x if self.parallel else y)
        return y + self.dropout(self.mlp(h))


class Falcon(LanguageModel):
    config: "FalconConfig"

    def __init__(self, config: "FalconConfig") -> None:
        super().__init__()
        self.config = config
        self.alibi = ALiBi.of(config.num_attention_heads, rounded=True) if config.alibi else None
        self.rope = None if config.alibi else rotary.rope_of(config.rope, config.head_size)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = BlockList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_epsilon)
        # A tied head is the token embedding itself and has no parameter.
        tied = config.tie_word_embeddings
        self.lm_head = (
            None if tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        )
        self.init_weights(config.initializer_range)

    def body(self, idx: Tensor, past: Past) -> Tensor:
        x = self.embed_tokens(idx)  # (B, T, C)
        rotation = bias = None
        if self.rope is not None:
            rotation = Rotation(self.rope, past.positions, x.dtype)
        if self.alibi is not None:  # (1, H, 1, S)
            bias = self.alibi(past.positions, past.attended, self.config.head_size**-0.5)
        for block in self.layers:
            x = block(x, past, rotation, bias)
        return self.norm(x)

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.embed_tokens.weight) if self.lm_head is None else self.lm_head(x)

    def cache_layout(self) -> Layout:
        return [
            KeyValues(self.config.kv_heads, self.config.head_size)
        ] * self.config.num_hidden_layers

    def steps(self) -> Iterator[Step]:
        yield Embed(self.embed_tokens)
        for block in self.layers:
            attn, mlp, p = block.attention, block.mlp, block.dropout.p
            heads = attn.heads, attn.kv_heads
            if block.parallel:
                yield SaveResidual()
            yield Norm(block.input_layernorm)
            yield Linear([attn.query_key_value])
            if self.rope is not None:
                yield Rotate(*heads, self.rope)
            yield Attend(
                *heads,
                attn.scale,
                bias=self.alibi,
                upcast=self.alibi is not None,
                dropout=attn.dropout,
            )
            yield Add(attn.dense, dropout=p)
            norm = block.input_layernorm if block.mlp_norm is None else block.mlp_norm
            yield Norm(norm, saved=block.parallel)
            yield Linear([mlp.dense_h_to_4h], self.config.activation)
            yield Add(mlp.dense_4h_to_h, dropout=p)
        yield Norm(self.norm)
        yield Logits(self.embed_tokens if self.lm_head is None else self.lm_head)


@dataclass(frozen=True)
class FalconConfig(HeadSettings, Positions):
    """The settings of config.json that change the result. Defaults: Falcon 7B.

    num_kv_heads: used with `new_decoder_architecture` only, which is also parallel in any case.
    num_ln_in_parallel_attn: norms of a layer with it; None for 2.
    """

    TITLE: ClassVar = "Falcon"
    ALIASES: ClassVar = {"falcon": {"n_embed": "hidden_size"}}
    ONLY_VALUE: ClassVar = {"apply_residual_connection_post_layernorm": False}
    # in Falcon 2's files, next to ffn_hidden_size
    NO_EFFECT: ClassVar = frozenset({"ff_factor"})
    DERIVED: ClassVar = ("groups",)

    vocab_size: int = 65024
    hidden_size: int = 4544
    num_hidden_layers: int = field(default=32, metadata={"range": (1, 4096)})
    num_attention_heads: int = 71
    # None: num_attention_heads
    num_kv_heads: int | None = field(default=None, metadata={"range": (1, 2**24)})
    # None: 4 * hidden_size
    ffn_hidden_size: int | None = field(default=None, metadata={"range": (1, 2**24)})
    activation: str = field(default="gelu", metadata={"choices": tuple(ACTIVATIONS)})
    new_decoder_architecture: bool = False
    multi_query: bool = True
    parallel_attn: bool = True
    num_ln_in_parallel_attn: int | None = field(default=None, metadata={"choices": (None, 1, 2)})
    bias: bool = False
    alibi: bool = False
    rope_parameters: dict | None = None  # type: ignore[type-arg]  # rope_type, rope_theta and others
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    max_position_embeddings: int = field(default=2048, metadata={"range": (1, 2**31)})
    initializer_range: float = 0.02
    layer_norm_epsilon: float = 1e-5
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 11
    eos_token_id: int | list[int] | None = 11
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        self.drop_unused_labels()
        check_multiple(self, "hidden_size", "num_attention_heads")
        if self.new_decoder_architecture:
            check_multiple(self, "num_attention_heads", "num_kv_heads")
        # transformers' model lacks the norms of these combinations
        if self.new_decoder_architecture and not self.parallel_attn:
            raise ValueError("Falcon: new_decoder_architecture requires parallel_attn")
        if not self.new_decoder_architecture and self.num_ln_in_parallel_attn == 2:
            raise ValueError("Falcon: num_ln_in_parallel_attn 2 requires new_decoder_architecture")
        if not self.alibi:
            rotary.check("Falcon", self.rope)
            check_rotated("Falcon", self.head_size, self.head_size)

    @property
    def kv_heads(self) -> int:
        """Number of KV heads (G)."""
        if self.new_decoder_architecture:
            return self.num_kv_heads or self.num_attention_heads
        return 1 if self.multi_query else self.num_attention_heads

    @property
    def groups(self) -> tuple[int, int]:
        """The number of KV heads, and of the query heads of each, which are together in the file."""
        return self.kv_heads, self.num_attention_heads // self.kv_heads

    @property
    def head_size(self) -> int:
        """Number of channels of a head (D)."""
        return self.hidden_size // self.num_attention_heads

    @property
    def inner(self) -> int:
        """Number of channels inside the MLP."""
        return self.ffn_hidden_size or 4 * self.hidden_size

    @property
    def is_parallel(self) -> bool:
        """Whether attention and MLP read the same stream."""
        return self.new_decoder_architecture or self.parallel_attn

    @property
    def norms(self) -> int:
        """Number of norms in a layer."""
        if self.new_decoder_architecture:
            return self.num_ln_in_parallel_attn or 2
        return 1 if self.parallel_attn else 2

    @property
    def has_parallel_norms(self) -> bool:
        """Whether the norms are named for parallel blocks with two norms."""
        return self.is_parallel and self.norms == 2

    @property
    def has_usual_norms(self) -> bool:
        """Whether the norms have the usual names."""
        return not self.has_parallel_norms

    @property
    def rope(self) -> JsonObject:
        """rope_parameters with defaults."""
        return rotary.completed(self.rope_parameters, self.max_position_embeddings)

    @property
    def effective(self) -> dict[str, object]:
        """See `Effective.effective`: the number of KV heads and norms, and whether they are in
        parallel, in place of the settings from which they follow.
        """
        settings = {
            **super().effective,
            "num_kv_heads": self.kv_heads,
            "num_ln_in_parallel_attn": self.norms,
            "parallel_attn": self.is_parallel,
            "ffn_hidden_size": self.inner,
        }
        del settings["new_decoder_architecture"], settings["multi_query"]
        return settings

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        settings = {**self.without_head(), "rope_parameters": self.rope}
        return {**self.hub_head("FalconForCausalLM"), "model_type": "falcon", **settings}
