"""Weight table of Nemotron H: each layer has a norm, and attention, a state space, an MLP or experts."""

from collections.abc import Mapping

from weights_map.engine import HubConfig, Row, Table, drop, same, tie, unstack
from weights_map.gguf import SIZES, GGUFArchitecture
from weights_map.hybrid import MAMBA2, gguf_mamba2, quotient
from weights_map.llama import PAIRS

ATTENTION = tuple(f"{name}_proj.weight" for name in "qkvo")
MLP = tuple(f"{name}_proj.{kind}" for name in ("up", "down") for kind in ("weight", "bias"))
LAYER = "backbone.layers.{}"
EXPERTS, NATIVE = f"{LAYER}.mixer.experts", "layers.{}.mixer.experts"

table = Table(
    "nemotron_h",
    (
        Row("backbone.embeddings.weight", "embed_tokens.weight", same),
        Row(f"{LAYER}.norm.weight", "layers.{}.norm.weight", same),
        # The config decides about the kind of each layer; the model reports missing tensors.
        *(
            Row(f"{LAYER}.mixer.{name}", f"layers.{{}}.mixer.{name}", same, optional=True)
            for name in (*MAMBA2, *ATTENTION, *MLP, "gate.weight")
        ),
        *(
            Row(
                f"{LAYER}.mixer.shared_experts.{name}",
                f"layers.{{}}.shared_expert.{name}",
                same,
                optional=True,
            )
            for name in MLP
        ),
        Row(
            f"{LAYER}.mixer.gate.e_score_correction_bias",
            "layers.{}.mixer.expert_bias",
            same,
            optional=True,
        ),
        # in published files one by one, in transformers' memory stacked
        *(
            Row(f"{EXPERTS}.{{}}.{name}.weight", f"{NATIVE}.{name}.{{}}", same, optional=True)
            for name in ("up_proj", "down_proj")
        ),
        *(
            Row(
                f"{EXPERTS}.{name}",
                f"{NATIVE}.{name}.{{}}",
                unstack("n_routed_experts"),
                optional=True,
            )
            for name in ("up_proj", "down_proj")
        ),
        Row("mtp.*", (), drop),  # the layers that predict further tokens
        Row("backbone.norm_f.weight", "norm.weight", same),
        Row("lm_head.weight", "lm_head.weight", tie("backbone.embeddings.weight")),
    ),
    # transformers' memory
    (("model.", "backbone."), ("", "backbone.")),
)


# --- GGUF


def derive(settings: HubConfig) -> Mapping[str, object]:
    """Settings in the form of config.json: an MLP has a width, and attention has KV heads."""
    heads, widths = settings["num_key_value_heads"], settings.get("intermediate_size", 0)
    count = settings["num_hidden_layers"]
    for key, values in (("attention.head_count_kv", heads), ("feed_forward_length", widths)):
        if (
            not isinstance(values, list)
            or len(values) != count
            or not all(type(value) is int for value in values)
        ):
            raise ValueError(
                f"{key} must be a list with a number for each layer, not {values!r:.80}"
            )
    letters = [
        "-" if width else "*" if kv else "M" for kv, width in zip(heads, widths, strict=True)
    ]
    return {
        "hybrid_override_pattern": "".join(letters),
        "num_key_value_heads": max(heads, default=0) or settings["num_attention_heads"],
        "intermediate_size": max(widths, default=0) or settings["hidden_size"],
        "mamba_head_dim": quotient(settings, "mamba_head_dim", "mamba_num_heads"),
        "mlp_bias": bool(settings["mlp_bias"]),
    }


def encode(config: HubConfig) -> Mapping[str, object]:
    """ValueError: llama.cpp lacks a setting of the model."""
    if (
        config["use_bias"]
        or not config["use_conv_bias"]
        or config["mlp_hidden_act"] != "relu2"
        or config["mamba_hidden_act"] != "silu"
    ):
        raise ValueError(
            "llama.cpp's nemotron_h requires use_bias false, use_conv_bias true, and the"
            " activations relu2 and silu"
        )
    heads = config["num_key_value_heads"] or config["num_attention_heads"]
    pattern, width = config["hybrid_override_pattern"], config["intermediate_size"]
    if "E" in pattern:
        raise ValueError("llama.cpp's nemotron_h has no experts")
    return {
        "ssm.inner_size": config["mamba_num_heads"] * config["mamba_head_dim"],
        "attention.head_count_kv": [heads if letter == "*" else 0 for letter in pattern],
        "feed_forward_length": [width if letter == "-" else 0 for letter in pattern],
        "rope.scaling.finetuned": False,
    }


OPTIONAL = {
    "output.weight": "lm_head.weight",
    "blk.{}.attn_v.weight": f"{LAYER}.mixer.v_proj.weight",
    "blk.{}.attn_output.weight": f"{LAYER}.mixer.o_proj.weight",
    **{
        f"blk.{{}}.ffn_{part}.{kind}": f"{LAYER}.mixer.{part}_proj.{kind}"
        for part in ("up", "down")
        for kind in ("weight", "bias")
    },
}
gguf = (
    GGUFArchitecture(
        "nemotron_h",
        model_type="nemotron_h",
        settings={
            **SIZES,
            "attention.head_count_kv": "num_key_value_heads",
            "attention.key_length": "head_dim",
            "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
            "ssm.conv_kernel": "conv_kernel",
            "ssm.state_size": "ssm_state_size",
            "ssm.group_count": "n_groups",
            "ssm.time_step_rank": "mamba_num_heads",
            "ssm.inner_size": "mamba_head_dim",  # times the number of heads
        },
        rows=(
            Row("token_embd.weight", "backbone.embeddings.weight"),
            Row("blk.{}.attn_norm.weight", f"{LAYER}.norm.weight"),
            Row("output_norm.weight", "backbone.norm_f.weight"),
            *(
                Row(
                    f"blk.{{}}.attn_{part}.weight",
                    f"{LAYER}.mixer.{part}_proj.weight",
                    operation,
                    optional=True,
                )
                for part, operation in zip("qk", PAIRS, strict=True)
            ),
            *(Row(name, hub, optional=True) for name, hub in OPTIONAL.items()),
            *gguf_mamba2(f"{LAYER}.mixer", "n_groups"),
        ),
        ignored=("rope.dimension_count",),  # no positions
        layers_with={"blk.{}.ffn_up.bias": "mlp_bias"},
        derive=derive,
        encode=encode,
    ),
)
