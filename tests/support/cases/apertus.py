"""Apertus."""

from cases import Cases

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 50.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 24,
}
CASES = {
    "apertus": {"num_hidden_layers": 3},
    "apertus-llama3": {"rope_parameters": LLAMA3, "num_key_value_heads": 1},
    "apertus-biases": {"attention_bias": True, "attention_dropout": 0.2},
    "apertus-tied": {"tie_word_embeddings": True, "num_key_value_heads": None},
    "apertus-plain": {"rope_parameters": {"rope_type": "default", "rope_theta": 37.0}},
    "apertus-epsilon": {"rms_norm_eps": 0.1, "num_attention_heads": 2},
}
REFUSED = (
    ({"hidden_act": "silu"}, "hidden_act 'silu' is not one of xielu"),
    ({"mlp_bias": True}, "mlp_bias to True"),
    ({"num_attention_heads": 5}, r"must be a multiple of num_key_value_heads \(2\)"),
)
PUBLISHED = {"swiss-ai/Apertus-8B-2509": 8_053_338_176}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("apertus",),
    gradients=("apertus-llama3", "apertus-biases"),
    published=PUBLISHED,
    refused=REFUSED,
)
