"""The C decoder, compared with the model's forward: equal logits for every size, layout, dtype and
kernel, and bitwise identical results for every division into calls.

The weights are large, as in test_parity.py, with random biases and norms.
"""

import copy
import itertools
import math

import pytest
import torch
from decoders import (
    CASES,
    DTYPES,
    KERNELS,
    LAYOUTS,
    LOCAL,
    ROUNDING,
    TOLERANCE,
    assert_close,
    extend,
    forward,
    in_dtype,
    new,
    new_cache,
    product,
    read,
    some_ids,
)
from guarantees import assert_same
from needs import needs
from pairs import in_pairs
from torch import nn

from minhub_py import generate, llama, score
from minhub_py.inference.native.library import MAX_TOKENS
from minhub_py.inference.native_runner import NativeRunner, runner_of
from minhub_py.inference.torch_runner import TorchRunner

# --- Equal logits


@pytest.mark.parametrize(
    ("kernel", "name", "layout"), in_pairs(KERNELS, list(CASES), LAYOUTS), indirect=["kernel"]
)
def test_logits_match_forward(kernel, name, layout) -> None:
    model = new(name, layout)
    ids = some_ids(model, 145)
    expected = forward(model, ids)
    assert expected.abs().max() > 1
    assert_close(read(model, ids, [1]), expected)
    assert_close(read(model, ids, [3, 1, 64, 9, 2, 5]), expected)
    # Prompts in one call, longer than one block of tokens.
    assert_close(NativeRunner(model).forward({0: ids}, new_cache(model), every=True), expected)
    cache = new_cache(model)
    assert_close(NativeRunner(model).forward({0: ids[:140]}, cache), expected[139:140])
    assert cache.lengths == [140]
    assert_close(extend(NativeRunner(model), [ids[140:141]], cache), expected[140:141])


@pytest.mark.parametrize(
    ("kernel", "name", "layout"), in_pairs(KERNELS, list(CASES), LAYOUTS), indirect=["kernel"]
)
def test_rows_at_different_positions_match_forward(kernel, name, layout) -> None:
    model = new(name, layout)
    texts = some_ids(model, 145, rows=4)
    expected = [forward(model, text) for text in texts]
    lengths = [1, 2, 60, 90]
    runner, cache = NativeRunner(model), new_cache(model, 4)
    for row, length in enumerate(lengths):
        one = new_cache(model)
        runner.forward({0: texts[row][:length]}, one)
        cache.set_row(row, one)
    rows = [0, 1, 2, 3]
    for step in range(12):
        sizes = [1 + (step + row) % 6 for row in range(4)]
        now = [slice(lengths[row], lengths[row] + sizes[row]) for row in rows]
        actual = extend(
            runner, [texts[row][part] for row, part in zip(rows, now, strict=True)], cache
        )
        assert_close(
            actual, torch.cat([expected[row][part] for row, part in zip(rows, now, strict=True)])
        )
        for row in rows:
            lengths[row] += sizes[row]
        if step == 6:
            rows = [3, 1]
            cache.select(rows)


@pytest.mark.parametrize("window", [1, 2, 7])
def test_removed_ids_do_not_change_a_ring_cache(kernel, window) -> None:
    model = new("gptneo-all-local", window_size=window, attention_types=LOCAL)
    ids = some_ids(model, 145)
    expected = forward(model, ids)
    wrong = [(id + 1) % 61 for id in ids]
    runner, cache = NativeRunner(model), new_cache(model)
    assert cache.layers[0][0].size(2) == window + MAX_TOKENS
    for position, drafted in zip(range(145), itertools.cycle([63, 0, 1, 40, 63]), strict=False):
        actual = extend(
            runner, [[ids[position], *wrong[position + 1 : position + 1 + drafted]]], cache
        )
        assert_close(actual[:1], expected[position : position + 1])
        cache.truncate(0, len(actual) - 1)


@needs("decoder")
def test_prompt_chunks_of_forward_and_native_code_match_forward() -> None:
    """Long bfloat16 prompts use `forward`, other tokens the C decoder, with one cache, also with
    rings.
    """
    for name, dtype in itertools.product(
        ("gpt2", "gptneo-all-local", "lstm-three-layers"), ("float32", "bfloat16")
    ):
        model = new(name, dtype)
        ids = some_ids(model, 145)
        expected = forward(copy.deepcopy(model).float(), ids)
        runner, cache = NativeRunner(model), new_cache(model)
        parts = [
            runner.forward({0: ids[position : position + size]}, cache, every=True).clone()
            for position, size in (
                (0, 100),
                (100, 3),
                (103, 20),
                (123, 1),
                (124, 15),
                (139, 1),
                (140, 5),
            )
        ]
        assert_close(torch.cat(parts), expected, TOLERANCE if dtype == "float32" else 0.1)
        # one token by `forward`, with a ring that contains more than the window
        if name == "gptneo-all-local":
            mixed = new_cache(model)
            actual = torch.cat(
                [
                    (runner if i % 3 else TorchRunner(model)).forward({0: [id]}, mixed).clone()
                    for i, id in enumerate(ids)
                ]
            )
            assert_close(actual.float(), expected, TOLERANCE if dtype == "float32" else 0.1)


@pytest.mark.parametrize(
    ("kernel", "name", "dtype"),
    in_pairs(KERNELS, list(CASES), ["bfloat16", "float16"]),
    indirect=["kernel"],
)
def test_16_bit_logits_match_the_rounded_weights_in_float32(kernel, name, dtype) -> None:
    model = new(name, dtype)
    twin = copy.deepcopy(model).float()
    ids = some_ids(model, 145)
    sizes = [1, 5, 64]
    # keys and values in float32: bitwise identical
    exact = read(model, ids, sizes, new_cache(twin))
    if dtype == "bfloat16" and kernel in ROUNDING:
        assert_close(exact, read(twin, ids, sizes), 0.05)  # GPT-Neo does not scale its scores
    else:
        assert torch.equal(exact, read(twin, ids, sizes))
        assert_close(exact, forward(twin, ids))
    # The model's cache rounds them to 16 bits.
    assert_close(read(model, ids, sizes), exact, 0.2 if dtype == "bfloat16" else 0.02)


@pytest.mark.parametrize("tokens", [1, 2, 5, 7, 45, 128])
@pytest.mark.parametrize(
    ("columns", "rows"), [(1, 3), (31, 52), (64, 16), (700, 77), (5000, 9), (2100, 6)]
)
def test_bfloat16_products_match_float32_products(kernel, columns, rows, tokens) -> None:
    """Inputs are rounded where the processor multiplies bfloat16; sums are in float32."""
    generator = torch.Generator().manual_seed(columns + tokens)
    x = torch.randn(tokens, columns, generator=generator)
    layer = nn.Linear(columns, rows, bias=False, dtype=torch.bfloat16)
    layer.weight.data = torch.randn(rows, columns, generator=generator).bfloat16()
    weight, inputs = layer.weight.double(), (x.bfloat16() if kernel in ROUNDING else x).double()
    result = product(layer, x)
    assert ((result - inputs @ weight.t()).abs() <= 1e-6 * (inputs.abs() @ weight.abs().t())).all()
    for count in (1, 6):  # so few tokens are not divided along their inputs
        assert torch.equal(result[:count], product(layer, x[:count]))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8+bfloat16"])
@pytest.mark.parametrize("name", ["gpt2", "gptneo-window-2"])
def test_a_nan_token_does_not_change_earlier_logits(kernel, name, dtype) -> None:
    """Keys and values of later positions are already in memory when earlier positions attend."""
    model = new(name)
    bad = model.config.vocab_size - 1
    model.wte.weight.data[bad] = math.nan
    in_dtype(model, dtype)
    for count in (3, 6, 13, 40):
        ids = [id % bad for id in some_ids(model, count)]
        result = (
            NativeRunner(model)
            .forward({0: [*ids, bad]}, new_cache(model), every=True, exact=True)
            .clone()
        )
        assert torch.equal(result[:-1, :bad], read(model, ids, [1])[:, :bad])
        assert not result[-1].isfinite().all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_bfloat16_inputs_give_non_finite_outputs(kernel, bad) -> None:
    x = torch.zeros(3, 40)
    x[1, 39] = bad
    layer = nn.Linear(40, 5, bias=False, dtype=torch.bfloat16)
    assert product(layer, x).isfinite().all(dim=1).tolist() == [True, False, True]


def test_a_16_bit_cache_is_rounded_to_nearest(kernel) -> None:
    for name, dtype in itertools.product(
        ("gpt2", "gptneo", "lstm"), (torch.bfloat16, torch.float16)
    ):
        model = new(name)
        exact, rounded = new_cache(model), new_cache(copy.deepcopy(model).to(dtype))
        read(model, [3], [1], exact)
        read(model, [3], [1], rounded)
        for cached, expected in zip(
            rounded.layers[0], exact.layers[0], strict=True
        ):  # inputs of later layers are rounded
            assert cached.dtype == dtype
            assert torch.equal(cached, expected.to(dtype))


# --- Equal bits


@pytest.mark.parametrize(
    ("kernel", "name", "dtype"),
    in_pairs(
        KERNELS,
        [
            *(f"gpt2-heads-of-{size}" for size in (5, 48, 72, 256)),
            "gptneo-heads-of-72",
            "lstm-wide",
        ],
        DTYPES,
    ),
    indirect=["kernel"],
)
def test_logits_do_not_depend_on_other_rows_and_pieces(kernel, name, dtype) -> None:
    model = new(name, dtype)
    texts = some_ids(model, 80, rows=5)
    torch.set_num_threads(1)
    expected = [read(model, text, [1]) for text in texts]
    for count in (1, 2, 3, 4):
        torch.set_num_threads(count)
        assert torch.equal(read(model, texts[0], [*[1] * 20, 60]), expected[0])
        assert torch.equal(read(model, texts[0], [2, 3, 4, 1, 5, 8, 50]), expected[0])
        cache, runner = new_cache(model, 5), NativeRunner(model)
        position = 0
        while position < 80:
            size = min(1 + position % 7, 80 - position)
            actual = extend(runner, [text[position : position + size] for text in texts], cache)
            assert torch.equal(
                actual, torch.cat([logits[position : position + size] for logits in expected])
            )
            position += size


@pytest.mark.parametrize(
    ("kernel", "name", "dtype"), in_pairs(KERNELS, ["gpt2", "gptneo"], DTYPES), indirect=["kernel"]
)
def test_a_long_text_has_the_logits_of_single_steps(kernel, name, dtype) -> None:
    """Weights are unpacked in several parts for many tokens; tokens with the same keys attend
    together.
    """
    sizes = {
        "gpt2": {"n_embd": 140, "n_inner": 1100},
        "gptneo": {"hidden_size": 140, "intermediate_size": 1100},
    }
    model = new(name, dtype, vocab_size=301, **sizes[name])
    text = some_ids(model, 143)
    torch.set_num_threads(1)
    expected = read(model, text, [1])
    torch.set_num_threads(2)
    for pieces in ([143], [5, MAX_TOKENS + 1, 9], [12, 6, 24, 101], [11, 25, 35, 72]):
        assert torch.equal(read(model, text, pieces), expected)


@torch.no_grad()
@pytest.mark.parametrize("heads", [2, 3, 4, 6, 7])
def test_query_heads_of_a_kv_head_together_match_forward(kernel, heads: int) -> None:
    """Single tokens compute the heads together, several tokens one head after another."""
    sizes = {"hidden_size": 48, "intermediate_size": 60, "num_hidden_layers": 2, "head_dim": 20}
    model = llama(
        vocab_size=61, num_attention_heads=2 * heads, num_key_value_heads=2, **sizes
    ).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    text = some_ids(model, 37)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        single = read(model, text, [1])
        assert_close(single, forward(model, text))
        assert torch.equal(read(model, text, [37]), single)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "nf4"])
def test_scores_do_not_depend_on_the_number_of_threads(dtype) -> None:
    """Results do not depend on PyTorch's products, whose sums depend on the number of tokens."""
    for name, sizes in (
        ("gpt2", {"n_embd": 120, "n_inner": 301}),
        ("gptneo", {"hidden_size": 120}),
        ("lstm", {"embedding_size": 122, "hidden_size": 246, "num_layers": 3}),
    ):
        model = new(name, dtype, vocab_size=1000, **sizes)
        prompts = [some_ids(model, length) for length in (10, 2, 100, 149)]
        torch.set_num_threads(1)
        single_threaded = score(model, prompts)
        assert getattr(runner_of(model), "long_prompt", None) is None
        for count in (2, 3, 4):
            torch.set_num_threads(count)
            actual = score(model, prompts)
            assert_same(actual, single_threaded, dtype)


@pytest.mark.slow
def test_more_rows_than_one_call_takes_match_single_runs(plain) -> None:
    for name in ("gpt2", "gptneo", "lstm"):
        model = new(name)
        prompts = [[i % 61, i * 7 % 61, 3][: 1 + i % 3] for i in range(MAX_TOKENS * 2 + 3)]
        alone = [generate(model, [prompt], 9, seed=1)[0] for prompt in prompts]
        for count in (MAX_TOKENS, MAX_TOKENS + 1, len(prompts)):
            assert generate(model, prompts[:count], 9, seed=1, speculate=4) == alone[:count]
