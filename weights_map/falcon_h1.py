"""Weight table of Falcon H1: Llama's, with a state space in each layer, and other names of the MLP and of two norms.

GGUF has no factors: llama.cpp's converter multiplies the weights by them, so that a file that is read has factors of 1.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from weights_map.engine import HubConfig, Operation, Row
from weights_map.gguf import SIZES, GGUFArchitecture
from weights_map.hybrid import (
    GGUF_MAMBA2,
    LAYER,
    MAMBA2,
    feed_forward,
    gguf_mamba2,
    hybrid,
    quotient,
)

table = hybrid("falcon_h1", MAMBA2, *feed_forward())


# --- GGUF

# Of a file
FOLDED = {
    "embedding_multiplier": 1.0,
    "lm_head_multiplier": 1.0,
    "mlp_multipliers": [1.0, 1.0],
    "key_multiplier": 1.0,
    "attention_in_multiplier": 1.0,
    "attention_out_multiplier": 1.0,
    "ssm_in_multiplier": 1.0,
    "ssm_out_multiplier": 1.0,
    "ssm_multipliers": [1.0] * 5,
}


def folded(setting: str, part: int | None = None) -> Operation:
    """A factor of the weights of a written file; it is 1 if a file is read.

    setting: the config's name of the factor.    part: its index in a list, which may be None.
    """

    def fold(x: Sequence[Tensor], value: float | Sequence[float] | None) -> Sequence[Tensor]:
        factor: Any = value
        if part is not None:
            factor = (factor or [1.0, 1.0])[part]
        return x if factor == 1 else [x[0].float() * factor]

    return Operation("factor", lambda x, value: x, fold, setting=setting, permutes=True)


def fold_rows(x: Sequence[Tensor], factors: Sequence[tuple[int, float]]) -> Sequence[Tensor]:
    """Factors of successive rows; [] for none."""
    if not factors:
        return x
    parts = x[0].float().split([count for count, _ in factors])
    return [torch.cat([part * factor for part, (_, factor) in zip(parts, factors, strict=True)])]


def derive(settings: HubConfig) -> Mapping[str, object]:
    """Settings in the form of config.json."""
    return {
        "mamba_d_head": quotient(settings, "mamba_d_ssm", "mamba_n_heads"),
        "mamba_norm_before_gate": False,
        "key_factor": 1.0,
        "projection_factors": [],
    }


def encode(config: HubConfig) -> Mapping[str, object]:
    """ValueError: llama.cpp lacks a setting of the model."""
    names = ("attention_bias", "mlp_bias", "mamba_proj_bias", "projectors_bias")
    if (
        any(config[name] for name in names)
        or not config["mamba_conv_bias"]
        or config["hidden_act"] != "silu"
    ):
        raise ValueError(
            "llama.cpp's falcon-h1 requires mamba_conv_bias true, no other biases, and the"
            " activation silu"
        )
    if config["tie_word_embeddings"] and not (
        config["embedding_multiplier"] == config["lm_head_multiplier"] == 1
    ):
        raise ValueError(
            "llama.cpp's falcon-h1 requires a separate head, or factors of 1 of embedding and head"
        )
    inner = config["mamba_d_ssm"] or config["mamba_expand"] * config["hidden_size"]
    return {"ssm.inner_size": inner}


ROWS = {
    "token_embd": ("model.embed_tokens", folded("embedding_multiplier")),
    "blk.{}.attn_q": (f"{LAYER}.self_attn.q_proj", folded("attention_in_multiplier")),
    "blk.{}.attn_k": (f"{LAYER}.self_attn.k_proj", folded("key_factor")),
    "blk.{}.attn_v": (f"{LAYER}.self_attn.v_proj", folded("attention_in_multiplier")),
    "blk.{}.attn_output": (f"{LAYER}.self_attn.o_proj", folded("attention_out_multiplier")),
    "blk.{}.ffn_gate": (f"{LAYER}.feed_forward.gate_proj", folded("mlp_multipliers", 0)),
    "blk.{}.ffn_down": (f"{LAYER}.feed_forward.down_proj", folded("mlp_multipliers", 1)),
    "blk.{}.ssm_out": (f"{LAYER}.mamba.out_proj", folded("ssm_out_multiplier")),
    "blk.{}.ssm_in": (
        f"{LAYER}.mamba.in_proj",
        Operation(
            "factors of rows",
            lambda x, factors: x,
            fold_rows,
            setting="projection_factors",
            permutes=True,
        ),
    ),
}
PLAIN = {
    "blk.{}.attn_norm": f"{LAYER}.input_layernorm",
    "blk.{}.ffn_up": f"{LAYER}.feed_forward.up_proj",
    "output_norm": "model.final_layernorm",
}
gguf = (
    GGUFArchitecture(
        "falcon-h1",
        model_type="falcon_h1",
        settings={
            **SIZES,
            **GGUF_MAMBA2,
            "attention.head_count_kv": "num_key_value_heads",
            "attention.key_length": "head_dim",
            "attention.layer_norm_rms_epsilon": "rms_norm_eps",
            "ssm.inner_size": "mamba_d_ssm",
        },
        rows=(
            *(
                Row(f"{name}.weight", f"{hub}.weight", operation)
                for name, (hub, operation) in ROWS.items()
            ),
            *(Row(f"{name}.weight", f"{hub}.weight") for name, hub in PLAIN.items()),
            # llama.cpp's name has no suffix
            Row("blk.{}.ffn_norm", f"{LAYER}.pre_ff_layernorm.weight"),
            *(
                row
                for row in gguf_mamba2(f"{LAYER}.mamba", "mamba_n_groups")
                if str(row.hub).removesuffix(".weight") not in ROWS
            ),
            Row("output.weight", "lm_head.weight", folded("lm_head_multiplier"), optional=True),
        ),
        flags={"blk.0.ssm_norm.weight": "mamba_rms_norm"},
        folded=FOLDED,
        derive=derive,
        encode=encode,
    ),
)
