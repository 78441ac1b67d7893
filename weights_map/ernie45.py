"""Weight table of ERNIE 4.5: Llama's."""

from collections.abc import Mapping

from weights_map.llama import gguf_architecture, relative

table = relative("ernie4_5")


def encode(config: Mapping[str, object]) -> Mapping[str, object]:
    """ValueError: the model has biases."""
    if config["use_bias"]:
        raise ValueError("llama.cpp's ernie4_5 supports no biases, but this model has them")
    return {}


gguf = (gguf_architecture("ernie4_5", encode=encode, flags={"use_bias": "blk.0.attn_q.bias"}),)
