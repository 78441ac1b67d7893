"""Relatives of Llama with few differences: a config file each."""

from typing import Any

from cases import Cases

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 24,
}
FULL, SLIDING = "full_attention", "sliding_attention"
MIXED = [SLIDING, FULL, SLIDING]
D8 = {"head_dim": 8}
CASES: dict[str, dict[str, Any]] = {
    "stablelm": {},
    "olmo3": {"sliding_window": 6, "num_hidden_layers": 4},
    "olmo3-types": {"sliding_window": 5, "layer_types": MIXED, "attention_bias": True},
    "olmo3-scaled": {
        "sliding_window": 7,
        "num_hidden_layers": 4,
        "rope_theta": 5e5,
        "rope_scaling": {key: YARN[key] for key in YARN if key != "rope_theta"},
    },
    "olmo3-ropes": {
        "sliding_window": 7,
        "layer_types": MIXED,
        "tie_word_embeddings": True,
        "rope_parameters": {FULL: YARN, SLIDING: {"rope_type": "default", "rope_theta": 30.0}},
    },
    "exaone4": {"sliding_window": 6, "num_hidden_layers": 4},
    "exaone4-pattern": {
        "sliding_window": 5,
        "sliding_window_pattern": 2,
        "tie_word_embeddings": True,
    },
    "exaone4-everywhere": {"sliding_window": None, "layer_types": [FULL] * 3, "rope_theta": 50.0},
    "exaone4-types": {"sliding_window": 8, "layer_types": MIXED, "rms_norm_eps": 0.1},
    "ernie4_5": D8,
    "ernie4_5-biases": {**D8, "use_bias": True, "tie_word_embeddings": False},
    "ernie4_5-theta": {"head_dim": 12, "rope_theta": 50.0, "num_key_value_heads": 1},
    "seed_oss": D8,
    "seed_oss-biases": {**D8, "attention_out_bias": True, "mlp_bias": True, "rope_theta": 50.0},
    "seed_oss-no-biases": {"head_dim": 12, "attention_bias": False, "tie_word_embeddings": True},
    "internlm3": D8,
    "internlm3-biases": {**D8, "qkv_bias": True, "bias": True, "num_key_value_heads": 1},
    "internlm3-dynamic": {
        "head_dim": 12,
        "rope_scaling": {"type": "dynamic", "factor": 6.0},
        "rope_theta": 50.0,
    },
    "hunyuan_v1_dense": {**D8, "rope_scaling": {"type": "dynamic", "alpha": 50.0, "factor": 1.0}},
    "hunyuan_v1_dense-plain": {"head_dim": 12, "rope_theta": 50.0, "tie_word_embeddings": True},
    "hunyuan_v1_dense-biases": {**D8, "attention_bias": True, "num_key_value_heads": 1},
    "starcoder2": {},
    "starcoder2-window": {"sliding_window": 7, "tie_word_embeddings": False, "rope_theta": 50.0},
    "starcoder2-no-biases": {
        "use_bias": False,
        "norm_epsilon": 0.1,
        "num_key_value_heads": 1,
        "residual_dropout": 0.2,
        "embedding_dropout": 0.3,
        "attention_dropout": 0.1,
    },
    "glm4": D8,
    "glm4-no-biases": {"head_dim": 12, "attention_bias": False, "tie_word_embeddings": True},
    "glm4-part": {
        "head_dim": 16,
        "partial_rotary_factor": 0.25,
        "rope_theta": 50.0,
        "rms_norm_eps": 0.1,
    },
    "cohere": {"logit_scale": 0.5},
    "cohere-norms": {
        "use_qk_norm": True,
        "attention_bias": True,
        "tie_word_embeddings": False,
        "logit_scale": 0.8,
    },
    "cohere-theta": {
        "rope_theta": 50.0,
        "layer_norm_eps": 0.1,
        "num_key_value_heads": None,
        "logit_scale": 1.3,
    },
    "cohere2": {"sliding_window": 6, "num_hidden_layers": 4},
    "cohere2-types": {
        "sliding_window": 5,
        "layer_types": MIXED,
        "attention_bias": True,
        "rope_theta": 50.0,
    },
    "cohere2-pattern": {
        "sliding_window": 9,
        "sliding_window_pattern": 2,
        "layer_norm_eps": 0.1,
        "logit_scale": 0.25,
    },
    "stablelm-norms": {"qk_layernorm": True, "use_qkv_bias": True, "partial_rotary_factor": 0.5},
    "stablelm-parallel": {
        "use_parallel_residual": True,
        "qk_layernorm": True,
        "num_key_value_heads": 4,
    },
    "stablelm-all": {
        "partial_rotary_factor": 1.0,
        "rope_theta": 50.0,
        "layer_norm_eps": 0.1,
        "tie_word_embeddings": True,
    },
    "arcee": {},
    "arcee-yarn": {
        "head_dim": 12,
        "rope_parameters": YARN,
        "hidden_act": "relu",
        "tie_word_embeddings": True,
    },
    "arcee-biases": {
        "attention_bias": True,
        "mlp_bias": True,
        "num_key_value_heads": 1,
        "rms_norm_eps": 0.1,
    },
    "jais2": {},
    "jais2-no-biases": {
        "attention_bias": False,
        "mlp_bias": False,
        "head_dim": 12,
        "tie_word_embeddings": True,
    },
    "jais2-linear": {
        "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 50.0},
        "num_key_value_heads": 1,
        "layer_norm_eps": 0.1,
        "hidden_act": "silu",
    },
    "nemotron": {},
    "nemotron-biases": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1},
    "nemotron-all": {"partial_rotary_factor": 1.0, "tie_word_embeddings": True, "head_dim": 12},
    "nemotron-quarter": {"partial_rotary_factor": 0.25, "rope_theta": 50.0, "norm_eps": 0.1},
    "nemotron-linear": {
        "rope_parameters": {
            "rope_type": "linear",
            "factor": 3.0,
            "rope_theta": 50.0,
            "partial_rotary_factor": 0.5,
        },
    },
    "nemotron-silu": {"hidden_act": "silu", "num_key_value_heads": 4, "attention_dropout": 0.1},
}
REFUSED = (
    (
        {"model_type": "olmo3", "rope_theta": 1e4},
        "rope_theta is not 500000, so rope_parameters must have",
    ),
    (
        {"model_type": "olmo3", "layer_types": ["full"]},
        "layer_types must contain full_attention or sliding_att",
    ),
    (
        {"model_type": "exaone4", "sliding_window_pattern": "LLX"},
        "must be a number, or contain L and G",
    ),
    ({"model_type": "internlm3", "qkv_bias": True}, "qkv_bias and bias must be equal"),
    ({"model_type": "hunyuan_v1_dense", "use_cla": True}, "use_cla to True"),
    ({"model_type": "cohere2", "use_parallel_block": False}, "use_parallel_block to False"),
    ({"model_type": "stablelm", "hidden_dropout": 0.1}, "hidden_dropout to 0.1"),
)
PUBLISHED: dict[str, int] = {
    "allenai/Olmo-3-1025-7B": 7_298_011_136,
    "allenai/Olmo-3-1125-32B": 32_233_522_176,
    "LGAI-EXAONE/EXAONE-4.0-1.2B": 1_279_391_488,
    "LGAI-EXAONE/EXAONE-4.0-32B": 32_003_216_384,
    "baidu/ERNIE-4.5-0.3B-PT": 360_748_032,
    "ByteDance-Seed/Seed-OSS-36B-Instruct": 36_151_104_512,
    "internlm/internlm3-8b-instruct": 8_804_241_408,
    "tencent/Hunyuan-7B-Instruct": 7_504_568_320,
    "bigcode/starcoder2-3b": 3_030_371_328,
    "bigcode/starcoder2-7b": 7_173_923_840,
    "bigcode/starcoder2-15b": 15_655_899_136,
    "zai-org/GLM-4-9B-0414": 9_400_279_040,
    "zai-org/GLM-4-32B-0414": 33_141_749_760,
    "CohereForAI/c4ai-command-r-v01": 34_980_831_232,
    "CohereForAI/aya-23-8B": 8_028_033_024,
    "CohereForAI/c4ai-command-r7b-12-2024": 8_028_033_024,
    "stabilityai/stablelm-3b-4e1t": 2_795_443_200,
    "stabilityai/stablelm-2-1_6b": 1_644_515_328,
    "stabilityai/stablelm-2-12b": 12_143_185_920,
    "arcee-ai/AFM-4.5B": 4_619_184_640,
    "inceptionai/Jais-2-8B-Chat": 8_090_401_280,
    "nvidia/Minitron-4B-Base": 4_190_509_056,
}

FAMILY = Cases(
    SMALL,
    CASES,
    # One of each new operation and cache.
    few=(
        "exaone4",
        "hunyuan_v1_dense",
        "cohere-norms",
        "cohere2",
        "stablelm-parallel",
        "starcoder2-window",
        "arcee",
        "nemotron",
    ),
    gradients=(
        "olmo3-types",
        "glm4",
        "cohere-norms",
        "stablelm-norms",
        "starcoder2",
        "arcee-biases",
        "jais2",
        "nemotron-biases",
    ),
    published=PUBLISHED,
    refused=REFUSED,
)
