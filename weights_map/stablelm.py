"""Weight table of StableLM: Llama's, with biases of the norms, and a tensor for the norm of each head of q and k."""

from dataclasses import replace

from weights_map.engine import Row, stack
from weights_map.llama import NORM_BIASES, relative

SECOND = "layers.{}.post_attention_layernorm"  # absent in parallel blocks

table = relative(
    "stablelm",
    *(replace(row, optional=row.native == f"{SECOND}.bias") for row in NORM_BIASES),
    Row(f"model.{SECOND}.weight", f"{SECOND}.weight", optional=True),
    Row("model.layers.{}.self_attn.q_layernorm.norms.{}.weight", "layers.{}.self_attn.q_norm.weight",
        stack("num_attention_heads"), optional=True),
    Row("model.layers.{}.self_attn.k_layernorm.norms.{}.weight", "layers.{}.self_attn.k_norm.weight",
        stack("kv_heads"), optional=True),
)  # fmt: skip
