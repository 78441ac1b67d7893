"""Weight table of Jamba: Llama's, with Mamba 1 layers, experts, and other names of the MLP and of two norms."""

from collections.abc import Mapping
from dataclasses import replace

from weights_map.engine import HubConfig, Row, same, squeeze, unstack
from weights_map.gguf import SIZES, GGUFArchitecture, inverse
from weights_map.hybrid import (
    LAYER,
    MAMBA1,
    decay,
    feed_forward,
    gguf_layer_types,
    hybrid,
    quotient,
)
from weights_map.mixtral import PROJECTIONS, expert_rows

EXPERTS = f"{LAYER}.feed_forward.experts"

table = hybrid(
    "jamba",
    MAMBA1,
    *feed_forward(optional=True),
    *(
        Row(
            f"{LAYER}.mamba.{name}_layernorm.weight",
            f"layers.{{}}.mamba.norms.{number}.weight",
            same,
            optional=True,
        )
        for number, name in enumerate(("dt", "b", "c"))
    ),
    Row(f"{LAYER}.feed_forward.router.weight", "layers.{}.mlp.gate.weight", same, optional=True),
    *expert_rows(EXPERTS, PROJECTIONS, EXPERTS),
)


# --- GGUF


def period_of(layers: list[int], count: int, name: str) -> tuple[int, int]:
    """The period and the offset of layers. ValueError: they do not recur."""
    offset = layers[0] if layers else count
    period = layers[1] - offset if len(layers) > 1 else count + 1
    if layers != list(range(offset, count, period)):
        raise ValueError(f"layers with {name} must recur, not be {layers!r:.80}")
    if offset >= period:
        raise ValueError(f"the first layer with {name} must be before {period}, not {offset}")
    return period, offset


def derive(settings: HubConfig) -> Mapping[str, object]:
    """Settings in the form of config.json."""
    kinds = gguf_layer_types(settings)
    attention = [layer for layer, kind in enumerate(kinds["layer_types"]) if kind == "attention"]
    count = settings["num_hidden_layers"]
    attention_period, attention_offset = period_of(attention, count, "attention")
    sparse, experts = settings["layers_num_experts"], settings.get("num_experts") or 1
    period, offset = period_of(sparse, count, "experts")
    return {
        "num_key_value_heads": kinds["num_key_value_heads"],
        "layers_num_experts": [experts if layer in sparse else 1 for layer in range(count)],
        "mamba_expand": quotient(settings, "mamba_expand", "hidden_size"),
        "attn_layer_period": attention_period,
        "attn_layer_offset": attention_offset,
        "expert_layer_period": period,
        "expert_layer_offset": offset,
        "num_experts": experts,
        "num_experts_per_tok": settings.get("num_experts_per_tok") or 1,
    }


def encode(config: HubConfig) -> Mapping[str, object]:
    """ValueError: llama.cpp lacks a setting of the model."""
    if (
        config["mamba_proj_bias"]
        or not config["mamba_conv_bias"]
        or config["mamba_expand"] != 2
        or config["hidden_act"] != "silu"
    ):
        raise ValueError(
            "llama.cpp's jamba requires mamba_expand 2, mamba_conv_bias true, mamba_proj_bias"
            " false, and the activation silu"
        )
    heads = config["num_key_value_heads"] or config["num_attention_heads"]
    period, offset = config["attn_layer_period"], config["attn_layer_offset"]
    rank, experts = config["mamba_dt_rank"], config["num_experts"]
    return {
        "ssm.inner_size": config["mamba_expand"] * config["hidden_size"],
        "ssm.time_step_rank": -(-config["hidden_size"] // 16) if rank == "auto" else rank,
        "attention.head_count_kv": [
            heads if layer % period == offset else 0 for layer in range(config["num_hidden_layers"])
        ],
        "expert_count": experts if experts > 1 else 0,
        "expert_used_count": config["num_experts_per_tok"] if experts > 1 else 0,
    }


ALL_LAYERS = {
    "token_embd": "model.embed_tokens",
    "blk.{}.attn_norm": f"{LAYER}.input_layernorm",
    "blk.{}.ffn_norm": f"{LAYER}.pre_ff_layernorm",
    "output_norm": "model.final_layernorm",
}
SOME_LAYERS = {
    "output": "lm_head",
    **{f"blk.{{}}.attn_{part}": f"{LAYER}.self_attn.{part}_proj" for part in "qkv"},
    "blk.{}.attn_output": f"{LAYER}.self_attn.o_proj",
    "blk.{}.ssm_in": f"{LAYER}.mamba.in_proj",
    "blk.{}.ssm_x": f"{LAYER}.mamba.x_proj",
    "blk.{}.ssm_dt": f"{LAYER}.mamba.dt_proj",
    "blk.{}.ssm_out": f"{LAYER}.mamba.out_proj",
    **{f"blk.{{}}.ssm_{part}_norm": f"{LAYER}.mamba.{part}_layernorm" for part in ("dt", "b", "c")},
    **{
        f"blk.{{}}.ffn_{part}": f"{LAYER}.feed_forward.{part}_proj"
        for part in ("gate", "up", "down")
    },
    "blk.{}.ffn_gate_inp": f"{LAYER}.feed_forward.router",
}
OTHERS = (
    Row("blk.{}.ssm_conv1d.weight", f"{LAYER}.mamba.conv1d.weight", inverse(squeeze(1))),
    Row("blk.{}.ssm_conv1d.bias", f"{LAYER}.mamba.conv1d.bias"),
    Row("blk.{}.ssm_dt.bias", f"{LAYER}.mamba.dt_proj.bias"),
    Row("blk.{}.ssm_a", f"{LAYER}.mamba.A_log", decay),
    Row("blk.{}.ssm_d", f"{LAYER}.mamba.D"),
    *(
        Row(
            f"blk.{{}}.ffn_{part}_exps.weight",
            f"{EXPERTS}.{{}}.{part}_proj.weight",
            unstack("num_experts"),
        )
        for part in ("gate", "up", "down")
    ),
)
gguf = (
    GGUFArchitecture(
        "jamba",
        model_type="jamba",
        settings={
            **SIZES,
            "attention.head_count_kv": "num_key_value_heads",
            "attention.layer_norm_rms_epsilon": "rms_norm_eps",
            "ssm.conv_kernel": "mamba_d_conv",
            "ssm.state_size": "mamba_d_state",
            "ssm.time_step_rank": "mamba_dt_rank",
            "ssm.inner_size": "mamba_expand",  # times the hidden size
            "expert_count": "num_experts",
            "expert_used_count": "num_experts_per_tok",
        },
        rows=(
            *(Row(f"{name}.weight", f"{hub}.weight") for name, hub in ALL_LAYERS.items()),
            *(
                Row(f"{name}.weight", f"{hub}.weight", optional=True)
                for name, hub in SOME_LAYERS.items()
            ),
            *(replace(row, optional=True) for row in OTHERS),
        ),
        layers_with={"blk.{}.ffn_gate_inp.weight": "layers_num_experts"},
        derive=derive,
        encode=encode,
    ),
)
