"""Weight table of StableLM: Llama's, with biases of the norms, and a tensor for the norm of each
head of q and k.
"""

from dataclasses import replace

from weights_map.engine import Row, same, stack
from weights_map.gguf import inverse
from weights_map.llama import (
    GGUF_NORM_BIASES,
    HEAD_NORMS,
    NORM_BIASES,
    PLAIN,
    gguf_architecture,
    relative,
)

SECOND = "layers.{}.post_attention_layernorm"  # absent in parallel blocks

table = relative(
    "stablelm",
    *(replace(row, optional=row.native == f"{SECOND}.bias") for row in NORM_BIASES),
    Row(f"model.{SECOND}.weight", f"{SECOND}.weight", optional=True),
    Row(
        "model.layers.{}.self_attn.q_layernorm.norms.{}.weight",
        "layers.{}.self_attn.q_norm.weight",
        stack("num_attention_heads"),
        optional=True,
    ),
    Row(
        "model.layers.{}.self_attn.k_layernorm.norms.{}.weight",
        "layers.{}.self_attn.k_norm.weight",
        stack("kv_heads"),
        optional=True,
    ),
)

gguf = (
    gguf_architecture(
        "stablelm",
        same,
        same,
        *(replace(row, optional="ffn_norm" in str(row.hub)) for row in GGUF_NORM_BIASES),
        Row("blk.{}.ffn_norm.weight", f"model.{SECOND}.weight", optional=True),
        Row(
            "blk.{}.attn_q_norm.weight",
            "model.layers.{}.self_attn.q_layernorm.norms.{}.weight",
            inverse(stack("num_attention_heads")),
            optional=True,
        ),
        Row(
            "blk.{}.attn_k_norm.weight",
            "model.layers.{}.self_attn.k_layernorm.norms.{}.weight",
            inverse(stack("num_key_value_heads")),
            optional=True,
        ),
        without=(*PLAIN, *HEAD_NORMS),
        settings={
            "attention.layer_norm_epsilon": "layer_norm_eps",
            "rope.dimension_count": "partial_rotary_factor",
            "use_parallel_residual": "use_parallel_residual",
        },
        flags={"use_qkv_bias": "blk.0.attn_q.bias", "qk_layernorm": "blk.0.attn_q_norm.weight"},
    ),
)
