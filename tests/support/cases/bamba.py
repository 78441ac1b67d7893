"""Bamba, with attention and Mamba layers."""

from typing import Any

from cases import Cases

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 36,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "mamba_n_heads": 4,
    "mamba_d_state": 8,
    "attn_layer_indices": [1],
}
CASES: dict[str, dict[str, Any]] = {
    "bamba": {},
    "bamba-tied": {"tie_word_embeddings": True, "rms_norm_eps": 0.1, "num_key_value_heads": None},
    "bamba-biases": {"attention_bias": True, "mlp_bias": True, "mamba_proj_bias": True, "mamba_conv_bias": False},
    "bamba-groups": {"mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_head": 12, "mamba_expand": 3, "mamba_d_conv": 3,
                     "time_step_limit": [0.0, float("inf")], "attn_layer_indices": [0, 2]},
    "bamba-rotary": {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}, "hidden_act": "relu"},
    "bamba-scaled": {"attn_layer_indices": [0, 1, 2], "partial_rotary_factor": 0.5,
                     "rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}},
    "bamba-last": {"attn_layer_indices": [2], "mamba_d_head": 16},
}  # fmt: skip
REFUSED = (
    ({"attn_layer_indices": [3]}, "attn_layer_indices must be layers from 0 to 2"),
    ({"partial_rotary_factor": 0.25}, "partial_rotary_factor must be 0.5"),
    ({"mamba_n_heads": 5}, r"mamba_n_heads \(5\) must divide mamba_expand · hidden_size \(64\)"),
    ({"time_step_limit": [0.001, 0.1]}, "no limits"),
)
PUBLISHED = {"ibm-ai-platform/Bamba-9B-v1": 9_780_235_392}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("bamba",),
    gradients=("bamba", "bamba-biases"),
    published=PUBLISHED,
    refused=REFUSED,
)
