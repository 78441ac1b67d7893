"""GPT-2."""

from cases import Cases

SMALL = {"vocab_size": 61, "n_positions": 96, "n_embd": 24, "n_layer": 3, "n_head": 4}
CASES = {
    "gpt2": {},
    "gpt2-gelu": {"activation_function": "gelu"},
    "gpt2-relu": {"activation_function": "relu"},
    "gpt2-silu": {"activation_function": "silu"},
    "gpt2-tanh": {"activation_function": "tanh"},
    "gpt2-inner": {"n_inner": 17},
    "gpt2-epsilon": {"layer_norm_epsilon": 0.5},
    "gpt2-unscaled": {"scale_attn_weights": False},
    "gpt2-inverse-layer": {"scale_attn_by_inverse_layer_idx": True},
    "gpt2-unscaled-inverse-layer": {
        "scale_attn_weights": False,
        "scale_attn_by_inverse_layer_idx": True,
    },
    "gpt2-upcast": {"reorder_and_upcast_attn": True},
    "gpt2-upcast-inverse-layer": {
        "reorder_and_upcast_attn": True,
        "scale_attn_by_inverse_layer_idx": True,
    },
    "gpt2-untied": {"tie_word_embeddings": False},
    "gpt2-dropouts": {"embd_pdrop": 0.5, "attn_pdrop": 0.4, "resid_pdrop": 0.3},
    "gpt2-one-head-one-layer": {"n_head": 1, "n_layer": 1},
    "gpt2-odd-sizes": {"n_positions": 71, "n_embd": 35, "n_layer": 2, "n_head": 7, "n_inner": 3},
    "gpt2-all-at-once": {
        "activation_function": "relu",
        "n_inner": 50,
        "layer_norm_epsilon": 0.1,
        "scale_attn_weights": False,
        "scale_attn_by_inverse_layer_idx": True,
        "reorder_and_upcast_attn": True,
        "tie_word_embeddings": False,
        "attn_pdrop": 0.5,
    },
}
PUBLISHED = {
    "openai-community/gpt2": 124_439_808,
    "openai-community/gpt2-medium": 354_823_168,
    "openai-community/gpt2-large": 774_030_080,
    "openai-community/gpt2-xl": 1_557_611_200,
}

FAMILY = Cases(SMALL, CASES, few=("gpt2",), gradients=("gpt2", "gpt2-untied"), published=PUBLISHED)
