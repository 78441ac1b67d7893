"""Weight table of Nemotron H: each layer has a norm, and attention, a state space or an MLP."""

from weights_map.engine import Row, Table, same, tie
from weights_map.hybrid import MAMBA2

ATTENTION = tuple(f"{name}_proj.weight" for name in "qkvo")
MLP = tuple(f"{name}_proj.{kind}" for name in ("up", "down") for kind in ("weight", "bias"))
LAYER = "backbone.layers.{}"

table = Table(
    "nemotron_h",
    (
        Row("backbone.embeddings.weight", "embed_tokens.weight", same),
        Row(f"{LAYER}.norm.weight", "layers.{}.norm.weight", same),
        # The config decides about the kind of each layer; the model reports missing tensors.
        *(
            Row(f"{LAYER}.mixer.{name}", f"layers.{{}}.mixer.{name}", same, optional=True)
            for name in (*MAMBA2, *ATTENTION, *MLP)
        ),
        Row("backbone.norm_f.weight", "norm.weight", same),
        Row("lm_head.weight", "lm_head.weight", tie("backbone.embeddings.weight")),
    ),
    # transformers' memory
    (("model.", "backbone."), ("", "backbone.")),
)
