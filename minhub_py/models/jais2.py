"""Jais 2: Llama with layer norms, biases, and an MLP without a gate, whose activation is the square
of ReLU.

Sources
    Inception, MBZUAI and Cerebras (2025), "Jais 2"; the activation: So et al. (2021), "Primer".
    Hub docs: `transformers`, model_type "jais2".

Differences from similar architectures
    Arcee          has the same MLP, RMS norms, and by default no biases.
    StarCoder 2    has the same blocks with GELU.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.decoder import Decoder
from minhub_py.models.structure import DecoderConfig, Structure, biases


class Jais2(Decoder):
    config: "Jais2Config"


@dataclass(frozen=True)
class Jais2Config(DecoderConfig):
    """The settings of config.json that change the result. Defaults: Jais 2 8B."""

    TITLE: ClassVar = "Jais 2"
    MODEL_TYPE: ClassVar = "jais2"
    ARCHITECTURE: ClassVar = "Jais2ForCausalLM"

    vocab_size: int = 150272
    hidden_size: int = 3328
    intermediate_size: int = 26624
    num_attention_heads: int = 26
    head_dim: int | None = field(default=None, metadata={"range": (2, 2**16)})
    hidden_act: str = field(default="relu2", metadata={"choices": tuple(ACTIVATIONS)})
    max_position_embeddings: int = field(default=8192, metadata={"range": (1, 2**31)})
    layer_norm_eps: float = 1e-5
    attention_bias: bool = True
    mlp_bias: bool = True
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 150024

    @property
    def structure(self) -> Structure:
        """What distinguishes this model from Llama."""
        qkvo = self.attention_bias
        return self.declared(
            norm="layer",
            eps=self.layer_norm_eps,
            gated=False,
            biases=biases(qkvo, qkvo, self.mlp_bias),
        )
