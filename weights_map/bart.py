"""Weight table of BART, PLBART, mBART, Pegasus, Marian and M2M100. All matrices are nn.Linear on
both sides.

Files with a head have the prefix `model.` before the names of the body; files of the body alone
have none.
"""

from weights_map.engine import Row, Table, drop, same, squeeze, tie

KINDS = ("weight", "bias")
ATTENTION = ("q_proj", "k_proj", "v_proj", "out_proj")


def layers(stack: str, names: tuple[str, ...]) -> tuple[Row, ...]:
    """The rows of these layers of each block."""
    return tuple(
        Row(f"model.{stack}.layers.{{}}.{name}.{kind}", f"{stack}.layers.{{}}.{name}.{kind}", same)
        for name in names
        for kind in KINDS
    )


def stack(name: str) -> tuple[Row, ...]:
    """The rows of the encoder or the decoder."""
    return (
        Row(
            f"model.{name}.embed_tokens.weight",
            f"{name}.embed_tokens.weight",
            same,
            only="separate_embeddings",
        ),
        Row(
            f"model.{name}.embed_positions.weight",
            f"{name}.embed_positions.weight",
            same,
            only="learned_positions",
        ),
        Row(f"model.{name}.embed_positions.weights", (), drop),  # computed positions of old files
        # The model type decides which norms exist; the model reports missing ones.
        *(
            Row(f"model.{name}.{norm}.{kind}", f"{name}.{norm}.{kind}", same, optional=True)
            for norm in ("layernorm_embedding", "layer_norm")
            for kind in KINDS
        ),
        *layers(name, tuple(f"self_attn.{part}" for part in ATTENTION)),
        *layers(name, ("self_attn_layer_norm", "fc1", "fc2", "final_layer_norm")),
        Row(f"model.{name}.version", (), drop),
    )


table = Table(
    model_type="bart",
    rows=(
        Row("model.shared.weight", "shared.weight", same, only="share_encoder_decoder_embeddings"),
        *stack("encoder"),
        *stack("decoder"),
        *layers("decoder", tuple(f"encoder_attn.{part}" for part in ATTENTION)),
        *layers("decoder", ("encoder_attn_layer_norm",)),
        Row(
            "lm_head.weight",
            "lm_head.weight",
            tie("model.shared.weight"),
            only="share_encoder_decoder_embeddings",
        ),
        Row(
            "lm_head.weight",
            "lm_head.weight",
            tie("model.decoder.embed_tokens.weight"),
            only="separate_embeddings",
        ),
        Row("final_logits_bias", "final_logits_bias", squeeze(0), optional=True),
        *(
            Row(
                f"classification_head.{hub_name}.{kind}",
                f"head.{ours}.{kind}",
                same,
                optional=True,
                head="sequence",
            )
            for hub_name, ours in (("dense", "dense"), ("out_proj", "out"))
            for kind in KINDS
        ),
    ),
    spellings=tuple((f"{name}.", f"model.{name}.") for name in ("encoder", "decoder", "shared")),
)
