"""SmolLM3."""

from typing import Any

from cases import Cases

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 24,
}
CASES: dict[str, dict[str, Any]] = {
    "smollm3": {"tie_word_embeddings": False},
    "smollm3-layers": {"no_rope_layers": [0, 1, 1, 0], "num_key_value_heads": 4},
    "smollm3-interval": {"no_rope_layer_interval": 2, "rope_theta": 50.0},
    "smollm3-windows": {
        "use_sliding_window": True,
        "sliding_window": 6,
        "no_rope_layers": [1, 0, 1, 0],
    },
    "smollm3-types": {
        "use_sliding_window": True,
        "sliding_window": 5,
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "smollm3-biases": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1},
    "smollm3-yarn": {
        "rope_scaling": {key: YARN[key] for key in YARN if key != "rope_theta"},
        "rope_theta": 100.0,
    },
    "smollm3-all-rotate": {
        "no_rope_layers": [1, 1, 1, 1],
        "rms_norm_eps": 0.1,
        "hidden_act": "relu",
    },
}
REFUSED = (
    ({"no_rope_layers": [1, 0]}, "no_rope_layers must have a number for each of 4 layers"),
    (
        {"layer_types": ["full_attention"]},
        "layer_types must contain full_attention or sliding_attention",
    ),
)
PUBLISHED = {"HuggingFaceTB/SmolLM3-3B": 3_075_098_624}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("smollm3-windows",),
    gradients=("smollm3-biases",),
    published=PUBLISHED,
    refused=REFUSED,
)
