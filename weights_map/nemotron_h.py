"""Weight table of Nemotron H: each layer has a norm, and attention, a state space, an MLP or experts."""

from weights_map.engine import Row, Table, drop, same, tie, unstack
from weights_map.hybrid import MAMBA2

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
