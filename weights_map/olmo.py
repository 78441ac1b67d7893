"""Weight table of OLMo: Llama's, without the weights of the norms."""

from collections.abc import Mapping
from dataclasses import replace

from weights_map.llama import HEAD_NORMS, PAIRS, PLAIN, gguf_architecture, relative

NORMS = tuple(f"layers.{{}}.{name}_layernorm.weight" for name in ("input", "post_attention"))
EPSILON = 1e-5

table = relative(
    "olmo",
    without=(
        *(name.removeprefix("model.") for name in (*PLAIN, *HEAD_NORMS)),
        *NORMS,
        "norm.weight",
    ),
)


def encode(config: Mapping[str, object]) -> Mapping[str, object]:
    """The epsilon of the norms. ValueError: the model has biases."""
    if config["attention_bias"]:
        raise ValueError("llama.cpp's olmo has no biases, but this model has")
    return {"attention.layer_norm_epsilon": EPSILON}


_olmo = gguf_architecture(
    "olmo",
    *PAIRS,
    without=(
        *PLAIN,
        *HEAD_NORMS,
        *(f"model.layers.{{}}.self_attn.{name}_proj.bias" for name in "qkvo"),
        *(f"model.{name}" for name in NORMS),
        "model.norm.weight",
    ),
    settings={"attention.clamp_kqv": "clip_qkv"},
    encode=encode,
    required={"attention.layer_norm_epsilon": EPSILON},
)
ABSENT = ("head_dim", "rms_norm_eps")
gguf = (
    replace(
        _olmo,
        settings={key: name for key, name in _olmo.settings.items() if name not in ABSENT},
    ),
)
