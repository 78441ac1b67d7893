"""Threads, processes, interrupts and memory of the C decoder."""

import contextlib
import gc
import itertools
import os
import select
import signal
import threading
import time
import weakref

import pytest
import torch
from decoders import (
    ARCHITECTURES,
    DTYPES,
    KERNELS,
    at_the_end_of_memory,
    extend,
    new,
    new_cache,
    read,
    some_ids,
)
from needs import needs, require
from pairs import in_pairs
from torch import nn

from minhub_py import generate, score, stream
from minhub_py.inference.native_runner import NativeRunner


def test_concurrent_threads_generate_the_same_texts() -> None:
    torch.set_num_threads(2)
    models = [
        new(name, dtype)
        for name, dtype in itertools.product(
            ("gpt2-heads-of-72", *ARCHITECTURES), ("float32", "int8")
        )
    ]
    expected = [generate(model, [[1, 2], [3]], 40, seed=5, speculate=3) for model in models]
    for count in (2, len(models)):
        actual = [[] for _ in models]

        def work(number, actual=actual):
            torch.set_num_threads(2)
            for _ in range(3):
                actual[number].append(
                    generate(models[number], [[1, 2], [3]], 40, seed=5, speculate=3)
                )

        workers = [threading.Thread(target=work, args=[number]) for number in range(count)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert actual[:count] == [[row] * 3 for row in expected[:count]]
    assert torch.get_num_threads() == 2


@needs("decoder")
def test_a_forked_process_continues() -> None:
    """PyTorch's threads do not survive a fork; the C decoder's do."""
    model = new("gpt2-heads-of-72")
    ids = some_ids(model, 80)
    expected = read(model, ids, [1])

    def right():
        runner, cache = NativeRunner(model), new_cache(model)
        runner.threads = 3
        return torch.equal(
            torch.cat([extend(runner, [[id]], cache).clone() for id in ids]), expected
        )

    assert right()  # the threads have started
    busy = threading.Event()
    beside = threading.Thread(target=lambda: [right() for _ in iter(busy.is_set, True)])
    opened, write = os.pipe()
    for turn in range(20):
        if turn == 3:  # from then on, forks happen while another thread is in the C decoder
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


@needs("decoder", "Linux")
def test_a_woken_thread_does_not_run_on_the_processor_of_its_waker() -> None:
    """A thread that has woken may use all processors again."""
    processors = os.sched_getaffinity(0)
    require(len(processors) > 1, "there is one processor")
    try:
        os.sched_setaffinity(0, processors)
    except OSError as error:
        require(False, f"the system does not let threads be kept off a processor: {error}")
    own = {frozenset(processors)}
    model = new("gpt2-heads-of-72")
    ids, runner = some_ids(model, 40), NativeRunner(model)
    runner.threads = 4

    def allowed():
        result = set()
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                result.add(frozenset(os.sched_getaffinity(int(thread))))
        return result

    kept_off, deadline = False, time.monotonic() + 60
    while not kept_off and time.monotonic() < deadline:
        cache = new_cache(model)
        for id in ids:
            extend(runner, [[id]], cache)
            # a thread that has not woken yet, because this thread did all the work
            kept_off |= allowed() != own
            time.sleep(0.004)  # they sleep after one
    assert kept_off
    while allowed() != own and time.monotonic() < deadline:
        time.sleep(0.01)
    assert allowed() == own


def test_abandoned_streams_leave_the_model_usable() -> None:
    model = new("gptneo")
    expected = generate(model, [[1, 2]], 40, seed=1)
    streams = [stream(model, [1, 2], 40, seed=1, speculate=5) for _ in range(20)]
    begun = [[next(ids) for _ in range(number)] for number, ids in enumerate(streams)]
    assert begun == [expected[0][:number] for number in range(20)]
    del streams[::2]
    gc.collect()
    assert [list(ids) for ids in streams] == [expected[0][number:] for number in range(1, 20, 2)]


def test_a_stream_outlives_its_model() -> None:
    expected = generate(new("gpt2"), [[1, 2]], 40, seed=1)[0]
    ids = stream(new("gpt2"), [1, 2], 40, seed=1)
    gc.collect()
    assert list(ids) == expected


@needs("decoder")
@pytest.mark.parametrize("replace", ["half", "data", "assign"])
def test_replaced_weights_exist_until_their_stream_ends(replace) -> None:
    """The C decoder has pointers to them."""
    model = new("gpt2")
    expected = generate(model, [[1, 2]], 40, seed=1)[0]
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
    assert begun + list(ids) == expected


@needs("decoder")
def test_replaced_quantized_weights_exist_until_their_stream_ends() -> None:
    model = new("gpt2", "int8")
    expected = generate(model, [[1, 2]], 40, seed=1)[0]
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
    assert begun + list(ids) == expected


def test_the_next_text_uses_new_weights(plain) -> None:
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


def test_an_interrupt_leaves_the_model_usable() -> None:
    torch.set_num_threads(2)
    model = new("lstm-wide")
    expected = generate(model, [[1, 2]], 40, seed=1)

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(5):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            with pytest.raises(KeyboardInterrupt):
                generate(model, [[1, 2]], 10**6, seed=1)
            assert torch.get_num_threads() == 2
            assert generate(model, [[1, 2]], 40, seed=1) == expected
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    ("kernel", "name", "dtype"),
    in_pairs(
        KERNELS,
        [*ARCHITECTURES, *(f"gpt2-heads-of-{size}" for size in (1, 48, 72, 130, 256, 260))],
        DTYPES,
    ),
    indirect=["kernel"],
)
def test_nothing_is_read_beyond_the_end_of_a_weight(kernel, name, dtype) -> None:
    """The last row may be at the end of a mapped file: reading beyond it ends the process."""
    model = new(name, dtype)
    sizes = [1, 7, 2, 64]
    ids = some_ids(model, 145)
    expected = read(model, ids, sizes)
    for parameter in model.parameters():
        parameter.data = at_the_end_of_memory(parameter.data)
    for module in model.modules():
        for buffer, tensor in list(module.named_buffers(recurse=False)):
            setattr(module, buffer, at_the_end_of_memory(tensor))
    cache = new_cache(model)
    if not name.startswith("lstm"):
        cache.layers = [
            [at_the_end_of_memory(tensor) for tensor in tensors] for tensors in cache.layers
        ]
    assert torch.equal(read(model, ids, sizes, cache), expected)


@needs("decoder")
def test_more_positions_than_the_cache_has_are_rejected() -> None:
    model = new("gpt2")
    with pytest.raises(ValueError, match="5 positions do not fit a cache of 4"):
        extend(NativeRunner(model), [[1, 2, 3, 4, 5]], model.new_cache(1, 4))


@needs("decoder")
def test_scoring_several_texts_creates_one_runner(monkeypatch) -> None:
    created = []
    monkeypatch.setattr(
        NativeRunner,
        "__init__",
        lambda self, model, init=NativeRunner.__init__: created.append(1) or init(self, model),
    )
    score(new("gpt2"), [[1, 2, 3]] * 5)
    assert created == [1]
