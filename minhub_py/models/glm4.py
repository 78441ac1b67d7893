"""GLM-4 (0414): Llama with norms before and after attention and MLP, and interleaved rotary
embedding.

Sources
    Team GLM (2024), "ChatGLM".
    Hub docs: `transformers`, model_type "glm4".

Differences from similar architectures
    Gemma 2    has the same four norms, of 1 + w, and rotates halves of all numbers. GLM-4 rotates
               adjacent numbers in half of each head.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from minhub_py.models.decoder import Decoder
from minhub_py.models.structure import DecoderConfig, Structure, biases


class GLM4(Decoder):
    config: "GLM4Config"


@dataclass(frozen=True)
class GLM4Config(DecoderConfig):
    """The settings of config.json that change the result. Defaults: GLM-4 9B."""

    TITLE: ClassVar = "GLM-4"
    MODEL_TYPE: ClassVar = "glm4"
    ARCHITECTURE: ClassVar = "Glm4ForCausalLM"
    ROPE_NAMES: ClassVar = {"partial_rotary_factor": "partial_rotary_factor"}
    ROTATED: ClassVar = 0.5

    vocab_size: int = 151552
    intermediate_size: int = 13696
    num_hidden_layers: int = field(default=40, metadata={"range": (1, 4096)})
    num_key_value_heads: int | None = field(default=2, metadata={"range": (1, 2**24)})
    head_dim: int | None = field(default=128, metadata={"range": (2, 2**16)})
    max_position_embeddings: int = field(default=131072, metadata={"range": (1, 2**31)})
    rms_norm_eps: float = 1.5625e-07
    attention_bias: bool = True  # of q, k and v
    eos_token_id: int | list[int] | None = field(default_factory=lambda: [151329, 151336, 151338])
    pad_token_id: int | None = 151329

    @property
    def structure(self) -> Structure:
        """What distinguishes this model from Llama."""
        qkv = biases(self.attention_bias)
        return self.declared(eps=self.rms_norm_eps, interleaved=True, biases=qkv, norms="both")
