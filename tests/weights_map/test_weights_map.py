"""Weight tables at published sizes, on meta tensors, and the engine's checks."""

import random
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import jina_reference
import pytest
import torch
import torch.nn.functional as F
import transformers
from pairs import with_variants
from safetensors.torch import save_file
from transformers.core_model_loading import revert_weight_conversion

import weights_map
from minhub_py.checkpoints.storage import Checkpoint
from minhub_py.checkpoints.writing import write_checkpoint
from minhub_py.export.convert import convert
from minhub_py.loading.files import open_files
from minhub_py.loading.pretrained import from_pretrained, save_pretrained
from minhub_py.models.registry import ARCHITECTURES, ENTRIES, Architecture, Entry, Training, preset
from minhub_py.models.skeleton import Uninitialized, skeleton
from weights_map.conversion import Mapped, check_shapes
from weights_map.engine import (
    Row,
    Table,
    cat,
    drop,
    same,
    split,
    stack,
    tie,
    transpose,
    ungroup_heads,
)
from weights_map.hybrid import quotient
from weights_map.mxfp4 import unpack_mxfp4

# Matrices that two forms of a file store under other names, or joined.
ALTERNATIVES = (
    r"(mtp\.)?layers\.\{\}\.(mlp|experts|mixer)\.(experts\.(gate|up|down)_proj\.\{\}|gate\.weight)"
    r"|layers\.\{\}\.(attention\.[qkv]|mlp\.(fc1|gate))\.(weight|bias)"
)
jina_reference.register()
PUBLISHED = [
    name
    for family in ARCHITECTURES.values()
    if family.model_type != "laya"  # not in transformers
    for name in family.presets
]
ONE_OF_EACH = [next(iter(family.presets)) for family in ARCHITECTURES.values() if family.presets]


def published(name: str) -> tuple[Architecture, Any]:
    """A published size; with 256 experts or more, its first eight layers, because each expert is a
    tensor.
    """
    architecture, config = preset(name)
    if (getattr(config, "num_experts", 0) or 0) >= 256:
        config = replace(config, num_hidden_layers=8)
    return architecture, config


def reference(name: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The tensors of a published size in transformers' memory and in its files, on the meta device."""
    architecture, config = published(name)
    hub = config.to_hub()
    [kind] = hub.pop("architectures")
    settings = transformers.AutoConfig.for_model(hub.pop("model_type"), **hub)
    is_computed = settings.model_type in ("marian", "pegasus")  # positions
    # The state dict of an encoder-decoder has the embedding three times; config.json ties the head.
    again = (
        {
            f"{prefix}{stack}.embed_{end}"
            for prefix in ("", "model.")
            for stack in ("encoder", "decoder")
            for end in ("tokens.weight", *(["positions.weight"] if is_computed else []))
        }
        if settings.is_encoder_decoder
        else set()
    )
    auto = (
        transformers.AutoModelForSeq2SeqLM
        if settings.is_encoder_decoder
        else transformers.AutoModelForCausalLM
    )
    with torch.device("meta"), Uninitialized():
        model = (
            getattr(jina_reference if kind.startswith("JinaBert") else transformers, kind)(settings)
            if architecture.is_encoder
            else auto.from_config(settings)
        )
    left_out = again | ({"lm_head.weight"} if config.tie_word_embeddings else set())
    if architecture.is_encoder:
        left_out = {key for key in model.state_dict() if "pooler" in key} | set(
            model.all_tied_weights_keys
        )
    tensors = {key: tensor for key, tensor in model.state_dict().items() if key not in left_out}
    if hub.get("quantization_config"):  # GPT-OSS's experts: in memory floats, in files MXFP4
        for key in [key for key in tensors if key.endswith(("gate_up_proj", "down_proj"))]:
            experts, inputs, outputs = tensors.pop(key).shape
            scales = torch.empty(experts, outputs, inputs // 32, dtype=torch.uint8, device="meta")
            tensors |= {
                f"{key}_blocks": scales.unsqueeze(3).expand(-1, -1, -1, 16),
                f"{key}_scales": scales,
            }
    return tensors, revert_weight_conversion(model, tensors)


@pytest.mark.parametrize("name", with_variants(PUBLISHED, ONE_OF_EACH))
def test_tables_convert_published_sizes_in_both_directions(name: str) -> None:
    family, config = published(name)
    memory, files = (
        {key: tensor for key, tensor in tensors.items() if not key.endswith(".attention.bias")}
        for tensors in reference(name)
    )
    ours = skeleton(family.Model, config).state_dict()
    for hub_tensors in (memory,) if memory.keys() == files.keys() else (memory, files):
        check_shapes(weights_map.to_native(family.model_type, hub_tensors, config), ours)
    back = weights_map.to_hub(family.model_type, ours, config)
    assert {key: tensor.shape for key, tensor in back.items()} == {
        key: t.shape for key, t in files.items()
    }


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
        ("gpt-neo-125m", 125_198_592),
        ("gpt-neo-1.3B", 1_315_575_808),
        ("gpt-neo-2.7B", 2_651_307_520),
    ],
)
def test_published_sizes_have_the_published_parameter_counts(name: str, count: int) -> None:
    architecture, config = preset(name)
    assert (
        sum(parameter.numel() for parameter in skeleton(architecture.Model, config).parameters())
        == count
    )


def test_lstm_converts_in_both_directions() -> None:
    model = ARCHITECTURES["lstm"].Model(
        ARCHITECTURES["lstm"].Config(vocab_size=11, embedding_size=6, hidden_size=5, num_layers=3)
    )
    ours = model.state_dict()
    hub = weights_map.to_hub("lstm", ours)
    assert set(hub) == set(ours)
    as_found = {
        name.replace("embedding", "_embedding")
        .replace("lstm", "_lstm")
        .replace("head", "_out"): tensor
        for name, tensor in hub.items()
    }
    assert "_lstm.weight_ih_l2" in as_found
    native = weights_map.to_native("lstm", as_found)
    assert all(torch.equal(native[name], ours[name]) for name in ours)


TABLE = Table(
    "toy",
    (
        Row("t.embed.weight", "embed", same),
        Row(("t.h.{}.q", "t.h.{}.k", "t.h.{}.v"), "h.{}.qkv", cat(3)),
        Row("t.h.{}.gate_up", ("h.{}.gate", "h.{}.up"), split(2, dim=1)),
        Row("t.h.{}.proj", "h.{}.proj", transpose),
        Row("head", "head", tie("t.embed.weight")),
        Row("t.h.{}.mask", (), drop),
    ),
    spellings=(("", "t."),),
)


def toy(layers: int = 2) -> dict[str, torch.Tensor]:
    tensors = {"t.embed.weight": torch.randn(5, 4), "head": torch.randn(5, 4)}
    for layer in range(layers):
        for name, shape in {
            "q": (4, 4),
            "k": (4, 4),
            "v": (4, 4),
            "gate_up": (4, 6),
            "proj": (4, 3),
        }.items():
            tensors[f"t.h.{layer}.{name}"] = torch.randn(shape)
    return tensors


def test_operations_have_inverses() -> None:
    hub = toy()
    native = Mapped(TABLE, hub, "hub")
    assert torch.equal(
        native["h.1.qkv"], torch.cat([hub["t.h.1.q"], hub["t.h.1.k"], hub["t.h.1.v"]])
    )
    assert torch.equal(native["h.0.gate"], hub["t.h.0.gate_up"][:, :3])
    assert torch.equal(native["h.0.up"], hub["t.h.0.gate_up"][:, 3:])
    assert torch.equal(native["h.1.proj"], hub["t.h.1.proj"].T)
    # layer by layer
    assert list(native)[:5] == ["embed", "h.0.qkv", "h.0.gate", "h.0.up", "h.0.proj"]
    assert list(native)[5:] == ["head", "h.1.qkv", "h.1.gate", "h.1.up", "h.1.proj"]
    back = Mapped(TABLE, dict(native), "native")
    assert set(back) == set(hub)
    assert all(torch.equal(back[name], hub[name]) for name in hub)


def test_same_and_transpose_copy_nothing() -> None:
    hub = toy()
    native = Mapped(TABLE, hub, "hub")
    assert native["embed"].data_ptr() == hub["t.embed.weight"].data_ptr()
    assert native["h.0.proj"].data_ptr() == hub["t.h.0.proj"].data_ptr()


def test_tensors_are_loaded_on_access() -> None:
    class Watched(dict):
        def __getitem__(self, name: str) -> torch.Tensor:
            loaded.append(name)
            return super().__getitem__(name)

    loaded: list[str] = []
    native = Mapped(TABLE, Watched(toy()), "hub")
    assert loaded == []
    _ = native["h.1.qkv"]
    assert loaded == ["t.h.1.q", "t.h.1.k", "t.h.1.v"]


def test_alternative_spellings_and_wrappers_are_recognized() -> None:
    hub = toy()
    for change in (
        lambda n: n,
        lambda n: n.removeprefix("t."),
        lambda n: f"_orig_mod.{n}",
        lambda n: f"module.{n}",
        lambda n: "_orig_mod.module." + n.removeprefix("t."),
    ):
        result = {change(name): tensor for name, tensor in hub.items()}
        native = Mapped(TABLE, result, "hub")
        assert torch.equal(native["h.1.proj"], hub["t.h.1.proj"].T)
        assert set(native) == set(Mapped(TABLE, hub, "hub"))
    without_head = {name: tensor for name, tensor in hub.items() if name != "head"}
    assert "head" not in Mapped(TABLE, without_head, "hub")
    with_mask = {**hub, "t.h.0.mask": torch.ones(1), "h.1.mask": torch.ones(1)}
    assert set(Mapped(TABLE, with_mask, "hub")) == set(Mapped(TABLE, hub, "hub"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: t.update({"t.h.0.qq": t["t.h.0.q"], "x": t["head"]}),
            r"unknown: t\.h\.0\.qq, x",
        ),
        (lambda t: t.pop("t.h.1.k"), r"missing: t\.h\.1\.k$"),
        (
            lambda t: [t.pop(f"t.h.0.{x}") for x in "qkv"],
            r"missing: t\.h\.0\.k, t\.h\.0\.q, t\.h\.0\.v",
        ),
        (lambda t: t.update({"h.0.q": t["t.h.0.q"]}), r"duplicate: h\.0\.q and t\.h\.0\.q"),
        (lambda t: t.update({"t.h.4.proj": t["t.h.0.proj"]}), r"missing: t\.h\.2\."),
        (lambda t: t.update({"t.h.00.proj": t["t.h.0.proj"]}), r"unknown: t\.h\.00\.proj"),
        (lambda t: t.update({"t.h.999999.proj": t["t.h.0.proj"]}), r"missing: .* and \d+ more"),
        (lambda t: t.clear(), r"missing: t\.embed\.weight"),
    ],
)
def test_all_name_problems_are_listed(change, message: str) -> None:
    tensors = toy()
    change(tensors)
    with pytest.raises(ValueError, match=message):
        Mapped(TABLE, tensors, "hub")


FUSED = Table(
    "fused",
    (
        Row("h.{}.qkv.weight", "h.{}.c_attn.weight", ungroup_heads(3, "num_attention_heads")),
        Row("h.{}.qkv.bias", "h.{}.c_attn.bias", ungroup_heads(3, "num_attention_heads")),
    ),
)


def test_per_head_projections_become_three_parts() -> None:
    """GPT-NeoX: q, k and v of each head in transformers equal thirds of the native matrix."""
    heads, size, width = 4, 6, 24
    attention = transformers.models.gpt_neox.modeling_gpt_neox.GPTNeoXAttention(
        transformers.GPTNeoXConfig(
            hidden_size=width, num_attention_heads=heads, num_hidden_layers=1
        )
    )
    fused = attention.query_key_value
    hub = {"h.0.qkv.weight": torch.randn(3 * width, width), "h.0.qkv.bias": torch.randn(3 * width)}
    fused.load_state_dict({name.removeprefix("h.0.qkv."): tensor for name, tensor in hub.items()})
    x = torch.randn(2, 5, width)
    expected = fused(x).view(2, 5, heads, 3 * size).chunk(3, dim=-1)  # as in its forward

    config = SimpleNamespace(num_attention_heads=heads)
    native = Mapped(FUSED, hub, "hub", config)
    ours = F.linear(x, native["h.0.c_attn.weight"], native["h.0.c_attn.bias"]).chunk(3, dim=-1)
    for actual, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(actual.view(2, 5, heads, size), other)
    back = Mapped(FUSED, dict(native), "native", config)
    assert all(torch.equal(back[name], hub[name]) for name in hub)
    # One head (or GPT-BigCode's one for all queries): nothing moves.
    alone = Mapped(FUSED, hub, "hub", SimpleNamespace(num_attention_heads=1))
    assert torch.equal(alone["h.0.c_attn.weight"], hub["h.0.qkv.weight"])


def test_missing_config_is_explained() -> None:
    hub = {"h.0.qkv.weight": torch.randn(6, 2), "h.0.qkv.bias": torch.randn(7)}
    with pytest.raises(
        ValueError, match=r"table of fused needs the model's config, for num_attention_heads"
    ):
        Mapped(FUSED, hub, "hub")
    # Sizes that do not match the heads are listed with the other problems.
    native = Mapped(FUSED, hub, "hub", SimpleNamespace(num_attention_heads=2))
    expected = {"h.0.c_attn.weight": torch.empty(6, 3), "h.0.c_attn.bias": torch.empty(6)}
    message = (
        r"wrong shape: h\.0\.c_attn\.weight is \(6, 2\).*, h\.0\.qkv\.bias \(7,\) cannot be"
        r" converted to h\.0\.c_attn"
    )
    with pytest.raises(ValueError, match=message):
        check_shapes(native, expected)


EXPERTS = Table(
    "experts",
    (
        Row("model.layers.{}.norm.weight", "layers.{}.norm.weight"),
        # Some layers have experts, the others an MLP.
        Row("model.layers.{}.mlp.weight", "layers.{}.mlp.weight", optional=True),
        Row(
            "model.layers.{}.experts.{}.gate.weight",
            "layers.{}.experts.{}.gate.weight",
            transpose,
            optional=True,
        ),
        Row(
            "model.layers.{}.experts.{}.up.weight",
            "layers.{}.experts.up",
            stack("num_experts"),
            optional=True,
        ),
        Row("mtp.*", (), drop),
        Row("model.visual.*", (), drop),
    ),
)
FOUR = SimpleNamespace(num_experts=4)


def experts(layers: int = 3) -> dict[str, torch.Tensor]:
    tensors = {}
    for layer in range(layers):
        tensors[f"model.layers.{layer}.norm.weight"] = torch.randn(3)
        if layer == 0:
            tensors["model.layers.0.mlp.weight"] = torch.randn(3, 3)
            continue
        for expert in range(4):
            for name in ("gate", "up"):
                tensors[f"model.layers.{layer}.experts.{expert}.{name}.weight"] = torch.randn(5, 3)
    return tensors


def test_experts_have_a_second_index() -> None:
    hub = experts()
    native = Mapped(EXPERTS, hub, "hub", FOUR)
    assert torch.equal(
        native["layers.2.experts.3.gate.weight"], hub["model.layers.2.experts.3.gate.weight"].T
    )
    assert native["layers.1.experts.up"].shape == (4, 5, 3)
    assert torch.equal(native["layers.1.experts.up"][3], hub["model.layers.1.experts.3.up.weight"])
    assert len(native) == 3 + 1 + 2 * (4 + 1)
    back = Mapped(EXPERTS, dict(native), "native", FOUR)
    assert set(back) == set(hub)
    assert all(torch.equal(back[name], hub[name]) for name in hub)


def test_experts_of_a_layer_are_stacked_once() -> None:
    """Conversion from Hub to native and back, as in `minhub convert`, reads each expert's matrix
    once.
    """
    loaded: list[str] = []

    class Watched(dict):
        def __getitem__(self, name: str) -> torch.Tensor:
            loaded.append(name)
            return super().__getitem__(name)

    hub = experts()
    there = Mapped(EXPERTS, Mapped(EXPERTS, Watched(hub), "hub", FOUR), "native", FOUR)
    assert all(torch.equal(tensor, hub[name]) for name, tensor in there.items())
    assert sorted(loaded) == sorted(hub)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: t.pop("model.layers.1.experts.2.up.weight"),
            r"missing: model\.layers\.1\.experts\.2\.up\.weight$",
        ),
        (
            lambda t: t.pop("model.layers.1.experts.3.up.weight"),
            r"missing: model\.layers\.1\.experts\.3\.up\.weight$",
        ),
        (
            lambda t: t.update({"model.layers.1.experts.4.up.weight": torch.ones(5, 3)}),
            r"unused: model\.layers\.1\.experts\.4\.up\.weight$",
        ),
        (
            lambda t: t.update({"model.layers.999999.experts.999999.up.weight": torch.ones(5, 3)}),
            (
                r"missing: model\.layers\.10\.norm\.weight.*unused:"
                r" model\.layers\.999999\.experts\.999999\.up\.weight"
            ),
        ),
    ],
)
def test_number_of_experts_follows_the_config(change, message: str) -> None:
    tensors = experts()
    change(tensors)
    with pytest.raises(ValueError, match=message):
        Mapped(EXPERTS, tensors, "hub", FOUR)


def test_missing_experts_with_an_index_on_both_sides_are_listed() -> None:
    rows = (Row("h.{}.experts.{}.w", "h.{}.e.{}.w"),)
    tensors = {
        f"h.{layer}.experts.{expert}.w": torch.randn(2) for layer in range(2) for expert in range(3)
    }
    assert set(Mapped(Table("toy", rows), tensors, "hub")) == {
        f"h.{i}.e.{j}.w" for i in range(2) for j in range(3)
    }
    del tensors["h.0.experts.2.w"], tensors["h.1.experts.1.w"]
    with pytest.raises(ValueError, match=r"missing: h\.0\.experts\.2\.w, h\.1\.experts\.1\.w$"):
        Mapped(Table("toy", rows), tensors, "hub")
    with pytest.raises(ValueError, match=r"missing: h\.0\.experts\.0\.w, h\.0\.experts\.1\.w$"):
        Mapped(Table("toy", rows), {"h.999999.experts.999999.w": torch.ones(1)}, "hub")


def test_stacked_tensor_with_a_wrong_number_of_experts_is_rejected() -> None:
    native = dict(Mapped(EXPERTS, experts(), "hub", FOUR))
    native["layers.2.experts.up"] = torch.ones(5, 5, 3)
    back = Mapped(EXPERTS, native, "native", FOUR)
    message = (
        r"layers\.2\.experts\.up \(5, 5, 3\) cannot be converted to .* \(stack: 5 tensors for 4"
        r" names\)"
    )
    with pytest.raises(ValueError, match=message):
        back["model.layers.2.experts.0.up.weight"]


def test_wildcards_drop_parts_of_a_file() -> None:
    hub = experts()
    native = set(Mapped(EXPERTS, hub, "hub", FOUR))
    extra = (
        "mtp.fc.weight",
        "mtp.layers.7.experts.0.up.weight",
        "model.visual.blocks.11.attn.qkv.bias",
        "_orig_mod.model.visual.patch_embed.proj.weight",
    )
    assert (
        set(Mapped(EXPERTS, {**hub, **dict.fromkeys(extra, torch.ones(1))}, "hub", FOUR)) == native
    )
    with pytest.raises(ValueError, match=r"unknown: model\.mtp\.fc, model\.visual, mtp$"):
        Mapped(
            EXPERTS,
            {**hub, **dict.fromkeys(["mtp", "model.mtp.fc", "model.visual"], torch.ones(1))},
            "hub",
            FOUR,
        )


def test_stacks_may_have_different_depths() -> None:
    rows = tuple(
        Row(f"{side}.block.{{}}.{name}.weight", f"{side}.{{}}.{name}.weight")
        for side, names in {"encoder": ("norm", "mlp"), "decoder": ("norm", "cross", "mlp")}.items()
        for name in names
    )
    table = Table("t5", rows)
    for deep in ({"encoder": 4, "decoder": 2}, {"encoder": 1, "decoder": 3}):
        hub = {
            row.names("hub", (layer,))[0]: torch.randn(2)
            for row in rows
            for layer in range(deep[str(row.hub).partition(".")[0]])
        }
        native = Mapped(table, hub, "hub")
        assert len(native) == 2 * deep["encoder"] + 3 * deep["decoder"]
        assert set(Mapped(table, native, "native")) == set(hub)
        first = {
            name: tensor for name, tensor in hub.items() if name != "encoder.block.0.mlp.weight"
        }
        with pytest.raises(ValueError, match=r"missing: encoder\.block\.0\.mlp\.weight$"):
            Mapped(table, first, "hub")
    with pytest.raises(
        ValueError,
        match=r"missing: encoder\.block\.0\.mlp\.weight, encoder\.block\.0\.norm\.weight$",
    ):
        Mapped(
            table,
            {name: tensor for name, tensor in hub.items() if name.startswith("decoder")},
            "hub",
        )


def test_index_inside_a_word_counts_layers() -> None:
    """The index of the LSTM's weight_ih_l0 is at the end of a word, not of a module."""
    architecture = ARCHITECTURES["lstm"]
    model = architecture.Model(
        architecture.Config(vocab_size=5, embedding_size=4, hidden_size=4, num_layers=3)
    )
    tensors = {
        name: tensor for name, tensor in model.state_dict().items() if name != "lstm.bias_hh_l2"
    }
    with pytest.raises(ValueError, match=r"missing: lstm\.bias_hh_l2$"):
        weights_map.to_native("lstm", tensors)


HEADS, EXPERTS_EACH = 2, 3
# Operations, the number of Hub and of native templates, and the shape of a Hub tensor.
OPERATIONS = [
    (same, 1, 1, (3, 5)),
    (transpose, 1, 1, (3, 5)),
    (cat(3), 3, 1, (2, 5)),
    (cat(2, dim=1), 2, 1, (2, 5)),
    (split(2), 1, 2, (4, 3)),
    (split(3, dim=-1), 1, 3, (2, 6)),
    (ungroup_heads(3, "heads"), 1, 1, (12, 5)),
    (ungroup_heads(2, "heads"), 1, 1, (8,)),
    (stack("experts"), 1, 1, (4, 2)),
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.uint8]


def random_checkpoint(seed: int) -> tuple[Table, dict[str, torch.Tensor], set[str]]:
    """A random table of up to four stacks, Hub tensors, and their native names."""
    random.seed(seed)
    torch.manual_seed(seed)
    rows, hub, native = [], {}, set()
    for number in range(random.randint(1, 4)):
        indices, layers = random.randint(0, 2), random.randint(1, 12)
        depth = [layers, EXPERTS_EACH][:indices]
        positions = [()] if not depth else [(i,) for i in range(layers)]
        positions = (
            [(*place, i) for place in positions for i in range(EXPERTS_EACH)]
            if indices == 2
            else positions
        )
        beginning = ".".join([f"stack{number}", "{}", "experts", "{}"][: 2 * indices or 1])
        for name in range(random.randint(1, 5)):
            operation, hub_count, ours, shape = random.choice(OPERATIONS)
            extra = ".each.{}" if operation.name == "stack" and indices < 2 else ""
            if operation.name == "stack" and not extra:
                operation = same
            row = Row(
                tuple(f"{beginning}{extra}.t{name}_{i}" for i in range(hub_count)),
                tuple(f"{beginning}.o{name}_{i}".replace("stack", "s") for i in range(ours)),
                operation,
                optional=name > 0 and random.random() < 0.3,
            )
            rows.append(row)
            for place in positions:
                if row.optional and random.random() < 0.5:
                    continue
                native |= set(row.names("native", place))
                dtype = random.choice(DTYPES)
                for key in row.names("hub", place, EXPERTS_EACH):
                    hub[key] = torch.randn(shape).mul(100).to(dtype)
    return Table("random", tuple(rows), spellings=(("old.", ""),)), hub, native


@pytest.mark.parametrize("seed", range(60))
def test_random_tables_are_bitwise_reversible(seed: int) -> None:
    table, hub, names = random_checkpoint(seed)
    config = SimpleNamespace(heads=HEADS, experts=EXPERTS_EACH)
    shuffled = random.sample(sorted(hub), len(hub))
    result = {
        random.choice(["", "old.", "_orig_mod.", "module.old."]) + name: hub[name]
        for name in shuffled
    }
    native = dict(Mapped(table, result, "hub", config))
    assert set(native) == names
    back = Mapped(table, dict(random.sample(sorted(native.items()), len(native))), "native", config)
    assert set(back) == set(hub)
    again = Mapped(table, dict(back), "hub", config)
    for one, other in ((back, hub), (again, native)):
        for name in one:
            assert one[name].dtype == other[name].dtype
            assert torch.equal(one[name], other[name])

    hits = {name: table.find(name, "hub") for name in hub}
    missing = random.choice(
        [name for name, (_, row, place) in sorted(hits.items()) if not (row.optional or any(place))]
    )
    without = {name: tensor for name, tensor in hub.items() if name != missing}
    with pytest.raises(ValueError, match=rf"table: missing: {missing}$"):
        Mapped(table, without, "hub", config)
    with pytest.raises(ValueError, match=rf"table: unknown: x\.{missing}; missing: {missing}$"):
        Mapped(table, {**without, f"x.{missing}": hub[missing]}, "hub", config)


def test_all_shape_problems_are_listed() -> None:
    expected = {"a": torch.empty(2, 3), "b": torch.empty(4), "c": torch.empty(1)}
    actual = {
        "a": torch.empty(3, 2),
        "b": torch.empty(4),
        "d": torch.empty(1),
        "head": torch.empty(1),
    }
    message = r"missing: c; unused: d; wrong shape: a is \(3, 2\), the config says \(2, 3\)"
    with pytest.raises(ValueError, match=message):
        check_shapes(actual, expected, spare={"head"})
    check_shapes(expected, expected)


def test_integer_and_float_dtypes_are_not_interchangeable() -> None:
    expected = {"a": torch.empty(2), "b": torch.empty(2, dtype=torch.uint8), "c": torch.empty(2)}
    actual = {
        "a": torch.empty(2, dtype=torch.uint8),
        "b": torch.empty(2),
        "c": torch.empty(2, dtype=torch.bfloat16),
    }
    message = (
        r"wrong dtype: a is torch\.uint8, the model's is torch\.float32, b is torch\.float32, .*"
        r" torch\.uint8$"
    )
    with pytest.raises(ValueError, match=message):
        check_shapes(actual, expected)


def test_rows_of_each_table_have_unique_names() -> None:
    assert set(weights_map.tables) == {family.model_type for family in ARCHITECTURES.values()}
    for every in weights_map.tables.values():
        for head in {row.head for row in every.rows}:
            table = every.for_head(head)
            for side in ("hub", "native"):
                # Rows for different configs (`only`) can have one name.
                named = [
                    ((name, row.only), row) for row in table.rows for name in row.templates(side)
                ]
                names = [name for name, _ in named]
                twice = {name for name in names if names.count(name) > 1}
                # Experts, apart or stacked, and their router have other names in files than in
                # transformers' memory.
                assert all(
                    side == "native" and re.fullmatch(ALTERNATIVES, name) for name, _ in twice
                )
                assert all(row.optional for name, row in named if name in twice)


def test_mxfp4_unpacking_matches_transformers() -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks = (
        torch.arange(256, dtype=torch.uint8)
        .repeat(3 * 5 * 2 * 16 // 256 + 1)[: 3 * 5 * 2 * 16]
        .view(3, 5, 2, 16)
    )
    for low in (0, 1, 100, 127, 226):  # every scale but NaN's, 255
        scales = (torch.arange(30) + low).clamp(max=254).to(torch.uint8).view(3, 5, 2)
        for dtype in (torch.bfloat16, torch.float32):
            weights = unpack_mxfp4(blocks, scales, dtype)
            assert (weights.shape, weights.dtype, weights.is_contiguous()) == (
                (3, 64, 5),
                dtype,
                True,
            )
            assert torch.equal(weights, convert_moe_packed_tensors(blocks, scales, dtype=dtype))
    # One byte by hand: 0x1F is -6 (15), then 0.5 (1); the scale is 2 ** (129 - 127).
    by_hand = unpack_mxfp4(
        torch.full((1, 1, 1, 16), 0x1F, dtype=torch.uint8), torch.tensor([[[129]]]).byte()
    )
    assert by_hand.flatten()[:4].tolist() == [-24, 2, -24, 2]
    with pytest.raises(
        ValueError,
        match=r"MXFP4 experts must be blocks .* not \(3, 5, 2, 16\) torch.uint8 and \(3, 5\)",
    ):
        unpack_mxfp4(blocks, scales[:, :, 0])


@dataclass(frozen=True)
class PackedConfig:
    TITLE: ClassVar = "Packed"
    model_type: str = "packed"
    vocab_size: int = 6
    tie_word_embeddings: bool = False

    def to_hub(self) -> dict[str, object]:
        return {"model_type": "packed", "vocab_size": self.vocab_size, "tie_word_embeddings": False}


class Packed(torch.nn.Module):
    """A model with 4-bit weights in the file's format."""

    encoder_decoder = False

    def __init__(self, config: PackedConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("blocks", torch.zeros(1, 4, 1, 16, dtype=torch.uint8))
        self.wte = torch.nn.Embedding(config.vocab_size, 4)


def test_integer_weights_keep_their_dtype(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading, converting and saving in another dtype keep the bytes of packed weights."""
    module = SimpleNamespace(Packed=Packed, PackedConfig=PackedConfig)
    family = Architecture("packed", "Packed", "packed", ("PackedConfig", "Packed"), Training({}))
    table = Table(
        "packed", (Row("model.blocks", "blocks"), Row("model.embed.weight", "wte.weight"))
    )
    monkeypatch.setitem(sys.modules, "minhub_py.models.packed", module)
    monkeypatch.setitem(ARCHITECTURES, "packed", family)
    monkeypatch.setitem(ENTRIES, "packed", Entry("packed", family, ("packed",)))
    monkeypatch.setitem(weights_map.tables, "packed", table)

    blocks = torch.randint(0, 256, (1, 4, 1, 16), dtype=torch.uint8)
    hub = {"model.blocks": blocks, "model.embed.weight": torch.randn(6, 4)}
    write_checkpoint(tmp_path / "a", hub, PackedConfig().to_hub(), dtype=torch.bfloat16)
    model = from_pretrained(tmp_path / "a", device="cpu")
    assert (model.blocks.dtype, model.wte.weight.dtype) == (torch.uint8, torch.bfloat16)
    for dtype in ("float32", "float16"):
        model = from_pretrained(tmp_path / "a", device="cpu", dtype=dtype)
        assert torch.equal(model.blocks, blocks)
        assert model.wte.weight.dtype == getattr(torch, dtype)
    convert(open_files(tmp_path / "a"), tmp_path / "b", dtype=torch.float64)
    save_pretrained(model, tmp_path / "c")
    convert(open_files(tmp_path / "a"), tmp_path / "e", to="native")
    assert Checkpoint(tmp_path / "e").config["dtype"] == "bfloat16"
    for folder, dtype in (("b", "float64"), ("c", "float16")):
        saved = Checkpoint(tmp_path / folder)
        assert torch.equal(saved["model.blocks"], blocks)
        assert saved["model.blocks"].dtype == torch.uint8
        assert str(saved["model.embed.weight"].dtype) == f"torch.{dtype}"
        assert saved.config["dtype"] == dtype

    write_checkpoint(
        tmp_path / "d", {**hub, "model.blocks": blocks.float()}, PackedConfig().to_hub()
    )
    with pytest.raises(
        ValueError, match=r"wrong dtype: blocks is torch\.float32, the model's is torch\.uint8"
    ):
        from_pretrained(tmp_path / "d")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_fp8_files_without_a_format_are_rejected_by_name(
    tmp_path: Path, dtype: torch.dtype, kind: str
) -> None:
    tensors = {"lstm.weight_ih_l0": torch.randn(4, 4).to(dtype)}
    if kind == "safetensors":
        save_file(tensors, tmp_path / "model.safetensors")
    else:
        torch.save(tensors, tmp_path / "pytorch_model.bin")
    message = (
        r"lstm\.weight_ih_l0 is stored as .*8_?e.m.*, but config.json has no quantization_config"
        r" .*BF16"
    )
    with pytest.raises(ValueError, match=f"(?i){message}"):
        Checkpoint(tmp_path).contents  # noqa: B018


@pytest.mark.parametrize(
    ("size", "heads"), [(None, 4), (7, 2), (0, 2), (8, 0), (8, None), ("8", 2), (True, 1)]
)
def test_the_inner_size_of_a_gguf_file_is_a_multiple(size: object, heads: object) -> None:
    assert quotient({"size": 8, "heads": 2}, "size", "heads") == 4
    with pytest.raises(ValueError, match=r"ssm\.inner_size \(.*\) must be a multiple of heads"):
        quotient({"size": size, "heads": heads}, "size", "heads")
