"""Weight table of ModernBERT. All matrices are nn.Linear on both sides. The classification heads share their names."""

from weights_map.engine import Row, Table, drop, same, tie

table = Table(
    model_type="modernbert",
    prefix="model.",
    rows=(
        Row("embeddings.tok_embeddings.weight", "embed_tokens.weight", same),
        Row("embeddings.norm.weight", "norm.weight", same),
        Row("layers.{}.attn_norm.weight", "layers.{}.attention_norm.weight", same, optional=True),  # none in layer 0
        Row("layers.{}.attn.Wqkv.weight", "layers.{}.attention.qkv.weight", same),
        Row("layers.{}.attn.Wo.weight", "layers.{}.attention.o.weight", same),
        Row("layers.{}.attn.rotary_emb.inv_freq", (), drop),
        Row("layers.{}.mlp_norm.weight", "layers.{}.mlp_norm.weight", same),
        Row("layers.{}.mlp.Wi.weight", "layers.{}.mlp.wi.weight", same),
        Row("layers.{}.mlp.Wo.weight", "layers.{}.mlp.wo.weight", same),
        Row("final_norm.weight", "final_norm.weight", same),
        Row("head.dense.weight", "head.transform.weight", same, head="masked_lm"),
        Row("head.norm.weight", "head.norm.weight", same, head="masked_lm"),
        Row("decoder.weight", "head.decoder.weight", tie("model.embeddings.tok_embeddings.weight"), head="masked_lm"),
        Row("decoder.bias", "head.bias", same, head="masked_lm"),
        *(
            row
            for head in ("sequence", "tokens")
            for row in (
                Row("head.dense.weight", "head.dense.weight", same, head=head),
                Row("head.norm.weight", "head.norm.weight", same, head=head),
                Row("classifier.weight", "head.out.weight", same, head=head),
                Row("classifier.bias", "head.out.bias", same, head=head),
            )
        ),
    ),
)
