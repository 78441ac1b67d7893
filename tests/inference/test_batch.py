"""`Batch`: a row's output does not depend on other rows, on its time of admission, or on the
row of its prefix.

One architecture for each kind of cache: keys and values of all positions (GPT-2), rings (GPT-Neo,
Mistral: with grouped heads), a state (LSTM). Weights are large, so that another key or position
changes the tokens.
"""

import random
from itertools import count

import pytest
import torch
from decoders import in_dtype
from guarantees import EXACT, RUNNER, assert_same, assert_same_tokens
from needs import needs

from minhub_py import from_config, generate, gpt2, gptneo, lstm, score
from minhub_py.checkpoints.tokenizers.tokenizer import characters
from minhub_py.inference.batch import Batch, Event
from minhub_py.inference.native.library import library
from minhub_py.inference.native_runner import LONG_PROMPT
from minhub_py.inference.sampling import Sampling, StopCriteria

V, CONTEXT = 61, 48
SMALL = {"vocab_size": V, "hidden_size": 24}
MAKE = {
    "gpt2": lambda: gpt2(vocab_size=V, n_embd=24, n_layer=2, n_head=4, n_positions=CONTEXT),
    "gptneo": lambda: gptneo(
        **SMALL, num_layers=2, num_heads=4, window_size=5, max_position_embeddings=CONTEXT
    ),
    "lstm": lambda: lstm(**SMALL, embedding_size=24),
    "mistral": lambda: from_config(
        "mistral",
        **SMALL,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        sliding_window=7,
    ),
}
NOTHING = StopCriteria(frozenset(), (), None)


def new(name: str, dtype: str = "float32"):
    """A model in eval mode. dtype: as in `in_dtype`."""
    torch.manual_seed(0)
    model = MAKE[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(
                torch.randn(parameter.shape)
                * (0.3 if parameter.dim() == 1 else parameter.shape[1] ** -0.5)
            )
    return in_dtype(model, dtype)


def text(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(V), k=length)


# Prompts with the arguments of `admit`: as different as a server's rows.
ROWS = [
    (text(1, 3), {"max_new_tokens": 60, "sampling": Sampling(temperature=0)}),
    (text(2, 40), {"max_new_tokens": 30, "sampling": Sampling(temperature=0.8, top_k=20)}),
    (text(3, 1), {"max_new_tokens": 9, "sampling": Sampling(top_p=0.9, repetition_penalty=1.2)}),
    (text(4, 70), {"max_new_tokens": 12, "sampling": Sampling()}),
    ([1, 2, 3, 4] * 5, {"max_new_tokens": 40, "sampling": Sampling(temperature=0), "speculate": 6}),
    (text(5, 8), {"max_new_tokens": 50, "stop": StopCriteria(frozenset(range(20)), (), None)}),
    (text(6, 2), {"max_new_tokens": 0, "targets": text(7, 66)}),
]


def admit(batch: Batch, number: int, **changes) -> int:
    ids, settings = ROWS[number]
    generator = torch.Generator().manual_seed(number)
    return batch.admit(ids, **{"generator": generator, "logprobs": True, **settings, **changes})


def run(batch: Batch) -> dict[int, list[Event]]:
    """All events of each row."""
    result: dict[int, list[Event]] = {}
    while len(batch):
        for event in batch.step():
            result.setdefault(event.row, []).append(event)
    return result


def comparable(events: list[Event]) -> list[tuple]:
    """The values of events that do not depend on other rows."""
    return [(event.id, event.logprob, event.end) for event in events]


@pytest.fixture(scope="module")
def alone():
    """alone(model name, dtype): each row's events in a separate batch."""
    results = {}

    def alone(name: str, dtype: str):
        if (name, dtype) not in results:
            model = new(name, dtype)
            batches = []
            for number in range(len(ROWS)):
                batch = Batch(model, 1, 200)
                admit(batch, number)
                batches.append(comparable(run(batch)[1]))
            results[name, dtype] = batches
        return results[name, dtype]

    return alone


def test_the_number_of_cached_texts_is_bounded() -> None:
    """An LSTM's state is so small that a limit of bytes alone would allow a million."""
    batch = Batch(new("lstm"), 1, CONTEXT, prefix_bytes=2**28)
    texts = [[first, second] for first in range(20) for second in range(15)]
    for ids in texts:
        batch.admit(ids, 1)
        run(batch)
    assert [entry.ids for entry in batch.prefixes.entries] == texts[-256:]


@pytest.mark.parametrize("piece", [None, 8])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("name", ["gpt2", "gptneo"])
def test_an_error_ends_one_row_and_does_not_change_the_others(
    name: str, dtype: str, piece: int | None
) -> None:
    """Logits are NaN from position 30 on: in prompts, in new text and in targets."""
    model = new(name, dtype)
    with torch.no_grad():
        model.get_parameter("wpe.weight")[30:] = torch.nan
    settings = {"sampling": Sampling(), "logprobs": True, "top": 2}
    rows = [
        (text(1, 5), {**settings, "max_new_tokens": 20}),
        (text(2, 35), {**settings, "max_new_tokens": 3}),
        (text(3, 26), {**settings, "max_new_tokens": 9}),
        (text(4, 2), {"max_new_tokens": 0, "targets": text(5, 40)}),
        (text(6, 20), {"max_new_tokens": 10, "sampling": Sampling()}),
        (text(7, 26), {"max_new_tokens": 20, "sampling": Sampling()}),
    ]
    fails = [False, True, True, True, False, True]

    def outcomes(numbers: list[int]) -> list[list[tuple]]:
        batch = Batch(model, len(numbers), CONTEXT, prefix_bytes=2**20, chunk=piece)
        assert type(batch.runner) is RUNNER
        keys = []
        for number in numbers:
            ids, new_ids = rows[number]
            keys.append(
                batch.admit(ids, generator=torch.Generator().manual_seed(number), **new_ids)
            )
        result: dict[int, list[tuple]] = {}
        while len(batch):
            for event in batch.advance():
                result.setdefault(event.row, []).append(
                    (event.id, event.logprob, event.end, event.top, str(event.error))
                )
        # no other row may continue from NaN
        assert all(len(entry.ids) <= 30 for entry in batch.prefixes.entries)
        return [result[key] for key in keys]

    alone = [outcomes([number])[0] for number in range(len(rows))]
    assert [events[-1][0] == -1 and "NaN" in events[-1][4] for events in alone] == fails
    for actual, expected in zip(outcomes(list(range(len(rows)))), alone, strict=True):
        assert_same_tokens(actual, expected, dtype)
    batch = Batch(model, 1, CONTEXT)
    batch.admit(*rows[1][:1], 3)
    with pytest.raises(ValueError, match="logits are NaN"):
        batch.step()


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", "int8", "nf4", "int8+bfloat16"]
)
@pytest.mark.parametrize("name", MAKE)
def test_rows_that_join_and_leave_match_single_runs(alone, name: str, dtype: str) -> None:
    """Rows are admitted while others continue, more than there are slots, and some are retired."""
    expected = alone(name, dtype)
    for seed in range(3):
        order, chance = (
            random.Random(seed).choices(range(len(ROWS)), k=12),
            random.Random(100 + seed),
        )
        batch = Batch(new(name, dtype), 3, 200)
        assert type(batch.runner) is RUNNER
        rows, actual, retired = {}, {}, set()
        while order or len(batch):
            while order and len(batch) < 3 and chance.random() < 0.6:
                number = order.pop()
                rows[admit(batch, number)] = number
            for event in batch.step():
                assert event.row not in retired
                actual.setdefault(event.row, []).append(event)
            if actual and chance.random() < 0.02:
                row = chance.choice(sorted(actual))
                batch.retire(row)
                retired.add(row)
        assert rows.keys() == actual.keys()
        for row, number in rows.items():
            events = comparable(actual[row])
            assert_same_tokens(
                events,
                expected[number][: len(events)] if row in retired else expected[number],
                dtype,
            )


@pytest.mark.parametrize("name", MAKE)
def test_events_match_generate_and_score(alone, name: str) -> None:
    model = new(name)
    for number, (ids, settings) in enumerate(ROWS):
        events = alone(name, "float32")[number]
        new_ids, logprobs, ends = zip(*events, strict=True)
        assert all(end is None for end in ends[:-1])
        if "targets" in settings:
            assert list(new_ids) == settings["targets"]
        elif "stop" not in settings:
            how = settings["sampling"]
            [expected] = generate(
                model,
                [ids],
                settings["max_new_tokens"],
                temperature=how.temperature,
                top_k=how.top_k,
                top_p=how.top_p,
                repetition_penalty=how.repetition_penalty,
                seed=number,
                eos_id=None,
            )
            assert list(new_ids) == expected
            assert ends[-1] == "length"
        else:
            assert ends[-1] == "stop"
            assert new_ids[-1] < 20 <= min(new_ids[:-1], default=20)
        scores = score(model, [[*ids, *new_ids]])[0][len(ids) - 1 :]
        assert_same(torch.tensor(logprobs), scores)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8", "nf4"])
@pytest.mark.parametrize("name", MAKE)
def test_a_prefix_of_another_row_does_not_change_the_text(
    name: str, dtype: str, monkeypatch
) -> None:
    model = new(name, dtype)
    for length in (3, 9, 14):  # shorter than LONG_PROMPT
        prefix = text(8, length)
        tail = text(9, 5)
        first = Batch(model, 1, 200)
        first.admit([*prefix, *tail], 10, sampling=Sampling(temperature=0), logprobs=True)
        expected = comparable(run(first)[1])
        for steps in (
            1,
            4,
            30,
        ):  # tokens of the other row at the admission; a ring has then lost its beginning
            batch = Batch(model, 2, 200)
            other = batch.admit([*prefix, 7], 40, sampling=Sampling(temperature=0))
            for _ in range(steps):
                batch.step()
            read = []
            with monkeypatch.context() as patch:
                patch.setattr(batch.runner, "forward", spy(batch.runner.forward, read))
                row = batch.admit(
                    [*prefix, *tail],
                    10,
                    sampling=Sampling(temperature=0),
                    logprobs=True,
                    like=other,
                )
                actual = [event for event in batch.step() if event.row == row]
            actual += run(batch)[row]
            assert_same_tokens(comparable(actual), expected, dtype)
            shared = [*prefix, *tail] not in [list(ids) for call in read for ids in call.values()]
            # A state exists after the last token only, and a full ring has lost the beginning;
            # PyTorch's are shorter.
            if EXACT or name in ("gpt2", "lstm"):
                assert shared == (name == "gpt2" or (name != "lstm" and steps + length < 60))


def spy(read, calls: list):
    def listening(texts, *others, **settings):
        calls.append(dict(texts))
        return read(texts, *others, **settings)

    return listening


def test_a_state_is_shared_where_it_is_that_of_the_whole_prefix() -> None:
    model = new("lstm")
    prefix = text(8, 9)
    batch = Batch(model, 2, 100)
    other = batch.admit(prefix, 20, sampling=Sampling(temperature=0))
    [event] = batch.step()
    longer = [*prefix, 5]
    row = batch.admit(longer, 5, sampling=Sampling(temperature=0), like=other)
    # The other row has computed its next token in this step, so that its state is not the state
    # after the prefix.
    events = batch.step() + [event for _ in range(4) for event in batch.step()]
    assert [event.id for event in events if event.row == row] == generate(
        model, [longer], 5, temperature=0
    )[0]
    assert event.row == other


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "nf4", "nf4+bfloat16"])
@pytest.mark.parametrize("name", MAKE)
def test_kept_texts_and_pieces(name: str, dtype: str, monkeypatch) -> None:
    """Prompts in chunks share beginnings with finished texts and with each other; some rows are
    retired.
    """
    model, chance = new(name, dtype), random.Random(5)
    system, turn = text(8, 21), text(9, 6)
    prompts = [
        [*system, *turn],
        [*system, *text(10, 3)],
        system,
        [*text(11, 30)],
        [*system, *turn, *text(12, 4)],
    ]

    def alone(ids: list[int]) -> list[tuple]:
        batch = Batch(model, 1, 200, chunk=1000)
        batch.admit(
            ids,
            12,
            sampling=Sampling(temperature=0.9),
            generator=torch.Generator().manual_seed(len(ids)),
            logprobs=True,
        )
        return comparable(run(batch)[1])

    expected = [alone(ids) for ids in prompts]
    batch, read = Batch(model, 3, 200, prefix_bytes=10**6, chunk=5), []
    monkeypatch.setattr(batch.runner, "forward", spy_read(batch.runner.forward, read))
    order, rows, actual, retired = chance.choices(range(len(prompts)), k=15), {}, {}, set()
    while order or len(batch):
        while order and len(batch) < 3:
            number = order.pop()
            ids = prompts[number]
            rows[
                batch.admit(
                    ids,
                    12,
                    sampling=Sampling(temperature=0.9),
                    logprobs=True,
                    generator=torch.Generator().manual_seed(len(ids)),
                )
            ] = number
        for event in batch.step():
            actual.setdefault(event.row, []).append(event)
        if chance.random() < 0.03 and batch.rows:
            row = chance.choice(batch.rows).key
            batch.retire(row)
            retired.add(row)
    for row, number in rows.items():
        events = comparable(actual.get(row, []))
        assert_same_tokens(
            events, expected[number][: len(events)] if row in retired else expected[number], dtype
        )
    assert len(batch.cached_tokens) <= 3
    if name == "gpt2":  # a state exists after the last token only, and a ring loses its beginning
        prompt_ids = sum(len(prompts[number]) for number in rows.values())
        assert sum(length for length, last in read if not last) < prompt_ids / 2
        assert max(length for length, last in read if not last) <= 5


def spy_read(read, calls: list):
    def listening(texts, cache, every, exact, hidden):
        calls.append((sum(map(len, texts.values())), every))
        assert exact
        return read(texts, cache, every, exact, hidden)

    return listening


def test_kept_texts_stay_within_their_bytes() -> None:
    batch = Batch(new("gpt2"), 2, 40, prefix_bytes=20_000)
    for seed in range(20):
        batch.admit(text(seed, 10), 5, sampling=Sampling(temperature=0))
        run(batch)
        assert 0 < sum(prefix.cache.size for prefix in batch.prefixes.entries) <= 20_000
    first = batch.prefixes.entries[0].ids
    batch.admit([*first, 3], 2, sampling=Sampling(temperature=0))
    run(batch)  # a used entry becomes the newest, and the longer text replaces it
    assert batch.prefixes.entries[-1].ids[: len(first)] == first
    assert first not in [prefix.ids for prefix in batch.prefixes.entries]


@pytest.mark.parametrize("targets", [[], text(3, 7)])
def test_the_most_likely_ids_match_the_logits(targets: list[int]) -> None:
    batch = Batch(new("gpt2"), 1, 40)
    batch.admit(
        text(1, 4), 7, sampling=Sampling(temperature=0), targets=targets, logprobs=True, top=3
    )
    for event in run(batch)[1]:
        values = [logprob for _, logprob in event.top]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
        assert targets or event.top[0] == (event.id, event.logprob)
        assert dict(event.top).get(event.id, event.logprob) == event.logprob


@pytest.mark.parametrize("name", MAKE)
def test_forward_generates_the_same_ids(alone, plain, name: str) -> None:
    """With a TorchRunner, log-probabilities are equal up to rounding."""
    model = new(name)
    batch = plain(lambda: Batch(model, 4, 200))
    rows = {}
    for number in (0, 1, 3):
        rows[admit(batch, number)] = number
    result = {}
    for step in count():
        if step == 5:
            rows[admit(batch, 6)] = 6
        for event in batch.step():
            result.setdefault(event.row, []).append(event)
        if not len(batch):
            break
    for row, number in rows.items():
        ids, logprobs, ends = zip(*comparable(result[row]), strict=True)
        wanted_ids, wanted_logprobs, wanted_ends = zip(*alone(name, "float32")[number], strict=True)
        assert (ids, ends) == (wanted_ids, wanted_ends)
        torch.testing.assert_close(
            torch.tensor(logprobs), torch.tensor(wanted_logprobs), rtol=1e-4, atol=1e-4
        )


@needs("decoder")
def test_long_texts_in_bfloat16_are_read_by_forward() -> None:
    """This is the exception to the rule of determinism in batch.py."""
    # without tiles, PyTorch's products are slower than the C decoder's
    has_tiles = library().has_bfloat16_tiles()
    assert Batch(new("gpt2", "bfloat16"), 1, 40).runner.long_prompt == (
        LONG_PROMPT if has_tiles else None
    )
    assert Batch(new("lstm", "bfloat16"), 1, 40).runner.long_prompt is None


def test_a_row_ends_at_a_stop_string() -> None:
    tokenizer = characters({chr(ord("a") + i): i for i in range(26)})
    model = gpt2(vocab_size=26, n_embd=8, n_layer=1, n_head=1, n_positions=64).eval()
    batch = Batch(model, 1, 64)
    batch.admit(
        [1],
        60,
        sampling=Sampling(),
        generator=torch.Generator().manual_seed(1),
        stop=StopCriteria(frozenset(), ("e",), tokenizer),
    )
    events = run(batch)[1]
    assert [event.end for event in events] == [None] * (len(events) - 1) + ["stop"]
    assert [event.id for event in events].index(4) == len(events) - 1


class Digits:
    """A matcher that allows four odd token IDs from 1 to 19."""

    restricts = True

    def __init__(self) -> None:
        self.taken: list[int] = []

    def allowed(self) -> torch.Tensor:
        odd = torch.zeros(V, dtype=torch.bool)
        odd[1:20:2] = True
        return odd

    def accept(self, id: int) -> bool:
        self.taken.append(id)
        return len(self.taken) == 4


@pytest.mark.parametrize("speculate", [0, 3])
def test_a_matcher_constrains_one_row_only(speculate: int) -> None:
    """The output conforms to the matcher, with drafts and without; other rows are the same as
    alone.
    """
    model = new("gpt2")
    [alone] = generate(model, [[3, 4, 5]], 12, seed=1, eos_id=None)
    batch, matcher = Batch(model, 2, 40), Digits()
    other = batch.admit([3, 4, 5], 12, generator=torch.Generator().manual_seed(1))
    batch.admit(
        [1, 3, 1, 3, 1],
        9,
        sampling=Sampling(top_k=3),
        matcher=matcher,
        logprobs=True,
        speculate=speculate,
        generator=torch.Generator().manual_seed(2),
    )
    result = run(batch)
    assert [event.id for event in result[other]] == alone
    [constrained] = [events for row, events in result.items() if row != other]
    assert [event.id for event in constrained] == matcher.taken
    assert [event.end for event in constrained] == [None, None, None, "stop"]
    assert all(id % 2 and id < 20 for id in matcher.taken)
    ids = [1, 3, 1, 3, 1, *matcher.taken]
    assert_same(torch.tensor([event.logprob for event in constrained]), score(model, [ids])[0][4:])


def test_rows_that_do_not_fit_are_rejected() -> None:
    batch = Batch(new("gpt2"), 2, 30)
    with pytest.raises(
        ValueError, match="a sequence of 31 tokens does not fit a batch with max_length 30"
    ):
        batch.admit([1], 30)
    for ids, budget in (([], 5), ([1], 0)):
        with pytest.raises(ValueError, match="needs a prompt of at least one token"):
            batch.admit(ids, budget)
    for ids, targets in (([V], ()), ([1, -1], ()), ([1], [2, V])):
        with pytest.raises(ValueError, match=f"token IDs must be between 0 and {V - 1}"):
            batch.admit(ids, 1, targets=targets)
    batch.admit([1], 29)
    batch.admit([1], 5)
    with pytest.raises(IndexError, match="all 2 rows of the batch are in use"):
        batch.admit([1], 1)
    batch.retire(1)  # a row that has not started
    batch.retire(77)  # and a number without a row
    assert len(batch) == 1
    # longer than the context: see `context_start`
    assert Batch(new("gpt2"), 1, 10**9).admit([1], 10**6) == 1
    assert Batch(new("lstm"), 1, 1).admit([1], 10**6) == 1
    assert run(Batch(new("lstm"), 1, 1)) == {}
