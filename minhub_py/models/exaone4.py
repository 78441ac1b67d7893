"""EXAONE 4: Llama with norms after attention and MLP, and layers without rotary embedding.

Sources
    LG AI Research (2025), "EXAONE 4.0".
    Hub docs: `transformers`, model_type "exaone4".

Differences from similar architectures
    OLMo 3    norms all heads of q and of k jointly, and rotates in all layers. EXAONE 4 norms each
              head; the layers without a window do not rotate, except in sizes without any window.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from minhub_py.models.decoder import Decoder
from minhub_py.models.structure import DecoderConfig, Structure
from minhub_py.system.json_text import JsonObject


class Exaone4(Decoder):
    config: "Exaone4Config"


@dataclass(frozen=True)
class Exaone4Config(DecoderConfig):
    """The settings of config.json that change the result. Defaults: transformers'."""

    TITLE: ClassVar = "EXAONE 4"
    MODEL_TYPE: ClassVar = "exaone4"
    ARCHITECTURE: ClassVar = "Exaone4ForCausalLM"

    vocab_size: int = 102400
    intermediate_size: int = 16384
    num_key_value_heads: int | None = field(default=32, metadata={"range": (1, 2**24)})
    rms_norm_eps: float = 1e-5
    sliding_window: int | None = field(default=4096, metadata={"range": (1, 2**31)})
    sliding_window_pattern: int | str | None = 4  # or L (local) and G (global), repeated
    layer_types: list[str] | None = None  # "full_attention" or "sliding_attention"
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 2

    @property
    def types(self) -> list[str]:
        """Each layer's type. With letters, the last layer has no window."""
        count, pattern = self.num_hidden_layers, self.sliding_window_pattern
        if self.layer_types is not None:
            return list(self.layer_types)
        if self.sliding_window is None or not pattern:
            slides = [False] * count
        elif isinstance(pattern, int):
            slides = [(layer + 1) % pattern != 0 for layer in range(count)]
        elif set(pattern) <= {"L", "G"}:
            slides = [
                pattern[layer % len(pattern)] == "L" and layer < count - 1 for layer in range(count)
            ]
        else:
            raise ValueError(
                "EXAONE 4: sliding_window_pattern must be a number, or contain L and G, not"
                f" {pattern!r}"
            )
        return ["sliding_attention" if slide else "full_attention" for slide in slides]

    @property
    def structure(self) -> Structure:
        """What distinguishes this model from Llama."""
        types, rope = self.types, self.rope
        rotates = [self.sliding_window is None or name == "sliding_attention" for name in types]
        return self.declared(
            windows=self.windows_of(types, self.sliding_window),
            ropes=[rope if layer else None for layer in rotates],
            eps=self.rms_norm_eps,
            head_norms="before rotation",
            norms="after",
        )

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers, which reads layer_types only."""
        settings = {**super().to_hub(), "layer_types": self.types}
        del settings["sliding_window_pattern"]
        return settings
