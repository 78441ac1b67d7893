"""Weight table of T5. All matrices are nn.Linear on both sides.

A file with a classification head has the prefix `transformer.` before the other names.

On the Hub, the sublayers of a block are numbered: attention 0, the decoder's cross attention 1, and
the MLP last.
"""

from collections.abc import Mapping
from dataclasses import replace

from weights_map.engine import HubConfig, Row, Table, drop, same, tie
from weights_map.gguf import GGUFArchitecture


def stack(name: str, mlp: int) -> tuple[Row, ...]:
    """The rows of the encoder or the decoder. mlp: the number of the MLP sublayer."""
    hub, block = f"{name}.block.{{}}.layer", f"{name}.block.{{}}"
    return (
        # Stored in the first block, and shared by all blocks.
        Row(
            f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            f"{name}.relative_bias.weight",
            same,
        ),
        Row(f"{hub}.0.layer_norm.weight", f"{block}.attention_norm.weight", same),
        *(
            Row(f"{hub}.0.SelfAttention.{part}.weight", f"{block}.attention.{part}.weight", same)
            for part in "qkvo"
        ),
        Row(f"{hub}.{mlp}.layer_norm.weight", f"{block}.mlp_norm.weight", same),
        # One input matrix, or two for gated MLPs; the model reports missing ones.
        Row(f"{hub}.{mlp}.DenseReluDense.wi.weight", f"{block}.mlp.wi.weight", same, optional=True),
        Row(
            f"{hub}.{mlp}.DenseReluDense.wi_0.weight",
            f"{block}.mlp.wi_0.weight",
            same,
            optional=True,
        ),
        Row(
            f"{hub}.{mlp}.DenseReluDense.wi_1.weight",
            f"{block}.mlp.wi_1.weight",
            same,
            optional=True,
        ),
        Row(f"{hub}.{mlp}.DenseReluDense.wo.weight", f"{block}.mlp.wo.weight", same),
        Row(f"{name}.final_layer_norm.weight", f"{name}.norm.weight", same),
    )


cross, native = "decoder.block.{}.layer.1", "decoder.block.{}"

table = Table(
    model_type="t5",
    prefix="transformer.",
    rows=(
        Row("shared.weight", "shared.weight", same),
        *stack("encoder", 1),
        *stack("decoder", 2),
        Row(f"{cross}.layer_norm.weight", f"{native}.cross_norm.weight", same),
        *(
            Row(
                f"{cross}.EncDecAttention.{part}.weight",
                f"{native}.cross_attention.{part}.weight",
                same,
            )
            for part in "qkvo"
        ),
        Row("lm_head.weight", "lm_head.weight", tie("shared.weight")),
        *(
            Row(
                f"classification_head.{hub_name}.{part}",
                f"head.{ours}.{part}",
                same,
                head="sequence",
            )
            for hub_name, ours in (("dense", "dense"), ("out_proj", "out"))
            for part in ("weight", "bias")
        ),
        *(
            Row(f"classifier.{part}", f"head.out.{part}", same, head="tokens")
            for part in ("weight", "bias")
        ),
        # Copies of `shared`, and an unused table of old checkpoints.
        Row("encoder.embed_tokens.weight", (), drop),
        Row("decoder.embed_tokens.weight", (), drop),
        Row("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight", (), drop),
    ),
)


def gguf_stack(name: str, prefix: str, mlp: int, gated: bool) -> tuple[Row, ...]:
    """The rows of the encoder or the decoder in GGUF files. gated: whether ffn_up is the second
    matrix of a gated MLP.

    Written are the matrices that a model has.
    """
    hub, block = f"{name}.block.{{}}.layer", f"{prefix}.blk.{{}}"
    bias = "SelfAttention.relative_attention_bias"
    return (
        Row(f"{prefix}.blk.0.attn_rel_b.weight", f"{name}.block.0.layer.0.{bias}.weight"),
        Row(f"{block}.attn_norm.weight", f"{hub}.0.layer_norm.weight"),
        *(
            Row(f"{block}.attn_{part}.weight", f"{hub}.0.SelfAttention.{part}.weight")
            for part in "qkvo"
        ),
        Row(f"{block}.ffn_norm.weight", f"{hub}.{mlp}.layer_norm.weight"),
        *(
            ()
            if gated
            else (
                Row(
                    f"{block}.ffn_up.weight", f"{hub}.{mlp}.DenseReluDense.wi.weight", optional=True
                ),
            )
        ),
        *(
            Row(
                f"{block}.ffn_{ours}.weight",
                f"{hub}.{mlp}.DenseReluDense.wi_{number}.weight",
                optional=True,
            )
            for number, ours in enumerate(("gate", "up"))
        ),
        Row(f"{block}.ffn_down.weight", f"{hub}.{mlp}.DenseReluDense.wo.weight"),
        Row(f"{prefix}.output_norm.weight", f"{name}.final_layer_norm.weight"),
    )


def encode(config: HubConfig) -> Mapping[str, object]:
    """T5 has no maximum length; llama.cpp requires one. ValueError: llama.cpp lacks a setting of
    the model.
    """
    name = config["architectures"][0]
    if name.endswith("Classification"):
        raise ValueError(f"a GGUF file of T5 cannot contain the head of {name}")
    if config["is_encoder_decoder"] and config["num_decoder_layers"] > config["num_layers"]:
        raise ValueError("llama.cpp's t5 requires at least as many encoder as decoder layers")
    return {"context_length": 512}


SETTINGS = {
    "context_length": "n_positions",
    "embedding_length": "d_model",
    "block_count": "num_layers",
    "feed_forward_length": "d_ff",
    "attention.head_count": "num_heads",
    "attention.key_length": "d_kv",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
    "attention.relative_buckets_count": "relative_attention_num_buckets",
}
DECODER_SETTINGS = {
    "decoder_block_count": "num_decoder_layers",
    "decoder_start_token_id": "decoder_start_token_id",
}
GATED = "enc.blk.0.ffn_gate.weight"  # a tensor of files with gated MLPs


def t5_architecture(gated: bool) -> GGUFArchitecture:
    """T5. gated: of files with gated MLPs."""
    return GGUFArchitecture(
        "t5",
        model_type="t5",
        settings=SETTINGS | DECODER_SETTINGS,
        rows=(
            Row("token_embd.weight", "shared.weight"),
            *gguf_stack("encoder", "enc", 1, gated),
            *gguf_stack("decoder", "dec", 2, gated),
            Row("dec.blk.{}.cross_attn_norm.weight", f"{cross}.layer_norm.weight"),
            *(
                Row(
                    f"dec.blk.{{}}.cross_attn_{part}.weight",
                    f"{cross}.EncDecAttention.{part}.weight",
                )
                for part in "qkvo"
            ),
            Row("dec.blk.0.cross_attn_rel_b.weight", (), drop),
            Row("output.weight", "lm_head.weight", optional=True),
        ),
        derive=lambda settings: {"feed_forward_proj": "gated-gelu" if gated else "relu"},
        encode=encode,
        alternative=None if gated else (GATED, t5_architecture(gated=True)),
    )


def encoder_architecture(gated: bool) -> GGUFArchitecture:
    """T5's encoder without a decoder. gated: of files with gated MLPs."""
    return replace(
        t5_architecture(gated),
        name="t5encoder",
        settings=SETTINGS,
        rows=(Row("token_embd.weight", "shared.weight"), *gguf_stack("encoder", "enc", 1, gated)),
        derive=lambda settings: {
            "feed_forward_proj": "gated-gelu" if gated else "relu",
            "architectures": ["T5EncoderModel"],
        },
        alternative=None if gated else (GATED, encoder_architecture(gated=True)),
        class_suffix="EncoderModel",
    )


gguf = (t5_architecture(gated=False), encoder_architecture(gated=False))
