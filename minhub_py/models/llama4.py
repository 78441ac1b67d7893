"""The text model of Llama 4: a mixture of experts whose layers attend within chunks, or without
positions.

Sources
    Meta (2025), "The Llama 4 herd"; the layers without positions: Kazemnejad et al. (2023), "The
        Impact of Positional Encoding on Length Generalization"; the factor of their queries:
        Nakanishi (2025), "Scalable-Softmax Is Superior for Attention".
    Hub docs: `transformers`, model_types "llama4_text" and "llama4", whose settings for images are
        ignored.

Differences from similar architectures
    Mixtral    attends to all positions, or to a window. Its weights multiply the outputs of the
               experts, and are a softmax.
    Llama      rotates halves of a head, in all layers, and has one MLP per layer.

    Most layers rotate neighbors, then divide each head of q and k by its root mean square, and
    attend to the positions of the same chunk. The others do not rotate, attend to all positions,
    and multiply queries by a factor that grows with the position. In layers with experts, all
    tokens use a shared expert, too.

Notation
    B batch rows    T new positions    C channels, hidden_size
    H query heads    G KV heads    D head size    V vocabulary
    E experts    K experts of a token    I channels inside an expert
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models import rotary
from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.attention import Past, merge_heads, split_heads
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import KeyValues
from minhub_py.models.experts import Routing
from minhub_py.models.layers import BlockList, RMSNorm, UnitRMSNorm, query_scale
from minhub_py.models.mixture import Mixture
from minhub_py.models.mlp import GatedMLP
from minhub_py.models.rotary import Rope, Rotation
from minhub_py.models.settings import GroupedHeads, check_layer_types, check_multiple
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
    def __init__(self, config: "Llama4Config", layer: int) -> None:
        super().__init__()
        C, D, bias = config.hidden_size, config.head_size, config.attention_bias
        self.layer, self.heads, self.kv_heads = layer, config.num_attention_heads, config.kv_heads
        self.chunk, self.dropout = config.chunks[layer], config.attention_dropout
        self.rotates = config.rotates[layer]
        # The root mean square of each head, without a weight
        normed = self.rotates and config.use_qk_norm
        self.norm = UnitRMSNorm(D, config.rms_norm_eps) if normed else None
        tuned = not self.rotates and bool(config.attn_temperature_tuning)
        self.query_scaling = config.attn_scale if tuned else 0.0
        self.floor_scale = config.floor_scale
        self.q_proj = nn.Linear(C, self.heads * D, bias=bias)
        self.k_proj = nn.Linear(C, self.kv_heads * D, bias=bias)
        self.v_proj = nn.Linear(C, self.kv_heads * D, bias=bias)
        self.o_proj = nn.Linear(self.heads * D, C, bias=bias)

    def forward(self, x: Tensor, past: Past, rotation: Rotation) -> Tensor:
        q = split_heads(self.q_proj(x), self.heads)  # (B, H, T, D)
        k = split_heads(self.k_proj(x), self.kv_heads)  # (B, G, T, D)
        v = split_heads(self.v_proj(x), self.kv_heads)
        if self.rotates:
            q, k = rotation(q, k)
        if self.norm is not None:
            q, k = self.norm(q), self.norm(k)
        if self.query_scaling:
            factor = query_scale(past.positions + 1, self.query_scaling, self.floor_scale)
            q = (q * factor[:, None, :, None]).to(q.dtype)
        dropout = self.dropout if self.training else 0.0
        y = past.attend(
            self.layer, q, k, v, window=self.chunk, chunked=self.chunk is not None, dropout=dropout
        )  # (B, H, T, D)
        return self.o_proj(merge_heads(y))


class Block(nn.Module):
    def __init__(self, config: "Llama4Config", layer: int) -> None:
        super().__init__()
        C, inner, act = config.hidden_size, config.intermediate_size, config.hidden_act
        self.input_layernorm = RMSNorm(C, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(C, config.rms_norm_eps)
        if layer in config.sparse_layers:
            routing = Routing(
                config.num_experts_per_tok, normalize=False, sigmoid=True, weights_inputs=True
            )
            self.shared_expert: GatedMLP | None = GatedMLP(C, inner, act)
            self.mlp: Mixture | GatedMLP = Mixture(config.num_experts, C, inner, act, routing)
        else:
            self.shared_expert, self.mlp = None, GatedMLP(C, config.intermediate_size_mlp, act)

    def forward(self, x: Tensor, past: Past, rotation: Rotation) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), past, rotation)
        h = self.post_attention_layernorm(x)
        if self.shared_expert is not None:
            x = x + self.shared_expert(h)
        return x + self.mlp(h)


class Llama4(LanguageModel):
    config: "Llama4Config"

    def __init__(self, config: "Llama4Config") -> None:
        super().__init__()
        self.config = config
        self.rope = rotary.rope_of(config.rope, config.head_size)
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
        rotation = Rotation(self.rope, past.positions, torch.float32, interleaved=True)
        for block in self.layers:
            x = block(x, past, rotation)
        return self.norm(x)

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.embed_tokens.weight) if self.lm_head is None else self.lm_head(x)

    def cache_layout(self) -> list[KeyValues]:
        config = self.config
        return [KeyValues(config.kv_heads, config.head_size, chunk) for chunk in config.chunks]

    def steps(self) -> Iterator[Step]:
        D = self.config.head_size
        yield Embed(self.embed_tokens)
        for block in self.layers:
            attn, mlp = block.self_attn, block.mlp
            heads = attn.heads, attn.kv_heads
            yield Norm(block.input_layernorm)
            yield Linear([attn.q_proj, attn.k_proj, attn.v_proj])
            if attn.rotates:
                norm = attn.norm
                yield Rotate(*heads, self.rope, norm, norm, norms_last=True, interleaved=True)
            elif attn.query_scaling:
                # angles of 0, and a factor of queries
                still = (0.0,) * (D // 2)
                rope = Rope(still, 1.0, attn.query_scaling, float(attn.floor_scale), first=1)
                yield Rotate(*heads, rope)
            yield Attend(
                *heads, D**-0.5, attn.chunk, dropout=attn.dropout, chunked=attn.chunk is not None
            )
            yield Add(attn.o_proj)
            yield Norm(block.post_attention_layernorm)
            if block.shared_expert is not None:
                yield SaveResidual()  # the experts read the same x
                yield from block.shared_expert.steps()
                yield Norm(block.post_attention_layernorm, saved=True)
            if isinstance(mlp, Mixture):
                yield mlp.step()
            else:
                yield from mlp.steps()
        yield Norm(self.norm)
        yield Logits(self.embed_tokens if self.lm_head is None else self.lm_head)


@dataclass(frozen=True)
class Llama4Config(GroupedHeads):
    """The settings of config.json that change the result. Defaults: transformers', Scout's sizes."""

    TITLE: ClassVar = "Llama 4"
    ONLY_VALUE: ClassVar = {"router_jitter_noise": 0.0}
    NO_EFFECT: ClassVar = frozenset(
        {
            "output_router_logits",
            "router_aux_loss_coef",
            "cache_implementation",
            "for_llm_compressor",
        }
    )
    ALIASES: ClassVar = {"llama4_text": {"num_local_experts": "num_experts"}}

    vocab_size: int = 202048
    hidden_size: int = 5120
    intermediate_size: int = 8192  # of an expert, and of the shared expert
    intermediate_size_mlp: int = 16384  # of the layers without experts
    num_hidden_layers: int = field(default=48, metadata={"range": (1, 4096)})
    num_attention_heads: int = 40
    # None: num_attention_heads
    num_key_value_heads: int | None = field(default=8, metadata={"range": (1, 2**24)})
    # None: hidden_size / heads
    head_dim: int | None = field(default=128, metadata={"range": (2, 2**16)})
    # num_local_experts in config.json
    num_experts: int = field(default=16, metadata={"range": (1, 1024)})
    num_experts_per_tok: int = field(default=1, metadata={"range": (1, 16)})
    moe_layers: list[int] | None = None  # layers with experts; None: each n-th layer
    interleave_moe_layer_step: int = 1
    hidden_act: str = field(default="silu", metadata={"choices": tuple(ACTIVATIONS)})
    max_position_embeddings: int = field(default=2**17, metadata={"range": (1, 2**31)})
    rms_norm_eps: float = 1e-5
    rope_parameters: dict | None = None  # type: ignore[type-arg]  # rope_type, rope_theta and others
    # By layer, 1 for a layer that rotates; none: all except each n-th
    no_rope_layers: list[int] | None = None
    no_rope_layer_interval: int = 4
    use_qk_norm: bool = True
    # None: no chunks
    attention_chunk_size: int | None = field(default=8192, metadata={"range": (1, 2**31)})
    layer_types: list[str] | None = None  # "full_attention" or "chunked_attention"
    # queries without rotation are multiplied by 1 + attn_scale · ln(1 + floor((position + 1) / floor_scale))
    attn_temperature_tuning: bool | int = True
    floor_scale: int = 8192
    attn_scale: float = field(default=0.1, metadata={"range": (0.0, 1e6)})
    attention_bias: bool = False
    attention_dropout: float = 0.0
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        check_multiple(self, "num_attention_heads", "num_key_value_heads")
        if self.head_dim is None:
            check_multiple(self, "hidden_size", "num_attention_heads")
        if self.head_size % 2:
            raise ValueError(
                f"Llama 4: head_dim ({self.head_size}) must be even, because rotary embeddings rotate pairs"
            )
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError(
                f"Llama 4: num_experts_per_tok ({self.num_experts_per_tok}) cannot be more than the"
                f" number of experts ({self.num_experts})"
            )
        if self.no_rope_layers and len(self.no_rope_layers) < self.num_hidden_layers:
            raise ValueError(
                f"Llama 4: no_rope_layers must have a number for each of {self.num_hidden_layers}"
                f" layers, not {len(self.no_rope_layers)}"
            )
        rotary.check("Llama 4", self.rope)
        self.chunks  # noqa: B018  # checks the pattern

    @property
    def rotates(self) -> list[bool]:
        """Whether each layer rotates q and k."""
        layers = range(self.num_hidden_layers)
        if self.no_rope_layers:
            return [bool(self.no_rope_layers[layer]) for layer in layers]
        return [(layer + 1) % self.no_rope_layer_interval != 0 for layer in layers]

    @property
    def types(self) -> list[str]:
        """Each layer's type."""
        if self.layer_types is not None:
            return list(self.layer_types)
        chunked = self.attention_chunk_size is not None
        return [
            "chunked_attention" if rotates and chunked else "full_attention"
            for rotates in self.rotates
        ]

    @property
    def chunks(self) -> list[int | None]:
        """The size of each layer's chunks, in positions; None for all previous positions."""
        sizes = {"full_attention": None, "chunked_attention": self.attention_chunk_size}
        check_layer_types("Llama 4", self.types, sizes, self.num_hidden_layers)
        if self.attention_chunk_size is None and "chunked_attention" in self.types:
            raise ValueError(
                "Llama 4: layer_types has chunked_attention, which requires attention_chunk_size"
            )
        return [sizes[name] for name in self.types]

    @property
    def sparse_layers(self) -> frozenset[int]:
        """The layers with experts."""
        if self.moe_layers is not None:
            return frozenset(self.moe_layers)
        step = self.interleave_moe_layer_step
        return frozenset(range(step - 1, self.num_hidden_layers, step))

    @property
    def rope(self) -> JsonObject:
        """rope_parameters with defaults."""
        return rotary.completed(self.rope_parameters, self.max_position_embeddings, 5e5)

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        settings = asdict(self)
        settings["num_local_experts"] = settings.pop("num_experts")
        return {
            "architectures": ["Llama4ForCausalLM"],
            "model_type": "llama4_text",
            **settings,
            "head_dim": self.head_size,
            "num_key_value_heads": self.kv_heads,
            "attn_temperature_tuning": bool(self.attn_temperature_tuning),
            "moe_layers": sorted(self.sparse_layers),
            "no_rope_layers": [int(rotates) for rotates in self.rotates],
            "layer_types": self.types,
            "rope_parameters": self.rope,
        }
