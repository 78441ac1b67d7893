"""Weight table of BLOOM: other names than Llama's, and q, k and v fused per head, as in GPT-NeoX."""

from weights_map.engine import Row, Table, tie, unfuse_heads, ungroup_heads
from weights_map.gguf import GGUFArchitecture, inverse

KINDS = ("weight", "bias")
LAYERS = {
    "input_layernorm": "input_layernorm",
    "self_attention.dense": "self_attn.o_proj",
    "post_attention_layernorm": "post_attention_layernorm",
    "mlp.dense_h_to_4h": "mlp.up_proj",
    "mlp.dense_4h_to_h": "mlp.down_proj",
}

table = Table(
    model_type="bloom",
    rows=(
        Row("transformer.word_embeddings.weight", "embed_tokens.weight"),
        *(
            Row(f"transformer.word_embeddings_layernorm.{kind}", f"embedding_norm.{kind}")
            for kind in KINDS
        ),
        *(
            Row(
                f"transformer.h.{{}}.self_attention.query_key_value.{kind}",
                tuple(f"layers.{{}}.self_attn.{name}_proj.{kind}" for name in "qkv"),
                unfuse_heads(3, "num_attention_heads"),
            )
            for kind in KINDS
        ),
        *(
            Row(f"transformer.h.{{}}.{hub}.{kind}", f"layers.{{}}.{native}.{kind}")
            for hub, native in LAYERS.items()
            for kind in KINDS
        ),
        *(Row(f"transformer.ln_f.{kind}", f"norm.{kind}") for kind in KINDS),
        Row("lm_head.weight", "lm_head.weight", tie("transformer.word_embeddings.weight")),
        Row("score.weight", "head.out.weight", optional=True, head="sequence"),
    ),
    spellings=(("", "transformer."),),  # the first published files
)

GGUF_LAYERS = {
    "attn_norm": "input_layernorm",
    "attn_output": "self_attention.dense",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}
gguf = (
    GGUFArchitecture(
        "bloom",
        model_type="bloom",
        settings={
            "context_length": "seq_length",
            "embedding_length": "hidden_size",
            "block_count": "n_layer",
            "feed_forward_length": "n_inner",  # always four times the width
            "attention.head_count": "n_head",
            "attention.head_count_kv": "n_head",
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
        },
        rows=(
            Row("token_embd.weight", "transformer.word_embeddings.weight"),
            *(
                Row(f"token_embd_norm.{kind}", f"transformer.word_embeddings_layernorm.{kind}")
                for kind in KINDS
            ),
            *(
                Row(
                    f"blk.{{}}.attn_qkv.{kind}",
                    f"transformer.h.{{}}.self_attention.query_key_value.{kind}",
                    inverse(ungroup_heads(3, "n_head")),
                )
                for kind in KINDS
            ),
            *(
                Row(f"blk.{{}}.{gguf_name}.{kind}", f"transformer.h.{{}}.{hub}.{kind}")
                for gguf_name, hub in GGUF_LAYERS.items()
                for kind in KINDS
            ),
            *(Row(f"output_norm.{kind}", f"transformer.ln_f.{kind}") for kind in KINDS),
            Row("output.weight", "lm_head.weight", optional=True),
        ),
    ),
)
