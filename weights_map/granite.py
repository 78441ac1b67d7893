"""Weight tables of Granite 3 and 4: Llama's, with other names of the MLP in Granite 4, Mamba layers,
and experts.
"""

from collections.abc import Mapping
from dataclasses import replace

from weights_map.engine import HubConfig, Row, cat, same, split, unstack
from weights_map.hybrid import (
    GGUF_MAMBA2,
    MAMBA2,
    gguf_layer_types,
    gguf_mamba2,
    hybrid,
    quotient,
)
from weights_map.llama import BIASES, PAIRS, gguf_architecture, relative

LAYER, MOE = "model.layers.{}", "model.layers.{}.block_sparse_moe"
EXPERTS = "layers.{}.experts.experts"
GATE_UP, DOWN = (
    (f"{EXPERTS}.gate_proj.{{}}", f"{EXPERTS}.up_proj.{{}}"),
    f"{EXPERTS}.down_proj.{{}}",
)
# A layer has attention or Mamba, and some models have experts; the model reports missing ones.
granite4 = hybrid(
    "granitemoehybrid",
    MAMBA2,
    Row(
        f"{LAYER}.shared_mlp.input_linear.weight",
        ("layers.{}.mlp.gate_proj.weight", "layers.{}.mlp.up_proj.weight"),
        split(2),
    ),
    Row(f"{LAYER}.shared_mlp.output_linear.weight", "layers.{}.mlp.down_proj.weight"),
    # In files, and in transformers' memory
    *(
        Row(f"{MOE}.{name}.weight", "layers.{}.experts.gate.weight", same, optional=True)
        for name in ("router.layer", "router")
    ),
    *(
        Row(f"{MOE}.{name}", GATE_UP, unstack("num_experts", 2), optional=True)
        for name in ("input_linear.weight", "experts.gate_up_proj")
    ),
    *(
        Row(f"{MOE}.{name}", DOWN, unstack("num_experts"), optional=True)
        for name in ("output_linear.weight", "experts.down_proj")
    ),
    # Of GGUF files, whose gate and up are apart
    *(
        Row(f"{MOE}.experts.{name}_proj", template, unstack("num_experts"), optional=True)
        for name, template in zip(("gate", "up"), GATE_UP, strict=True)
    ),
)
tables = (
    relative("granite"),
    granite4,
)


def encode(config: HubConfig) -> Mapping[str, object]:
    """ValueError: the model has no positions, or layers that llama.cpp's granite lacks."""
    if config["model_type"] != "granitemoehybrid":
        return {}
    if config["num_local_experts"]:
        raise ValueError("llama.cpp's granite has no experts")
    if config["position_embedding_type"] != "rope":
        raise ValueError("llama.cpp's granite requires rotary embeddings, but this model has none")
    return {}


def has_mamba(config: HubConfig) -> bool:
    """Whether a model has a Mamba layer."""
    return "mamba" in config.get("layer_types", ())


def derive(settings: HubConfig) -> Mapping[str, object]:
    """Settings in the form of config.json."""
    return {
        "num_local_experts": 0,
        "shared_intermediate_size": settings.get("intermediate_size"),
        **settings,
        "mamba_expand": quotient(settings, "mamba_expand", "hidden_size"),
        "mamba_d_head": quotient(settings, "mamba_expand", "mamba_n_heads"),
        **gguf_layer_types(settings),
        # llama.cpp rotates unless the file says otherwise
        "position_embedding_type": (
            "rope" if settings.get("position_embedding_type", True) else "nope"
        ),
    }


def encode_hybrid(config: HubConfig) -> Mapping[str, object]:
    """ValueError: llama.cpp lacks a setting of the model."""
    if (
        config["attention_bias"]
        or config["mamba_proj_bias"]
        or not config["mamba_conv_bias"]
        or config["mamba_expand"] != 2
        or config["hidden_act"] != "silu"
    ):
        raise ValueError(
            "llama.cpp's granitehybrid requires mamba_expand 2, mamba_conv_bias true, no other"
            " biases, and the activation silu"
        )
    heads = config["num_key_value_heads"] or config["num_attention_heads"]
    return {
        "ssm.inner_size": config["mamba_expand"] * config["hidden_size"],
        "attention.head_count_kv": [
            heads if kind == "attention" else 0 for kind in config["layer_types"]
        ],
        "rope.scaling.finetuned": config["position_embedding_type"] == "rope",
        **({} if config["num_local_experts"] else {"expert_used_count": 0}),
    }


GGUF_FACTORS = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
granite_gguf = gguf_architecture(
    "granite",
    *PAIRS,
    model_types=("granite", "granitemoehybrid"),
    settings=GGUF_FACTORS,
    encode=encode,
    flags=BIASES,
)
gguf_rows = (
    *(
        replace(row, optional=True) if ".self_attn." in str(row.native) else row
        for row in granite_gguf.rows
        if ".mlp." not in str(row.native)
    ),
    *gguf_mamba2(f"{LAYER}.mamba", "mamba_n_groups"),
)
hybrid_gguf = replace(
    granite_gguf,
    name="granitehybrid",
    model_type="granitemoehybrid",
    model_types=("granitemoehybrid",),
    settings={
        **{key: name for key, name in granite_gguf.settings.items() if name != "head_dim"},
        **GGUF_MAMBA2,
        "ssm.inner_size": "mamba_expand",  # times the hidden size
        "expert_shared_feed_forward_length": "shared_intermediate_size",
        "rope.scaling.finetuned": "position_embedding_type",
    },
    rows=(
        *gguf_rows,
        Row(
            ("blk.{}.ffn_gate.weight", "blk.{}.ffn_up.weight"),
            f"{LAYER}.shared_mlp.input_linear.weight",
            cat(2),
        ),
        Row("blk.{}.ffn_down.weight", f"{LAYER}.shared_mlp.output_linear.weight"),
    ),
    flags={},
    derive=derive,
    encode=encode_hybrid,
    writes=lambda config: has_mamba(config) and not config["num_local_experts"],
)
gguf = (
    replace(granite_gguf, writes=lambda config: not has_mamba(config)),
    hybrid_gguf,
    replace(
        hybrid_gguf,
        with_experts=True,
        settings={
            **hybrid_gguf.settings,
            "expert_count": "num_local_experts",
            "expert_used_count": "num_experts_per_tok",
        },
        rows=(
            *gguf_rows,
            Row(
                ("blk.{}.ffn_gate_shexp.weight", "blk.{}.ffn_up_shexp.weight"),
                f"{LAYER}.shared_mlp.input_linear.weight",
                cat(2),
            ),
            Row("blk.{}.ffn_down_shexp.weight", f"{LAYER}.shared_mlp.output_linear.weight"),
            Row("blk.{}.ffn_gate_inp.weight", f"{MOE}.router.layer.weight"),
            # Read as two tensors, which are views of the file; written from the Hub's one
            *(
                Row(f"blk.{{}}.ffn_{name}_exps.weight", f"{MOE}.experts.{name}_proj", optional=True)
                for name in ("gate", "up")
            ),
            Row(
                ("blk.{}.ffn_gate_exps.weight", "blk.{}.ffn_up_exps.weight"),
                f"{MOE}.input_linear.weight",
                cat(2, 1),
                optional=True,
            ),
            Row("blk.{}.ffn_down_exps.weight", f"{MOE}.output_linear.weight"),
        ),
        writes=lambda config: has_mamba(config) and bool(config["num_local_experts"]),
    ),
)
