"""Weight table of GPT-OSS. Experts are stacked: (experts, in, out) floats, or MXFP4 blocks and
scales.

The rows of gate and up alternate on both sides: separate native weights would be copies.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from weights_map import mxfp4
from weights_map.engine import HubConfig, Operation, Row, Table, same
from weights_map.gguf import PACKED, SIZES, GGUFArchitecture
from weights_map.llama import ATTENTION, EMBEDDING, HEAD, MLP_NORM

table = Table(
    model_type="gpt_oss",
    rows=(
        # The config decides which format the experts have.
        EMBEDDING,
        *ATTENTION,
        Row("model.layers.{}.self_attn.sinks", "layers.{}.self_attn.sinks", same),
        MLP_NORM,
        Row("model.layers.{}.mlp.router.weight", "layers.{}.mlp.router.weight", same),
        Row("model.layers.{}.mlp.router.bias", "layers.{}.mlp.router.bias", same),
        Row(
            "model.layers.{}.mlp.experts.gate_up_proj",
            "layers.{}.mlp.experts.gate_up_proj",
            same,
            optional=True,
        ),
        Row(
            "model.layers.{}.mlp.experts.gate_up_proj_blocks",
            "layers.{}.mlp.experts.gate_up_proj.blocks",
            same,
            optional=True,
        ),
        Row(
            "model.layers.{}.mlp.experts.gate_up_proj_scales",
            "layers.{}.mlp.experts.gate_up_proj.scales",
            same,
            optional=True,
        ),
        Row(
            "model.layers.{}.mlp.experts.gate_up_proj_bias",
            "layers.{}.mlp.experts.gate_up_proj_bias",
            same,
        ),
        Row(
            "model.layers.{}.mlp.experts.down_proj",
            "layers.{}.mlp.experts.down_proj",
            same,
            optional=True,
        ),
        Row(
            "model.layers.{}.mlp.experts.down_proj_blocks",
            "layers.{}.mlp.experts.down_proj.blocks",
            same,
            optional=True,
        ),
        Row(
            "model.layers.{}.mlp.experts.down_proj_scales",
            "layers.{}.mlp.experts.down_proj.scales",
            same,
            optional=True,
        ),
        Row(
            "model.layers.{}.mlp.experts.down_proj_bias",
            "layers.{}.mlp.experts.down_proj_bias",
            same,
        ),
        *HEAD,
    ),
)

LAYER = "model.layers.{}"
EXPERTS = f"{LAYER}.mlp.experts"


def alternate(gate: Tensor, up: Tensor, dim: int) -> Tensor:
    """Gate and up in turn along a dimension, counted from the front."""
    return torch.stack((gate, up), dim + 1).flatten(dim, dim + 1)


def columns(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """The Hub's weight (E, in, 2 · out) of gate and up (E, out, in)."""
    gate, up = (tensor.transpose(1, 2) for tensor in tensors)
    return [alternate(gate, up, 2)]


def packed_columns(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """The Hub's blocks and scales of gate and up in MXFP4."""
    return [alternate(gate, up, 1) for gate, up in zip(*map(mxfp4.from_gguf, tensors), strict=True)]


def packed_rows(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    blocks, scales = tensors
    return [mxfp4.to_gguf(blocks[:, part::2], scales[:, part::2]) for part in range(2)]


gate_and_up = Operation(
    "alternate gate and up",
    columns,
    lambda tensors: [tensors[0][..., part::2].transpose(1, 2) for part in range(2)],
)
gate_and_up_bias = Operation(
    "alternate biases",
    lambda tensors: [alternate(tensors[0], tensors[1], 1)],
    lambda tensors: [tensors[0][..., part::2] for part in range(2)],
)
packed_gate_and_up = Operation("alternate gate and up in MXFP4", packed_columns, packed_rows)
transposed = Operation(
    "transpose each expert", *2 * (lambda tensors: [tensor.transpose(1, 2) for tensor in tensors],)
)
packed = Operation(
    "order of MXFP4",
    lambda tensors: mxfp4.from_gguf(tensors[0]),
    lambda tensors: [mxfp4.to_gguf(*tensors)],
)


def periodic(period: int, layers: int) -> list[bool]:
    """Whether each layer has a window, by llama.cpp's rule: all but the last one of a period, and
    all if it is 0.
    """
    return [period == 0 or layer % period < period - 1 for layer in range(layers)]


def derive(settings: Mapping[str, object]) -> Mapping[str, object]:
    """The form of config.json. Without a pattern of windows, every second layer has full attention.

    ValueError: the pattern is neither a period nor a list.
    """
    own: dict[str, object] = {
        "quantization_config": (
            {"quant_method": "mxfp4"} if settings["quantization_config"] else None
        )
    }
    if "layer_types" in settings:
        pattern, layers = settings["layer_types"], settings.get("num_hidden_layers")
        if type(pattern) is int and pattern >= 0:  # the config rejects other numbers of layers
            pattern = periodic(pattern, layers) if type(layers) is int and layers <= 4096 else []
        if not isinstance(pattern, list):
            raise ValueError(
                "attention.sliding_window_pattern must be a period or a list with one value per"
                f" layer, not {pattern}"
            )
        own["layer_types"] = [
            "sliding_attention" if sliding else "full_attention" for sliding in pattern
        ]
    return own


def encode(config: HubConfig) -> Mapping[str, object]:
    """ValueError: llama.cpp lacks a setting of the model."""
    if (
        not config["attention_bias"]
        or config["tie_word_embeddings"]
        or config["sliding_window"] is None
    ):
        raise ValueError(
            "llama.cpp's gpt-oss requires attention biases, a separate head and windows"
        )
    if (config["swiglu_alpha"], config["swiglu_limit"]) != (1.702, 7.0):
        raise ValueError("llama.cpp's gpt-oss requires swiglu_alpha 1.702 and swiglu_limit 7")
    if config["rope_parameters"]["rope_type"] == "llama3":
        raise ValueError("llama.cpp's gpt-oss does not support rope_type llama3")
    if not config.get("layer_types"):
        return {}
    sliding = [kind == "sliding_attention" for kind in config["layer_types"]]
    # A period where possible, the form of llama.cpp's default.
    periods = (
        period for period in range(len(sliding) + 1) if sliding == periodic(period, len(sliding))
    )
    return {"attention.sliding_window_pattern": next(periods, sliding)}


GGUF_ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output")
KINDS = ("weight", "bias")
gguf = (
    GGUFArchitecture(
        "gpt-oss",
        model_type="gpt_oss",
        settings={
            **SIZES,
            "expert_feed_forward_length": "intermediate_size",
            "attention.head_count_kv": "num_key_value_heads",
            "attention.key_length": "head_dim",
            "attention.layer_norm_rms_epsilon": "rms_norm_eps",
            "attention.sliding_window": "sliding_window",
            "attention.sliding_window_pattern": "layer_types",
            "expert_count": "num_local_experts",
            "expert_used_count": "num_experts_per_tok",
        },
        rows=(
            Row("token_embd.weight", "model.embed_tokens.weight"),
            Row("blk.{}.attn_norm.weight", f"{LAYER}.input_layernorm.weight"),
            *(
                Row(f"blk.{{}}.{name}.{kind}", f"{LAYER}.self_attn.{hub}_proj.{kind}")
                for name, hub in zip(GGUF_ATTENTION, "qkvo", strict=True)
                for kind in KINDS
            ),
            Row("blk.{}.attn_sinks.weight", f"{LAYER}.self_attn.sinks"),
            Row("blk.{}.post_attention_norm.weight", f"{LAYER}.post_attention_layernorm.weight"),
            *(Row(f"blk.{{}}.ffn_gate_inp.{kind}", f"{LAYER}.mlp.router.{kind}") for kind in KINDS),
            Row(
                ("blk.{}.ffn_gate_exps.weight", "blk.{}.ffn_up_exps.weight"),
                f"{EXPERTS}.gate_up_proj",
                gate_and_up,
                optional=True,
            ),
            Row(
                tuple(f"blk.{{}}.ffn_{name}_exps{PACKED}" for name in ("gate", "up")),
                (f"{EXPERTS}.gate_up_proj_blocks", f"{EXPERTS}.gate_up_proj_scales"),
                packed_gate_and_up,
                optional=True,
            ),
            Row(
                ("blk.{}.ffn_gate_exps.bias", "blk.{}.ffn_up_exps.bias"),
                f"{EXPERTS}.gate_up_proj_bias",
                gate_and_up_bias,
            ),
            Row("blk.{}.ffn_down_exps.weight", f"{EXPERTS}.down_proj", transposed, optional=True),
            Row(
                f"blk.{{}}.ffn_down_exps{PACKED}",
                (f"{EXPERTS}.down_proj_blocks", f"{EXPERTS}.down_proj_scales"),
                packed,
                optional=True,
            ),
            Row("blk.{}.ffn_down_exps.bias", f"{EXPERTS}.down_proj_bias"),
            Row("output_norm.weight", "model.norm.weight"),
            Row("output.weight", "lm_head.weight"),
        ),
        flags={f"blk.0.ffn_gate_exps{PACKED}": "quantization_config"},
        derive=derive,
        encode=encode,
        yarn={"truncate": False},  # llama.cpp rounds the limits of yarn nevertheless
        packed=tuple(f"blk.{{}}.ffn_{name}_exps" for name in ("gate", "up", "down")),
    ),
)
