"""Apertus: Llama with norms of q and k, and an MLP without a gate whose activation has weights, in
one file.

Sources
    Swiss AI (2025), "Apertus: Democratizing Open and Compliant LLMs for Global Language
        Environments"; the activation: Huang & Schlag (2025), "Deriving Activation Functions Using
        Integration".
    Hub docs: `transformers`, model_type "apertus".

Differences from similar architectures
    Qwen 3      has a gated MLP; attention is the same, from models/decoder.py.
    Nemotron    has ReLU's square and layer norms.

Notation
    B batch rows    T new positions    C channels, hidden_size    V vocabulary
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models import rotary
from minhub_py.models.attention import Past
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import KeyValues, Layout
from minhub_py.models.decoder import Attention
from minhub_py.models.layers import XIELU, BlockList, RMSNorm
from minhub_py.models.rotary import Rotation
from minhub_py.models.steps import Add, Attend, Embed, Linear, Logits, Norm, Rotate, Step
from minhub_py.models.structure import DecoderConfig, Structure, biases
from minhub_py.system.json_text import JsonObject


class MLP(nn.Module):
    def __init__(self, config: "ApertusConfig") -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.act = XIELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.up_proj(x)))


class Block(nn.Module):
    def __init__(self, config: "ApertusConfig", layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, past: Past, rotation: Rotation) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), past, rotation)
        return x + self.mlp(self.post_attention_layernorm(x))


class Apertus(LanguageModel):
    config: "ApertusConfig"

    def __init__(self, config: "ApertusConfig") -> None:
        super().__init__()
        self.config = config
        self.rope = rotary.rope_of(config.rope, config.rotated)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = BlockList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        # A tied head is the token embedding itself and has no parameter.
        tied = config.tie_word_embeddings
        self.lm_head = (
            None if tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        )
        self.init_weights(config.initializer_range)

    def body(self, idx: Tensor, past: Past) -> Tensor:
        x = self.embed_tokens(idx)  # (B, T, C)
        rotation = Rotation(self.rope, past.positions, x.dtype)
        for block in self.layers:
            x = block(x, past, rotation)
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
            attn, mlp = block.self_attn, block.mlp
            heads = attn.heads, attn.kv_heads
            yield Norm(block.input_layernorm)
            yield Linear([attn.q_proj, attn.k_proj, attn.v_proj])
            yield Rotate(*heads, self.rope, attn.q_norm, attn.k_norm)
            yield Attend(*heads, attn.scale, dropout=attn.dropout)
            yield Add(attn.o_proj)
            yield Norm(block.post_attention_layernorm)
            yield Linear([mlp.up_proj], mlp.act)
            yield Add(mlp.down_proj)
        yield Norm(self.norm)
        yield Logits(self.embed_tokens if self.lm_head is None else self.lm_head)


@dataclass(frozen=True)
class ApertusConfig(DecoderConfig):
    """The settings of config.json that change the result. Defaults: transformers'."""

    TITLE: ClassVar = "Apertus"
    MODEL_TYPE: ClassVar = "apertus"
    ARCHITECTURE: ClassVar = "ApertusForCausalLM"
    THETA: ClassVar = 1.2e7
    ROPE_DEFAULT: ClassVar[JsonObject] = {
        "rope_type": "llama3",
        "rope_theta": 1.2e7,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    ONLY_VALUE: ClassVar = {
        "post_norm": False,
        "mlp_bias": False,
        "qk_norm": True,
        "hidden_dropout": 0.0,
    }

    vocab_size: int = 131072
    intermediate_size: int = 14336
    hidden_act: str = field(default="xielu", metadata={"choices": ("xielu",)})
    max_position_embeddings: int = field(default=65536, metadata={"range": (1, 2**31)})
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    pad_token_id: int | None = 3

    @property
    def structure(self) -> Structure:
        """The properties of attention."""
        qkvo = self.attention_bias
        return self.declared(
            eps=self.rms_norm_eps, biases=biases(qkvo, qkvo), head_norms="before rotation"
        )

    @property
    def rope(self) -> JsonObject:
        """rope_parameters with defaults."""
        rope: Any = self.rope_parameters or self.ROPE_DEFAULT
        return rotary.completed(rope, self.max_position_embeddings, self.THETA)
