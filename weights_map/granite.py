"""Weight tables of Granite 3 and 4: Llama's, with other names of the MLP in Granite 4."""

from collections.abc import Mapping

from weights_map.engine import Row, split
from weights_map.llama import BIASES, PAIRS, gguf_architecture, relative

tables = (
    relative("granite"),
    relative(
        "granitemoehybrid",
        Row(
            "model.layers.{}.shared_mlp.input_linear.weight",
            ("layers.{}.mlp.gate_proj.weight", "layers.{}.mlp.up_proj.weight"),
            split(2),
        ),
        Row("model.layers.{}.shared_mlp.output_linear.weight", "layers.{}.mlp.down_proj.weight"),
    ),
)


def encode(config: Mapping[str, object]) -> Mapping[str, object]:
    """ValueError: the model has no positions."""
    if config["model_type"] == "granitemoehybrid" and config["position_embedding_type"] != "rope":
        raise ValueError("llama.cpp's granite requires rotary embeddings, but this model has none")
    return {}


gguf = (
    gguf_architecture(
        "granite",
        *PAIRS,
        model_types=("granite", "granitemoehybrid"),
        settings={
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "logit_scale": "logits_scaling",
        },
        encode=encode,
        flags=BIASES,
    ),
)
