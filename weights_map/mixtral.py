"""Weight tables of Mixtral, Qwen 2 and 3 MoE, OLMoE and Granite MoE, which name the matrices of the
experts differently.

A file has the matrices of each expert apart, or stacked as transformers has them in memory, gate
above up. On the native side each matrix is apart, in both cases a view of the file. Files of Qwen 3
VL MoE and Llama 4 stack the transposed matrices, which are copied.
"""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from weights_map.engine import Operation, Row, Table, cat, drop, same, tie, unstack
from weights_map.gguf import GGUFArchitecture
from weights_map.granite import granite_gguf
from weights_map.llama import PAIRS, gguf_architecture

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def expert_rows(
    experts: str, names: tuple[str, str, str], stacked: str, count: str = "num_experts"
) -> tuple[Row, ...]:
    """The rows of a layer's experts. experts: template of the Hub's module.    names: of gate, up
    and down there.

    stacked: template of the module with the stacked matrices.    count: the config's name of the
    number of experts.
    """
    native = "layers.{}.mlp.experts"
    gate_up = tuple(f"{native}.{name}.{{}}" for name in PROJECTIONS[:2])
    return (
        *(
            Row(f"{experts}.{{}}.{hub_name}.weight", f"{native}.{ours}.{{}}", same, optional=True)
            for hub_name, ours in zip(names, PROJECTIONS, strict=True)
        ),
        Row(f"{stacked}.gate_up_proj", gate_up, unstack(count, 2), optional=True),
        Row(f"{stacked}.down_proj", f"{native}.down_proj.{{}}", unstack(count), optional=True),
    )


def unstack_transposed(count: str) -> Operation:
    """Separate the stacked gate_up_proj (E, in, 2 · out) and down_proj (E, out, in) of a layer into
    matrices (out, in) of each expert: gate, up and down. Matrices that are not transposed, which
    the shapes show, are views.

    count: the config's name of the number of experts (E).
    """
    gate_up_of, down_of = unstack(count, 2), unstack(count)

    def transposed(stacked: Sequence[Tensor]) -> list[Tensor]:
        return [tensor.transpose(1, 2) for tensor in stacked]

    def to_native(tensors: Sequence[Tensor], count: int) -> Sequence[Tensor]:
        gate_up, down = tensors
        if gate_up.size(2) == 2 * down.size(1) and gate_up.size(1) == down.size(2):
            gate_up, down = transposed(tensors)
        matrices = (
            *gate_up_of.to_native([gate_up], count),
            *down_of.to_native([down], count),
        )
        # the C decoder reads rows
        return [matrix.contiguous() for matrix in matrices]

    def to_hub(tensors: Sequence[Tensor], count: int) -> Sequence[Tensor]:
        gate_up, down = tensors[: 2 * count], tensors[2 * count :]
        return transposed([*gate_up_of.to_hub(gate_up, count), *down_of.to_hub(down, count)])

    return Operation("unstack transposed", to_native, to_hub, setting=count)


one_row = Operation("one row", lambda x: [x[0].view(1, -1)], lambda x: [x[0].flatten()])


def shared_rows(mlp: str) -> tuple[Row, ...]:
    """The rows of a layer's shared expert. mlp: template of the Hub's module."""
    native = "layers.{}.shared_expert"
    return (
        *(
            Row(f"{mlp}.shared_expert.{name}.weight", f"{native}.{name}.weight", optional=True)
            for name in PROJECTIONS
        ),
        Row(f"{mlp}.shared_expert_gate.weight", f"{native}.factor.weight", optional=True),
    )


def gguf_shared_rows(mlp: str) -> tuple[Row, ...]:
    """The same of GGUF. A gate is a row there."""
    parts = zip(("gate", "up", "down"), PROJECTIONS, strict=True)
    return (
        Row("blk.{}.ffn_gate_inp_shexp.weight", f"{mlp}.shared_expert_gate.weight", one_row),
        *(
            Row(f"blk.{{}}.ffn_{part}_shexp.weight", f"{mlp}.shared_expert.{hub}.weight")
            for part, hub in parts
        ),
    )


def new_table(model_type: str, mlp: str, names: tuple[str, str, str]) -> Table:
    """The table of a model type. mlp: the Hub's name of a layer's mixture.    names: of its
    gate, up and down.
    """
    layer = "model.layers.{}"
    return Table(
        model_type=model_type,
        rows=(
            Row("model.embed_tokens.weight", "embed_tokens.weight", same),
            Row(f"{layer}.input_layernorm.weight", "layers.{}.input_layernorm.weight", same),
            *(
                Row(
                    f"{layer}.self_attn.{name}",
                    f"layers.{{}}.self_attn.{name}",
                    same,
                    optional=optional,
                )
                for optional, parts in ((False, ("weight",)), (True, ("bias",)))
                for part in parts
                for name in (f"{letter}_proj.{part}" for letter in "qkvo")
            ),
            *(
                Row(
                    f"{layer}.self_attn.{name}.weight",
                    f"layers.{{}}.self_attn.{name}.weight",
                    same,
                    optional=True,
                )
                for name in ("q_norm", "k_norm")
            ),
            Row(
                f"{layer}.post_attention_layernorm.weight",
                "layers.{}.post_attention_layernorm.weight",
                same,
            ),
            *(
                Row(f"{layer}.{name}.gate.weight", "layers.{}.mlp.gate.weight", same, optional=True)
                # in the Hub's files, and in transformers' memory
                for name in dict.fromkeys((mlp, "mlp"))
            ),
            *expert_rows(f"{layer}.{mlp}.experts", names, f"{layer}.mlp.experts"),
            # Layers without experts
            *(
                Row(
                    f"{layer}.mlp.{name}.weight",
                    f"layers.{{}}.mlp.{name}.weight",
                    same,
                    optional=True,
                )
                for name in PROJECTIONS
            ),
            Row("model.norm.weight", "norm.weight", same),
            Row("lm_head.weight", "lm_head.weight", tie("model.embed_tokens.weight")),
            Row("score.weight", "head.out.weight", same, optional=True, head="sequence"),
        ),
        spellings=(("model.", ""), ("", "model.")),
    )


W123 = ("w1", "w3", "w2")  # gate, up and down
GRANITE, NATIVE = "model.layers.{}.block_sparse_moe", "layers.{}.mlp"
GATE_UP = (f"{NATIVE}.experts.gate_proj.{{}}", f"{NATIVE}.experts.up_proj.{{}}")
granite = new_table("granitemoe", "mlp", PROJECTIONS)
qwen2 = new_table("qwen2_moe", "mlp", PROJECTIONS)
qwen3 = new_table("qwen3_moe", "mlp", PROJECTIONS)
VL_EXPERTS = "model.language_model.layers.{}.mlp.experts"
tables = (
    new_table("mixtral", "block_sparse_moe", W123),
    replace(qwen2, rows=(*qwen2.rows, *shared_rows("model.layers.{}.mlp"))),
    replace(
        qwen3,
        rows=(
            *qwen3.rows,
            # The text model of qwen3_vl_moe files, and their other parts
            Row(
                (f"{VL_EXPERTS}.gate_up_proj", f"{VL_EXPERTS}.down_proj"),
                tuple(f"{NATIVE}.experts.{name}.{{}}" for name in PROJECTIONS),
                unstack_transposed("num_experts"),
                optional=True,
            ),
            Row("model.visual.*", (), drop),
        ),
        spellings=(
            ("model.language_model.", "model."),
            ("visual.", "model.visual."),
            *qwen3.spellings,
        ),
    ),
    new_table("olmoe", "mlp", PROJECTIONS),
    replace(
        granite,
        rows=(
            *(row for row in granite.rows if ".mlp." not in str(row.hub)),
            Row(f"{GRANITE}.router.layer.weight", f"{NATIVE}.gate.weight", same, optional=True),
            Row(
                f"{GRANITE}.input_linear.weight", GATE_UP, unstack("num_experts", 2), optional=True
            ),
            Row(
                f"{GRANITE}.output_linear.weight",
                f"{NATIVE}.experts.down_proj.{{}}",
                unstack("num_experts"),
                optional=True,
            ),
            # In transformers' memory
            Row(f"{GRANITE}.gate.weight", f"{NATIVE}.gate.weight", same, optional=True),
            Row(f"{GRANITE}.router.weight", f"{NATIVE}.gate.weight", same, optional=True),
            Row(
                f"{GRANITE}.experts.gate_up_proj", GATE_UP, unstack("num_experts", 2), optional=True
            ),
            Row(
                f"{GRANITE}.experts.down_proj",
                f"{NATIVE}.experts.down_proj.{{}}",
                unstack("num_experts"),
                optional=True,
            ),
            # Of GGUF files, whose gate and up are apart
            *(
                Row(
                    f"{GRANITE}.experts.{name}",
                    f"{NATIVE}.experts.{name}.{{}}",
                    unstack("num_experts"),
                    optional=True,
                )
                for name in PROJECTIONS[:2]
            ),
        ),
    ),
)


def gguf_with_experts(
    base: GGUFArchitecture, model_type: str, mlp: str, names: tuple[str, str, str], **settings: str
) -> GGUFArchitecture:
    """A GGUF architecture with experts in all layers: their matrices are stacked.

    base: the architecture without experts.    mlp, names: as in `new_table`.    settings: further
    keys of llama.cpp, as names in config.json=key.
    """
    layer = f"model.layers.{{}}.{mlp}"
    rows = [
        row
        for row in base.rows
        if row.hub == "blk.{}.ffn_norm.weight" or ".ffn_" not in str(row.hub)
    ]
    rows.append(Row("blk.{}.ffn_gate_inp.weight", f"{layer}.gate.weight", same))
    for name, part in zip(names, ("gate", "up", "down"), strict=True):
        template = f"{layer}.experts.{{}}.{name}.weight"
        rows.append(Row(f"blk.{{}}.ffn_{part}_exps.weight", template, unstack("num_experts")))
    experts = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"}
    experts |= {key: name for name, key in settings.items()}
    remaining = {
        key: name
        for key, name in base.settings.items()
        if model_type not in ("olmoe", "qwen2_moe") or name != "head_dim"
    }
    return replace(
        base,
        model_type=model_type,
        settings={**remaining, **experts},
        rows=tuple(rows),
        model_types=(model_type,),
    )


ATTENTION_BIAS = {"attention_bias": "blk.0.attn_q.bias"}
qwen2_gguf = gguf_with_experts(
    gguf_architecture("qwen2moe", flags={"qkv_bias": "blk.0.attn_q.bias"}),
    "qwen2_moe",
    "mlp",
    PROJECTIONS,
    moe_intermediate_size="expert_feed_forward_length",
    shared_expert_intermediate_size="expert_shared_feed_forward_length",
)
gguf = (
    replace(
        gguf_with_experts(
            gguf_architecture("llama", *PAIRS, flags={}), "mixtral", "block_sparse_moe", W123
        ),
        with_experts=True,
    ),
    replace(
        gguf_with_experts(
            gguf_architecture("qwen3moe", flags=ATTENTION_BIAS),
            "qwen3_moe",
            "mlp",
            PROJECTIONS,
            moe_intermediate_size="expert_feed_forward_length",
        ),
        derive=lambda settings: {"norm_topk_prob": True},
    ),
    # The text model of a multimodal file
    replace(
        gguf_with_experts(
            gguf_architecture("qwen3vlmoe", flags=ATTENTION_BIAS),
            "qwen3_moe",
            "mlp",
            PROJECTIONS,
            moe_intermediate_size="expert_feed_forward_length",
        ),
        derive=lambda settings: {"norm_topk_prob": True},
    ),
    replace(
        qwen2_gguf,
        rows=(*qwen2_gguf.rows, *gguf_shared_rows("model.layers.{}.mlp")),
        derive=lambda settings: {"norm_topk_prob": False},
    ),
    replace(
        gguf_with_experts(
            gguf_architecture("olmoe", flags=ATTENTION_BIAS), "olmoe", "mlp", PROJECTIONS
        ),
        required={"expert_gating_func": 1, "expert_weights_norm": False},
    ),
    replace(
        granite_gguf,
        name="granitemoe",
        model_type="granitemoe",
        model_types=("granitemoe",),
        settings={
            **{key: name for key, name in granite_gguf.settings.items() if name != "head_dim"},
            "expert_count": "num_experts",
            "expert_used_count": "num_experts_per_tok",
        },
        rows=(
            *(
                row
                for row in granite_gguf.rows
                if row.hub == "blk.{}.ffn_norm.weight" or ".ffn_" not in str(row.hub)
            ),
            Row("blk.{}.ffn_gate_inp.weight", f"{GRANITE}.router.layer.weight", same),
            # Read as two tensors, which are views of the file; written from the Hub's one.
            *(
                Row(
                    f"blk.{{}}.ffn_{name}_exps.weight",
                    f"{GRANITE}.experts.{name}_proj",
                    same,
                    optional=True,
                )
                for name in ("gate", "up")
            ),
            Row(
                ("blk.{}.ffn_gate_exps.weight", "blk.{}.ffn_up_exps.weight"),
                f"{GRANITE}.input_linear.weight",
                cat(2, 1),
                optional=True,
            ),
            Row("blk.{}.ffn_down_exps.weight", f"{GRANITE}.output_linear.weight", same),
        ),
        flags={"blk.0.attn_q.bias": "attention_bias"},
    ),
)
