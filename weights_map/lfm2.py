"""Weight tables of LFM2 and LFM2 MoE. A layer has either self_attn or conv; the model reports missing ones."""

from weights_map.engine import Row, Table, same, tie
from weights_map.mixtral import PROJECTIONS, expert_rows

LAYER = "model.layers.{}"
MLP = tuple(zip(("w1", "w3", "w2"), PROJECTIONS, strict=True))  # gate, up and down
rows = (
    Row("model.embed_tokens.weight", "embed_tokens.weight", same),
    Row(f"{LAYER}.operator_norm.weight", "layers.{}.operator_norm.weight", same),
    *(
        Row(f"{LAYER}.{name}", f"layers.{{}}.{name}", same, optional=True)
        for part in ("in_proj", "conv", "out_proj")
        for name in (f"conv.{part}.weight", f"conv.{part}.bias")
    ),
    *(
        Row(f"{LAYER}.self_attn.{name}.weight", f"layers.{{}}.self_attn.{name}.weight", same, optional=True)
        for name in ("q_proj", "k_proj", "v_proj", "out_proj")
    ),
    *(
        Row(f"{LAYER}.self_attn.{name}_layernorm.weight", f"layers.{{}}.self_attn.{name}_norm.weight", same,
            optional=True)
        for name in "qk"
    ),
    Row(f"{LAYER}.ffn_norm.weight", "layers.{}.ffn_norm.weight", same),
    *(
        Row(f"{LAYER}.feed_forward.{theirs}.weight", f"layers.{{}}.mlp.{ours}.weight", same, optional=True)
        for theirs, ours in MLP
    ),
    # The final norm, in spite of its name.
    Row("model.embedding_norm.weight", "norm.weight", same),
    Row("lm_head.weight", "lm_head.weight", tie("model.embed_tokens.weight")),
)  # fmt: skip
experts = (
    Row(f"{LAYER}.feed_forward.gate.weight", "layers.{}.mlp.gate.weight", same, optional=True),
    Row(f"{LAYER}.feed_forward.expert_bias", "layers.{}.mlp.expert_bias", same, optional=True),
    *expert_rows(f"{LAYER}.feed_forward.experts", ("w1", "w3", "w2"), f"{LAYER}.feed_forward.experts"),
)
spellings = (("model.", ""), ("", "model."))
tables = (Table("lfm2", rows, spellings), Table("lfm2_moe", (*rows, *experts), spellings))
