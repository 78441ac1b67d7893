"""Falcon H1: each layer has attention and a selective state space in parallel, and factors of both.

Sources
    Zuo et al. (2025), "Falcon-H1: A Family of Hybrid-Head Language Models Redefining Efficiency and Performance";
        the factors: Yang et al. (2022), "Tensor Programs V". models/hybrid.py for the rest, and
        models/state_space.py for the scan.
    Hub docs: `transformers`, model_type "falcon_h1".

Differences from similar architectures
    Bamba      has attention or a selective state space in a layer, one after the MLP of the previous.
    Granite 4  has one factor for all outputs. Falcon H1 has them for the input and output of each part, for z, x, b, c
               and Δ, and for the gate of the MLP.

The factor of the keys is a factor of the scores: the rotation of a multiple is the multiple of the rotation.
mamba_norm_before_gate has an effect with mamba_rms_norm only. transformers' fused kernel ignores it; published files
with mamba_rms_norm set it to false, and true is rejected by name.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor, nn

from minhub_py.models import rotary
from minhub_py.models.attention import Past
from minhub_py.models.cache import KeyValues, LayerCache
from minhub_py.models.decoder import Attention
from minhub_py.models.hybrid import Hybrid, Mamba2Settings, attention_steps
from minhub_py.models.layers import RMSNorm, scale_parts
from minhub_py.models.mlp import GatedMLP
from minhub_py.models.rotary import Rotation
from minhub_py.models.state_space import Mamba2Mixer, scaled_parts
from minhub_py.models.steps import Add, Gate, Linear, Norm, SaveResidual, Step
from minhub_py.models.structure import Factors, Structure, biases
from minhub_py.system.json_text import JsonObject


class MLP(GatedMLP):
    """A gated MLP with factors of the gate and of the output."""

    def __init__(self, config: "FalconH1Config") -> None:
        inner, bias = config.intermediate_size, config.mlp_bias
        super().__init__(config.hidden_size, inner, config.hidden_act, bias)
        gate, self.factor = config.mlp_multipliers or (1.0, 1.0)
        self.parts = [(inner, gate)]

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(scale_parts(self.gate_proj(x), self.parts)) * self.up_proj(x)
        return self.down_proj(y) * self.factor

    def operations(self) -> Iterator[Step]:
        yield Linear([self.gate_proj, self.up_proj])
        yield from scaled_parts([*self.parts, (self.parts[0][0], 1.0)])
        yield Gate(self.activation)
        yield Add(self.down_proj, scale=self.factor)


class Block(nn.Module):
    def __init__(self, config: "FalconH1Config", layer: int) -> None:
        super().__init__()
        C, eps = config.hidden_size, config.rms_norm_eps
        self.mamba_factor, self.attention_factor = (
            config.ssm_out_multiplier,
            config.attention_out_multiplier,
        )
        self.parts = [(C, config.attention_in_multiplier)]  # of the input of attention
        self.keys = KeyValues(config.kv_heads, config.head_size)
        self.input_layernorm = RMSNorm(C, eps)
        # each layer has two caches
        self.mamba = config.mixer(2 * layer)
        self.self_attn = Attention(config, 2 * layer + 1)
        self.post_attention_layernorm = RMSNorm(C, eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, past: Past, rotation: Rotation | None) -> Tensor:
        h = self.input_layernorm(x)
        x = x + self.mamba_factor * self.mamba(h, past)
        h = scale_parts(h, self.parts)
        x = x + self.attention_factor * self.self_attn(h, past, rotation)
        return x + self.mlp(self.post_attention_layernorm(x))

    def cache_layout(self) -> list[LayerCache]:
        """The caches of the layer."""
        return [self.mamba.cache_layout(), self.keys]

    def steps(self, rope: rotary.Rope | None) -> Iterator[Step]:
        """The operations of the layer."""
        yield SaveResidual()  # both parts read the same x
        yield Norm(self.input_layernorm)
        yield from self.mamba.steps(self.mamba_factor)
        yield Norm(self.input_layernorm, saved=True)
        yield from scaled_parts(self.parts)
        yield from attention_steps(self.self_attn, rope, self.attention_factor)
        yield Norm(self.post_attention_layernorm)
        yield from self.mlp.operations()


class FalconH1(Hybrid):
    BLOCK = Block
    config: "FalconH1Config"


FACTOR = {"range": (-1e6, 1e6)}
POSITIVE = {"range": (1e-9, 1e6)}


@dataclass(frozen=True)
class FalconH1Config(Mamba2Settings):
    """The settings of config.json that change the result. Defaults: transformers'."""

    TITLE: ClassVar = "Falcon H1"
    MODEL_TYPE: ClassVar = "falcon_h1"
    ARCHITECTURE: ClassVar = "FalconH1ForCausalLM"
    INNER: ClassVar = "mamba_d_ssm, or mamba_expand · hidden_size,"
    ONLY_VALUE: ClassVar = {"mamba_use_mlp": True, "attn_layer_indices": None}
    NO_EFFECT: ClassVar = frozenset(
        """
        num_logits_to_keep mamba_chunk_size use_mamba_kernels mlp_expansion_factor time_step_min time_step_max
        time_step_floor
        """.split()
    )
    # the last two: of GGUF files
    DERIVED: ClassVar = ("layer_types", "layers_block_type", "key_factor", "projection_factors")

    vocab_size: int = 128000
    intermediate_size: int = 14336
    num_key_value_heads: int | None = field(default=8, metadata={"range": (1, 2**24)})
    # None: hidden_size / num_attention_heads
    head_dim: int | None = field(default=None, metadata={"range": (2, 2**16)})
    max_position_embeddings: int = field(default=8192, metadata={"range": (1, 2**31)})
    # channels of the scan; None: mamba_expand · hidden_size
    mamba_d_ssm: int | None = field(default=1024, metadata={"range": (1, 2**24)})
    mamba_rms_norm: bool = False  # of the outputs of the scan
    mamba_norm_before_gate: bool = True
    projectors_bias: bool = False  # of the output of the scan
    embedding_multiplier: float = field(default=1.0, metadata=POSITIVE)
    lm_head_multiplier: float = field(default=1.0, metadata=POSITIVE)
    # of the gate and of the output; None: 1
    mlp_multipliers: list[float] | None = field(default=None, metadata=FACTOR)
    key_multiplier: float = field(default=1.0, metadata=POSITIVE)
    attention_in_multiplier: float = field(default=1.0, metadata=FACTOR)
    attention_out_multiplier: float = field(default=1.0, metadata=FACTOR)
    ssm_in_multiplier: float = field(default=1.0, metadata=FACTOR)
    ssm_out_multiplier: float = field(default=1.0, metadata=FACTOR)
    # of z, x, b, c and Δ; None: 1
    ssm_multipliers: list[float] | None = field(default=None, metadata=FACTOR)
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    mlp_bias: bool = False
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    pad_token_id: int | None = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, count in (("mlp_multipliers", 2), ("ssm_multipliers", 5)):
            values = getattr(self, name)
            if values is not None and len(values) != count:
                raise ValueError(f"Falcon H1: {name} must be {count} numbers, not {values!r:.80}")
        if self.mamba_rms_norm and self.mamba_norm_before_gate:
            raise ValueError(
                "Falcon H1: with mamba_rms_norm, mamba_norm_before_gate must be false, as in published files"
            )
        self.check_heads()

    @property
    def layer_types(self) -> list[str]:
        """transformers' names of the layers' kinds."""
        return ["hybrid"] * self.num_hidden_layers

    @property
    def layers_block_type(self) -> list[str]:
        """The same; transformers writes both."""
        return self.layer_types

    @property
    def inner(self) -> int:
        """Number of channels of the scan (N)."""
        return self.mamba_d_ssm or self.mamba_expand * self.hidden_size

    @property
    def key_factor(self) -> float:
        """The factor of the keys as a function of the layer's input."""
        return self.key_multiplier * self.attention_in_multiplier

    @property
    def projection_factors(self) -> list[tuple[int, float]]:
        """The number of rows of z, x, b, c and Δ in the input projection of the scan, and their
        factors as functions of the layer's input; [] if all are 1.
        """
        part = self.mamba_n_groups * self.mamba_d_state
        rows = (self.inner, self.inner, part, part, self.mamba_n_heads)
        factors = [self.ssm_in_multiplier * factor for factor in self.ssm_multipliers or [1.0] * 5]
        return list(zip(rows, factors, strict=True)) if set(factors) != {1.0} else []

    @property
    def structure(self) -> Structure:
        """The differences of the attention from Llama's, and the factors of the whole model."""
        qkvo, caches = self.attention_bias, 2 * self.num_hidden_layers
        embeddings = self.embedding_multiplier
        return self.declared(
            windows=[None] * caches,
            ropes=[self.rope] * caches,
            eps=self.rms_norm_eps,
            biases=biases(qkvo, qkvo, self.mlp_bias),
            factors=Factors(
                embeddings=None if embeddings == 1 else embeddings,
                scores=self.key_multiplier * self.head_size**-0.5,
                logits=self.lm_head_multiplier,
            ),
        )

    def mixer(self, layer: int) -> Mamba2Mixer:
        """The selective state space of a layer."""
        return Mamba2Mixer(
            layer,
            self.hidden_size,
            self.mamba_n_heads,
            self.mamba_head_size,
            self.mamba_d_state,
            self.mamba_n_groups,
            self.mamba_d_conv,
            self.rms_norm_eps if self.mamba_rms_norm else None,
            self.hidden_act,
            self.mamba_proj_bias,
            self.mamba_conv_bias,
            self.projectors_bias,
            self.ssm_in_multiplier,
            self.ssm_multipliers or [1.0] * 5,
        )

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        settings = {**super().to_hub(), "head_dim": self.head_size}
        for name in ("mlp_multipliers", "ssm_multipliers"):
            if settings[name] is None:
                del settings[name]
        return settings
