"""Weight table of XGLM. All matrices are nn.Linear on both sides; `final_layer_norm` is the norm
before the MLP.
"""

from weights_map.engine import Row, Table, drop, tie

KINDS = ("weight", "bias")
LAYERS = {
    "self_attn_layer_norm": "input_layernorm",
    "self_attn.q_proj": "self_attn.q_proj",
    "self_attn.k_proj": "self_attn.k_proj",
    "self_attn.v_proj": "self_attn.v_proj",
    "self_attn.out_proj": "self_attn.o_proj",
    "final_layer_norm": "post_attention_layernorm",
    "fc1": "mlp.up_proj",
    "fc2": "mlp.down_proj",
}

table = Table(
    model_type="xglm",
    rows=(
        Row("model.embed_tokens.weight", "embed_tokens.weight"),
        *(
            Row(f"model.layers.{{}}.{hub}.{kind}", f"layers.{{}}.{native}.{kind}")
            for hub, native in LAYERS.items()
            for kind in KINDS
        ),
        *(Row(f"model.layer_norm.{kind}", f"norm.{kind}") for kind in KINDS),
        Row("lm_head.weight", "lm_head.weight", tie("model.embed_tokens.weight")),
        # Computed positions, which old checkpoints store.
        Row("model.embed_positions.weights", (), drop),
    ),
)
