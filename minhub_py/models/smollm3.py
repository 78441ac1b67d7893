"""SmolLM3: Llama with layers without rotary embedding.

Sources
    Bakouch et al. (2025), "SmolLM3"; layers without positions: Yang et al. (2025), "RNoPE".
    Hub docs: `transformers`, model_type "smollm3".

Differences from similar architectures
    Llama    every layer rotates. In SmolLM3 each fourth layer does not; only such layers may have a
    window.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from minhub_py.models.decoder import Decoder
from minhub_py.models.structure import DecoderConfig, Structure, biases
from minhub_py.system.json_text import JsonObject


class SmolLM3(Decoder):
    config: "SmolLM3Config"


@dataclass(frozen=True)
class SmolLM3Config(DecoderConfig):
    """The settings of config.json that change the result. Defaults: SmolLM3 3B."""

    TITLE: ClassVar = "SmolLM3"
    MODEL_TYPE: ClassVar = "smollm3"
    ARCHITECTURE: ClassVar = "SmolLM3ForCausalLM"
    THETA: ClassVar = 2e6

    vocab_size: int = 128256
    hidden_size: int = 2048
    num_hidden_layers: int = field(default=36, metadata={"range": (1, 4096)})
    num_attention_heads: int = 16
    num_key_value_heads: int | None = field(default=4, metadata={"range": (1, 2**24)})
    max_position_embeddings: int = field(default=32768, metadata={"range": (1, 2**31)})
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    mlp_bias: bool = False
    no_rope_layers: list[int] | None = None  # 1: a layer rotates, contrary to the name
    no_rope_layer_interval: int = 4
    use_sliding_window: bool = False
    sliding_window: int | None = field(default=None, metadata={"range": (1, 2**31)})
    layer_types: list[str] | None = None  # "full_attention" or "sliding_attention"
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 128000
    eos_token_id: int | list[int] | None = 128001
    pad_token_id: int | None = 128004

    @property
    def rotates(self) -> list[bool]:
        """Whether each layer has a rotary embedding."""
        count, step = self.num_hidden_layers, self.no_rope_layer_interval
        rotates = [bool((layer + 1) % step) for layer in range(count)]
        if self.no_rope_layers is not None:
            rotates = [layer != 0 for layer in self.no_rope_layers[:count]]
        if len(rotates) < count:
            raise ValueError(
                f"SmolLM3: no_rope_layers must have a number for each of {count} layers"
            )
        return rotates

    @property
    def structure(self) -> Structure:
        """What distinguishes this model from Llama."""
        window = self.sliding_window if self.use_sliding_window else None
        windows = [None if rotates else window for rotates in self.rotates]
        if self.layer_types is not None:
            windows = self.windows_of(self.layer_types, window)
        return self.declared(
            windows=windows,
            ropes=[self.rope if rotates else None for rotates in self.rotates],
            eps=self.rms_norm_eps,
            biases=biases(self.attention_bias, self.attention_bias, self.mlp_bias),
        )

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        settings = super().to_hub()
        if self.layer_types is None:
            del settings["layer_types"]
        return settings
