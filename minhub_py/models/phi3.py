"""Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: Llama with two rotations, for short and for long caches.

Sources
    Abdin et al. (2024), "Phi-3 Technical Report"; Ding et al. (2024), "LongRoPE".
    Hub docs: `transformers`, model_type "phi3".

Differences from similar architectures
    Llama    rotates all numbers of a head; Phi-4-mini rotates 3/4 of them. With rope_type longrope,
             short_factor divides the frequencies if the cache has at most
             original_max_position_embeddings positions, otherwise long_factor. The size of the
             cache decides for all positions, as in llama.cpp. In transformers the length of the
             text decides; its cache is discarded at a change. The Hub's files fuse q, k and v, and
             gate and up.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from minhub_py.models.decoder import Decoder
from minhub_py.models.structure import DecoderConfig, Structure
from minhub_py.system.json_text import JsonObject


class Phi3(Decoder):
    config: "Phi3Config"


@dataclass(frozen=True)
class Phi3Config(DecoderConfig):
    """The settings of config.json that change the result. Defaults: Phi-3-mini."""

    TITLE: ClassVar = "Phi-3"
    MODEL_TYPE: ClassVar = "phi3"
    ARCHITECTURE: ClassVar = "Phi3ForCausalLM"
    ONLY_VALUE: ClassVar = {"attention_bias": False, "mlp_bias": False, "lm_head_bias": False}
    # of Microsoft's own code
    NO_EFFECT: ClassVar = frozenset({"full_attn_mod", "interpolate_factor"})
    ROPE_NAMES: ClassVar = {
        "partial_rotary_factor": "partial_rotary_factor",
        "original_max_position_embeddings": "original_max_position_embeddings",
    }

    vocab_size: int = 32064
    hidden_size: int = 3072
    intermediate_size: int = 8192
    max_position_embeddings: int = field(default=4096, metadata={"range": (1, 2**31)})
    rms_norm_eps: float = 1e-5
    sliding_window: int | None = field(default=None, metadata={"range": (1, 2**31)})
    embd_pdrop: float = 0.0
    resid_pdrop: float = 0.0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 32000
    pad_token_id: int | None = 32000

    def __post_init__(self) -> None:
        super().__post_init__()
        pairs = self.rotated // 2
        for name in ("short_factor", "long_factor"):
            if (count := len(self.rope.get(name, [0] * pairs))) != pairs:
                raise ValueError(
                    f"Phi-3: rope_parameters' {name} has {count} factors for {pairs} rotated pairs"
                )

    @property
    def rope(self) -> JsonObject:
        """rope_parameters with defaults."""
        rope = super().rope
        original = rope.pop("original_max_position_embeddings", 4096)
        if rope["rope_type"] in ("su", "yarn", "longrope"):  # the older names
            rope |= {"rope_type": "longrope", "original_max_position_embeddings": original}
            if isinstance(original, int) and original > 0:  # otherwise an error follows
                rope.setdefault("factor", self.max_position_embeddings / original)
        return rope

    @property
    def qkv_sizes(self) -> tuple[int, int, int]:
        """The rows of q, k and v in their joint tensor."""
        kv_rows = self.kv_heads * self.head_size
        return self.num_attention_heads * self.head_size, kv_rows, kv_rows

    @property
    def structure(self) -> Structure:
        """What distinguishes this model from Llama."""
        return self.declared(
            windows=[self.sliding_window] * self.num_hidden_layers,
            eps=self.rms_norm_eps,
            dropout=self.resid_pdrop,
            embedding_dropout=self.embd_pdrop,
        )

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        original = self.rope.get("original_max_position_embeddings", 4096)
        return {**super().to_hub(), "original_max_position_embeddings": original}
