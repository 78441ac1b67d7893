"""Weight table of the sinusoidal decoder: the names of christianb93's MLLM, wiki/model.py, and
native names.
"""

from weights_map.engine import Row, Table, drop, same, squeeze

table = Table(
    model_type="sinusoidal",
    rows=(
        Row("_word_embedding.weight", "embedding.weight", same),
        # (positions, 1 for the batch, channels)
        Row("_pe_embedding._pe", "positions.weight", squeeze(1)),
        Row(
            "_transformer.layers.{}.self_attn.in_proj_weight",
            "layers.{}.self_attn.in_proj.weight",
            same,
        ),
        Row(
            "_transformer.layers.{}.self_attn.in_proj_bias",
            "layers.{}.self_attn.in_proj.bias",
            same,
        ),
        Row(
            "_transformer.layers.{}.self_attn.out_proj.weight",
            "layers.{}.self_attn.out_proj.weight",
            same,
        ),
        Row(
            "_transformer.layers.{}.self_attn.out_proj.bias",
            "layers.{}.self_attn.out_proj.bias",
            same,
        ),
        Row("_transformer.layers.{}.linear1.weight", "layers.{}.linear1.weight", same),
        Row("_transformer.layers.{}.linear1.bias", "layers.{}.linear1.bias", same),
        Row("_transformer.layers.{}.linear2.weight", "layers.{}.linear2.weight", same),
        Row("_transformer.layers.{}.linear2.bias", "layers.{}.linear2.bias", same),
        Row("_transformer.layers.{}.norm1.weight", "layers.{}.norm1.weight", same),
        Row("_transformer.layers.{}.norm1.bias", "layers.{}.norm1.bias", same),
        Row("_transformer.layers.{}.norm2.weight", "layers.{}.norm2.weight", same),
        Row("_transformer.layers.{}.norm2.bias", "layers.{}.norm2.bias", same),
        Row("_linear.weight", "head.weight", same),
        Row("_linear.bias", "head.bias", same),
        # The causal mask. MLLM loads saved files with strict=False.
        Row("_cached_mask", (), drop),
    ),
)
