"""Weight table of EuroBERT: the rows of Llama, with a prefix, and heads."""

from dataclasses import replace

from weights_map.bert import layer
from weights_map.engine import Row, Table, drop, same, tie
from weights_map.llama import table as llama

BODY = tuple(
    replace(row, hub=str(row.hub).removeprefix("model."))
    for row in llama.rows
    if str(row.hub).startswith("model.") and "_norm." not in str(row.hub)
)

table = Table(
    model_type="eurobert",
    prefix="model.",
    rows=(
        *BODY,
        Row("rotary_emb.inv_freq", (), drop),
        Row(
            "lm_head.weight",
            "head.decoder.weight",
            tie("model.embed_tokens.weight"),
            head="masked_lm",
        ),
        Row("lm_head.bias", "head.bias", same, optional=True, head="masked_lm"),
        *layer("dense", "head.dense", head="sequence"),
        *layer("classifier", "head.out", head="sequence"),
        *layer("classifier", "head.out", head="tokens"),
    ),
)
