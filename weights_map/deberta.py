"""Weight tables of DeBERTa: version 1, and versions 2 and 3. All matrices are nn.Linear on both
sides.

Version 1 has one projection to q, k and v of each head, whose bias has two parts. Published files
may contain absolute position embeddings and heads that the model does not use.
"""

from weights_map.bert import GAMMA_BETA, blocks, embeddings, layer
from weights_map.engine import Row, Table, drop, same, tie, unfuse_heads

BLOCK = {
    "attention.output.dense": "attention.o",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "fc1",
    "output.dense": "fc2",
    "output.LayerNorm": "mlp_norm",
}


def optional(*rows: Row) -> tuple[Row, ...]:
    """The same rows, which some models do not have."""
    return tuple(Row(row.hub, row.native, row.operation, optional=True) for row in rows)


BODY = (
    *embeddings("word"),
    # Published files have it also if position_biased_input is false.
    Row(
        "embeddings.position_embeddings.weight",
        "embed_positions.weight",
        same,
        optional=True,
        layers="position_tables",
    ),
    Row("embeddings.token_type_embeddings.weight", "embed_types.weight", same, optional=True),
    Row("embeddings.embed_proj.weight", "project.weight", same, optional=True),
    *blocks("encoder.layer", BLOCK),
    Row("encoder.rel_embeddings.weight", "distances.weight", same, optional=True),
)
HEADS = (
    *layer("cls.predictions.transform.dense", "head.transform", head="masked_lm"),
    *layer("cls.predictions.transform.LayerNorm", "head.norm", head="masked_lm"),
    Row("cls.predictions.bias", "head.bias", same, head="masked_lm"),
    Row(
        "cls.predictions.decoder.weight",
        "head.decoder.weight",
        tie("deberta.embeddings.word_embeddings.weight"),
        head="masked_lm",
    ),
    Row(
        "cls.predictions.decoder.bias",
        "head.decoder.bias",
        tie("cls.predictions.bias"),
        head="masked_lm",
    ),
    *layer("lm_predictions.lm_head.dense", "head.transform", head="masked_lm_new"),
    *layer("lm_predictions.lm_head.LayerNorm", "head.norm", head="masked_lm_new"),
    Row("lm_predictions.lm_head.bias", "head.bias", same, head="masked_lm_new"),
    *layer("pooler.dense", "head.dense", head="sequence"),
    *layer("classifier", "head.out", head="sequence"),
    *layer("classifier", "head.out", head="tokens"),
    *layer("qa_outputs", "head.out", head="questions"),
    Row("mask_predictions.*", (), drop, head="replaced_tokens"),
)

v1 = Table(
    model_type="deberta",
    prefix="deberta.",
    aliases=GAMMA_BETA,
    rows=(
        *BODY,
        Row(
            "encoder.layer.{}.attention.self.in_proj.weight",
            tuple(f"layers.{{}}.attention.{name}.weight" for name in "qkv"),
            unfuse_heads(3, "num_attention_heads"),
        ),
        Row("encoder.layer.{}.attention.self.q_bias", "layers.{}.attention.q.bias", same),
        Row("encoder.layer.{}.attention.self.v_bias", "layers.{}.attention.v.bias", same),
        Row(
            "encoder.layer.{}.attention.self.pos_proj.weight",
            "layers.{}.attention.position_key.weight",
            same,
            optional=True,
        ),
        *optional(
            *blocks("encoder.layer", {"attention.self.pos_q_proj": "attention.position_query"})
        ),
        *HEADS,
    ),
)

v2 = Table(
    model_type="deberta-v2",
    prefix="deberta.",
    aliases=GAMMA_BETA,
    rows=(
        *BODY,
        *blocks(
            "encoder.layer",
            {
                "attention.self.query_proj": "attention.q",
                "attention.self.key_proj": "attention.k",
                "attention.self.value_proj": "attention.v",
            },
        ),
        *optional(
            *blocks(
                "encoder.layer",
                {
                    "attention.self.pos_key_proj": "attention.position_key",
                    "attention.self.pos_query_proj": "attention.position_query",
                },
            ),
            *layer("encoder.LayerNorm", "distance_norm"),
            *layer("encoder.conv.conv", "layers.0.conv"),
            *layer("encoder.conv.LayerNorm", "layers.0.conv_norm"),
        ),
        *HEADS,
    ),
)

tables = (v1, v2)
