"""Command R and Command R7B: attention and MLP in parallel, with one layer norm without bias.

Sources
    Cohere (2024), "Command R"; Cohere (2025), "Command A". The parallel block: Wang & Komatsuzaki
        (2021), "GPT-J".
    Hub docs: `transformers`, model_types "cohere" and "cohere2".

Differences from similar architectures
    Phi        has biases, and rotates halves of a part of each head.
    Llama      has RMS norms, and attention before the MLP. Command R rotates adjacent numbers and
    scales its logits.

    cohere     optional layer norms of q and k, with a weight for each head
    cohere2    a window and rotary embedding in three of four layers; neither in the fourth
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar

from minhub_py.models.decoder import Decoder
from minhub_py.models.structure import DecoderConfig, Factors, Structure, biases
from minhub_py.system.json_text import JsonObject


class Cohere(Decoder):
    config: "CohereConfig"


@dataclass(frozen=True)
class CohereConfig(DecoderConfig):
    """The settings of config.json that change the result. Defaults: Command R."""

    TITLE: ClassVar = "Cohere"
    MODEL_TYPE: ClassVar = "cohere"
    ARCHITECTURE: ClassVar = "CohereForCausalLM"
    THETA: ClassVar = 5e5

    vocab_size: int = 256000
    hidden_size: int = 8192
    intermediate_size: int = 22528
    num_hidden_layers: int = field(default=40, metadata={"range": (1, 4096)})
    num_attention_heads: int = 64
    max_position_embeddings: int = field(default=8192, metadata={"range": (1, 2**31)})
    layer_norm_eps: float = 1e-5
    logit_scale: float = field(default=0.0625, metadata={"range": (1e-6, 1e6)})
    attention_bias: bool = False
    use_qk_norm: bool = False
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 5
    eos_token_id: int | list[int] | None = 255001
    pad_token_id: int | None = 0

    @property
    def structure(self) -> Structure:
        """What distinguishes this model from Llama."""
        return self.declared(
            norm="layer without bias",
            eps=self.layer_norm_eps,
            parallel=True,
            interleaved=True,
            exact_rotation=True,
            biases=biases(self.attention_bias, self.attention_bias),
            factors=Factors(logits=self.logit_scale),
            head_norms="layer" if self.use_qk_norm else "",
        )


class Cohere2(Decoder):
    config: "Cohere2Config"


@dataclass(frozen=True)
class Cohere2Config(CohereConfig):
    """The settings of config.json that change the result. Defaults: transformers'."""

    TITLE: ClassVar = "Cohere 2"
    MODEL_TYPE: ClassVar = "cohere2"
    ARCHITECTURE: ClassVar = "Cohere2ForCausalLM"
    THETA: ClassVar = 1e4
    ONLY_VALUE: ClassVar = {
        "use_qk_norm": False,
        "use_parallel_block": True,
        "use_gated_activation": True,
        "rotary_pct": 1.0,
        "use_embedding_sharing": True,
        "position_embedding_type": "rope_gptj",
    }
    NO_EFFECT: ClassVar = frozenset(
        "cache_implementation order_of_interleaved_layers layer_switch use_parallel_embedding".split()
    )

    use_qk_norm: bool = field(default=False, metadata={"choices": (False,)})
    sliding_window: int | None = field(default=4096, metadata={"range": (1, 2**31)})
    sliding_window_pattern: int = 4
    layer_types: list[str] | None = None  # "full_attention" or "sliding_attention"

    @property
    def types(self) -> list[str]:
        """Each layer's type."""
        if self.layer_types is not None:
            return list(self.layer_types)
        slides = [
            (layer + 1) % self.sliding_window_pattern != 0
            for layer in range(self.num_hidden_layers)
        ]
        return ["sliding_attention" if slide else "full_attention" for slide in slides]

    @property
    def structure(self) -> Structure:
        """What distinguishes this model from Llama."""
        windows = self.windows_of(self.types, self.sliding_window)
        ropes = [None if window is None else self.rope for window in windows]
        return replace(super().structure, windows=windows, ropes=ropes)

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        settings = {**super().to_hub(), "layer_types": self.types}
        del settings["sliding_window_pattern"], settings["use_qk_norm"]
        return settings
