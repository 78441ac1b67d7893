"""Weight table of GPT-NeoX and Pythia."""

from weights_map.engine import Row, Table, drop, same, tie, ungroup_heads
from weights_map.gguf import SIZES, GGUFArchitecture, inverse

heads = ungroup_heads(3, "num_attention_heads")

table = Table(
    model_type="gpt_neox",
    rows=(
        Row("gpt_neox.embed_in.weight", "embed_in.weight", same),
        Row("gpt_neox.layers.{}.input_layernorm.weight", "layers.{}.input_layernorm.weight", same),
        Row("gpt_neox.layers.{}.input_layernorm.bias", "layers.{}.input_layernorm.bias", same),
        Row(
            "gpt_neox.layers.{}.attention.query_key_value.weight",
            "layers.{}.attention.query_key_value.weight",
            heads,
        ),
        Row(
            "gpt_neox.layers.{}.attention.query_key_value.bias",
            "layers.{}.attention.query_key_value.bias",
            heads,
            optional=True,
        ),
        Row("gpt_neox.layers.{}.attention.dense.weight", "layers.{}.attention.dense.weight", same),
        Row(
            "gpt_neox.layers.{}.attention.dense.bias",
            "layers.{}.attention.dense.bias",
            same,
            optional=True,
        ),
        Row(
            "gpt_neox.layers.{}.post_attention_layernorm.weight",
            "layers.{}.post_attention_layernorm.weight",
            same,
        ),
        Row(
            "gpt_neox.layers.{}.post_attention_layernorm.bias",
            "layers.{}.post_attention_layernorm.bias",
            same,
        ),
        Row(
            "gpt_neox.layers.{}.mlp.dense_h_to_4h.weight",
            "layers.{}.mlp.dense_h_to_4h.weight",
            same,
        ),
        Row("gpt_neox.layers.{}.mlp.dense_h_to_4h.bias", "layers.{}.mlp.dense_h_to_4h.bias", same),
        Row(
            "gpt_neox.layers.{}.mlp.dense_4h_to_h.weight",
            "layers.{}.mlp.dense_4h_to_h.weight",
            same,
        ),
        Row("gpt_neox.layers.{}.mlp.dense_4h_to_h.bias", "layers.{}.mlp.dense_4h_to_h.bias", same),
        Row("gpt_neox.final_layer_norm.weight", "final_layer_norm.weight", same),
        Row("gpt_neox.final_layer_norm.bias", "final_layer_norm.bias", same),
        Row("embed_out.weight", "embed_out.weight", tie("gpt_neox.embed_in.weight")),
        Row("score.weight", "head.out.weight", same, optional=True, head="sequence"),
        # The causal mask and the rotary frequencies, which old checkpoints store as weights.
        Row("gpt_neox.layers.{}.attention.bias", (), drop),
        Row("gpt_neox.layers.{}.attention.masked_bias", (), drop),
        Row("gpt_neox.layers.{}.attention.rotary_emb.inv_freq", (), drop),
    ),
    spellings=(("lm_head.", "embed_out."),),  # the name in transformers 5
)

gguf = (
    GGUFArchitecture(
        "gptneox",
        model_type="gpt_neox",
        settings={
            **SIZES,
            "attention.layer_norm_epsilon": "layer_norm_eps",
            "use_parallel_residual": "use_parallel_residual",
            "rope.dimension_count": "partial_rotary_factor",
        },
        rows=(
            Row("token_embd.weight", "gpt_neox.embed_in.weight", same),
            Row("blk.{}.attn_norm.weight", "gpt_neox.layers.{}.input_layernorm.weight", same),
            Row("blk.{}.attn_norm.bias", "gpt_neox.layers.{}.input_layernorm.bias", same),
            Row(
                "blk.{}.attn_qkv.weight",
                "gpt_neox.layers.{}.attention.query_key_value.weight",
                inverse(heads),
            ),
            Row(
                "blk.{}.attn_qkv.bias",
                "gpt_neox.layers.{}.attention.query_key_value.bias",
                inverse(heads),
                optional=True,
            ),
            Row("blk.{}.attn_output.weight", "gpt_neox.layers.{}.attention.dense.weight", same),
            Row(
                "blk.{}.attn_output.bias",
                "gpt_neox.layers.{}.attention.dense.bias",
                same,
                optional=True,
            ),
            Row(
                "blk.{}.ffn_norm.weight", "gpt_neox.layers.{}.post_attention_layernorm.weight", same
            ),
            Row("blk.{}.ffn_norm.bias", "gpt_neox.layers.{}.post_attention_layernorm.bias", same),
            Row("blk.{}.ffn_up.weight", "gpt_neox.layers.{}.mlp.dense_h_to_4h.weight", same),
            Row("blk.{}.ffn_up.bias", "gpt_neox.layers.{}.mlp.dense_h_to_4h.bias", same),
            Row("blk.{}.ffn_down.weight", "gpt_neox.layers.{}.mlp.dense_4h_to_h.weight", same),
            Row("blk.{}.ffn_down.bias", "gpt_neox.layers.{}.mlp.dense_4h_to_h.bias", same),
            Row("output_norm.weight", "gpt_neox.final_layer_norm.weight", same),
            Row("output_norm.bias", "gpt_neox.final_layer_norm.bias", same),
            Row("output.weight", "embed_out.weight", same, optional=True),
        ),
        flags={"blk.0.attn_qkv.bias": "attention_bias"},
    ),
)
