"""ERNIE 4.5 without experts: Llama with interleaved rotary embedding.

Sources
    Baidu (2025), "ERNIE 4.5 Technical Report".
    Hub docs: `transformers`, model_type "ernie4_5".

Differences from similar architectures
    Llama    rotates halves; ERNIE rotates adjacent numbers, in float32. use_bias is about all
    linear layers.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from minhub_py.models.decoder import Decoder
from minhub_py.models.structure import DecoderConfig, Structure, biases


class Ernie45(Decoder):
    config: "Ernie45Config"


@dataclass(frozen=True)
class Ernie45Config(DecoderConfig):
    """The settings of config.json that change the result. Defaults: ERNIE 4.5 0.3B."""

    TITLE: ClassVar = "ERNIE 4.5"
    MODEL_TYPE: ClassVar = "ernie4_5"
    ARCHITECTURE: ClassVar = "Ernie4_5ForCausalLM"
    THETA: ClassVar = 5e5
    NO_EFFECT: ClassVar = frozenset({"attention_dropout", "rope_3d", "freq_allocation"})

    vocab_size: int = 103424
    hidden_size: int = 1024
    intermediate_size: int = 3072
    num_hidden_layers: int = field(default=18, metadata={"range": (1, 4096)})
    num_attention_heads: int = 16
    num_key_value_heads: int | None = field(default=2, metadata={"range": (1, 2**24)})
    head_dim: int | None = field(default=128, metadata={"range": (2, 2**16)})
    max_position_embeddings: int = field(default=131072, metadata={"range": (1, 2**31)})
    rms_norm_eps: float = 1e-5
    use_bias: bool = False
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    pad_token_id: int | None = 0

    @property
    def structure(self) -> Structure:
        """What distinguishes this model from Llama."""
        return self.declared(
            eps=self.rms_norm_eps,
            interleaved=True,
            exact_rotation=True,
            biases=biases(self.use_bias, self.use_bias, self.use_bias),
        )
