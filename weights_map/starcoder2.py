"""Weight table of StarCoder 2: Llama's, with biases of the norms and other names of the MLP."""

from weights_map.engine import Row, same
from weights_map.llama import (
    GGUF_NORM_BIASES,
    HEAD_NORMS,
    NORM_BIASES,
    PLAIN,
    gguf_architecture,
    relative,
)

table = relative(
    "starcoder2",
    *NORM_BIASES,
    Row("model.layers.{}.mlp.c_fc.weight", "layers.{}.mlp.up_proj.weight"),
    Row("model.layers.{}.mlp.c_fc.bias", "layers.{}.mlp.up_proj.bias", optional=True),
    Row("model.layers.{}.mlp.c_proj.weight", "layers.{}.mlp.down_proj.weight"),
    Row("model.layers.{}.mlp.c_proj.bias", "layers.{}.mlp.down_proj.bias", optional=True),
    without=("layers.{}.mlp.gate_proj.weight", "layers.{}.mlp.gate_proj.bias"),
)

gguf = (
    gguf_architecture(
        "starcoder2",
        same,
        same,
        *GGUF_NORM_BIASES,
        Row("blk.{}.ffn_up.weight", "model.layers.{}.mlp.c_fc.weight"),
        Row("blk.{}.ffn_up.bias", "model.layers.{}.mlp.c_fc.bias", optional=True),
        Row("blk.{}.ffn_down.weight", "model.layers.{}.mlp.c_proj.weight"),
        Row("blk.{}.ffn_down.bias", "model.layers.{}.mlp.c_proj.bias", optional=True),
        without=(*PLAIN, *HEAD_NORMS, "model.layers.{}.mlp.gate_proj.weight"),
        settings={"attention.layer_norm_epsilon": "norm_epsilon"},
        # The files lack the window of 4096 that the published models have.
        derive=lambda settings: {"sliding_window": 4096},
        flags={"use_bias": "blk.0.attn_q.bias"},
    ),
)
