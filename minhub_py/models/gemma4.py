"""The language model of Gemma 4 in one file: E2B, E4B, 26B-A4B and 31B.

Sources
    Gemma Team (2026), "Gemma 4"; (2025), "Gemma 3n", for embeddings per layer and shared keys and
        values.
    Rotary positions: Su et al. (2021); RMS norm: Zhang & Sennrich (2019); KV heads: Ainslie et al.
        (2023), "GQA"; soft caps by tanh: Bello et al. (2016); keys and values shared by layers:
        Brandon et al. (2024), "Cross-Layer Attention".
    Hub docs: `transformers`, model_types "gemma4_text" and "gemma4" (with images and sounds; only
        its text model).

Differences from similar architectures
    Gemma 3    multiplies by 1 + weight in its norms, here by the weight; its v has no norm; its
               scores have a factor. Here each layer type has its own head size, and a layer ends
               with a product with a number.

    E2B, E4B   each token has an additional vector for each layer, from a second embedding, which is only looked up; the
               last layers use the keys and values of an earlier layer of their type
    31B        the values of global layers are their keys, before norm and rotation
    26B-A4B    as 31B; the output of experts is added to the output of each MLP, and the router has its own norm

Notation
    B batch rows    T new positions    C channels, hidden_size    H query heads    G KV heads    D
    head size L layers    P numbers of a token for each layer    V vocabulary
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models import rotary, steps
from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.attention import Past, merge_heads, split_heads
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import KeyValues, Layout
from minhub_py.models.experts import Routing
from minhub_py.models.layers import BlockList, RMSNorm, rms_norm, scaled
from minhub_py.models.mixture import Mixture
from minhub_py.models.mlp import GatedMLP
from minhub_py.models.rotary import Rotation
from minhub_py.models.settings import Positions, check_layer_types
from minhub_py.models.steps import (
    Add,
    Attend,
    Embed,
    Linear,
    LoadResidual,
    Logits,
    Norm,
    Rotate,
    Step,
)
from minhub_py.system.json_text import JsonObject

FULL, SLIDING = "full_attention", "sliding_attention"
HALF_VARIANCE = 2**-0.5  # of the sum of two vectors for each layer


def full_sizes(
    title: str,
    per_layer: JsonObject | None,
    kinds: list[str],
    own: tuple[int, int],
    sliding: tuple[int, int],
) -> tuple[int, int]:
    """Head size and number of KV heads of the full layers, from per_layer_config; None: `own`.

    sliding: those of the other layers, for what per_layer_config omits.    ValueError: it has other
    differences.
    """
    if per_layer is None:
        return own
    names = "head_dim", "num_key_value_heads"
    full = {str(layer) for layer, kind in enumerate(kinds) if kind == FULL}
    # transformers writes layer numbers of equal length, such as "05"
    layers = {str(layer).lstrip("0") or "0" for layer in per_layer}
    entries = list(per_layer.values())
    first = entries[0] if entries else {}
    same = all(entry == first for entry in entries) and layers in (full, set())
    if (
        not same
        or not isinstance(first, dict)
        or not all(
            name in names and type(value) is int and 1 <= value <= 2**16
            for name, value in first.items()
        )
    ):
        raise ValueError(
            f"{title}: per_layer_config must contain the same head_dim and num_key_value_heads for"
            " all layers of full_attention, and nothing else"
        )
    size, heads = (first.get(name, number) for name, number in zip(names, sliding, strict=True))
    return size, heads


def ropes_of_types(
    title: str, parameters: JsonObject | None, full: JsonObject, context: int
) -> dict[str, JsonObject]:
    """rope_parameters of each layer type, with defaults; full: those of the full layers.

    ValueError: they are not one dict per layer type.
    """
    parameters = parameters or {}
    if not all(
        name in (FULL, SLIDING) and isinstance(value, dict | None)
        for name, value in parameters.items()
    ):
        raise ValueError(f"{title}: rope_parameters must contain settings for {FULL} and {SLIDING}")
    return {
        kind: rotary.completed(parameters.get(kind) or default, context)
        for kind, default in ((FULL, full), (SLIDING, {}))
    }


class Attention(nn.Module):
    """source: the layer whose keys and values this layer attends to, or None for its own."""

    def __init__(self, config: "Gemma4Config", layer: int) -> None:
        super().__init__()
        C, size, bias = config.hidden_size, config.head_sizes[layer], config.attention_bias
        self.layer, self.heads, self.kv_heads = (
            layer,
            config.num_attention_heads,
            config.kv_heads[layer],
        )
        self.kind, self.window, self.source = (
            config.kinds[layer],
            config.windows[layer],
            config.sources[layer],
        )
        self.keeps, self.dropout, self.eps = (
            layer in config.sources,
            config.attention_dropout,
            config.rms_norm_eps,
        )
        own = self.source is None
        has_values = own and not (config.attention_k_eq_v and self.kind == FULL)
        self.q_proj = nn.Linear(C, self.heads * size, bias=bias)
        self.k_proj = nn.Linear(C, self.kv_heads * size, bias=bias) if own else None
        self.v_proj = nn.Linear(C, self.kv_heads * size, bias=bias) if has_values else None
        self.o_proj = nn.Linear(self.heads * size, C, bias=bias)
        self.q_norm = RMSNorm(size, self.eps)
        self.k_norm = RMSNorm(size, self.eps) if own else None

    def forward(self, x: Tensor, past: Past, rotation: Rotation) -> Tensor:
        q = self.q_norm(split_heads(self.q_proj(x), self.heads))  # (B, H, T, D)
        if self.k_proj is None or self.k_norm is None:
            assert self.source is not None
            q, _ = rotation(q, q[:, :0])
            keys_values = past.shared[self.source]
        else:
            k = split_heads(self.k_proj(x), self.kv_heads)  # (B, G, T, D)
            v = k if self.v_proj is None else split_heads(self.v_proj(x), self.kv_heads)
            v = rms_norm(v, None, self.eps)
            q, k = rotation(q, self.k_norm(k))
            keys_values = past.keys_values(self.layer, k, v)
        if self.keeps:
            past.shared[self.layer] = keys_values
        dropout = self.dropout if self.training else 0.0
        # (B, H, T, D)
        y = past.attend_to(
            self.layer, q, keys_values, scale=1.0, window=self.window, dropout=dropout
        )
        return self.o_proj(merge_heads(y))


class ExpertBranch(nn.Module):
    """Experts in parallel with the MLP of a block. Each output has its norm before the sum."""

    def __init__(self, config: "Gemma4Config") -> None:
        super().__init__()
        C, eps = config.hidden_size, config.rms_norm_eps
        experts, top, inner = config.num_experts, config.top_k_experts, config.moe_intermediate_size
        assert experts is not None
        assert top is not None
        assert inner is not None
        self.pre_norm = RMSNorm(C, eps)
        self.mixture = Mixture(
            experts, C, inner, config.hidden_activation, Routing(top), router_norm=RMSNorm(C, eps)
        )
        self.post_norm = RMSNorm(C, eps)
        self.mlp_norm = RMSNorm(C, eps)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The sum (B, T, C) of both branches. x: the residual stream.    y: the output of the MLP."""
        return self.post_norm(self.mixture(self.pre_norm(x), x)) + self.mlp_norm(y)


class Block(nn.Module):
    layer_scalar: Tensor

    def __init__(self, config: "Gemma4Config", layer: int) -> None:
        super().__init__()
        C, P, eps = config.hidden_size, config.hidden_size_per_layer_input, config.rms_norm_eps
        self.input_layernorm = RMSNorm(C, eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(C, eps)
        self.pre_feedforward_layernorm = RMSNorm(C, eps)
        self.mlp = GatedMLP(C, config.inner_sizes[layer], config.hidden_activation)
        self.post_feedforward_layernorm = RMSNorm(C, eps)
        self.experts = ExpertBranch(config) if config.enable_moe_block else None
        self.act = ACTIVATIONS[config.hidden_activation]
        self.per_layer_input_gate = nn.Linear(C, P, bias=False) if P else None
        self.per_layer_projection = nn.Linear(P, C, bias=False) if P else None
        self.post_per_layer_input_norm = RMSNorm(C, eps) if P else None
        self.register_buffer("layer_scalar", torch.ones(1))

    def forward(self, x: Tensor, past: Past, rotation: Rotation, inputs: Tensor | None) -> Tensor:
        """inputs: the vectors (B, T, P) of this layer, or None."""
        x = x + self.post_attention_layernorm(
            self.self_attn(self.input_layernorm(x), past, rotation)
        )
        y = self.mlp(self.pre_feedforward_layernorm(x))
        x = x + self.post_feedforward_layernorm(y if self.experts is None else self.experts(x, y))
        if inputs is not None:
            assert self.per_layer_input_gate is not None
            assert self.per_layer_projection is not None
            assert self.post_per_layer_input_norm is not None
            gated = self.act(self.per_layer_input_gate(x)) * inputs
            x = x + self.post_per_layer_input_norm(self.per_layer_projection(gated))
        return x * self.layer_scalar


class Gemma4(LanguageModel):
    config: "Gemma4Config"

    def __init__(self, config: "Gemma4Config") -> None:
        super().__init__()
        self.config = config
        C, L, P = config.hidden_size, config.num_hidden_layers, config.hidden_size_per_layer_input
        sizes = dict(zip(config.kinds, config.head_sizes, strict=True))
        self.ropes = {
            kind: rotary.rope_of(config.ropes[kind], size) for kind, size in sorted(sizes.items())
        }
        self.embed_tokens = nn.Embedding(config.vocab_size, C)
        self.per_layer_model_projection = nn.Linear(C, L * P, bias=False) if P else None
        self.per_layer_projection_norm = RMSNorm(P, config.rms_norm_eps) if P else None
        self.layers = BlockList(Block(config, layer) for layer in range(L))
        self.norm = RMSNorm(C, config.rms_norm_eps)
        # A tied head is the token embedding itself and has no parameter.
        self.lm_head = (
            None if config.tie_word_embeddings else nn.Linear(C, config.vocab_size, bias=False)
        )
        # The last module: a quantized model keeps its dtype, and the first parameter determines the
        # dtype of the cache.
        self.embed_tokens_per_layer = (
            nn.Embedding(config.vocab_size_per_layer_input, L * P) if P else None
        )
        self.init_weights(config.initializer_range)

    def body(self, idx: Tensor, past: Past) -> Tensor:
        x = scaled(self.embed_tokens(idx), self.config.hidden_size**0.5)  # (B, T, C)
        inputs = self.layer_inputs(idx, x)
        rotations = {
            kind: Rotation(rope, past.positions, x.dtype) for kind, rope in self.ropes.items()
        }
        for layer, (block, kind) in enumerate(zip(self.layers, self.config.kinds, strict=True)):
            x = block(x, past, rotations[kind], None if inputs is None else inputs[:, :, layer])
        return self.norm(x)

    def layer_inputs(self, idx: Tensor, x: Tensor) -> Tensor | None:
        """The vectors (B, T, L, P) of token IDs (B, T) for each layer; None if the model has none.

        x: the embeddings (B, T, C).
        """
        if self.embed_tokens_per_layer is None:
            return None
        assert self.per_layer_model_projection is not None
        assert self.per_layer_projection_norm is not None
        L, P = self.config.num_hidden_layers, self.config.hidden_size_per_layer_input
        rows = scaled(self.embed_tokens_per_layer(idx), P**0.5).unflatten(2, (L, P))
        projected = (self.per_layer_model_projection(x) * self.config.hidden_size**-0.5).unflatten(
            2, (L, P)
        )
        return (self.per_layer_projection_norm(projected) + rows) * HALF_VARIANCE

    def logits(self, x: Tensor) -> Tensor:
        logits = F.linear(x, self.embed_tokens.weight) if self.lm_head is None else self.lm_head(x)
        cap = self.config.final_logit_softcapping
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def cache_layout(self) -> Layout:
        """The cache of the first layers; the other layers use it, too."""
        config = self.config
        layers = zip(config.kv_heads, config.head_sizes, config.windows, strict=True)
        return [KeyValues(*layer) for layer in layers][: config.caching_layers]

    def steps(self) -> Iterator[Step]:
        config, activation = self.config, self.config.hidden_activation
        P = config.hidden_size_per_layer_input
        yield Embed(self.embed_tokens, scale=config.hidden_size**0.5)
        if self.embed_tokens_per_layer is not None:
            assert self.per_layer_projection_norm is not None
            assert self.per_layer_model_projection is not None
            yield Linear([self.per_layer_model_projection])
            yield steps.LayerInputs(
                self.embed_tokens_per_layer,
                self.per_layer_projection_norm,
                config.hidden_size**-0.5,
                P**0.5,
                HALF_VARIANCE,
            )
        for layer, block in enumerate(self.layers):
            attn, mlp = block.self_attn, block.mlp
            yield Norm(block.input_layernorm)
            if attn.k_proj is not None:  # else the keys and values of layer attn.source
                yield Linear([attn.q_proj, attn.k_proj, attn.v_proj or attn.k_proj])
                yield Rotate(
                    attn.heads, attn.kv_heads, self.ropes[attn.kind], attn.q_norm, attn.k_norm
                )
                yield steps.NormValues(attn.heads, attn.kv_heads, attn.eps)
            else:
                yield Linear([attn.q_proj])
                yield Rotate(attn.heads, 0, self.ropes[attn.kind], attn.q_norm)
            yield Attend(
                attn.heads,
                attn.kv_heads,
                1.0,
                attn.window,
                source=attn.source,
                dropout=attn.dropout,
            )
            yield Add(attn.o_proj, block.post_attention_layernorm)
            if (experts := block.experts) is not None:
                yield steps.SaveResidual()
                yield Norm(experts.pre_norm)
                yield experts.mixture.step()
                yield Norm(experts.post_norm, to_residual=True)
            yield Norm(block.pre_feedforward_layernorm, saved=experts is not None)
            yield from mlp.steps(
                block.post_feedforward_layernorm if experts is None else experts.mlp_norm
            )
            if experts is not None:
                yield steps.AddToSaved(block.post_feedforward_layernorm)
            if block.per_layer_input_gate is not None and block.per_layer_projection is not None:
                yield LoadResidual()
                yield Linear([block.per_layer_input_gate])
                yield steps.GateLayerInput(layer, P, activation)
                yield Add(block.per_layer_projection, block.post_per_layer_input_norm)
            yield steps.ScaleResidual(block.layer_scalar)
        yield Norm(self.norm)
        yield Logits(
            self.embed_tokens if self.lm_head is None else self.lm_head,
            softcap=config.final_logit_softcapping,
        )


@dataclass(frozen=True)
class Gemma4Config(Positions):
    """The settings of config.json that change the result. Defaults: transformers."""

    TITLE: ClassVar = "Gemma 4"
    # Of text, no model attends in both directions: "vision" means the tokens of an image.
    ONLY_VALUE: ClassVar[Mapping[str, object]] = {"use_bidirectional_attention": "vision"}
    ALIASES: ClassVar = {"gemma4_text": {"num_local_experts": "num_experts"}}

    model_type: str = "gemma4_text"
    vocab_size: int = 262144
    hidden_size: int = 2304
    intermediate_size: int = 9216
    use_double_wide_mlp: bool = False  # doubles intermediate_size in the layers with shared keys
    num_hidden_layers: int = field(default=30, metadata={"range": (1, 4096)})
    num_kv_shared_layers: int = field(default=0, metadata={"range": (0, 4095)})  # the last layers
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    # if attention_k_eq_v
    num_global_key_value_heads: int | None = field(default=None, metadata={"range": (1, 2**24)})
    head_dim: int = field(default=256, metadata={"range": (2, 2**16)})
    global_head_dim: int = field(default=512, metadata={"range": (2, 2**16)})
    # Newer files have both global settings here: layer number -> head_dim, num_key_value_heads.
    per_layer_config: dict | None = None  # type: ignore[type-arg]
    attention_k_eq_v: bool = False  # the values of global layers are their keys
    # experts in parallel with each MLP; the next three settings describe them
    enable_moe_block: bool = False
    num_experts: int | None = field(default=None, metadata={"range": (1, 1024)})
    top_k_experts: int | None = field(default=None, metadata={"range": (1, 16)})
    moe_intermediate_size: int | None = field(default=None, metadata={"range": (1, 2**24)})
    hidden_activation: str = field(
        default="gelu_pytorch_tanh", metadata={"choices": tuple(ACTIVATIONS)}
    )
    hidden_size_per_layer_input: int = field(default=256, metadata={"range": (0, 2**24)})  # P
    vocab_size_per_layer_input: int = 262144
    max_position_embeddings: int = field(default=131072, metadata={"range": (1, 2**31)})
    rms_norm_eps: float = 1e-6
    rope_parameters: dict | None = None  # type: ignore[type-arg]  # one per layer type
    attention_bias: bool = False
    attention_dropout: float = 0.0
    final_logit_softcapping: float | None = field(default=None, metadata={"range": (1e-3, 1e9)})
    sliding_window: int = field(default=512, metadata={"range": (1, 2**31)})
    # "full_attention" or "sliding_attention"; the last layer is always full
    layer_types: list[str] | None = None
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 1
    pad_token_id: int | None = 0

    def __post_init__(self) -> None:
        check_layer_types("Gemma 4", self.kinds, (FULL, SLIDING), self.num_hidden_layers)
        for size, heads in zip(self.head_sizes, self.kv_heads, strict=True):
            if size % 2:
                raise ValueError(
                    f"Gemma 4: the head size ({size}) must be even, because rotary embeddings rotate pairs"
                )
            if self.num_attention_heads % heads:
                raise ValueError(
                    f"Gemma 4: num_attention_heads ({self.num_attention_heads}) must be a multiple"
                    f" of the KV heads of each layer ({heads})"
                )
        if absent := sorted(set(self.kinds) - set(self.kinds[: self.caching_layers])):
            raise ValueError(
                f"Gemma 4: num_kv_shared_layers ({self.num_kv_shared_layers}) leaves no layer of"
                f" {absent[0]} with its own keys and values"
            )
        if self.hidden_size_per_layer_input and self.vocab_size_per_layer_input < self.vocab_size:
            raise ValueError(
                f"Gemma 4: vocab_size_per_layer_input ({self.vocab_size_per_layer_input}) cannot be"
                f" less than vocab_size ({self.vocab_size})"
            )
        if self.enable_moe_block and None in (
            self.num_experts,
            self.top_k_experts,
            self.moe_intermediate_size,
        ):
            raise ValueError(
                "Gemma 4: with enable_moe_block, num_experts, top_k_experts and"
                " moe_intermediate_size are required"
            )
        if self.enable_moe_block and (self.top_k_experts or 0) > (self.num_experts or 0):
            raise ValueError(
                f"Gemma 4: top_k_experts ({self.top_k_experts}) cannot be more than num_experts"
                f" ({self.num_experts})"
            )
        for rope in self.ropes.values():
            rotary.check("Gemma 4", rope, proportional=True)

    @property
    def kinds(self) -> list[str]:
        """The type of each layer. As in transformers, the last layer is always full."""
        count = self.num_hidden_layers
        kinds = self.layer_types or [
            FULL if (layer + 1) % 6 == 0 else SLIDING for layer in range(count)
        ]
        return [*kinds[:-1], FULL]

    @property
    def caching_layers(self) -> int:
        """The number of first layers, which compute and cache keys and values."""
        return max(self.num_hidden_layers - self.num_kv_shared_layers, 0)

    @property
    def sources(self) -> list[int | None]:
        """For each layer, the layer whose keys and values it shares: the last caching layer of its
        type; or None.
        """
        kinds, own = self.kinds, self.caching_layers
        last = {kind: layer for layer, kind in enumerate(kinds[:own])}
        return [None if layer < own else last[kind] for layer, kind in enumerate(kinds)]

    @property
    def global_sizes(self) -> tuple[int, int]:
        """Head size and number of KV heads of the full layers. ValueError: per_layer_config has
        other differences.
        """
        heads = self.num_global_key_value_heads if self.attention_k_eq_v else None
        own = self.global_head_dim, heads or self.num_key_value_heads
        sliding = self.head_dim, self.num_key_value_heads
        return full_sizes(self.TITLE, self.per_layer_config, self.kinds, own, sliding)

    @property
    def head_sizes(self) -> list[int]:
        """D of each layer."""
        return [self.global_sizes[0] if kind == FULL else self.head_dim for kind in self.kinds]

    @property
    def kv_heads(self) -> list[int]:
        """G of each layer."""
        return [
            self.global_sizes[1] if kind == FULL else self.num_key_value_heads
            for kind in self.kinds
        ]

    @property
    def inner_sizes(self) -> list[int]:
        """The inner width of each layer's MLP."""
        doubled = 2 if self.use_double_wide_mlp else 1
        return [
            self.intermediate_size * (1 if source is None else doubled) for source in self.sources
        ]

    @property
    def windows(self) -> list[int | None]:
        """The window of each layer, in positions; None for all previous positions."""
        return [self.sliding_window if kind == SLIDING else None for kind in self.kinds]

    @property
    def ropes(self) -> dict[str, JsonObject]:
        """rope_parameters of each layer type, with defaults. ValueError: they are not one dict per
        layer type.
        """
        full = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}
        return ropes_of_types(self.TITLE, self.rope_parameters, full, self.max_position_embeddings)

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        settings = {
            name: value for name, value in asdict(self).items() if name != "per_layer_config"
        }
        size, heads = self.global_sizes
        settings |= {
            "global_head_dim": size,
            "layer_types": self.kinds,
            "rope_parameters": self.ropes,
        }
        if self.attention_k_eq_v:
            settings["num_global_key_value_heads"] = heads
        elif heads != self.num_key_value_heads:  # not without attention_k_eq_v
            entry = {"head_dim": size, "num_key_value_heads": heads}
            full = [layer for layer, kind in enumerate(self.kinds) if kind == FULL]
            settings["per_layer_config"] = {str(layer): entry for layer in full}
        return {"architectures": ["Gemma4ForCausalLM"], **settings}
