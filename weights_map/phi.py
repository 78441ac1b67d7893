"""Weights table of Phi 1, 1.5 and 2. All matrices are nn.Linear on both sides; q and k lie in halves, as they turn."""

from weights_map.engine import Row, Table, drop, same, tie

table = Table(
    model_type="phi",
    rows=(
        Row("model.embed_tokens.weight", "embed_tokens.weight", same),
        Row("model.layers.{}.input_layernorm.weight", "layers.{}.input_layernorm.weight", same),
        Row("model.layers.{}.input_layernorm.bias", "layers.{}.input_layernorm.bias", same),
        Row("model.layers.{}.self_attn.q_proj.weight", "layers.{}.self_attn.q_proj.weight", same),
        Row("model.layers.{}.self_attn.q_proj.bias", "layers.{}.self_attn.q_proj.bias", same),
        Row("model.layers.{}.self_attn.k_proj.weight", "layers.{}.self_attn.k_proj.weight", same),
        Row("model.layers.{}.self_attn.k_proj.bias", "layers.{}.self_attn.k_proj.bias", same),
        Row("model.layers.{}.self_attn.v_proj.weight", "layers.{}.self_attn.v_proj.weight", same),
        Row("model.layers.{}.self_attn.v_proj.bias", "layers.{}.self_attn.v_proj.bias", same),
        Row("model.layers.{}.self_attn.dense.weight", "layers.{}.self_attn.dense.weight", same),
        Row("model.layers.{}.self_attn.dense.bias", "layers.{}.self_attn.dense.bias", same),
        Row("model.layers.{}.mlp.fc1.weight", "layers.{}.mlp.fc1.weight", same),
        Row("model.layers.{}.mlp.fc1.bias", "layers.{}.mlp.fc1.bias", same),
        Row("model.layers.{}.mlp.fc2.weight", "layers.{}.mlp.fc2.weight", same),
        Row("model.layers.{}.mlp.fc2.bias", "layers.{}.mlp.fc2.bias", same),
        Row("model.final_layernorm.weight", "final_layernorm.weight", same),
        Row("model.final_layernorm.bias", "final_layernorm.bias", same),
        Row("lm_head.weight", "lm_head.weight", tie("model.embed_tokens.weight")),
        Row("lm_head.bias", "lm_head.bias", same),
        # The rotary frequencies, which old checkpoints store as weights.
        Row("model.layers.{}.self_attn.rotary_emb.inv_freq", (), drop),
    ),
    spellings=(("", "model."),),
)
