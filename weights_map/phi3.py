"""Weight table of Phi-3 and Phi-4: Llama's, with fused tensors."""

from weights_map.engine import Row, split, split_by
from weights_map.llama import relative

QKV = tuple(f"layers.{{}}.self_attn.{name}_proj.weight" for name in "qkv")
GATE_UP = ("layers.{}.mlp.gate_proj.weight", "layers.{}.mlp.up_proj.weight")

table = relative(
    "phi3",
    Row("model.layers.{}.self_attn.qkv_proj.weight", QKV, split_by("qkv_sizes")),
    Row("model.layers.{}.mlp.gate_up_proj.weight", GATE_UP, split(2)),
)
