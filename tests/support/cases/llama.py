"""Llama, Mistral, Ministral, Ministral 3, Qwen 2 and 3."""

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
MINISTRAL3 = {
    **YARN,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.3,
}
QWEN_WINDOWS = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]

CASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-one-group": {"num_key_value_heads": 1},
    "llama-no-groups": {"num_key_value_heads": 4},
    "llama-groups-null": {"num_key_value_heads": None},
    "llama-head-dim": {"head_dim": 10},
    "llama-wide-heads": {"head_dim": 24, "num_attention_heads": 8, "num_key_value_heads": 4},
    "llama-attention-bias": {"attention_bias": True},
    "llama-mlp-bias": {"mlp_bias": True},
    "llama-biases": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "llama-tied": {"tie_word_embeddings": True},
    "llama-epsilon": {"rms_norm_eps": 0.1},
    "llama-gelu": {"hidden_act": "gelu"},
    "llama-tanh-gelu": {"hidden_act": "gelu_pytorch_tanh"},
    "llama-relu": {"hidden_act": "relu"},
    "llama-relu2": {"hidden_act": "relu2"},
    "llama-theta": {"rope_theta": 37.0},
    "llama-theta-new": {"rope_parameters": {"rope_type": "default", "rope_theta": 37.0}},
    "llama-linear": {"rope_scaling": {"type": "linear", "factor": 3.0}, "rope_theta": 50.0},
    "llama-linear-new": {
        "rope_parameters": {"rope_type": "linear", "factor": 0.5, "rope_theta": 50.0}
    },
    "llama-dynamic": {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
    "llama-llama3": {"rope_parameters": LLAMA3},
    "llama-llama3-old": {
        "rope_scaling": {key: LLAMA3[key] for key in LLAMA3 if key != "rope_theta"},
        "rope_theta": 500.0,
    },
    "llama-llama3-no-original": {
        "rope_parameters": {key: LLAMA3[key] for key in LLAMA3 if key[:8] != "original"}
    },
    "llama-yarn": {"rope_parameters": YARN},
    "llama-yarn-old": {
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}
    },
    "llama-yarn-betas": {"rope_parameters": {**YARN, "beta_fast": 4.0, "beta_slow": 0.5}},
    "llama-yarn-exact": {"rope_parameters": {**YARN, "truncate": False}},
    "llama-yarn-attention": {"rope_parameters": {**YARN, "attention_factor": 0.7}},
    "llama-yarn-mscales": {"rope_parameters": {**YARN, "mscale": 0.5, "mscale_all_dim": 1.2}},
    "llama-dropout": {"attention_dropout": 0.5},
    "mistral": {"sliding_window": None},
    "mistral-window": {"sliding_window": 7},
    "mistral-window-1": {"sliding_window": 1},
    "mistral-head-dim": {"sliding_window": 9, "head_dim": 12},
    "mistral-window-absent": {},
    "mistral-yarn": {"sliding_window": 20, "rope_parameters": YARN},
    "ministral": {"head_dim": 8, "sliding_window": 6},
    "ministral-mixed": {"head_dim": 12, "sliding_window": 6, "layer_types": MIXED},
    "ministral3": {"rope_parameters": MINISTRAL3},
    "ministral3-head-dim": {
        "rope_parameters": {**MINISTRAL3, "llama_4_scaling_beta": 0.1},
        "head_dim": 8,
    },
    "ministral3-window": {"rope_parameters": MINISTRAL3, "sliding_window": 11},
    "qwen2": {},
    "qwen2-windows": QWEN_WINDOWS,
    "qwen2-windows-unused": {"sliding_window": 5, "max_window_layers": 1},
    "qwen2-windows-everywhere": {**QWEN_WINDOWS, "max_window_layers": 0},
    "qwen2-layer-types": {"use_sliding_window": True, "sliding_window": 4, "layer_types": MIXED},
    "qwen2-tied-yarn": {"tie_word_embeddings": True, "rope_parameters": YARN},
    "qwen3": {},
    "qwen3-head-dim": {"head_dim": 20, "num_attention_heads": 8, "num_key_value_heads": 1},
    "qwen3-biases": {"attention_bias": True, "head_dim": 8},
    "qwen3-windows": {**QWEN_WINDOWS, "head_dim": 16},
    "qwen3-tied": {"tie_word_embeddings": True, "head_dim": 16, "rms_norm_eps": 1e-3},
}
REFUSED = (
    ({"rope_parameters": {"rope_theta": 1.0}}, "rope_theta must be above 1"),
    ({"rope_parameters": {**LLAMA3, "low_freq_factor": 5.0}}, "at most high_freq_factor"),
    ({"sliding_window": 5}, "a llama model has no sliding_window"),
    ({"model_type": "mistral", "attention_bias": True}, "a mistral model has no attention_bias"),
    ({"model_type": "qwen2", "mlp_bias": True}, "a qwen2 model has no mlp_bias"),
    ({"model_type": "mistral", "layer_types": MIXED}, "a mistral model has no layer_types"),
    ({"num_key_value_heads": 3}, r"num_attention_heads \(4\) must be a multiple of num_key_value_heads \(3\)"),
    ({"head_dim": 7}, "must be even"),
    ({"hidden_act": "mish"}, "hidden_act 'mish' is not one of gelu"),
    ({"rope_parameters": {"rope_type": "longrope", "short_factor": [1]}}, "rope_type 'longrope' is not one of"),
    ({"rope_parameters": {"rope_type": "llama3", "factor": 2}}, "lacks high_freq_factor, low_freq_factor"),
    ({"rope_parameters": {"factor": 2}}, "rope_parameters has 'factor', which rope_type default does not have"),
    ({"rope_parameters": {"rope_theta": "x"}}, "rope_theta cannot be 'x'"),
    ({"rope_parameters": {"rope_theta": 5.0}, "rope_theta": 6.0}, "two values of rope_theta: 5.0 and 6.0"),
    ({"rope_parameters": YARN, "rope_scaling": {"type": "linear", "factor": 2}}, "contradict each other"),
    ({"rope_scaling": [1]}, r"rope_scaling cannot be \[1\]"),
    ({"partial_rotary_factor": 0.5}, "has a setting 'partial_rotary_factor' that this implementation"),
    ({"quantization_config": {"quant_method": "bitsandbytes"}}, "sets quantization_config"),
    ({"rms_norm_eps": True}, "rms_norm_eps cannot be True"),
    ({"num_hidden_layers": 0}, "num_hidden_layers cannot be 0"),
    ({"model_type": "deepseek_v3"}, "model_type is 'deepseek_v3', which is not supported; supported types:"),
)  # fmt: skip
PUBLISHED = {
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1_100_048_384,
    "HuggingFaceTB/SmolLM2-135M": 134_515_008,
    "HuggingFaceTB/SmolLM2-360M": 361_821_120,
    "HuggingFaceTB/SmolLM2-1.7B": 1_711_376_384,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen2.5-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen3-0.6B-Base": 596_049_920,
    "Qwen/Qwen3-4B-Base": 4_022_468_096,
}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("llama", "mistral-window", "ministral-mixed", "ministral3", "qwen2-windows", "qwen3"),
    gradients=("llama-biases", "llama-llama3", "ministral3", "qwen2-windows", "qwen3-biases"),
    published=PUBLISHED,
    refused=REFUSED,
    fresh={"head_dim": 8},
)
