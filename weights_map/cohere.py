"""Weight tables of Command R and R7B: Llama's, with one norm in each block."""

from collections.abc import Mapping

from weights_map.llama import HEAD_NORMS, PLAIN, gguf_architecture, relative
from weights_map.olmo2 import WINDOWS, encode, types_of

tables = tuple(
    relative(model_type, without=("layers.{}.post_attention_layernorm.weight",))
    for model_type in ("cohere", "cohere2")
)

SETTINGS = {"attention.layer_norm_epsilon": "layer_norm_eps", "logit_scale": "logit_scale"}
WITHOUT = (*PLAIN, "model.layers.{}.post_attention_layernorm.weight")


def encode_cohere(config: Mapping[str, object]) -> Mapping[str, object]:
    """ValueError: the head is not tied."""
    if not config["tie_word_embeddings"]:
        raise ValueError(
            "llama.cpp's Command R requires a tied head, but this model has a separate one"
        )
    return encode(config) if config["model_type"] == "cohere2" else {}


gguf = (
    gguf_architecture(
        "command-r",
        model_types=("cohere",),
        without=WITHOUT,
        settings=SETTINGS,
        encode=encode_cohere,
        flags={"attention_bias": "blk.0.attn_q.bias", "use_qk_norm": "blk.0.attn_q_norm.weight"},
    ),
    gguf_architecture(
        "cohere2",
        without=(*WITHOUT, *HEAD_NORMS),
        settings={**SETTINGS, **WINDOWS},
        derive=lambda settings: {"layer_types": types_of(settings)},
        encode=encode_cohere,
        flags={"attention_bias": "blk.0.attn_q.bias"},
    ),
)
