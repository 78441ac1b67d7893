"""Weight table of Laya: ModernBERT's rows with a prefix, and the decision head's rows."""

from weights_map.bert import layer
from weights_map.engine import Row, Table, same, split
from weights_map.modernbert import table as modernbert

LAYER = "head.layers.{}"
QKV = tuple(f"decision_layers.{{}}.{name}" for name in "qkv")
LAYERS = {
    f"{LAYER}.self_attn.out_proj": "o",
    f"{LAYER}.linear1": "wi",
    f"{LAYER}.linear2": "wo",
    f"{LAYER}.norm1": "attention_norm",
    f"{LAYER}.norm2": "mlp_norm",
}
HEAD = {
    "scorer.0": "head.norm",
    "scorer.1": "head.dense",
    "scorer.3": "head.out",
    "act_head.0": "head.act",
    "act_head.2": "head.act_out",
}

table = Table(
    model_type="laya",
    prefix="encoder.",
    rows=(
        *(row for row in modernbert.rows if row.head is None),
        Row("type_emb.weight", "embed_types.weight", same, head="decision"),
        *(
            Row(
                f"{LAYER}.self_attn.in_proj_{kind}",
                tuple(f"{name}.{kind}" for name in QKV),
                split(3),
                head="decision",
            )
            for kind in ("weight", "bias")
        ),
        *(
            row
            for hub, native in LAYERS.items()
            for row in layer(hub, f"decision_layers.{{}}.{native}", head="decision")
        ),
        *(row for hub, native in HEAD.items() for row in layer(hub, native, head="decision")),
        Row("temperature", "head.temperature", same, head="decision"),
    ),
)
