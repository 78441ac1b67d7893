"""The text model of EmbeddingGemma 2, an encoder of texts.

Sources
    Gemma Team (2026), "EmbeddingGemma 2"; (2025), "Gemma 3n", for inputs of each layer.
    Rotary positions: Su et al. (2021); RMS norm: Zhang & Sennrich (2019); KV heads: Ainslie et al.
        (2023), "GQA".
    Hub docs: `transformers`, model_types "embedding_gemma2_text" and "embedding_gemma2" (with
        images, videos and sounds; only its text model).

Differences from similar architectures
    Gemma 4           is a decoder. The inputs of its layers also come from a second embedding; it
                      can share keys and values between layers, and it has experts.
    EmbeddingGemma    has the layers of Gemma 3: no inputs of each layer, heads of one size, and
                      dense layers of sentence-transformers after pooling. Here a projection of the
                      hidden states belongs to the model.

Notation
    B batch rows    T positions    C channels, hidden_size    E embedding_dim    H query heads    G
    KV heads    D head size    L layers    P numbers of a token for each layer
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from minhub_py.models import rotary, steps
from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.attention import Past, merge_heads, split_heads
from minhub_py.models.encoder import Encoder
from minhub_py.models.gemma4 import FULL, SLIDING, full_sizes, ropes_of_types
from minhub_py.models.heads import HeadSettings
from minhub_py.models.layers import BlockList, RMSNorm, rms_norm, scaled
from minhub_py.models.mlp import GatedMLP
from minhub_py.models.rotary import Rotation
from minhub_py.models.settings import Positions, check_layer_types
from minhub_py.models.steps import (
    Add,
    Attend,
    Embed,
    HiddenStates,
    Linear,
    LoadResidual,
    Norm,
    Rotate,
    Step,
)
from minhub_py.system.json_text import JsonObject


class Attention(nn.Module):
    def __init__(self, config: "EmbeddingGemma2Config", layer: int) -> None:
        super().__init__()
        C, size, bias = config.hidden_size, config.head_sizes[layer], config.attention_bias
        self.layer, self.kind, self.window = layer, config.kinds[layer], config.windows[layer]
        self.heads, self.kv_heads = config.num_attention_heads, config.kv_heads[layer]
        self.dropout, self.eps = config.attention_dropout, config.rms_norm_eps
        self.q_proj = nn.Linear(C, self.heads * size, bias=bias)
        self.k_proj = nn.Linear(C, self.kv_heads * size, bias=bias)
        self.v_proj = nn.Linear(C, self.kv_heads * size, bias=bias)
        self.o_proj = nn.Linear(self.heads * size, C, bias=bias)
        self.q_norm, self.k_norm = RMSNorm(size, self.eps), RMSNorm(size, self.eps)

    def forward(self, x: Tensor, past: Past, rotation: Rotation) -> Tensor:
        q = self.q_norm(split_heads(self.q_proj(x), self.heads))  # (B, H, T, D)
        k = self.k_norm(split_heads(self.k_proj(x), self.kv_heads))  # (B, G, T, D)
        v = rms_norm(split_heads(self.v_proj(x), self.kv_heads), None, self.eps)
        q, k = rotation(q, k)
        dropout = self.dropout if self.training else 0.0
        y = past.attend(
            self.layer, q, k, v, scale=1.0, window=self.window, causal=False, dropout=dropout
        )  # (B, H, T, D)
        return self.o_proj(merge_heads(y))

    def steps(self, rope: rotary.Rope, norm: RMSNorm) -> Iterator[Step]:
        """The operations. norm: of the output."""
        heads = self.heads, self.kv_heads
        yield Linear([self.q_proj, self.k_proj, self.v_proj])
        yield Rotate(*heads, rope, self.q_norm, self.k_norm)
        yield steps.NormValues(*heads, self.eps)
        yield Attend(*heads, 1.0, self.window, causal=False, dropout=self.dropout)
        yield Add(self.o_proj, norm)


class Block(nn.Module):
    layer_scalar: Tensor

    def __init__(self, config: "EmbeddingGemma2Config", layer: int) -> None:
        super().__init__()
        C, P, eps = config.hidden_size, config.hidden_size_per_layer_input, config.rms_norm_eps
        self.input_layernorm = RMSNorm(C, eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(C, eps)
        self.pre_feedforward_layernorm = RMSNorm(C, eps)
        self.mlp = GatedMLP(C, config.intermediate_size, config.hidden_activation)
        self.post_feedforward_layernorm = RMSNorm(C, eps)
        self.act = ACTIVATIONS[config.hidden_activation]
        self.per_layer_input_gate = nn.Linear(C, P, bias=False)
        self.per_layer_projection = nn.Linear(P, C, bias=False)
        self.post_per_layer_input_norm = RMSNorm(C, eps)
        self.register_buffer("layer_scalar", torch.ones(1))

    def forward(self, x: Tensor, past: Past, rotation: Rotation, inputs: Tensor) -> Tensor:
        """inputs: the vectors (B, T, P) of this layer."""
        y = self.self_attn(self.input_layernorm(x), past, rotation)
        x = x + self.post_attention_layernorm(y)
        y = self.mlp(self.pre_feedforward_layernorm(x))
        x = x + self.post_feedforward_layernorm(y)
        gated = self.act(self.per_layer_input_gate(x)) * inputs
        x = x + self.post_per_layer_input_norm(self.per_layer_projection(gated))
        return x * self.layer_scalar


class EmbeddingGemma2(Encoder):
    config: "EmbeddingGemma2Config"
    head: None

    def __init__(self, config: "EmbeddingGemma2Config") -> None:
        super().__init__()
        self.config, self.head = config, None
        C, L, P = config.hidden_size, config.num_hidden_layers, config.hidden_size_per_layer_input
        sizes = dict(zip(config.kinds, config.head_sizes, strict=True))
        self.ropes = {
            kind: rotary.rope_of(config.ropes[kind], size) for kind, size in sorted(sizes.items())
        }
        self.embed_tokens = nn.Embedding(config.vocab_size, C)
        self.per_layer_model_projection = nn.Linear(C, L * P, bias=False)
        self.per_layer_projection_norm = RMSNorm(P, config.rms_norm_eps)
        self.layers = BlockList(Block(config, layer) for layer in range(L))
        self.norm = RMSNorm(C, config.rms_norm_eps)
        self.embedding_projection = nn.Linear(C, config.embedding_dim, bias=False)
        self.init_weights(config.initializer_range)

    @property
    def token_embedding(self) -> nn.Embedding:
        return self.embed_tokens

    @property
    def size(self) -> int:
        """E, the number of channels of the projected hidden states."""
        return self.config.embedding_dim

    def body(self, idx: Tensor, past: Past, token_types: Tensor | None = None) -> Tensor:
        """The projected hidden states (B, T, E)."""
        x = scaled(self.embed_tokens(idx), self.config.hidden_size**0.5)  # (B, T, C)
        inputs = self.layer_inputs(x)
        rotations = {
            kind: Rotation(rope, past.positions, x.dtype) for kind, rope in self.ropes.items()
        }
        for layer, (block, kind) in enumerate(zip(self.layers, self.config.kinds, strict=True)):
            x = block(x, past, rotations[kind], inputs[:, :, layer])
        return self.embedding_projection(self.norm(x))

    def layer_inputs(self, x: Tensor) -> Tensor:
        """The vectors (B, T, L, P) of each layer, for embeddings (B, T, C)."""
        sizes = self.config.num_hidden_layers, self.config.hidden_size_per_layer_input
        projected = self.per_layer_model_projection(x) * self.config.hidden_size**-0.5
        return self.per_layer_projection_norm(projected.unflatten(2, sizes))

    def steps(self) -> Iterator[Step]:
        config, activation = self.config, self.config.hidden_activation
        C, P = config.hidden_size, config.hidden_size_per_layer_input
        yield Embed(self.embed_tokens, scale=C**0.5)
        yield Linear([self.per_layer_model_projection])
        yield steps.LayerInputs(None, self.per_layer_projection_norm, C**-0.5)
        for layer, block in enumerate(self.layers):
            attn = block.self_attn
            yield Norm(block.input_layernorm)
            yield from attn.steps(self.ropes[attn.kind], block.post_attention_layernorm)
            yield Norm(block.pre_feedforward_layernorm)
            yield from block.mlp.steps(block.post_feedforward_layernorm)
            yield LoadResidual()
            yield Linear([block.per_layer_input_gate])
            yield steps.GateLayerInput(layer, P, activation)
            yield Add(block.per_layer_projection, block.post_per_layer_input_norm)
            yield steps.ScaleResidual(block.layer_scalar)
        yield Norm(self.norm)
        yield Linear([self.embedding_projection])
        yield HiddenStates(config.embedding_dim)


@dataclass(frozen=True)
class EmbeddingGemma2Config(HeadSettings, Positions):
    """The settings of config.json that change the result. Defaults: EmbeddingGemma 2."""

    TITLE: ClassVar = "EmbeddingGemma 2"
    IS_ENCODER: ClassVar = True
    ONLY_VALUE: ClassVar = {"is_causal": False, "is_decoder": False}

    vocab_size: int = 262144
    hidden_size: int = 512
    intermediate_size: int = 2048
    num_hidden_layers: int = field(default=24, metadata={"range": (1, 4096)})
    num_attention_heads: int = 4
    num_key_value_heads: int = 2  # of the layers with a window
    num_global_key_value_heads: int = 1  # of the other layers
    head_dim: int = field(default=256, metadata={"range": (2, 2**16)})
    global_head_dim: int = field(default=512, metadata={"range": (2, 2**16)})
    # Files have both global settings here: layer number -> head_dim, num_key_value_heads.
    per_layer_config: dict | None = None  # type: ignore[type-arg]
    hidden_size_per_layer_input: int = 512  # P
    embedding_dim: int = 768  # E
    hidden_activation: str = field(
        default="gelu_pytorch_tanh", metadata={"choices": tuple(ACTIVATIONS)}
    )
    max_position_embeddings: int = field(default=262144, metadata={"range": (1, 2**31)})
    rms_norm_eps: float = 1e-6
    rope_parameters: dict | None = None  # type: ignore[type-arg]  # one per layer type
    attention_bias: bool = False
    attention_dropout: float = 0.0
    # the largest distance of an attended token in a layer with a window
    sliding_window: int = field(default=512, metadata={"range": (1, 2**31)})
    # "full_attention" or "sliding_attention"; the last layer is always full
    layer_types: list[str] | None = None
    # n: every n-th layer is full; without layer_types
    sliding_window_pattern: int = field(default=6, metadata={"range": (1, 4096)})
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 1
    pad_token_id: int | None = 0

    def __post_init__(self) -> None:
        self.drop_unused_labels()
        if self.head is not None:
            raise ValueError(
                "EmbeddingGemma 2: an embedding_gemma2_text model has no head, but config.json names"
                f" {(self.architectures or [''])[0]}"
            )
        check_layer_types(self.TITLE, self.kinds, (FULL, SLIDING), self.num_hidden_layers)
        for size, heads in zip(self.head_sizes, self.kv_heads, strict=True):
            if size % 2:
                raise ValueError(
                    f"EmbeddingGemma 2: the head size ({size}) must be even, because rotary"
                    " embeddings rotate pairs"
                )
            if self.num_attention_heads % heads:
                raise ValueError(
                    f"EmbeddingGemma 2: num_attention_heads ({self.num_attention_heads}) must be a"
                    f" multiple of the KV heads of each layer ({heads})"
                )
        for rope in self.ropes.values():
            rotary.check(self.TITLE, rope, proportional=True)

    @property
    def kinds(self) -> list[str]:
        """The type of each layer. As in transformers, the last layer is always full."""
        kinds = self.layer_types or [
            SLIDING if (layer + 1) % self.sliding_window_pattern else FULL
            for layer in range(self.num_hidden_layers)
        ]
        return [*kinds[:-1], FULL]

    @property
    def full_sizes(self) -> tuple[int, int]:
        """Head size and number of KV heads of the full layers."""
        own = self.global_head_dim, self.num_global_key_value_heads
        sliding = self.head_dim, self.num_key_value_heads
        return full_sizes(self.TITLE, self.per_layer_config, self.kinds, own, sliding)

    @property
    def head_sizes(self) -> list[int]:
        """D of each layer."""
        return [self.full_sizes[0] if kind == FULL else self.head_dim for kind in self.kinds]

    @property
    def kv_heads(self) -> list[int]:
        """G of each layer."""
        return [
            self.full_sizes[1] if kind == FULL else self.num_key_value_heads for kind in self.kinds
        ]

    @property
    def windows(self) -> list[int | None]:
        """The window of each layer: the token and the positions on each side; None for all."""
        return [self.sliding_window + 1 if kind == SLIDING else None for kind in self.kinds]

    @property
    def ropes(self) -> dict[str, JsonObject]:
        """rope_parameters of each layer type, with defaults."""
        default = {"rope_theta": 1e6}
        return ropes_of_types(
            self.TITLE, self.rope_parameters, default, self.max_position_embeddings
        )

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        dropped = {
            "global_head_dim",
            "num_global_key_value_heads",
            "sliding_window_pattern",
            *HeadSettings.__dataclass_fields__,
        }
        settings = {name: value for name, value in asdict(self).items() if name not in dropped}
        size, heads = self.full_sizes
        full = [layer for layer, kind in enumerate(self.kinds) if kind == FULL]
        entry = {"head_dim": size, "num_key_value_heads": heads}
        return {
            **settings,
            "model_type": "embedding_gemma2_text",
            "architectures": ["EmbeddingGemma2TextModel"],
            "layer_types": self.kinds,
            "rope_parameters": self.ropes,
            "per_layer_config": {str(layer): dict(entry) for layer in full},
        }
