"""The weight table of Llama and its kin: Mistral, Ministral, Qwen 2 and 3. Every layer is Linear on both sides.

The Hub keeps q and k in the order in which the model file rotates them (halves, not pairs), so nothing is permuted.
"""

from weights_map.engine import Row, Table, drop, same, tie

table = Table(
    model_type="llama",
    rows=(
        Row("model.embed_tokens.weight", "embed_tokens.weight", same),
        Row("model.layers.{}.input_layernorm.weight", "layers.{}.input_layernorm.weight", same),
        Row("model.layers.{}.self_attn.q_proj.weight", "layers.{}.self_attn.q_proj.weight", same),
        Row("model.layers.{}.self_attn.k_proj.weight", "layers.{}.self_attn.k_proj.weight", same),
        Row("model.layers.{}.self_attn.v_proj.weight", "layers.{}.self_attn.v_proj.weight", same),
        Row("model.layers.{}.self_attn.o_proj.weight", "layers.{}.self_attn.o_proj.weight", same),
        # Which of these a model has depends on its model_type and flags; the config's model says what is missing.
        Row("model.layers.{}.self_attn.q_proj.bias", "layers.{}.self_attn.q_proj.bias", same, optional=True),
        Row("model.layers.{}.self_attn.k_proj.bias", "layers.{}.self_attn.k_proj.bias", same, optional=True),
        Row("model.layers.{}.self_attn.v_proj.bias", "layers.{}.self_attn.v_proj.bias", same, optional=True),
        Row("model.layers.{}.self_attn.o_proj.bias", "layers.{}.self_attn.o_proj.bias", same, optional=True),
        Row("model.layers.{}.self_attn.q_norm.weight", "layers.{}.self_attn.q_norm.weight", same, optional=True),
        Row("model.layers.{}.self_attn.k_norm.weight", "layers.{}.self_attn.k_norm.weight", same, optional=True),
        Row("model.layers.{}.post_attention_layernorm.weight", "layers.{}.post_attention_layernorm.weight", same),
        Row("model.layers.{}.mlp.gate_proj.weight", "layers.{}.mlp.gate_proj.weight", same),
        Row("model.layers.{}.mlp.up_proj.weight", "layers.{}.mlp.up_proj.weight", same),
        Row("model.layers.{}.mlp.down_proj.weight", "layers.{}.mlp.down_proj.weight", same),
        Row("model.layers.{}.mlp.gate_proj.bias", "layers.{}.mlp.gate_proj.bias", same, optional=True),
        Row("model.layers.{}.mlp.up_proj.bias", "layers.{}.mlp.up_proj.bias", same, optional=True),
        Row("model.layers.{}.mlp.down_proj.bias", "layers.{}.mlp.down_proj.bias", same, optional=True),
        Row("model.norm.weight", "norm.weight", same),
        Row("lm_head.weight", "lm_head.weight", tie("model.embed_tokens.weight")),
        # The rotary frequencies, which old checkpoints carry as if they were weights.
        Row("model.layers.{}.self_attn.rotary_emb.inv_freq", (), drop),
        # What else a multimodal file (mistral3) holds beside the text model.
        Row("vision_tower.*", (), drop),
        Row("multi_modal_projector.*", (), drop),
    ),
    # In mistral3 files the text model lies below `language_model`, in two spellings.
    spellings=(("language_model.", ""), ("model.language_model.", "model."), ("model.", "")),
)
