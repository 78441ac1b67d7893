"""OPT, and Galactica: without biases and factors of norms."""

from cases import Cases

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "ffn_dim": 44,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
}
AFTER, NARROW, BARE = (
    {"do_layer_norm_before": False},
    {"word_embed_proj_dim": 20},
    {"enable_bias": False},
)
CASES = {
    "opt": {},
    "opt-norms-after": AFTER,
    "opt-350m": {**AFTER, **NARROW},
    "opt-narrow": NARROW,
    "opt-wide": {"word_embed_proj_dim": 40},
    "opt-same-width": {"word_embed_proj_dim": 32},
    "opt-no-last-norm": {"_remove_final_layer_norm": True},
    "opt-narrow-no-last-norm": {**NARROW, "_remove_final_layer_norm": True},
    "opt-norms-after-no-last-norm": {**AFTER, "_remove_final_layer_norm": True},
    "opt-no-bias": BARE,
    "opt-plain-norms": {"layer_norm_elementwise_affine": False},
    "opt-galactica": {**BARE, "layer_norm_elementwise_affine": False, "activation_function": "gelu"},
    "opt-plain-norms-after": {**AFTER, **BARE, "layer_norm_elementwise_affine": False},
    "opt-untied": {"tie_word_embeddings": False},
    "opt-untied-350m": {**AFTER, **NARROW, "tie_word_embeddings": False},
    "opt-tanh-gelu": {"activation_function": "gelu_new"},
    "opt-two-heads": {"num_attention_heads": 2},
    "opt-one-head": {"num_attention_heads": 1},
    "opt-no-padding": {"pad_token_id": None},
    "opt-dropout": {"dropout": 0.5, "attention_dropout": 0.5},
    "opt-old-names": {"layerdrop": 0.0, "activation_dropout": 0.0, "learned_embeddings": True,
                      "scale_embeddings": False},
}  # fmt: skip
REFUSED = (
    ({"layerdrop": 0.1}, "sets layerdrop to 0.1"),
    ({"activation_dropout": 0.1}, "sets activation_dropout to 0.1"),
    ({"learned_embeddings": False}, "sets learned_embeddings to False"),
    ({"scale_embeddings": True}, "sets scale_embeddings to True"),
    (
        {"num_attention_heads": 5},
        r"hidden_size \(32\) must be a multiple of num_attention_heads \(5\)",
    ),
    ({"_remove_final_layer_norm": 1}, "_remove_final_layer_norm cannot be 1"),
    ({"word_embed_proj_dim": 0}, "word_embed_proj_dim cannot be 0"),
    ({"activation_function": "mish"}, "activation_function 'mish' is not one of"),
)
PUBLISHED = {
    "facebook/opt-125m": 125_239_296,
    "facebook/opt-350m": 331_196_416,
    "facebook/opt-1.3b": 1_315_758_080,
    "facebook/opt-2.7b": 2_651_596_800,
    "facebook/opt-6.7b": 6_658_473_984,
    "facebook/opt-13b": 12_853_473_280,
    "facebook/opt-30b": 29_974_540_288,
    "facebook/opt-66b": 65_719_701_504,
}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("opt", "opt-350m"),
    gradients=("opt", "opt-untied-350m", "opt-narrow-no-last-norm", "opt-plain-norms-after"),
    published=PUBLISHED,
    refused=REFUSED,
)
