"""Falcon 7B, 40B, 2 11B and RW."""

from cases import Cases

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
NEW = {"new_decoder_architecture": True, "num_kv_heads": 2}
RW = {"multi_query": False, "parallel_attn": False, "bias": True}
CASES = {
    "falcon": {"num_hidden_layers": 3},
    "falcon-new": {**NEW, "num_hidden_layers": 3},
    "falcon-new-one-norm": {**NEW, "num_ln_in_parallel_attn": 1, "tie_word_embeddings": False},
    "falcon-new-all-heads": {"new_decoder_architecture": True, "ffn_hidden_size": 44},
    "falcon-rw": {**RW, "alibi": True},
    "falcon-rw-three-heads": {**RW, "alibi": True, "num_attention_heads": 3, "hidden_size": 24},
    # slopes that are not powers of two, so that bfloat16 rounds them and their products
    "falcon-rw-twelve-heads": {**RW, "alibi": True, "num_attention_heads": 12, "hidden_size": 48},
    "falcon-parallel-alibi": {"alibi": True, "num_attention_heads": 2, "hidden_size": 36},
    "falcon-new-alibi": {**NEW, "alibi": True, "activation": "relu", "layer_norm_epsilon": 0.1},
    "falcon-sequential": {"parallel_attn": False, "rope_theta": 50.0},
    "falcon-many-keys": {"multi_query": False, "bias": True, "activation": "gelu_new"},
    "falcon-linear": {"rope_scaling": {"type": "linear", "factor": 3.0}, "rope_theta": 50.0},
    "falcon-dropout": {"hidden_dropout": 0.3, "attention_dropout": 0.2},
}
REFUSED = (
    ({"parallel_attn": False, "new_decoder_architecture": True}, "requires parallel_attn"),
    ({"num_ln_in_parallel_attn": 2}, "requires new_decoder_architecture"),
    ({"num_attention_heads": 5}, r"must be a multiple of num_attention_heads \(5\)"),
    ({"apply_residual_connection_post_layernorm": True}, "post_layernorm to True"),
)
PUBLISHED = {
    "tiiuae/falcon-rw-1b": 1_311_625_216,
    "tiiuae/falcon-7b": 6_921_720_704,
    "tiiuae/falcon-11B": 11_102_822_400,
    "tiiuae/falcon-40b": 41_303_293_952,
}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("falcon", "falcon-new", "falcon-rw"),
    gradients=("falcon-new", "falcon-new-one-norm", "falcon-sequential", "falcon-many-keys"),
    published=PUBLISHED,
    refused=REFUSED,
)
