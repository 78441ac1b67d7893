"""The rows that the tables of decoders with attention and Mamba layers share."""

from dataclasses import replace

from weights_map.engine import Row, Table, same
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
