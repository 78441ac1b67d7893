"""Weight table of BLOOM: other names than Llama's, and q, k and v fused per head, as in GPT-NeoX."""

from weights_map.engine import Row, Table, tie, unfuse_heads

KINDS = ("weight", "bias")
LAYERS = {"input_layernorm": "input_layernorm", "self_attention.dense": "self_attn.o_proj",
          "post_attention_layernorm": "post_attention_layernorm", "mlp.dense_h_to_4h": "mlp.up_proj",
          "mlp.dense_4h_to_h": "mlp.down_proj"}  # fmt: skip

table = Table(
    model_type="bloom",
    rows=(
        Row("transformer.word_embeddings.weight", "embed_tokens.weight"),
        *(Row(f"transformer.word_embeddings_layernorm.{kind}", f"embedding_norm.{kind}") for kind in KINDS),
        *(Row(f"transformer.h.{{}}.self_attention.query_key_value.{kind}",
              tuple(f"layers.{{}}.self_attn.{name}_proj.{kind}" for name in "qkv"),
              unfuse_heads(3, "num_attention_heads")) for kind in KINDS),
        *(Row(f"transformer.h.{{}}.{hub}.{kind}", f"layers.{{}}.{native}.{kind}")
          for hub, native in LAYERS.items() for kind in KINDS),
        *(Row(f"transformer.ln_f.{kind}", f"norm.{kind}") for kind in KINDS),
        Row("lm_head.weight", "lm_head.weight", tie("transformer.word_embeddings.weight")),
        Row("score.weight", "head.out.weight", optional=True, head="sequence"),
    ),
    spellings=(("", "transformer."),),  # the first published files
)  # fmt: skip
