"""Weight table of Phi-3 and Phi-4: Llama's, with fused tensors."""

from collections.abc import Mapping

from weights_map.engine import Row, drop, same, split, split_by
from weights_map.llama import ATTENTION_BIASES, HEAD_NORMS, PLAIN, gguf_architecture, relative

QKV = tuple(f"layers.{{}}.self_attn.{name}_proj.weight" for name in "qkv")
GATE_UP = ("layers.{}.mlp.gate_proj.weight", "layers.{}.mlp.up_proj.weight")
UNFUSED = tuple(f"model.{name}" for name in (*QKV, *GATE_UP))

table = relative(
    "phi3",
    Row("model.layers.{}.self_attn.qkv_proj.weight", QKV, split_by("qkv_sizes")),
    Row("model.layers.{}.mlp.gate_up_proj.weight", GATE_UP, split(2)),
)


def derive(settings: Mapping[str, object]) -> Mapping[str, object]:
    """A window of 0 means no window."""
    return {"sliding_window": settings.get("sliding_window") or None}


def encode(config: Mapping[str, object]) -> Mapping[str, object]:
    """No window is written as 0, as llama.cpp marks Phi-4."""
    return {"attention.sliding_window": config["sliding_window"] or 0}


gguf = (
    gguf_architecture(
        "phi3",
        same,
        same,
        Row("blk.{}.attn_qkv.weight", "model.layers.{}.self_attn.qkv_proj.weight"),
        Row("blk.{}.ffn_up.weight", "model.layers.{}.mlp.gate_up_proj.weight"),
        # The frequency factors are settings on the Hub.
        Row("rope_factors_long.weight", (), drop),
        Row("rope_factors_short.weight", (), drop),
        without=(*PLAIN, *ATTENTION_BIASES, *HEAD_NORMS, *UNFUSED),
        settings={
            "attention.sliding_window": "sliding_window",
            "rope.dimension_count": "partial_rotary_factor",
            "rope.scaling.attn_factor": "attention_factor",
        },
        derive=derive,
        encode=encode,
        flags={},
    ),
)
