"""Rows of decoders with attention and Mamba layers, which several tables share: of the Hub's files,
and of GGUF files.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weights_map.engine import Operation, Row, Table, same, squeeze
from weights_map.gguf import inverse
from weights_map.llama import relative

LAYER = "model.layers.{}"
MIXER = """
in_proj.weight in_proj.bias conv1d.weight conv1d.bias A_log D out_proj.weight out_proj.bias
""".split()
MAMBA1 = (*MIXER, "x_proj.weight", "dt_proj.weight", "dt_proj.bias")
MAMBA2 = (*MIXER, "dt_bias", "norm.weight")


def mixers(names: tuple[str, ...]) -> list[Row]:
    """The rows of a selective state space. names: of its tensors."""
    # A layer has attention or Mamba; the model reports missing tensors.
    return [
        Row(f"{LAYER}.mamba.{name}", f"layers.{{}}.mamba.{name}", same, optional=True)
        for name in names
    ]


def hybrid(model_type: str, names: tuple[str, ...], *rows: Row) -> Table:
    """The table of a decoder with attention in some layers. names: of a mixer's tensors."""
    table = relative(model_type, *mixers(names), *rows)
    return replace(
        table,
        rows=tuple(
            replace(row, optional=True) if ".self_attn." in str(row.hub) else row
            for row in table.rows
        ),
    )


def feed_forward(optional: bool = False) -> list[Row]:
    """The rows of the MLP, and of two norms with other names than Llama's. optional: some layers
    have experts in place of the MLP.
    """
    parts = ("gate_proj", "up_proj", "down_proj")
    return [
        *(
            Row(
                f"{LAYER}.feed_forward.{part}.{kind}",
                f"layers.{{}}.mlp.{part}.{kind}",
                same,
                optional=optional or kind == "bias",
            )
            for part in parts
            for kind in ("weight", "bias")
        ),
        Row(f"{LAYER}.pre_ff_layernorm.weight", "layers.{}.post_attention_layernorm.weight", same),
        Row("model.final_layernorm.weight", "norm.weight", same),
    ]


# --- GGUF

decay = Operation("from -e^w to w", lambda x: [(-x[0]).log()], lambda x: [-x[0].exp()])
negative = Operation(
    "from a column -e^w to w",
    lambda x: [(-x[0]).log().squeeze(1)],
    lambda x: [-x[0].exp().unsqueeze(1)],
)
# of Mamba 2, with Granite 4's and Falcon H1's names
GGUF_MAMBA2 = {
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.state_size": "mamba_d_state",
    "ssm.group_count": "mamba_n_groups",
    "ssm.time_step_rank": "mamba_n_heads",
}


def groups(setting: str) -> Operation:
    """The weight of a norm, in GGUF a row for each group. setting: the number of groups."""
    return Operation(
        "from rows of groups",
        lambda x, count: [x[0].flatten()],
        lambda x, count: [x[0].view(count, -1)],
        setting=setting,
    )


def gguf_mamba2(mixer: str, norm_groups: str, optional: bool = True) -> tuple[Row, ...]:
    """The rows of Mamba 2.

    mixer: template of the Hub's module.    norm_groups: the config's name of the number of groups.
    optional: whether a layer may lack them.
    """
    rows = (
        Row("blk.{}.ssm_in.weight", f"{mixer}.in_proj.weight"),
        Row("blk.{}.ssm_conv1d.weight", f"{mixer}.conv1d.weight", inverse(squeeze(1))),
        Row("blk.{}.ssm_conv1d.bias", f"{mixer}.conv1d.bias"),
        Row("blk.{}.ssm_dt.bias", f"{mixer}.dt_bias"),
        Row("blk.{}.ssm_a", f"{mixer}.A_log", negative),
        Row("blk.{}.ssm_d", f"{mixer}.D", squeeze(1)),
        Row("blk.{}.ssm_norm.weight", f"{mixer}.norm.weight", groups(norm_groups)),
        Row("blk.{}.ssm_out.weight", f"{mixer}.out_proj.weight"),
    )
    return tuple(replace(row, optional=optional) for row in rows)


def quotient(settings: Mapping[str, object], inner: str, divisor: str) -> int:
    """A file's ssm.inner_size, divided by another setting. ValueError: it is no multiple.

    inner, divisor: names of the settings in config.json.
    """
    size, number = settings.get(inner), settings.get(divisor)
    if type(size) is not int or type(number) is not int or number < 1 or size < 1 or size % number:
        raise ValueError(
            f"ssm.inner_size ({size!r:.80}) must be a multiple of {divisor} ({number!r:.80})"
        )
    return size // number


def gguf_layer_types(settings: Mapping[str, object]) -> dict[str, Any]:
    """The kinds of layers: Mamba has no KV heads. ValueError: they are no list."""
    heads = settings["num_key_value_heads"]
    if not isinstance(heads, list) or not all(type(number) is int for number in heads):
        raise ValueError(
            "attention.head_count_kv must be a list with a number for each layer, not"
            f" {heads!r:.80}"
        )
    return {
        "num_key_value_heads": max(heads, default=0),
        "layer_types": ["attention" if number else "mamba" for number in heads],
    }
