"""Seed-OSS: Llama with biases of q, k and v.

Sources
    ByteDance Seed (2025), "Seed-OSS".
    Hub docs: `transformers`, model_type "seed_oss".

Differences from similar architectures
    Llama    has one setting of the biases of attention; Seed-OSS one for q, k and v, and one for
    the output.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from minhub_py.models.decoder import Decoder
from minhub_py.models.structure import DecoderConfig, Structure, biases


class SeedOSS(Decoder):
    config: "SeedOSSConfig"


@dataclass(frozen=True)
class SeedOSSConfig(DecoderConfig):
    """The settings of config.json that change the result. Defaults: transformers'."""

    TITLE: ClassVar = "Seed-OSS"
    MODEL_TYPE: ClassVar = "seed_oss"
    ARCHITECTURE: ClassVar = "SeedOssForCausalLM"

    vocab_size: int = 155136
    intermediate_size: int = 27648
    num_hidden_layers: int = field(default=64, metadata={"range": (1, 4096)})
    num_attention_heads: int = 80
    num_key_value_heads: int | None = field(default=8, metadata={"range": (1, 2**24)})
    head_dim: int | None = field(default=128, metadata={"range": (2, 2**16)})
    max_position_embeddings: int = field(default=524288, metadata={"range": (1, 2**31)})
    rms_norm_eps: float = 1e-6
    attention_bias: bool = True
    attention_out_bias: bool = False
    mlp_bias: bool = False
    attention_dropout: float = 0.1
    residual_dropout: float = 0.1
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 2
    pad_token_id: int | None = 1

    @property
    def structure(self) -> Structure:
        """What distinguishes this model from Llama."""
        return self.declared(
            eps=self.rms_norm_eps,
            biases=biases(self.attention_bias, self.attention_out_bias, self.mlp_bias),
            dropout=self.residual_dropout,
        )
