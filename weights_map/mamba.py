"""Weight tables of Mamba 1, Mamba 2 and Falcon Mamba."""

from weights_map.engine import Row, Table, same, tie
from weights_map.hybrid import MAMBA1, MAMBA2

# The biases exist in some models; the model reports missing ones.
LAYER = "backbone.layers.{}"


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
    table("mamba", MAMBA1),
    table("mamba2", MAMBA2),
    table("falcon_mamba", MAMBA1),
)
