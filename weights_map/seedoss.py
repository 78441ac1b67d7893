"""Weight table of Seed-OSS: Llama's."""

from collections.abc import Mapping

from weights_map.engine import Row, same
from weights_map.llama import gguf_architecture, relative

table = relative("seed_oss")


def encode(config: Mapping[str, object]) -> Mapping[str, object]:
    """ValueError: the model has other biases than of q, k and v."""
    if config["attention_out_bias"] or config["mlp_bias"]:
        raise ValueError("llama.cpp's seed_oss supports biases of q, k and v only")
    return {}


gguf = (
    gguf_architecture(
        "seed_oss",
        same,
        same,
        Row("blk.{}.post_attention_norm.weight", "model.layers.{}.post_attention_layernorm.weight"),
        encode=encode,
        flags={
            "attention_bias": "blk.0.attn_q.bias",
            "attention_out_bias": "blk.0.attn_output.bias",
            "mlp_bias": "blk.0.ffn_gate.bias",
        },
    ),
)
