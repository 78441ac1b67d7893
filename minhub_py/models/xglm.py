"""XGLM: a decoder with computed positions, for 30 languages.

Sources
    Lin et al. (2022), "Few-shot Learning with Multilingual Generative Language Models". Positions: Vaswani et al.
    (2017), "Attention Is All You Need".
    Hub docs: `transformers`, model_type "xglm".

Differences from similar architectures
    OPT           learns its positions. XGLM adds sines and cosines of position + 2, and scales its embeddings.
    Sinusoidal    has norms after attention and MLP, and alternates sine and cosine; XGLM has halves.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from minhub_py.models.base import ACTIVATIONS
from minhub_py.models.llama import Llama
from minhub_py.models.structure import RelativeConfig, Structure

NAMES = {
    "num_layers": "num_hidden_layers", "attention_heads": "num_attention_heads", "d_model": "hidden_size",
    "ffn_dim": "intermediate_size", "activation_function": "hidden_act", "init_std": "initializer_range",
}  # fmt: skip


class XGLM(Llama):
    config: "XGLMConfig"


@dataclass(frozen=True)
class XGLMConfig(RelativeConfig):
    """The settings of config.json that change the result. Defaults: XGLM 564M."""

    TITLE: ClassVar = "XGLM"
    MODEL_TYPE: ClassVar = "xglm"
    ARCHITECTURE: ClassVar = "XGLMForCausalLM"
    ALIASES: ClassVar = {"xglm": NAMES}
    ONLY_VALUE: ClassVar = {"activation_dropout": 0.0, "layerdrop": 0.0}

    vocab_size: int = 256008
    hidden_size: int = 1024
    intermediate_size: int = 4096
    num_hidden_layers: int = field(default=24, metadata={"range": (1, 4096)})
    num_attention_heads: int = 16
    num_key_value_heads: int | None = field(default=None, metadata={"choices": (None,)})
    hidden_act: str = field(default="gelu", metadata={"choices": tuple(ACTIVATIONS)})
    dropout: float = 0.1
    attention_dropout: float = 0.1
    scale_embedding: bool = True
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 2
    pad_token_id: int | None = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden_size % 2 or self.hidden_size < 4:
            raise ValueError(f"XGLM: d_model ({self.hidden_size}) must be even: positions are sines and cosines")

    @property
    def structure(self) -> Structure:
        """What distinguishes this model from Llama."""
        return self.declared(
            ropes=[None] * self.num_hidden_layers, norm="layer", eps=1e-5, gated=False, qkv_bias=True, output_bias=True,
            mlp_bias=True, dropout=self.dropout, embedding_dropout=self.dropout, sinusoids=True,
            embedding_scale=self.hidden_size**0.5 if self.scale_embedding else None,
        )  # fmt: skip

    def to_hub(self) -> dict[str, Any]:
        """The config.json of this model for transformers."""
        settings = super().to_hub()
        for name in ("num_key_value_heads", "rope_parameters"):
            del settings[name]
        return {**{new: settings.pop(old) for new, old in NAMES.items()}, **settings}
