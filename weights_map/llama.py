"""Weight table of Llama, Mistral, Ministral, Qwen 2 and Qwen 3. All matrices are nn.Linear on both
sides.

The Hub stores rotary dimensions of q and k as halves, as in the model file, so no row is permuted.
The GGUF architecture llama, which includes Mistral, stores them as pairs.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from weights_map.engine import SIDES, Operation, Row, Table, drop, same, tie
from weights_map.gguf import (
    SIZES,
    Derive,
    Encode,
    GGUFArchitecture,
    no_keys,
    no_settings,
    pairs_to_halves,
)

# The rows of other tables, too. The config decides which optional rows exist; the model reports
# missing ones.
EMBEDDING = Row("model.embed_tokens.weight", "embed_tokens.weight", same)
ATTENTION = (
    Row("model.layers.{}.input_layernorm.weight", "layers.{}.input_layernorm.weight", same),
    Row("model.layers.{}.self_attn.q_proj.weight", "layers.{}.self_attn.q_proj.weight", same),
    Row("model.layers.{}.self_attn.k_proj.weight", "layers.{}.self_attn.k_proj.weight", same),
    Row("model.layers.{}.self_attn.v_proj.weight", "layers.{}.self_attn.v_proj.weight", same),
    Row("model.layers.{}.self_attn.o_proj.weight", "layers.{}.self_attn.o_proj.weight", same),
    Row(
        "model.layers.{}.self_attn.q_proj.bias",
        "layers.{}.self_attn.q_proj.bias",
        same,
        optional=True,
    ),
    Row(
        "model.layers.{}.self_attn.k_proj.bias",
        "layers.{}.self_attn.k_proj.bias",
        same,
        optional=True,
    ),
    Row(
        "model.layers.{}.self_attn.v_proj.bias",
        "layers.{}.self_attn.v_proj.bias",
        same,
        optional=True,
    ),
    Row(
        "model.layers.{}.self_attn.o_proj.bias",
        "layers.{}.self_attn.o_proj.bias",
        same,
        optional=True,
    ),
)
Q_AND_K_NORMS = (
    Row(
        "model.layers.{}.self_attn.q_norm.weight",
        "layers.{}.self_attn.q_norm.weight",
        same,
        optional=True,
    ),
    Row(
        "model.layers.{}.self_attn.k_norm.weight",
        "layers.{}.self_attn.k_norm.weight",
        same,
        optional=True,
    ),
)
MLP_NORM = Row(
    "model.layers.{}.post_attention_layernorm.weight",
    "layers.{}.post_attention_layernorm.weight",
    same,
)
MLP = (
    Row("model.layers.{}.mlp.gate_proj.weight", "layers.{}.mlp.gate_proj.weight", same),
    Row("model.layers.{}.mlp.up_proj.weight", "layers.{}.mlp.up_proj.weight", same),
    Row("model.layers.{}.mlp.down_proj.weight", "layers.{}.mlp.down_proj.weight", same),
)
HEAD = (
    Row("model.norm.weight", "norm.weight", same),
    Row("lm_head.weight", "lm_head.weight", tie("model.embed_tokens.weight")),
    Row("score.weight", "head.out.weight", same, optional=True, head="sequence"),
)
UNUSED = (
    # The rotary frequencies, which old checkpoints store as weights.
    Row("model.layers.{}.self_attn.rotary_emb.inv_freq", (), drop),
    # The other parts of a multimodal file (mistral3, gemma3, qwen2_vl, qwen2_5_vl, qwen3_vl).
    Row("vision_tower.*", (), drop),
    Row("visual.*", (), drop),
    Row("multi_modal_projector.*", (), drop),
)

table = Table(
    model_type="llama",
    rows=(
        EMBEDDING,
        *ATTENTION,
        *Q_AND_K_NORMS,
        MLP_NORM,
        *MLP,
        Row(
            "model.layers.{}.mlp.gate_proj.bias",
            "layers.{}.mlp.gate_proj.bias",
            same,
            optional=True,
        ),
        Row("model.layers.{}.mlp.up_proj.bias", "layers.{}.mlp.up_proj.bias", same, optional=True),
        Row(
            "model.layers.{}.mlp.down_proj.bias",
            "layers.{}.mlp.down_proj.bias",
            same,
            optional=True,
        ),
        *HEAD,
        *UNUSED,
    ),
    # mistral3 files have the text model below `language_model`, in two spellings. The last is of
    # embedding models.
    spellings=(
        ("language_model.", ""),
        ("model.language_model.", "model."),
        ("model.", ""),
        ("", "model."),
    ),
)


# Biases of layer norms, in other architectures of the general decoder.
NORM_BIASES = (
    Row("model.layers.{}.input_layernorm.bias", "layers.{}.input_layernorm.bias", same),
    Row(
        "model.layers.{}.post_attention_layernorm.bias",
        "layers.{}.post_attention_layernorm.bias",
        same,
    ),
    Row("model.norm.bias", "norm.bias", same),
)
GGUF_NORM_BIASES = (
    Row("blk.{}.attn_norm.bias", "model.layers.{}.input_layernorm.bias", same),
    Row("blk.{}.ffn_norm.bias", "model.layers.{}.post_attention_layernorm.bias", same),
    Row("output_norm.bias", "model.norm.bias", same),
)
# Hub templates that some relatives do not have.
HEAD_NORMS = ("model.layers.{}.self_attn.q_norm.weight", "model.layers.{}.self_attn.k_norm.weight")
ATTENTION_BIASES = tuple(f"model.layers.{{}}.self_attn.{name}_proj.bias" for name in "qkvo")
PLAIN = tuple(f"model.layers.{{}}.mlp.{name}_proj.bias" for name in ("gate", "up", "down"))


def relative(model_type: str, *rows: Row, without: Sequence[str] = ()) -> Table:
    """The table of the general decoder: Llama's rows, except those with a Hub or native template of
    `rows`.

    without: native templates that the model does not have.
    """
    hub = {template for row in rows for template in row.templates("hub")}
    native = {*without, *(template for row in rows for template in row.templates("native"))}
    common = [
        row
        for row in table.rows
        if not (hub & {*row.templates("hub")} or native & {*row.templates("native")})
    ]
    return Table(model_type, (*common, *rows), (("", "model."),))


def gguf_architecture(
    name: str,
    q: Operation = same,
    k: Operation = same,
    *rows: Row,
    model_types: Sequence[str] = (),
    without: Sequence[str] = (),
    settings: Mapping[str, str] = MappingProxyType({}),
    derive: Derive = no_settings,
    encode: Encode = no_keys,
    required: Mapping[str, object] = MappingProxyType({}),
    flags: Mapping[str, str] = MappingProxyType({}),
) -> GGUFArchitecture:
    """The GGUF architecture of Llama or of the general decoder: Llama's rows, except those with a
    template of `rows`.

    q, k: operations for the rows of q and k.    model_types: of the Hub, the first for reading; by
    default the name.
    without: Hub templates that the model does not have.    settings: in addition to Llama's.
    derive, encode, required: see `GGUFArchitecture`.    flags: setting -> tensor.
    """
    common = {
        **SIZES,
        "attention.head_count_kv": "num_key_value_heads",
        "attention.key_length": "head_dim",
        "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    }
    usual = (
        Row("token_embd.weight", "model.embed_tokens.weight", same),
        Row("blk.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight", same),
        Row("blk.{}.attn_q.weight", "model.layers.{}.self_attn.q_proj.weight", q),
        Row("blk.{}.attn_k.weight", "model.layers.{}.self_attn.k_proj.weight", k),
        Row("blk.{}.attn_v.weight", "model.layers.{}.self_attn.v_proj.weight", same),
        Row("blk.{}.attn_output.weight", "model.layers.{}.self_attn.o_proj.weight", same),
        Row("blk.{}.attn_q.bias", "model.layers.{}.self_attn.q_proj.bias", q, optional=True),
        Row("blk.{}.attn_k.bias", "model.layers.{}.self_attn.k_proj.bias", k, optional=True),
        Row("blk.{}.attn_v.bias", "model.layers.{}.self_attn.v_proj.bias", same, optional=True),
        Row(
            "blk.{}.attn_output.bias", "model.layers.{}.self_attn.o_proj.bias", same, optional=True
        ),
        Row(
            "blk.{}.attn_q_norm.weight",
            "model.layers.{}.self_attn.q_norm.weight",
            same,
            optional=True,
        ),
        Row(
            "blk.{}.attn_k_norm.weight",
            "model.layers.{}.self_attn.k_norm.weight",
            same,
            optional=True,
        ),
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
    replaced = {
        *without,
        *(template for row in rows for side in SIDES for template in row.templates(side)),
    }
    remaining = [
        row for row in usual if not replaced & {*row.templates("hub"), *row.templates("native")}
    ]
    model_types = model_types or (name,)
    return GGUFArchitecture(
        name,
        model_types[0],
        common | dict(settings),
        (*remaining, *rows),
        {tensor: flag for flag, tensor in flags.items()},
        derive,
        required,
        model_types=tuple(model_types),
        encode=encode,
    )


PAIRS = pairs_to_halves("num_attention_heads"), pairs_to_halves("num_key_value_heads")
BIASES = {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_gate.bias"}

gguf = (
    gguf_architecture("llama", *PAIRS, model_types=("llama", "mistral", "internlm3"), flags=BIASES),
    gguf_architecture("qwen2", flags={}),
    gguf_architecture("qwen3", flags={"attention_bias": "blk.0.attn_q.bias"}),
    # The text models of multimodal files
    gguf_architecture("qwen2vl", model_types=("qwen2",), flags={}),
    gguf_architecture(
        "qwen3vl", model_types=("qwen3",), flags={"attention_bias": "blk.0.attn_q.bias"}
    ),
)
