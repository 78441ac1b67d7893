"""Weights table of T5. All matrices are nn.Linear on both sides.

On the Hub a block's parts are numbered: attention 0, the decoder's cross attention 1, and the MLP last.
"""

from weights_map.engine import Row, Table, drop, same, tie


def stack(name: str, mlp: int) -> tuple[Row, ...]:
    """The rows of the encoder or the decoder. mlp: the number of the MLP in a block."""
    hub, block = f"{name}.block.{{}}.layer", f"{name}.block.{{}}"
    return (
        # The first block's, and used by all of them.
        Row(
            f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight", f"{name}.relative_bias.weight", same
        ),
        Row(f"{hub}.0.layer_norm.weight", f"{block}.attention_norm.weight", same),
        *(Row(f"{hub}.0.SelfAttention.{part}.weight", f"{block}.attention.{part}.weight", same) for part in "qkvo"),
        Row(f"{hub}.{mlp}.layer_norm.weight", f"{block}.mlp_norm.weight", same),
        # One, or two where it is gated; the model reports which are missing.
        Row(f"{hub}.{mlp}.DenseReluDense.wi.weight", f"{block}.mlp.wi.weight", same, optional=True),
        Row(f"{hub}.{mlp}.DenseReluDense.wi_0.weight", f"{block}.mlp.wi_0.weight", same, optional=True),
        Row(f"{hub}.{mlp}.DenseReluDense.wi_1.weight", f"{block}.mlp.wi_1.weight", same, optional=True),
        Row(f"{hub}.{mlp}.DenseReluDense.wo.weight", f"{block}.mlp.wo.weight", same),
        Row(f"{name}.final_layer_norm.weight", f"{name}.norm.weight", same),
    )


cross, ours = "decoder.block.{}.layer.1", "decoder.block.{}"

table = Table(
    model_type="t5",
    rows=(
        Row("shared.weight", "shared.weight", same),
        *stack("encoder", 1),
        *stack("decoder", 2),
        Row(f"{cross}.layer_norm.weight", f"{ours}.cross_norm.weight", same),
        *(
            Row(f"{cross}.EncDecAttention.{part}.weight", f"{ours}.cross_attention.{part}.weight", same)
            for part in "qkvo"
        ),
        Row("lm_head.weight", "lm_head.weight", tie("shared.weight")),
        # `shared` once more, and a table that old checkpoints store and no code uses.
        Row("encoder.embed_tokens.weight", (), drop),
        Row("decoder.embed_tokens.weight", (), drop),
        Row("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight", (), drop),
    ),
)
