"""Weight table of Nemotron: Llama's, with biases of the norms, and without the gate of the MLP.

GGUF stores the weights of the norms, the Hub their differences from 1.
"""

from weights_map.engine import Row, same
from weights_map.gguf import subtract_one
from weights_map.llama import GGUF_NORM_BIASES, HEAD_NORMS, NORM_BIASES, gguf_architecture, relative

GATE = "layers.{}.mlp.gate_proj"

table = relative("nemotron", *NORM_BIASES, without=(f"{GATE}.weight", f"{GATE}.bias"))
gguf = (
    gguf_architecture(
        "nemotron",
        same,
        same,
        *GGUF_NORM_BIASES,
        *(
            Row(
                str(row.hub).replace(".bias", ".weight"),
                str(row.native).replace(".bias", ".weight"),
                subtract_one,
            )
            for row in GGUF_NORM_BIASES
        ),
        without=(*HEAD_NORMS, f"model.{GATE}.weight", f"model.{GATE}.bias"),
        settings={
            "attention.layer_norm_epsilon": "norm_eps",
            "rope.dimension_count": "partial_rotary_factor",
        },
        flags={"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"},
    ),
)
