"""Jamba, with attention, Mamba 1 layers and experts."""

from typing import Any

from cases import Cases

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "num_experts": 4,
    "attn_layer_offset": 1,
    "mamba_d_state": 8,
}
CASES: dict[str, dict[str, Any]] = {
    "jamba": {},
    "jamba-all-experts": {"num_experts_per_tok": 4},
    "jamba-no-experts": {"num_experts": 1, "tie_word_embeddings": True, "num_key_value_heads": 4, "rms_norm_eps": 0.1},
    "jamba-sizes": {"mamba_expand": 3, "mamba_dt_rank": 5, "mamba_d_state": 17, "mamba_d_conv": 3,
                    "mamba_conv_bias": False, "mamba_proj_bias": True},
    "jamba-last": {"attn_layer_period": 3, "attn_layer_offset": 2, "expert_layer_offset": 0, "mamba_dt_rank": "auto"},
    "jamba-every-layer": {"attn_layer_period": 2, "attn_layer_offset": 0, "expert_layer_period": 1,
                          "expert_layer_offset": 0, "num_experts_per_tok": 1, "hidden_act": "relu"},
}  # fmt: skip
REFUSED = (
    (
        {"attn_layer_offset": 8},
        r"attn_layer_offset \(8\) must be below attn_layer_period \(8\)",
    ),
    ({"num_experts_per_tok": 5}, "num_experts_per_tok .5. cannot be more than num_experts .4."),
    ({"mamba_dt_rank": "half"}, 'mamba_dt_rank must be a number or "auto"'),
    ({"sliding_window": 8}, "sliding_window"),
)
PUBLISHED = {"ai21labs/Jamba-v0.1": 51_570_323_328}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("jamba",),
    gradients=("jamba", "jamba-sizes"),
    published=PUBLISHED,
    refused=REFUSED,
)
