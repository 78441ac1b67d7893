"""Weight table of Qwen 3.5. A layer has either self_attn or linear_attn; the model reports missing ones."""

from weights_map.engine import Row, Table, drop, same, tie

table = Table(
    model_type="qwen3_5_text",
    rows=(
        Row("model.embed_tokens.weight", "embed_tokens.weight", same),
        Row("model.layers.{}.input_layernorm.weight", "layers.{}.input_layernorm.weight", same),
        *(
            Row(f"model.layers.{{}}.{name}", f"layers.{{}}.{name}", same, optional=True)
            for name in (
                "linear_attn.A_log",
                "linear_attn.dt_bias",
                "linear_attn.conv1d.weight",
                "linear_attn.in_proj_qkv.weight",
                "linear_attn.in_proj_z.weight",
                "linear_attn.in_proj_b.weight",
                "linear_attn.in_proj_a.weight",
                "linear_attn.norm.weight",
                "linear_attn.out_proj.weight",
                "self_attn.q_proj.weight",
                "self_attn.q_proj.bias",
                "self_attn.k_proj.weight",
                "self_attn.k_proj.bias",
                "self_attn.v_proj.weight",
                "self_attn.v_proj.bias",
                "self_attn.o_proj.weight",
                "self_attn.o_proj.bias",
                "self_attn.q_norm.weight",
                "self_attn.k_norm.weight",
            )
        ),
        Row("model.layers.{}.post_attention_layernorm.weight", "layers.{}.post_attention_layernorm.weight", same),
        Row("model.layers.{}.mlp.gate_proj.weight", "layers.{}.mlp.gate_proj.weight", same),
        Row("model.layers.{}.mlp.up_proj.weight", "layers.{}.mlp.up_proj.weight", same),
        Row("model.layers.{}.mlp.down_proj.weight", "layers.{}.mlp.down_proj.weight", same),
        Row("model.norm.weight", "norm.weight", same),
        Row("lm_head.weight", "lm_head.weight", tie("model.embed_tokens.weight")),
        Row("score.weight", "head.out.weight", same, optional=True, head="sequence"),
        # Multi-token prediction and vision layers.
        Row("mtp.*", (), drop),
        Row("model.visual.*", (), drop),
    ),
    # qwen3_5 files have the text model below `language_model`, in two spellings.
    spellings=(
        ("model.language_model.", "model."),
        ("language_model.", ""),
        ("visual.", "model.visual."),
        ("model.mtp.", "mtp."),
    ),
)
