"""Weight table of StarCoder 2: Llama's, with biases of the norms and other names of the MLP."""

from weights_map.engine import Row
from weights_map.llama import NORM_BIASES, relative

table = relative(
    "starcoder2",
    *NORM_BIASES,
    Row("model.layers.{}.mlp.c_fc.weight", "layers.{}.mlp.up_proj.weight"),
    Row("model.layers.{}.mlp.c_fc.bias", "layers.{}.mlp.up_proj.bias", optional=True),
    Row("model.layers.{}.mlp.c_proj.weight", "layers.{}.mlp.down_proj.weight"),
    Row("model.layers.{}.mlp.c_proj.bias", "layers.{}.mlp.down_proj.bias", optional=True),
    without=("layers.{}.mlp.gate_proj.weight", "layers.{}.mlp.gate_proj.bias"),
)
