"""Weight table of Jamba: Llama's, with Mamba 1 layers, experts, and other names of the MLP and of two norms."""

from weights_map.engine import Row, same
from weights_map.hybrid import LAYER, MAMBA1, feed_forward, hybrid
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
