"""OPT and Galactica, in one file.

Sources
    Zhang et al. (2022), "OPT: Open Pre-trained Transformer Language Models"; its metaseq.
    Taylor et al. (2022), "Galactica". Hub docs: `transformers`, model_type "opt".

Differences from similar architectures
    GPT-2    has norms before attention and MLP, as most OPT models; OPT 350M has them after, and an
             embedding narrower than its stream. The first two rows of OPT's position embedding are
             unused. ReLU.

Notation
    B batch rows    T new positions    S attended positions (cached and new)
    C channels, hidden_size    E width of the embedding, word_embed_proj_dim    H heads    D head
    size, C / H V vocabulary
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
from minhub_py.models.layers import BlockList
from minhub_py.models.settings import Positions, check_multiple
from minhub_py.models.steps import (
    Add,
    AddPositions,
    Attend,
    Embed,
    Linear,
    LoadResidual,
    Logits,
    Norm,
    Step,
)
from minhub_py.system.json_text import JsonObject

FIRST = 2  # row of the position 0


class Attention(nn.Module):
    def __init__(self, config: "OPTConfig", layer: int) -> None:
        super().__init__()
        C, bias = config.hidden_size, config.enable_bias
        self.layer, self.heads = layer, config.num_attention_heads
        self.scale, self.dropout = (C // self.heads) ** -0.5, config.attention_dropout
        self.q_proj = nn.Linear(C, C, bias=bias)
        self.k_proj = nn.Linear(C, C, bias=bias)
        self.v_proj = nn.Linear(C, C, bias=bias)
        self.out_proj = nn.Linear(C, C, bias=bias)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        q = split_heads(self.q_proj(x), self.heads)  # (B, H, T, D)
        k = split_heads(self.k_proj(x), self.heads)
        v = split_heads(self.v_proj(x), self.heads)
        dropout = self.dropout if self.training else 0.0
        y = past.attend(self.layer, q, k, v, scale=self.scale, dropout=dropout)  # (B, H, T, D)
        return self.out_proj(merge_heads(y))


class Block(nn.Module):
    def __init__(self, config: "OPTConfig", layer: int) -> None:
        super().__init__()
        self.before = config.do_layer_norm_before
        self.self_attn = Attention(config, layer)
        self.self_attn_layer_norm = norm_of(config)
        self.fc1 = nn.Linear(config.hidden_size, config.ffn_dim, bias=config.enable_bias)
        self.fc2 = nn.Linear(config.ffn_dim, config.hidden_size, bias=config.enable_bias)
        self.final_layer_norm = norm_of(config)
        self.act = ACTIVATIONS[config.activation_function]
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        if self.before:
            x = x + self.dropout(self.self_attn(self.self_attn_layer_norm(x), past))
            return x + self.dropout(self.mlp(self.final_layer_norm(x)))
        # After: the norms apply to the stream itself.
        x = self.self_attn_layer_norm(x + self.dropout(self.self_attn(x, past)))
        return self.final_layer_norm(x + self.dropout(self.mlp(x)))

    def mlp(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


def norm_of(config: "OPTConfig") -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, elementwise_affine=config.layer_norm_elementwise_affine)


class OPT(LanguageModel):
    config: "OPTConfig"

    def __init__(self, config: "OPTConfig") -> None:
        super().__init__()
        self.config = config
        C, E = config.hidden_size, config.embedding_size
        self.embed_tokens = nn.Embedding(config.vocab_size, E)
        self.embed_positions = nn.Embedding(config.max_position_embeddings + FIRST, C)
        self.project_in = None if E == C else nn.Linear(E, C, bias=False)
        self.layers = BlockList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.final_layer_norm = norm_of(config) if config.ends_with_norm else None
        self.project_out = None if E == C else nn.Linear(C, E, bias=False)
        # A tied head is the token embedding itself and has no parameter.
        self.lm_head = (
            None if config.tie_word_embeddings else nn.Linear(E, config.vocab_size, bias=False)
        )
        self.init_weights(config.init_std)

    def body(self, idx: Tensor, past: Past) -> Tensor:
        x = self.embed_tokens(idx)  # (B, T, E)
        if self.project_in is not None:
            x = self.project_in(x)  # (B, T, C)
        x = x + self.embed_positions(past.positions + FIRST)
        for block in self.layers:
            x = block(x, past)
        if self.final_layer_norm is not None:
            x = self.final_layer_norm(x)
        return x if self.project_out is None else self.project_out(x)  # (B, T, E)

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.embed_tokens.weight) if self.lm_head is None else self.lm_head(x)

    def cache_layout(self) -> Layout:
        heads = self.config.num_attention_heads
        return [KeyValues(heads, self.config.hidden_size // heads)] * self.config.num_hidden_layers

    def steps(self) -> Iterator[Step]:
        yield Embed(self.embed_tokens)
        if self.project_in is not None:
            yield Linear([self.project_in])
        yield AddPositions(self.embed_positions, FIRST)
        for block in self.layers:
            attn, p, before = block.self_attn, block.dropout.p, block.before
            if before:
                yield Norm(block.self_attn_layer_norm)
            yield Linear([attn.q_proj, attn.k_proj, attn.v_proj])
            yield Attend(attn.heads, attn.heads, attn.scale, dropout=attn.dropout)
            yield Add(attn.out_proj, dropout=p)
            yield Norm(
                block.final_layer_norm if before else block.self_attn_layer_norm,
                to_residual=not before,
            )
            yield Linear([block.fc1], self.config.activation_function)
            yield Add(block.fc2, dropout=p)
            if not before:
                yield Norm(block.final_layer_norm, to_residual=True)
        if self.final_layer_norm is not None:
            yield Norm(self.final_layer_norm)
        elif self.config.do_layer_norm_before:
            yield LoadResidual()
        if self.project_out is not None:
            yield Linear([self.project_out])
        yield Logits(self.embed_tokens if self.lm_head is None else self.lm_head)


@dataclass(frozen=True)
class OPTConfig(HeadSettings, Positions):
    """The settings of config.json that change the result. Defaults: OPT 125M."""

    TITLE: ClassVar = "OPT"
    ONLY_VALUE: ClassVar = {
        "layerdrop": 0.0,
        "activation_dropout": 0.0,
        "learned_embeddings": True,
        "scale_embeddings": False,
    }

    vocab_size: int = 50272
    hidden_size: int = 768
    num_hidden_layers: int = field(default=12, metadata={"range": (1, 4096)})
    ffn_dim: int = 3072
    max_position_embeddings: int = field(default=2048, metadata={"range": (1, 2**31)})
    do_layer_norm_before: bool = True
    _remove_final_layer_norm: bool = False  # the name in config.json, with the underscore
    # None: hidden_size
    word_embed_proj_dim: int | None = field(default=None, metadata={"range": (1, 2**24)})
    dropout: float = 0.1
    attention_dropout: float = 0.0
    num_attention_heads: int = 12
    activation_function: str = field(default="relu", metadata={"choices": tuple(ACTIVATIONS)})
    init_std: float = 0.02
    enable_bias: bool = True
    layer_norm_elementwise_affine: bool = True
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 2
    pad_token_id: int | None = 1

    def __post_init__(self) -> None:
        self.drop_unused_labels()
        check_multiple(self, "hidden_size", "num_attention_heads")

    @property
    def embedding_size(self) -> int:
        """Number of channels of the embedding (E)."""
        return self.word_embed_proj_dim or self.hidden_size

    @property
    def ends_with_norm(self) -> bool:
        """Whether a norm follows the last block: blocks with norms after attention and MLP end with
        a norm.
        """
        return self.do_layer_norm_before and not self._remove_final_layer_norm

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        return {**self.hub_head("OPTForCausalLM"), "model_type": "opt", **self.without_head()}
