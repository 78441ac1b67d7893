"""Jamba: layers with attention or Mamba 1, and experts in every second layer.

Sources
    Lieber et al. (2024), "Jamba: A Hybrid Transformer-Mamba Language Model"; models/hybrid.py for the layers,
        models/state_space.py for the scan, and models/mixture.py for the experts.
    Hub docs: `transformers`, model_type "jamba".

Differences from similar architectures
    Bamba         has Mamba 2, rotary positions and no experts. Jamba has no positions.
    Falcon Mamba  has norms of Δ, b and c, too, but without weights.
    Mixtral       divides the weights of a token's experts by their sum.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from minhub_py.models.experts import Routing
from minhub_py.models.hybrid import Hybrid, HybridConfig, layer_kinds
from minhub_py.models.mixture import Mixture
from minhub_py.models.mlp import GatedMLP
from minhub_py.models.state_space import Mamba1Mixer, check_auto
from minhub_py.models.structure import Structure
from minhub_py.system.json_text import JsonObject

OFFSET = {"range": (0, 4095)}


class Jamba(Hybrid):
    config: "JambaConfig"


@dataclass(frozen=True)
class JambaConfig(HybridConfig):
    """The settings of config.json that change the result. Defaults: transformers'."""

    TITLE: ClassVar = "Jamba"
    MODEL_TYPE: ClassVar = "jamba"
    ARCHITECTURE: ClassVar = "JambaForCausalLM"
    # transformers reads no window.
    ONLY_VALUE: ClassVar = {"sliding_window": None}
    NO_EFFECT: ClassVar = frozenset(
        """
        output_router_logits router_aux_loss_coef num_logits_to_keep use_mamba_kernels use_mambapy use_associative_scan
        mamba_inner_layernorms calc_logits_for_entire_prompt n_ctx
        """.split()
    )
    DERIVED: ClassVar = ("head_dim", "layer_types", "layers_block_type", "layers_num_experts")
    ALIASES: ClassVar = {"jamba": {"num_local_experts": "num_experts"}}

    vocab_size: int = 65536
    intermediate_size: int = 14336  # of an MLP, and of an expert
    num_key_value_heads: int | None = field(default=8, metadata={"range": (1, 2**24)})
    max_position_embeddings: int = field(default=2**18, metadata={"range": (1, 2**31)})
    num_experts: int = field(default=16, metadata={"range": (1, 1024)})  # 1: no experts
    num_experts_per_tok: int = field(default=2, metadata={"range": (1, 16)})
    # the layers with experts, and with attention: offset, offset + period, …
    expert_layer_period: int = 2
    expert_layer_offset: int = field(default=1, metadata=OFFSET)
    attn_layer_period: int = 8
    attn_layer_offset: int = field(default=4, metadata=OFFSET)
    mamba_d_state: int = 16
    mamba_d_conv: int = field(default=4, metadata={"range": (2, 1024)})
    mamba_expand: int = 2
    # "auto": hidden_size / 16
    mamba_dt_rank: int | str = field(default="auto", metadata={"range": (1, 2**24)})
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    rms_norm_eps: float = 1e-6
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    pad_token_id: int | None = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_auto("Jamba", "mamba_dt_rank", self.mamba_dt_rank)
        for name in ("expert_layer", "attn_layer"):
            period, offset = getattr(self, f"{name}_period"), getattr(self, f"{name}_offset")
            if offset >= period:
                raise ValueError(
                    f"Jamba: {name}_offset ({offset}) must be below {name}_period ({period})"
                )
        if self.num_experts_per_tok > self.num_experts > 1:
            raise ValueError(
                f"Jamba: num_experts_per_tok ({self.num_experts_per_tok}) cannot be more than"
                f" num_experts ({self.num_experts})"
            )

    @property
    def kinds(self) -> list[str]:
        """mamba or attention, for each layer."""
        layers = self.num_hidden_layers
        return layer_kinds(layers, range(self.attn_layer_offset, layers, self.attn_layer_period))

    @property
    def layers_block_type(self) -> list[str]:
        """transformers' names of the layers' kinds."""
        return self.kinds

    @property
    def layer_types(self) -> list[str]:
        """The newer names."""
        names = {"attention": "full_attention", "mamba": "linear_attention"}
        return [names[kind] for kind in self.kinds]

    @property
    def layers_num_experts(self) -> list[int]:
        """Number of experts of each layer; 1 for an MLP."""
        period, offset = self.expert_layer_period, self.expert_layer_offset
        return [
            self.num_experts if layer % period == offset else 1
            for layer in range(self.num_hidden_layers)
        ]

    @property
    def structure(self) -> Structure:
        """The differences of the attention from Llama's."""
        return self.declared(ropes=[None] * self.num_hidden_layers, eps=self.rms_norm_eps)

    def mixer(self, layer: int) -> Mamba1Mixer:
        """The selective state space of a layer."""
        rank = self.mamba_dt_rank
        return Mamba1Mixer(
            layer,
            self.hidden_size,
            self.mamba_expand * self.hidden_size,
            self.mamba_d_state,
            rank if isinstance(rank, int) else -(-self.hidden_size // 16),
            self.mamba_d_conv,
            self.hidden_act,
            self.mamba_proj_bias,
            self.mamba_conv_bias,
            self.rms_norm_eps,
            weighted_norms=True,
        )

    def mlp(self, layer: int) -> GatedMLP | Mixture:
        """The MLP or experts of a layer."""
        C, inner, experts = self.hidden_size, self.intermediate_size, self.layers_num_experts[layer]
        if experts == 1:
            return GatedMLP(C, inner, self.hidden_act)
        routing = Routing(self.num_experts_per_tok, normalize=False)
        return Mixture(experts, C, inner, self.hidden_act, routing)

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        settings = super().to_hub()
        del settings["rope_parameters"]
        return settings
