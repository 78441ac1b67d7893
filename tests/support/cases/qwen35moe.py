"""Qwen 3.5 MoE's text model and Qwen 3 Next."""

from cases import Cases
from cases.qwen35 import FAMILY as DENSE

SMALL = {
    **DENSE.small,
    "moe_intermediate_size": 12,
    "shared_expert_intermediate_size": 20,
    "num_experts": 5,
    "num_experts_per_tok": 2,
}
del SMALL["intermediate_size"]
NEXT = {"intermediate_size": 44}
TYPES = ["full_attention", "linear_attention", "full_attention", "linear_attention"]
CASES = {
    "qwen3_5_moe_text": {},
    "qwen3_5_moe_text-all-experts": {"num_experts": 2},
    "qwen3_5_moe_text-layers": {"full_attention_interval": 4, "num_hidden_layers": 4,
                                "linear_value_head_dim": 8},
    "qwen3_5_moe_text-gelu-tied": {"hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True,
                                   "attention_bias": True},
    "qwen3_next": NEXT,
    "qwen3_next-all-experts": {**NEXT, "num_experts": 3, "num_experts_per_tok": 3, "linear_value_head_dim": 8},
    "qwen3_next-dense-layers": {**NEXT, "num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3],
                                "layer_types": TYPES},
    "qwen3_next-sizes": {**NEXT, "linear_key_head_dim": 24, "linear_value_head_dim": 68, "linear_num_value_heads": 6,
                         "norm_topk_prob": False},
}  # fmt: skip
REFUSED = (
    ({"mlp_only_layers": [1]}, r"sets mlp_only_layers to \[1\]"),
    (
        {"num_experts_per_tok": 6},
        r"num_experts_per_tok \(6\) cannot be more than num_experts \(5\)",
    ),
    ({"norm_topk_prob": False}, "a qwen3_5_moe_text model has no norm_topk_prob"),
)
PUBLISHED = {
    "Qwen/Qwen3.5-35B-A3B": 34_660_610_688,
    "Qwen/Qwen3-Next-80B-A3B-Instruct": 79_674_391_296,
}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("qwen3_5_moe_text", "qwen3_next"),
    gradients=("qwen3_5_moe_text", "qwen3_next-sizes"),
    published=PUBLISHED,
    refused=REFUSED,
)
