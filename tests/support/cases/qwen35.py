"""Qwen 3.5's text model."""

from cases import Cases

# The usual epsilon, 1e-6, amplifies rounding errors if a head's output is nearly 0, as often in
# small models.
SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "full_attention_interval": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "max_position_embeddings": 320,
    "rms_norm_eps": 0.01,
}
ROPE = {"rope_type": "default", "rope_theta": 50.0}
TYPES = ["full_attention", "linear_attention", "full_attention", "linear_attention"]
CASES = {
    "qwen3_5_text": {"full_attention_interval": 4, "num_hidden_layers": 4},
    "qwen3_5_text-sizes": {"linear_key_head_dim": 24, "linear_value_head_dim": 68, "linear_num_value_heads": 2},
    "qwen3_5_text-many-heads": {"linear_num_key_heads": 1, "linear_num_value_heads": 6, "linear_value_head_dim": 5},
    "qwen3_5_text-long-convolution": {"linear_conv_kernel_dim": 7, "linear_value_head_dim": 8},
    "qwen3_5_text-attends": {"full_attention_interval": 1},
    "qwen3_5_text-types": {"layer_types": TYPES, "num_hidden_layers": 4, "full_attention_interval": 4},
    "qwen3_5_text-one-group": {"num_key_value_heads": 1, "num_attention_heads": 6, "head_dim": 24,
                               "linear_conv_kernel_dim": 2},
    "qwen3_5_text-bias-tied": {"attention_bias": True, "tie_word_embeddings": True},
    "qwen3_5_text-gelu": {"hidden_act": "gelu_pytorch_tanh", "attention_dropout": 0.5},
    "qwen3_5_text-epsilon": {"rms_norm_eps": 1e-6},
    "qwen3_5_text-half": {"partial_rotary_factor": 0.5, "rope_theta": 37.0},
    "qwen3_5_text-all": {"rope_parameters": {**ROPE, "partial_rotary_factor": 1.0, "mrope_section": [3, 3, 2],
                                             "mrope_interleaved": True}},
    "qwen3_5_text-no-part": {"head_dim": 32, "rope_parameters": ROPE},
    "qwen3_5_text-yarn": {"rope_parameters": {**ROPE, "rope_type": "yarn", "factor": 4.0,
                                              "original_max_position_embeddings": 24, "partial_rotary_factor": 0.5}},
}  # fmt: skip
REFUSED = (
    ({"attn_output_gate": False}, "sets attn_output_gate to False"),
    ({"mamba_ssm_dtype": "bfloat16"}, "sets mamba_ssm_dtype to 'bfloat16'"),
    ({"mlp_only_layers": [1]}, r"sets mlp_only_layers to \[1\]"),
    ({"num_experts": 8}, "a qwen3_5_text model has no num_experts"),
    ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim cannot be 1"),
    (
        {"num_key_value_heads": 3},
        r"num_attention_heads \(4\) must be a multiple of num_key_value_heads \(3\)",
    ),
    (
        {"linear_num_key_heads": 3},
        r"linear_num_value_heads \(4\) must be a multiple of linear_num_key_heads \(3\)",
    ),
    ({"head_dim": None}, "head_dim cannot be None"),
    (
        {"layer_types": ["sliding_attention"] * 2},
        "layer_types must contain full_attention or linear_attention",
    ),
    ({"layer_types": ["full_attention"]}, "for each of 4 layers"),
    ({"partial_rotary_factor": 0.1}, "rotates 1 of a head's 16 numbers"),
    ({"rope_parameters": {"rope_type": "mrope"}}, "rope_type 'mrope' is not one of"),
    ({"hidden_act": "mish"}, "hidden_act 'mish' is not one of"),
)
PUBLISHED = {
    "Qwen/Qwen3.5-0.8B": 752_393_024,
    "Qwen/Qwen3.5-2B": 1_881_825_088,
    "Qwen/Qwen3.5-4B": 4_205_751_296,
    "Qwen/Qwen3.5-9B": 8_953_803_264,
    "Qwen/Qwen3.5-27B": 26_895_998_464,
}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("qwen3_5_text", "qwen3_5_text-types"),
    gradients=("qwen3_5_text-sizes", "qwen3_5_text-bias-tied"),
    published=PUBLISHED,
    refused=REFUSED,
)
