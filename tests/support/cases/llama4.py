"""Llama 4's text model."""

from cases import Cases

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 20,
    "intermediate_size_mlp": 44,
    "num_hidden_layers": 2,
    "head_dim": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 5,
    "no_rope_layers": [1, 0],
    "attention_chunk_size": 7,
    "floor_scale": 3,
    "attn_scale": 0.4,
    "max_position_embeddings": 96,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 60.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 1.0,
    "original_max_position_embeddings": 24,
}
CASES = {
    "llama4_text": {},
    "llama4_text-theta": {"rope_theta": 37.0, "no_rope_layers": [1, 1], "num_experts_per_tok": 2},
    "llama4_text-scaled": {"rope_parameters": LLAMA3, "attention_chunk_size": 16, "rms_norm_eps": 0.1},
    "llama4_text-interleaved": {"num_hidden_layers": 4, "interleave_moe_layer_step": 2, "no_rope_layers": [],
                                "no_rope_layer_interval": 3, "use_qk_norm": False, "num_key_value_heads": 1},
    "llama4_text-dense": {"moe_layers": [], "attention_chunk_size": None, "hidden_act": "gelu", "head_dim": 8},
    "llama4_text-not-tuned": {"attn_temperature_tuning": False, "moe_layers": [1], "attention_bias": True,
                              "num_key_value_heads": 4},
    "llama4_text-all-experts": {"num_local_experts": 2, "num_experts_per_tok": 2, "tie_word_embeddings": True,
                                "attention_dropout": 0.5, "intermediate_size": 16},
    "llama4_text-types": {"layer_types": ["full_attention", "chunked_attention"], "attention_chunk_size": 1},
}  # fmt: skip
REFUSED = (
    (
        {"num_experts_per_tok": 6},
        r"num_experts_per_tok \(6\) cannot be more than the number of experts \(5\)",
    ),
    (
        {"num_key_value_heads": 3},
        r"num_attention_heads \(4\) must be a multiple of num_key_value_heads \(3\)",
    ),
    ({"head_dim": 7}, "must be even"),
    ({"router_jitter_noise": 0.1}, "sets router_jitter_noise to 0.1"),
    ({"no_rope_layers": [1]}, "no_rope_layers must have a number for each of 2 layers, not 1"),
    ({"layer_types": ["full_attention"]}, "for each of 2 layers"),
    (
        {"layer_types": ["chunked_attention"] * 2, "attention_chunk_size": None},
        "requires attention_chunk_size",
    ),
)
PUBLISHED = {
    "meta-llama/Llama-4-Scout-17B-16E": 107_769_861_120,
    "meta-llama/Llama-4-Maverick-17B-128E": 400_711_848_960,
}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("llama4_text",),
    gradients=("llama4_text-interleaved", "llama4_text-all-experts"),
    published=PUBLISHED,
    refused=REFUSED,
)
