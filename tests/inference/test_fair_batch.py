"""The sequences of a batch take turns: neither a long prompt nor an expensive grammar delays the
others.
"""

import random
from threading import Event

import pytest
import torch

from minhub_py import from_config, generate, gpt2
from minhub_py.inference.batch import Batch
from minhub_py.inference.mask_threads import MaskThreads, ThreadedMatcher
from minhub_py.inference.sampling import Sampling

V, CHUNK, LONG, SHORT = 61, 128, 980, 8
GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = gpt2(vocab_size=V, n_embd=24, n_layer=2, n_head=4, n_positions=1024).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(
                torch.randn(parameter.shape)
                * (0.3 if parameter.dim() == 1 else parameter.shape[1] ** -0.5)
            )
    return model


def text(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(V), k=length)


def steps_until_first(batch: Batch, row: int) -> int:
    """The number of steps until a row's first token."""
    for step in range(1, 1000):
        if any(event.row == row for event in batch.step()):
            return step
    raise AssertionError("the row has no token")


def counting(batch: Batch, monkeypatch) -> list[int]:
    """The numbers of tokens of the calls of the runner."""
    forward, counts = batch.runner.forward, []

    def listening(texts, *arguments):
        counts.append(sum(map(len, texts.values())))
        return forward(texts, *arguments)

    monkeypatch.setattr(batch.runner, "forward", listening)
    return counts


@pytest.mark.parametrize("ahead", [0, 1, 4, 7])
def test_a_short_prompt_does_not_wait_for_long_ones(model, ahead: int) -> None:
    batch = Batch(model, 8, 1024, chunk=CHUNK, prefix_bytes=2**26)
    for seed in range(ahead):
        batch.admit(text(seed, LONG), 4)
    batch.step()
    assert steps_until_first(batch, batch.admit(text(9, SHORT), 4)) == 1


@pytest.mark.parametrize("prefix_bytes", [0, 2**26])
def test_a_long_prompt_takes_at_most_twice_its_steps_behind_new_short_ones(
    model, prefix_bytes: int
) -> None:
    batch = Batch(model, 8, 1024, chunk=CHUNK, prefix_bytes=prefix_bytes)
    alone = steps_until_first(batch, batch.admit(text(0, LONG), 1))
    long, step, seeds = batch.admit(text(1, LONG), 1), 0, iter(range(2, 1000))
    while True:
        while len(batch) < batch.capacity:
            batch.admit(text(next(seeds), 60), 1)
        step += 1
        if any(event.row == long for event in batch.step()):
            break
    assert alone < step <= 2 * alone


def test_a_step_prefills_at_most_a_chunk(model, monkeypatch) -> None:
    batch = Batch(model, 8, 1024, chunk=CHUNK, prefix_bytes=2**26)
    counts = counting(batch, monkeypatch)
    for seed, length in enumerate((LONG, 30, 700, 5, 200, 90)):
        batch.admit(text(seed, length), 1)
    while len(batch):
        counts.clear()
        batch.step()
        assert sum(counts) <= CHUNK


@pytest.mark.parametrize("ends", [(300, 5), (5, 300), (20, 20), (90, 60)])
def test_a_common_beginning_is_computed_once(model, monkeypatch, ends: tuple[int, int]) -> None:
    """The older prompt can be shorter or longer than the other."""
    batch, beginning = Batch(model, 2, 1024, chunk=CHUNK, prefix_bytes=2**26), text(0, 600)
    prompts = [beginning + text(seed + 1, length) for seed, length in enumerate(ends)]
    counts = counting(batch, monkeypatch)
    rows = [batch.admit(prompt, 1, sampling=GREEDY) for prompt in prompts]
    tokens = {}
    while len(batch):
        tokens |= {event.row: event.id for event in batch.step()}
    assert sum(counts) == 600 + sum(ends)
    assert [[tokens[row]] for row in rows] == [
        generate(model, [ids], 1, temperature=0)[0] for ids in prompts
    ]


def test_a_short_prompt_of_an_encoder_does_not_wait_for_long_ones(monkeypatch) -> None:
    torch.manual_seed(0)
    model = from_config("t5", vocab_size=V, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    batch = Batch(model, 8, 1024, chunk=CHUNK)
    encode, lengths = batch.runner.encode, []
    monkeypatch.setattr(
        batch.runner, "encode", lambda ids, *rest: (lengths.append(len(ids)), encode(ids, *rest))
    )
    long = [batch.admit(text(seed, LONG), 3, sampling=GREEDY) for seed in range(7)]
    assert steps_until_first(batch, batch.admit(text(9, SHORT), 3, sampling=GREEDY)) == 1
    assert lengths in ([SHORT], [SHORT, LONG]), "at most one long prompt in a step"
    tokens: dict[int, list[int]] = {}
    while len(batch):
        for event in batch.step():
            tokens.setdefault(event.row, []).append(event.id)
    expected = generate(model, [text(6, LONG)], 3, temperature=0, eos_id=None)[0]
    assert tokens[long[6]] == expected


class Slow:
    """A matcher that allows the even tokens, whose masks wait until they are released."""

    restricts = True

    def __init__(self) -> None:
        self.released, self.taken = Event(), []

    def allowed(self) -> torch.Tensor:
        self.released.wait()
        return torch.arange(V) % 2 == 0

    def accept(self, id: int) -> bool:
        self.taken.append(id)
        return len(self.taken) == 5


def test_sequences_continue_while_the_mask_of_another_is_computed(model) -> None:
    batch, slow = Batch(model, 3, 1024, chunk=CHUNK), Slow()
    constrained = batch.admit(text(0, 20), 9, matcher=slow, sampling=GREEDY)
    other = batch.admit(text(1, 20), 12, sampling=GREEDY)
    tokens: dict[int, list[int]] = {constrained: [], other: []}
    for step in range(12):
        for event in batch.step():
            tokens[event.row].append(event.id)
        assert len(tokens[other]) == step + 1, "a token in each step"
    assert tokens[constrained] == []
    late = batch.admit(text(2, 300), 1, sampling=GREEDY)
    assert steps_until_first(batch, late) == 3
    slow.released.set()
    while len(batch):
        for event in batch.step():
            tokens[event.row].append(event.id)
    assert tokens[other] == generate(model, [text(1, 20)], 12, temperature=0, eos_id=None)[0]
    assert tokens[constrained] == slow.taken
    assert [id % 2 for id in slow.taken] == [0] * 5


def test_a_sequence_that_waits_for_its_mask_can_be_retired(model) -> None:
    batch, slow = Batch(model, 2, 1024, chunk=CHUNK, prefix_bytes=2**26), Slow()
    row = batch.admit(text(0, 20), 9, matcher=slow)
    other = batch.admit(text(1, 20), 3, sampling=GREEDY)
    batch.step()
    batch.retire(row)
    slow.released.set()
    rest = [event.id for _ in range(2) for event in batch.step() if event.row == other]
    assert rest == generate(model, [text(1, 20)], 3, temperature=0, eos_id=None)[0][1:]


class Recorded:
    """A matcher that records when its mask is computed."""

    restricts = True

    def __init__(self, name: str, order: list[str]) -> None:
        self.name, self.order = name, order

    def allowed(self) -> None:
        self.order.append(self.name)

    def accept(self, id: int) -> bool:
        return False


def test_the_mask_of_the_sequence_with_the_least_time_is_next(monkeypatch) -> None:
    monkeypatch.setattr("minhub_py.inference.mask_threads.cores", lambda: 1)
    threads, order, blocking = MaskThreads(), [], Slow()
    first = ThreadedMatcher(blocking, threads)
    matchers = [ThreadedMatcher(Recorded(name, order), threads) for name in ("expensive", "cheap")]
    blocking.released.set()
    for matcher in (first, *matchers):
        matcher.allowed()
    blocking.released.clear()
    first.accept(0)
    order.clear()
    for matcher, seconds in zip(matchers, (2.0, 1.0), strict=True):
        matcher.seconds = seconds
        matcher.accept(0)
    blocking.released.set()
    for matcher in (first, *matchers):
        matcher.allowed()
    assert order == ["cheap", "expensive"]


def test_the_error_of_a_mask_ends_its_sequence_only(model) -> None:
    class Broken(Slow):
        def allowed(self) -> torch.Tensor:
            raise ValueError("no text satisfies it")

    batch = Batch(model, 2, 1024, chunk=CHUNK)
    row = batch.admit(text(0, 20), 9, matcher=Broken())
    other = batch.admit(text(1, 20), 3, sampling=GREEDY)
    events = []
    while len(batch):
        events += batch.advance()
    assert [str(event.error) for event in events if event.row == row] == ["no text satisfies it"]
    assert sum(event.row == other for event in events) == 3
