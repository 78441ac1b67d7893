"""Weight table of Hunyuan: Llama's, with other names of the norms of q and k."""

from weights_map.engine import Row
from weights_map.llama import relative

table = relative(
    "hunyuan_v1_dense",
    Row("model.layers.{}.self_attn.query_layernorm.weight", "layers.{}.self_attn.q_norm.weight"),
    Row("model.layers.{}.self_attn.key_layernorm.weight", "layers.{}.self_attn.k_norm.weight"),
)
