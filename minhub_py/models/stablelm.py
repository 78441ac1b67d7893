"""StableLM: Llama with layer norms, and rotary embedding of a quarter of each head.

Sources
    Bellagente et al. (2024), "Stable LM 2 1.6B"; norms of q and k: Dehghani et al. (2023),
        "ViT-22B".
    Hub docs: `transformers`, model_type "stablelm".

Differences from similar architectures
    Phi         also rotates a part of each head, but has no gated MLP.
    Command R   also has a parallel block (StableLM 12B) and layer norms of the heads, but no biases
    of norms.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from minhub_py.models.decoder import Decoder
from minhub_py.models.structure import DecoderConfig, Structure, biases


class StableLM(Decoder):
    config: "StableLMConfig"


@dataclass(frozen=True)
class StableLMConfig(DecoderConfig):
    """The settings of config.json that change the result. Defaults: StableLM 3B."""

    TITLE: ClassVar = "StableLM"
    MODEL_TYPE: ClassVar = "stablelm"
    ARCHITECTURE: ClassVar = "StableLmForCausalLM"
    ROPE_NAMES: ClassVar = {"partial_rotary_factor": "partial_rotary_factor"}
    ROTATED: ClassVar = 0.25
    ONLY_VALUE: ClassVar = {"hidden_dropout": 0.0, "norm_bias": True}

    vocab_size: int = 50304
    hidden_size: int = 2560
    intermediate_size: int = 6912
    num_key_value_heads: int | None = field(default=32, metadata={"range": (1, 2**24)})
    max_position_embeddings: int = field(default=4096, metadata={"range": (1, 2**31)})
    layer_norm_eps: float = 1e-5
    use_qkv_bias: bool = False
    qk_layernorm: bool = False
    use_parallel_residual: bool = False
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 0

    @property
    def structure(self) -> Structure:
        """What distinguishes this model from Llama."""
        return self.declared(
            norm="layer",
            eps=self.layer_norm_eps,
            biases=biases(self.use_qkv_bias),
            parallel=self.use_parallel_residual,
            head_norms="layer" if self.qk_layernorm else "",
        )
