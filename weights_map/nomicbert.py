"""Weight tables of NomicBERT, GTE, jina-embeddings-v3 and JinaBERT. All matrices are nn.Linear on
both sides.

Files have the names of the repositories' own code, which transformers keeps: q, k and v are one
matrix, and in GTE and JinaBERT so are the two projections of the gated MLP. The names of
transformers' modules are accepted, too.
"""

from dataclasses import replace

from weights_map.bert import GAMMA_BETA, bert_heads, blocks, embeddings, layer, roberta_heads
from weights_map.engine import Operation, Row, Table, drop, same, split, tie

QKV = tuple(f"layers.{{}}.attention.{name}" for name in "qkv")


def optional(*rows: Row) -> tuple[Row, ...]:
    """The same rows, which some files do not have."""
    return tuple(replace(row, optional=True) for row in rows)


def block(stack: str, names: dict[str, str], operation: Operation = same) -> tuple[Row, ...]:
    """Optional rows of all blocks. names: of a block's layers, on the Hub -> ours."""
    return optional(
        *(
            row
            for name, ours in names.items()
            for row in layer(f"{stack}.{{}}.{name}", f"layers.{{}}.{ours}", operation)
        )
    )


def fused(stack: str, name: str, natives: tuple[str, ...]) -> tuple[Row, ...]:
    """Optional rows of a matrix, and of its bias, that contains several layers."""
    return tuple(
        Row(
            f"{stack}.{{}}.{name}.{kind}",
            tuple(f"{native}.{kind}" for native in natives),
            split(len(natives)),
            optional=True,
        )
        for kind in ("weight", "bias")
    )


def separate_qkv(stack: str) -> tuple[Row, ...]:
    """The rows of q, k and v in transformers' modules."""
    return block(stack, {f"self_attn.{name}_proj": f"attention.{name}" for name in "qkv"})


def renamed(names: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """Aliases of parts of names: transformers' -> the files'."""
    return tuple((f".{old}.", f".{new}.") for old, new in names.items())


GATE, UP = "layers.{}.mlp.gate", "layers.{}.mlp.fc1"
TYPES = Row("embeddings.token_type_embeddings.weight", "embed_types.weight", same, optional=True)
EMBEDDINGS = (
    Row("embeddings.word_embeddings.weight", "embed_tokens.weight", same),
    TYPES,
    *layer("emb_ln", "norm"),
    Row("embeddings.position_ids", (), drop),
    Row("embeddings.token_type_ids", (), drop),
)
NORMS = {"norm1": "attention_norm", "norm2": "mlp_norm"}
MODULE_NORMS = {"post_attention_layernorm": "norm1", "post_mlp_layernorm": "norm2"}

nomic = Table(
    model_type="nomic_bert",
    prefix="nomic_bert.",
    older_prefixes=("bert.",),
    spellings=(("layers.", "encoder.layers."), ("embeddings.LayerNorm.", "emb_ln.")),
    aliases=(
        *GAMMA_BETA,
        *renamed(
            {
                "self_attn.o_proj": "attn.out_proj",
                "mlp.up_proj": "mlp.fc11",
                "mlp.gate_proj": "mlp.fc12",
                "mlp.down_proj": "mlp.fc2",
                **MODULE_NORMS,
            }
        ),
    ),
    rows=(
        *EMBEDDINGS,
        *fused("encoder.layers", "attn.Wqkv", QKV),
        *separate_qkv("encoder.layers"),
        *block(
            "encoder.layers",
            {
                "attn.out_proj": "attention.o",
                "mlp.fc11": "mlp.fc1",
                "mlp.fc12": "mlp.gate",
                "mlp.fc2": "mlp.fc2",
                **NORMS,
            },
        ),
        Row("encoder.layers.{}.attn.rotary_emb.inv_freq", (), drop),
        *bert_heads("nomic_bert.", "layer_norm", "head_biases"),
    ),
)

gte = Table(
    model_type="gte",
    prefix="gte.",
    older_prefixes=("new.",),
    spellings=(("layers.", "encoder.layer."),),
    aliases=(
        *GAMMA_BETA,
        *renamed(
            {
                "self_attn.o_proj": "attention.o_proj",
                **{f"attention.{name}_proj": f"self_attn.{name}_proj" for name in "qkv"},
                "post_attention_layernorm": "attn_ln",
                "post_mlp_layernorm": "mlp_ln",
            }
        ),
        ("lm_head.layer_norm.", "lm_head.norm."),
    ),
    rows=(
        Row("embeddings.word_embeddings.weight", "embed_tokens.weight", same),
        TYPES,
        *layer("embeddings.LayerNorm", "norm"),
        Row("embeddings.position_ids", (), drop),
        Row("embeddings.rotary_emb.inv_freq", (), drop),
        *fused("encoder.layer", "attention.qkv_proj", QKV),
        *separate_qkv("encoder.layer"),
        *fused("encoder.layer", "mlp.up_gate_proj", (UP, GATE)),
        *block(
            "encoder.layer",
            {
                "attention.o_proj": "attention.o",
                "mlp.up_proj": "mlp.fc1",
                "mlp.gate_proj": "mlp.gate",
                "mlp.down_proj": "mlp.fc2",
                "attn_ln": "attention_norm",
                "mlp_ln": "mlp_norm",
            },
        ),
        *layer("gte.pooler.dense", "head.dense", head="sequence"),
        *layer("pooler.dense", "head.dense", head="pooler"),
        *layer("lm_head.dense", "head.transform", head="masked_lm"),
        *layer("lm_head.norm", "head.norm", head="masked_lm"),
        Row("lm_head.decoder.bias", "head.bias", same, head="masked_lm"),
        Row(
            "lm_head.decoder.weight",
            "head.decoder.weight",
            tie("gte.embeddings.word_embeddings.weight"),
            head="masked_lm",
        ),
        *layer("classifier", "head.out", head="sequence"),
        *layer("classifier", "head.out", head="tokens"),
    ),
)

jina_v3 = Table(
    model_type="jina_embeddings_v3",
    prefix="roberta.",
    spellings=(("layers.", "encoder.layers."), ("embeddings.LayerNorm.", "emb_ln.")),
    aliases=(*GAMMA_BETA, *renamed({"self_attn.o_proj": "mixer.out_proj", **MODULE_NORMS})),
    rows=(
        *EMBEDDINGS,
        *fused("encoder.layers", "mixer.Wqkv", QKV),
        *separate_qkv("encoder.layers"),
        *block(
            "encoder.layers",
            {"mixer.out_proj": "attention.o", "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2", **NORMS},
        ),
        *(
            Row(f"roberta.pooler.dense.{name}", (), drop, head="pooler")
            for name in ("weight", "bias")
        ),
        *(Row(f"pooler.dense.{name}", (), drop, head="pooler") for name in ("weight", "bias")),
        *roberta_heads("roberta."),
    ),
)

JINA_ATTENTION = {
    "attention.self.query": "attention.q",
    "attention.self.key": "attention.k",
    "attention.self.value": "attention.v",
    "attention.output.dense": "attention.o",
    "attention.output.LayerNorm": "attention_norm",
}

jina = Table(
    model_type="jina_bert",
    prefix="bert.",
    aliases=GAMMA_BETA,
    rows=(
        *embeddings("word", "token_type"),
        *blocks(
            "encoder.layer",
            {**JINA_ATTENTION, "mlp.wo": "mlp.fc2", "mlp.layernorm": "mlp_norm"},
        ),
        Row(
            "encoder.layer.{}.mlp.gated_layers.weight", (f"{GATE}.weight", f"{UP}.weight"), split(2)
        ),
        *bert_heads("bert."),
    ),
)

jina_code = Table(
    model_type="jina_bert_code",
    prefix="bert.",
    aliases=GAMMA_BETA,
    rows=(
        *embeddings("word", "token_type"),
        *blocks(
            "encoder.layer",
            {
                **JINA_ATTENTION,
                "attention.self.layer_norm_q": "attention.q_norm",
                "attention.self.layer_norm_k": "attention.k_norm",
                "layer_norm_1": "sum_norm",
                "mlp.down_layer": "mlp.fc2",
                "layer_norm_2": "mlp_norm",
            },
        ),
        Row(
            "encoder.layer.{}.mlp.up_gated_layer.weight",
            (f"{UP}.weight", f"{GATE}.weight"),
            split(2),
        ),
        *bert_heads("bert."),
    ),
)

tables = (nomic, gte, jina_v3, jina, jina_code)
