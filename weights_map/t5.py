"""Weight table of T5. All matrices are nn.Linear on both sides.

A file with a classification head has the prefix `transformer.` before the other names.

On the Hub, the sublayers of a block are numbered: attention 0, the decoder's cross attention 1, and the MLP last.
"""

from weights_map.engine import Row, Table, drop, same, tie


def stack(name: str, mlp: int) -> tuple[Row, ...]:
    """The rows of the encoder or the decoder. mlp: the number of the MLP sublayer."""
    hub, block = f"{name}.block.{{}}.layer", f"{name}.block.{{}}"
    return (
        # Stored in the first block, and shared by all blocks.
        Row(
            f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight", f"{name}.relative_bias.weight", same
        ),
        Row(f"{hub}.0.layer_norm.weight", f"{block}.attention_norm.weight", same),
        *(Row(f"{hub}.0.SelfAttention.{part}.weight", f"{block}.attention.{part}.weight", same) for part in "qkvo"),
        Row(f"{hub}.{mlp}.layer_norm.weight", f"{block}.mlp_norm.weight", same),
        # One input matrix, or two for gated MLPs; the model reports missing ones.
        Row(f"{hub}.{mlp}.DenseReluDense.wi.weight", f"{block}.mlp.wi.weight", same, optional=True),
        Row(f"{hub}.{mlp}.DenseReluDense.wi_0.weight", f"{block}.mlp.wi_0.weight", same, optional=True),
        Row(f"{hub}.{mlp}.DenseReluDense.wi_1.weight", f"{block}.mlp.wi_1.weight", same, optional=True),
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
            Row(f"{cross}.EncDecAttention.{part}.weight", f"{native}.cross_attention.{part}.weight", same)
            for part in "qkvo"
        ),
        Row("lm_head.weight", "lm_head.weight", tie("shared.weight")),
        *(
            Row(f"classification_head.{theirs}.{part}", f"head.{ours}.{part}", same, head="sequence")
            for theirs, ours in (("dense", "dense"), ("out_proj", "out"))
            for part in ("weight", "bias")
        ),
        *(Row(f"classifier.{part}", f"head.out.{part}", same, head="tokens") for part in ("weight", "bias")),
        # Copies of `shared`, and an unused table of old checkpoints.
        Row("encoder.embed_tokens.weight", (), drop),
        Row("decoder.embed_tokens.weight", (), drop),
        Row("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight", (), drop),
    ),
)
