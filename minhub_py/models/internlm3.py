"""InternLM 3: Llama with other names of two settings.

Sources
    Cai et al. (2024), "InternLM2 Technical Report".
    Hub docs: `transformers`, model_type "internlm3".

Differences from similar architectures
    Llama    names the settings of biases attention_bias and mlp_bias; InternLM 3's own code has
             qkv_bias and bias, which agree in the published files.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from minhub_py.models.decoder import Decoder
from minhub_py.models.structure import DecoderConfig, Structure, biases


class InternLM3(Decoder):
    config: "InternLM3Config"


@dataclass(frozen=True)
class InternLM3Config(DecoderConfig):
    """The settings of config.json that change the result. Defaults: InternLM 3 8B."""

    TITLE: ClassVar = "InternLM 3"
    MODEL_TYPE: ClassVar = "internlm3"
    ARCHITECTURE: ClassVar = "LlamaForCausalLM"
    ALIASES: ClassVar = {"internlm3": {"qkv_bias": "attention_bias", "bias": "mlp_bias"}}

    vocab_size: int = 128512
    intermediate_size: int = 10240
    num_hidden_layers: int = field(default=48, metadata={"range": (1, 4096)})
    num_key_value_heads: int | None = field(default=2, metadata={"range": (1, 2**24)})
    head_dim: int | None = field(default=128, metadata={"range": (2, 2**16)})
    max_position_embeddings: int = field(default=32768, metadata={"range": (1, 2**31)})
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    mlp_bias: bool = False
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    pad_token_id: int | None = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attention_bias != self.mlp_bias:
            raise ValueError(
                "InternLM 3: qkv_bias and bias must be equal, because their meaning differs between"
                " libraries"
            )

    @property
    def structure(self) -> Structure:
        """What distinguishes this model from Llama."""
        return self.declared(
            eps=self.rms_norm_eps,
            biases=biases(self.attention_bias, self.attention_bias, self.mlp_bias),
        )
