"""Weight table of Phi 1, 1.5 and 2. All matrices are nn.Linear on both sides; rotary dimensions are
halves.

Older GGUF files have q, k and v in one tensor, as Microsoft's first files.
"""

from weights_map.engine import Row, Table, drop, same, split, tie
from weights_map.gguf import SIZES, GGUFArchitecture

table = Table(
    model_type="phi",
    rows=(
        Row("model.embed_tokens.weight", "embed_tokens.weight", same),
        Row("model.layers.{}.input_layernorm.weight", "layers.{}.input_layernorm.weight", same),
        Row("model.layers.{}.input_layernorm.bias", "layers.{}.input_layernorm.bias", same),
        Row("model.layers.{}.self_attn.q_proj.weight", "layers.{}.self_attn.q_proj.weight", same),
        Row("model.layers.{}.self_attn.q_proj.bias", "layers.{}.self_attn.q_proj.bias", same),
        Row("model.layers.{}.self_attn.k_proj.weight", "layers.{}.self_attn.k_proj.weight", same),
        Row("model.layers.{}.self_attn.k_proj.bias", "layers.{}.self_attn.k_proj.bias", same),
        Row("model.layers.{}.self_attn.v_proj.weight", "layers.{}.self_attn.v_proj.weight", same),
        Row("model.layers.{}.self_attn.v_proj.bias", "layers.{}.self_attn.v_proj.bias", same),
        Row("model.layers.{}.self_attn.dense.weight", "layers.{}.self_attn.dense.weight", same),
        Row("model.layers.{}.self_attn.dense.bias", "layers.{}.self_attn.dense.bias", same),
        Row("model.layers.{}.mlp.fc1.weight", "layers.{}.mlp.fc1.weight", same),
        Row("model.layers.{}.mlp.fc1.bias", "layers.{}.mlp.fc1.bias", same),
        Row("model.layers.{}.mlp.fc2.weight", "layers.{}.mlp.fc2.weight", same),
        Row("model.layers.{}.mlp.fc2.bias", "layers.{}.mlp.fc2.bias", same),
        Row("model.final_layernorm.weight", "final_layernorm.weight", same),
        Row("model.final_layernorm.bias", "final_layernorm.bias", same),
        Row("lm_head.weight", "lm_head.weight", tie("model.embed_tokens.weight")),
        Row("lm_head.bias", "lm_head.bias", same, optional=True),
        Row("score.weight", "head.out.weight", same, optional=True, head="sequence"),
        # The rotary frequencies, which old checkpoints store as weights.
        Row("model.layers.{}.self_attn.rotary_emb.inv_freq", (), drop),
    ),
    spellings=(("", "model."),),
)

gguf = (
    GGUFArchitecture(
        "phi2",
        model_type="phi",
        settings={
            **SIZES,
            "attention.head_count_kv": "num_key_value_heads",
            "attention.layer_norm_epsilon": "layer_norm_eps",
            "rope.dimension_count": "partial_rotary_factor",
        },
        rows=(
            Row("token_embd.weight", "model.embed_tokens.weight", same),
            Row("blk.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight", same),
            Row("blk.{}.attn_norm.bias", "model.layers.{}.input_layernorm.bias", same),
            Row(
                "blk.{}.attn_q.weight",
                "model.layers.{}.self_attn.q_proj.weight",
                same,
                optional=True,
            ),
            Row(
                "blk.{}.attn_k.weight",
                "model.layers.{}.self_attn.k_proj.weight",
                same,
                optional=True,
            ),
            Row(
                "blk.{}.attn_v.weight",
                "model.layers.{}.self_attn.v_proj.weight",
                same,
                optional=True,
            ),
            Row("blk.{}.attn_q.bias", "model.layers.{}.self_attn.q_proj.bias", same, optional=True),
            Row("blk.{}.attn_k.bias", "model.layers.{}.self_attn.k_proj.bias", same, optional=True),
            Row("blk.{}.attn_v.bias", "model.layers.{}.self_attn.v_proj.bias", same, optional=True),
            Row(
                "blk.{}.attn_qkv.weight",
                tuple(f"model.layers.{{}}.self_attn.{name}_proj.weight" for name in "qkv"),
                split(3),
                optional=True,
            ),
            Row(
                "blk.{}.attn_qkv.bias",
                tuple(f"model.layers.{{}}.self_attn.{name}_proj.bias" for name in "qkv"),
                split(3),
                optional=True,
            ),
            Row("blk.{}.attn_output.weight", "model.layers.{}.self_attn.dense.weight", same),
            Row("blk.{}.attn_output.bias", "model.layers.{}.self_attn.dense.bias", same),
            Row("blk.{}.ffn_up.weight", "model.layers.{}.mlp.fc1.weight", same),
            Row("blk.{}.ffn_up.bias", "model.layers.{}.mlp.fc1.bias", same),
            Row("blk.{}.ffn_down.weight", "model.layers.{}.mlp.fc2.weight", same),
            Row("blk.{}.ffn_down.bias", "model.layers.{}.mlp.fc2.bias", same),
            Row("output_norm.weight", "model.final_layernorm.weight", same),
            Row("output_norm.bias", "model.final_layernorm.bias", same),
            Row("output.weight", "lm_head.weight", same, optional=True),
            Row("output.bias", "lm_head.bias", same),
        ),
    ),
)
