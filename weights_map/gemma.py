"""Weight table of Gemma, Gemma 2 and Gemma 3. All matrices are nn.Linear on both sides.

The Hub stores norm weights minus 1; GGUF files store them without this offset.
"""

from collections.abc import Mapping

from weights_map.engine import HubConfig, Row, Table, same
from weights_map.gguf import SIZES, GGUFArchitecture, subtract_one
from weights_map.llama import ATTENTION, EMBEDDING, HEAD, MLP, MLP_NORM, Q_AND_K_NORMS, UNUSED

table = Table(
    model_type="gemma",
    rows=(
        EMBEDDING,
        *ATTENTION,
        *Q_AND_K_NORMS,
        MLP_NORM,
        Row(
            "model.layers.{}.pre_feedforward_layernorm.weight",
            "layers.{}.pre_feedforward_layernorm.weight",
            same,
            optional=True,
        ),
        *MLP,
        Row(
            "model.layers.{}.post_feedforward_layernorm.weight",
            "layers.{}.post_feedforward_layernorm.weight",
            same,
            optional=True,
        ),
        *HEAD,
        *UNUSED,
    ),
    # gemma3 files have the text model below `language_model`, in two spellings. The last is of
    # embedding models.
    spellings=(
        ("language_model.", ""),
        ("model.language_model.", "model."),
        ("model.", ""),
        ("", "model."),
    ),
)

GGUF_SETTINGS = {
    **SIZES,
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
GGUF_ROWS = (
    Row("token_embd.weight", "model.embed_tokens.weight", same),
    Row("blk.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight", subtract_one),
    Row("blk.{}.attn_q.weight", "model.layers.{}.self_attn.q_proj.weight", same),
    Row("blk.{}.attn_k.weight", "model.layers.{}.self_attn.k_proj.weight", same),
    Row("blk.{}.attn_v.weight", "model.layers.{}.self_attn.v_proj.weight", same),
    Row("blk.{}.attn_output.weight", "model.layers.{}.self_attn.o_proj.weight", same),
    Row("blk.{}.ffn_gate.weight", "model.layers.{}.mlp.gate_proj.weight", same),
    Row("blk.{}.ffn_up.weight", "model.layers.{}.mlp.up_proj.weight", same),
    Row("blk.{}.ffn_down.weight", "model.layers.{}.mlp.down_proj.weight", same),
    Row("output_norm.weight", "model.norm.weight", subtract_one),
    Row("output.weight", "lm_head.weight", same, optional=True),
)
GGUF_FOUR_NORMS = (
    Row(
        "blk.{}.post_attention_norm.weight",
        "model.layers.{}.post_attention_layernorm.weight",
        subtract_one,
    ),
    Row("blk.{}.ffn_norm.weight", "model.layers.{}.pre_feedforward_layernorm.weight", subtract_one),
    Row(
        "blk.{}.post_ffw_norm.weight",
        "model.layers.{}.post_feedforward_layernorm.weight",
        subtract_one,
    ),
)
GGUF_WINDOWS = {
    "attention.sliding_window": "sliding_window",
    "final_logit_softcapping": "final_logit_softcapping",
}


def score_scale(settings: HubConfig) -> Mapping[str, object]:
    """The scale of attention scores, which the files lack. As in llama.cpp, the 27B models, by
    their layers, differ.
    """
    size = settings["hidden_size"] // settings["num_attention_heads"]
    is_27b = settings.get("num_hidden_layers") == (
        46 if "attn_logit_softcapping" in settings else 62
    )
    return {"query_pre_attn_scalar": size if is_27b else settings["head_dim"]}


gguf = (
    GGUFArchitecture(
        "gemma",
        model_type="gemma",
        settings=GGUF_SETTINGS,
        rows=(
            *GGUF_ROWS,
            Row(
                "blk.{}.ffn_norm.weight",
                "model.layers.{}.post_attention_layernorm.weight",
                subtract_one,
            ),
        ),
    ),
    GGUFArchitecture(
        "gemma2",
        model_type="gemma2",
        settings={
            **GGUF_SETTINGS,
            **GGUF_WINDOWS,
            "attn_logit_softcapping": "attn_logit_softcapping",
        },
        rows=(*GGUF_ROWS, *GGUF_FOUR_NORMS),
        derive=score_scale,
    ),
    GGUFArchitecture(
        "gemma3",
        model_type="gemma3_text",
        settings={**GGUF_SETTINGS, **GGUF_WINDOWS, "rope.freq_base_swa": "rope_local_base_freq"},
        rows=(
            *GGUF_ROWS,
            *GGUF_FOUR_NORMS,
            Row(
                "blk.{}.attn_q_norm.weight", "model.layers.{}.self_attn.q_norm.weight", subtract_one
            ),
            Row(
                "blk.{}.attn_k_norm.weight", "model.layers.{}.self_attn.k_norm.weight", subtract_one
            ),
        ),
        derive=score_scale,
    ),
)
