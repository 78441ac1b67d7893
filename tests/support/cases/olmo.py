"""OLMo 1 and 1.7."""

from cases import Cases

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
CASES = {
    "olmo": {"clip_qkv": 0.7, "num_hidden_layers": 3},
    "olmo-unclipped": {"num_key_value_heads": 2},
    "olmo-tied": {"tie_word_embeddings": True, "num_key_value_heads": 1, "clip_qkv": 2.0},
    "olmo-biases": {"attention_bias": True, "hidden_act": "gelu", "attention_dropout": 0.2},
    "olmo-theta": {"rope_theta": 50.0, "num_attention_heads": 2, "clip_qkv": 1.0},
    "olmo-linear": {"rope_scaling": {"type": "linear", "factor": 3.0}, "clip_qkv": 0.3},
}
REFUSED = (
    ({"clip_qkv": -1.0}, "clip_qkv cannot be -1.0"),
    ({"num_attention_heads": 5}, r"must be a multiple of num_attention_heads \(5\)"),
    ({"num_attention_heads": 32}, "rotates 1 of a head's 1 numbers"),
)
PUBLISHED = {
    "allenai/OLMo-1B-hf": 1_176_764_416,
    "allenai/OLMo-7B-hf": 6_888_095_744,
    "allenai/OLMo-1.7-7B-hf": 6_888_095_744,
}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("olmo",),
    gradients=("olmo-unclipped", "olmo-tied", "olmo-biases"),
    published=PUBLISHED,
    refused=REFUSED,
)
