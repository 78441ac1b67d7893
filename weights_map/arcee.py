"""Weight table of Arcee: Llama's, without the gate of the MLP."""

from collections.abc import Mapping

from weights_map.llama import (
    ATTENTION_BIASES,
    HEAD_NORMS,
    PAIRS,
    PLAIN,
    gguf_architecture,
    relative,
)

GATE = "layers.{}.mlp.gate_proj"

table = relative("arcee", without=(f"{GATE}.weight", f"{GATE}.bias"))


def encode(config: Mapping[str, object]) -> Mapping[str, object]:
    """ValueError: the model has biases."""
    if config["attention_bias"] or config["mlp_bias"]:
        raise ValueError("llama.cpp's arcee supports no biases, but this model has them")
    return {}


gguf = (
    gguf_architecture(
        "arcee",
        *PAIRS,
        encode=encode,
        without=(*ATTENTION_BIASES, *PLAIN, *HEAD_NORMS, f"model.{GATE}.weight"),
    ),
)
