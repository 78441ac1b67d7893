"""BERT, RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT, ELECTRA and ALBERT."""

from typing import Any

from encoder_cases import EncoderCases

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 44,
    "max_position_embeddings": 50,
}
DISTIL = {
    "vocab_size": 61,
    "dim": 32,
    "n_layers": 3,
    "n_heads": 4,
    "hidden_dim": 44,
    "max_position_embeddings": 50,
}
LABELS = {
    "id2label": {"0": "no", "1": "yes", "2": "perhaps"},
    "label2id": {"no": 0, "yes": 1, "perhaps": 2},
}
ROBERTA = {**SMALL, "type_vocab_size": 1, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}

BERT: dict[str, dict[str, Any]] = {
    "bert": {},
    "bert:one-head": {"num_attention_heads": 1, "hidden_act": "relu", "num_labels": 1},
    "bert:three-types": {"type_vocab_size": 3, "hidden_act": "gelu_new", **LABELS},
    "bert:eps": {"layer_norm_eps": 0.1, "hidden_act": "silu", "pad_token_id": 3},
    "bert:untied": {"tie_word_embeddings": False, "num_hidden_layers": 1, "problem_type": "regression"},
    "bert:dropout": {"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.5, "classifier_dropout": 0.3},
    "bert:wide": {"hidden_size": 48, "num_attention_heads": 2, "intermediate_size": 20, "hidden_act": "tanh"},
    "bert:old-names": {"position_embedding_type": "absolute", "gradient_checkpointing": False,
                       "pooler_type": "first_token_transform", "directionality": "bidi", "initializer_range": 0.5},
}  # fmt: skip
ROBERTAS: dict[str, dict[str, Any]] = {
    "roberta": {},
    # the masked-LM head has gelu anyway
    "roberta:act": {"hidden_act": "relu", "layer_norm_eps": 1e-5, **LABELS},
    "roberta:pad-4": {"pad_token_id": 4},
    "roberta:two-types": {"type_vocab_size": 2, "classifier_dropout": 0.3},
    "roberta:untied": {"tie_word_embeddings": False, "num_labels": 1},
    "xlm-roberta": {"layer_norm_eps": 1e-5},
    "xlm-roberta:pad-0": {"pad_token_id": 0, "hidden_act": "gelu_fast"},
    "camembert": {"layer_norm_eps": 1e-5},
    "camembert:one-layer": {"num_hidden_layers": 1, "num_attention_heads": 8, **LABELS},
}
DISTILBERT: dict[str, dict[str, Any]] = {
    "distilbert": {},
    "distilbert:relu": {"activation": "relu", "n_heads": 2, **LABELS},
    "distilbert:dropout": {
        "dropout": 0.5,
        "attention_dropout": 0.4,
        "seq_classif_dropout": 0.3,
        "qa_dropout": 0.2,
    },
    "distilbert:untied": {
        "tie_word_embeddings": False,
        "num_labels": 1,
        "sinusoidal_pos_embds": True,
    },
    "distilbert:one-layer": {"n_layers": 1, "hidden_dim": 70},
}
ELECTRA: dict[str, dict[str, Any]] = {
    "electra": {"embedding_size": 16},
    "electra:equal-sizes": {"embedding_size": 32, "hidden_act": "relu"},
    "electra:wider-embedding": {"embedding_size": 40, "type_vocab_size": 3, **LABELS},
    "electra:untied": {"embedding_size": 16, "tie_word_embeddings": False, "classifier_dropout": 0.3},
    "electra:summary": {"embedding_size": 8, "summary_type": "first", "summary_use_proj": True, "num_labels": 1,
                        "summary_activation": "gelu", "summary_last_dropout": 0.1, "generator_size": "0.25"},
}  # fmt: skip
ALBERT: dict[str, dict[str, Any]] = {
    "albert": {},
    "albert:groups": {"num_hidden_layers": 5, "num_hidden_groups": 2, "inner_group_num": 2, **LABELS},
    "albert:equal-sizes": {"embedding_size": 32, "hidden_act": "relu", "num_hidden_groups": 3, "num_labels": 1},
    "albert:untied": {"tie_word_embeddings": False, "type_vocab_size": 3, "classifier_dropout_prob": 0.3},
    "albert:published": {"net_structure_type": 0, "gap_size": 0, "num_memory_blocks": 0, "down_scale_factor": 1,
                         "layers_to_keep": [], "hidden_dropout_prob": 0.1, "layer_norm_eps": 1e-5},
}  # fmt: skip
REFUSED = (
    (
        "bert",
        {"position_embedding_type": "relative_key"},
        "sets position_embedding_type to 'relative_key'",
    ),
    (
        "bert",
        {"position_embedding_type": "relative_key_query"},
        "sets position_embedding_type to 'relative_key_query'",
    ),
    ("bert", {"is_decoder": True}, "sets is_decoder to True"),
    ("bert", {"add_cross_attention": True}, "sets add_cross_attention to True"),
    (
        "bert",
        {"num_attention_heads": 5},
        r"hidden_size \(32\) must be a multiple of num_attention_heads \(5\)",
    ),
    ("bert", {"hidden_act": "mish"}, "hidden_act 'mish' is not one of"),
    ("bert", {"embedding_size": 16}, "a bert model has no embedding_size"),
    ("bert", {"chunk_size_feed_forward": 3}, "sets chunk_size_feed_forward to 3"),
    ("bert", {"layer_norm_eps": 2.0}, "layer_norm_eps cannot be 2.0"),
    ("roberta", {"is_decoder": True}, "sets is_decoder to True"),
    (
        "xlm-roberta",
        {"position_embedding_type": "relative_key"},
        "sets position_embedding_type to 'relative_key'",
    ),
    (
        "distilbert",
        {"n_heads": 3},
        r"hidden_size \(32\) must be a multiple of num_attention_heads \(3\)",
    ),
    (
        "distilbert",
        {"layer_norm_eps": 1e-5},
        "layer_norm_eps must be 1e-12 for distilbert, not 1e-05",
    ),
    ("electra", {"is_decoder": True}, "sets is_decoder to True"),
    (
        "albert",
        {"num_hidden_groups": 4},
        r"num_hidden_groups \(4\) must be at most num_hidden_layers \(3\)",
    ),
    ("bert", {"num_hidden_groups": 2}, "a bert model has no num_hidden_groups"),
)
CASES = EncoderCases(
    small={
        "bert": SMALL,
        "distilbert": DISTIL,
        "electra": SMALL,
        "roberta": ROBERTA,
        "xlm-roberta": ROBERTA,
        "camembert": ROBERTA,
        "albert": {**SMALL, "embedding_size": 16},
    },
    cases={**BERT, **ROBERTAS, **DISTILBERT, **ELECTRA, **ALBERT},
    published={
        "google-bert/bert-base-uncased": 109_514_298,
        "google-bert/bert-large-uncased": 335_174_458,
        "sentence-transformers/all-MiniLM-L6-v2": 22_565_376,
        "FacebookAI/roberta-base": 124_697_433,
        "FacebookAI/roberta-large": 355_412_057,
        "FacebookAI/xlm-roberta-base": 278_295_186,
        "FacebookAI/xlm-roberta-large": 560_142_482,
        "distilbert/distilbert-base-uncased": 66_985_530,
        "google/electra-small-discriminator": 13_483_008,
        "google/electra-base-discriminator": 108_891_648,
        "albert/albert-base-v2": 11_221_680,
        "albert/albert-large-v2": 16_795_824,
        "albert/albert-xlarge-v2": 54_821_040,
        "albert/albert-xxlarge-v2": 206_368_944,
    },
    refused=REFUSED,
)
