"""NomicBERT, GTE, jina-embeddings-v3 and JinaBERT. tests/models/test_remote_encoders.py has the
files of their own code.
"""

from typing import Any

from jina_reference import register

from encoder_cases import EncoderCases

register()

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 44,
    "max_position_embeddings": 60,
    "pad_token_id": 0,
}
LABELS = {
    "id2label": {"0": "no", "1": "yes", "2": "perhaps"},
    "label2id": {"no": 0, "yes": 1, "perhaps": 2},
}
THETA = {"rope_type": "default", "rope_theta": 30.0}
LINEAR = {"rope_type": "linear", "rope_theta": 50.0, "factor": 1.7}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 24,
}
DROPOUT = {
    "hidden_dropout_prob": 0.5,
    "attention_probs_dropout_prob": 0.4,
    "classifier_dropout": 0.3,
}

NOMIC: dict[str, dict[str, Any]] = {
    "nomic_bert": {},
    "nomic_bert:gelu": {"hidden_act": "gelu", "type_vocab_size": 3, **LABELS},
    "nomic_bert:theta": {"rope_parameters": THETA, "num_attention_heads": 2, "num_labels": 1},
    "nomic_bert:head-size": {"head_dim": 6, "num_hidden_layers": 1},
    "nomic_bert:eps": {"layer_norm_eps": 0.1, "hidden_act": "relu", "pad_token_id": 3},
    "nomic_bert:linear": {"rope_parameters": LINEAR, "intermediate_size": 20},
    "nomic_bert:yarn": {"rope_parameters": YARN, "initializer_range": 0.5},
    "nomic_bert:dynamic": {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 20.0, "factor": 2.0}},
    "nomic_bert:dropout": DROPOUT,
}  # fmt: skip
GTE: dict[str, dict[str, Any]] = {
    "gte": {},
    "gte:no-types": {"type_vocab_size": 0, "num_labels": 1},
    "gte:two-types": {"type_vocab_size": 2, "hidden_act": "gelu_new", **LABELS},
    "gte:theta": {"rope_parameters": THETA, "num_attention_heads": 1},
    "gte:linear": {"rope_parameters": LINEAR, "hidden_act": "silu"},
    "gte:eps": {"layer_norm_eps": 0.1, "num_hidden_layers": 1},
    "gte:untied": {"tie_word_embeddings": False, "problem_type": "regression"},
    "gte:dropout": {**DROPOUT, "intermediate_size": 70},
}
JINA_V3: dict[str, dict[str, Any]] = {
    "jina_embeddings_v3": {"layer_norm_eps": 1e-5},
    "jina_embeddings_v3:theta": {"rope_parameters": THETA, "hidden_act": "relu", **LABELS},
    "jina_embeddings_v3:untied": {
        "tie_word_embeddings": False,
        "type_vocab_size": 2,
        "num_labels": 1,
    },
    "jina_embeddings_v3:dropout": {**DROPOUT, "num_hidden_layers": 1, "layer_norm_eps": 0.1},
}
JINA_BERT: dict[str, dict[str, Any]] = {
    "jina_bert": {},
    "jina_bert:six-heads": {"hidden_size": 48, "num_attention_heads": 6, **LABELS},
    "jina_bert:reglu": {"feed_forward_type": "reglu", "hidden_act": "silu", "num_labels": 1},
    "jina_bert:one-head": {"num_attention_heads": 1, "type_vocab_size": 3, "layer_norm_eps": 0.1},
    "jina_bert:untied": {"tie_word_embeddings": False, "num_hidden_layers": 1},
    "jina_bert:dropout": {**DROPOUT, "intermediate_size": 20, "emb_pooler": "mean"},
    "jina_bert_code": {},
    "jina_bert_code:three-heads": {"hidden_size": 24, "num_attention_heads": 3, "layer_norm_eps": 0.01, **LABELS},
    "jina_bert_code:reglu": {"feed_forward_type": "reglu", "num_hidden_layers": 1, "num_labels": 1},
}  # fmt: skip
CASES = EncoderCases(
    small={
        "nomic_bert": SMALL,
        "gte": SMALL,
        "jina_embeddings_v3": {**SMALL, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
        "jina_bert": SMALL,
        "jina_bert_code": SMALL,
    },
    cases={**NOMIC, **GTE, **JINA_V3, **JINA_BERT},
    published={
        "nomic-ai/nomic-embed-text-v1": 136_731_648,
        "nomic-ai/nomic-embed-text-v1.5": 136_731_648,
        "nomic-ai/CodeRankEmbed": 136_731_648,
        "Snowflake/snowflake-arctic-embed-m-long": 136_731_648,
        "Snowflake/snowflake-arctic-embed-m-v2.0": 305_368_320,
        "Alibaba-NLP/gte-base-en-v1.5": 136_776_192,
        "Alibaba-NLP/gte-large-en-v1.5": 434_139_136,
        "Alibaba-NLP/gte-multilingual-base": 305_369_089,
        "jinaai/jina-embeddings-v3-hf": 558_314_496,
        "jinaai/jina-embeddings-v2-small-en": 32_428_032,
        "jinaai/jina-embeddings-v2-base-en": 136_777_728,
        "jinaai/jina-embeddings-v2-base-de": 160_223_232,
        "jinaai/jina-embeddings-v2-base-code": 160_278_528,
    },
    refused=(
        ("nomic_bert", {"num_experts": 8, "moe_top_k": 2}, "sets num_experts to 8"),
        ("nomic_bert", {"prenorm": True}, "sets prenorm to True"),
        ("nomic_bert", {"qkv_proj_bias": True}, "sets qkv_proj_bias to True"),
        ("nomic_bert", {"mlp_fc1_bias": True}, "mlp_fc1_bias True is not one of None, False"),
        ("nomic_bert", {"rotary_emb_interleaved": True}, "sets rotary_emb_interleaved to True"),
        ("nomic_bert", {"rotary_emb_fraction": 0.0}, "sets rotary_emb_fraction to 0.0"),
        ("nomic_bert", {"activation_function": "gelu"}, "activation_function 'gelu' is not one of"),
        ("nomic_bert", {"num_attention_heads": 5}, "must be a multiple of num_attention_heads"),
        ("nomic_bert", {"head_dim": 5}, r"the head size \(5\) must be even"),
        ("nomic_bert", {"architectures": ["NomicBertForQuestionAnswering"]}, "has no question answ"),
        ("gte", {"layer_norm_type": "rms_norm"}, "sets layer_norm_type to 'rms_norm'"),
        ("gte", {"logn_attention_scale": True}, "sets logn_attention_scale to True"),
        ("gte", {"position_embedding_type": "absolute"}, "a gte model has rope only"),
        ("gte", {"head_dim": 16}, "a gte model has no head_dim"),
        ("gte", {"rope_scaling": {"type": "longrope"}}, "rope_type 'longrope' is not one of"),
        ("jina_bert", {"position_embedding_type": "absolute"}, "a jina_bert model has alibi only"),
        ("jina_bert", {"feed_forward_type": "original"}, "feed_forward_type 'original' is not one"),
        ("jina_bert", {"rope_theta": 100.0}, "a jina_bert model has no rope_parameters"),
    ),
)  # fmt: skip
