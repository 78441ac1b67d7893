"""The weight tables at the sizes of the published models, on meta tensors, and the engine's strictness."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
import transformers

import weights_map
from minhub_py.registry import FAMILIES, preset
from minhub_py.skeleton import skeleton
from weights_map.engine import Mapped, Row, Table, by_part, cat, check_shapes, drop, same, split, tie, transpose

PUBLISHED = [name for family in FAMILIES.values() for name in family.presets]


def reference(name: str) -> dict[str, torch.Tensor]:
    """The state dict that transformers itself has for a published size, on meta, as it would save it."""
    _, config = preset(name)
    hub = config.to_hub()
    hub.pop("architectures")
    settings = transformers.AutoConfig.for_model(hub.pop("model_type"), **hub)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(settings)
    tied = settings.tie_word_embeddings
    return {key: tensor for key, tensor in model.state_dict().items() if not (tied and key == "lm_head.weight")}


@pytest.mark.parametrize("name", PUBLISHED)
def test_both_directions_at_the_published_sizes(name: str) -> None:
    family, config = preset(name)
    theirs = {key: tensor for key, tensor in reference(name).items() if not key.endswith(".attention.bias")}
    ours = skeleton(family, config).state_dict()
    native = weights_map.to_native(family.model_type, theirs)
    check_shapes(native, ours)
    back = weights_map.to_hub(family.model_type, ours)
    assert {key: tensor.shape for key, tensor in back.items()} == {key: t.shape for key, t in theirs.items()}


@pytest.mark.parametrize(
    ("name", "count"),
    [("gpt2", 124_439_808), ("gpt2-medium", 354_823_168), ("gpt2-large", 774_030_080), ("gpt2-xl", 1_557_611_200),
     ("gpt-neo-125m", 125_198_592), ("gpt-neo-1.3B", 1_315_575_808), ("gpt-neo-2.7B", 2_651_307_520)],
)  # fmt: skip
def test_the_presets_have_the_published_parameter_counts(name: str, count: int) -> None:
    assert sum(parameter.numel() for parameter in skeleton(*preset(name)).parameters()) == count


def test_an_lstm_goes_both_ways() -> None:
    model = FAMILIES["lstm"].Model(
        FAMILIES["lstm"].Config(vocab_size=11, embedding_size=6, hidden_size=5, num_layers=3)
    )
    ours = model.state_dict()
    hub = weights_map.to_hub("lstm", ours)
    assert set(hub) == set(ours)
    as_found = {name.replace("embedding", "_embedding").replace("lstm", "_lstm").replace("head", "_out"): tensor
                for name, tensor in hub.items()}  # fmt: skip
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
        for name, shape in {"q": (4, 4), "k": (4, 4), "v": (4, 4), "gate_up": (4, 6), "proj": (4, 3)}.items():
            tensors[f"t.h.{layer}.{name}"] = torch.randn(shape)
    return tensors


def test_each_operation_and_its_reverse() -> None:
    hub = toy()
    native = Mapped(TABLE, hub, "hub")
    assert torch.equal(native["h.1.qkv"], torch.cat([hub["t.h.1.q"], hub["t.h.1.k"], hub["t.h.1.v"]]))
    assert torch.equal(native["h.0.gate"], hub["t.h.0.gate_up"][:, :3])
    assert torch.equal(native["h.0.up"], hub["t.h.0.gate_up"][:, 3:])
    assert torch.equal(native["h.1.proj"], hub["t.h.1.proj"].T)
    back = Mapped(TABLE, dict(native), "native")
    assert set(back) == set(hub)
    assert all(torch.equal(back[name], hub[name]) for name in hub)


def test_same_and_transpose_copy_nothing() -> None:
    hub = toy()
    native = Mapped(TABLE, hub, "hub")
    assert native["embed"].data_ptr() == hub["t.embed.weight"].data_ptr()
    assert native["h.0.proj"].data_ptr() == hub["t.h.0.proj"].data_ptr()


def test_tensors_are_fetched_only_when_asked_for() -> None:
    class Watched(dict):
        def __getitem__(self, name: str) -> torch.Tensor:
            asked.append(name)
            return super().__getitem__(name)

    asked: list[str] = []
    native = Mapped(TABLE, Watched(toy()), "hub")
    assert asked == []
    _ = native["h.1.qkv"]
    assert asked == ["t.h.1.q", "t.h.1.k", "t.h.1.v"]


def test_every_form_of_a_name() -> None:
    hub = toy()
    for change in (lambda n: n, lambda n: n.removeprefix("t."), lambda n: f"_orig_mod.{n}", lambda n: f"module.{n}",
                   lambda n: "_orig_mod.module." + n.removeprefix("t.")):  # fmt: skip
        found = {change(name): tensor for name, tensor in hub.items()}
        native = Mapped(TABLE, found, "hub")
        assert torch.equal(native["h.1.proj"], hub["t.h.1.proj"].T)
        assert set(native) == set(Mapped(TABLE, hub, "hub"))
    without_head = {name: tensor for name, tensor in hub.items() if name != "head"}
    assert "head" not in Mapped(TABLE, without_head, "hub")
    with_mask = {**hub, "t.h.0.mask": torch.ones(1), "h.1.mask": torch.ones(1)}
    assert set(Mapped(TABLE, with_mask, "hub")) == set(Mapped(TABLE, hub, "hub"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update({"t.h.0.qq": t["t.h.0.q"], "x": t["head"]}), r"unknown: t\.h\.0\.qq, x"),
        (lambda t: t.pop("t.h.1.k"), r"missing: t\.h\.1\.k$"),
        (lambda t: [t.pop(f"t.h.0.{x}") for x in "qkv"], r"missing: t\.h\.0\.k, t\.h\.0\.q, t\.h\.0\.v"),
        (lambda t: t.update({"h.0.q": t["t.h.0.q"]}), r"twice: h\.0\.q and t\.h\.0\.q"),
        (lambda t: t.update({"t.h.4.proj": t["t.h.0.proj"]}), r"missing: t\.h\.2\."),
        (lambda t: t.update({"t.h.00.proj": t["t.h.0.proj"]}), r"unknown: t\.h\.00\.proj"),
        (lambda t: t.update({"t.h.999999.proj": t["t.h.0.proj"]}), r"missing: .* and \d+ more"),
        (lambda t: t.clear(), r"missing: t\.embed\.weight"),
    ],
)  # fmt: skip
def test_whatever_does_not_fit_is_listed_by_name(change, message: str) -> None:
    tensors = toy()
    change(tensors)
    with pytest.raises(ValueError, match=message):
        Mapped(TABLE, tensors, "hub")


FUSED = Table(
    "fused",
    (
        Row("h.{}.qkv.weight", "h.{}.c_attn.weight", by_part(3, "num_attention_heads")),
        Row("h.{}.qkv.bias", "h.{}.c_attn.bias", by_part(3, "num_attention_heads")),
    ),
)


def test_heads_fused_one_by_one_become_three_parts() -> None:
    """GPT-NeoX: what transformers takes from each head is what plain thirds are for us."""
    heads, size, width = 4, 6, 24
    attention = transformers.models.gpt_neox.modeling_gpt_neox.GPTNeoXAttention(
        transformers.GPTNeoXConfig(hidden_size=width, num_attention_heads=heads, num_hidden_layers=1)
    )
    fused = attention.query_key_value
    hub = {"h.0.qkv.weight": torch.randn(3 * width, width), "h.0.qkv.bias": torch.randn(3 * width)}
    fused.load_state_dict({name.removeprefix("h.0.qkv."): tensor for name, tensor in hub.items()})
    x = torch.randn(2, 5, width)
    theirs = fused(x).view(2, 5, heads, 3 * size).chunk(3, dim=-1)  # as in its forward

    config = SimpleNamespace(num_attention_heads=heads)
    native = Mapped(FUSED, hub, "hub", config)
    ours = F.linear(x, native["h.0.c_attn.weight"], native["h.0.c_attn.bias"]).chunk(3, dim=-1)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.view(2, 5, heads, size), other)
    back = Mapped(FUSED, dict(native), "native", config)
    assert all(torch.equal(back[name], hub[name]) for name in hub)
    # One head (or GPT-BigCode's one for all queries): nothing moves.
    alone = Mapped(FUSED, hub, "hub", SimpleNamespace(num_attention_heads=1))
    assert torch.equal(alone["h.0.c_attn.weight"], hub["h.0.qkv.weight"])


def test_a_table_that_needs_the_config_says_so() -> None:
    hub = {"h.0.qkv.weight": torch.randn(6, 2), "h.0.qkv.bias": torch.randn(7)}
    with pytest.raises(ValueError, match=r"table of fused needs the model's config, for num_attention_heads"):
        Mapped(FUSED, hub, "hub")
    # A size that no such heads have stays as it is, so that it is refused with all others.
    native = Mapped(FUSED, hub, "hub", SimpleNamespace(num_attention_heads=2))
    assert native["h.0.c_attn.bias"].shape == (7,)


def test_shapes_are_compared_all_at_once() -> None:
    expected = {"a": torch.empty(2, 3), "b": torch.empty(4), "c": torch.empty(1)}
    found = {"a": torch.empty(3, 2), "b": torch.empty(4), "d": torch.empty(1), "head": torch.empty(1)}
    message = r"missing: c; left over: d; wrong shape: a is \(3, 2\), the config says \(2, 3\)"
    with pytest.raises(ValueError, match=message):
        check_shapes(found, expected, spare={"head"})
    check_shapes(expected, expected)


def test_every_row_of_every_table_has_its_own_names() -> None:
    assert set(weights_map.tables) == {family.model_type for family in FAMILIES.values()}
    for table in weights_map.tables.values():
        for side in ("hub", "native"):
            names = [template for row in table.rows for template in row.templates(side)]
            assert len(names) == len(set(names))
