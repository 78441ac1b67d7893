"""Weight table of GPT-OSS. Experts are stacked: (experts, in, out) floats, or MXFP4 blocks and scales.

The rows of gate and up alternate on both sides: separate native weights would be copies.
"""

from weights_map.engine import Row, Table, same, tie

table = Table(
    model_type="gpt_oss",
    rows=(
        Row("model.embed_tokens.weight", "embed_tokens.weight", same),
        Row("model.layers.{}.input_layernorm.weight", "layers.{}.input_layernorm.weight", same),
        Row("model.layers.{}.self_attn.q_proj.weight", "layers.{}.self_attn.q_proj.weight", same),
        Row("model.layers.{}.self_attn.k_proj.weight", "layers.{}.self_attn.k_proj.weight", same),
        Row("model.layers.{}.self_attn.v_proj.weight", "layers.{}.self_attn.v_proj.weight", same),
        Row("model.layers.{}.self_attn.o_proj.weight", "layers.{}.self_attn.o_proj.weight", same),
        # The config decides whether attention has biases, and which format the experts have.
        Row("model.layers.{}.self_attn.q_proj.bias", "layers.{}.self_attn.q_proj.bias", same, optional=True),
        Row("model.layers.{}.self_attn.k_proj.bias", "layers.{}.self_attn.k_proj.bias", same, optional=True),
        Row("model.layers.{}.self_attn.v_proj.bias", "layers.{}.self_attn.v_proj.bias", same, optional=True),
        Row("model.layers.{}.self_attn.o_proj.bias", "layers.{}.self_attn.o_proj.bias", same, optional=True),
        Row("model.layers.{}.self_attn.sinks", "layers.{}.self_attn.sinks", same),
        Row("model.layers.{}.post_attention_layernorm.weight", "layers.{}.post_attention_layernorm.weight", same),
        Row("model.layers.{}.mlp.router.weight", "layers.{}.mlp.router.weight", same),
        Row("model.layers.{}.mlp.router.bias", "layers.{}.mlp.router.bias", same),
        Row("model.layers.{}.mlp.experts.gate_up_proj", "layers.{}.mlp.experts.gate_up_proj", same, optional=True),
        Row("model.layers.{}.mlp.experts.gate_up_proj_blocks", "layers.{}.mlp.experts.gate_up_proj.blocks", same,
            optional=True),
        Row("model.layers.{}.mlp.experts.gate_up_proj_scales", "layers.{}.mlp.experts.gate_up_proj.scales", same,
            optional=True),
        Row("model.layers.{}.mlp.experts.gate_up_proj_bias", "layers.{}.mlp.experts.gate_up_proj_bias", same),
        Row("model.layers.{}.mlp.experts.down_proj", "layers.{}.mlp.experts.down_proj", same, optional=True),
        Row("model.layers.{}.mlp.experts.down_proj_blocks", "layers.{}.mlp.experts.down_proj.blocks", same,
            optional=True),
        Row("model.layers.{}.mlp.experts.down_proj_scales", "layers.{}.mlp.experts.down_proj.scales", same,
            optional=True),
        Row("model.layers.{}.mlp.experts.down_proj_bias", "layers.{}.mlp.experts.down_proj_bias", same),
        Row("model.norm.weight", "norm.weight", same),
        Row("lm_head.weight", "lm_head.weight", tie("model.embed_tokens.weight")),
        Row("score.weight", "head.out.weight", same, optional=True, head="sequence"),
    ),
)  # fmt: skip
