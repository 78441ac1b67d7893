"""Mamba and Falcon Mamba."""

from cases import Cases

SMALL = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
CASES = {
    "mamba": {},
    "mamba-untied": {"tie_word_embeddings": False, "use_bias": True, "layer_norm_epsilon": 0.1},
    "mamba-sizes": {"expand": 3, "time_step_rank": 5, "state_size": 17, "conv_kernel": 3, "use_conv_bias": False},
    "mamba-relu": {"hidden_act": "relu", "conv_kernel": 2, "intermediate_size": 72, "time_step_rank": "auto"},
    "falcon_mamba": {"mixer_rms_eps": 0.1},
    "falcon_mamba-sizes": {"expand": 16, "intermediate_size": 80, "time_step_rank": 6, "state_size": 5,
                           "use_bias": True, "tie_word_embeddings": False},
}  # fmt: skip
REFUSED = (
    ({"time_step_rank": "half"}, 'time_step_rank must be a number or "auto"'),
    ({"n_groups": 2}, "a mamba model has no n_groups"),
)
PUBLISHED = {
    "state-spaces/mamba-130m-hf": 129_135_360,
    "state-spaces/mamba-370m-hf": 371_516_416,
    "state-spaces/mamba-790m-hf": 793_204_224,
    "state-spaces/mamba-1.4b-hf": 1_372_178_432,
    "state-spaces/mamba-2.8b-hf": 2_768_345_600,
    "tiiuae/falcon-mamba-7b": 7_272_665_088,
}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("mamba", "falcon_mamba-sizes"),
    gradients=("mamba-sizes", "falcon_mamba"),
    published=PUBLISHED,
    refused=REFUSED,
)
