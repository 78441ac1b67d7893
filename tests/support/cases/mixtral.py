"""Mixtral, Qwen 2 and 3 MoE, OLMoE and Granite MoE."""

from cases import Cases

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 96,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 24,
}
QWEN = {"moe_intermediate_size": 12, "num_experts": 6, "head_dim": 12, "norm_topk_prob": True}
QWEN2 = {
    "moe_intermediate_size": 12,
    "shared_expert_intermediate_size": 24,
    "num_experts": 6,
}
GRANITE = {
    "attention_multiplier": 0.3,
    "embedding_multiplier": 1.5,
    "residual_multiplier": 0.6,
    "logits_scaling": 1.25,
}
CASES = {
    "mixtral": {"num_local_experts": 4},
    "mixtral-all-experts": {"num_local_experts": 2, "tie_word_embeddings": True},
    "mixtral-window": {"num_local_experts": 5, "sliding_window": 7, "head_dim": 12, "rope_theta": 37.0},
    "mixtral-gelu": {"num_local_experts": 3, "hidden_act": "gelu", "num_key_value_heads": 4, "rms_norm_eps": 0.1,
                     "attention_dropout": 0.5, "head_dim": 8, "rope_parameters": YARN},
    "mixtral-ten-experts": {"num_local_experts": 40, "num_experts_per_tok": 10, "intermediate_size": 8},
    "qwen2_moe": QWEN2,
    "qwen2_moe-all-experts": {**QWEN2, "num_experts": 2, "qkv_bias": False},
    "qwen2_moe-normalized": {**QWEN2, "norm_topk_prob": True, "tie_word_embeddings": True},
    "qwen2_moe-dense-layers": {**QWEN2, "num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3]},
    "qwen2_moe-absent": {"moe_intermediate_size": 12, "shared_expert_intermediate_size": 8, "num_experts": 3,
                         "layer_types": ["full_attention"] * 2},
    "qwen2_moe-theta": {**QWEN2, "rope_theta": 37.0, "num_experts_per_tok": 1, "rms_norm_eps": 0.1},
    "qwen3_moe": QWEN,
    "qwen3_moe-all-experts": {**QWEN, "num_experts": 2, "attention_bias": True},
    "qwen3_moe-not-normalized": {**QWEN, "norm_topk_prob": False},
    "qwen3_moe-absent": {"moe_intermediate_size": 12, "num_experts": 3},
    "qwen3_moe-one-expert": {**QWEN, "num_experts_per_tok": 1, "moe_intermediate_size": 300,
                             "tie_word_embeddings": True},
    "qwen3_moe-dense-layers": {**QWEN, "num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3]},
    "qwen3_moe-window": {**QWEN, "use_sliding_window": True, "sliding_window": 6},
    "olmoe": {"num_experts": 6},
    "olmoe-all-experts": {"num_experts": 2, "attention_bias": True, "num_key_value_heads": 4},
    "olmoe-normalized": {"num_experts": 6, "norm_topk_prob": True, "tie_word_embeddings": True, "rope_theta": 37.0},
    "granitemoe": {"num_local_experts": 4, **GRANITE},
    "granitemoe-all-experts": {"num_local_experts": 2, **GRANITE, "tie_word_embeddings": True},
    "granitemoe-absent": {"num_local_experts": 3, "attention_bias": True},
}  # fmt: skip
REFUSED = (
    (
        {"num_experts_per_tok": 5},
        r"num_experts_per_tok \(5\) cannot be more than the number of experts \(4\)",
    ),
    (
        {"num_key_value_heads": 3},
        r"num_attention_heads \(4\) must be a multiple of num_key_value_heads \(3\)",
    ),
    ({"head_dim": 7}, "must be even"),
    ({"router_jitter_noise": 0.1}, "sets router_jitter_noise to 0.1"),
    ({"moe_intermediate_size": 3}, "a mixtral model has no moe_intermediate_size"),
    (
        {"model_type": "qwen2_moe", "layer_types": ["sliding_attention"] * 2},
        "layer_types contradicts",
    ),
    (
        {"model_type": "qwen2_moe", "use_sliding_window": True},
        "a qwen2_moe model has no use_sliding_window",
    ),
    ({"num_local_experts": 3}, "unused: layers.0.mlp.experts.down_proj.3"),
)
PUBLISHED = {
    "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "mistralai/Mixtral-8x22B-v0.1": 140_620_634_112,
    "allenai/OLMoE-1B-7B-0924": 6_919_161_856,
    "ibm-granite/granite-3.0-1b-a400m-base": 1_334_628_352,
    "Qwen/Qwen1.5-MoE-A2.7B": 14_315_784_192,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe"),
    gradients=(
        "mixtral-ten-experts",
        "qwen2_moe-dense-layers",
        "qwen3_moe-dense-layers",
        "olmoe",
        "granitemoe",
    ),
    published=PUBLISHED,
    refused=REFUSED,
)
