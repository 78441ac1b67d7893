"""Weight table of MPT: GPT-2's parts without biases; q, k and v are fused in the native order."""

from collections.abc import Mapping

from weights_map.engine import Row, Table, tie
from weights_map.gguf import GGUFArchitecture

# Hub name = native name -> GGUF's
LAYERS = {
    "norm_1": "attn_norm",
    "attn.Wqkv": "attn_qkv",
    "attn.out_proj": "attn_output",
    "norm_2": "ffn_norm",
    "ffn.up_proj": "ffn_up",
    "ffn.down_proj": "ffn_down",
}

table = Table(
    model_type="mpt",
    rows=(
        Row("transformer.wte.weight", "wte.weight"),
        *(
            Row(f"transformer.blocks.{{}}.{name}.weight", f"blocks.{{}}.{name}.weight")
            for name in LAYERS
        ),
        Row("transformer.norm_f.weight", "norm_f.weight"),
        Row("lm_head.weight", "lm_head.weight", tie("transformer.wte.weight")),
        Row("score.weight", "head.out.weight", optional=True, head="sequence"),
    ),
)


def derive(settings: Mapping[str, object]) -> Mapping[str, object]:
    """The settings of attention. An integer is a float in the file."""
    attention = {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in settings.items()
        if name in ("clip_qkv", "alibi_bias_max")
    }
    return {"attn_config": attention}


gguf = (
    GGUFArchitecture(
        "mpt",
        model_type="mpt",
        settings={
            "context_length": "max_seq_len",
            "embedding_length": "d_model",
            "block_count": "n_layers",
            "feed_forward_length": "n_inner",  # always four times the width
            "attention.head_count": "n_heads",
            "attention.head_count_kv": "n_heads",
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
            "attention.clamp_kqv": "clip_qkv",
            "attention.max_alibi_bias": "alibi_bias_max",
        },
        rows=(
            Row("token_embd.weight", "transformer.wte.weight"),
            *(
                Row(f"blk.{{}}.{gguf}.weight", f"transformer.blocks.{{}}.{name}.weight")
                for name, gguf in LAYERS.items()
            ),
            Row("output_norm.weight", "transformer.norm_f.weight"),
            Row("output.weight", "lm_head.weight", optional=True),
        ),
        derive=derive,
    ),
)
