"""Mamba 2."""

from cases import Cases

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "state_size": 8,
    "num_heads": 8,
    "head_dim": 8,
    "n_groups": 2,
}
CASES = {
    "mamba2": {"chunk_size": 16},
    "mamba2-tied": {"n_groups": 1, "tie_word_embeddings": True, "layer_norm_epsilon": 0.1},
    "mamba2-biases": {"num_heads": 2, "head_dim": 32, "use_bias": True, "conv_kernel": 3},
    "mamba2-sizes": {"expand": 3, "num_heads": 4, "head_dim": 24, "n_groups": 4, "state_size": 19,
                     "use_conv_bias": False, "hidden_act": "gelu", "time_step_limit": [0.0, float("inf")]},
}  # fmt: skip
REFUSED = (
    ({"head_dim": 4}, r"must be expand · hidden_size \(64\)"),
    ({"n_groups": 3}, r"num_heads \(8\) must be a multiple of n_groups \(3\)"),
    ({"time_step_limit": [0.0, 0.1]}, "no limits"),
)
PUBLISHED = {
    "AntonV/mamba2-130m-hf": 128_989_632,
    "AntonV/mamba2-370m-hf": 368_346_624,
    "AntonV/mamba2-780m-hf": 780_161_280,
    "AntonV/mamba2-1.3b-hf": 1_343_757_312,
    "AntonV/mamba2-2.7b-hf": 2_702_599_680,
    "mistralai/Mamba-Codestral-7B-v0.1": 7_285_403_648,
}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("mamba2",),
    gradients=("mamba2-sizes",),
    published=PUBLISHED,
    refused=REFUSED,
)
