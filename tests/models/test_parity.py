"""GPT-2 and GPT-Neo compared with transformers: rows, windows, old and new files, dropout,
torch.compile.

Tests of all architectures are in test_architectures.py, which has the same cases.

The reference's weights are large, so that logits differ by tens and attention is far from uniform:
a wrong mask, scale or layout changes logits by thousands of times the tolerance.
"""

import json
import shutil
from contextlib import contextmanager
from itertools import cycle

import pytest
import torch
from cases import ARCHITECTURES
from needs import need
from pairs import in_pairs
from references import assert_identical, read
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoConfig,
    GPTNeoForCausalLM,
)
from transformers.activations import ACT2FN

import minhub_py
import weights_map
from minhub_py.models.activations import ACTIVATIONS

TOLERANCE = 5e-5  # of the largest logit; float32 sums in another order differ by some 1e-6

# The tables' cases, with a context that a test can fill.
CONTEXT = 37
CASES = {
    name: {**ARCHITECTURES[family].small, **case, context: CONTEXT}
    for family, context in (("gpt2", "n_positions"), ("gptneo", "max_position_embeddings"))
    for name, case in ARCHITECTURES[family].cases.items()
}
DROPOUTS = {
    "embd_pdrop",
    "attn_pdrop",
    "resid_pdrop",
    "embed_dropout",
    "attention_dropout",
    "resid_dropout",
}
ONE_EACH = ("gpt2", "gpt_neo")  # for tests that do not depend on the settings
HEADS = (*ONE_EACH, "gpt2-untied", "gpt_neo-untied")


def settings_class(name):
    return GPT2Config if name.startswith("gpt2") else GPTNeoConfig


def draw_weights(reference, seed=0):
    """Random weights that preserve the size of activations; attention is uneven, and logits differ
    by tens.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                centre = 1.0 if "ln_" in name and name.endswith("weight") else 0.0
                parameter.copy_(centre + 0.4 * noise)
            elif name.endswith(("wte.weight", "wpe.weight", "lm_head.weight")):
                parameter.copy_(1.5 * noise)
            else:  # GPT-2's weights are (in, out), GPT-Neo's (out, in)
                fan_in = parameter.shape[0 if isinstance(reference, GPT2LMHeadModel) else 1]
                parameter.copy_(1.3 * fan_in**-0.5 * noise)
    return reference


def new_reference(name, **changes):
    model = GPT2LMHeadModel if name.startswith("gpt2") else GPTNeoForCausalLM
    config = settings_class(name)(**{**CASES[name], **changes}, bos_token_id=0, eos_token_id=1)
    config._attn_implementation = "eager"
    return draw_weights(model(config)).eval()


def twins(name, **changes):
    """The reference and our model of the same weights, both in eval mode, without a file."""
    reference = new_reference(name, **changes)
    family = minhub_py.gpt2 if name.startswith("gpt2") else minhub_py.gptneo
    model = family(**{**CASES[name], **changes})
    tied = reference.config.tie_word_embeddings
    state = {
        key: tensor
        for key, tensor in reference.state_dict().items()
        if key != "lm_head.weight" or not tied
    }
    model.load_state_dict(weights_map.to_native(reference.config.model_type, state))
    return reference, model.eval()


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """load(case): the reference, our model of its files, their folder, ids (3, context) and the
    reference's logits.
    """
    loaded = {}

    def load(name):
        if name not in loaded:
            folder = tmp_path_factory.mktemp(name)
            reference = new_reference(name)
            reference.save_pretrained(folder)
            model = minhub_py.from_pretrained(str(folder), device="cpu", dtype="float32")
            ids = some_ids(reference)
            loaded[name] = reference, model, folder, ids, logits_of(reference, ids)
        return loaded[name]

    return load


def some_ids(reference, rows=3, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(
        reference.config.vocab_size, (rows, context_of(reference)), generator=generator
    )


def context_of(reference):
    return reference.config.max_position_embeddings


@torch.no_grad()
def logits_of(reference, ids):
    return reference(ids, use_cache=False).logits


def assert_close(actual, expected, tolerance=TOLERANCE):
    assert actual.shape == expected.shape
    assert expected.abs().max() > 10, "the test's own weights are too small to show a difference"
    error = (actual.float() - expected).abs().amax(dim=(0, 2)) / expected.abs().max()
    assert error.max() <= tolerance, (
        f"off by {error.max():.1e} of the largest logit, at positions from {first(error)}"
    )


def first(error):
    return int((error > TOLERANCE).int().argmax())


@pytest.mark.parametrize(
    ("name", "sizes"), in_pairs(list(CASES), [[1], [3], [1, 1, 3, 1, 9, 1, 2, 6], [10, 1]])
)
def test_rows_of_different_lengths_match_transformers(load, name, sizes):
    reference, model, _, _, _ = load(name)
    ids = some_ids(reference, rows=4, seed=2)
    expected = logits_of(reference, ids)
    context = ids.shape[1]
    # No prompt, one token, and prompts below and beyond the small windows: one in one call, one in
    # chunks.
    lengths = [0, 1, context // 6, context // 3]
    cache = model.new_cache(4, context)
    for row, length in enumerate(lengths):
        if length:
            cache.set_row(
                row, filled(model, ids[row, :length], context, [length] if row < 3 else [2, 1])
            )
    lengths = go_on(model, cache, ids, expected, lengths, context - lengths[3], sizes)

    # A short text replaces the full row: it must not attend to the previous text.
    assert lengths[3] == context
    cache.set_row(3, filled(model, ids[3, :2], context, [1]))
    lengths[3] = 2
    lengths = go_on(model, cache, ids, expected, lengths, context - lengths[2], sizes)
    assert list(cache.lengths) == lengths


@torch.no_grad()
def filled(model, text, max_length, sizes):
    """A cache of one row with the positions of `text`."""
    cache = model.new_cache(1, max_length)
    read(model, text[None], sizes, cache)
    return cache


@torch.no_grad()
def go_on(model, cache, ids, expected, lengths, count, sizes):
    """Run all rows for `count` positions, each from its position. Returns the new lengths."""
    for size in cycle(sizes):
        size = min(size, count)  # noqa: PLW2901
        if not size:
            return lengths
        now = [slice(length, length + size) for length in lengths]
        actual = model(torch.stack([row[part] for row, part in zip(ids, now, strict=True)]), cache)
        assert_close(
            actual, torch.stack([row[part] for row, part in zip(expected, now, strict=True)])
        )
        lengths = [length + size for length in lengths]
        count -= size


@pytest.mark.parametrize("name", ONE_EACH)
def test_rows_that_end_leave_the_others_as_they_are(load, name):
    reference, model, _, _, _ = load(name)
    ids = some_ids(reference, rows=4, seed=3)
    expected = logits_of(reference, ids)
    lengths = [9, 2, 14, 5]
    cache = model.new_cache(4, 37)
    for row, length in enumerate(lengths):
        cache.set_row(row, filled(model, ids[row, :length], 37, [length]))
    lengths = go_on(model, cache, ids, expected, lengths, 4, [1, 3])
    keep = [3, 1]
    cache.select(keep)
    go_on(model, cache, ids[keep], expected[keep], [lengths[row] for row in keep], 10, [1, 8])


@pytest.mark.parametrize("name", ONE_EACH)
def test_a_full_cache_says_so_and_is_left_alone(load, name):
    _, model, _, ids, expected = load(name)
    cache = model.new_cache(3, 8)
    read(model, ids[:, :7], [7], cache)
    with pytest.raises(ValueError, match="8"):
        model(ids[:, 7:9], cache)
    with torch.no_grad():
        assert_close(model(ids[:, 7:8], cache), expected[:, 7:8])
    with pytest.raises(ValueError, match="37"):
        model(torch.zeros(1, 38, dtype=torch.long))


@pytest.mark.parametrize("window", [1, 2, 4, 7])
def test_the_window_ends_with_the_current_position(window):
    """In one local layer, position t attends to t - window + 1 ... t: a change elsewhere does not
    change its logits.
    """
    layer = {"attention_types": [[["local"], 1]], "num_layers": 1, "window_size": window}
    reference, model = twins("gpt_neo-all-local", **layer)

    def visible(logits):
        """Whether position t (row) attends to position p (column): whether a change at p changes
        its logits.
        """
        before = logits(ids)
        changed = [
            torch.cat([ids[:, :p], (ids[:, p : p + 1] + 1) % 61, ids[:, p + 1 :]], dim=1)
            for p in range(16)
        ]
        return torch.stack(
            [(logits(other) - before).abs().amax(dim=2)[0] > 1e-3 for other in changed], dim=1
        )

    ids = some_ids(reference, rows=1)[:, :16]
    ones = torch.ones(16, 16, dtype=torch.bool)
    expected = ones.tril() & ~ones.tril(-window)
    assert torch.equal(visible(lambda ids: logits_of(reference, ids)), expected)
    with torch.no_grad():
        assert torch.equal(visible(model), expected)
    for sizes in ([1], [5]):
        assert torch.equal(
            visible(lambda ids, sizes=sizes: read(model, ids, sizes, model.new_cache(1, 16))),
            expected,
        )


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("gpt_neo")])
def test_local_layers_keep_no_more_than_their_window(load, name):
    reference, model, _, _, _ = load(name)
    for max_length in (1, 5, context_of(reference)):
        cache = model.new_cache(2, max_length)
        for layer, kind in enumerate(reference.config.attention_layers):
            size = min(max_length, reference.config.window_size) if kind == "local" else max_length
            assert [tensor.shape[2] for tensor in cache.layers[layer]] == [size, size]


@pytest.mark.parametrize("name", ONE_EACH)
def test_the_familys_own_entry_point(load, name):
    _, model, folder, ids, _ = load(name)
    family, other = ("gpt2", "gptneo") if name.startswith("gpt2") else ("gptneo", "gpt2")
    same = getattr(minhub_py, f"{family}_from_pretrained")(
        str(folder), device="cpu", dtype="float32"
    )
    assert not same.training
    assert torch.equal(same(ids), model(ids))
    with pytest.raises(
        ValueError, match=f"architecture {family}, not {other}: use from_pretrained"
    ):
        getattr(minhub_py, f"{other}_from_pretrained")(str(folder))


# Precision of 16 bits relative to the largest logit: 8 and 11 bits of mantissa, through up to 5
# layers.
PRECISIONS = {"bfloat16": 0.08, "float16": 0.01}


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize(
    "name",
    [*ONE_EACH, "gpt2-upcast-inverse-layer", "gpt2-untied", "gpt_neo-two-groups", "gpt_neo-untied"],
)
def test_16_bit_logits_match_transformers(load, name, dtype):
    _, _, folder, ids, expected = load(name)
    model = minhub_py.from_pretrained(str(folder), device="cpu", dtype=dtype)
    assert {parameter.dtype for parameter in model.parameters()} == {getattr(torch, dtype)}
    with torch.no_grad():
        actual = model(ids)
    cached = read(model, ids, [12, 1, 1, 7, 1], model.new_cache(3, ids.shape[1]))
    assert actual.dtype == cached.dtype == getattr(torch, dtype)
    assert_close(actual, expected, PRECISIONS[dtype])
    assert_close(cached, expected, PRECISIONS[dtype])


ONE_LAYER = {
    "gpt2-upcast": {"n_layer": 1},
    "gpt_neo-all-global": {"num_layers": 1, "attention_types": [[["global"], 1]]},
    "gpt_neo-all-local": {"num_layers": 1, "attention_types": [[["local"], 1]]},
}


@pytest.mark.parametrize("name", ONE_LAYER)
def test_scores_beyond_float16_are_computed_in_float32(name, tmp_path, monkeypatch):
    """GPT-Neo, and GPT-2 with a setting, multiply queries and keys in float32; in float16 the
    products are infinite.
    """
    reference = new_reference(name, **ONE_LAYER[name])
    with torch.no_grad():
        for weight, parameter in reference.named_parameters():
            if "c_attn.weight" in weight:
                parameter[:, : 2 * 24].mul_(200)
            elif "q_proj" in weight or "k_proj" in weight:
                parameter.mul_(200)
    reference.half().save_pretrained(tmp_path)
    ids = some_ids(reference)
    # In float16 transformers' own mask, -65504, would be too small for such scores.
    expected = logits_of(reference.float(), ids)
    model = minhub_py.from_pretrained(str(tmp_path), device="cpu", dtype="float16")

    # PyTorch's kernel for CPUs sums in float32; kernels of other devices do not.
    def attention(q, k, v, attend=torch.nn.functional.scaled_dot_product_attention, **options):
        assert q.dtype == k.dtype == torch.float32
        return attend(q, k, v, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
    with torch.no_grad():
        actual = model(ids)
    cached = read(model, ids, [12, 1, 5], model.new_cache(3, 37))
    for logits in (actual, cached):
        # The two largest scores may be equal in float16, so that not every position agrees.
        error = (logits.float() - expected).abs().amax(dim=2) / expected.abs().max()
        assert logits.isfinite().all()
        assert (error < PRECISIONS["float16"]).float().mean() > 0.9


def tensors_in(folder):
    return {
        name: tensor
        for file in folder.glob("*.safetensors")
        for name, tensor in load_file(file).items()
    }


@pytest.mark.parametrize("shards", ["one-file", "shards"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", HEADS)
def test_transformers_loads_saved_models(name, dtype, shards, tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    reference = new_reference(name).to(getattr(torch, dtype))
    reference.save_pretrained(old, max_shard_size="20KB" if shards == "shards" else "1GB")
    model = minhub_py.from_pretrained(str(old), device="cpu", dtype=dtype)
    if shards == "shards":
        minhub_py.save_pretrained(model, new, max_shard_size=20_000)
        assert len(list(new.glob("model-*.safetensors"))) > 2
        assert all(file.stat().st_size < 25_000 for file in new.glob("model-*.safetensors"))
    else:
        minhub_py.save_pretrained(model, new)
        assert [file.name for file in new.glob("*.safetensors")] == ["model.safetensors"]
    assert_identical(tensors_in(new), tensors_in(old))

    again = AutoModelForCausalLM.from_pretrained(new, attn_implementation="eager")
    assert type(again) is type(reference)
    assert again.dtype == getattr(torch, dtype)
    ids = some_ids(reference)
    assert torch.equal(logits_of(again, ids), logits_of(reference, ids))


@pytest.mark.parametrize("name", CASES)
def test_saved_settings_are_those_of_the_original(load, name, tmp_path):
    reference, model, folder, _, _ = load(name)
    minhub_py.save_pretrained(model, tmp_path)
    actual, expected = (
        json.loads((path / "config.json").read_text()) for path in (tmp_path, folder)
    )
    shared = actual.keys() & expected.keys()
    assert {key: actual[key] for key in shared} == {key: expected[key] for key in shared}
    assert shared >= {*CASES[name], "model_type", "architectures"}
    # As transformers reads it, with defaults for settings that only transformers has.
    ours, reference_model = (
        AutoConfig.from_pretrained(tmp_path).to_dict(),
        reference.config.to_dict(),
    )
    for settings in (ours, reference_model):
        for key in ("_name_or_path", "dtype", "transformers_version"):
            settings.pop(key, None)
    assert ours == reference_model


def with_masks(state, family, dtype):
    """The causal masks that old checkpoints contain as weights."""
    attention = "attn" if family == "gpt2" else "attn.attention"
    mask = torch.ones(1, 1, 37, 37, dtype=dtype).tril()
    layers = range(3 if family == "gpt2" else 4)
    masks = {f"transformer.h.{layer}.{attention}.bias": mask.clone() for layer in layers}
    masks |= {
        f"transformer.h.{layer}.{attention}.masked_bias": torch.tensor(-1e4) for layer in layers
    }
    return {**state, **masks}


def bare(state):
    return {name.removeprefix("transformer."): tensor for name, tensor in state.items()}


def prefixed(prefix):
    return lambda state, family: {prefix + name: tensor for name, tensor in state.items()}


OLD_NAMES = {
    "today": lambda state, family: state,
    "bare": lambda state, family: bare(state),
    "float-masks": lambda state, family: with_masks(state, family, torch.float32),
    "uint8-masks": lambda state, family: with_masks(state, family, torch.uint8),
    "bool-masks": lambda state, family: with_masks(state, family, torch.bool),
    "bare-with-masks": lambda state, family: bare(with_masks(state, family, torch.float32)),
    "compiled": prefixed("_orig_mod."),
    "data-parallel": prefixed("module."),
    "compiled-data-parallel": prefixed("module._orig_mod."),
    "bare-compiled": lambda state, family: {
        f"_orig_mod.{name}": tensor for name, tensor in bare(state).items()
    },
}


def write_safetensors(state, folder):
    save_file(
        {name: tensor.clone() for name, tensor in state.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )


def write_bin(state, folder):
    torch.save(state, folder / "pytorch_model.bin")


def write_bin_of_2019(state, folder):
    torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)


def write_sharded_bin(state, folder):
    names = sorted(state)
    parts = {f"pytorch_model-{part + 1:05}-of-00003.bin": names[part::3] for part in range(3)}
    for file, part in parts.items():
        torch.save({name: state[name].clone() for name in part}, folder / file)
    weight_map = {name: file for file, part in parts.items() for name in part}
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


# Names and containers are independent: every name once, every container with the newest and the
# oldest names.
AGES = [(names, write_safetensors) for names in OLD_NAMES]
AGES += [
    (names, write)
    for names in ("today", "bare-with-masks")
    for write in (write_bin, write_bin_of_2019)
]
AGES += [(names, write_sharded_bin) for names in ("today", "bare-with-masks", "compiled")]


@pytest.mark.parametrize("head", ["no-head", "head"])
@pytest.mark.parametrize(
    ("names", "write"), AGES, ids=[f"{names}-{write.__name__}" for names, write in AGES]
)
@pytest.mark.parametrize("name", ONE_EACH)
def test_files_of_every_transformers_version_load(load, name, write, names, head, tmp_path):
    """Each file next to the config contains the same model. A state dict lists the head even if it
    is tied.
    """
    reference, model, folder, ids, _ = load(name)
    state = dict(reference.state_dict())
    if head == "no-head":
        del state["lm_head.weight"]
    write(OLD_NAMES[names](state, "gpt2" if name.startswith("gpt2") else "gptneo"), tmp_path)
    shutil.copy(folder / "config.json", tmp_path)
    result = minhub_py.from_pretrained(str(tmp_path), device="cpu", dtype="float32")
    with torch.no_grad():
        assert torch.equal(result(ids), model(ids))


@pytest.mark.parametrize(
    ("names", "write"), AGES, ids=[f"{names}-{write.__name__}" for names, write in AGES]
)
@pytest.mark.parametrize("name", ["gpt2-untied", "gpt_neo-untied"])
def test_files_of_every_age_with_a_head_of_their_own(load, name, write, names, tmp_path):
    test_files_of_every_transformers_version_load(load, name, write, names, "head", tmp_path)


@contextmanager
def compiled(model, backend):
    """torch.compile without graph breaks; its caches of other models are reset before and after."""
    torch.compiler.reset()
    try:
        yield torch.compile(model, backend=backend, fullgraph=True)
    finally:
        torch.compiler.reset()


@pytest.mark.parametrize(
    "name", ["gpt2-one-head-one-layer", pytest.param("gpt_neo-local-first", marks=pytest.mark.slow)]
)
def test_models_compiled_by_dynamo_match(load, name):
    _, model, _, ids, expected = load(name)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    with compiled(model, backend) as fast:
        with torch.no_grad():
            assert_close(fast(ids), expected)
        cache = model.new_cache(3, 37)
        assert_close(read(fast, ids[:, :9], [9], cache), expected[:, :9])
        go_on(fast, cache, ids, expected, [9, 9, 9], 2, [1])
        count = len(graphs)
        go_on(fast, cache, ids, expected, [11, 11, 11], 6, [1])
        assert len(graphs) == count, "compiled anew for each token"
        go_on(fast, cache, ids, expected, [17, 17, 17], 4, [4])
        cache.set_row(1, filled(model, ids[1, :2], 37, [2]))
        go_on(fast, cache, ids, expected, [21, 2, 21], 5, [4, 1])


@pytest.mark.soak  # a minute of g++; another test covers the graphs of Dynamo
@pytest.mark.parametrize("name", ["gpt2-one-head-one-layer", "gpt_neo-local-first"])
def test_models_compiled_by_inductor_match(load, name):
    need("C++ compiler")
    _, model, _, ids, expected = load(name)
    with compiled(model, "inductor") as fast:
        with torch.no_grad():
            assert_close(fast(ids), expected)
        # As few lengths as possible, since each is compiled: a prompt, a token, and two steps.
        assert_close(
            read(fast, ids[:, :12], [9, 1, 1, 1], model.new_cache(3, 16)), expected[:, :12]
        )


@pytest.mark.parametrize(
    "name",
    [
        "gpt2",
        "gpt2-all-at-once",
        "gpt2-untied",
        *(name for name in CASES if name.startswith("gpt_neo")),
    ],
)
def test_gradients_match_transformers(name):
    dropouts = (
        dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), 0.0)
        if name.startswith("gpt2")
        else {}
    )
    dropouts |= {key: 0.0 for key in CASES[name] if key in DROPOUTS}
    reference, model = twins(name, **dropouts)
    reference.train()
    model.train()
    ids = some_ids(reference)
    for logits in (reference(ids, use_cache=False).logits, model(ids)):
        cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    actual = weights_map.to_hub(
        reference.config.model_type,
        {name: weight.grad for name, weight in model.named_parameters()},
    )
    expected = {name: weight.grad for name, weight in reference.named_parameters()}
    assert actual.keys() == expected.keys()
    for weight, gradient in expected.items():
        assert actual[weight].isfinite().all(), weight
        largest = gradient.abs().max()
        if (
            name.startswith("gpt_neo-window-1")
            and weight.endswith(("q_proj.weight", "k_proj.weight"))
            and not largest
        ):
            continue  # a window of one position has a single weight
        assert largest > 0, weight
        assert (actual[weight] - gradient).abs().max() <= 1e-4 * largest, weight


@pytest.mark.parametrize("chosen", sorted(DROPOUTS))
def test_each_dropout_acts_where_the_references_does(chosen):
    """Dropout with a probability of 1 is deterministic; the logits show a missing dropout layer."""
    name = "gpt2" if chosen.endswith("pdrop") else "gpt_neo"
    dropouts = {key: 0.0 for key in DROPOUTS if hasattr(settings_class(name)(), key)}
    assert chosen in dropouts
    reference, model = twins(name, **{**dropouts, chosen: 1.0})
    ids = some_ids(reference)
    before = logits_of(reference, ids)
    expected = logits_of(reference.train(), ids)
    with torch.no_grad():
        assert_close(model(ids), before)
        assert_close(model.train()(ids), expected)
    assert (expected - before).abs().max() > 1


def test_every_activation_under_its_name():
    x = torch.linspace(-8, 8, 1001)
    assert len(ACTIVATIONS) >= 8
    for name, activation in ACTIVATIONS.items():
        torch.testing.assert_close(activation(x), ACT2FN[name](x), rtol=0, atol=1e-6, msg=name)
