"""Weight table of Apertus: Llama's with other names of the norms, and the weights of the activation.

GGUF stores the weights of the activation as settings, which this package does not read.
"""

from weights_map.engine import Row
from weights_map.llama import PLAIN, relative

LAYER = "layers.{}"
NORMS = {"attention": "input", "feedforward": "post_attention"}

table = relative(
    "apertus",
    *(
        Row(f"model.{LAYER}.{hub}_layernorm.weight", f"{LAYER}.{native}_layernorm.weight")
        for hub, native in NORMS.items()
    ),
    *(
        # β and ε are constants
        Row(
            f"model.{LAYER}.mlp.act_fn.{name}",
            f"{LAYER}.mlp.act.{name}",
            optional=name in ("beta", "eps"),
        )
        for name in ("alpha_p", "alpha_n", "beta", "eps")
    ),
    without=(
        f"{LAYER}.mlp.gate_proj.weight",
        *(name.removeprefix("model.") for name in PLAIN),
    ),
)
