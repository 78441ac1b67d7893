"""GPT-J."""

from cases import Cases

SMALL = {
    "vocab_size": 61,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 96,
    "rotary_dim": 4,
}
CASES = {
    "gptj": {},
    "gptj-two-numbers": {"rotary_dim": 2},
    "gptj-six-numbers": {"rotary_dim": 6},
    "gptj-whole-heads": {"rotary_dim": 8},
    "gptj-two-heads": {"n_head": 2, "rotary_dim": 10},
    "gptj-one-head": {"n_head": 1, "rotary_dim": 24},
    "gptj-inner": {"n_inner": 44},
    "gptj-gelu": {"activation_function": "gelu"},
    "gptj-relu": {"activation_function": "relu"},
    "gptj-tied": {"tie_word_embeddings": True},
    "gptj-epsilon": {"layer_norm_epsilon": 0.1},
    "gptj-dropout": {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5},
    "gptj-old-names": {"n_ctx": 96, "rotary": True, "scale_attn_weights": True},
}
REFUSED = (
    ({"rotary": False}, "sets rotary to False"),
    ({"scale_attn_weights": False}, "sets scale_attn_weights to False"),
    ({"rotary_dim": None}, "rotary_dim cannot be None"),
    ({"rotary_dim": 3}, r"rotary_dim \(3\) must be even, and at most a head's 8 numbers"),
    ({"rotary_dim": 10}, r"rotary_dim \(10\) must be even"),
    ({"n_head": 5}, r"n_embd \(32\) must be a multiple of n_head \(5\)"),
    ({"rope_theta": 500.0}, "a setting 'rope_theta' that this implementation does not know"),
    ({"activation_function": "mish"}, "activation_function 'mish' is not one of"),
)
PUBLISHED = {"EleutherAI/gpt-j-6b": 6_050_882_784}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("gptj",),
    gradients=("gptj-six-numbers", "gptj-tied"),
    published=PUBLISHED,
    refused=REFUSED,
)
