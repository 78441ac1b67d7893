"""GPT-NeoX, for example Pythia."""

from cases import Cases

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
    "rotary_pct": 0.25,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 24,
    "partial_rotary_factor": 1.0,
}
CASES = {
    "gpt_neox": {},
    "gpt_neox-half": {"rotary_pct": 0.5},
    "gpt_neox-all": {"rotary_pct": 1.0},
    "gpt_neox-three-quarters": {"rotary_pct": 0.75},
    "gpt_neox-theta": {"rotary_emb_base": 37},
    "gpt_neox-new-names": {
        "rotary_pct": None,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 50.0,
            "partial_rotary_factor": 0.5,
        },
    },
    "gpt_neox-both-names": {
        "rotary_pct": 0.5,
        "rotary_emb_base": 50.0,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 50.0,
            "partial_rotary_factor": 0.5,
        },
    },
    "gpt_neox-linear": {"rope_scaling": {"type": "linear", "factor": 3.0}, "rotary_emb_base": 50.0},
    "gpt_neox-yarn": {"rotary_pct": None, "rope_parameters": YARN},
    "gpt_neox-one-after-the-other": {"use_parallel_residual": False},
    "gpt_neox-no-bias": {"attention_bias": False},
    "gpt_neox-tied": {"tie_word_embeddings": True},
    "gpt_neox-two-heads": {"num_attention_heads": 2},
    "gpt_neox-one-head": {"num_attention_heads": 1},
    "gpt_neox-tanh-gelu": {"hidden_act": "gelu_new"},
    "gpt_neox-relu": {"hidden_act": "relu"},
    "gpt_neox-epsilon": {"layer_norm_eps": 0.1},
    "gpt_neox-dropout": {"hidden_dropout": 0.5, "attention_dropout": 0.5},
}
REFUSED = (
    ({"rotary_pct": 0.3, "rope_parameters": {"rope_type": "default", "rope_theta": 9.0, "partial_rotary_factor": 0.5}},
     "two values of partial_rotary_factor"),
    ({"rotary_pct": 0.1}, "rotates 0 of a head's 8 numbers"),
    ({"rotary_pct": 0.4}, "rotates 3 of a head's 8 numbers"),
    ({"rotary_pct": 1.5}, "partial_rotary_factor must be at most 1"),
    ({"num_attention_heads": 5}, r"hidden_size \(32\) must be a multiple of num_attention_heads \(5\)"),
    ({"hidden_act": "mish"}, "hidden_act 'mish' is not one of"),
    ({"rope_scaling": {"type": "longrope", "factor": 2}}, "rope_type 'longrope' is not one of"),
)  # fmt: skip
PUBLISHED = {
    "EleutherAI/pythia-14m": 14_067_712,
    "EleutherAI/pythia-70m": 70_426_624,
    "EleutherAI/pythia-160m": 162_322_944,
    "EleutherAI/pythia-410m": 405_334_016,
    "EleutherAI/pythia-1b": 1_011_781_632,
    "EleutherAI/pythia-1.4b": 1_414_647_808,
    "EleutherAI/pythia-2.8b": 2_775_208_960,
    "EleutherAI/pythia-6.9b": 6_857_302_016,
    "EleutherAI/pythia-12b": 11_846_072_320,
    "EleutherAI/gpt-neox-20b": 20_554_567_680,
}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("gpt_neox", "gpt_neox-one-after-the-other"),
    gradients=("gpt_neox-half", "gpt_neox-one-after-the-other", "gpt_neox-tied"),
    published=PUBLISHED,
    refused=REFUSED,
)
