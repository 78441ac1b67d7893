"""Weight tables of LFM2 and LFM2 MoE. A layer has either self_attn or conv; the model reports
missing ones.
"""

from collections.abc import Mapping
from dataclasses import replace

from weights_map.engine import HubConfig, Row, Table, same, squeeze, tie, unstack
from weights_map.gguf import SIZES, GGUFArchitecture, inverse
from weights_map.mixtral import PROJECTIONS, expert_rows

LAYER = "model.layers.{}"
MLP = tuple(zip(("w1", "w3", "w2"), PROJECTIONS, strict=True))  # gate, up and down
rows = (
    Row("model.embed_tokens.weight", "embed_tokens.weight", same),
    Row(f"{LAYER}.operator_norm.weight", "layers.{}.operator_norm.weight", same),
    *(
        Row(f"{LAYER}.{name}", f"layers.{{}}.{name}", same, optional=True)
        for part in ("in_proj", "conv", "out_proj")
        for name in (f"conv.{part}.weight", f"conv.{part}.bias")
    ),
    *(
        Row(
            f"{LAYER}.self_attn.{name}.weight",
            f"layers.{{}}.self_attn.{name}.weight",
            same,
            optional=True,
        )
        for name in ("q_proj", "k_proj", "v_proj", "out_proj")
    ),
    *(
        Row(
            f"{LAYER}.self_attn.{name}_layernorm.weight",
            f"layers.{{}}.self_attn.{name}_norm.weight",
            same,
            optional=True,
        )
        for name in "qk"
    ),
    Row(f"{LAYER}.ffn_norm.weight", "layers.{}.ffn_norm.weight", same),
    *(
        Row(
            f"{LAYER}.feed_forward.{hub_name}.weight",
            f"layers.{{}}.mlp.{ours}.weight",
            same,
            optional=True,
        )
        for hub_name, ours in MLP
    ),
    # The final norm, in spite of its name.
    Row("model.embedding_norm.weight", "norm.weight", same),
    Row("lm_head.weight", "lm_head.weight", tie("model.embed_tokens.weight")),
)
experts = (
    Row(f"{LAYER}.feed_forward.gate.weight", "layers.{}.mlp.gate.weight", same, optional=True),
    Row(f"{LAYER}.feed_forward.expert_bias", "layers.{}.mlp.expert_bias", same, optional=True),
    *expert_rows(
        f"{LAYER}.feed_forward.experts", ("w1", "w3", "w2"), f"{LAYER}.feed_forward.experts"
    ),
)
spellings = (("model.", ""), ("", "model."))
tables = (Table("lfm2", rows, spellings), Table("lfm2_moe", (*rows, *experts), spellings))


def layer_types(settings: Mapping[str, object]) -> Mapping[str, object]:
    """A convolution has no KV heads. The width of the MLP is the computed one."""
    heads = settings["num_key_value_heads"]
    if not isinstance(heads, list):
        raise ValueError(
            "attention.head_count_kv must be a list with a number for each layer, not"
            f" {heads!r:.80}"
        )
    own: dict[str, object] = (
        {} if "moe_intermediate_size" in settings else {"block_auto_adjust_ff_dim": False}
    )
    return {
        **own,
        "num_key_value_heads": max(heads, default=0),
        "layer_types": ["full_attention" if number else "conv" for number in heads],
    }


def encode(config: HubConfig) -> Mapping[str, object]:
    """ValueError: llama.cpp lacks a setting of the model."""
    if config["conv_bias"]:
        raise ValueError("llama.cpp's lfm2 supports no convolution biases, but this model has them")
    if not config.get("use_expert_bias", True):
        raise ValueError("llama.cpp's lfm2moe requires use_expert_bias")
    heads = config["num_key_value_heads"]
    keys: dict[str, object] = {
        "attention.head_count_kv": [
            heads if kind == "full_attention" else 0 for kind in config["layer_types"]
        ]
    }
    return keys | ({"expert_gating_func": 2} if "num_experts" in config else {})


GGUF_SETTINGS = {
    **SIZES,
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "norm_eps",
    "shortconv.l_cache": "conv_L_cache",
}
GGUF_LAYERS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.out_proj": "conv.out_proj",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
}
lfm2 = GGUFArchitecture(
    "lfm2",
    model_type="lfm2",
    settings=GGUF_SETTINGS,
    rows=(
        Row("token_embd.weight", "model.embed_tokens.weight"),
        Row("blk.{}.attn_norm.weight", f"{LAYER}.operator_norm.weight"),
        Row("blk.{}.ffn_norm.weight", f"{LAYER}.ffn_norm.weight"),
        Row(
            "blk.{}.shortconv.conv.weight",
            f"{LAYER}.conv.conv.weight",
            inverse(squeeze(1)),
            optional=True,
        ),
        *(
            Row(f"blk.{{}}.{gguf_name}.weight", f"{LAYER}.{hub}.weight", optional=True)
            for gguf_name, hub in GGUF_LAYERS.items()
        ),
        Row("token_embd_norm.weight", "model.embedding_norm.weight"),
        Row("output.weight", "lm_head.weight", optional=True),
    ),
    derive=layer_types,
    encode=encode,
)
gguf = (
    lfm2,
    replace(
        lfm2,
        name="lfm2moe",
        model_type="lfm2_moe",
        settings={
            **GGUF_SETTINGS,
            "expert_count": "num_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "moe_intermediate_size",
            "leading_dense_block_count": "num_dense_layers",
        },
        required={"expert_gating_func": 2},
        rows=(
            *lfm2.rows,
            Row("blk.{}.ffn_gate_inp.weight", f"{LAYER}.feed_forward.gate.weight", optional=True),
            Row("blk.{}.exp_probs_b.bias", f"{LAYER}.feed_forward.expert_bias", optional=True),
            *(
                Row(
                    f"blk.{{}}.ffn_{name}_exps.weight",
                    f"{LAYER}.feed_forward.experts.{{}}.{hub}.weight",
                    unstack("num_experts"),
                    optional=True,
                )
                for name, hub in (("gate", "w1"), ("up", "w3"), ("down", "w2"))
            ),
        ),
    ),
)
