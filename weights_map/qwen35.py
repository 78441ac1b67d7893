"""Weight tables of Qwen 3.5, with and without experts, and of Qwen 3 Next.

A layer has either self_attn or linear_attn, and an MLP or experts; the model reports missing ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from weights_map.engine import HubConfig, Operation, Row, Table, drop, same, squeeze, tie, unstack
from weights_map.gguf import GGUFArchitecture, inverse, subtract_one
from weights_map.mixtral import PROJECTIONS, expert_rows, gguf_shared_rows, shared_rows

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
DELTA = (
    "linear_attn.in_proj_qkv",
    "linear_attn.in_proj_z",
    "linear_attn.in_proj_b",
    "linear_attn.in_proj_a",
)
SPELLINGS = (
    ("model.language_model.", "model."),
    ("language_model.", ""),
    ("visual.", "model.visual."),
    ("model.mtp.", "mtp."),
)
EXPERTS = (
    Row(f"{LAYER}.mlp.gate.weight", "layers.{}.mlp.gate.weight", same, optional=True),
    *expert_rows(f"{LAYER}.mlp.experts", PROJECTIONS, f"{LAYER}.mlp.experts"),
    *shared_rows(f"{LAYER}.mlp"),
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
        Row(
            "model.layers.{}.post_attention_layernorm.weight",
            "layers.{}.post_attention_layernorm.weight",
            same,
        ),
        Row("model.layers.{}.mlp.gate_proj.weight", "layers.{}.mlp.gate_proj.weight", same),
        Row("model.layers.{}.mlp.up_proj.weight", "layers.{}.mlp.up_proj.weight", same),
        Row("model.layers.{}.mlp.down_proj.weight", "layers.{}.mlp.down_proj.weight", same),
        Row("model.norm.weight", "norm.weight", same),
        Row("lm_head.weight", "lm_head.weight", tie("model.embed_tokens.weight")),
        Row("score.weight", "head.out.weight", same, optional=True, head="sequence"),
        # of JevForDecision
        Row("proj.weight", "proj.weight", same, optional=True, head="decision"),
        Row("proj.bias", "proj.bias", same, optional=True, head="decision"),
        Row("mtp.*", (), drop),  # of other heads for multi-token prediction
        Row("model.visual.*", (), drop),
    ),
    # qwen3_5 files have the text model below `language_model`, in two spellings. transformers saves
    # the decision head's weight as `weight`.
    spellings=(*SPELLINGS, ("weight", "proj.weight")),
)


def with_experts(model_type: str, rows: tuple[Row, ...]) -> Table:
    """The table of a model with experts."""
    rows = tuple(replace(row, optional=True) if ".mlp." in str(row.hub) else row for row in rows)
    return Table(model_type, (*rows, *EXPERTS), SPELLINGS)


def with_mtp(table: Table) -> Table:
    """The table with the head for multi-token prediction, which is ignored if the config has 0
    `mtp_layers`.
    """

    def head(templates: tuple[str, ...]) -> tuple[str, ...]:
        return tuple("mtp.layers." + template.partition("layers.")[2] for template in templates)

    names = ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    remaining = tuple(
        Row(f"mtp.{name}.weight", f"mtp.{name}.weight", same, optional=True, layers="mtp_layers")
        for name in names
    )
    layer = tuple(
        replace(
            row,
            hub=head(row.templates("hub")),
            native=head(row.templates("native")),
            optional=True,
            layers="mtp_layers",
        )
        for row in table.rows
        if row.templates("hub")[0].startswith(LAYER)
        and "linear_attn" not in row.templates("hub")[0]
    )
    return replace(table, rows=(*remaining, *layer, *table.rows))


DELTA_NEXT = (
    Row(
        f"{LAYER}.linear_attn.in_proj_qkvz.weight",
        ("layers.{}.linear_attn.in_proj_qkv.weight", "layers.{}.linear_attn.in_proj_z.weight"),
        qkvz,
        optional=True,
    ),
    Row(
        f"{LAYER}.linear_attn.in_proj_ba.weight",
        ("layers.{}.linear_attn.in_proj_b.weight", "layers.{}.linear_attn.in_proj_a.weight"),
        ba,
        optional=True,
    ),
)
without_delta = tuple(row for row in dense.rows if not any(name in str(row.hub) for name in DELTA))
tables = (
    with_mtp(dense),
    with_mtp(with_experts("qwen3_5_moe_text", dense.rows)),
    with_mtp(with_experts("qwen3_next", (*without_delta, *DELTA_NEXT))),
)


# --- GGUF. The value heads of Qwen 3.5 are in another order: the value heads of a key head are G
# heads apart.


def regrouped(dim: int = 0, after: bool = False) -> Operation:
    """Reorder the value heads along `dim`. after: they follow q and k."""

    def move(tensor: Tensor, sizes: Sizes, outer: int, inner: int) -> Sequence[Tensor]:
        first = 2 * sizes[0] * sizes[1] if after else 0
        keys, values = tensor.split([first, tensor.size(dim) - first], dim)
        values = (
            values.unflatten(dim, (outer, inner, -1)).transpose(dim, dim + 1).flatten(dim, dim + 2)
        )
        return [torch.cat((keys, values), dim)]

    return Operation(
        "order of value heads",
        lambda tensors, sizes: move(tensors[0], sizes, sizes[3], sizes[0]),
        lambda tensors, sizes: move(tensors[0], sizes, sizes[0], sizes[3]),
        setting="delta_sizes",
        permutes=dim == 0,
    )


def then(first: Operation, second: Operation) -> Operation:
    """Two operations, the first of them without a setting."""
    return replace(
        second,
        name=f"{first.name}, {second.name}",
        to_native=lambda tensors, *sizes: second.to_native(first.to_native(tensors), *sizes),
        to_hub=lambda tensors, *sizes: first.to_hub(second.to_hub(tensors, *sizes)),
        permutes=False,
    )


decay = Operation("from -e^w to w", lambda x: [(-x[0]).log()], lambda x: [-x[0].exp()])
taps = inverse(squeeze(1))


def derive(settings: HubConfig) -> Mapping[str, object]:
    """Settings in the form of config.json. The last block may be a head for multi-token prediction."""
    heads, keys = settings["linear_num_value_heads"], settings["linear_num_key_heads"]
    size, recurrent = settings["linear_value_head_dim"] // heads, settings.get("layer_types")
    mtp = settings.get("mtp_num_hidden_layers", 0)
    if mtp not in (0, 1):
        raise ValueError(
            f"it has {mtp} blocks for multi-token prediction; at most one is supported"
        )
    layers = settings["num_hidden_layers"] - mtp
    own: dict[str, object] = {"linear_value_head_dim": size, "num_hidden_layers": layers}
    if recurrent is not None:
        own["layer_types"] = [
            "linear_attention" if is_recurrent else "full_attention"
            for is_recurrent in recurrent[:layers]
        ]
    return {**own, "delta_sizes": (keys, settings["linear_key_head_dim"], size, heads // keys)}


def encode(config: HubConfig) -> Mapping[str, object]:
    """ValueError: llama.cpp lacks a setting of the model."""
    name = config["model_type"]
    if (
        config["attention_bias"]
        or config["hidden_act"] != "silu"
        or not config.get("norm_topk_prob", True)
    ):
        raise ValueError(
            f"llama.cpp's {name} requires no attention biases, the activation silu, and"
            " norm_topk_prob"
        )
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise ValueError("llama.cpp's qwen3next requires experts in all layers")
    size = config["linear_value_head_dim"]
    if size != config["linear_key_head_dim"]:
        raise ValueError(
            f"llama.cpp's {name} requires keys and values of equal size in linear attention"
        )
    sections = {}
    if name != "qwen3_next":  # rotated pairs of time, height and width, which are equal for text
        pairs = int(config["head_dim"] * config["rope_parameters"]["partial_rotary_factor"]) // 2
        sections["rope.dimension_sections"] = [(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3, 0]
    recurrent = [kind == "linear_attention" for kind in config["layer_types"]]
    return {
        **sections,
        "ssm.inner_size": size * config["linear_num_value_heads"],
        "attention.recurrent_layers": recurrent,
    }


GGUF_SETTINGS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "nextn_predict_layers": "mtp_num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.recurrent_layers": "layer_types",
    "full_attention_interval": "full_attention_interval",
    "rope.dimension_count": "partial_rotary_factor",
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
    "ssm.inner_size": "linear_value_head_dim",  # times the number of heads
}
GGUF_SPARSE = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
PARTS = dict(zip(("gate", "up", "down"), PROJECTIONS, strict=True))
gguf_mlp = tuple(
    Row(f"blk.{{}}.ffn_{part}.weight", f"{LAYER}.mlp.{hub}.weight") for part, hub in PARTS.items()
)
gguf_experts = (
    Row("blk.{}.ffn_gate_inp.weight", f"{LAYER}.mlp.gate.weight"),
    *gguf_shared_rows(f"{LAYER}.mlp"),
    *(
        Row(
            f"blk.{{}}.ffn_{part}_exps.weight",
            f"{LAYER}.mlp.experts.{{}}.{hub}.weight",
            unstack("num_experts"),
        )
        for part, hub in PARTS.items()
    ),
)


def gguf_rows(*further: Row, tiled: bool) -> tuple[Row, ...]:
    """A GGUF architecture's rows. tiled: the value heads have another order."""

    def of_heads(first: Operation | None = None, dim: int = 0, after: bool = False) -> Operation:
        if not tiled:
            return first or same
        return regrouped(dim, after) if first is None else then(first, regrouped(dim, after))

    delta = f"{LAYER}.linear_attn"
    return (
        Row("token_embd.weight", "model.embed_tokens.weight"),
        Row("blk.{}.attn_norm.weight", f"{LAYER}.input_layernorm.weight", subtract_one),
        Row(
            "blk.{}.post_attention_norm.weight",
            f"{LAYER}.post_attention_layernorm.weight",
            subtract_one,
        ),
        *(
            Row(
                f"blk.{{}}.attn_{name}.weight",
                f"{LAYER}.self_attn.{hub}_proj.weight",
                optional=True,
            )
            for name, hub in (("q", "q"), ("k", "k"), ("v", "v"), ("output", "o"))
        ),
        *(
            Row(
                f"blk.{{}}.attn_{name}_norm.weight",
                f"{LAYER}.self_attn.{name}_norm.weight",
                subtract_one,
                optional=True,
            )
            for name in "qk"
        ),
        Row(
            "blk.{}.ssm_conv1d.weight",
            f"{delta}.conv1d.weight",
            of_heads(taps, after=True),
            optional=True,
        ),
        Row("blk.{}.ssm_dt.bias", f"{delta}.dt_bias", of_heads(), optional=True),
        Row("blk.{}.ssm_a", f"{delta}.A_log", of_heads(decay), optional=True),
        Row("blk.{}.ssm_norm.weight", f"{delta}.norm.weight", optional=True),
        Row("blk.{}.ssm_out.weight", f"{delta}.out_proj.weight", of_heads(dim=1), optional=True),
        *further,
        Row("output_norm.weight", "model.norm.weight", subtract_one),
        Row("output.weight", "lm_head.weight", optional=True),
    )


def gguf_head(*mlp: Row) -> tuple[Row, ...]:
    """The rows of the head for multi-token prediction. mlp: the rows of a layer's MLP."""
    names = {
        "eh_proj": "fc",
        "enorm": "pre_fc_norm_embedding",
        "hnorm": "pre_fc_norm_hidden",
        "shared_head_norm": "norm",
    }
    remaining = tuple(
        Row(
            f"nextn.{gguf}.weight",
            f"mtp.{hub}.weight",
            same if gguf == "eh_proj" else subtract_one,
            optional=True,
        )
        for gguf, hub in names.items()
    )
    layer = (
        row
        for row in gguf_rows(*mlp, tiled=False)
        if str(row.hub).startswith("blk.") and "ssm_" not in row.hub
    )
    return remaining + tuple(
        replace(
            row,
            hub=str(row.hub).replace("blk.{}", "nextn"),
            optional=True,
            native=str(row.native).replace(LAYER, "mtp.layers.0"),
        )
        for row in layer
    )


gguf_delta = (
    Row(
        "blk.{}.attn_qkv.weight",
        f"{LAYER}.linear_attn.in_proj_qkv.weight",
        regrouped(after=True),
        optional=True,
    ),
    *(
        Row(
            f"blk.{{}}.{name}.weight",
            f"{LAYER}.linear_attn.in_proj_{hub}.weight",
            regrouped(),
            optional=True,
        )
        for name, hub in (("attn_gate", "z"), ("ssm_beta", "b"), ("ssm_alpha", "a"))
    ),
)
gguf_next = (
    Row(
        ("blk.{}.attn_qkv.weight", "blk.{}.attn_gate.weight"),
        f"{LAYER}.linear_attn.in_proj_qkvz.weight",
        inverse(qkvz),
        optional=True,
    ),
    Row("blk.{}.ssm_ba.weight", f"{LAYER}.linear_attn.in_proj_ba.weight", optional=True),
)
qwen35 = GGUFArchitecture(
    "qwen35",
    model_type="qwen3_5_text",
    settings={**GGUF_SETTINGS, "feed_forward_length": "intermediate_size"},
    rows=gguf_rows(*gguf_delta, *gguf_mlp, tiled=True) + gguf_head(*gguf_mlp),
    derive=derive,
    encode=encode,
)
gguf = (
    qwen35,
    replace(
        qwen35,
        name="qwen35moe",
        model_type="qwen3_5_moe_text",
        settings={**GGUF_SETTINGS, **GGUF_SPARSE},
        rows=gguf_rows(*gguf_delta, *gguf_experts, tiled=True) + gguf_head(*gguf_experts),
    ),
    replace(
        qwen35,
        name="qwen3next",
        model_type="qwen3_next",
        settings={**qwen35.settings, **GGUF_SPARSE},
        rows=gguf_rows(*gguf_next, *gguf_experts, tiled=False) + gguf_head(*gguf_experts),
    ),
)
