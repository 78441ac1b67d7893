"""Weight table of GPT-BigCode. Names are GPT-2's; all matrices are nn.Linear on both sides."""

from collections.abc import Mapping

from weights_map.engine import Row, Table, drop, same, tie, ungroup_heads
from weights_map.gguf import GGUFArchitecture, inverse

# With multi-head attention, the Hub groups q, k and v of each head; with one KV head, the order is
# native.
heads = ungroup_heads(3, "heads_in_turn")

table = Table(
    model_type="gpt_bigcode",
    rows=(
        Row("transformer.wte.weight", "wte.weight", same),
        Row("transformer.wpe.weight", "wpe.weight", same),
        Row("transformer.h.{}.ln_1.weight", "h.{}.ln_1.weight", same),
        Row("transformer.h.{}.ln_1.bias", "h.{}.ln_1.bias", same),
        Row("transformer.h.{}.attn.c_attn.weight", "h.{}.attn.c_attn.weight", heads),
        Row("transformer.h.{}.attn.c_attn.bias", "h.{}.attn.c_attn.bias", heads),
        Row("transformer.h.{}.attn.c_proj.weight", "h.{}.attn.c_proj.weight", same),
        Row("transformer.h.{}.attn.c_proj.bias", "h.{}.attn.c_proj.bias", same),
        Row("transformer.h.{}.ln_2.weight", "h.{}.ln_2.weight", same),
        Row("transformer.h.{}.ln_2.bias", "h.{}.ln_2.bias", same),
        Row("transformer.h.{}.mlp.c_fc.weight", "h.{}.mlp.c_fc.weight", same),
        Row("transformer.h.{}.mlp.c_fc.bias", "h.{}.mlp.c_fc.bias", same),
        Row("transformer.h.{}.mlp.c_proj.weight", "h.{}.mlp.c_proj.weight", same),
        Row("transformer.h.{}.mlp.c_proj.bias", "h.{}.mlp.c_proj.bias", same),
        Row("transformer.ln_f.weight", "ln_f.weight", same),
        Row("transformer.ln_f.bias", "ln_f.bias", same),
        Row("lm_head.weight", "lm_head.weight", tie("transformer.wte.weight")),
        Row("score.weight", "head.out.weight", same, optional=True, head="sequence"),
        # The causal mask, which old checkpoints store as a weight.
        Row("transformer.h.{}.attn.bias", (), drop),
        Row("transformer.h.{}.attn.masked_bias", (), drop),
    ),
)


def derive(settings: Mapping[str, object]) -> Mapping[str, object]:
    """Whether the heads share one key and value. ValueError: another number of KV heads."""
    heads, kv_heads = settings["n_head"], settings["num_key_value_heads"]
    if kv_heads not in (1, heads):
        raise ValueError(
            f"attention.head_count_kv must be 1 or {heads} (one per head), not {kv_heads}"
        )
    return {"multi_query": kv_heads == 1, "heads_in_turn": kv_heads}


KINDS = ("weight", "bias")
GGUF_LAYERS = {
    "attn_norm": "ln_1",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
gguf = (
    GGUFArchitecture(
        "starcoder",
        model_type="gpt_bigcode",
        settings={
            "context_length": "n_positions",
            "embedding_length": "n_embd",
            "block_count": "n_layer",
            "feed_forward_length": "n_inner",
            "attention.head_count": "n_head",
            "attention.head_count_kv": "num_key_value_heads",
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
        },
        rows=(
            Row("token_embd.weight", "transformer.wte.weight"),
            Row("position_embd.weight", "transformer.wpe.weight"),
            *(
                Row(
                    f"blk.{{}}.attn_qkv.{kind}",
                    f"transformer.h.{{}}.attn.c_attn.{kind}",
                    inverse(heads),
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
        derive=derive,
    ),
)
