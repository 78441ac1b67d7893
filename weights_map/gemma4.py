"""Weight table of the text model of Gemma 4. Norm weights are stored unchanged; Gemma 1 to 3 store
them minus 1.
"""

from collections.abc import Mapping

from weights_map.engine import HubConfig, Row, Table, drop, same, tie, unstack
from weights_map.gguf import SIZES, GGUFArchitecture

LAYER = "model.layers.{}"
CACHING = "caching_layers"  # files also have the unused keys and values of later layers

MATRICES = "layers.{}.experts.mixture.experts"
EXPERTS = {
    "pre_feedforward_layernorm_2.weight": "pre_norm.weight",
    "router.scale": "mixture.router_norm.weight",
    "router.proj.weight": "mixture.gate.weight",
    "router.per_expert_scale": "mixture.factors",
    "post_feedforward_layernorm_2.weight": "post_norm.weight",
    "post_feedforward_layernorm_1.weight": "mlp_norm.weight",
}


def layer_row(name: str, optional: bool = False, layers: str | None = None) -> Row:
    """A tensor of each layer."""
    return Row(f"{LAYER}.{name}", f"layers.{{}}.{name}", same, optional=optional, layers=layers)


table = Table(
    model_type="gemma4_text",
    rows=(
        Row("model.embed_tokens.weight", "embed_tokens.weight", same),
        Row(
            "model.embed_tokens_per_layer.weight",
            "embed_tokens_per_layer.weight",
            same,
            optional=True,
        ),
        Row(
            "model.per_layer_model_projection.weight",
            "per_layer_model_projection.weight",
            same,
            optional=True,
        ),
        Row(
            "model.per_layer_projection_norm.weight",
            "per_layer_projection_norm.weight",
            same,
            optional=True,
        ),
        layer_row("input_layernorm.weight"),
        layer_row("self_attn.q_proj.weight"),
        layer_row("self_attn.q_proj.bias", optional=True),
        layer_row("self_attn.q_norm.weight"),
        # The config decides which of these exist; the model reports missing ones.
        *(
            layer_row(f"self_attn.{name}", optional=True, layers=CACHING)
            for name in (
                "k_proj.weight",
                "k_proj.bias",
                "k_norm.weight",
                "v_proj.weight",
                "v_proj.bias",
            )
        ),
        layer_row("self_attn.o_proj.weight"),
        layer_row("self_attn.o_proj.bias", optional=True),
        layer_row("post_attention_layernorm.weight"),
        layer_row("pre_feedforward_layernorm.weight"),
        layer_row("mlp.gate_proj.weight"),
        layer_row("mlp.up_proj.weight"),
        layer_row("mlp.down_proj.weight"),
        layer_row("post_feedforward_layernorm.weight"),
        # The config decides about experts and inputs of each layer.
        *(
            Row(f"{LAYER}.{hub}", f"layers.{{}}.experts.{native}", same, optional=True)
            for hub, native in EXPERTS.items()
        ),
        Row(
            f"{LAYER}.experts.gate_up_proj",
            (f"{MATRICES}.gate_proj.{{}}", f"{MATRICES}.up_proj.{{}}"),
            unstack("num_experts", 2),
            optional=True,
        ),
        Row(
            f"{LAYER}.experts.down_proj",
            f"{MATRICES}.down_proj.{{}}",
            unstack("num_experts"),
            optional=True,
        ),
        layer_row("per_layer_input_gate.weight", optional=True),
        layer_row("per_layer_projection.weight", optional=True),
        layer_row("post_per_layer_input_norm.weight", optional=True),
        layer_row("layer_scalar", optional=True),
        Row("model.norm.weight", "norm.weight", same),
        Row("lm_head.weight", "lm_head.weight", tie("model.embed_tokens.weight")),
        # The other parts of a multimodal file.
        *(
            Row(f"model.{name}.*", (), drop)
            for name in ("vision_tower", "audio_tower", "embed_vision", "embed_audio")
        ),
    ),
    spellings=(("model.language_model.", "model."), ("model.", ""), ("", "model.")),
)


def derive(settings: Mapping[str, object]) -> Mapping[str, object]:
    """Settings that files state for each layer, in the form of config.json. Without a soft cap,
    llama.cpp has 30.
    """
    sliding, heads = settings["layer_types"], settings["num_key_value_heads"]
    width = settings["intermediate_size"]
    if not isinstance(sliding, list) or not all(
        isinstance(numbers, int | list) for numbers in (heads, width)
    ):
        raise ValueError(
            "attention.sliding_window_pattern must be a list, and KV heads and widths numbers or"
            " lists"
        )
    own: dict[str, object] = {
        "layer_types": [
            "sliding_attention" if is_sliding else "full_attention" for is_sliding in sliding
        ]
    }
    if isinstance(heads, list):  # only models whose full layers use their keys as values
        full = [
            number for number, is_sliding in zip(heads, sliding, strict=False) if not is_sliding
        ]
        sliding_heads = [
            number for number, is_sliding in zip(heads, sliding, strict=False) if is_sliding
        ]
        own |= {
            "attention_k_eq_v": True,
            "num_key_value_heads": (sliding_heads or full)[0],
            "num_global_key_value_heads": full[0] if full else None,
        }
    own["final_logit_softcapping"] = settings.get("final_logit_softcapping", 30.0) or None
    if isinstance(width, list):
        own |= {"intermediate_size": min(width), "use_double_wide_mlp": max(width) > min(width)}
    return own


def encode(config: HubConfig) -> Mapping[str, object]:
    """ValueError: llama.cpp lacks a setting of the model."""
    ropes, sliding = (
        config["rope_parameters"],
        [kind == "sliding_attention" for kind in config["layer_types"]],
    )
    if (
        ropes["full_attention"]["rope_type"] != "proportional"
        or "factor" in ropes["full_attention"]
    ):
        raise ValueError(
            "llama.cpp's gemma4 requires rope_type proportional without a factor in full attention"
        )
    if ropes["sliding_attention"]["rope_type"] != "default":
        raise ValueError("llama.cpp's gemma4 requires rope_type default in sliding attention")
    if (
        config["attention_bias"]
        or config["hidden_activation"] != "gelu_pytorch_tanh"
        or "per_layer_config" in config
    ):
        raise ValueError(
            "llama.cpp's gemma4 supports no attention biases, no activation other than"
            " gelu_pytorch_tanh, and no per_layer_config"
        )
    if (
        config["hidden_size_per_layer_input"]
        and config["vocab_size_per_layer_input"] != config["vocab_size"]
    ):
        raise ValueError(
            "llama.cpp's gemma4 requires vocab_size_per_layer_input to be equal to vocab_size"
        )
    size, heads, width = (
        config["global_head_dim"],
        config["num_key_value_heads"],
        config["intermediate_size"],
    )
    shared = config["num_kv_shared_layers"]
    own = len(sliding) - shared
    if shared and sliding[own - 2 : own] != [True, False]:
        raise ValueError(
            "llama.cpp's gemma4 requires a sliding and then a full attention layer before the layers"
            " that share their keys (num_kv_shared_layers)"
        )
    keys: dict[str, object] = {
        "attention.key_length": size,
        "attention.value_length": size,
        "rope.dimension_count": size,
        "rope.freq_base_swa": float(ropes["sliding_attention"]["rope_theta"]),
        "attention.sliding_window_pattern": sliding,
        "final_logit_softcapping": config["final_logit_softcapping"] or 0.0,
    }
    if config["attention_k_eq_v"]:
        global_heads = config["num_global_key_value_heads"]
        keys["attention.head_count_kv"] = [
            heads if is_sliding else global_heads for is_sliding in sliding
        ]
    if config["use_double_wide_mlp"]:
        keys["feed_forward_length"] = [width] * own + [2 * width] * shared
    return keys


GGUF_LAYERS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_output": "self_attn.o_proj",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}
GGUF_OPTIONAL = {
    "attn_k": "self_attn.k_proj",
    "attn_k_norm": "self_attn.k_norm",
    "attn_v": "self_attn.v_proj",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "ffn_gate_inp": "router.proj",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}
GGUF_OTHER = {
    "layer_output_scale.weight": "layer_scalar",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
    "ffn_gate_up_exps.weight": "experts.gate_up_proj",
    "ffn_down_exps.weight": "experts.down_proj",
}
gguf = (
    GGUFArchitecture(
        "gemma4",
        model_type="gemma4_text",
        settings={
            **SIZES,
            "attention.head_count_kv": "num_key_value_heads",
            "attention.key_length": "global_head_dim",
            "attention.key_length_swa": "head_dim",
            "attention.value_length_swa": "head_dim",
            "rope.dimension_count_swa": "head_dim",
            "rope.freq_base_swa": "rope_local_base_freq",
            "attention.layer_norm_rms_epsilon": "rms_norm_eps",
            "attention.sliding_window": "sliding_window",
            "attention.sliding_window_pattern": "layer_types",
            "attention.shared_kv_layers": "num_kv_shared_layers",
            "embedding_length_per_layer_input": "hidden_size_per_layer_input",
            "final_logit_softcapping": "final_logit_softcapping",
            "expert_count": "num_experts",
            "expert_used_count": "top_k_experts",
            "expert_feed_forward_length": "moe_intermediate_size",
        },
        rows=(
            Row("token_embd.weight", "model.embed_tokens.weight"),
            Row(
                "per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight", optional=True
            ),
            Row(
                "per_layer_model_proj.weight",
                "model.per_layer_model_projection.weight",
                optional=True,
            ),
            Row(
                "per_layer_proj_norm.weight",
                "model.per_layer_projection_norm.weight",
                optional=True,
            ),
            *(
                Row(f"blk.{{}}.{gguf_name}.weight", f"{LAYER}.{hub}.weight")
                for gguf_name, hub in GGUF_LAYERS.items()
            ),
            *(
                Row(f"blk.{{}}.{gguf_name}.weight", f"{LAYER}.{hub}.weight", optional=True)
                for gguf_name, hub in GGUF_OPTIONAL.items()
            ),
            *(
                Row(f"blk.{{}}.{gguf_name}", f"{LAYER}.{hub}", optional=True)
                for gguf_name, hub in GGUF_OTHER.items()
            ),
            Row("output_norm.weight", "model.norm.weight"),
            Row("output.weight", "lm_head.weight", optional=True),
            Row("rope_freqs.weight", (), drop),
        ),
        # Without inputs of the layers, this setting has no effect.
        sizes={
            "token_embd.weight": "vocab_size_per_layer_input",
            "per_layer_token_embd.weight": "vocab_size_per_layer_input",
        },
        flags={"blk.0.ffn_gate_inp.weight": "enable_moe_block"},
        derive=derive,
        encode=encode,
        rope_by_type=True,
    ),
)
