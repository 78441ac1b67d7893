"""OPT and Galactica, in one file.

Sources
    Zhang et al. (2022), "OPT: Open Pre-trained Transformer Language Models"; its metaseq.
    Taylor et al. (2022), "Galactica". Hub docs: `transformers`, model_type "opt".

What differs from its siblings
    GPT-2    norms before each part, as most OPTs; OPT 350M has them after, and its embedding is narrower than its
             stream. Positions are counted from 2, since the first two rows were once for padding. ReLU.

Notation
    B batch rows    T positions read in this call    S positions attended to (cached and new)
    C channels, hidden_size    E width of the embedding, word_embed_proj_dim    H heads    D head size, C / H
    V vocabulary
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.inference.cache import KeyValues, Span
from minhub_py.models.base import ACTIVATIONS, LanguageModel, Step, step

FIRST = 2  # row of the position 0


class Attention(nn.Module):
    def __init__(self, config: "OPTConfig", layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.heads, self.size = config.num_attention_heads, config.hidden_size // config.num_attention_heads
        self.dropout = config.attention_dropout
        C, bias = config.hidden_size, config.enable_bias
        self.q_proj = nn.Linear(C, C, bias=bias)
        self.k_proj = nn.Linear(C, C, bias=bias)
        self.v_proj = nn.Linear(C, C, bias=bias)
        self.out_proj = nn.Linear(C, C, bias=bias)

    def forward(self, x: Tensor, span: Span) -> Tensor:
        B, T, C = x.shape
        q = self.q_proj(x).view(B, T, self.heads, -1).transpose(1, 2)  # (B, H, T, D)
        k = self.k_proj(x).view(B, T, self.heads, -1).transpose(1, 2)
        v = self.v_proj(x).view(B, T, self.heads, -1).transpose(1, 2)
        k, v, seen = span.update(self.layer, k, v)  # (B, H, S, D), (B, H, S, D), (B or 1, S)
        mask = span.mask(seen)  # (B or 1, 1, T, S), or None
        y = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True if mask is None and T > 1 else False,  # noqa: SIM210  # torch.compile needs a branch
        )  # (B, H, T, D)
        return self.out_proj(y.transpose(1, 2).reshape(B, T, C))


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

    def forward(self, x: Tensor, span: Span) -> Tensor:
        if self.before:
            x = x + self.dropout(self.self_attn(self.self_attn_layer_norm(x), span))
            return x + self.dropout(self.mlp(self.final_layer_norm(x)))
        # After: what is normed is the stream itself.
        x = self.self_attn_layer_norm(x + self.dropout(self.self_attn(x, span)))
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
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.final_layer_norm = norm_of(config) if config.ends_with_norm else None
        self.project_out = None if E == C else nn.Linear(C, E, bias=False)
        # Tied weights: the head is the token embedding itself, so a tied model has no parameter for it.
        self.lm_head = None if config.tie_word_embeddings else nn.Linear(E, config.vocab_size, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=config.init_std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def body(self, idx: Tensor, span: Span) -> Tensor:
        x = self.embed_tokens(idx)  # (B, T, E)
        if self.project_in is not None:
            x = self.project_in(x)  # (B, T, C)
        x = x + self.embed_positions(span.positions + FIRST)
        for block in self.layers:
            x = block(x, span)
        if self.final_layer_norm is not None:
            x = self.final_layer_norm(x)
        return x if self.project_out is None else self.project_out(x)  # (B, T, E)

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.embed_tokens.weight) if self.lm_head is None else self.lm_head(x)

    def cache_layout(self) -> list[KeyValues]:
        heads = self.config.num_attention_heads
        return [KeyValues(heads, self.config.hidden_size // heads)] * self.config.num_hidden_layers

    def steps(self) -> Iterator[Step]:
        block: Any
        yield step("embed", tokens=self.embed_tokens)
        if self.project_in is not None:
            yield step("linear", layers=[self.project_in])
        yield step("place", positions=self.embed_positions, first=FIRST)
        for block in self.layers:
            attn, p, before = block.self_attn, block.dropout.p, block.before
            if before:
                yield step("norm", layer=block.self_attn_layer_norm)
            yield step("linear", layers=[attn.q_proj, attn.k_proj, attn.v_proj])
            yield step("attend", heads=attn.heads, scale=attn.size**-0.5, dropout=attn.dropout)
            yield step("add", layer=attn.out_proj, dropout=p)
            norm = block.final_layer_norm if before else block.self_attn_layer_norm
            yield step("norm", layer=norm, stream=not before)
            yield step("linear", layers=[block.fc1], activation=self.config.activation_function)
            yield step("add", layer=block.fc2, dropout=p)
            if not before:
                yield step("norm", layer=block.final_layer_norm, stream=True)
        if self.final_layer_norm is not None:
            yield step("norm", layer=self.final_layer_norm)
        elif self.config.do_layer_norm_before:
            yield step("copy")
        if self.project_out is not None:
            yield step("linear", layers=[self.project_out])
        yield step("logits", layer=self.embed_tokens if self.lm_head is None else self.lm_head)


@dataclass(frozen=True)
class OPTConfig:
    """The settings of config.json that change the result, under the Hub's names; defaults are OPT 125M's."""

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
    _remove_final_layer_norm: bool = False  # the Hub's name, underscore and all
    word_embed_proj_dim: int | None = field(default=None, metadata={"range": (1, 2**24)})  # None: hidden_size
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
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"OPT: hidden_size ({self.hidden_size}) must be a multiple of "
                f"num_attention_heads ({self.num_attention_heads})"
            )

    @property
    def embedding_size(self) -> int:
        """E."""
        return self.word_embed_proj_dim or self.hidden_size

    @property
    def ends_with_norm(self) -> bool:
        """Whether there is a norm after the last block: where norms come after, the block ends with one itself."""
        return self.do_layer_norm_before and not self._remove_final_layer_norm

    def to_hub(self) -> dict[str, Any]:
        """The config.json of this model, as transformers reads it."""
        return {"architectures": ["OPTForCausalLM"], "model_type": "opt", **asdict(self)}

    @property
    def context_length(self) -> int:
        """The most positions that the model can see at once."""
        return self.max_position_embeddings
