"""ModernBERT, with the rotary settings of older and newer files."""

from typing import Any

from encoder_cases import EncoderCases

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 44,
    "max_position_embeddings": 70,
    "local_attention": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
LABELS = {
    "id2label": {"0": "no", "1": "yes", "2": "perhaps"},
    "label2id": {"no": 0, "yes": 1, "perhaps": 2},
}
FULL, SLIDING = "full_attention", "sliding_attention"
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 24,
}

MODERNBERT: dict[str, dict[str, Any]] = {
    "modernbert": {},
    "modernbert:every-second": {"global_attn_every_n_layers": 2, "local_attention": 7, "classifier_pooling": "mean"},
    "modernbert:all-global": {"global_attn_every_n_layers": 1, "hidden_activation": "silu", **LABELS},
    "modernbert:layer-types": {"layer_types": [SLIDING, FULL, SLIDING, SLIDING], "local_attention": 2},
    "modernbert:wide-window": {"local_attention": 400, "norm_eps": 0.1, "num_labels": 1},
    "modernbert:old-thetas": {"global_rope_theta": 300.0, "local_rope_theta": 20.0, "classifier_pooling": "mean",
                              "layer_norm_eps": 0.3, "position_embedding_type": "absolute", "reference_compile": False,
                              "repad_logits_with_grad": False},
    "modernbert:new-thetas": {"rope_parameters": {FULL: {"rope_type": "default", "rope_theta": 300.0},
                                                  SLIDING: {"rope_type": "default", "rope_theta": 20.0}}},
    "modernbert:scaled": {"rope_parameters": {FULL: YARN, SLIDING: {"rope_type": "linear", "factor": 3.0,
                                                                    "rope_theta": 50.0}}},
    "modernbert:half-old": {"global_rope_theta": 300.0, "rope_parameters": {SLIDING: {"rope_type": "default",
                                                                                      "rope_theta": 20.0}}},
    "modernbert:one-key": {"local_attention": 1, "num_attention_heads": 2, "hidden_activation": "gelu_new"},
    "modernbert:activations": {"hidden_activation": "relu", "classifier_activation": "silu", "sparse_prediction": False,
                               "deterministic_flash_attn": False, "initializer_cutoff_factor": 2.0},
    "modernbert:untied": {"tie_word_embeddings": False, "problem_type": "regression", "initializer_range": 0.5},
    "modernbert:dropout": {"attention_dropout": 0.5, "embedding_dropout": 0.4, "mlp_dropout": 0.3,
                           "classifier_dropout": 0.2},
    "modernbert:flags": {"norm_bias": False, "attention_bias": False, "mlp_bias": False, "classifier_bias": False,
                         "decoder_bias": True, "num_hidden_layers": 1},
}  # fmt: skip
CASES = EncoderCases(
    small={"modernbert": SMALL},
    cases=MODERNBERT,
    published={
        "answerdotai/ModernBERT-base": 149_655_232,
        "answerdotai/ModernBERT-large": 395_881_664,
    },
    refused=(
        *(
            ("modernbert", {name: True}, f"sets {name} to True")
            for name in ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias", "is_decoder")
        ),
        ("modernbert", {"decoder_bias": False}, "sets decoder_bias to False"),
        (
            "modernbert",
            {"classifier_pooling": "max"},
            "classifier_pooling 'max' is not one of cls, mean",
        ),
        ("modernbert", {"hidden_activation": "mish"}, "hidden_activation 'mish' is not one of"),
        ("modernbert", {"num_attention_heads": 32}, "with an even head size"),
        (
            "modernbert",
            {"layer_types": ["chunked_attention"] * 4},
            "layer_types must be full_attention or",
        ),
        ("modernbert", {"layer_types": [FULL]}, "for each of 4 layers"),
        (
            "modernbert",
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            "settings for full_attention and",
        ),
        (
            "modernbert",
            {"rope_parameters": {"chunked_attention": {}}},
            "settings for full_attention and",
        ),
        (
            "modernbert",
            {"rope_parameters": {FULL: {"rope_type": "longrope"}}},
            "rope_type 'longrope' is not one of",
        ),
        (
            "modernbert",
            {"global_rope_theta": 5.0, "rope_parameters": {FULL: {"rope_theta": 6.0}}},
            "two values of global_rope_theta: 5.0 and 6.0",
        ),
        ("modernbert", {"rope_theta": 5.0}, "settings for full_attention and"),
    ),
)
