"""Weight table of Jais 2: Llama's, with biases of the norms, and without the gate of the MLP."""

from collections.abc import Mapping

from weights_map.engine import same
from weights_map.llama import GGUF_NORM_BIASES, HEAD_NORMS, NORM_BIASES, gguf_architecture, relative

GATE = "layers.{}.mlp.gate_proj"

table = relative("jais2", *NORM_BIASES, without=(f"{GATE}.weight", f"{GATE}.bias"))


def encode(config: Mapping[str, object]) -> Mapping[str, object]:
    """ValueError: the model has no biases."""
    if not (config["attention_bias"] and config["mlp_bias"]):
        raise ValueError("llama.cpp's jais2 requires biases, but this model has none")
    return {}


gguf = (
    gguf_architecture(
        "jais2",
        same,
        same,
        *GGUF_NORM_BIASES,
        encode=encode,
        without=(*HEAD_NORMS, f"model.{GATE}.weight", f"model.{GATE}.bias"),
        settings={"attention.layer_norm_epsilon": "layer_norm_eps"},
    ),
)
