"""Weight tables of Granite 3 and 4: Llama's, with other names of the MLP in Granite 4, Mamba layers,
and experts.
"""

from collections.abc import Mapping

from weights_map.engine import HubConfig, Row, same, split, unstack
from weights_map.hybrid import MAMBA2, hybrid
from weights_map.llama import BIASES, PAIRS, gguf_architecture, relative

LAYER, MOE = "model.layers.{}", "model.layers.{}.block_sparse_moe"
EXPERTS = "layers.{}.experts.experts"
GATE_UP, DOWN = (
    (f"{EXPERTS}.gate_proj.{{}}", f"{EXPERTS}.up_proj.{{}}"),
    f"{EXPERTS}.down_proj.{{}}",
)
# A layer has attention or Mamba, and some models have experts; the model reports missing ones.
granite4 = hybrid(
    "granitemoehybrid",
    MAMBA2,
    Row(
        f"{LAYER}.shared_mlp.input_linear.weight",
        ("layers.{}.mlp.gate_proj.weight", "layers.{}.mlp.up_proj.weight"),
        split(2),
    ),
    Row(f"{LAYER}.shared_mlp.output_linear.weight", "layers.{}.mlp.down_proj.weight"),
    # In files, and in transformers' memory
    *(
        Row(f"{MOE}.{name}.weight", "layers.{}.experts.gate.weight", same, optional=True)
        for name in ("router.layer", "router")
    ),
    *(
        Row(f"{MOE}.{name}", GATE_UP, unstack("num_experts", 2), optional=True)
        for name in ("input_linear.weight", "experts.gate_up_proj")
    ),
    *(
        Row(f"{MOE}.{name}", DOWN, unstack("num_experts"), optional=True)
        for name in ("output_linear.weight", "experts.down_proj")
    ),
)
tables = (
    relative("granite"),
    granite4,
)


def encode(config: HubConfig) -> Mapping[str, object]:
    """ValueError: the model has no positions, or layers that llama.cpp's granite lacks."""
    if config["model_type"] != "granitemoehybrid":
        return {}
    if "mamba" in config["layer_types"] or config["num_local_experts"]:
        raise ValueError("llama.cpp's granite has neither Mamba layers nor experts")
    if config["position_embedding_type"] != "rope":
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
