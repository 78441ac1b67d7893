"""Weights table of Gemma, Gemma 2 and Gemma 3. All matrices are nn.Linear on both sides; norms are stored less 1."""

from weights_map.engine import Row, Table, drop, same, tie

table = Table(
    model_type="gemma",
    rows=(
        Row("model.embed_tokens.weight", "embed_tokens.weight", same),
        Row("model.layers.{}.input_layernorm.weight", "layers.{}.input_layernorm.weight", same),
        Row("model.layers.{}.self_attn.q_proj.weight", "layers.{}.self_attn.q_proj.weight", same),
        Row("model.layers.{}.self_attn.k_proj.weight", "layers.{}.self_attn.k_proj.weight", same),
        Row("model.layers.{}.self_attn.v_proj.weight", "layers.{}.self_attn.v_proj.weight", same),
        Row("model.layers.{}.self_attn.o_proj.weight", "layers.{}.self_attn.o_proj.weight", same),
        # The model_type and attention_bias decide which of these exist; the model reports missing ones.
        Row("model.layers.{}.self_attn.q_proj.bias", "layers.{}.self_attn.q_proj.bias", same, optional=True),
        Row("model.layers.{}.self_attn.k_proj.bias", "layers.{}.self_attn.k_proj.bias", same, optional=True),
        Row("model.layers.{}.self_attn.v_proj.bias", "layers.{}.self_attn.v_proj.bias", same, optional=True),
        Row("model.layers.{}.self_attn.o_proj.bias", "layers.{}.self_attn.o_proj.bias", same, optional=True),
        Row("model.layers.{}.self_attn.q_norm.weight", "layers.{}.self_attn.q_norm.weight", same, optional=True),
        Row("model.layers.{}.self_attn.k_norm.weight", "layers.{}.self_attn.k_norm.weight", same, optional=True),
        Row("model.layers.{}.post_attention_layernorm.weight", "layers.{}.post_attention_layernorm.weight", same),
        Row("model.layers.{}.pre_feedforward_layernorm.weight", "layers.{}.pre_feedforward_layernorm.weight", same,
            optional=True),
        Row("model.layers.{}.mlp.gate_proj.weight", "layers.{}.mlp.gate_proj.weight", same),
        Row("model.layers.{}.mlp.up_proj.weight", "layers.{}.mlp.up_proj.weight", same),
        Row("model.layers.{}.mlp.down_proj.weight", "layers.{}.mlp.down_proj.weight", same),
        Row("model.layers.{}.post_feedforward_layernorm.weight", "layers.{}.post_feedforward_layernorm.weight", same,
            optional=True),
        Row("model.norm.weight", "norm.weight", same),
        Row("lm_head.weight", "lm_head.weight", tie("model.embed_tokens.weight")),
        # The rotary frequencies, which old checkpoints store as weights.
        Row("model.layers.{}.self_attn.rotary_emb.inv_freq", (), drop),
        # The other parts of a multimodal file (gemma3).
        Row("vision_tower.*", (), drop),
        Row("multi_modal_projector.*", (), drop),
    ),
    # gemma3 files have the text model below `language_model`, in two spellings.
    spellings=(("language_model.", ""), ("model.language_model.", "model."), ("model.", "")),
)  # fmt: skip
