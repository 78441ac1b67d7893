"""Nemotron and Minitron: Llama with layer norms whose weights are stored minus 1, and an MLP without
a gate.

Sources
    Parmar et al. (2024), "Nemotron-4 15B Technical Report"; Muralidharan et al. (2024), "Compact
        Language Models via Pruning and Knowledge Distillation", for Minitron; the activation: So et
        al. (2021), "Primer".
    Hub docs: `transformers`, model_type "nemotron".

Differences from similar architectures
    Jais 2    has usual layer norms, and rotates whole heads; the MLP is the same.
    Gemma     has RMS norms whose weights are stored minus 1.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.decoder import Decoder
from minhub_py.models.layers import OffsetLayerNorm
from minhub_py.models.structure import DecoderConfig, Structure, biases


class Nemotron(Decoder):
    config: "NemotronConfig"

    def __init__(self, config: "NemotronConfig") -> None:
        super().__init__(config)
        sizes = config.hidden_size, config.norm_eps
        for block in self.layers:
            block.input_layernorm = OffsetLayerNorm(*sizes)
            block.post_attention_layernorm = OffsetLayerNorm(*sizes)
        self.norm = OffsetLayerNorm(*sizes)


@dataclass(frozen=True)
class NemotronConfig(DecoderConfig):
    """The settings of config.json that change the result. Defaults: Nemotron-4 15B."""

    TITLE: ClassVar = "Nemotron"
    MODEL_TYPE: ClassVar = "nemotron"
    ARCHITECTURE: ClassVar = "NemotronForCausalLM"
    DERIVED: ClassVar = ("kv_channels",)
    ROTATED: ClassVar = 0.5
    # the last is written
    ROPE_NAMES: ClassVar = {
        "rope_percent": "partial_rotary_factor",
        "partial_rotary_factor": "partial_rotary_factor",
    }

    vocab_size: int = 256000
    hidden_size: int = 6144
    intermediate_size: int = 24576
    num_attention_heads: int = 48
    head_dim: int | None = field(default=None, metadata={"range": (2, 2**16)})
    hidden_act: str = field(default="relu2", metadata={"choices": tuple(ACTIVATIONS)})
    max_position_embeddings: int = field(default=4096, metadata={"range": (1, 2**31)})
    norm_eps: float = 1e-5
    attention_bias: bool = False
    mlp_bias: bool = False
    initializer_range: float = 0.0134
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 3

    @property
    def kv_channels(self) -> int:
        """Number of channels of a head, by NeMo's name."""
        return self.head_size

    @property
    def structure(self) -> Structure:
        """What distinguishes this model from Llama."""
        qkvo = self.attention_bias
        return self.declared(
            norm="layer",
            eps=self.norm_eps,
            gated=False,
            biases=biases(qkvo, qkvo, self.mlp_bias),
        )
