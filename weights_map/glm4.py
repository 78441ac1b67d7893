"""Weight table of GLM-4: Llama's, with four norms in each block and a fused MLP."""

from weights_map.engine import Row, same, split
from weights_map.llama import HEAD_NORMS, PLAIN, gguf_architecture, relative
from weights_map.phi3 import GATE_UP

table = relative(
    "glm4",
    Row(
        "model.layers.{}.post_self_attn_layernorm.weight", "layers.{}.attention_output_norm.weight"
    ),
    Row("model.layers.{}.post_mlp_layernorm.weight", "layers.{}.mlp_output_norm.weight"),
    Row("model.layers.{}.mlp.gate_up_proj.weight", GATE_UP, split(2)),
)

gguf = (
    gguf_architecture(
        "glm4",
        same,
        same,
        Row("blk.{}.post_attention_norm.weight", "model.layers.{}.post_self_attn_layernorm.weight"),
        Row("blk.{}.post_ffw_norm.weight", "model.layers.{}.post_mlp_layernorm.weight"),
        Row("blk.{}.ffn_up.weight", "model.layers.{}.mlp.gate_up_proj.weight"),
        without=(*PLAIN, *HEAD_NORMS, "model.layers.{}.mlp.gate_proj.weight"),
        settings={"rope.dimension_count": "partial_rotary_factor"},
        flags={"attention_bias": "blk.0.attn_q.bias"},
    ),
)
