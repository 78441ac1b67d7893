"""Weight table of GPT-J. All matrices are nn.Linear on both sides."""

from weights_map.engine import Row, Table, drop, same, tie

table = Table(
    model_type="gptj",
    rows=(
        Row("transformer.wte.weight", "wte.weight", same),
        Row("transformer.h.{}.ln_1.weight", "h.{}.ln_1.weight", same),
        Row("transformer.h.{}.ln_1.bias", "h.{}.ln_1.bias", same),
        Row("transformer.h.{}.attn.q_proj.weight", "h.{}.attn.q_proj.weight", same),
        Row("transformer.h.{}.attn.k_proj.weight", "h.{}.attn.k_proj.weight", same),
        Row("transformer.h.{}.attn.v_proj.weight", "h.{}.attn.v_proj.weight", same),
        Row("transformer.h.{}.attn.out_proj.weight", "h.{}.attn.out_proj.weight", same),
        Row("transformer.h.{}.mlp.fc_in.weight", "h.{}.mlp.fc_in.weight", same),
        Row("transformer.h.{}.mlp.fc_in.bias", "h.{}.mlp.fc_in.bias", same),
        Row("transformer.h.{}.mlp.fc_out.weight", "h.{}.mlp.fc_out.weight", same),
        Row("transformer.h.{}.mlp.fc_out.bias", "h.{}.mlp.fc_out.bias", same),
        Row("transformer.ln_f.weight", "ln_f.weight", same),
        Row("transformer.ln_f.bias", "ln_f.bias", same),
        Row("lm_head.weight", "lm_head.weight", tie("transformer.wte.weight")),
        Row("lm_head.bias", "lm_head.bias", same, optional=True),
        Row("score.weight", "head.out.weight", same, optional=True, head="sequence"),
        # The causal mask and the rotations, which old checkpoints store as weights.
        Row("transformer.h.{}.attn.bias", (), drop),
        Row("transformer.h.{}.attn.masked_bias", (), drop),
        Row("transformer.h.{}.attn.embed_positions", (), drop),
    ),
)
