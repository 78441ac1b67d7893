"""Weight table of RWKV-4."""

from weights_map.engine import Row, Table, same, tie

BLOCK = "rwkv.blocks.{}"
NAMES = """
ln1.weight ln1.bias ln2.weight ln2.bias
attention.time_decay attention.time_first
attention.time_mix_key attention.time_mix_value attention.time_mix_receptance
attention.key.weight attention.value.weight attention.receptance.weight attention.output.weight
feed_forward.time_mix_key feed_forward.time_mix_receptance
feed_forward.key.weight feed_forward.receptance.weight feed_forward.value.weight
""".split()

table = Table(
    "rwkv",
    (
        Row("rwkv.embeddings.weight", "embeddings.weight", same),
        Row("rwkv.blocks.0.pre_ln.weight", "pre_ln.weight", same),
        Row("rwkv.blocks.0.pre_ln.bias", "pre_ln.bias", same),
        *(Row(f"{BLOCK}.{name}", f"blocks.{{}}.{name}", same) for name in NAMES),
        Row("rwkv.ln_out.weight", "ln_out.weight", same),
        Row("rwkv.ln_out.bias", "ln_out.bias", same),
        Row("head.weight", "lm_head.weight", tie("rwkv.embeddings.weight")),
    ),
    (("", "rwkv."),),
)
