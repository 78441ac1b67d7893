"""MPT.

No gradients: scores with ALiBi are float32.
"""

from cases import Cases

SMALL = {
    "vocab_size": 61,
    "d_model": 32,
    "n_layers": 2,
    "n_heads": 4,
    "max_seq_len": 96,
    "eos_token_id": 2,
}
CASES = {
    "mpt": {"n_layers": 3, "attn_config": {"clip_qkv": 0.7}},
    "mpt-unclipped": {"attn_config": {"attn_impl": "torch", "clip_qkv": None}},
    "mpt-three-heads": {"n_heads": 3, "d_model": 24},
    "mpt-six-heads": {"n_heads": 6, "d_model": 36, "tie_word_embeddings": False},
    "mpt-epsilon": {"attn_config": {"alibi_bias_max": 8}, "layer_norm_epsilon": 0.1},
    "mpt-scale": {"attn_config": {"softmax_scale": 0.2, "clip_qkv": 2.0}, "n_heads": 1},
}
REFUSED = (
    ({"attn_config": {"qk_ln": True}}, "attn_config has qk_ln True"),
    ({"attn_config": {"alibi": False}}, "attn_config has alibi False"),
    ({"attn_config": {"clip_qkv": -1.0}}, "attn_config has clip_qkv -1.0"),
    ({"logit_scale": 0.5}, "logit_scale to 0.5"),
    ({"no_bias": False}, "no_bias to False"),
    ({"n_heads": 5}, r"d_model \(32\) must be a multiple of n_heads \(5\)"),
)
PUBLISHED = {"mosaicml/mpt-7b": 6_649_286_656, "mosaicml/mpt-30b": 29_957_200_896}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("mpt",),
    gradients=(),
    published=PUBLISHED,
    refused=REFUSED,
)
