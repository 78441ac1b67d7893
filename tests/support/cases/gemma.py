"""Gemma, Gemma 2 and the text model of Gemma 3."""

from typing import Any

from cases import Cases

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 96,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 24,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 24,
}
MIXED = ["full_attention", "sliding_attention"]
# Small enough to have an effect: the usual caps hardly change such scores.
GEMMA2 = {"query_pre_attn_scalar": 8, "sliding_window": 7, "attn_logit_softcapping": 4.0}
GEMMA3 = {"query_pre_attn_scalar": 8, "sliding_window": 6, "sliding_window_pattern": 2}

CASES: dict[str, dict[str, Any]] = {
    "gemma": {},
    "gemma-one-group": {"num_key_value_heads": 1, "head_dim": 12},
    "gemma-wide-heads": {"head_dim": 24, "num_attention_heads": 8, "num_key_value_heads": 4},
    "gemma-gelu-is-tanh": {"hidden_act": "gelu", "hidden_activation": None},
    "gemma-relu": {"hidden_act": "relu", "hidden_activation": "silu"},
    "gemma-biases": {"attention_bias": True, "tie_word_embeddings": False, "rms_norm_eps": 0.1},
    "gemma-theta": {"rope_theta": 37.0, "num_key_value_heads": 4},
    "gemma-llama3": {"rope_parameters": LLAMA3, "attention_dropout": 0.5},
    "gemma2": GEMMA2,
    "gemma2-usual": {},
    "gemma2-no-caps": {**GEMMA2, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    "gemma2-final-cap": {**GEMMA2, "final_logit_softcapping": 9.0, "query_pre_attn_scalar": 3},
    "gemma2-layer-types": {**GEMMA2, "layer_types": MIXED, "sliding_window": 1},
    "gemma2-exact-gelu": {**GEMMA2, "hidden_activation": "gelu", "hidden_act": "silu"},
    "gemma2-biases": {**GEMMA2, "attention_bias": True, "tie_word_embeddings": False, "num_key_value_heads": 1},
    "gemma2-linear": {**GEMMA2, "rope_scaling": {"type": "linear", "factor": 3.0}, "rope_theta": 50.0,
                      "rms_norm_eps": 0.1, "attention_dropout": 0.5},
    "gemma3_text": GEMMA3,
    "gemma3_text-usual": {"num_hidden_layers": 6, "sliding_window": 9},
    "gemma3_text-layer-types": {**GEMMA3, "layer_types": MIXED, "sliding_window_pattern": None},
    "gemma3_text-thetas": {**GEMMA3, "rope_theta": 300.0, "rope_local_base_freq": 20.0},
    "gemma3_text-linear": {**GEMMA3, "rope_theta": 300.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    "gemma3_text-nested": {**GEMMA3, "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 300.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
    }},
    "gemma3_text-nested-scalings": {**GEMMA3, "rope_parameters": {"full_attention": YARN, "sliding_attention": LLAMA3}},
    "gemma3_text-nested-half": {**GEMMA3, "rope_theta": 300.0, "rope_local_base_freq": 20.0, "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 4.0},
    }},
    "gemma3_text-caps": {**GEMMA3, "attn_logit_softcapping": 4.0, "final_logit_softcapping": 9.0,
                         "query_pre_attn_scalar": 3, "head_dim": 12},
    "gemma3_text-biases": {**GEMMA3, "attention_bias": True, "tie_word_embeddings": False, "num_key_value_heads": 1,
                           "hidden_activation": "gelu", "rms_norm_eps": 0.1},
}  # fmt: skip
REFUSED = (
    ({"use_bidirectional_attention": True}, "a gemma model has no use_bidirectional_attention"),
    ({"is_causal": False}, "sets is_causal to False"),
    ({"head_dim": 7}, "must be even"),
    (
        {"num_key_value_heads": 3},
        r"num_attention_heads \(4\) must be a multiple of num_key_value_heads \(3\)",
    ),
    ({"hidden_act": "mish"}, "hidden_act 'mish' is not one of"),
    ({"sliding_window": 5}, "a gemma model has no sliding_window"),
    ({"final_logit_softcapping": 30.0}, "a gemma model has no final_logit_softcapping"),
    (
        {"rope_parameters": {"full_attention": {"rope_theta": 5.0}}},
        "rope_parameters has 'full_attention'",
    ),
    (
        {"model_type": "gemma2", "sliding_window_pattern": 3},
        "a gemma2 model has no sliding_window_pattern",
    ),
    (
        {"model_type": "gemma2", "attn_logit_softcapping": 0.0},
        "attn_logit_softcapping cannot be 0.0",
    ),
    ({"model_type": "gemma2", "sliding_window": None}, "sliding_window is null"),
    (
        {"model_type": "gemma2", "layer_types": ["chunked_attention"] * 2},
        "layer_types must contain full_attention or",
    ),
    ({"model_type": "gemma3_text", "layer_types": MIXED[:1]}, "for each of 2 layers"),
    (
        {"model_type": "gemma3_text", "rope_parameters": {"chunked_attention": {}}},
        "for full_attention and sliding_",
    ),
    (
        {
            "model_type": "gemma3_text",
            "rope_local_base_freq": 5.0,
            "rope_parameters": {"sliding_attention": {"rope_theta": 6.0}},
        },
        "two values of rope_local_base_freq: 5.0 and",
    ),
    (
        {
            "model_type": "gemma3_text",
            "rope_theta": 5.0,
            "rope_parameters": {"full_attention": {"rope_theta": 6.0}},
        },
        "two values of rope_theta: 6.0 and 5.0",
    ),
    (
        {"model_type": "gemma3_text", "rope_scaling": {"rope_type": "longrope"}},
        "rope_type 'longrope' is not one of",
    ),
)
PUBLISHED = {
    "google/gemma-2b": 2_506_172_416,
    "google/gemma-7b": 8_537_680_896,
    "google/gemma-2-2b": 2_614_341_888,
    "google/gemma-2-9b": 9_241_705_984,
    "google/gemma-2-27b": 27_227_128_320,
    "google/gemma-3-270m": 268_098_176,
    "google/gemma-3-1b-pt": 999_885_952,
    # Without the vision tower and the projector.
    "google/gemma-3-4b-pt": 3_880_263_168,
    "google/gemma-3-12b-pt": 11_766_034_176,
    "google/gemma-3-27b-pt": 27_009_346_304,
}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("gemma", "gemma2", "gemma3_text"),
    gradients=("gemma", "gemma2", "gemma3_text-nested-scalings"),
    published=PUBLISHED,
    refused=REFUSED,
)
