"""EuroBERT."""

from typing import Any

from encoder_cases import EncoderCases

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 44,
    "max_position_embeddings": 60,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "mask_token_id": 3,
}
LABELS = {
    "id2label": {"0": "no", "1": "yes", "2": "perhaps"},
    "label2id": {"no": 0, "yes": 1, "perhaps": 2},
}
THETA = {"rope_type": "default", "rope_theta": 30.0}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 60.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}  # fmt: skip

EUROBERT: dict[str, dict[str, Any]] = {
    "eurobert": {},
    "eurobert:kv-heads": {"num_key_value_heads": 2, **LABELS},
    "eurobert:one-kv-head": {"num_key_value_heads": 1, "classifier_pooling": "mean", "num_labels": 1},
    "eurobert:bos": {"classifier_pooling": "bos", "hidden_act": "gelu", "rope_parameters": THETA},
    "eurobert:biases": {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 0.1},
    "eurobert:tied": {"tie_word_embeddings": True, "mlp_bias": True, "num_hidden_layers": 1},
    "eurobert:head-size": {"head_dim": 6, "attention_dropout": 0.4, "problem_type": "regression"},
    "eurobert:llama3": {"rope_parameters": LLAMA3, "initializer_range": 0.5},
    "eurobert:older": {"clf_pooling": "mean", "classifier_pooling": "mean", "rope_theta": 40.0, "rope_scaling": None,
                       "pretraining_tp": 1, "is_causal": False, "mask_token": "<|mask|>", "hidden_dropout": 0.0},
}  # fmt: skip
CASES = EncoderCases(
    small={"eurobert": SMALL},
    cases=EUROBERT,
    published={
        "EuroBERT/EuroBERT-210m": 310_266_624,
        "EuroBERT/EuroBERT-610m": 755_625_600,
        "EuroBERT/EuroBERT-2.1B": 2_403_092_736,
    },
    refused=(
        ("eurobert", {"is_causal": True}, "sets is_causal to True"),
        ("eurobert", {"classifier_pooling": "max"}, "classifier_pooling 'max' is not one of bos"),
        ("eurobert", {"hidden_act": "mish"}, "hidden_act 'mish' is not one of"),
        ("eurobert", {"head_dim": 7}, r"EuroBERT: head_dim \(7\) must be even"),
        ("eurobert", {"num_key_value_heads": 3}, "must be a multiple of num_key_value_heads"),
        ("eurobert", {"sliding_window": 8}, "a eurobert model has no sliding_window"),
        (
            "eurobert",
            {"rope_parameters": {"rope_type": "longrope"}},
            "rope_type 'longrope' is not one of",
        ),
        ("eurobert", {"architectures": ["EuroBertForQuestionAnswering"]}, "has no question answ"),
    ),
)
