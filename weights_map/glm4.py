"""Weight table of GLM-4: Llama's, with four norms in each block and a fused MLP."""

from weights_map.engine import Row, split
from weights_map.llama import relative
from weights_map.phi3 import GATE_UP

table = relative(
    "glm4",
    Row("model.layers.{}.post_self_attn_layernorm.weight", "layers.{}.attention_output_norm.weight"),
    Row("model.layers.{}.post_mlp_layernorm.weight", "layers.{}.mlp_output_norm.weight"),
    Row("model.layers.{}.mlp.gate_up_proj.weight", GATE_UP, split(2)),
)
