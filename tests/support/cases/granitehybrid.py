"""Granite 4, with attention, Mamba layers and experts."""

from typing import Any

from cases import Cases

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "shared_intermediate_size": 36,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "num_local_experts": 0,
    "mamba_n_heads": 4,
    "mamba_d_state": 8,
    "layer_types": ["mamba", "attention", "mamba"],
}
FACTORS = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.7,
    "logits_scaling": 0.6,
}
EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 12}
ATTENTION = {"layer_types": ["attention"] * 3, "position_embedding_type": "rope", **FACTORS}
CASES: dict[str, dict[str, Any]] = {
    "granitemoehybrid": FACTORS,
    "granitemoehybrid-experts": {**FACTORS, **EXPERTS, "position_embedding_type": "rope", "rope_theta": 50.0},
    "granitemoehybrid-all-experts": {**EXPERTS, "num_experts_per_tok": 6, "attention_multiplier": 0.3},
    "granitemoehybrid-groups": {"mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_head": 12, "mamba_expand": 3,
                                "mamba_d_conv": 3, "mamba_conv_bias": False, "mamba_proj_bias": True,
                                "attention_multiplier": 0.3, "time_step_limit": [0.0, float("inf")]},
    "granitemoehybrid-last": {"layer_types": ["mamba", "mamba", "attention"], "tie_word_embeddings": True,
                              "rms_norm_eps": 0.1},
    "granitemoehybrid-attention": ATTENTION,
    "granitemoehybrid-tied": {**ATTENTION, "tie_word_embeddings": True, "attention_bias": True},
    "granitemoehybrid-no-positions": {**ATTENTION, "position_embedding_type": "nope", "rms_norm_eps": 0.1},
    "granitemoehybrid-newer-names": {"layer_types": ["full_attention", "linear_attention", "full_attention"],
                                     "attention_multiplier": 0.3},
}  # fmt: skip
REFUSED = (
    ({"layer_types": ["mamba", "window", "mamba"]}, "layer_types must contain mamba or"),
    ({"mamba_n_heads": 5}, r"mamba_n_heads \(5\) must divide mamba_expand · hidden_size \(64\)"),
    (
        {"num_local_experts": 4, "num_experts_per_tok": 5},
        r"must be between 1 and num_local_experts",
    ),
    ({"mamba_d_head": "half"}, 'mamba_d_head must be a number or "auto"'),
    ({"time_step_limit": [0.001, 0.1]}, "no limits"),
)
PUBLISHED = {
    "ibm-granite/granite-4.0-micro": 3_402_836_480,
    "ibm-granite/granite-4.0-1b": 1_631_750_144,
    "ibm-granite/granite-4.0-350m": 352_379_904,
    "ibm-granite/granite-4.0-h-350m": 340_332_224,
    "ibm-granite/granite-4.0-h-1b": 1_461_538_368,
    "ibm-granite/granite-4.0-h-micro": 3_191_396_096,
    "ibm-granite/granite-4.0-h-tiny": 6_939_037_248,
}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("granitemoehybrid-experts",),
    gradients=("granitemoehybrid", "granitemoehybrid-experts", "granitemoehybrid-groups"),
    published=PUBLISHED,
    refused=REFUSED,
)
