"""Granite 3 and 4: Llama with four factors, of the embeddings, the scores, the added outputs and
the logits.

Sources
    Soule & Bergmann (2024), "IBM Granite 3.0"; the factors: Yang et al. (2022), "Tensor Programs
        V".
    Hub docs: `transformers`, model_types "granite" and "granitemoehybrid".

Differences from similar architectures
    Llama    has none of the factors, and divides the scores by the root of the head size.

    granitemoehybrid    Granite 4. Only the sizes with attention in all layers and without experts are supported (micro,
                        1b, 350m). Positions only with position_embedding_type "rope"; other names of the MLP.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar

from minhub_py.models.decoder import Decoder
from minhub_py.models.structure import DecoderConfig, Factors, Structure, biases
from minhub_py.system.json_text import JsonObject


class Granite(Decoder):
    config: "GraniteConfig"


class GraniteHybrid(Decoder):
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


@dataclass(frozen=True)
class GraniteHybridConfig(GraniteConfig):
    """The settings of config.json that change the result. Defaults: transformers', with attention
    only.
    """

    TITLE: ClassVar = "Granite 4"
    MODEL_TYPE: ClassVar = "granitemoehybrid"
    ARCHITECTURE: ClassVar = "GraniteMoeHybridForCausalLM"
    # The MLP has the width of the shared experts; the width of the experts has no effect.
    ALIASES: ClassVar = {
        "granitemoehybrid": {
            "shared_intermediate_size": "intermediate_size",
            "intermediate_size": "_intermediate_size",
            "layers_block_type": "layer_types",
        }
    }
    ONLY_VALUE: ClassVar = {"mlp_bias": False, "num_local_experts": 0}
    NO_EFFECT: ClassVar = frozenset(
        "num_experts_per_tok output_router_logits router_aux_loss_coef mamba_n_heads mamba_n_groups"
        " mamba_d_state mamba_d_head mamba_d_conv mamba_expand mamba_chunk_size mamba_conv_bias"
        " mamba_proj_bias time_step_limit normalization_function init_method".split()
    )

    intermediate_size: int = 1024
    # "attention" or its newer name "full_attention"; None: all
    layer_types: list[str] | None = None
    position_embedding_type: str | None = field(
        default=None, metadata={"choices": (None, "rope", "nope")}
    )

    @property
    def structure(self) -> Structure:
        """What distinguishes this model from Llama."""
        types = self.layer_types or ["attention"]
        if set(types) - {"attention", "full_attention"} or len(types) not in (
            1,
            self.num_hidden_layers,
        ):
            raise ValueError(
                "Granite 4: layer_types has other layers than attention for each of"
                f" {self.num_hidden_layers} layers; supported are granite-4.0-micro, granite-4.0-1b"
                " and granite-4.0-350m, but no Mamba layers"
            )
        structure = super().structure
        if self.position_embedding_type == "rope":
            return structure
        return replace(structure, ropes=[None] * self.num_hidden_layers)

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        settings = super().to_hub()
        del settings["mlp_bias"]
        return {
            **settings,
            "shared_intermediate_size": self.intermediate_size,
            "num_local_experts": 0,
            # transformers 4 accepts this name only
            "layer_types": ["attention"] * self.num_hidden_layers,
            "mamba_n_heads": 1,  # a divisor of all widths
        }
