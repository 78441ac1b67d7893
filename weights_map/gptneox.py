"""GPT-NeoX's weight table, Pythia's too."""

from weights_map.engine import Row, Table, by_part, drop, same, tie

heads = by_part(3, "num_attention_heads")

table = Table(
    model_type="gpt_neox",
    rows=(
        Row("gpt_neox.embed_in.weight", "embed_in.weight", same),
        Row("gpt_neox.layers.{}.input_layernorm.weight", "layers.{}.input_layernorm.weight", same),
        Row("gpt_neox.layers.{}.input_layernorm.bias", "layers.{}.input_layernorm.bias", same),
        Row("gpt_neox.layers.{}.attention.query_key_value.weight", "layers.{}.attention.query_key_value.weight", heads),
        Row("gpt_neox.layers.{}.attention.query_key_value.bias", "layers.{}.attention.query_key_value.bias", heads,
            optional=True),
        Row("gpt_neox.layers.{}.attention.dense.weight", "layers.{}.attention.dense.weight", same),
        Row("gpt_neox.layers.{}.attention.dense.bias", "layers.{}.attention.dense.bias", same, optional=True),
        Row("gpt_neox.layers.{}.post_attention_layernorm.weight", "layers.{}.post_attention_layernorm.weight", same),
        Row("gpt_neox.layers.{}.post_attention_layernorm.bias", "layers.{}.post_attention_layernorm.bias", same),
        Row("gpt_neox.layers.{}.mlp.dense_h_to_4h.weight", "layers.{}.mlp.dense_h_to_4h.weight", same),
        Row("gpt_neox.layers.{}.mlp.dense_h_to_4h.bias", "layers.{}.mlp.dense_h_to_4h.bias", same),
        Row("gpt_neox.layers.{}.mlp.dense_4h_to_h.weight", "layers.{}.mlp.dense_4h_to_h.weight", same),
        Row("gpt_neox.layers.{}.mlp.dense_4h_to_h.bias", "layers.{}.mlp.dense_4h_to_h.bias", same),
        Row("gpt_neox.final_layer_norm.weight", "final_layer_norm.weight", same),
        Row("gpt_neox.final_layer_norm.bias", "final_layer_norm.bias", same),
        Row("embed_out.weight", "embed_out.weight", tie("gpt_neox.embed_in.weight")),
        # The causal mask and the rotary frequencies, which old checkpoints carry as if they were weights.
        Row("gpt_neox.layers.{}.attention.bias", (), drop),
        Row("gpt_neox.layers.{}.attention.masked_bias", (), drop),
        Row("gpt_neox.layers.{}.attention.rotary_emb.inv_freq", (), drop),
    ),
    spellings=(("lm_head.", "embed_out."),),  # what transformers 5 calls it in memory
)  # fmt: skip
