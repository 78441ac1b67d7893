"""Weight tables of Qwen 3.5, with and without experts, and of Qwen 3 Next.

A layer has either self_attn or linear_attn, and an MLP or experts; the model reports missing ones.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from weights_map.engine import Operation, Row, Table, drop, same, tie
from weights_map.mixtral import PROJECTIONS, expert_rows

Sizes = tuple[int, int, int, int]  # key heads, key size, value size, and value heads of a key head


def _split_heads(tensors: Sequence[Tensor], sizes: Sequence[int], groups: int) -> list[Tensor]:
    """The parts of each key head, in the order of their rows, for all key heads."""
    [tensor] = tensors
    parts = tensor.unflatten(0, (groups, -1)).split(list(sizes), dim=1)
    return [part.flatten(0, 1) for part in parts]


def _join_heads(parts: Sequence[Tensor], groups: int) -> list[Tensor]:
    return [torch.cat([part.unflatten(0, (groups, -1)) for part in parts], dim=1).flatten(0, 1)]


def _from_qkvz(tensors: Sequence[Tensor], sizes: Sizes) -> Sequence[Tensor]:
    G, K, V, ratio = sizes
    q, k, v, z = _split_heads(tensors, (K, K, ratio * V, ratio * V), G)
    return [torch.cat((q, k, v)), z]


def _to_qkvz(tensors: Sequence[Tensor], sizes: Sizes) -> Sequence[Tensor]:
    G, K, V, ratio = sizes
    return _join_heads((*tensors[0].split([G * K, G * K, G * ratio * V]), tensors[1]), G)


qkvz = Operation("q, k, v and z of each key head", _from_qkvz, _to_qkvz, setting="delta_sizes")
ba = Operation(
    "b and a of each key head",
    lambda tensors, sizes: _split_heads(tensors, (sizes[3], sizes[3]), sizes[0]),
    lambda tensors, sizes: _join_heads(tensors, sizes[0]),
    setting="delta_sizes",
)
LAYER = "model.layers.{}"
DELTA = ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.in_proj_b", "linear_attn.in_proj_a")
SPELLINGS = (
    ("model.language_model.", "model."),
    ("language_model.", ""),
    ("visual.", "model.visual."),
    ("model.mtp.", "mtp."),
)
EXPERTS = (
    Row(f"{LAYER}.mlp.gate.weight", "layers.{}.mlp.gate.weight", same, optional=True),
    *expert_rows(f"{LAYER}.mlp.experts", PROJECTIONS, f"{LAYER}.mlp.experts"),
    *(
        Row(f"{LAYER}.mlp.shared_expert.{name}.weight", f"layers.{{}}.shared_expert.{name}.weight", same, optional=True)
        for name in PROJECTIONS
    ),
    Row(f"{LAYER}.mlp.shared_expert_gate.weight", "layers.{}.shared_expert.factor.weight", same, optional=True),
)
dense = Table(
    model_type="qwen3_5_text",
    rows=(
        Row("model.embed_tokens.weight", "embed_tokens.weight", same),
        Row("model.layers.{}.input_layernorm.weight", "layers.{}.input_layernorm.weight", same),
        *(
            Row(f"model.layers.{{}}.{name}", f"layers.{{}}.{name}", same, optional=True)
            for name in (
                "linear_attn.A_log",
                "linear_attn.dt_bias",
                "linear_attn.conv1d.weight",
                "linear_attn.in_proj_qkv.weight",
                "linear_attn.in_proj_z.weight",
                "linear_attn.in_proj_b.weight",
                "linear_attn.in_proj_a.weight",
                "linear_attn.norm.weight",
                "linear_attn.out_proj.weight",
                "self_attn.q_proj.weight",
                "self_attn.q_proj.bias",
                "self_attn.k_proj.weight",
                "self_attn.k_proj.bias",
                "self_attn.v_proj.weight",
                "self_attn.v_proj.bias",
                "self_attn.o_proj.weight",
                "self_attn.o_proj.bias",
                "self_attn.q_norm.weight",
                "self_attn.k_norm.weight",
            )
        ),
        Row("model.layers.{}.post_attention_layernorm.weight", "layers.{}.post_attention_layernorm.weight", same),
        Row("model.layers.{}.mlp.gate_proj.weight", "layers.{}.mlp.gate_proj.weight", same),
        Row("model.layers.{}.mlp.up_proj.weight", "layers.{}.mlp.up_proj.weight", same),
        Row("model.layers.{}.mlp.down_proj.weight", "layers.{}.mlp.down_proj.weight", same),
        Row("model.norm.weight", "norm.weight", same),
        Row("lm_head.weight", "lm_head.weight", tie("model.embed_tokens.weight")),
        Row("score.weight", "head.out.weight", same, optional=True, head="sequence"),
        # Multi-token prediction and vision layers.
        Row("mtp.*", (), drop),
        Row("model.visual.*", (), drop),
    ),
    # qwen3_5 files have the text model below `language_model`, in two spellings.
    spellings=SPELLINGS,
)


def with_experts(model_type: str, rows: tuple[Row, ...]) -> Table:
    """The table of a model with experts."""
    rows = tuple(replace(row, optional=True) if ".mlp." in str(row.hub) else row for row in rows)
    return Table(model_type, (*rows, *EXPERTS), SPELLINGS)


tables = (
    dense,
    with_experts("qwen3_5_moe_text", dense.rows),
    with_experts(
        "qwen3_next",
        (
            *(row for row in dense.rows if not any(name in str(row.hub) for name in DELTA)),
            Row(f"{LAYER}.linear_attn.in_proj_qkvz.weight",
                ("layers.{}.linear_attn.in_proj_qkv.weight", "layers.{}.linear_attn.in_proj_z.weight"), qkvz,
                optional=True),
            Row(f"{LAYER}.linear_attn.in_proj_ba.weight",
                ("layers.{}.linear_attn.in_proj_b.weight", "layers.{}.linear_attn.in_proj_a.weight"), ba,
                optional=True),
        ),
    ),
)  # fmt: skip
