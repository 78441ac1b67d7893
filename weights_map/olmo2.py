"""Weight tables of OLMo 2 and 3 and EXAONE 4: Llama's, with norms after attention and MLP instead
of before them.
"""

from collections.abc import Mapping

from weights_map.engine import HubConfig, Row, same
from weights_map.llama import ATTENTION_BIASES, PLAIN, gguf_architecture, relative

AFTER = (
    Row(
        "model.layers.{}.post_attention_layernorm.weight", "layers.{}.attention_output_norm.weight"
    ),
    Row("model.layers.{}.post_feedforward_layernorm.weight", "layers.{}.mlp_output_norm.weight"),
)
BEFORE = ("layers.{}.input_layernorm.weight", "layers.{}.post_attention_layernorm.weight")

tables = tuple(
    relative(model_type, *AFTER, without=BEFORE) for model_type in ("olmo2", "olmo3", "exaone4")
)

NORMS = (
    Row("blk.{}.post_attention_norm.weight", "model.layers.{}.post_attention_layernorm.weight"),
    Row("blk.{}.post_ffw_norm.weight", "model.layers.{}.post_feedforward_layernorm.weight"),
)
WINDOWS = {
    "attention.sliding_window": "sliding_window",
    "attention.sliding_window_pattern": "layer_types",
}
WITHOUT = (*PLAIN, "model.layers.{}.input_layernorm.weight")


def types_of(settings: HubConfig, period: int = 4) -> list[str]:
    """layer_types: from a list with a number for each layer, 1 for a window; or all but each fourth
    have a window.
    """
    layers = range(settings["num_hidden_layers"])
    slides = settings.get("layer_types") or [(layer + 1) % period != 0 for layer in layers]
    return ["sliding_attention" if slide else "full_attention" for slide in slides]


def derive_olmo(settings: Mapping[str, object]) -> Mapping[str, object]:
    """A file with a window is of OLMo 3."""
    if settings.get("sliding_window"):
        return {"model_type": "olmo3", "layer_types": types_of(settings)}
    return {}


def derive_exaone(settings: HubConfig) -> Mapping[str, object]:
    """A file without a window has none in any layer."""
    if settings.get("sliding_window"):
        return {"layer_types": types_of(settings)}
    return {
        "sliding_window": None,
        "layer_types": ["full_attention"] * settings["num_hidden_layers"],
    }


def encode(config: HubConfig) -> Mapping[str, object]:
    """The layers with a window. ValueError: rope_theta depends on the layer."""
    if config.get("attention_bias") and config["model_type"] in ("olmo2", "olmo3"):
        raise ValueError("llama.cpp's olmo2 supports no attention biases, but this model has them")
    if not config.get("sliding_window"):
        return {"attention.sliding_window": None, "attention.sliding_window_pattern": None}
    if config["model_type"] == "exaone4" and config["num_hidden_layers"] != 64:
        raise ValueError("llama.cpp's exaone4 supports windows in models with 64 layers only")
    rope = config["rope_parameters"]
    if "sliding_attention" in rope and rope["sliding_attention"] != {
        "rope_type": "default",
        "rope_theta": 5e5,
    }:
        raise ValueError(
            "llama.cpp's olmo2 requires rope_theta 500000 and rope_type default in layers with a"
            " window"
        )
    return {
        "attention.sliding_window_pattern": [
            name == "sliding_attention" for name in config["layer_types"]
        ]
    }


gguf = (
    gguf_architecture(
        "olmo2",
        same,
        same,
        *NORMS,
        model_types=("olmo2", "olmo3"),
        without=WITHOUT,
        settings=WINDOWS,
        derive=derive_olmo,
        encode=encode,
        flags={"attention_bias": "blk.0.attn_q.bias"},
    ),
    gguf_architecture(
        "exaone4",
        same,
        same,
        *NORMS,
        without=(*WITHOUT, *ATTENTION_BIASES),
        settings=WINDOWS,
        derive=derive_exaone,
        encode=encode,
        flags={},
    ),
)
