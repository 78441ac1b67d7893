"""Nemotron H: each layer is attention, a selective state space, an MLP or experts, in the order of a pattern.

Sources
    NVIDIA (2025), "Nemotron-H: A Family of Accurate and Efficient Hybrid Mamba-Transformer Models", and "NVIDIA
        Nemotron Nano 2"; "Nemotron 3 Nano", for the experts; models/hybrid.py for the model, models/state_space.py for
        the scan, and models/experts.py for the choice of experts.
    Hub docs: `transformers`, model_type "nemotron_h".

Differences from similar architectures
    Bamba     has an MLP in each layer, with a gate, and rotary positions. Nemotron H has neither gates nor positions.
    Nemotron  has attention and an MLP in each layer, and layer norms.

transformers 5.24 raises Δ to time_step_min in prompts, but not in decoding. The original code and the published files
have no limits (time_step_limit), and time_step_min is of the initialization only; so it is here.

hybrid_override_pattern has a letter for each layer: M for a state space, * for attention, - for an MLP, and E for
experts: MLPs, a router that selects a few for each token, and a shared MLP of all tokens. No MLP has a gate.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor, nn

from minhub_py.models import rotary
from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.attention import Past
from minhub_py.models.cache import KeyValues, LayerCache
from minhub_py.models.decoder import Attention
from minhub_py.models.experts import Routing
from minhub_py.models.hybrid import Hybrid, HybridConfig, attention_steps
from minhub_py.models.layers import RMSNorm
from minhub_py.models.mixture import Mixture
from minhub_py.models.rotary import Rotation
from minhub_py.models.settings import check_layer_types
from minhub_py.models.state_space import Mamba2Mixer, check_step_limit
from minhub_py.models.steps import Add, Linear, Norm, SaveResidual, Step
from minhub_py.models.structure import Structure, biases
from minhub_py.system.json_text import JsonObject


class UngatedMLP(nn.Module):
    """down(activation(up(x))), with `inner` channels between the matrices."""

    def __init__(self, config: "NemotronHConfig", inner: int) -> None:
        super().__init__()
        C, bias = config.hidden_size, config.mlp_bias
        self.activation = config.hidden_act
        self.up_proj = nn.Linear(C, inner, bias=bias)
        self.down_proj = nn.Linear(inner, C, bias=bias)
        self.act = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        """The output (B, T, C) for x (B, T, C)."""
        return self.down_proj(self.act(self.up_proj(x)))

    def steps(self) -> Iterator[Step]:
        """The operations."""
        yield Linear([self.up_proj], self.activation)
        yield Add(self.down_proj)


class Block(nn.Module):
    def __init__(self, config: "NemotronHConfig", layer: int) -> None:
        super().__init__()
        kind, before = config.kinds[layer], config.kinds[:layer]
        caching = sum(kind in ("mamba", "attention") for kind in before)  # the others have no cache
        self.keys = KeyValues(config.kv_heads, config.head_size)
        self.norm = RMSNorm(config.hidden_size, config.layer_norm_epsilon)
        self.mixer: Attention | Mamba2Mixer | UngatedMLP | Mixture
        self.shared_expert: UngatedMLP | None = None
        if kind == "attention":
            self.mixer = Attention(config, caching)
        elif kind == "mamba":
            self.mixer = config.mixer(caching)
        elif kind == "mlp":
            self.mixer = UngatedMLP(config, config.intermediate_size)
        else:
            self.mixer = config.experts()
            self.shared_expert = UngatedMLP(config, config.moe_shared_expert_intermediate_size)

    def forward(self, x: Tensor, past: Past, rotation: Rotation | None) -> Tensor:
        h, mixer = self.norm(x), self.mixer
        if isinstance(mixer, Attention):
            return x + mixer(h, past, rotation)
        if self.shared_expert is not None:
            x = x + self.shared_expert(h)
        return x + (mixer(h, past) if isinstance(mixer, Mamba2Mixer) else mixer(h))

    def cache_layout(self) -> list[LayerCache]:
        """The caches of the layer."""
        if isinstance(self.mixer, UngatedMLP | Mixture):
            return []
        return [self.keys if isinstance(self.mixer, Attention) else self.mixer.cache_layout()]

    def steps(self, rope: rotary.Rope | None) -> Iterator[Step]:
        """The operations of the layer."""
        yield Norm(self.norm)
        if isinstance(self.mixer, Attention):
            yield from attention_steps(self.mixer, rope)
        elif isinstance(self.mixer, Mixture):
            if self.shared_expert is not None:
                yield SaveResidual()  # the experts read the same x
                yield from self.shared_expert.steps()
                yield Norm(self.norm, saved=True)
            yield self.mixer.step()
        else:
            yield from self.mixer.steps()


class NemotronH(Hybrid):
    BLOCK = Block
    config: "NemotronHConfig"


LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
# names of layer types in files, in transformers 5 and before
KINDS = {
    "mamba": "mamba",
    "linear_attention": "mamba",
    "attention": "attention",
    "full_attention": "attention",
    "mlp": "mlp",
    "moe": "moe",
}
CYCLE = "M-*-"


@dataclass(frozen=True)
class NemotronHConfig(HybridConfig):
    """The settings of config.json that change the result. Defaults: transformers', without layers of experts."""

    TITLE: ClassVar = "Nemotron H"
    MODEL_TYPE: ClassVar = "nemotron_h"
    ARCHITECTURE: ClassVar = "NemotronHForCausalLM"
    ALIASES: ClassVar = {
        "nemotron_h": {
            "layers_block_type": "layer_types",
            "mlp_hidden_act": "hidden_act",
            "num_local_experts": "n_routed_experts",
            "mamba_n_groups": "n_groups",
            "mamba_d_conv": "conv_kernel",
            "mamba_conv_bias": "use_conv_bias",
            "mamba_dt_min": "time_step_min",
            "mamba_dt_max": "time_step_max",
            "mamba_dt_limit": "time_step_limit",
            "mamba_dt_init_floor": "time_step_floor",
        }
    }
    # attention_bias, mamba_proj_bias: transformers ignores them. residual_in_fp32: of the original code only.
    ONLY_VALUE: ClassVar = {
        "attention_bias": False,
        "mamba_proj_bias": False,
        "residual_in_fp32": False,
        "hidden_dropout": 0.0,
        "sliding_window": None,
    }
    # The channels of the scan follow from its heads, and the state is float32. topk_group: of n_group groups. mtp: the
    # layers that predict further tokens, which are not read. The rest: initialization, kernels, and positions.
    NO_EFFECT: ClassVar = frozenset(
        """
        num_logits_to_keep use_mamba_kernels chunk_size mamba_chunk_size expand mamba_expand
        time_step_rank rescale_prenorm_residual output_router_logits moe_shared_expert_overlap topk_group
        num_nextn_predict_layers mtp_layers_block_type mtp_hybrid_override_pattern mamba_ssm_cache_dtype
        partial_rotary_factor
        """.split()
    )
    DERIVED: ClassVar = ("attention_head_dim", "rms_norm_eps", "norm_eps")

    vocab_size: int = 131072
    intermediate_size: int = 21504
    # 0: of the pattern
    num_hidden_layers: int = field(default=0, metadata={"range": (0, 4096)})
    # None: layer_types, or else M-*- again and again
    hybrid_override_pattern: str | None = None
    # names of KINDS; None: hybrid_override_pattern
    layer_types: list[str] | None = None
    num_key_value_heads: int | None = field(default=8, metadata={"range": (1, 2**24)})
    head_dim: int | None = field(default=128, metadata={"range": (2, 2**16)})
    hidden_act: str = field(default="relu2", metadata={"choices": tuple(ACTIVATIONS)})
    max_position_embeddings: int = field(default=4096, metadata={"range": (1, 2**31)})
    mamba_num_heads: int = 128
    mamba_head_dim: int = 64
    mamba_hidden_act: str = field(default="silu", metadata={"choices": tuple(ACTIVATIONS)})
    n_groups: int = 8
    ssm_state_size: int = 128
    conv_kernel: int = field(default=4, metadata={"range": (2, 1024)})
    use_bias: bool = False  # of the projections of the state space
    use_conv_bias: bool = True
    mlp_bias: bool = False  # not of the experts, but of the shared one
    n_routed_experts: int = field(default=8, metadata={"range": (1, 1024)})
    num_experts_per_tok: int = field(default=2, metadata={"range": (1, 16)})
    moe_intermediate_size: int = 7688  # of an expert
    moe_shared_expert_intermediate_size: int = 7688
    norm_topk_prob: bool = True
    routed_scaling_factor: float = field(default=1.0, metadata={"range": (0.0, 1e3)})
    # of layers with experts, the only values that are supported: 1, 1 and None
    n_shared_experts: int = field(default=1, metadata={"range": (0, 1024)})
    n_group: int = field(default=1, metadata={"range": (0, 1024)})
    moe_latent_size: int | None = field(default=None, metadata={"range": (1, 2**24)})
    layer_norm_epsilon: float = 1e-5
    time_step_limit: list | None = None  # type: ignore[type-arg]
    # of Δ in new models: smallest and largest, and then the smallest again
    time_step_min: float = field(default=0.001, metadata={"range": (1e-30, 1e6)})
    time_step_max: float = field(default=0.1, metadata={"range": (1e-30, 1e6)})
    time_step_floor: float = field(default=1e-4, metadata={"range": (1e-30, 1e6)})
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    pad_token_id: int | None = 0

    def __post_init__(self) -> None:
        pattern, types = self.hybrid_override_pattern, self.layer_types
        if pattern is not None and not set(pattern) <= set(LETTERS):
            raise ValueError(
                f"Nemotron H: hybrid_override_pattern must contain the letters {' '.join(LETTERS)} only,"
                f" not {pattern!r:.80}"
            )
        if types is None:
            letters = (
                pattern or (CYCLE * (self.num_hidden_layers or 4))[: self.num_hidden_layers or 4]
            )
            types = [LETTERS[letter] for letter in letters]
        check_layer_types("Nemotron H", types, KINDS, self.num_hidden_layers or len(types))
        kinds = [KINDS[name] for name in types]
        letter_of = {kind: letter for letter, kind in LETTERS.items()}
        object.__setattr__(
            self, "hybrid_override_pattern", "".join(letter_of[kind] for kind in kinds)
        )
        object.__setattr__(self, "layer_types", None)
        object.__setattr__(self, "num_hidden_layers", len(kinds))
        super().__post_init__()
        check_step_limit("Nemotron H", self.time_step_limit)
        object.__setattr__(self, "time_step_limit", None)
        self.check_experts()
        if self.mamba_num_heads % self.n_groups:
            raise ValueError(
                f"Nemotron H: mamba_num_heads ({self.mamba_num_heads}) must be a multiple of n_groups"
                f" ({self.n_groups})"
            )

    def check_experts(self) -> None:
        """ValueError: settings of experts that are not supported. Models without experts ignore them."""
        supported = {"n_shared_experts": 1, "n_group": 1, "moe_latent_size": None}
        if "moe" not in self.kinds:
            for name, value in supported.items():
                object.__setattr__(self, name, value)
            return
        for name, value in supported.items():
            if getattr(self, name) != value:
                raise ValueError(
                    f"Nemotron H: {name} = {getattr(self, name)} is not supported; of models with experts, only"
                    f" {value} is: Nemotron 3 Nano"
                )
        if self.num_experts_per_tok > self.n_routed_experts:
            raise ValueError(
                f"Nemotron H: num_experts_per_tok ({self.num_experts_per_tok}) cannot be more than"
                f" n_routed_experts ({self.n_routed_experts})"
            )

    @property
    def kinds(self) -> list[str]:
        """mamba, attention, mlp or moe, for each layer."""
        return [LETTERS[letter] for letter in self.hybrid_override_pattern or ""]

    @property
    def attention_head_dim(self) -> int:
        """An older name of head_dim."""
        return self.head_size

    @property
    def rms_norm_eps(self) -> float:
        """Another name of layer_norm_epsilon, which published files repeat."""
        return self.layer_norm_epsilon

    @property
    def norm_eps(self) -> float:
        """The same."""
        return self.layer_norm_epsilon

    @property
    def structure(self) -> Structure:
        """The differences of the attention and the MLP from Llama's."""
        return self.declared(
            ropes=[None] * self.num_hidden_layers,
            eps=self.layer_norm_epsilon,
            gated=False,
            biases=biases(mlp=self.mlp_bias),
        )

    def mixer(self, layer: int) -> Mamba2Mixer:
        """The selective state space of a layer."""
        return Mamba2Mixer(
            layer,
            self.hidden_size,
            self.mamba_num_heads,
            self.mamba_head_dim,
            self.ssm_state_size,
            self.n_groups,
            self.conv_kernel,
            self.layer_norm_epsilon,
            self.mamba_hidden_act,
            self.use_bias,
            self.use_conv_bias,
            steps=(self.time_step_min, self.time_step_max, self.time_step_floor),
        )

    def experts(self) -> Mixture:
        """The experts of a layer, without the shared one."""
        routing = Routing(
            self.num_experts_per_tok,
            self.norm_topk_prob,
            sigmoid=True,
            factor=self.routed_scaling_factor,
            epsilon=1e-20,
        )
        return Mixture(
            self.n_routed_experts,
            self.hidden_size,
            self.moe_intermediate_size,
            self.hidden_act,
            routing,
            choice_bias=True,
            gated=False,
        )

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        settings = super().to_hub()
        for name in ("rope_parameters", "layer_types", "time_step_limit"):
            del settings[name]
        return {**settings, "mlp_hidden_act": settings.pop("hidden_act")}
