"""StarCoder 2: Llama with layer norms, biases, and an MLP without a gate.

Sources
    Lozhkov et al. (2024), "StarCoder 2 and The Stack v2".
    Hub docs: `transformers`, model_type "starcoder2".

Differences from similar architectures
    Llama           has RMS norms, no biases and a gated MLP.
    GPT-BigCode     has learned positions; StarCoder 2 has rotary embeddings and, in some files, a
    window.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.decoder import Decoder
from minhub_py.models.structure import DecoderConfig, Structure, biases


class StarCoder2(Decoder):
    config: "StarCoder2Config"


@dataclass(frozen=True)
class StarCoder2Config(DecoderConfig):
    """The settings of config.json that change the result. Defaults: StarCoder 2 3B."""

    TITLE: ClassVar = "StarCoder 2"
    MODEL_TYPE: ClassVar = "starcoder2"
    ARCHITECTURE: ClassVar = "Starcoder2ForCausalLM"
    ONLY_VALUE: ClassVar = {"mlp_type": "default", "norm_type": "layer_norm"}

    vocab_size: int = 49152
    hidden_size: int = 3072
    intermediate_size: int = 12288
    num_hidden_layers: int = field(default=30, metadata={"range": (1, 4096)})
    num_attention_heads: int = 24
    num_key_value_heads: int | None = field(default=2, metadata={"range": (1, 2**24)})
    hidden_act: str = field(default="gelu_pytorch_tanh", metadata={"choices": tuple(ACTIVATIONS)})
    max_position_embeddings: int = field(default=4096, metadata={"range": (1, 2**31)})
    norm_epsilon: float = 1e-5
    use_bias: bool = True
    sliding_window: int | None = field(default=None, metadata={"range": (1, 2**31)})
    residual_dropout: float = 0.0
    embedding_dropout: float = 0.0
    initializer_range: float = 0.018042
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 50256
    eos_token_id: int | list[int] | None = 50256

    @property
    def structure(self) -> Structure:
        """What distinguishes this model from Llama."""
        return self.declared(
            windows=[self.sliding_window] * self.num_hidden_layers,
            norm="layer",
            eps=self.norm_epsilon,
            gated=False,
            biases=biases(self.use_bias, self.use_bias, self.use_bias),
            dropout=self.residual_dropout,
            embedding_dropout=self.embedding_dropout,
        )
