"""Phi-3 and Phi-4.

transformers chooses the factors of longrope at each call; the cases are on one side for all lengths
in the tests.
"""

from typing import Any

from cases import Cases

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0, 1.5, 2.0, 3.0],
    "long_factor": [1.0, 3.0, 7.0, 11.0],
}
SHORT = {"rope_scaling": LONGROPE, "original_max_position_embeddings": 80}
LONG = {"rope_scaling": LONGROPE, "original_max_position_embeddings": 2}
CASES: dict[str, dict[str, Any]] = {
    "phi3": {},
    "phi3-groups": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "phi3-window": {"sliding_window": 7, "num_key_value_heads": 1},
    "phi3-short": SHORT,
    "phi3-long": {**LONG, "num_key_value_heads": 2},
    "phi3-theta": {"rope_scaling": LONGROPE, "original_max_position_embeddings": 2, "rope_theta": 50.0},
    "phi3-part": {"num_attention_heads": 2, "partial_rotary_factor": 0.5, "sliding_window": 20,
                  "rope_scaling": {**LONGROPE, "attention_factor": 1.1}, "original_max_position_embeddings": 2},
    "phi3-attention-factor": {"rope_scaling": {**LONGROPE, "attention_factor": 0.7},
                              "original_max_position_embeddings": 80},
    "phi3-part-default": {"partial_rotary_factor": 0.75, "rope_theta": 30.0, "hidden_size": 64},
    "phi3-epsilon-dropout": {"rms_norm_eps": 0.1, "resid_pdrop": 0.3, "embd_pdrop": 0.2, "attention_dropout": 0.4,
                             "hidden_act": "gelu"},
}  # fmt: skip
REFUSED = (
    (
        {"rope_scaling": {**LONGROPE, "short_factor": [1.0]}},
        "short_factor has 1 factors for 4 rotated pairs",
    ),
    (
        {"rope_scaling": {**LONGROPE, "long_factor": [1, 2, 3, 0]}},
        "must be a list of positive numbers",
    ),
    ({"rope_scaling": {"type": "longrope"}}, "lacks long_factor, short_factor"),
    (
        {**SHORT, "original_max_position_embeddings": 1},
        "original_max_position_embeddings must be above 1, not 1",
    ),
    ({"attention_bias": True}, "attention_bias"),
    ({"num_attention_heads": 5}, r"must be a multiple of num_attention_heads \(5\)"),
)
PUBLISHED = {
    "microsoft/Phi-3-mini-4k-instruct": 3_821_079_552,
    "microsoft/phi-4": 14_659_507_200,
    "microsoft/Phi-4-mini-instruct": 3_836_021_760,
}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("phi3-part",),
    gradients=("phi3-groups", "phi3-long"),
    published=PUBLISHED,
    refused=REFUSED,
)
