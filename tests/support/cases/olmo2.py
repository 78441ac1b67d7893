"""OLMo 2."""

from typing import Any

from cases import Cases

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
    "rms_norm_eps": 1e-6,
    "pad_token_id": 1,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 24,
}
CASES: dict[str, dict[str, Any]] = {
    "olmo2": {},
    "olmo2-groups": {"num_key_value_heads": 2},
    "olmo2-one-group": {"num_key_value_heads": 1},
    "olmo2-two-heads": {"num_attention_heads": 2},
    "olmo2-head-dim": {"head_dim": 8},
    "olmo2-biases": {"attention_bias": True, "num_key_value_heads": 2},
    "olmo2-tied": {"tie_word_embeddings": True},
    "olmo2-epsilon": {"rms_norm_eps": 0.1},
    "olmo2-gelu": {"hidden_act": "gelu"},
    "olmo2-relu": {"hidden_act": "relu"},
    "olmo2-theta": {"rope_theta": 500.0},
    "olmo2-linear": {"rope_scaling": {"rope_type": "linear", "factor": 3.0}, "rope_theta": 50.0},
    "olmo2-yarn": {"rope_parameters": YARN},
    "olmo2-dropout": {"attention_dropout": 0.5},
}
REFUSED = (
    (
        {"num_attention_heads": 5},
        r"hidden_size \(32\) must be a multiple of num_attention_heads \(5\)",
    ),
    (
        {"num_key_value_heads": 3},
        r"num_attention_heads \(4\) must be a multiple of num_key_value_heads \(3\)",
    ),
    ({"num_attention_heads": 32}, r"the head size \(1\) must be even"),
    ({"head_dim": 16}, "head_dim contradicts its other settings"),
    ({"hidden_act": "mish"}, "hidden_act 'mish' is not one of"),
    ({"sliding_window": 5}, "a setting 'sliding_window' that this implementation does not know"),
    ({"rope_parameters": {"rope_type": "longrope"}}, "rope_type 'longrope' is not one of"),
)
PUBLISHED = {
    "allenai/OLMo-2-0425-1B": 1_484_916_736,
    "allenai/OLMo-2-1124-7B": 7_298_617_344,
    "allenai/OLMo-2-1124-13B": 13_716_198_400,
    "allenai/OLMo-2-0325-32B": 32_234_279_936,
}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("olmo2", "olmo2-groups"),
    gradients=("olmo2-biases", "olmo2-tied"),
    published=PUBLISHED,
    refused=REFUSED,
)
