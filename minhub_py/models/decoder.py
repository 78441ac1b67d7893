"""The general decoder: Llama with declared differences, for architectures that differ from it in a
few ways.

Each architecture has a config file, whose `structure` (structure.py) declares the differences;
relatives.py lists them. Read models/llama.py first: it contains the mathematics without the
differences.

Notation
    B batch rows    T new positions    S attended positions (cached and new)
    C channels, hidden_size    H query heads    G KV heads    D head size    V vocabulary
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models import rotary
from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.attention import Past, merge_heads, split_heads
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import KeyValues, Layout
from minhub_py.models.layers import BlockList, HeadLayerNorm, RMSNorm, scaled
from minhub_py.models.rotary import Rotation
from minhub_py.models.steps import (
    Add,
    Attend,
    Embed,
    Gate,
    Linear,
    LoadResidual,
    Logits,
    Norm,
    Rotate,
    SaveResidual,
    Step,
)
from minhub_py.models.structure import DecoderConfig, Structure


class Attention(nn.Module):
    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        C, D, structure = config.hidden_size, config.head_size, config.structure
        self.layer, self.heads, self.kv_heads = layer, config.num_attention_heads, config.kv_heads
        self.scale = D**-0.5 if structure.factors.scores is None else structure.factors.scores
        self.window, self.dropout = structure.windows[layer], config.attention_dropout
        self.joint, self.norms_last = (
            structure.head_norms == "joint",
            structure.head_norms == "after rotation",
        )
        qkv_bias, output_bias = "qkv" in structure.biases, "output" in structure.biases
        self.q_proj = nn.Linear(C, self.heads * D, bias=qkv_bias)
        self.k_proj = nn.Linear(C, self.kv_heads * D, bias=qkv_bias)
        self.v_proj = nn.Linear(C, self.kv_heads * D, bias=qkv_bias)
        self.o_proj = nn.Linear(self.heads * D, C, bias=output_bias)
        self.q_norm = head_norm(structure, self.heads, D)
        self.k_norm = head_norm(structure, self.kv_heads, D)

    def forward(self, x: Tensor, past: Past, rotation: Rotation | None) -> Tensor:
        q, k = self.q_proj(x), self.k_proj(x)
        if self.joint:
            q, k = self.normed(q, k)
        q = split_heads(q, self.heads)  # (B, H, T, D)
        k = split_heads(k, self.kv_heads)  # (B, G, T, D)
        v = split_heads(self.v_proj(x), self.kv_heads)
        if not (self.joint or self.norms_last):
            q, k = self.normed(q, k)
        if rotation is not None:
            q, k = rotation(q, k)
        if self.norms_last:
            q, k = self.normed(q, k)
        dropout = self.dropout if self.training else 0.0
        # (B, H, T, D)
        y = past.attend(self.layer, q, k, v, scale=self.scale, window=self.window, dropout=dropout)
        return self.o_proj(merge_heads(y))

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        if self.q_norm is None or self.k_norm is None:
            return q, k
        return self.q_norm(q), self.k_norm(k)


class MLP(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        C, inner, bias = (
            config.hidden_size,
            config.intermediate_size,
            "mlp" in config.structure.biases,
        )
        self.gate_proj = nn.Linear(C, inner, bias=bias) if config.structure.gated else None
        self.up_proj = nn.Linear(C, inner, bias=bias)
        self.down_proj = nn.Linear(inner, C, bias=bias)
        self.act = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        if self.gate_proj is None:
            return self.down_proj(self.act(self.up_proj(x)))
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        C, structure = config.hidden_size, config.structure
        before, after, self.parallel = (
            structure.norms != "after",
            structure.norms != "before",
            structure.parallel,
        )
        self.input_layernorm = norm(structure, C) if before else None
        self.self_attn = Attention(config, layer)
        self.attention_output_norm = RMSNorm(C, structure.eps) if after else None
        self.post_attention_layernorm = norm(structure, C) if before and not self.parallel else None
        self.mlp = MLP(config)
        self.mlp_output_norm = RMSNorm(C, structure.eps) if after else None
        self.scale, self.dropout = structure.factors.residual, nn.Dropout(structure.dropout)

    def forward(self, x: Tensor, past: Past, rotation: Rotation | None) -> Tensor:
        h = apply(self.input_layernorm, x)
        y = self.output(apply(self.attention_output_norm, self.self_attn(h, past, rotation)))
        if not self.parallel:  # the MLP reads the sum
            x = x + y
            return x + self.output(
                apply(self.mlp_output_norm, self.mlp(apply(self.post_attention_layernorm, x)))
            )
        return x + y + self.output(self.mlp(h))

    def output(self, y: Tensor) -> Tensor:
        """The output of attention or the MLP as it is added to the residual stream."""
        y = self.dropout(y)
        return y if self.scale == 1.0 else y * self.scale


def norm(structure: Structure, size: int) -> RMSNorm | nn.LayerNorm:
    """A norm of the residual stream."""
    if structure.norm == "rms":
        return RMSNorm(size, structure.eps)
    return nn.LayerNorm(size, structure.eps, bias=structure.norm == "layer")


def head_norm(structure: Structure, heads: int, size: int) -> RMSNorm | HeadLayerNorm | None:
    """A norm of q or k."""
    if not structure.head_norms:
        return None
    if structure.head_norms == "layer":
        return HeadLayerNorm(heads, size, structure.eps)
    return RMSNorm(heads * size if structure.head_norms == "joint" else size, structure.eps)


def apply(layer: nn.Module | None, x: Tensor) -> Tensor:
    """The layer's output; x without a layer."""
    return x if layer is None else layer(x)


class Decoder(LanguageModel):
    config: DecoderConfig

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config, self.structure = config, config.structure
        structure = self.structure
        self.ropes = [
            None if rope is None else rotary.rope_of(rope, config.rotated)
            for rope in structure.ropes
        ]
        # the first layer with the same rotation
        self.rotations = [self.ropes.index(rope) for rope in self.ropes]
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.drop = nn.Dropout(structure.embedding_dropout)
        self.layers = BlockList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = norm(structure, config.hidden_size)
        # A tied head is the token embedding itself and has no parameter.
        tied = config.tie_word_embeddings
        self.lm_head = (
            None if tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        )
        self.init_weights(config.initializer_range)

    def body(self, idx: Tensor, past: Past) -> Tensor:
        x = self.embed_tokens(idx)  # (B, T, C)
        if self.structure.factors.embeddings is not None:
            x = scaled(x, self.structure.factors.embeddings)
        x = self.drop(x)
        dtype = torch.float32 if self.structure.exact_rotation else x.dtype
        rotations: dict[int, Rotation | None] = {}
        # layers can be deleted
        for block, rope, number in zip(self.layers, self.ropes, self.rotations, strict=False):
            if number not in rotations:
                rotations[number] = (
                    None
                    if rope is None
                    else Rotation(
                        rope.sized(past.size), past.positions, dtype, self.structure.interleaved
                    )
                )
            x = block(x, past, rotations[number])
        return self.norm(x)

    def logits(self, x: Tensor) -> Tensor:
        logits = F.linear(x, self.embed_tokens.weight) if self.lm_head is None else self.lm_head(x)
        return (
            logits
            if self.structure.factors.logits == 1.0
            else logits * self.structure.factors.logits
        )

    def cache_layout(self) -> Layout:
        config = self.config
        return [
            KeyValues(config.kv_heads, config.head_size, window)
            for window in self.structure.windows
        ]

    def steps(self) -> Iterator[Step]:
        structure = self.structure
        yield Embed(self.embed_tokens, scale=structure.factors.embeddings, dropout=self.drop.p)
        for block, rope in zip(self.layers, self.ropes, strict=False):
            attn, mlp, scale, dropout = block.self_attn, block.mlp, block.scale, block.dropout.p
            heads = attn.heads, attn.kv_heads
            if block.parallel:
                yield SaveResidual()
            yield LoadResidual() if block.input_layernorm is None else Norm(block.input_layernorm)
            yield Linear([attn.q_proj, attn.k_proj, attn.v_proj])
            if rope is not None or attn.q_norm is not None:
                yield Rotate(
                    *heads,
                    rope,
                    attn.q_norm,
                    attn.k_norm,
                    all_heads=attn.joint,
                    interleaved=structure.interleaved,
                    norms_last=attn.norms_last,
                )
            yield Attend(*heads, attn.scale, attn.window, dropout=attn.dropout)
            yield Add(attn.o_proj, block.attention_output_norm, scale, dropout)
            first = block.input_layernorm
            if block.parallel and first is not None:
                yield Norm(first, saved=True)  # the norm of the block's input again
            else:
                second = block.post_attention_layernorm
                yield LoadResidual() if second is None else Norm(second)
            if mlp.gate_proj is None:
                yield Linear([mlp.up_proj], self.config.hidden_act)
            else:
                yield Linear([mlp.gate_proj, mlp.up_proj])
                yield Gate(self.config.hidden_act)
            yield Add(mlp.down_proj, block.mlp_output_norm, scale, dropout)
        yield Norm(self.norm)
        head = self.embed_tokens if self.lm_head is None else self.lm_head
        yield Logits(head, scale=structure.factors.logits)
