"""LFM2 and LFM2 MoE."""

from cases import Cases

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "intermediate_size": 44,
}
TYPES = ["conv", "full_attention", "conv", "full_attention"]
ADJUSTED = {"block_multiple_of": 8, "full_attn_idxs": [1, 2]}
EXPERTS = {
    "moe_intermediate_size": 12,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "num_dense_layers": 1,
    "layer_types": TYPES,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 24,
}
CASES = {
    "lfm2": ADJUSTED,
    "lfm2-types": {"block_auto_adjust_ff_dim": False, "layer_types": TYPES, "tie_word_embeddings": False},
    "lfm2-old-names": {**ADJUSTED, "block_ff_dim": 60, "tie_embedding": False, "rope_theta": 37.0,
                       "block_norm_eps": 1e-5, "num_heads": 4},
    "lfm2-bias": {**ADJUSTED, "conv_bias": True, "block_ffn_dim_multiplier": 1.5},
    "lfm2-long-convolution": {**ADJUSTED, "conv_L_cache": 7, "norm_eps": 0.1},
    "lfm2-two-taps": {**ADJUSTED, "conv_L_cache": 2, "num_key_value_heads": 4},
    "lfm2-attends": {"block_multiple_of": 8, "rope_parameters": YARN},
    "lfm2-convolves": {"block_multiple_of": 8, "layer_types": ["conv"] * 3 + ["full_attention"], "hidden_size": 280},
    "lfm2_moe": EXPERTS,
    "lfm2_moe-all-experts": {**EXPERTS, "num_experts": 2},
    "lfm2_moe-scaled": {**EXPERTS, "routed_scaling_factor": 2.5, "norm_topk_prob": False, "use_expert_bias": False},
    "lfm2_moe-dense-layers": {**EXPERTS, "num_dense_layers": 3, "conv_bias": True, "tie_word_embeddings": False},
}  # fmt: skip
REFUSED = (
    (
        {"layer_types": ["conv", "mamba", "conv", "conv"]},
        "layer_types must contain full_attention or conv",
    ),
    (
        {"num_key_value_heads": 3},
        r"num_attention_heads \(4\) must be a multiple of num_key_value_heads \(3\)",
    ),
    ({"conv_L_cache": 1}, "conv_L_cache cannot be 1"),
    ({"num_experts": 4}, "a lfm2 model has no num_experts"),
)
PUBLISHED = {
    "LiquidAI/LFM2-350M": 354_483_968,
    "LiquidAI/LFM2-700M": 742_489_344,
    "LiquidAI/LFM2-1.2B": 1_170_340_608,
    "LiquidAI/LFM2-8B-A1B": 8_339_929_856,
}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("lfm2-types", "lfm2_moe"),
    gradients=("lfm2-bias", "lfm2_moe-dense-layers"),
    published=PUBLISHED,
    refused=REFUSED,
)
