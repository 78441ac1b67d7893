"""Weight table of the text model of Gemma 4. Norm weights are stored as they are, unlike those of Gemma 1 to 3."""

from weights_map.engine import Row, Table, drop, same, tie, unstack

LAYER = "model.layers.{}"
CACHING = "caching_layers"  # files also have the unused keys and values of later layers

MATRICES = "layers.{}.experts.mixture.experts"
EXPERTS = {
    "pre_feedforward_layernorm_2.weight": "pre_norm.weight",
    "router.scale": "mixture.router_norm.weight",
    "router.proj.weight": "mixture.gate.weight",
    "router.per_expert_scale": "mixture.factors",
    "post_feedforward_layernorm_2.weight": "post_norm.weight",
    "post_feedforward_layernorm_1.weight": "mlp_norm.weight",
}


def layer_row(name: str, optional: bool = False, layers: str | None = None) -> Row:
    """A tensor of each layer."""
    return Row(f"{LAYER}.{name}", f"layers.{{}}.{name}", same, optional=optional, layers=layers)


table = Table(
    model_type="gemma4_text",
    rows=(
        Row("model.embed_tokens.weight", "embed_tokens.weight", same),
        Row("model.embed_tokens_per_layer.weight", "embed_tokens_per_layer.weight", same, optional=True),
        Row("model.per_layer_model_projection.weight", "per_layer_model_projection.weight", same, optional=True),
        Row("model.per_layer_projection_norm.weight", "per_layer_projection_norm.weight", same, optional=True),
        layer_row("input_layernorm.weight"),
        layer_row("self_attn.q_proj.weight"),
        layer_row("self_attn.q_proj.bias", optional=True),
        layer_row("self_attn.q_norm.weight"),
        # The config decides which of these exist; the model reports missing ones.
        *(
            layer_row(f"self_attn.{name}", optional=True, layers=CACHING)
            for name in ("k_proj.weight", "k_proj.bias", "k_norm.weight", "v_proj.weight", "v_proj.bias")
        ),
        layer_row("self_attn.o_proj.weight"),
        layer_row("self_attn.o_proj.bias", optional=True),
        layer_row("post_attention_layernorm.weight"),
        layer_row("pre_feedforward_layernorm.weight"),
        layer_row("mlp.gate_proj.weight"),
        layer_row("mlp.up_proj.weight"),
        layer_row("mlp.down_proj.weight"),
        layer_row("post_feedforward_layernorm.weight"),
        # The config decides about experts and inputs of each layer.
        *(
            Row(f"{LAYER}.{hub}", f"layers.{{}}.experts.{native}", same, optional=True)
            for hub, native in EXPERTS.items()
        ),
        Row(f"{LAYER}.experts.gate_up_proj", (f"{MATRICES}.gate_proj.{{}}", f"{MATRICES}.up_proj.{{}}"),
            unstack("num_experts", 2), optional=True),
        Row(f"{LAYER}.experts.down_proj", f"{MATRICES}.down_proj.{{}}", unstack("num_experts"), optional=True),
        layer_row("per_layer_input_gate.weight", optional=True),
        layer_row("per_layer_projection.weight", optional=True),
        layer_row("post_per_layer_input_norm.weight", optional=True),
        layer_row("layer_scalar", optional=True),
        Row("model.norm.weight", "norm.weight", same),
        Row("lm_head.weight", "lm_head.weight", tie("model.embed_tokens.weight")),
        # The other parts of a multimodal file.
        *(Row(f"model.{name}.*", (), drop) for name in ("vision_tower", "audio_tower", "embed_vision", "embed_audio")),
    ),
    spellings=(("model.language_model.", "model."), ("model.", ""), ("", "model.")),
)  # fmt: skip
