"""Nemotron H, with attention, Mamba and MLP layers.

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
}  # fmt: skip
REFUSED = (
    ({"hybrid_override_pattern": "M-*E"}, "layers with experts"),
    ({"hybrid_override_pattern": "M-X*"}, "must contain the letters"),
    ({"num_hidden_layers": 3}, "for each of 3 layers"),
    ({"n_groups": 3}, r"mamba_num_heads \(4\) must be a multiple of n_groups \(3\)"),
    ({"residual_in_fp32": True}, "residual_in_fp32"),
    ({"time_step_limit": [0.001, 0.1]}, "no limits"),
)
PUBLISHED = {
    "nvidia/Nemotron-H-8B-Base-8K": 8_100_852_736,
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2": 8_888_227_328,
}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("nemotron_h",),
    gradients=("nemotron_h", "nemotron_h-types"),
    published=PUBLISHED,
    refused=REFUSED,
)
