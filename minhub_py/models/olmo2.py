"""OLMo 2 and 3: Llama with norms after attention and MLP instead of before them.

Sources
    Team OLMo (2024), "2 OLMo 2 Furious"; Team OLMo (2025), "Olmo 3". Norms after the layers: Liu et
        al. (2022), "Swin Transformer V2"; norms of q and k: Henry et al. (2020), "Query-Key
        Normalization".
    Hub docs: `transformers`, model_types "olmo2" and "olmo3".

Differences from similar architectures
    Llama     has norms before attention and MLP, and no norms of q and k.
    Qwen 3    norms each head of q and k; OLMo 2 norms all heads of q together, and all heads of k.
    Gemma 2   has norms before and after attention and MLP.

    olmo3     a window in all layers but each fourth; a scaled rotation only in the layers without a window
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar

from minhub_py.models import rotary
from minhub_py.models.decoder import Decoder
from minhub_py.models.structure import DecoderConfig, Structure, biases
from minhub_py.system.json_text import JsonObject

FULL, SLIDING = "full_attention", "sliding_attention"


class Olmo2(Decoder):
    config: "Olmo2Config"


@dataclass(frozen=True)
class Olmo2Config(DecoderConfig):
    """The settings of config.json that change the result. Defaults: OLMo 2 7B."""

    TITLE: ClassVar = "OLMo 2"
    MODEL_TYPE: ClassVar = "olmo2"
    ARCHITECTURE: ClassVar = "Olmo2ForCausalLM"

    vocab_size: int = 50304
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    eos_token_id: int | list[int] | None = 50279
    pad_token_id: int | None = 1

    @property
    def structure(self) -> Structure:
        """What distinguishes this model from Llama."""
        return self.declared(
            eps=self.rms_norm_eps,
            biases=biases(self.attention_bias, self.attention_bias),
            head_norms="joint",
            exact_rotation=True,
            norms="after",
        )


class Olmo3(Decoder):
    config: "Olmo3Config"


@dataclass(frozen=True)
class Olmo3Config(Olmo2Config):
    """The settings of config.json that change the result. Defaults: OLMo 3 7B, except the sizes of
    the context.
    """

    TITLE: ClassVar = "OLMo 3"
    MODEL_TYPE: ClassVar = "olmo3"
    ARCHITECTURE: ClassVar = "Olmo3ForCausalLM"
    THETA: ClassVar = 5e5
    LOCAL_THETA: ClassVar = "rope_theta"  # the same value in all layers

    sliding_window: int | None = field(default=4096, metadata={"range": (1, 2**31)})
    layer_types: list[str] | None = None  # "full_attention" or "sliding_attention"

    @property
    def types(self) -> list[str]:
        """Each layer's type."""
        if self.layer_types is not None:
            return list(self.layer_types)
        return [FULL if layer % 4 == 3 else SLIDING for layer in range(self.num_hidden_layers)]

    @property
    def ropes(self) -> dict[str, JsonObject]:
        """rope_parameters of each layer type, with defaults. A flat file is about the layers
        without a window.
        """
        parameters = self.rope_parameters or {}
        if not any(isinstance(value, dict) for value in parameters.values()):
            if parameters.get("rope_theta", self.THETA) != self.THETA:
                raise ValueError(
                    f"OLMo 3: rope_theta is not {self.THETA:g}, so rope_parameters must have"
                    f" settings for {FULL} and {SLIDING}"
                )
            parameters = {FULL: parameters}
        if not set(parameters) <= {FULL, SLIDING}:
            raise ValueError(f"OLMo 3: rope_parameters must have settings for {FULL} and {SLIDING}")
        return {
            name: rotary.completed(parameters.get(name), self.max_position_embeddings, self.THETA)
            for name in (FULL, SLIDING)
        }

    @property
    def rope(self) -> JsonObject:
        """rope_parameters of the layers without a window."""
        return self.ropes[FULL]

    @property
    def structure(self) -> Structure:
        """What distinguishes this model from Llama."""
        windows, ropes = self.windows_of(self.types, self.sliding_window), self.ropes
        return replace(
            super().structure, windows=windows, ropes=[ropes[name] for name in self.types]
        )

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        return {**super().to_hub(), "rope_parameters": self.ropes, "layer_types": self.types}
