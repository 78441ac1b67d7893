"""The settings of the text model in config.json of a multimodal model.

Files have them in `text_config`, older ones of Qwen 2 VL and 2.5 VL next to those for images. For a
text without images, the text models of Qwen's multimodal models are Qwen 2, Qwen 3 and Qwen 3 MoE:
all three positions of a token are equal.
"""

from collections.abc import Mapping

from minhub_py.models.registry import ARCHITECTURES
from minhub_py.system.json_text import JsonMapping, JsonObject

# Settings of the outer model that apply to the text model.
SHARED = (
    "tie_word_embeddings",
    "quantization_config",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)
IMAGES = frozenset(
    """
    vision_config image_token_id video_token_id vision_token_id vision_start_token_id vision_end_token_id
    """.split()
)
ROPE_OF_IMAGES = ("mrope_section", "mrope_interleaved")
# model_type -> model_type of the text model, for files without text_config
FLAT = {"qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text"}
QWEN2: JsonObject = {
    "model_type": "qwen2",
    "vocab_size": 152064,
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "max_window_layers": 80,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "rope_theta": 1e6,
}
# The text model's model_type -> the settings of an equal model, with transformers' defaults.
EQUAL: Mapping[str, JsonObject] = {
    "qwen2_vl_text": QWEN2,
    "qwen2_5_vl_text": QWEN2,
    "qwen3_vl_text": {
        "model_type": "qwen3",
        "max_position_embeddings": 128000,
        "rope_theta": 5e5,
    },
    "qwen3_vl_moe_text": {
        "model_type": "qwen3_moe",
        "intermediate_size": 5632,
        "num_key_value_heads": 16,
        "num_attention_heads": 16,
        "moe_intermediate_size": 1408,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "norm_topk_prob": True,
        "max_position_embeddings": 128000,
        "rope_theta": 5e5,
    },
}


def text_model(settings: JsonObject) -> JsonObject:
    """The settings of the text model, or of another model unchanged."""
    kind, text = settings.get("model_type"), settings.get("text_config")
    wrappers = [name for architecture in ARCHITECTURES.values() for name in architecture.wrappers]
    if kind not in wrappers:
        return settings
    if not isinstance(text, dict):
        if kind not in FLAT:
            return settings
        text = {**settings, "model_type": FLAT[str(kind)]}
    shared = {name: settings[name] for name in SHARED if name in settings}
    # The tied head belongs to the outer model, whose setting applies. Files of qwen3_vl_moe have
    # another one in text_config, which transformers adds.
    tied = {name: shared[name] for name in ("tie_word_embeddings",) if name in shared}
    return without_images({**shared, **text, **tied})


def without_images(text: JsonObject) -> JsonObject:
    """The settings of the equal model, for a text model that differs only with images."""
    equal = EQUAL.get(str(text.get("model_type")))
    if equal is None:
        return text
    settings = {name: value for name, value in text.items() if name not in IMAGES}
    for name in ("rope_scaling", "rope_parameters"):
        if isinstance(rope := settings.get(name), Mapping):
            settings[name] = rope_of_texts(rope)
    states_theta = any(
        isinstance(rope := settings.get(name), Mapping) and "rope_theta" in rope
        for name in ("rope_scaling", "rope_parameters")
    )
    absent = {"rope_theta"} if states_theta else set()
    if "num_local_experts" in settings:  # num_experts in other files
        absent.add("num_experts")
    defaults = {name: value for name, value in equal.items() if name not in absent}
    stated = {name: value for name, value in settings.items() if name != "model_type"}
    return {**defaults, **stated, "model_type": equal["model_type"]}


def rope_of_texts(rope: JsonMapping) -> JsonObject:
    """The settings of rotary embeddings, without settings of images."""
    return {
        name: "default" if name in ("type", "rope_type") and value == "mrope" else value
        for name, value in rope.items()
        if name not in ROPE_OF_IMAGES
    }
