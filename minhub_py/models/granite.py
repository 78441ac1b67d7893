"""Granite 3 and 4: Llama with four factors, of the embeddings, the scores, the added outputs and
the logits.

Sources
    Soule & Bergmann (2024), "IBM Granite 3.0"; the factors: Yang et al. (2022), "Tensor Programs
        V".
    Hub docs: `transformers`, model_types "granite" and "granitemoehybrid".

Differences from similar architectures
    Llama    has none of the factors, and divides the scores by the root of the head size.

    granitemoehybrid    Granite 4. Most layers of the sizes with an "h" have a selective state space, Mamba 2's
                        (state_space.py), in place of attention. Rotary positions only with position_embedding_type
                        "rope". Some sizes have experts in addition to the MLP.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

from torch import Tensor

from minhub_py.models.decoder import Decoder
from minhub_py.models.experts import Routing
from minhub_py.models.hybrid import Hybrid, HybridBlock, Mamba2Settings
from minhub_py.models.mixture import Mixture
from minhub_py.models.mlp import GatedMLP
from minhub_py.models.settings import check_layer_types
from minhub_py.models.steps import Norm, SaveResidual, Step
from minhub_py.models.structure import DecoderConfig, Factors, Structure, biases
from minhub_py.system.json_text import JsonObject


class Granite(Decoder):
    config: "GraniteConfig"


class GraniteBlock(HybridBlock):
    """A layer of Granite 4, which has experts in addition to the MLP in some sizes."""

    def __init__(self, config: "GraniteHybridConfig", layer: int) -> None:
        super().__init__(config, layer)
        routing = Routing(config.num_experts_per_tok, normalize=True, factor=self.scale)
        C, inner, act = config.hidden_size, config.moe_intermediate_size, config.hidden_act
        self.experts = (
            Mixture(config.num_experts, C, inner, act, routing) if config.num_experts else None
        )

    def feed_forward(self, h: Tensor) -> Tensor:
        y = super().feed_forward(h)
        return y if self.experts is None else y + self.experts(h)

    def mlp_steps(self) -> Iterator[Step]:
        if self.experts is None:
            yield from super().mlp_steps()
            return
        yield SaveResidual()  # the experts read the same x as the MLP
        yield from super().mlp_steps()
        yield Norm(self.post_attention_layernorm, saved=True)
        yield self.experts.step()


class GraniteHybrid(Hybrid):
    BLOCK = GraniteBlock
    config: "GraniteHybridConfig"


@dataclass(frozen=True)
class GraniteConfig(DecoderConfig):
    """The settings of config.json that change the result. Defaults: transformers'."""

    TITLE: ClassVar = "Granite"
    MODEL_TYPE: ClassVar = "granite"
    ARCHITECTURE: ClassVar = "GraniteForCausalLM"

    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    mlp_bias: bool = False
    embedding_multiplier: float = field(default=1.0, metadata={"range": (1e-6, 1e6)})
    attention_multiplier: float = field(default=1.0, metadata={"range": (1e-6, 1e6)})
    residual_multiplier: float = field(default=1.0, metadata={"range": (1e-6, 1e6)})
    logits_scaling: float = field(default=1.0, metadata={"range": (1e-6, 1e6)})
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2

    @property
    def structure(self) -> Structure:
        """What distinguishes this model from Llama."""
        return self.declared(
            eps=self.rms_norm_eps,
            biases=biases(self.attention_bias, self.attention_bias, self.mlp_bias),
            factors=Factors(
                embeddings=None if self.embedding_multiplier == 1 else self.embedding_multiplier,
                scores=self.attention_multiplier,
                residual=self.residual_multiplier,
                logits=1 / self.logits_scaling,
            ),
        )


# names of layer types in files, in transformers 5 and before
KINDS = {
    "mamba": "mamba",
    "linear_attention": "mamba",
    "attention": "attention",
    "full_attention": "attention",
}


@dataclass(frozen=True)
class GraniteHybridConfig(GraniteConfig, Mamba2Settings):
    """The settings of config.json that change the result. Defaults: transformers'."""

    TITLE: ClassVar = "Granite 4"
    MODEL_TYPE: ClassVar = "granitemoehybrid"
    ARCHITECTURE: ClassVar = "GraniteMoeHybridForCausalLM"
    # The MLP of all tokens is a shared expert there.
    ALIASES: ClassVar = {
        "granitemoehybrid": {
            "shared_intermediate_size": "intermediate_size",
            "intermediate_size": "moe_intermediate_size",
            "layers_block_type": "layer_types",
            "num_local_experts": "num_experts",
        }
    }
    ONLY_VALUE: ClassVar = {"mlp_bias": False}
    NO_EFFECT: ClassVar = frozenset(
        "output_router_logits router_aux_loss_coef mamba_chunk_size normalization_function"
        " init_method time_step_min time_step_max".split()
    )

    intermediate_size: int = 1024
    moe_intermediate_size: int = 11008  # of an expert
    num_experts: int = field(default=8, metadata={"range": (0, 1024)})
    num_experts_per_tok: int = field(default=2, metadata={"range": (0, 16)})
    # "mamba" or "attention" (or the newer names of KINDS); None: mamba
    layer_types: list[str] | None = None
    position_embedding_type: str | None = field(
        default=None, metadata={"choices": (None, "rope", "nope")}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_layer_types(self.TITLE, self.layer_types or self.kinds, KINDS, self.num_hidden_layers)
        if self.num_experts_per_tok > self.num_experts > 0 or (
            self.num_experts and not self.num_experts_per_tok
        ):
            raise ValueError(
                f"Granite 4: num_experts_per_tok ({self.num_experts_per_tok}) must be between 1 and"
                f" num_local_experts ({self.num_experts})"
            )
        if "mamba" in self.kinds:
            self.check_heads()

    @property
    def kinds(self) -> list[str]:
        """mamba or attention, for each layer."""
        return [KINDS[name] for name in self.layer_types or ["mamba"] * self.num_hidden_layers]

    def mlp(self, layer: int) -> GatedMLP:  # the same in all layers
        """The MLP of a layer."""
        return GatedMLP(self.hidden_size, self.intermediate_size, self.hidden_act)

    @property
    def structure(self) -> Structure:
        """The differences of the attention and the factors from Llama's."""
        structure = super().structure
        if self.position_embedding_type == "rope":
            return structure
        return replace(structure, ropes=[None] * self.num_hidden_layers)

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        settings = super().to_hub()
        del settings["mlp_bias"]
        inner = settings.pop("moe_intermediate_size")
        settings["shared_intermediate_size"] = settings["intermediate_size"]
        settings["num_local_experts"] = settings.pop("num_experts")
        if self.num_experts:
            settings["intermediate_size"] = inner
        settings["layer_types"] = self.kinds  # transformers 4 accepts these names only
        if "mamba" not in self.kinds:  # transformers checks them without such a layer, too
            settings |= {"mamba_n_heads": 1, "mamba_d_head": "auto"}
        return settings
