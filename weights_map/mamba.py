"""Weight tables of Mamba 1, Mamba 2 and Falcon Mamba."""

from weights_map.engine import Row, Table, same, tie

LAYER = "backbone.layers.{}"
# Each layer has one of Mamba 1's or Mamba 2's, and biases in some models; the model reports missing ones.
MIXER = (
    *(
        f"{part}.{kind}"
        for part in ("in_proj", "conv1d", "out_proj")
        for kind in ("weight", "bias")
    ),
    "A_log",
    "D",
)
FIRST = ("x_proj.weight", "dt_proj.weight", "dt_proj.bias")
SECOND = ("dt_bias", "norm.weight")


def table(model_type: str, names: tuple[str, ...]) -> Table:
    """The table of a model type. names: of the mixer's tensors."""
    return Table(
        model_type,
        (
            Row("backbone.embeddings.weight", "embeddings.weight", same),
            Row(f"{LAYER}.norm.weight", "layers.{}.norm.weight", same),
            *(
                Row(
                    f"{LAYER}.mixer.{name}",
                    f"layers.{{}}.mixer.{name}",
                    same,
                    optional=name.endswith("bias"),
                )
                for name in names
            ),
            Row("backbone.norm_f.weight", "norm_f.weight", same),
            Row("lm_head.weight", "lm_head.weight", tie("backbone.embeddings.weight")),
        ),
        # Older files have `embedding`.
        (("backbone.embedding.", "backbone.embeddings."), ("", "backbone.")),
    )


tables = (
    table("mamba", (*MIXER, *FIRST)),
    table("mamba2", (*MIXER, *SECOND)),
    table("falcon_mamba", (*MIXER, *FIRST)),
)
