"""Arcee: Llama with an MLP without a gate, whose activation is the square of ReLU.

Sources
    Arcee AI (2025), "AFM-4.5B"; the activation: So et al. (2021), "Primer".
    Hub docs: `transformers`, model_type "arcee".

Differences from similar architectures
    Llama      has a gated MLP with SiLU.
    Jais 2     has the same MLP, and layer norms and biases.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.decoder import Decoder
from minhub_py.models.structure import DecoderConfig, Structure, biases


class Arcee(Decoder):
    config: "ArceeConfig"


@dataclass(frozen=True)
class ArceeConfig(DecoderConfig):
    """The settings of config.json that change the result. Defaults: transformers'."""

    TITLE: ClassVar = "Arcee"
    MODEL_TYPE: ClassVar = "arcee"
    ARCHITECTURE: ClassVar = "ArceeForCausalLM"

    hidden_size: int = 2560
    intermediate_size: int = 18432
    head_dim: int | None = field(default=None, metadata={"range": (2, 2**16)})
    hidden_act: str = field(default="relu2", metadata={"choices": tuple(ACTIVATIONS)})
    max_position_embeddings: int = field(default=4096, metadata={"range": (1, 2**31)})
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    mlp_bias: bool = False
    bos_token_id: int | None = 128000
    eos_token_id: int | list[int] | None = 128001

    @property
    def structure(self) -> Structure:
        """What distinguishes this model from Llama."""
        qkvo = self.attention_bias
        return self.declared(
            eps=self.rms_norm_eps, gated=False, biases=biases(qkvo, qkvo, self.mlp_bias)
        )
