"""Phi 1, 1.5 and 2."""

from cases import Cases

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
}
ROPE = {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.75}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 24,
    "partial_rotary_factor": 1.0,
}
CASES = {
    "phi": {},
    "phi-quarter": {"partial_rotary_factor": 0.25},
    "phi-all": {"partial_rotary_factor": 1.0},
    "phi-theta": {"rope_theta": 37.0},
    "phi-new-names": {"rope_parameters": ROPE},
    "phi-both-names": {"rope_parameters": ROPE, "partial_rotary_factor": 0.75, "rope_theta": 50.0},
    "phi-linear": {"rope_scaling": {"type": "linear", "factor": 3.0}, "rope_theta": 50.0},
    "phi-yarn": {"rope_parameters": YARN},
    "phi-groups": {"num_key_value_heads": 2},
    "phi-one-group": {"num_key_value_heads": 1},
    "phi-two-heads": {"num_attention_heads": 2},
    "phi-gelu": {"hidden_act": "gelu"},
    "phi-relu": {"hidden_act": "relu"},
    "phi-tied": {"tie_word_embeddings": True},
    "phi-epsilon": {"layer_norm_eps": 0.1},
    "phi-dropout": {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attention_dropout": 0.5},
    "phi-no-norms": {"qk_layernorm": False},
}
REFUSED = (
    ({"qk_layernorm": True}, "sets qk_layernorm to True"),
    ({"partial_rotary_factor": 0.1}, "rotates 0 of a head's 8 numbers"),
    ({"partial_rotary_factor": 0.4}, "rotates 3 of a head's 8 numbers"),
    ({"partial_rotary_factor": 1.5}, "partial_rotary_factor must be at most 1"),
    (
        {"partial_rotary_factor": 0.5, "rope_parameters": ROPE},
        "two values of partial_rotary_factor",
    ),
    (
        {"num_key_value_heads": 3},
        r"num_attention_heads \(4\) must be a multiple of num_key_value_heads \(3\)",
    ),
    (
        {"num_attention_heads": 5},
        r"hidden_size \(32\) must be a multiple of num_attention_heads \(5\)",
    ),
    ({"head_dim": 4}, "a setting 'head_dim' that this implementation does not know"),
    ({"hidden_act": "mish"}, "hidden_act 'mish' is not one of"),
)
PUBLISHED = {
    "microsoft/phi-1": 1_418_270_720,
    "microsoft/phi-1_5": 1_418_270_720,
    "microsoft/phi-2": 2_779_683_840,
}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("phi", "phi-groups"),
    gradients=("phi-quarter", "phi-tied", "phi-one-group"),
    published=PUBLISHED,
    refused=REFUSED,
)
