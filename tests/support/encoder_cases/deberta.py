"""DeBERTa. Texts are longer than the distances with a separate bucket, and in some cases than the
largest distance.
"""

from typing import Any

from encoder_cases import EncoderCases

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 44,
    "max_position_embeddings": 150,
    "relative_attention": True,
    "position_biased_input": False,
    "pos_att_type": "p2c|c2p",
}
LABELS = {
    "id2label": {"0": "no", "1": "yes", "2": "perhaps"},
    "label2id": {"no": 0, "yes": 1, "perhaps": 2},
}
V3 = {"position_buckets": 16, "norm_rel_ebd": "layer_norm", "share_att_key": True}

V1: dict[str, dict[str, Any]] = {
    "deberta": {},
    "deberta:far": {"max_relative_positions": 20, "pos_att_type": ["c2p"], **LABELS},
    "deberta:p2c": {"pos_att_type": "p2c", "position_biased_input": True, "type_vocab_size": 3, "hidden_act": "relu"},
    "deberta:absolute": {"relative_attention": False, "position_biased_input": True, "legacy": False, "num_labels": 1},
    "deberta:new-head": {"legacy": False, "cls_dropout": 0.3, "pooler_dropout": 0.2, "pooler_hidden_act": "tanh"},
    "deberta:embedding": {"embedding_size": 24, "layer_norm_eps": 0.1, "num_attention_heads": 1},
}  # fmt: skip
V2: dict[str, dict[str, Any]] = {
    "deberta-v2": V3,
    "deberta-v2:conv": {**V3, "conv_kernel_size": 3, "conv_act": "gelu", "attention_head_size": 8, **LABELS},
    "deberta-v2:wide-conv": {**V3, "conv_kernel_size": 7, "conv_groups": 4, "num_hidden_layers": 1, "num_labels": 1},
    "deberta-v2:separate": {"position_buckets": 8, "max_relative_positions": 40, "type_vocab_size": 2,
                            "position_biased_input": True},
    "deberta-v2:no-buckets": {"max_relative_positions": 30, "share_att_key": True, "pos_att_type": ["c2p"]},
    "deberta-v2:p2c": {**V3, "pos_att_type": "p2c", "share_att_key": False, "hidden_act": "gelu_new"},
    "deberta-v2:no-scores": {"position_buckets": 8, "pos_att_type": None, "relative_attention": False,
                             "position_biased_input": True},
    "deberta-v2:new-head": {**V3, "legacy": False, "cls_dropout": 0.3, "pooler_dropout": 0.1},
    "deberta-v2:untied": {**V3, "tie_word_embeddings": False, "hidden_dropout_prob": 0.5, "embedding_size": 40,
                          "attention_probs_dropout_prob": 0.5, "initializer_range": 0.5},
    "deberta-v2:wide": {**V3, "hidden_size": 48, "num_attention_heads": 2, "intermediate_size": 20,
                        "pooler_hidden_size": 48, "pooler_hidden_act": "relu", "layer_norm_eps": 1e-5},
}  # fmt: skip
CASES = EncoderCases(
    small={"deberta": SMALL, "deberta-v2": SMALL},
    cases={**V1, **V2},
    published={
        "microsoft/deberta-base": 138_601_728,
        "microsoft/deberta-large": 405_163_008,
        "microsoft/deberta-v2-xlarge": 884_593_152,
        "microsoft/deberta-v3-xsmall": 70_682_112,
        "microsoft/deberta-v3-small": 141_304_320,
        "microsoft/deberta-v3-base": 183_831_552,
        "microsoft/deberta-v3-large": 434_012_160,
        "microsoft/mdeberta-v3-base": 278_218_752,
    },
    refused=(
        ("deberta", {"talking_head": True}, "sets talking_head to True"),
        ("deberta", {"pos_att_type": "c2p|p2p"}, "pos_att_type must contain c2p or p2c, not p2p"),
        ("deberta", {"position_buckets": 16}, "a deberta model has no position_buckets"),
        (
            "deberta",
            {"num_attention_heads": 5},
            r"hidden_size \(32\) must be a multiple of num_attention_heads \(5\)",
        ),
        ("deberta-v2", {"attention_head_size": 16}, "attention_head_size must be 8, not 16"),
        ("deberta-v2", {"pooler_hidden_size": 16}, "pooler_hidden_size must be 32, not 16"),
        (
            "deberta-v2",
            {"norm_rel_ebd": "other"},
            "norm_rel_ebd must be none or layer_norm, not other",
        ),
        (
            "deberta-v2",
            {"position_buckets": 300},
            r"position_buckets \(300\) must be at least 2, and half",
        ),
        ("deberta-v2", {"conv_kernel_size": 4}, "conv_kernel_size must be odd"),
        ("deberta-v2", {"hidden_act": "mish"}, "hidden_act 'mish' is not one of"),
    ),
)
