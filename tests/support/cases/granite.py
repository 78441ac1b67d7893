"""Granite 3."""

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
CASES: dict[str, dict[str, Any]] = {
    "granite": FACTORS,
    "granite-embedding": {"embedding_multiplier": 12.0, "tie_word_embeddings": True, "attention_multiplier": 0.125},
    "granite-attention": {"attention_multiplier": 0.05, "num_key_value_heads": None},
    "granite-residual": {"residual_multiplier": 0.22, "attention_multiplier": 0.3, "num_key_value_heads": 1},
    "granite-logits": {"logits_scaling": 0.4, "attention_multiplier": 0.3, "rope_theta": 50.0},
    "granite-biases": {**FACTORS, "attention_bias": True, "mlp_bias": True},
}  # fmt: skip
REFUSED = (({"residual_multiplier": -1.0}, "residual_multiplier cannot be -1.0"),)
PUBLISHED = {
    "ibm-granite/granite-3.3-2b-base": 2_533_525_504,
}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("granite",),
    gradients=("granite-biases",),
    published=PUBLISHED,
    refused=REFUSED,
)
