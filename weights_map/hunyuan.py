"""Weight table of Hunyuan: Llama's, with other names of the norms of q and k."""

from collections.abc import Mapping

from weights_map.engine import HubConfig, Row, same
from weights_map.llama import gguf_architecture, relative

table = relative(
    "hunyuan_v1_dense",
    Row("model.layers.{}.self_attn.query_layernorm.weight", "layers.{}.self_attn.q_norm.weight"),
    Row("model.layers.{}.self_attn.key_layernorm.weight", "layers.{}.self_attn.k_norm.weight"),
)


def encode(config: HubConfig) -> Mapping[str, object]:
    """rope_theta with alpha, as in llama.cpp's converter."""
    rope, size = config["rope_parameters"], config["head_dim"]
    alpha = rope.get("alpha") or 1.0
    return {
        "rope.freq_base": rope["rope_theta"] * alpha ** (size / (size - 2)),
        "rope.scaling.type": None,
        "rope.scaling.factor": None,
    }


gguf = (
    gguf_architecture(
        "hunyuan-dense",
        same,
        same,
        Row("blk.{}.attn_q_norm.weight", "model.layers.{}.self_attn.query_layernorm.weight"),
        Row("blk.{}.attn_k_norm.weight", "model.layers.{}.self_attn.key_layernorm.weight"),
        model_types=("hunyuan_v1_dense",),
        encode=encode,
        flags={"attention_bias": "blk.0.attn_q.bias"},
    ),
)
