"""Weight table of GPT-BigCode. Names are GPT-2's; all matrices are nn.Linear on both sides."""

from weights_map.engine import Row, Table, drop, same, tie, ungroup_heads

# With multi-head attention, the Hub groups q, k and v of each head; with one KV head, the order is native.
heads = ungroup_heads(3, "heads_in_turn")

table = Table(
    model_type="gpt_bigcode",
    rows=(
        Row("transformer.wte.weight", "wte.weight", same),
        Row("transformer.wpe.weight", "wpe.weight", same),
        Row("transformer.h.{}.ln_1.weight", "h.{}.ln_1.weight", same),
        Row("transformer.h.{}.ln_1.bias", "h.{}.ln_1.bias", same),
        Row("transformer.h.{}.attn.c_attn.weight", "h.{}.attn.c_attn.weight", heads),
        Row("transformer.h.{}.attn.c_attn.bias", "h.{}.attn.c_attn.bias", heads),
        Row("transformer.h.{}.attn.c_proj.weight", "h.{}.attn.c_proj.weight", same),
        Row("transformer.h.{}.attn.c_proj.bias", "h.{}.attn.c_proj.bias", same),
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
        # The causal mask, which old checkpoints store as a weight.
        Row("transformer.h.{}.attn.bias", (), drop),
        Row("transformer.h.{}.attn.masked_bias", (), drop),
    ),
)
