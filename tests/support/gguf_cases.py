"""Settings of small models that GGUF files contain."""

from typing import Any

GPT2 = {"model_type": "gpt2", "vocab_size": 64, "n_positions": 48, "n_embd": 64, "n_layer": 2, "n_head": 4}
LLAMA_SIZES = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
               "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 48}  # fmt: skip
NEOX = {**LLAMA_SIZES, "model_type": "gpt_neox"}
NEOX.pop("num_key_value_heads")
GEMMA = {**LLAMA_SIZES, "head_dim": 24, "tie_word_embeddings": True}
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 12}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "gpt2": GPT2,
    "gpt2-untied": {**GPT2, "tie_word_embeddings": False, "n_inner": 96, "layer_norm_epsilon": 0.01},
    "llama": {**LLAMA_SIZES, "model_type": "llama"},
    "llama-tied": {**LLAMA_SIZES, "model_type": "llama", "tie_word_embeddings": True, "num_key_value_heads": 4},
    "llama-biases": {**LLAMA_SIZES, "model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "llama-head-dim": {**LLAMA_SIZES, "model_type": "llama", "head_dim": 24, "rope_parameters": YARN},
    "llama3": {**LLAMA_SIZES, "model_type": "llama", "rope_parameters": LLAMA3, "head_dim": 32},
    "llama-linear": {**LLAMA_SIZES, "model_type": "llama",
                     "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 50.0}},
    "qwen2": {**LLAMA_SIZES, "model_type": "qwen2", "rms_norm_eps": 1e-5},
    "qwen3": {**LLAMA_SIZES, "model_type": "qwen3", "head_dim": 24, "rope_parameters": {"rope_type": "default",
              "rope_theta": 1e6}, "tie_word_embeddings": True},
    "qwen3-bias": {**LLAMA_SIZES, "model_type": "qwen3", "head_dim": 16, "attention_bias": True},
    "gemma": {**GEMMA, "model_type": "gemma", "hidden_activation": "gelu_pytorch_tanh"},
    "gemma2": {**GEMMA, "model_type": "gemma2", "query_pre_attn_scalar": 24, "sliding_window": 8},
    "gemma3": {**GEMMA, "model_type": "gemma3_text", "query_pre_attn_scalar": 24, "sliding_window": 8,
               "num_hidden_layers": 7},
    "phi": {**LLAMA_SIZES, "model_type": "phi"},
    "phi-all": {**LLAMA_SIZES, "model_type": "phi", "num_key_value_heads": 4, "partial_rotary_factor": 1.0,
                "layer_norm_eps": 0.1},
    "gpt_neox": NEOX,
    "gpt_neox-in-turn": {**NEOX, "use_parallel_residual": False, "rotary_pct": 1.0, "attention_bias": False},
    "gpt_neox-tied": {**NEOX, "rotary_pct": 0.5, "tie_word_embeddings": True, "layer_norm_eps": 0.1},
}  # fmt: skip
