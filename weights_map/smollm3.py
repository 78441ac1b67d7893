"""Weight table of SmolLM3: Llama's."""

from collections.abc import Mapping

from weights_map.engine import HubConfig
from weights_map.llama import BIASES, PAIRS, gguf_architecture, relative

table = relative("smollm3")


def encode(config: HubConfig) -> Mapping[str, object]:
    """ValueError: the files have no pattern of the layers without rotary embedding: it is each
    fourth.
    """
    layers, pattern = config["num_hidden_layers"], config["no_rope_layers"]
    usual = [int((layer + 1) % 4 != 0) for layer in range(layers)]
    interval = config["no_rope_layer_interval"]
    actual = (
        pattern[:layers]
        if pattern
        else [int((layer + 1) % interval != 0) for layer in range(layers)]
    )
    if [int(rotates != 0) for rotates in actual] != usual or config["use_sliding_window"]:
        raise ValueError(
            "llama.cpp's smollm3 requires rotary embeddings in all layers except every fourth, and no"
            " windows"
        )
    return {}


gguf = (gguf_architecture("smollm3", *PAIRS, encode=encode, flags=BIASES),)
