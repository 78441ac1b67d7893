"""GPT-Neo: global and local layers in every order, windows of one position to more than the
context.
"""

from cases import Cases

ALL_LOCAL = [[["local"], 3]]
SMALL = {
    "vocab_size": 61,
    "max_position_embeddings": 96,
    "hidden_size": 24,
    "num_heads": 4,
    "num_layers": 4,
    "attention_types": [[["global", "local"], 2]],
    "window_size": 4,
}
CASES = {
    "gpt_neo": {},
    "gpt_neo-all-global": {"attention_types": [[["global"], 3]], "num_layers": 3},
    "gpt_neo-all-local": {"attention_types": ALL_LOCAL, "num_layers": 3},
    "gpt_neo-two-groups": {"attention_types": [[["global", "local", "local"], 1], [["global"], 2]], "num_layers": 5},
    "gpt_neo-local-first": {"attention_types": [[["local", "global"], 1]], "num_layers": 2},
    "gpt_neo-window-1": {"window_size": 1},
    "gpt_neo-window-1-all-local": {"window_size": 1, "attention_types": ALL_LOCAL, "num_layers": 3},
    "gpt_neo-window-2": {"window_size": 2, "attention_types": ALL_LOCAL, "num_layers": 3},
    "gpt_neo-window-7": {"window_size": 7},
    "gpt_neo-window-7-all-local": {"window_size": 7, "attention_types": ALL_LOCAL, "num_layers": 3},
    "gpt_neo-window-full-context": {"window_size": 96},
    "gpt_neo-window-beyond-context": {"window_size": 200},
    "gpt_neo-intermediate": {"intermediate_size": 17},
    "gpt_neo-epsilon": {"layer_norm_epsilon": 0.5},
    "gpt_neo-gelu": {"activation_function": "gelu"},
    "gpt_neo-relu": {"activation_function": "relu"},
    "gpt_neo-silu": {"activation_function": "silu"},
    "gpt_neo-tanh": {"activation_function": "tanh"},
    "gpt_neo-untied": {"tie_word_embeddings": False},
    "gpt_neo-one-head": {"num_heads": 1},
    "gpt_neo-many-heads": {"num_heads": 12},
    "gpt_neo-dropouts": {"embed_dropout": 0.5, "attention_dropout": 0.4, "resid_dropout": 0.3},
    "gpt_neo-odd-sizes": {"max_position_embeddings": 71, "hidden_size": 35, "num_heads": 7, "window_size": 3,
                          "intermediate_size": 1},
}  # fmt: skip
PUBLISHED = {
    "EleutherAI/gpt-neo-125m": 125_198_592,
    "EleutherAI/gpt-neo-1.3B": 1_315_575_808,
    "EleutherAI/gpt-neo-2.7B": 2_651_307_520,
}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("gpt_neo", "gpt_neo-window-7-all-local"),
    gradients=("gpt_neo", "gpt_neo-untied"),
    published=PUBLISHED,
)
