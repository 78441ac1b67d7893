"""Weight table of MPNet. All matrices are nn.Linear on both sides. The layers share one table of
relative positions.
"""

from weights_map.bert import GAMMA_BETA, blocks, embeddings, roberta_heads
from weights_map.engine import Row, Table, drop, same

table = Table(
    model_type="mpnet",
    prefix="mpnet.",
    aliases=GAMMA_BETA,
    rows=(
        *embeddings("word", "position"),
        *blocks(
            "encoder.layer",
            {
                "attention.attn.q": "attention.q",
                "attention.attn.k": "attention.k",
                "attention.attn.v": "attention.v",
                "attention.attn.o": "attention.o",
                "attention.LayerNorm": "attention_norm",
                "intermediate.dense": "fc1",
                "output.dense": "fc2",
                "output.LayerNorm": "mlp_norm",
            },
        ),
        Row("encoder.relative_attention_bias.weight", "relative_bias.weight", same),
        *(
            Row(f"mpnet.pooler.dense.{name}", (), drop, head="pooler")
            for name in ("weight", "bias")
        ),
        *(Row(f"pooler.dense.{name}", (), drop, head="pooler") for name in ("weight", "bias")),
        *roberta_heads("mpnet."),
    ),
)
