"""MPNet. Texts are longer than the largest distance with a separate bucket, 128."""

from typing import Any

from encoder_cases import EncoderCases

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 44,
    "max_position_embeddings": 150,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
LABELS = {
    "id2label": {"0": "no", "1": "yes", "2": "perhaps"},
    "label2id": {"no": 0, "yes": 1, "perhaps": 2},
}

MPNET: dict[str, dict[str, Any]] = {
    "mpnet": {},
    "mpnet:one-head": {"num_attention_heads": 1, "num_labels": 1},
    "mpnet:act": {"hidden_act": "relu", **LABELS},  # the masked-LM head has gelu anyway
    "mpnet:eps": {"layer_norm_eps": 0.1, "num_hidden_layers": 1},
    "mpnet:untied": {"tie_word_embeddings": False, "problem_type": "multi_label_classification"},
    "mpnet:dropout": {
        "hidden_dropout_prob": 0.5,
        "attention_probs_dropout_prob": 0.5,
        "initializer_range": 0.5,
    },
    "mpnet:wide": {
        "hidden_size": 48,
        "num_attention_heads": 2,
        "intermediate_size": 20,
        "hidden_act": "gelu_new",
    },
    "mpnet:buckets": {"relative_attention_num_buckets": 32, "max_position_embeddings": 40},
}
CASES = EncoderCases(
    small={"mpnet": SMALL},
    cases=MPNET,
    published={
        "microsoft/mpnet-base": 109_518_527,
        "sentence-transformers/all-mpnet-base-v2": 108_895_872,
    },
    refused=(
        (
            "mpnet",
            {"relative_attention_num_buckets": 16},
            "sets relative_attention_num_buckets to 16",
        ),
        ("mpnet", {"pad_token_id": 0}, "pad_token_id 0 is not one of 1"),
        ("mpnet", {"is_decoder": True}, "sets is_decoder to True"),
        (
            "mpnet",
            {"num_attention_heads": 5},
            r"hidden_size \(32\) must be a multiple of num_attention_heads \(5\)",
        ),
        ("mpnet", {"hidden_act": "mish"}, "hidden_act 'mish' is not one of"),
        (
            "mpnet",
            {"type_vocab_size": 2},
            "has a setting 'type_vocab_size' that this implementation does not know",
        ),
        ("mpnet", {"max_position_embeddings": 2}, "max_position_embeddings cannot be 2"),
    ),
)
