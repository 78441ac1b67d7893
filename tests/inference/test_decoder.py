"""The native runner against the model's own forward: the same logits for every size, layout, dtype and processor; the
same bits however ids are read; and where it is not for compiled code, forward itself.

The weights are drawn large, as in test_parity.py, with random biases and norms.
"""

import contextlib
import copy
import gc
import itertools
import math
import os
import select
import signal
import sys
import threading
import time
import weakref
from dataclasses import dataclass

import pytest
import torch
from decoders import (
    ARCHITECTURES,
    CASES,
    DTYPES,
    KERNELS,
    LAYOUTS,
    LOCAL,
    ROUNDING,
    TOLERANCE,
    assert_close,
    at_the_end_of_memory,
    extend,
    forward,
    in_dtype,
    new,
    new_cache,
    product,
    read,
    some_ids,
)
from pairs import in_pairs
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from minhub_py import generate, llama, score, stream
from minhub_py.inference.native import library
from minhub_py.inference.native.library import MAX_TOKENS
from minhub_py.inference.native_runner import NativeRunner, runner_of
from minhub_py.inference.quantize import quantize
from minhub_py.inference.torch_runner import CHUNK, TorchRunner


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# --- the same logits ---


@pytest.mark.parametrize(("kernel", "name", "layout"), in_pairs(KERNELS, list(CASES), LAYOUTS), indirect=["kernel"])
def test_logits_are_those_of_forward(kernel, name, layout) -> None:
    model = new(name, layout)
    ids = some_ids(model, 145)
    wanted = forward(model, ids)
    assert wanted.abs().max() > 1
    assert_close(read(model, ids, [1]), wanted)
    assert_close(read(model, ids, [3, 1, 64, 9, 2, 5]), wanted)
    # Prompts in one call, longer than what is read at once.
    assert_close(NativeRunner(model).forward({0: ids}, new_cache(model), every=True), wanted)
    cache = new_cache(model)
    assert_close(NativeRunner(model).forward({0: ids[:140]}, cache), wanted[139:140])
    assert cache.lengths == [140]
    assert_close(extend(NativeRunner(model), [ids[140:141]], cache), wanted[140:141])


@pytest.mark.parametrize(("kernel", "name", "layout"), in_pairs(KERNELS, list(CASES), LAYOUTS), indirect=["kernel"])
def test_rows_at_different_positions(kernel, name, layout) -> None:
    model = new(name, layout)
    texts = some_ids(model, 145, rows=4)
    wanted = [forward(model, text) for text in texts]
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
        found = extend(runner, [texts[row][part] for row, part in zip(rows, now, strict=True)], cache)
        assert_close(found, torch.cat([wanted[row][part] for row, part in zip(rows, now, strict=True)]))
        for row in rows:
            lengths[row] += sizes[row]
        if step == 6:
            rows = [3, 1]
            cache.select(rows)


@pytest.mark.parametrize("window", [1, 2, 7])
def test_ids_that_are_taken_back_leave_a_ring_as_it_was(kernel, window) -> None:
    model = new("gptneo-all-local", window_size=window, attention_types=LOCAL)
    ids = some_ids(model, 145)
    wanted = forward(model, ids)
    wrong = [(id + 1) % 61 for id in ids]
    runner, cache = NativeRunner(model), new_cache(model)
    assert cache.layers[0][0].size(2) == window + MAX_TOKENS
    for place, drafted in zip(range(145), itertools.cycle([63, 0, 1, 40, 63]), strict=False):
        found = extend(runner, [[ids[place], *wrong[place + 1 : place + 1 + drafted]]], cache)
        assert_close(found[:1], wanted[place : place + 1])
        cache.truncate(0, len(found) - 1)


def test_a_prompt_in_pieces_of_forward_and_of_native_code() -> None:
    """bfloat16 reads long pieces by forward, the rest natively: in one cache, rings with ids to spare among them."""
    for name, dtype in itertools.product(("gpt2", "gptneo-all-local", "lstm-three-layers"), ("float32", "bfloat16")):
        model = new(name, dtype)
        ids = some_ids(model, 145)
        wanted = forward(copy.deepcopy(model).float(), ids)
        runner, cache = NativeRunner(model), new_cache(model)
        parts = [runner.forward({0: ids[place : place + size]}, cache, every=True).clone() for place, size in
                 ((0, 100), (100, 3), (103, 20), (123, 1), (124, 15), (139, 1), (140, 5))]  # fmt: skip
        assert_close(torch.cat(parts), wanted, TOLERANCE if dtype == "float32" else 0.1)
        if name == "gptneo-all-local":  # one id by forward, out of a ring that has more than the window
            mixed = new_cache(model)
            found = torch.cat(
                [
                    (runner if i % 3 else TorchRunner(model)).forward({0: [id]}, mixed).clone()
                    for i, id in enumerate(ids)
                ]
            )
            assert_close(found.float(), wanted, TOLERANCE if dtype == "float32" else 0.1)


@pytest.mark.parametrize(
    ("kernel", "name", "dtype"), in_pairs(KERNELS, list(CASES), ["bfloat16", "float16"]), indirect=["kernel"]
)
def test_16_bits_give_the_logits_of_the_rounded_weights_in_float32(kernel, name, dtype) -> None:
    model = new(name, dtype)
    twin = copy.deepcopy(model).float()
    ids = some_ids(model, 145)
    sizes = [1, 5, 64]
    exact = read(model, ids, sizes, new_cache(twin))  # keys and values in float32: to the last bit
    if dtype == "bfloat16" and kernel in ROUNDING:
        assert_close(exact, read(twin, ids, sizes), 0.05)  # GPT-Neo's scores are not divided: 0.03; others to 0.01
    else:
        assert torch.equal(exact, read(twin, ids, sizes))
        assert_close(exact, forward(twin, ids))
    # Its own cache rounds them to 16 bits.
    assert_close(read(model, ids, sizes), exact, 0.2 if dtype == "bfloat16" else 0.02)


@pytest.mark.parametrize("tokens", [1, 2, 5, 7, 45, 128])
@pytest.mark.parametrize(("columns", "rows"), [(1, 3), (31, 52), (64, 16), (700, 77), (5000, 9), (2100, 6)])
def test_products_in_bfloat16(kernel, columns, rows, tokens) -> None:
    """Inputs are rounded where the processor multiplies bfloat16; sums are in float32."""
    generator = torch.Generator().manual_seed(columns + tokens)
    x = torch.randn(tokens, columns, generator=generator)
    layer = nn.Linear(columns, rows, bias=False, dtype=torch.bfloat16)
    layer.weight.data = torch.randn(rows, columns, generator=generator).bfloat16()
    weight, inputs = layer.weight.double(), (x.bfloat16() if kernel in ROUNDING else x).double()
    found = product(layer, x)
    assert ((found - inputs @ weight.t()).abs() <= 1e-6 * (inputs.abs() @ weight.abs().t())).all()
    for count in (1, 6):  # so few are not read in parts of their inputs
        assert torch.equal(found[:count], product(layer, x[:count]))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8+bfloat16"])
@pytest.mark.parametrize("name", ["gpt2", "gptneo-window-2"])
def test_an_id_without_numbers_harms_none_before_it(kernel, name, dtype) -> None:
    """Keys and values that come later are in memory already when those before them are read."""
    model = new(name)
    bad = model.config.vocab_size - 1
    model.wte.weight.data[bad] = math.nan
    in_dtype(model, dtype)
    for count in (3, 6, 13, 40):
        ids = [id % bad for id in some_ids(model, count)]
        found = NativeRunner(model).forward({0: [*ids, bad]}, new_cache(model), every=True, exact=True).clone()
        assert torch.equal(found[:-1, :bad], read(model, ids, [1])[:, :bad])
        assert not found[-1].isfinite().all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_inputs_in_bfloat16_that_are_not_finite_are_seen(kernel, bad) -> None:
    x = torch.zeros(3, 40)
    x[1, 39] = bad
    layer = nn.Linear(40, 5, bias=False, dtype=torch.bfloat16)
    assert product(layer, x).isfinite().all(dim=1).tolist() == [True, False, True]


def test_a_cache_of_16_bits_is_rounded_to_the_nearest(kernel) -> None:
    for name, dtype in itertools.product(("gpt2", "gptneo", "lstm"), (torch.bfloat16, torch.float16)):
        model = new(name)
        exact, rounded = new_cache(model), new_cache(copy.deepcopy(model).to(dtype))
        read(model, [3], [1], exact)
        read(model, [3], [1], rounded)
        for kept, wanted in zip(rounded.layers[0], exact.layers[0], strict=True):  # later layers have read rounded ones
            assert kept.dtype == dtype
            assert torch.equal(kept, wanted.to(dtype))


# --- the same bits ---


@pytest.mark.parametrize(
    ("kernel", "name", "dtype"),
    in_pairs(
        KERNELS, [*(f"gpt2-heads-of-{size}" for size in (5, 48, 72, 256)), "gptneo-heads-of-72", "lstm-wide"], DTYPES
    ),
    indirect=["kernel"],
)
def test_bits_do_not_depend_on_what_is_computed_beside_them(kernel, name, dtype) -> None:
    model = new(name, dtype)
    texts = some_ids(model, 80, rows=5)
    torch.set_num_threads(1)
    wanted = [read(model, text, [1]) for text in texts]
    for count in (1, 2, 3, 4):
        torch.set_num_threads(count)
        assert torch.equal(read(model, texts[0], [*[1] * 20, 60]), wanted[0])
        assert torch.equal(read(model, texts[0], [2, 3, 4, 1, 5, 8, 50]), wanted[0])
        cache, runner = new_cache(model, 5), NativeRunner(model)
        place = 0
        while place < 80:
            size = min(1 + place % 7, 80 - place)
            found = extend(runner, [text[place : place + size] for text in texts], cache)
            assert torch.equal(found, torch.cat([logits[place : place + size] for logits in wanted]))
            place += size


@pytest.mark.parametrize(
    ("kernel", "name", "dtype"), in_pairs(KERNELS, ["gpt2", "gptneo"], DTYPES), indirect=["kernel"]
)
def test_a_long_text_has_the_bits_of_its_ids_one_by_one(kernel, name, dtype) -> None:
    """Weights that many ids meet are unpacked in several parts; ids attend together as far as they see the same."""
    sizes = {"gpt2": {"n_embd": 140, "n_inner": 1100}, "gptneo": {"hidden_size": 140, "intermediate_size": 1100}}
    model = new(name, dtype, vocab_size=301, **sizes[name])
    text = some_ids(model, 143)
    torch.set_num_threads(1)
    wanted = read(model, text, [1])
    torch.set_num_threads(2)
    for pieces in ([143], [5, MAX_TOKENS + 1, 9], [12, 6, 24, 101], [11, 25, 35, 72]):
        assert torch.equal(read(model, text, pieces), wanted)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "nf4"])
def test_scores_do_not_depend_on_the_number_of_threads(dtype) -> None:
    """Nor on what reads: PyTorch's products, which do, have no part in them."""
    for name, sizes in (("gpt2", {"n_embd": 120, "n_inner": 301}), ("gptneo", {"hidden_size": 120}),
                        ("lstm", {"embedding_size": 122, "hidden_size": 246, "num_layers": 3})):  # fmt: skip
        model = new(name, dtype, vocab_size=1000, **sizes)
        prompts = [some_ids(model, length) for length in (10, 2, 100, 149)]
        torch.set_num_threads(1)
        wanted = score(model, prompts)
        assert NativeRunner(model).long_prompt is None
        for count in (2, 3, 4):
            torch.set_num_threads(count)
            found = score(model, prompts)
            assert all(torch.equal(scores, expected) for scores, expected in zip(found, wanted, strict=True))


def test_more_rows_than_are_read_at_once(plain) -> None:
    for name in ("gpt2", "gptneo", "lstm"):
        model = new(name)
        prompts = [[i % 61, i * 7 % 61, 3][: 1 + i % 3] for i in range(MAX_TOKENS * 2 + 3)]
        alone = [generate(model, [prompt], 9, seed=1)[0] for prompt in prompts]
        for count in (MAX_TOKENS, MAX_TOKENS + 1, len(prompts)):
            assert generate(model, prompts[:count], 9, seed=1, speculate=4) == alone[:count]


# --- what is not for native code ---


def greedy(model, prompt, count):
    """By forward alone."""
    text = list(prompt)
    for _ in range(count):
        with torch.no_grad():
            text.append(int(model(torch.tensor([text]))[0, -1].argmax()))
    return text[len(prompt) :]


class Mine(nn.Module):
    def __init__(self, inner) -> None:
        super().__init__()
        self.inner = inner
        self.weight, self.bias = inner.weight, inner.bias  # all that native code would look for

    def forward(self, x):
        return -self.inner(x)


def hook_on_the_model(model):
    model.register_forward_hook(lambda _, __, logits: -logits)


def hook_on_a_layer(model):
    model.h[1].mlp.c_fc.register_forward_hook(lambda _, __, y: -y)


def pre_hook_on_a_layer(model):
    model.h[0].ln_1.register_forward_pre_hook(lambda _, given: (given[0].flip(-1),))


def hook_on_all_modules(model):
    model.handle = nn.modules.module.register_module_forward_hook(
        lambda module, _, y: -y if module is model.h[0].mlp.c_fc else None
    )


def own_forward(model):
    model.forward = lambda idx, cache=None: -type(model).forward(model, idx, cache)


def own_logits(model):
    model.logits = lambda x: -type(model).logits(model, x)


def own_layer(model):
    model.h[0].mlp.c_fc = Mine(model.h[0].mlp.c_fc)


def own_activation(model):
    model.h[0].mlp.act = torch.sin


def weight_norm(model):
    parametrizations.weight_norm(model.h[0].mlp.c_fc)
    model.h[0].mlp.c_fc.parametrizations.weight.original0.data *= -1


def parametrization(model):
    class Negated(nn.Module):
        def forward(self, weight):
            return -weight

    parametrize.register_parametrization(model.h[0].attn.c_proj, "weight", Negated())


def subclass(model):
    class Other(type(model)):
        def forward(self, idx, cache=None):
            return -super().forward(idx, cache)

    model.__class__ = Other


def float64(model):
    model.double().h[0].mlp.c_fc.weight.data.neg_()


def no_norm(model):
    model.h[0].ln_1 = nn.Identity()


def other_norm(model):
    model.h[0].ln_1 = nn.RMSNorm(24)


def norm_without_weights(model):
    model.h[0].ln_1 = nn.LayerNorm(24, elementwise_affine=False)


def norm_without_bias(model):
    model.h[0].ln_1 = nn.LayerNorm(24, bias=False)


def linear_without_bias(model):
    model.h[0].mlp.c_fc = nn.Linear(24, 96, bias=False)


def linear_of_another_width(model):
    model.h[0].mlp.c_fc, model.h[0].mlp.c_proj = nn.Linear(24, 301), nn.Linear(301, 24)


def two_layers_for_one(model):
    model.h[0].mlp.c_fc = nn.Sequential(nn.Linear(24, 24), nn.Linear(24, 96))


def head_with_a_bias(model):
    model.lm_head = nn.Linear(24, 61)
    nn.init.normal_(model.lm_head.weight, std=2)
    nn.init.normal_(model.lm_head.bias, std=30)


def no_mlp(model):
    model.h[0].mlp = nn.Identity()


def a_layer_less(model):
    del model.h[0]


def something_for_dropout(model):
    model.drop = nn.Softmax(dim=-1)


def embedding_stored_the_other_way(model):
    model.wte.weight = nn.Parameter(model.wte.weight.detach().t().contiguous().t())


def weight_of_one_row(model):
    model.h[0].mlp.c_fc.weight = nn.Parameter(torch.randn(1, 24).expand(96, 24))


def weight_of_one_column(model):
    model.h[0].mlp.c_fc.weight = nn.Parameter(torch.randn(96, 1).expand(96, 24))


class Marked(torch.Tensor):
    """A tensor of somebody's own, as quantizing and sharding libraries put into models."""


def tensor_of_another_kind(model):
    weight = torch.randn(96, 24).as_subclass(Marked)
    model.h[0].mlp.c_fc.weight = nn.Parameter(weight)


CHANGES = [
    hook_on_the_model, hook_on_a_layer, pre_hook_on_a_layer, hook_on_all_modules, own_forward, own_logits, own_layer,
    own_activation, weight_norm, parametrization, subclass, float64, no_norm, other_norm, norm_without_weights,
    norm_without_bias, linear_without_bias, linear_of_another_width, two_layers_for_one, head_with_a_bias, no_mlp,
    a_layer_less, something_for_dropout, embedding_stored_the_other_way, weight_of_one_row, weight_of_one_column,
    tensor_of_another_kind,
]  # fmt: skip
CERTAINLY_PLAIN = CHANGES[:12]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_model_that_somebody_has_changed(change) -> None:
    """Its own forward says what it computes."""
    model = new("gpt2")
    torch.manual_seed(2)
    before = greedy(model, [1, 2, 3], 20)
    change(model)
    wanted = greedy(model, [1, 2, 3], 20)
    if change is not embedding_stored_the_other_way:
        assert wanted != before, "the test's change is none"
    try:
        assert generate(model, [[1, 2, 3]], 20, temperature=0) == [wanted]
        assert generate(model, [[1, 2, 3]], 20, temperature=0, speculate=8) == [wanted]
        if change in CERTAINLY_PLAIN:
            assert type(runner_of(model)) is TorchRunner
    finally:
        if change is hook_on_all_modules:
            model.handle.remove()


def test_an_embedding_that_changes_its_weights_as_it_is_read() -> None:
    model = new("gpt2")
    model.wte.max_norm = 0.5
    assert type(runner_of(model)) is TorchRunner


def test_what_is_plain_and_what_is_native(plain) -> None:
    model = new("gpt2")
    assert isinstance(runner_of(model), NativeRunner)
    assert type(plain(lambda: runner_of(model))) is TorchRunner
    assert type(runner_of(copy.deepcopy(model).to("meta"))) is TorchRunner
    assert type(runner_of(torch.compile(model))) is TorchRunner  # not compiled before its first call
    assert type(runner_of(nn.Sequential(model))) is TorchRunner
    handle = model.register_forward_hook(lambda *_: None)
    assert type(runner_of(model)) is TorchRunner
    handle.remove()
    assert isinstance(runner_of(model), NativeRunner)
    assert isinstance(runner_of(model.train()), NativeRunner)  # dropout is off in either


def test_hooks_see_every_id() -> None:
    for name in ARCHITECTURES:
        model, seen = new(name), []
        model.register_forward_hook(lambda _, given, __, seen=seen: seen.extend(given[0][0].tolist()))
        [ids] = generate(model, [[1, 2, 3]], 10, seed=0)
        assert seen == [1, 2, 3, *ids[:-1]]


@pytest.mark.parametrize(
    ("name", "settings"), in_pairs(list(CASES), [{"temperature": 0}, {}, {"top_k": 9, "repetition_penalty": 1.3}])
)
def test_without_native_code_the_ids_are_the_same(plain, name, settings) -> None:
    model = new(name)
    prompts = [[1, 2], some_ids(model, 100), [5]]

    def work():
        return generate(model, prompts, 60, seed=4, **settings)

    assert work() == plain(work)


def test_scores_and_long_prompts(plain) -> None:
    for name in ("gpt2", "gptneo", "gptneo-window-2", "lstm"):
        context = {"gpt2": {"n_positions": 600}, "gptneo": {"max_position_embeddings": 600}}
        model = new(name, **context.get(name.split("-")[0], {}))
        prompts = [some_ids(model, length) for length in (1, 2, CHUNK, CHUNK + 1, 1500)]
        for found, wanted in zip(score(model, prompts), plain(lambda: score(model, prompts)), strict=True):  # noqa: B023
            assert torch.allclose(found, wanted, atol=2e-3)
        assert generate(model, prompts, 8, temperature=0) == plain(lambda: generate(model, prompts, 8, temperature=0))  # noqa: B023


@pytest.mark.parametrize("bad", [torch.nan, torch.inf], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8"])
def test_weights_that_are_not_numbers_are_named(kernel, dtype, bad) -> None:
    places = {
        "gpt2": ("h.1.mlp.c_fc.bias", "ln_f.weight", "h.0.attn.c_attn.weight"),
        "gptneo": ("wte.weight",),
        "lstm": ("head.weight", "lstm.bias_hh_l0"),
    }
    for name, place in ((name, place) for name, each in places.items() for place in each):
        model = new(name)
        with torch.no_grad():
            model.get_parameter(place).fill_(bad)
        if place == "lstm.bias_hh_l0" and bad == torch.inf:
            continue  # its gates are then 1 or 0
        if dtype == "int8":
            quantize(model, dtype)
        else:
            model.to(getattr(torch, dtype))
        assert isinstance(runner_of(model), NativeRunner)
        for call in (lambda: generate(model, [[1, 2]], 3), lambda: score(model, [[1, 2]])):  # noqa: B023
            with pytest.raises(ValueError, match="logits are NaN or infinite"):
                call()


# --- threads, processes, memory ---


def test_threads_that_generate_at_once() -> None:
    torch.set_num_threads(2)
    models = [
        new(name, dtype) for name, dtype in itertools.product(("gpt2-heads-of-72", *ARCHITECTURES), ("float32", "int8"))
    ]
    wanted = [generate(model, [[1, 2], [3]], 40, seed=5, speculate=3) for model in models]
    for count in (2, len(models)):
        found = [[] for _ in models]

        def work(number, found=found):
            torch.set_num_threads(2)
            for _ in range(3):
                found[number].append(generate(models[number], [[1, 2], [3]], 40, seed=5, speculate=3))

        workers = [threading.Thread(target=work, args=[number]) for number in range(count)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert found[:count] == [[each] * 3 for each in wanted[:count]]
    assert torch.get_num_threads() == 2


def test_a_forked_process_reads_on() -> None:
    """PyTorch's own threads do not survive a fork; those of native code do."""
    model = new("gpt2-heads-of-72")
    ids = some_ids(model, 80)
    wanted = read(model, ids, [1])

    def right():
        runner, cache = NativeRunner(model), new_cache(model)
        runner.threads = 3
        return torch.equal(torch.cat([extend(runner, [[id]], cache).clone() for id in ids]), wanted)

    assert right()  # the helpers have started
    busy = threading.Event()
    beside = threading.Thread(target=lambda: [right() for _ in iter(busy.is_set, True)])
    opened, write = os.pipe()
    for turn in range(20):
        if turn == 3:  # from then on forks come while another thread is in native code
            beside.start()
        child = os.fork()
        if not child:
            try:
                os.write(write, b"right" if right() and right() else b"wrong")
            finally:
                os._exit(0)
        ready = select.select([opened], [], [], 30)[0]
        if not ready:
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert ready, "the child hangs"
        assert os.read(opened, 5) == b"right"
        assert right()
    busy.set()
    beside.join()
    os.close(opened)
    os.close(write)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads stay where the system has them")
def test_a_sleeping_helper_is_kept_off_the_processor_of_who_wakes_it() -> None:
    """Until it has woken: then it may use all processors again."""
    processors = os.sched_getaffinity(0)
    if len(processors) == 1:
        pytest.skip("there is one processor")
    try:
        os.sched_setaffinity(0, processors)
    except OSError as error:
        pytest.skip(f"the system does not let threads be kept off a processor: {error}")
    own = {frozenset(processors)}
    model = new("gpt2-heads-of-72")
    ids, runner = some_ids(model, 40), NativeRunner(model)
    runner.threads = 4

    def allowed():
        found = set()
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                found.add(frozenset(os.sched_getaffinity(int(thread))))
        return found

    kept_off, deadline = False, time.monotonic() + 60
    while not kept_off and time.monotonic() < deadline:
        cache = new_cache(model)
        for id in ids:
            extend(runner, [[id]], cache)
            kept_off |= allowed() != own  # that of one which has not woken yet, as this thread did all the work
            time.sleep(0.004)  # they sleep after one
    assert kept_off
    while allowed() != own and time.monotonic() < deadline:
        time.sleep(0.01)
    assert allowed() == own


def test_texts_that_nobody_reads_to_their_end() -> None:
    model = new("gptneo")
    wanted = generate(model, [[1, 2]], 40, seed=1)
    streams = [stream(model, [1, 2], 40, seed=1, speculate=5) for _ in range(20)]
    begun = [[next(ids) for _ in range(number)] for number, ids in enumerate(streams)]
    assert begun == [wanted[0][:number] for number in range(20)]
    del streams[::2]
    gc.collect()
    assert [list(ids) for ids in streams] == [wanted[0][number:] for number in range(1, 20, 2)]


def test_the_model_may_go_while_its_text_comes() -> None:
    wanted = generate(new("gpt2"), [[1, 2]], 40, seed=1)[0]
    ids = stream(new("gpt2"), [1, 2], 40, seed=1)
    gc.collect()
    assert list(ids) == wanted


@pytest.mark.parametrize("replace", ["half", "data", "assign"])
def test_weights_that_are_replaced_stay_until_their_text_has_come(replace) -> None:
    """NativeRunner code has pointers to them."""
    model = new("gpt2")
    wanted = generate(model, [[1, 2]], 40, seed=1)[0]
    arrays = []
    for parameter in model.parameters():
        array = parameter.detach().numpy().copy()
        parameter.data = torch.from_numpy(array)
        arrays.append(weakref.ref(array))
    del array
    ids = stream(model, [1, 2], 40, seed=1)
    begun = [next(ids)]
    if replace == "half":
        model.half()
    elif replace == "data":
        for parameter in model.parameters():
            parameter.data = torch.zeros_like(parameter)
    else:
        zeros = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
        model.load_state_dict(zeros, assign=True)
    parameter = None
    gc.collect()
    freed = sum(array() is None for array in arrays)
    assert not freed, f"{freed} of {len(arrays)} weights are freed and still read"
    assert begun + list(ids) == wanted


def test_quantized_weights_that_are_replaced_stay_too() -> None:
    model = new("gpt2", "int8")
    wanted = generate(model, [[1, 2]], 40, seed=1)[0]
    arrays = []
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            array = buffer.numpy().copy()
            setattr(module, name, torch.from_numpy(array))
            arrays.append(weakref.ref(array))
    buffer = array = None
    ids = stream(model, [1, 2], 40, seed=1)
    begun = [next(ids)]
    zeros = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    model.load_state_dict(zeros, assign=True)
    gc.collect()
    freed = sum(array() is None for array in arrays)
    assert not freed, f"{freed} of {len(arrays)} buffers are freed and still read"
    assert begun + list(ids) == wanted


def test_new_weights_are_seen_by_the_next_text(plain) -> None:
    model = new("gpt2")

    def work():
        return generate(model, [[1, 2]], 30, temperature=0)

    first = work()
    other = {name: tensor * 1.5 for name, tensor in new("gpt2").state_dict().items()}
    for change in (
        lambda: model.load_state_dict(other),
        lambda: nn.init.normal_(model.h[0].attn.c_attn.bias),
        lambda: model.load_state_dict(new("gpt2").state_dict(), assign=True),
        lambda: nn.init.normal_(model.h[1].mlp.c_fc.weight),
    ):
        change()
        assert work() == plain(work)
    model.load_state_dict(new("gpt2").state_dict())
    assert work() == first


def test_an_interrupt_leaves_everything_usable() -> None:
    torch.set_num_threads(2)
    model = new("lstm-wide")
    wanted = generate(model, [[1, 2]], 40, seed=1)

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(5):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            with pytest.raises(KeyboardInterrupt):
                generate(model, [[1, 2]], 10**6, seed=1)
            assert torch.get_num_threads() == 2
            assert generate(model, [[1, 2]], 40, seed=1) == wanted
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    ("kernel", "name", "dtype"),
    in_pairs(KERNELS, [*ARCHITECTURES, *(f"gpt2-heads-of-{size}" for size in (1, 48, 72, 130, 256, 260))], DTYPES),
    indirect=["kernel"],
)
def test_nothing_is_read_beyond_the_end_of_a_weight(kernel, name, dtype) -> None:
    """It may be the end of a mapped file. Where it is not so this ends the process."""
    model = new(name, dtype)
    sizes = [1, 7, 2, 64]
    ids = some_ids(model, 145)
    wanted = read(model, ids, sizes)
    for parameter in model.parameters():
        parameter.data = at_the_end_of_memory(parameter.data)
    for module in model.modules():
        for buffer, tensor in list(module.named_buffers(recurse=False)):
            setattr(module, buffer, at_the_end_of_memory(tensor))
    cache = new_cache(model)
    if not name.startswith("lstm"):
        cache.layers = [[at_the_end_of_memory(tensor) for tensor in tensors] for tensors in cache.layers]
    assert torch.equal(read(model, ids, sizes, cache), wanted)


@pytest.mark.parametrize("settings", [{"temperature": 0}, {}, {"top_k": 3}, {"top_p": 0.5}, {"top_k": 3, "top_p": 0.5}])
def test_nan_is_named_whatever_the_sampling(settings) -> None:
    model = new("gpt2")
    with torch.no_grad():
        model.ln_f.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="NaN or infinite"):
        generate(model, [[1, 2]], 5, **settings)


@pytest.mark.parametrize("family", ["gpt2", "gptneo", "lstm", "llama"])
def test_other_defaults_of_pytorch(family) -> None:
    """The compiled code's memory is float32 on the CPU, whatever tensors are by default."""
    model = new(family) if family != "llama" else llama(vocab_size=61, hidden_size=24, num_attention_heads=4,
                                                        intermediate_size=40, num_hidden_layers=2).eval()  # fmt: skip
    wanted = generate(model, [[1, 2, 3]], 20, temperature=0)
    for dtype in (torch.float64, torch.bfloat16):
        torch.set_default_dtype(dtype)
        try:
            found = generate(model, [[1, 2, 3]], 20, temperature=0)
        finally:
            torch.set_default_dtype(torch.float32)
        assert found == wanted


def test_autocast_is_pytorchs() -> None:
    model = new("gpt2")
    with torch.autocast("cpu"):
        assert type(runner_of(model)) is TorchRunner
    model.compile()
    assert type(runner_of(model)) is TorchRunner


def test_operation_without_c_implementation_selects_forward(monkeypatch) -> None:
    @dataclass(frozen=True)
    class Transpose:
        """An operation that the C decoder does not have."""

    model = new("gpt2")
    expected = generate(model, [[1, 2, 3]], 8, temperature=0, eos_id=None)
    steps = type(model).steps
    monkeypatch.setattr(type(model), "steps", lambda self: [Transpose(), *steps(self)])
    assert type(runner_of(model)) is TorchRunner
    assert generate(model, [[1, 2, 3]], 8, temperature=0, eos_id=None) == expected


def test_more_positions_than_a_cache_has() -> None:
    model = new("gpt2")
    with pytest.raises(ValueError, match="5 positions do not fit a cache of 4"):
        extend(NativeRunner(model), [[1, 2, 3, 4, 5]], model.new_cache(1, 4))


def test_a_library_of_another_version_is_not_used(monkeypatch) -> None:
    monkeypatch.setattr(library, "INTERFACE", library.INTERFACE + 1)
    opened = library.opened.__wrapped__()
    assert opened[0] is None
    assert "another version" in opened[1]


def test_a_text_scored_beside_others_is_looked_at_once(monkeypatch) -> None:
    made = []
    monkeypatch.setattr(
        NativeRunner,
        "__init__",
        lambda self, model, init=NativeRunner.__init__: made.append(1) or init(self, model),
    )
    score(new("gpt2"), [[1, 2, 3]] * 5)
    assert made == [1]
