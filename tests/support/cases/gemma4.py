"""The text model of Gemma 4."""

from typing import Any

from cases import Cases

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "global_head_dim": 16,
    "max_position_embeddings": 96,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 61,
    "sliding_window": 7,
}
FULL, SLIDING = "full_attention", "sliding_attention"
MIXED = {"layer_types": [SLIDING, FULL, SLIDING, FULL]}
# transformers 5.23 does not compute a model with shared keys and without inputs per layer.
INPUTS = {**MIXED, "hidden_size_per_layer_input": 12}
SHARED = {**INPUTS, "num_kv_shared_layers": 2}
EQUAL = {**MIXED, "attention_k_eq_v": True, "num_global_key_value_heads": 1}
EXPERTS = {
    **EQUAL,
    "enable_moe_block": True,
    "num_experts": 6,
    "top_k_experts": 2,
    "moe_intermediate_size": 20,
}
LINEAR = {"rope_type": "linear", "rope_theta": 50.0, "factor": 3.0}

CASES: dict[str, dict[str, Any]] = {
    "gemma4_text": {**SHARED, "final_logit_softcapping": 9.0, "use_double_wide_mlp": True},
    "gemma4_text-dense": {**EQUAL, "final_logit_softcapping": 30.0},
    "gemma4_text-inputs": {**INPUTS, "vocab_size_per_layer_input": 70, "tie_word_embeddings": False},
    "gemma4_text-all-sliding-but-one": {"num_hidden_layers": 3},
    "gemma4_text-long-sharing": {
        **INPUTS, "num_hidden_layers": 7, "num_kv_shared_layers": 4, "sliding_window": 1, "rms_norm_eps": 0.1,
        "layer_types": [FULL, SLIDING, SLIDING, SLIDING, FULL, SLIDING, FULL],
    },
    "gemma4_text-wide-inputs": {**SHARED, "hidden_size_per_layer_input": 40, "use_double_wide_mlp": True},
    "gemma4_text-biases": {**SHARED, "attention_bias": True, "num_key_value_heads": 1, "attention_dropout": 0.5},
    "gemma4_text-equal-shared": {**EQUAL, **SHARED, "attention_bias": True},
    "gemma4_text-exact-gelu": {**INPUTS, "hidden_activation": "gelu", "global_head_dim": 8},
    "gemma4_text-ropes": {**MIXED, "rope_parameters": {
        FULL: {"rope_type": "proportional", "rope_theta": 300.0, "partial_rotary_factor": 0.6, "factor": 2.0},
        SLIDING: LINEAR,
    }},
    "gemma4_text-experts": {**EXPERTS, "final_logit_softcapping": 30.0},
    "gemma4_text-experts-one": {**EXPERTS, "top_k_experts": 1, "hidden_activation": "gelu"},
    "gemma4_text-experts-all": {**EXPERTS, "top_k_experts": 6, "intermediate_size": 16},
    "gemma4_text-experts-many": {**EXPERTS, "num_experts": 40, "top_k_experts": 9, "moe_intermediate_size": 8},
    "gemma4_text-experts-inputs": {**EXPERTS, **INPUTS, "tie_word_embeddings": False},
    "gemma4_text-experts-shared": {**EXPERTS, **SHARED, "use_double_wide_mlp": True, "attention_bias": True},
    "gemma4_text-experts-eps": {**EXPERTS, "rms_norm_eps": 0.3, "sliding_window": 1},
    "gemma4_text-experts-own-values": {**EXPERTS, "attention_k_eq_v": False, "num_global_key_value_heads": None},
}  # fmt: skip
REFUSED = (
    (
        {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2},
        "moe_intermediate_size are required",
    ),
    ({**EXPERTS, "top_k_experts": 7}, "cannot be more than num_experts"),
    ({"use_bidirectional_attention": "all"}, "sets use_bidirectional_attention to 'all'"),
    ({"num_kv_shared_layers": 3}, "leaves no layer of full_attention with its own keys"),
    ({"num_key_value_heads": 3}, "must be a multiple of the KV heads"),
    ({"global_head_dim": 7}, "must be even"),
    ({"vocab_size_per_layer_input": 60}, "cannot be less than vocab_size"),
    (
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}},
        "must contain settings for full_attention and",
    ),
    (
        {"rope_parameters": {SLIDING: {"rope_type": "default", "partial_rotary_factor": 0.5}}},
        "has 'partial_rotary",
    ),
    (
        {"per_layer_config": {"0": {"head_dim": 12}}},
        "per_layer_config must contain the same head_dim",
    ),
    ({"layer_types": [SLIDING]}, "for each of 4 layers"),
)
PUBLISHED = {
    "google/gemma-4-E2B": 4_628_569_344,
    "google/gemma-4-E4B": 7_463_013_376,
    "google/gemma-4-26B-A4B": 25_233_141_760,
    "google/gemma-4-31B": 30_697_345_280,
}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("gemma4_text", "gemma4_text-dense", "gemma4_text-experts"),
    gradients=("gemma4_text-experts", "gemma4_text-long-sharing", "gemma4_text-equal-shared"),
    published=PUBLISHED,
    refused=REFUSED,
)
