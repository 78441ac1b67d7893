"""Weight table of the text model of EmbeddingGemma 2."""

from weights_map.engine import Row, Table, drop, same

LAYER = (
    "input_layernorm.weight",
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
    "self_attn.q_norm.weight",
    "self_attn.k_norm.weight",
    "post_attention_layernorm.weight",
    "pre_feedforward_layernorm.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
    "post_feedforward_layernorm.weight",
    "layer_scalar",
)
BIASES = tuple(f"self_attn.{letter}_proj.bias" for letter in "qkvo")
INPUTS = ("per_layer_input_gate", "per_layer_projection", "post_per_layer_input_norm")

table = Table(
    model_type="embedding_gemma2_text",
    rows=(
        Row("embed_tokens.weight", "embed_tokens.weight", same),
        *(
            Row(f"ple.{name}.weight", f"{name}.weight", same)
            for name in ("per_layer_model_projection", "per_layer_projection_norm")
        ),
        *(Row(f"layers.{{}}.{name}", f"layers.{{}}.{name}", same) for name in LAYER),
        *(
            Row(f"layers.{{}}.{name}", f"layers.{{}}.{name}", same, optional=True)
            for name in BIASES
        ),
        *(
            Row(f"layers.{{}}.ple_block.{name}.weight", f"layers.{{}}.{name}.weight", same)
            for name in INPUTS
        ),
        Row("norm.weight", "norm.weight", same),
        Row("embedding_projection.weight", "embedding_projection.weight", same),
        # The other parts of a multimodal file.
        *(
            Row(f"{name}.*", (), drop)
            for name in ("vision_tower", "audio_tower", "embed_vision", "embed_audio")
        ),
    ),
    spellings=(
        ("language_model.", ""),
        ("model.language_model.", ""),
        ("model.vision_tower.", "vision_tower."),
        ("model.audio_tower.", "audio_tower."),
        ("model.embed_vision.", "embed_vision."),
        ("model.embed_audio.", "embed_audio."),
        ("model.", ""),
    ),
)
