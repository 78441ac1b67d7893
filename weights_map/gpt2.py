"""Weight table of GPT-2. OpenAI's Conv1D stores weights as (in, out), nn.Linear as (out, in)."""

from weights_map.engine import Row, Table, drop, same, tie, transpose
from weights_map.gguf import GGUFArchitecture

table = Table(
    model_type="gpt2",
    rows=(
        Row("transformer.wte.weight", "wte.weight", same),
        Row("transformer.wpe.weight", "wpe.weight", same),
        Row("transformer.h.{}.ln_1.weight", "h.{}.ln_1.weight", same),
        Row("transformer.h.{}.ln_1.bias", "h.{}.ln_1.bias", same),
        Row("transformer.h.{}.attn.c_attn.weight", "h.{}.attn.c_attn.weight", transpose),
        Row("transformer.h.{}.attn.c_attn.bias", "h.{}.attn.c_attn.bias", same),
        Row("transformer.h.{}.attn.c_proj.weight", "h.{}.attn.c_proj.weight", transpose),
        Row("transformer.h.{}.attn.c_proj.bias", "h.{}.attn.c_proj.bias", same),
        Row("transformer.h.{}.ln_2.weight", "h.{}.ln_2.weight", same),
        Row("transformer.h.{}.ln_2.bias", "h.{}.ln_2.bias", same),
        Row("transformer.h.{}.mlp.c_fc.weight", "h.{}.mlp.c_fc.weight", transpose),
        Row("transformer.h.{}.mlp.c_fc.bias", "h.{}.mlp.c_fc.bias", same),
        Row("transformer.h.{}.mlp.c_proj.weight", "h.{}.mlp.c_proj.weight", transpose),
        Row("transformer.h.{}.mlp.c_proj.bias", "h.{}.mlp.c_proj.bias", same),
        Row("transformer.ln_f.weight", "ln_f.weight", same),
        Row("transformer.ln_f.bias", "ln_f.bias", same),
        Row("lm_head.weight", "lm_head.weight", tie("transformer.wte.weight")),
        Row("score.weight", "head.out.weight", same, optional=True, head="sequence"),
        # The causal mask, which old checkpoints store as a weight.
        Row("transformer.h.{}.attn.bias", (), drop),
        Row("transformer.h.{}.attn.masked_bias", (), drop),
    ),
    spellings=(("", "transformer."),),  # OpenAI's files have no prefix
)

gguf = (
    GGUFArchitecture(
        "gpt2",
        model_type="gpt2",
        settings={
            "context_length": "n_positions",
            "embedding_length": "n_embd",
            "block_count": "n_layer",
            "feed_forward_length": "n_inner",
            "attention.head_count": "n_head",
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
        },
        rows=(
            Row("token_embd.weight", "transformer.wte.weight", same),
            Row("position_embd.weight", "transformer.wpe.weight", same),
            Row("blk.{}.attn_norm.weight", "transformer.h.{}.ln_1.weight", same),
            Row("blk.{}.attn_norm.bias", "transformer.h.{}.ln_1.bias", same),
            Row("blk.{}.attn_qkv.weight", "transformer.h.{}.attn.c_attn.weight", transpose),
            Row("blk.{}.attn_qkv.bias", "transformer.h.{}.attn.c_attn.bias", same),
            Row("blk.{}.attn_output.weight", "transformer.h.{}.attn.c_proj.weight", transpose),
            Row("blk.{}.attn_output.bias", "transformer.h.{}.attn.c_proj.bias", same),
            Row("blk.{}.ffn_norm.weight", "transformer.h.{}.ln_2.weight", same),
            Row("blk.{}.ffn_norm.bias", "transformer.h.{}.ln_2.bias", same),
            Row("blk.{}.ffn_up.weight", "transformer.h.{}.mlp.c_fc.weight", transpose),
            Row("blk.{}.ffn_up.bias", "transformer.h.{}.mlp.c_fc.bias", same),
            Row("blk.{}.ffn_down.weight", "transformer.h.{}.mlp.c_proj.weight", transpose),
            Row("blk.{}.ffn_down.bias", "transformer.h.{}.mlp.c_proj.bias", same),
            Row("output_norm.weight", "transformer.ln_f.weight", same),
            Row("output_norm.bias", "transformer.ln_f.bias", same),
            Row("output.weight", "lm_head.weight", same, optional=True),
        ),
    ),
)
