"""Granite 3, and Granite 4 with attention in all layers."""

from typing import Any

from cases import Cases

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
}
FACTORS = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.7,
    "logits_scaling": 0.6,
}
# The Mamba layers that transformers' config checks; the model has none.
MAMBA = {
    "mamba_n_heads": 4,
    "mamba_expand": 2,
    "num_local_experts": 0,
    "shared_intermediate_size": 36,
}
FOUR = {**MAMBA, "layer_types": ["attention"] * 2, "position_embedding_type": "rope", **FACTORS}
CASES: dict[str, dict[str, Any]] = {
    "granite": FACTORS,
    "granite-embedding": {"embedding_multiplier": 12.0, "tie_word_embeddings": True, "attention_multiplier": 0.125},
    "granite-attention": {"attention_multiplier": 0.05, "num_key_value_heads": None},
    "granite-residual": {"residual_multiplier": 0.22, "attention_multiplier": 0.3, "num_key_value_heads": 1},
    "granite-logits": {"logits_scaling": 0.4, "attention_multiplier": 0.3, "rope_theta": 50.0},
    "granite-biases": {**FACTORS, "attention_bias": True, "mlp_bias": True},
    "granitemoehybrid": FOUR,
    "granitemoehybrid-tied": {**FOUR, "tie_word_embeddings": True, "attention_bias": True},
    "granitemoehybrid-no-positions": {**FOUR, "position_embedding_type": "nope", "rms_norm_eps": 0.1},
    "granitemoehybrid-absent-positions": {**MAMBA, "layer_types": ["full_attention"] * 2,
                                          "attention_multiplier": 0.3},
}  # fmt: skip
REFUSED = (
    ({"residual_multiplier": -1.0}, "residual_multiplier cannot be -1.0"),
    (
        {"model_type": "granitemoehybrid", "layer_types": ["mamba", "attention"]},
        "layer_types has other layers",
    ),
    ({"model_type": "granitemoehybrid", "num_local_experts": 8}, "num_local_experts to 8"),
)
PUBLISHED = {
    "ibm-granite/granite-3.3-2b-base": 2_533_525_504,
    "ibm-granite/granite-4.0-micro": 3_402_836_480,
    "ibm-granite/granite-4.0-1b": 1_631_750_144,
    "ibm-granite/granite-4.0-350m": 352_379_904,
}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("granite", "granitemoehybrid"),
    gradients=("granite-biases",),
    published=PUBLISHED,
    refused=REFUSED,
)
