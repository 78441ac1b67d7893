"""Weight table of Llama, Mistral, Ministral, Qwen 2 and Qwen 3. All matrices are nn.Linear on both sides.

The Hub stores rotary dimensions of q and k as halves, as in the model file, so no row is permuted. The GGUF
architecture llama, which includes Mistral, stores them as pairs.
"""

from collections.abc import Sequence

from weights_map.engine import Operation, Row, Table, drop, same, tie
from weights_map.gguf import GGUFArchitecture, pairs_to_halves

table = Table(
    model_type="llama",
    rows=(
        Row("model.embed_tokens.weight", "embed_tokens.weight", same),
        Row("model.layers.{}.input_layernorm.weight", "layers.{}.input_layernorm.weight", same),
        Row("model.layers.{}.self_attn.q_proj.weight", "layers.{}.self_attn.q_proj.weight", same),
        Row("model.layers.{}.self_attn.k_proj.weight", "layers.{}.self_attn.k_proj.weight", same),
        Row("model.layers.{}.self_attn.v_proj.weight", "layers.{}.self_attn.v_proj.weight", same),
        Row("model.layers.{}.self_attn.o_proj.weight", "layers.{}.self_attn.o_proj.weight", same),
        # The model_type and flags of the config decide which of these exist; the model reports missing ones.
        Row("model.layers.{}.self_attn.q_proj.bias", "layers.{}.self_attn.q_proj.bias", same, optional=True),
        Row("model.layers.{}.self_attn.k_proj.bias", "layers.{}.self_attn.k_proj.bias", same, optional=True),
        Row("model.layers.{}.self_attn.v_proj.bias", "layers.{}.self_attn.v_proj.bias", same, optional=True),
        Row("model.layers.{}.self_attn.o_proj.bias", "layers.{}.self_attn.o_proj.bias", same, optional=True),
        Row("model.layers.{}.self_attn.q_norm.weight", "layers.{}.self_attn.q_norm.weight", same, optional=True),
        Row("model.layers.{}.self_attn.k_norm.weight", "layers.{}.self_attn.k_norm.weight", same, optional=True),
        Row("model.layers.{}.post_attention_layernorm.weight", "layers.{}.post_attention_layernorm.weight", same),
        Row("model.layers.{}.mlp.gate_proj.weight", "layers.{}.mlp.gate_proj.weight", same),
        Row("model.layers.{}.mlp.up_proj.weight", "layers.{}.mlp.up_proj.weight", same),
        Row("model.layers.{}.mlp.down_proj.weight", "layers.{}.mlp.down_proj.weight", same),
        Row("model.layers.{}.mlp.gate_proj.bias", "layers.{}.mlp.gate_proj.bias", same, optional=True),
        Row("model.layers.{}.mlp.up_proj.bias", "layers.{}.mlp.up_proj.bias", same, optional=True),
        Row("model.layers.{}.mlp.down_proj.bias", "layers.{}.mlp.down_proj.bias", same, optional=True),
        Row("model.norm.weight", "norm.weight", same),
        Row("lm_head.weight", "lm_head.weight", tie("model.embed_tokens.weight")),
        Row("score.weight", "head.out.weight", same, optional=True, head="sequence"),
        # The rotary frequencies, which old checkpoints store as weights.
        Row("model.layers.{}.self_attn.rotary_emb.inv_freq", (), drop),
        # The other parts of a multimodal file (mistral3).
        Row("vision_tower.*", (), drop),
        Row("multi_modal_projector.*", (), drop),
    ),
    # mistral3 files have the text model below `language_model`, in two spellings. The last is of embedding models.
    spellings=(("language_model.", ""), ("model.language_model.", "model."), ("model.", ""), ("", "model.")),
)


# Biases of layer norms, in relatives of Llama.
NORM_BIASES = (
    Row("model.layers.{}.input_layernorm.bias", "layers.{}.input_layernorm.bias", same),
    Row("model.layers.{}.post_attention_layernorm.bias", "layers.{}.post_attention_layernorm.bias", same),
    Row("model.norm.bias", "norm.bias", same),
)


def relative(model_type: str, *rows: Row, without: Sequence[str] = ()) -> Table:
    """The table of a relative of Llama: Llama's rows, except those with a Hub or native template of `rows`.

    without: native templates that the model does not have.
    """
    hub = {template for row in rows for template in row.templates("hub")}
    native = {*without, *(template for row in rows for template in row.templates("native"))}
    others = [row for row in table.rows if not (hub & {*row.templates("hub")} or native & {*row.templates("native")})]
    return Table(model_type, (*others, *rows), (("", "model."),))


def gguf_architecture(name: str, q: Operation, k: Operation, **flags: str) -> GGUFArchitecture:
    """A GGUF architecture. q, k: operations for the rows of q and k.    flags: setting=tensor."""
    settings = {
        "context_length": "max_position_embeddings",
        "embedding_length": "hidden_size",
        "block_count": "num_hidden_layers",
        "feed_forward_length": "intermediate_size",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads",
        "attention.key_length": "head_dim",
        "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    }
    rows = (
        Row("token_embd.weight", "model.embed_tokens.weight", same),
        Row("blk.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight", same),
        Row("blk.{}.attn_q.weight", "model.layers.{}.self_attn.q_proj.weight", q),
        Row("blk.{}.attn_k.weight", "model.layers.{}.self_attn.k_proj.weight", k),
        Row("blk.{}.attn_v.weight", "model.layers.{}.self_attn.v_proj.weight", same),
        Row("blk.{}.attn_output.weight", "model.layers.{}.self_attn.o_proj.weight", same),
        Row("blk.{}.attn_q.bias", "model.layers.{}.self_attn.q_proj.bias", q, optional=True),
        Row("blk.{}.attn_k.bias", "model.layers.{}.self_attn.k_proj.bias", k, optional=True),
        Row("blk.{}.attn_v.bias", "model.layers.{}.self_attn.v_proj.bias", same, optional=True),
        Row("blk.{}.attn_output.bias", "model.layers.{}.self_attn.o_proj.bias", same, optional=True),
        Row("blk.{}.attn_q_norm.weight", "model.layers.{}.self_attn.q_norm.weight", same, optional=True),
        Row("blk.{}.attn_k_norm.weight", "model.layers.{}.self_attn.k_norm.weight", same, optional=True),
        Row("blk.{}.ffn_norm.weight", "model.layers.{}.post_attention_layernorm.weight", same),
        Row("blk.{}.ffn_gate.weight", "model.layers.{}.mlp.gate_proj.weight", same),
        Row("blk.{}.ffn_up.weight", "model.layers.{}.mlp.up_proj.weight", same),
        Row("blk.{}.ffn_down.weight", "model.layers.{}.mlp.down_proj.weight", same),
        Row("blk.{}.ffn_gate.bias", "model.layers.{}.mlp.gate_proj.bias", same, optional=True),
        Row("blk.{}.ffn_up.bias", "model.layers.{}.mlp.up_proj.bias", same, optional=True),
        Row("blk.{}.ffn_down.bias", "model.layers.{}.mlp.down_proj.bias", same, optional=True),
        Row("output_norm.weight", "model.norm.weight", same),
        Row("output.weight", "lm_head.weight", same, optional=True),
        # Llama 3's frequency factors, a setting on the Hub.
        Row("rope_freqs.weight", (), drop),
    )
    return GGUFArchitecture(name, name, settings, rows, {tensor: flag for flag, tensor in flags.items()})


gguf = (
    gguf_architecture(
        "llama",
        pairs_to_halves("num_attention_heads"),
        pairs_to_halves("num_key_value_heads"),
        attention_bias="blk.0.attn_q.bias",
        mlp_bias="blk.0.ffn_gate.bias",
    ),
    gguf_architecture("qwen2", same, same),
    gguf_architecture("qwen3", same, same, attention_bias="blk.0.attn_q.bias"),
)
