"""Weight table of GPT-Neo. All matrices are nn.Linear on both sides; the Hub nests `attention` in
`attn`.
"""

from weights_map.engine import Row, Table, drop, same, tie

table = Table(
    model_type="gpt_neo",
    rows=(
        Row("transformer.wte.weight", "wte.weight", same),
        Row("transformer.wpe.weight", "wpe.weight", same),
        Row("transformer.h.{}.ln_1.weight", "h.{}.ln_1.weight", same),
        Row("transformer.h.{}.ln_1.bias", "h.{}.ln_1.bias", same),
        Row("transformer.h.{}.attn.attention.q_proj.weight", "h.{}.attn.q_proj.weight", same),
        Row("transformer.h.{}.attn.attention.k_proj.weight", "h.{}.attn.k_proj.weight", same),
        Row("transformer.h.{}.attn.attention.v_proj.weight", "h.{}.attn.v_proj.weight", same),
        Row("transformer.h.{}.attn.attention.out_proj.weight", "h.{}.attn.out_proj.weight", same),
        Row("transformer.h.{}.attn.attention.out_proj.bias", "h.{}.attn.out_proj.bias", same),
        Row("transformer.h.{}.ln_2.weight", "h.{}.ln_2.weight", same),
        Row("transformer.h.{}.ln_2.bias", "h.{}.ln_2.bias", same),
        Row("transformer.h.{}.mlp.c_fc.weight", "h.{}.mlp.c_fc.weight", same),
        Row("transformer.h.{}.mlp.c_fc.bias", "h.{}.mlp.c_fc.bias", same),
        Row("transformer.h.{}.mlp.c_proj.weight", "h.{}.mlp.c_proj.weight", same),
        Row("transformer.h.{}.mlp.c_proj.bias", "h.{}.mlp.c_proj.bias", same),
        Row("transformer.ln_f.weight", "ln_f.weight", same),
        Row("transformer.ln_f.bias", "ln_f.bias", same),
        Row("lm_head.weight", "lm_head.weight", tie("transformer.wte.weight")),
        Row("score.weight", "head.out.weight", same, optional=True, head="sequence"),
        # The causal or local mask, which old checkpoints store as a weight.
        Row("transformer.h.{}.attn.attention.bias", (), drop),
        Row("transformer.h.{}.attn.attention.masked_bias", (), drop),
    ),
    spellings=(("", "transformer."),),
)
