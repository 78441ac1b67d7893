"""Weight tables of BERT, RoBERTa, DistilBERT, ELECTRA and ALBERT. All matrices are nn.Linear on
both sides.

Files with a head have a prefix, such as `bert.`, before the names of the body; files of the body
alone have none. Old files call the weights of layer norms gamma and beta. XLM-RoBERTa and CamemBERT
use RoBERTa's table.

In GGUF, all of them have the architecture bert, without heads. The position embedding of a RoBERTa
begins with the first token, as BERT's: the converter drops the rows before it.
"""

from weights_map.engine import Operation, Row, Table, drop, same, tie
from weights_map.gguf import SIZES, GGUFArchitecture

GAMMA_BETA = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))


def layer(
    hub: str, native: str, operation: Operation = same, head: str | None = None
) -> tuple[Row, Row]:
    """The weight and the bias of a layer."""
    return (
        Row(f"{hub}.weight", f"{native}.weight", operation, head=head),
        Row(f"{hub}.bias", f"{native}.bias", operation, head=head),
    )


def blocks(hub: str, names: dict[str, str]) -> tuple[Row, ...]:
    """The rows of all blocks. names: of a block's layers, on the Hub -> ours."""
    return tuple(
        row
        for name, ours in names.items()
        for row in layer(f"{hub}.{{}}.{name}", f"layers.{{}}.{ours}")
    )


def embeddings(*names: str) -> tuple[Row, ...]:
    """The embeddings and their norm. Position IDs and token types may be buffers of old files."""
    ours = {"word": "embed_tokens", "position": "embed_positions", "token_type": "embed_types"}
    return (
        *(
            Row(f"embeddings.{name}_embeddings.weight", f"{ours[name]}.weight", same)
            for name in names
        ),
        *layer("embeddings.LayerNorm", "norm"),
        Row("embeddings.position_ids", (), drop),
        Row("embeddings.token_type_ids", (), drop),
    )


BERT_BLOCK = {
    "attention.self.query": "attention.q",
    "attention.self.key": "attention.k",
    "attention.self.value": "attention.v",
    "attention.output.dense": "attention.o",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "fc1",
    "output.dense": "fc2",
    "output.LayerNorm": "mlp_norm",
}


def roberta_heads(prefix: str) -> tuple[Row, ...]:
    """RoBERTa's and MPNet's heads."""
    return (
        *layer("lm_head.dense", "head.transform", head="masked_lm"),
        *layer("lm_head.layer_norm", "head.norm", head="masked_lm"),
        Row("lm_head.bias", "head.bias", same, head="masked_lm"),
        Row(
            "lm_head.decoder.weight",
            "head.decoder.weight",
            tie(f"{prefix}embeddings.word_embeddings.weight"),
            head="masked_lm",
        ),
        Row("lm_head.decoder.bias", "head.decoder.bias", tie("lm_head.bias"), head="masked_lm"),
        *layer("classifier.dense", "head.dense", head="sequence"),
        *layer("classifier.out_proj", "head.out", head="sequence"),
        *layer("classifier", "head.out", head="tokens"),
        *layer("qa_outputs", "head.out", head="questions"),
    )


def bert_heads(prefix: str, norm: str = "LayerNorm", biases: str | None = None) -> tuple[Row, ...]:
    """BERT's heads. norm: the name of the norm.    biases: a setting that is 0 for a masked-LM head
    without biases.

    The pooler belongs to the head of sequence classification. Other models ignore it.
    """
    transform = "cls.predictions.transform"
    return (
        *layer(f"{prefix}pooler.dense", "head.dense", head="sequence"),
        *layer("pooler.dense", "head.dense", head="pooler"),
        Row(f"{transform}.dense.weight", "head.transform.weight", same, head="masked_lm"),
        Row(
            f"{transform}.dense.bias", "head.transform.bias", same, head="masked_lm", layers=biases
        ),
        *layer(f"{transform}.{norm}", "head.norm", head="masked_lm"),
        Row("cls.predictions.bias", "head.bias", same, head="masked_lm", layers=biases),
        Row(
            "cls.predictions.decoder.weight",
            "head.decoder.weight",
            tie(f"{prefix}embeddings.word_embeddings.weight"),
            head="masked_lm",
        ),
        Row(
            "cls.predictions.decoder.bias",
            "head.decoder.bias",
            tie("cls.predictions.bias"),
            head="masked_lm",
        ),
        *layer("classifier", "head.out", head="sequence"),
        *layer("classifier", "head.out", head="tokens"),
        *layer("cls.seq_relationship", "head.next", head="next_sentence"),
        *layer("qa_outputs", "head.out", head="questions"),
    )


bert = Table(
    model_type="bert",
    prefix="bert.",
    aliases=GAMMA_BETA,
    rows=(
        *embeddings("word", "position", "token_type"),
        *blocks("encoder.layer", BERT_BLOCK),
        *bert_heads("bert."),
    ),
)

roberta = Table(
    model_type="roberta",
    prefix="roberta.",
    aliases=GAMMA_BETA,
    rows=(
        *embeddings("word", "position", "token_type"),
        *blocks("encoder.layer", BERT_BLOCK),
        *(
            Row(f"roberta.pooler.dense.{name}", (), drop, head="pooler")
            for name in ("weight", "bias")
        ),
        *(Row(f"pooler.dense.{name}", (), drop, head="pooler") for name in ("weight", "bias")),
        *roberta_heads("roberta."),
    ),
)

distilbert = Table(
    model_type="distilbert",
    prefix="distilbert.",
    aliases=GAMMA_BETA,
    rows=(
        *embeddings("word", "position"),
        *blocks(
            "transformer.layer",
            {
                "attention.q_lin": "attention.q",
                "attention.k_lin": "attention.k",
                "attention.v_lin": "attention.v",
                "attention.out_lin": "attention.o",
                "sa_layer_norm": "attention_norm",
                "ffn.lin1": "fc1",
                "ffn.lin2": "fc2",
                "output_layer_norm": "mlp_norm",
            },
        ),
        *layer("vocab_transform", "head.transform", head="masked_lm"),
        *layer("vocab_layer_norm", "head.norm", head="masked_lm"),
        Row("vocab_projector.bias", "head.bias", same, head="masked_lm"),
        Row(
            "vocab_projector.weight",
            "head.decoder.weight",
            tie("distilbert.embeddings.word_embeddings.weight"),
            head="masked_lm",
        ),
        *layer("pre_classifier", "head.dense", head="sequence"),
        *layer("classifier", "head.out", head="sequence"),
        *layer("classifier", "head.out", head="tokens"),
        *layer("qa_outputs", "head.out", head="questions"),
    ),
)

electra = Table(
    model_type="electra",
    prefix="electra.",
    aliases=GAMMA_BETA,
    rows=(
        *embeddings("word", "position", "token_type"),
        Row("embeddings_project.weight", "project.weight", same, optional=True),
        Row("embeddings_project.bias", "project.bias", same, optional=True),
        *blocks("encoder.layer", BERT_BLOCK),
        *layer("generator_predictions.dense", "head.transform", head="masked_lm"),
        *layer("generator_predictions.LayerNorm", "head.norm", head="masked_lm"),
        Row("generator_lm_head.bias", "head.bias", same, head="masked_lm"),
        Row(
            "generator_lm_head.weight",
            "head.decoder.weight",
            tie("electra.embeddings.word_embeddings.weight"),
            head="masked_lm",
        ),
        *layer("discriminator_predictions.dense", "head.dense", head="replaced_tokens"),
        *layer("discriminator_predictions.dense_prediction", "head.out", head="replaced_tokens"),
        *layer("classifier.dense", "head.dense", head="sequence"),
        *layer("classifier.out_proj", "head.out", head="sequence"),
        *layer("classifier", "head.out", head="tokens"),
        *layer("qa_outputs", "head.out", head="questions"),
    ),
)

ALBERT_BLOCK = {
    "attention.query": "attention.q",
    "attention.key": "attention.k",
    "attention.value": "attention.v",
    "attention.dense": "attention.o",
    "attention.LayerNorm": "attention_norm",
    "ffn": "fc1",
    "ffn_output": "fc2",
    "full_layer_layer_norm": "mlp_norm",
}

albert = Table(
    model_type="albert",
    prefix="albert.",
    aliases=GAMMA_BETA,
    rows=(
        *embeddings("word", "position", "token_type"),
        *layer("encoder.embedding_hidden_mapping_in", "project"),
        *(
            row
            for name, ours in ALBERT_BLOCK.items()
            for row in layer(
                f"encoder.albert_layer_groups.{{}}.albert_layers.{{}}.{name}",
                f"layers.{{}}.{{}}.{ours}",
            )
        ),
        *layer("albert.pooler", "head.dense", head="sequence"),
        *layer("pooler", "head.dense", head="pooler"),
        *layer("predictions.dense", "head.transform", head="masked_lm"),
        *layer("predictions.LayerNorm", "head.norm", head="masked_lm"),
        Row("predictions.bias", "head.bias", same, head="masked_lm"),
        Row(
            "predictions.decoder.weight",
            "head.decoder.weight",
            tie("albert.embeddings.word_embeddings.weight"),
            head="masked_lm",
        ),
        Row(
            "predictions.decoder.bias",
            "head.decoder.bias",
            tie("predictions.bias"),
            head="masked_lm",
        ),
        *layer("classifier", "head.out", head="sequence"),
        *layer("classifier", "head.out", head="tokens"),
        *layer("sop_classifier.classifier", "head.order", head="sentence_order"),
        *layer("qa_outputs", "head.out", head="questions"),
    ),
)

tables = (bert, roberta, distilbert, electra, albert)

GGUF_BLOCK = {
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
}

gguf = (
    GGUFArchitecture(
        "bert",
        model_type="bert",
        settings={
            **SIZES,
            "attention.layer_norm_epsilon": "layer_norm_eps",
        },
        rows=(
            Row("token_embd.weight", "embeddings.word_embeddings.weight", same),
            Row("position_embd.weight", "embeddings.position_embeddings.weight", same),
            Row("token_types.weight", "embeddings.token_type_embeddings.weight", same),
            *layer("token_embd_norm", "embeddings.LayerNorm"),
            *(
                row
                for name, hub in GGUF_BLOCK.items()
                for row in layer(f"blk.{{}}.{name}", f"encoder.layer.{{}}.{hub}")
            ),
        ),
        required={"attention.causal": False},
        sizes={
            "position_embd.weight": "max_position_embeddings",
            "token_types.weight": "type_vocab_size",
        },
        assumed=(
            "the activation gelu, no maximum length but the number of positions, and no prompts"
        ),
    ),
)
