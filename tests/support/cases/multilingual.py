"""BLOOM and XGLM.

No gradients: scores with ALiBi are float32, and the reference of XGLM fails in float64.
"""

from typing import Any

from cases import Cases

SMALL = {"vocab_size": 61, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
BLOOM = {"hidden_size": 32, "n_layer": 2, "n_head": 4, "seq_length": 96}
XGLM = {
    "num_layers": 2,
    "attention_heads": 4,
    "d_model": 32,
    "ffn_dim": 44,
    "max_position_embeddings": 96,
}
CASES: dict[str, dict[str, Any]] = {
    "bloom": BLOOM,
    "bloom-one-head": {**BLOOM, "n_head": 1},
    "bloom-three-heads": {**BLOOM, "n_head": 3, "hidden_size": 24},
    "bloom-six-heads": {**BLOOM, "n_head": 6, "hidden_size": 48, "n_layer": 1},
    "bloom-sixteen-heads": {**BLOOM, "n_head": 16, "n_layer": 1},
    "bloom-untied": {**BLOOM, "tie_word_embeddings": False},
    "bloom-epsilon": {**BLOOM, "layer_norm_epsilon": 0.1},
    "bloom-dropout": {**BLOOM, "hidden_dropout": 0.2, "attention_dropout": 0.3},
    "xglm": XGLM,
    "xglm-unscaled": {**XGLM, "scale_embedding": False},
    "xglm-two-heads": {**XGLM, "attention_heads": 2, "num_layers": 3},
    "xglm-wide": {**XGLM, "d_model": 48, "ffn_dim": 100},
    "xglm-relu": {**XGLM, "activation_function": "relu"},
    "xglm-tanh": {**XGLM, "activation_function": "gelu_new"},
    "xglm-untied": {**XGLM, "tie_word_embeddings": False},
    "xglm-dropout": {**XGLM, "dropout": 0.3, "attention_dropout": 0.0},
}
REFUSED = (
    (
        {"apply_residual_connection_post_layernorm": True},
        "apply_residual_connection_post_layernorm to True",
    ),
    ({"n_head": 5}, r"must be a multiple of num_attention_heads \(5\)"),
)
PUBLISHED: dict[str, int] = {
    "bigscience/bloom-560m": 559_214_592,
    "bigscience/bloom-1b1": 1_065_314_304,
    "bigscience/bloom-1b7": 1_722_408_960,
    "bigscience/bloom-3b": 3_002_557_440,
    "bigscience/bloom-7b1": 7_069_016_064,
    "facebook/xglm-564M": 564_463_616,
    "facebook/xglm-1.7B": 1_732_907_008,
    "facebook/xglm-2.9B": 2_941_505_536,
    "facebook/xglm-7.5B": 7_492_771_840,
}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("bloom", "xglm"),
    gradients=(),
    published=PUBLISHED,
    refused=REFUSED,
    fresh={"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
)
