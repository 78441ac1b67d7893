"""Nemotron H, with attention, Mamba, MLP and experts layers.

transformers raises Δ to time_step_min in prompts, but not in decoding: it is near 0 here.
"""

from typing import Any

from cases import Cases

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 36,
    "num_hidden_layers": 4,
    "hybrid_override_pattern": "M-*M",
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 96,
    "mamba_num_heads": 4,
    "mamba_head_dim": 8,
    "n_groups": 2,
    "ssm_state_size": 8,
    "time_step_min": 1e-30,
    "time_step_floor": 0.5,  # of the initialization
}
EXPERTS = {
    "hybrid_override_pattern": "ME*E",
    "n_routed_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
    "moe_shared_expert_intermediate_size": 28,
    "routed_scaling_factor": 2.5,
}
CASES: dict[str, dict[str, Any]] = {
    "nemotron_h": {},
    "nemotron_h-mlp-last": {"hybrid_override_pattern": "-*M-", "mlp_bias": True, "layer_norm_epsilon": 0.1,
                            "time_step_limit": [0.0, float("inf")]},
    "nemotron_h-types": {"hybrid_override_pattern": None,
                         "layers_block_type": ["full_attention", "mlp", "linear_attention", "mlp"],
                         "use_bias": True, "use_conv_bias": False, "head_dim": 8},
    "nemotron_h-sizes": {"mamba_num_heads": 3, "mamba_head_dim": 20, "n_groups": 1, "ssm_state_size": 17,
                         "conv_kernel": 3, "expand": 3, "num_key_value_heads": 1},
    "nemotron_h-activations": {"mlp_hidden_act": "silu", "mamba_hidden_act": "relu", "num_key_value_heads": 4,
                               "hybrid_override_pattern": "*MM-"},
    "nemotron_h-older-names": {"n_groups": 4, "residual_in_fp32": False, "attention_head_dim": 12,
                               "hybrid_override_pattern": "MM**", "rms_norm_eps": 1e-5},
    "nemotron_h-experts": EXPERTS,
    "nemotron_h-experts-all-experts": {**EXPERTS, "n_routed_experts": 3},
    "nemotron_h-experts-not-normalized": {**EXPERTS, "hybrid_override_pattern": "E-M*E", "norm_topk_prob": False,
                                          "num_hidden_layers": 5,
                                          "num_experts_per_tok": 2, "n_routed_experts": 5, "mlp_bias": True,
                                          "moe_intermediate_size": 44, "moe_shared_expert_intermediate_size": 12},
    "nemotron_h-experts-types": {**EXPERTS, "hybrid_override_pattern": None, "mlp_hidden_act": "silu",
                                 "layers_block_type": ["moe", "linear_attention", "full_attention", "moe"],
                                 "num_experts_per_tok": 1, "n_routed_experts": 9, "routed_scaling_factor": 0.7,
                                 "moe_intermediate_size": 12, "num_key_value_heads": 1},
}  # fmt: skip
REFUSED = (
    ({**EXPERTS, "n_group": 3}, "n_group = 3 is not supported"),
    ({**EXPERTS, "moe_latent_size": 16}, "moe_latent_size = 16 is not supported"),
    ({**EXPERTS, "n_shared_experts": 2}, "n_shared_experts = 2 is not supported"),
    (
        {**EXPERTS, "num_experts_per_tok": 7},
        r"num_experts_per_tok \(7\) cannot be more than n_routed_experts \(6\)",
    ),
    ({"hybrid_override_pattern": "M-X*"}, "must contain the letters"),
    ({"num_hidden_layers": 3}, "for each of 3 layers"),
    ({"n_groups": 3}, r"mamba_num_heads \(4\) must be a multiple of n_groups \(3\)"),
    ({"residual_in_fp32": True}, "residual_in_fp32"),
    ({"time_step_limit": [0.001, 0.1]}, "no limits"),
)
PUBLISHED = {
    "nvidia/Nemotron-H-8B-Base-8K": 8_100_852_736,
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2": 8_888_227_328,
    # without the biases of the choice, which are no parameters
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 31_577_937_344,
}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("nemotron_h", "nemotron_h-experts-all-experts"),
    gradients=(
        "nemotron_h",
        "nemotron_h-types",
        "nemotron_h-experts",
        "nemotron_h-experts-not-normalized",
    ),
    published=PUBLISHED,
    refused=REFUSED,
)
