"""GPT-OSS. Here experts are floats, as transformers saves them; tests/models/test_gptoss.py has
them in MXFP4.
"""

from cases import Cases

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "head_dim": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "sliding_window": 7,
    "max_position_embeddings": 96,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 24,
}
CASES = {
    "gpt_oss": {},
    "gpt_oss-yarn": {"rope_parameters": {**YARN, "truncate": False}},
    "gpt_oss-yarn-old": {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                         "original_max_position_embeddings": 24},
        "rope_theta": 150.0, "initial_context_length": 24, "experts_per_token": 2,
    },
    "gpt_oss-theta": {"rope_theta": 37.0},
    "gpt_oss-rope": {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
    "gpt_oss-layer-types": {"layer_types": ["full_attention", "sliding_attention"]},
    "gpt_oss-no-bias": {"attention_bias": False},
    "gpt_oss-no-groups": {"num_key_value_heads": 4},
    "gpt_oss-wide-heads": {"head_dim": 18},
    "gpt_oss-one-expert": {"num_experts_per_tok": 1},
    "gpt_oss-all-experts": {"num_experts_per_tok": 5},
    "gpt_oss-many-experts": {"num_local_experts": 70, "num_experts_per_tok": 4, "intermediate_size": 4},
    "gpt_oss-wide-experts": {"intermediate_size": 292},
    "gpt_oss-gate": {"swiglu_alpha": 0.7, "swiglu_limit": 0.8},
    "gpt_oss-tied": {"tie_word_embeddings": True, "rms_norm_eps": 0.1, "attention_dropout": 0.5},
}  # fmt: skip
REFUSED = (
    (
        {"quantization_config": {"quant_method": "bitsandbytes"}},
        "quantization_config's quant_method 'bitsandbytes' is not supported",
    ),
    (
        {"quantization_config": {"quant_method": "mxfp4", "bits": 3}},
        "quantization_config sets 'bits' to 3",
    ),
    (
        {
            "quantization_config": {
                "quant_method": "mxfp4",
                "modules_to_not_convert": ["model.layers.0.mlp.experts"],
            }
        },
        "modules_to_not_convert contains 'model.layers.0.mlp.experts'",
    ),
    (
        {"quantization_config": {"quant_method": "mxfp4"}},
        r"in mxfp4 intermediate_size must be a multiple of 32",
    ),
    (
        {"quantization_config": {"quant_method": "mxfp4"}, "intermediate_size": 32},
        "missing: layers.0.mlp.experts.down_proj.blocks.*unused: layers.0.mlp.experts.down_proj",
    ),
    ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not one of silu"),
    (
        {"num_experts_per_tok": 6},
        r"num_experts_per_tok \(6\) cannot be more than num_local_experts \(5\)",
    ),
    (
        {"num_key_value_heads": 3},
        r"num_attention_heads \(4\) must be a multiple of num_key_value_heads \(3\)",
    ),
    ({"head_dim": 7}, "must be even"),
    ({"experts_per_token": 3}, "experts_per_token contradicts"),
    ({"layer_types": ["full_attention"]}, "for each of 2 layers"),
    ({"rope_parameters": {"rope_type": "longrope"}}, "rope_type 'longrope' is not one of"),
)
PUBLISHED = {"openai/gpt-oss-20b": 20_914_757_184, "openai/gpt-oss-120b": 116_829_156_672}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("gpt_oss",),
    gradients=("gpt_oss-no-bias", "gpt_oss-tied"),
    published=PUBLISHED,
    refused=REFUSED,
)
