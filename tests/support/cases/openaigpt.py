"""GPT, the first of OpenAI's models."""

from cases import Cases

SMALL = {
    "model_type": "openai-gpt",
    "vocab_size": 61,
    "n_positions": 96,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
}
CASES = {
    "openaigpt": {"n_layer": 3},
    "openaigpt-one-head": {"n_head": 1},
    "openaigpt-untied": {"tie_word_embeddings": False, "n_head": 2},
    "openaigpt-relu": {"afn": "relu"},
    "openaigpt-silu": {"afn": "silu", "n_embd": 36},
    "openaigpt-epsilon": {"layer_norm_epsilon": 0.1, "resid_pdrop": 0.0, "afn": "swish"},
}
REFUSED = (
    ({"afn": "gelu_new"}, "afn 'gelu_new' is not one of gelu, relu, silu, swish"),
    ({"n_head": 5}, r"n_embd \(32\) must be a multiple of n_head \(5\)"),
)
PUBLISHED = {"openai-community/openai-gpt": 116_534_784}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("openaigpt",),
    gradients=("openaigpt", "openaigpt-untied", "openaigpt-silu"),
    published=PUBLISHED,
    refused=REFUSED,
)
