"""OLMo 2's weights table. All matrices are nn.Linear on both sides."""

from weights_map.engine import Row, Table, same, tie

table = Table(
    model_type="olmo2",
    rows=(
        Row("model.embed_tokens.weight", "embed_tokens.weight", same),
        Row("model.layers.{}.self_attn.q_proj.weight", "layers.{}.self_attn.q_proj.weight", same),
        Row("model.layers.{}.self_attn.k_proj.weight", "layers.{}.self_attn.k_proj.weight", same),
        Row("model.layers.{}.self_attn.v_proj.weight", "layers.{}.self_attn.v_proj.weight", same),
        Row("model.layers.{}.self_attn.o_proj.weight", "layers.{}.self_attn.o_proj.weight", same),
        Row("model.layers.{}.self_attn.q_proj.bias", "layers.{}.self_attn.q_proj.bias", same, optional=True),
        Row("model.layers.{}.self_attn.k_proj.bias", "layers.{}.self_attn.k_proj.bias", same, optional=True),
        Row("model.layers.{}.self_attn.v_proj.bias", "layers.{}.self_attn.v_proj.bias", same, optional=True),
        Row("model.layers.{}.self_attn.o_proj.bias", "layers.{}.self_attn.o_proj.bias", same, optional=True),
        Row("model.layers.{}.self_attn.q_norm.weight", "layers.{}.self_attn.q_norm.weight", same),
        Row("model.layers.{}.self_attn.k_norm.weight", "layers.{}.self_attn.k_norm.weight", same),
        Row("model.layers.{}.post_attention_layernorm.weight", "layers.{}.post_attention_layernorm.weight", same),
        Row("model.layers.{}.mlp.gate_proj.weight", "layers.{}.mlp.gate_proj.weight", same),
        Row("model.layers.{}.mlp.up_proj.weight", "layers.{}.mlp.up_proj.weight", same),
        Row("model.layers.{}.mlp.down_proj.weight", "layers.{}.mlp.down_proj.weight", same),
        Row("model.layers.{}.post_feedforward_layernorm.weight", "layers.{}.post_feedforward_layernorm.weight", same),
        Row("model.norm.weight", "norm.weight", same),
        Row("lm_head.weight", "lm_head.weight", tie("model.embed_tokens.weight")),
        Row("score.weight", "head.out.weight", same, optional=True, head="sequence"),
    ),
)  # fmt: skip
