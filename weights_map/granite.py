"""Weight tables of Granite 3 and 4: Llama's, with other names of the MLP in Granite 4."""

from weights_map.engine import Row, split
from weights_map.llama import relative

tables = (
    relative("granite"),
    relative(
        "granitemoehybrid",
        Row("model.layers.{}.shared_mlp.input_linear.weight",
            ("layers.{}.mlp.gate_proj.weight", "layers.{}.mlp.up_proj.weight"), split(2)),
        Row("model.layers.{}.shared_mlp.output_linear.weight", "layers.{}.mlp.down_proj.weight"),
    ),
)  # fmt: skip
