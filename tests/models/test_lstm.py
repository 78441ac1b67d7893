"""The LSTM compared with its equations in float64."""

import re

import pytest
import torch
from references import assert_identical, read
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

import minhub_py
import weights_map

SMALL = {"vocab_size": 29, "embedding_size": 10, "hidden_size": 13, "num_layers": 2}
CASES = {
    "one-layer": {"num_layers": 1},
    "two-layers": {},
    "three-layers": {"num_layers": 3},
    "four-layers": {"num_layers": 4, "hidden_size": 8},
    "tied": {"tie_word_embeddings": True, "embedding_size": 13},
    "tied-four-layers": {"tie_word_embeddings": True, "embedding_size": 13, "num_layers": 4},
    "same-sizes-untied": {"embedding_size": 13},
    "dropout": {"dropout": 0.5, "num_layers": 3},
    "odd-sizes": {"vocab_size": 3, "embedding_size": 1, "hidden_size": 5},
}
WAYS = {
    "tokens": [1],
    "threes": [3],
    "mixed": [1, 6, 2, 1, 11],
    "prompt-then-tokens": [15, 1, 1, 1, 1, 1, 1],
}
LENGTH = 21


@torch.no_grad()
@pytest.mark.parametrize(
    "names", [("_embedding.", "_lstm.", "_out."), ("encoder.", "rnn.", "decoder.")]
)
def test_a_state_dict_alone_is_a_model(names, tmp_path):
    """model.pt as training scripts save it, without a config.json: the sizes follow from the
    tensors.
    """
    model, weights = new_model("two-layers")
    hub_names = dict(zip(("embedding.", "lstm.", "head."), names, strict=True))
    state = {
        re.sub(r"^\w+\.", lambda result: hub_names[result[0]], name): tensor
        for name, tensor in weights.items()
    }
    torch.save({name: tensor.clone() for name, tensor in state.items()}, tmp_path / "model.pt")

    result = minhub_py.from_pretrained(str(tmp_path), device="cpu", dtype="float32")
    assert not result.training
    assert {name: getattr(result.config, name) for name in SMALL} == SMALL
    assert_identical(result.state_dict(), model.state_dict())

    minhub_py.save_pretrained(result, tmp_path / "again")
    assert_identical(load_file(tmp_path / "again" / "model.safetensors"), dict(weights))
    again = minhub_py.from_pretrained(str(tmp_path / "again"), device="cpu", dtype="float32")
    assert again.config == result.config
    assert torch.equal(again(some_ids(model)), model(some_ids(model)))


def equations(weights, ids, layers, tied):
    """Logits (B, T, V) in float64 by the LSTM's equations, one position at a time.

    i, f, o = sigmoid, g = tanh of W x + b + U h + c, in the order i f g o;  c' = f c + i g;  h' = o
    tanh(c')
    """
    weights = {name: tensor.double() for name, tensor in weights.items()}
    size = weights["lstm.weight_hh_l0"].shape[1]
    h = [torch.zeros(ids.shape[0], size, dtype=torch.float64) for _ in range(layers)]
    c = [torch.zeros(ids.shape[0], size, dtype=torch.float64) for _ in range(layers)]
    head = weights["embedding.weight" if tied else "head.weight"]
    logits = []
    for position in ids.T:
        x = weights["embedding.weight"][position]
        for layer in range(layers):
            W, U = weights[f"lstm.weight_ih_l{layer}"], weights[f"lstm.weight_hh_l{layer}"]
            gates = (
                x @ W.T
                + weights[f"lstm.bias_ih_l{layer}"]
                + h[layer] @ U.T
                + weights[f"lstm.bias_hh_l{layer}"]
            )
            i, f, g, o = gates.chunk(4, dim=1)
            c[layer] = 1 / (1 + torch.exp(-f)) * c[layer] + 1 / (1 + torch.exp(-i)) * torch.tanh(g)
            h[layer] = x = 1 / (1 + torch.exp(-o)) * torch.tanh(c[layer])
        logits.append(x @ head.T + weights["head.bias"])
    return torch.stack(logits, dim=1)


def new_model(name):
    """A model with weights so large that gates open and close, also under the Hub's names."""
    config = {**SMALL, **CASES[name]}
    model = minhub_py.lstm(**config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            large = weight.startswith(("embedding", "head"))
            parameter.copy_(
                noise
                * (15.0 if large else 1.0 if parameter.dim() == 1 else parameter.shape[1] ** -0.5)
            )
    return model.eval(), weights_map.to_hub("lstm", model.state_dict())


def some_ids(model, rows=3, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(model.config.vocab_size, (rows, LENGTH), generator=generator)


def reference(model, weights, ids):
    """The logits by the equations, for weights under the Hub's names."""
    return equations(weights, ids, model.config.num_layers, model.config.tie_word_embeddings)


def assert_close(actual, expected, tolerance=5e-5):
    assert actual.shape == expected.shape
    assert expected.abs().max() > 10, "the test's own weights are too small to show a difference"
    assert (actual.double() - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.parametrize("name", CASES)
def test_outputs_match_the_equations(name):
    model, weights = new_model(name)
    ids = some_ids(model)
    expected = reference(model, weights, ids)
    with torch.no_grad():
        for length in (1, 2, LENGTH):
            for rows in (1, 3):
                actual = model(ids[:rows, :length])
                assert actual.dtype == torch.float32
                assert_close(actual, expected[:rows, :length])
        assert_close(model.double()(ids), expected, 1e-12)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_cached_outputs_match_the_equations(name, way):
    model, weights = new_model(name)
    ids = some_ids(model)
    expected = reference(model, weights, ids)
    assert_close(read(model, ids, WAYS[way], model.new_cache(3, LENGTH)), expected)
    assert_close(read(model, ids[:1], WAYS[way], model.new_cache(1, LENGTH)), expected[:1])


@pytest.mark.parametrize("name", CASES)
def test_rows_of_different_lengths_match_single_rows(name):
    model, weights = new_model(name)
    ids = some_ids(model, rows=4, seed=2)
    expected = reference(model, weights, ids)
    cache = model.new_cache(4, LENGTH)
    lengths = [0, 1, 5, 11]
    for row, length in enumerate(lengths):
        if length:
            cache.set_row(row, filled(model, ids[row, :length]))
    lengths = go_on(model, cache, ids, expected, lengths, [1, 1, 3, 1])

    cache.set_row(3, filled(model, ids[3, :2]))  # another text replaces one that has ended
    lengths[3] = 2
    lengths = go_on(model, cache, ids, expected, lengths, [1, 4])

    keep = [3, 1]
    cache.select(keep)
    go_on(model, cache, ids[keep], expected[keep], [lengths[row] for row in keep], [1, 3])


@torch.no_grad()
def filled(model, text):
    """A cache of one row with the positions of `text`."""
    cache = model.new_cache(1, LENGTH)
    model(text[None], cache)
    return cache


@torch.no_grad()
def go_on(model, cache, ids, expected, lengths, sizes):
    """Run a step of all rows, each from its position. Returns the new lengths."""
    for size in sizes:
        now = [slice(length, length + size) for length in lengths]
        actual = model(torch.stack([row[part] for row, part in zip(ids, now, strict=True)]), cache)
        assert_close(
            actual, torch.stack([row[part] for row, part in zip(expected, now, strict=True)])
        )
        lengths = [length + size for length in lengths]
    return lengths


@pytest.mark.parametrize("name", CASES)
def test_gradients_match_autograd_of_the_equations(name):
    """Gradients equal autograd's for the equations, for every weight."""
    model, _ = new_model(name)
    ids = some_ids(model)
    model.double()
    if name != "dropout":  # has an effect in training
        model.train()
    cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()

    leaves = {
        weight: parameter.detach().clone().requires_grad_()
        for weight, parameter in model.named_parameters()
    }
    weights = weights_map.to_hub("lstm", leaves)
    logits = reference(model, weights, ids)
    cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    for weight, parameter in model.named_parameters():
        assert parameter.grad.abs().max() > 0, weight
        torch.testing.assert_close(
            parameter.grad, leaves[weight].grad, rtol=1e-9, atol=1e-12, msg=weight
        )


def test_dropout_is_active_in_training_only():
    model, weights = new_model("dropout")
    ids = some_ids(model)
    expected = reference(model, weights, ids)
    torch.manual_seed(0)
    with torch.no_grad():
        assert (model.train()(ids) - expected).abs().max() > 1
        assert_close(model.eval()(ids), expected)


def test_dropout_acts_after_the_embedding_between_layers_and_before_the_head():
    model = minhub_py.lstm(**SMALL, dropout=0.5)
    dropped = []
    model.drop.register_forward_hook(
        lambda module, inputs, output: dropped.append((module.p, output.shape[2]))
    )
    model.train()(some_ids(model))
    assert dropped == [(0.5, SMALL["embedding_size"]), (0.5, SMALL["hidden_size"])]
    assert model.lstm.dropout == 0.5


@pytest.mark.parametrize("name", ["two-layers", "tied-four-layers"])
def test_saved_models_load_identically(name, tmp_path):
    model, weights = new_model(name)
    minhub_py.save_pretrained(model, tmp_path)
    assert_identical(load_file(tmp_path / "model.safetensors"), dict(weights))
    again = minhub_py.from_pretrained(str(tmp_path), device="cpu", dtype="float32")
    assert again.config == model.config
    assert_identical(again.state_dict(), model.state_dict())
    assert torch.equal(again(some_ids(model)), model(some_ids(model)))


@pytest.mark.parametrize("name", ["two-layers", pytest.param("tied", marks=pytest.mark.soak)])
def test_compiled_models_match(name):
    model, weights = new_model(name)
    ids = some_ids(model)
    expected = reference(model, weights, ids)
    torch.compiler.reset()
    fast = torch.compile(model, backend="eager")
    with torch.no_grad():
        assert_close(fast(ids), expected)
    assert_close(read(fast, ids, [5, 1, 1, 4], model.new_cache(3, LENGTH)), expected)
    torch.compiler.reset()


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.06), ("float16", 0.01)])
@pytest.mark.parametrize("name", ["one-layer", "two-layers", "tied-four-layers"])
def test_16_bit_logits_are_close_to_float32(name, dtype, tolerance, tmp_path):
    model, weights = new_model(name)
    minhub_py.save_pretrained(model, tmp_path)
    half = minhub_py.lstm_from_pretrained(str(tmp_path), device="cpu", dtype=dtype)
    assert {parameter.dtype for parameter in half.parameters()} == {getattr(torch, dtype)}
    ids = some_ids(model)
    with torch.no_grad():
        result = half(ids)
    cached = read(half, ids, [9, 1, 1, 6], half.new_cache(3, LENGTH))
    assert result.dtype == cached.dtype == getattr(torch, dtype)
    for logits in (result, cached):
        assert_close(logits, reference(model, weights, ids), tolerance)
