"""Weight table of GPT. Conv1D stores weights as (in, out), as in GPT-2."""

from weights_map.engine import Row, Table, drop, same, tie, transpose

KINDS = ("weight", "bias")

table = Table(
    model_type="openai-gpt",
    rows=(
        Row("transformer.tokens_embed.weight", "wte.weight"),
        Row("transformer.positions_embed.weight", "wpe.weight"),
        *(
            Row(
                f"transformer.h.{{}}.{name}.{kind}",
                f"h.{{}}.{name}.{kind}",
                transpose
                if kind == "weight" and name.endswith(("c_attn", "c_proj", "c_fc"))
                else same,
            )
            for name in ("attn.c_attn", "attn.c_proj", "ln_1", "mlp.c_fc", "mlp.c_proj", "ln_2")
            for kind in KINDS
        ),
        Row("lm_head.weight", "lm_head.weight", tie("transformer.tokens_embed.weight")),
        Row("score.weight", "head.out.weight", optional=True, head="sequence"),
        # The causal mask and the positions, which old checkpoints store as weights.
        Row("transformer.h.{}.attn.bias", (), drop),
        Row("transformer.position_ids", (), drop),
    ),
    spellings=(("", "transformer."),),  # OpenAI's files have no prefix
)
