"""Falcon H1, with attention and Mamba in each layer."""

from typing import Any

from cases import Cases

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "mamba_d_ssm": 48,
    "mamba_n_heads": 4,
    "mamba_d_state": 8,
}
FACTORS = {
    "embedding_multiplier": 3.0,
    "lm_head_multiplier": 0.6,
    "mlp_multipliers": [0.8, 0.7],
    "key_multiplier": 0.4,
    "attention_in_multiplier": 1.3,
    "attention_out_multiplier": 0.9,
    "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.6,
    "ssm_multipliers": [0.7, 0.5, 0.9, 1.5, 0.3],
}
CASES: dict[str, dict[str, Any]] = {
    "falcon_h1": FACTORS,
    "falcon_h1-plain": {"mamba_d_ssm": None, "num_key_value_heads": None, "rms_norm_eps": 0.1,
                        "mlp_expansion_factor": 8},
    "falcon_h1-biases": {**FACTORS, "attention_bias": True, "mlp_bias": True, "mamba_proj_bias": True,
                         "projectors_bias": True, "mamba_conv_bias": False},
    "falcon_h1-output-bias": {"projectors_bias": True, "tie_word_embeddings": True, "mlp_multipliers": [0.5, 1.0]},
    "falcon_h1-norm": {**FACTORS, "mamba_rms_norm": True, "mamba_norm_before_gate": False, "mamba_n_groups": 2,
                       "mamba_d_conv": 3, "mamba_d_head": 12, "time_step_limit": [0.0, float("inf")]},
    "falcon_h1-heads": {"head_dim": 12, "mamba_d_ssm": None, "mamba_expand": 3, "mamba_norm_before_gate": False,
                        "rope_parameters": {"rope_type": "default", "rope_theta": 1e11}, "hidden_act": "relu"},
}  # fmt: skip
REFUSED = (
    ({"mamba_rms_norm": True}, "mamba_norm_before_gate must be false"),
    ({"ssm_multipliers": [1.0]}, "ssm_multipliers must be 5 numbers"),
    ({"mamba_n_heads": 5}, r"must divide mamba_d_ssm, or mamba_expand · hidden_size, \(48\)"),
    ({"time_step_limit": [0.001, 0.1]}, "no limits"),
)
PUBLISHED = {"tiiuae/Falcon-H1-0.5B-Base": 521_411_104}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("falcon_h1",),
    gradients=("falcon_h1", "falcon_h1-norm"),
    published=PUBLISHED,
    refused=REFUSED,
)
