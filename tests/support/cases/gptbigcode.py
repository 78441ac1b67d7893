"""GPT-BigCode: SantaCoder and StarCoder."""

from cases import Cases

SMALL = {"vocab_size": 61, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 96}
CASES = {
    "gpt_bigcode": {},
    "gpt_bigcode-many-queries": {"multi_query": False},
    "gpt_bigcode-two-heads": {"n_head": 2},
    "gpt_bigcode-one-head": {"n_head": 1},
    "gpt_bigcode-one-head-many-queries": {"n_head": 1, "multi_query": False},
    "gpt_bigcode-inner": {"n_inner": 44},
    "gpt_bigcode-relu": {"activation_function": "relu"},
    "gpt_bigcode-gelu": {"activation_function": "gelu"},
    "gpt_bigcode-unscaled": {"scale_attn_weights": False},
    "gpt_bigcode-untied": {"tie_word_embeddings": False},
    "gpt_bigcode-untied-many-queries": {"tie_word_embeddings": False, "multi_query": False},
    "gpt_bigcode-epsilon": {"layer_norm_epsilon": 0.1},
    "gpt_bigcode-softmax": {
        "attention_softmax_in_fp32": False,
        "scale_attention_softmax_in_fp32": False,
    },
    "gpt_bigcode-dropout": {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5},
}
REFUSED = (
    ({"add_cross_attention": True}, "sets add_cross_attention to True"),
    ({"n_head": 5}, r"n_embd \(32\) must be a multiple of n_head \(5\)"),
    ({"num_key_value_heads": 2}, "num_key_value_heads contradicts"),
    ({"activation_function": "mish"}, "activation_function 'mish' is not one of"),
    (
        {"normalize_attention": True},
        "a setting 'normalize_attention' that this implementation does not know",
    ),
)
PUBLISHED = {
    "bigcode/gpt_bigcode-santacoder": 1_124_886_528,
    "bigcode/starcoderbase-1b": 1_137_207_296,
    "bigcode/starcoderbase": 15_517_456_384,
    "bigcode/starcoder": 15_517_456_384,
}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("gpt_bigcode", "gpt_bigcode-many-queries"),
    gradients=("gpt_bigcode", "gpt_bigcode-untied-many-queries"),
    published=PUBLISHED,
    refused=REFUSED,
)
