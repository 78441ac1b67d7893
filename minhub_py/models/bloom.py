"""BLOOM: a decoder with ALiBi, a bias of the attention scores by the distance, instead of positions.

Sources
    BigScience Workshop (2022), "BLOOM"; Press et al. (2022), "Train Short, Test Long", for ALiBi.
    Hub docs: `transformers`, model_type "bloom".

Differences from similar architectures
    Llama       has rotary embeddings, RMS norms, no biases and a gated MLP. BLOOM norms its embeddings.
    GPT-NeoX    has rotary embeddings; q, k and v are fused in the same order in the Hub's files.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from minhub_py.models.llama import Llama
from minhub_py.models.structure import RelativeConfig, Structure

NAMES = {"n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "seq_length": "max_position_embeddings"}


class Bloom(Llama):
    config: "BloomConfig"


@dataclass(frozen=True)
class BloomConfig(RelativeConfig):
    """The settings of config.json that change the result. Defaults: BLOOM 560M.

    max_position_embeddings is seq_length of config.json. ALiBi has no maximum; the models have seen 2,048 tokens.
    """

    TITLE: ClassVar = "BLOOM"
    MODEL_TYPE: ClassVar = "bloom"
    ARCHITECTURE: ClassVar = "BloomForCausalLM"
    ALIASES: ClassVar = {"bloom": {**NAMES, "n_embed": "hidden_size"}}
    ONLY_VALUE: ClassVar = {"apply_residual_connection_post_layernorm": False}
    NO_EFFECT: ClassVar = frozenset(
        "pretraining_tp slow_but_exact attention_softmax_in_fp32 bias_dropout_fusion masked_softmax_fusion "
        "offset_alibi skip_bias_add skip_bias_add_qkv n_inner".split()
    )

    vocab_size: int = 250880
    hidden_size: int = 1024
    num_hidden_layers: int = field(default=24, metadata={"range": (1, 4096)})
    num_attention_heads: int = 16
    num_key_value_heads: int | None = field(default=None, metadata={"choices": (None,)})
    intermediate_size: int | None = field(default=None, metadata={"choices": (None,)})  # type: ignore[assignment]
    hidden_act: str = field(default="gelu_pytorch_tanh", metadata={"choices": ("gelu_pytorch_tanh",)})
    layer_norm_epsilon: float = 1e-5
    hidden_dropout: float = 0.0
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    pad_token_id: int | None = 3

    @property
    def inner(self) -> int:
        """The width of the MLP."""
        return 4 * self.hidden_size

    @property
    def structure(self) -> Structure:
        """What distinguishes this model from Llama."""
        return self.declared(
            ropes=[None] * self.num_hidden_layers, norm="layer", eps=self.layer_norm_epsilon, gated=False,
            qkv_bias=True, output_bias=True, mlp_bias=True, dropout=self.hidden_dropout, embedding_norm=True,
            alibi=True,
        )  # fmt: skip

    def to_hub(self) -> dict[str, Any]:
        """The config.json of this model for transformers."""
        settings = super().to_hub()
        for name in ("num_key_value_heads", "intermediate_size", "hidden_act", "rope_parameters"):
            del settings[name]
        return {**{new: settings.pop(old) for new, old in NAMES.items()}, **settings}
