"""Speculative decoding: drafts change the number of steps, not the output."""

import logging
import random
from collections import defaultdict
from functools import partial
from typing import Any

import pytest
import torch
from decoders import new, some_ids
from needs import need, needs
from pairs import in_pairs
from references import random_model

from minhub_py import generate, stream
from minhub_py.checkpoints.tokenizers.tokenizer import characters
from minhub_py.inference.batch import Batch
from minhub_py.inference.native import library
from minhub_py.inference.native.library import MAX_TOKENS
from minhub_py.inference.sampling import Sampling, StopCriteria
from minhub_py.inference.speculative import (
    TOKEN_TIME,
    Drafter,
    DraftModel,
    DraftSource,
    PromptLookup,
    draft_price,
)

MOST = [1, 2, 8, 31, 100]
SETTINGS = [
    {"temperature": 0},
    {"temperature": 0.2},
    {},
    {"temperature": 0.5, "top_k": 5},
    {"temperature": 0.7, "top_p": 0.6},
    {"temperature": 0.5, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.2},
    {"temperature": 0, "repetition_penalty": 1.01},
]
MODELS = {
    "gpt2": ("gpt2", {}),
    "gpt2-short-context": ("gpt2", {"n_positions": 17}),
    "gpt2-context-of-3": ("gpt2", {"n_positions": 3}),
    "gpt2-context-of-1": ("gpt2", {"n_positions": 1}),
    "gpt2-int8": ("gpt2", {"dtype": "int8"}),
    "gpt2-bfloat16": ("gpt2", {"dtype": "bfloat16", "n_positions": 40}),
    "gptneo": ("gptneo", {}),
    "gptneo-window-2": ("gptneo-window-2", {"max_position_embeddings": 200}),
    "gptneo-short-context": ("gptneo", {"max_position_embeddings": 17}),
    "lstm": ("lstm", {}),
}
PROMPTS = [[1, 2, 3, 4, 1, 2, 3, 4, 1, 2], [5], [7, 8, 9] * 14, list(range(40)), [3, 3]]


@pytest.fixture(scope="module")
def model(request):
    name, changes = MODELS[request.param]
    return new(name, **changes)


class Counted:
    """The library, and the tokens of each call of it."""

    def __init__(self, library) -> None:
        self.library, self.tokens = library, []

    def decode(self, operations, count, call):
        self.tokens.append(call._obj.tokens)
        self.library.decode(operations, count, call)


@pytest.fixture
def calls(monkeypatch):
    """The tokens of each call of the C decoder."""
    need("decoder")
    counted = Counted(library.library())
    monkeypatch.setattr(library, "library", lambda: counted)
    return counted.tokens


# --- equal output ---


@pytest.mark.parametrize(
    ("model", "settings", "most"), in_pairs(list(MODELS), SETTINGS, MOST), indirect=["model"]
)
def test_drafts_do_not_change_the_ids(model, settings, most) -> None:
    expected = generate(model, PROMPTS, 60, seed=7, **settings)
    assert generate(model, PROMPTS, 60, seed=7, speculate=most, **settings) == expected
    for row in (0, 2):
        alone = list(stream(model, PROMPTS[row], 60, seed=7, speculate=20, **settings))
        assert alone == expected[row]


def test_drafts_do_not_change_the_ids_with_any_kernel(kernel) -> None:
    for name in ("gpt2-heads-of-5", "gptneo-all-local"):
        for dtype in ("float32", "transposed", "nf4"):
            model = new(name, dtype)
            ids = generate(model, PROMPTS, 60, seed=3, temperature=0.3)
            assert generate(model, PROMPTS, 60, seed=3, temperature=0.3, speculate=12) == ids


def test_drafts_do_not_change_texts_of_any_length() -> None:
    """The end token may be anywhere in a draft."""
    model = new("gpt2", n_positions=30)
    expected = generate(model, PROMPTS, 70, temperature=0)
    for count in range(1, 70, 3):
        assert generate(model, PROMPTS, count, temperature=0, speculate=9) == [
            row[:count] for row in expected
        ]


def test_a_text_ends_at_an_end_token_within_a_draft() -> None:
    model = new("gpt2")
    for settings in ({"temperature": 0}, {"temperature": 0.4}):
        complete = generate(model, PROMPTS, 90, seed=2, **settings)
        for end in sorted({id for row in complete for id in row}):
            expected = [row[: row.index(end) + 1] if end in row else row for row in complete]
            for most in (3, 31):
                assert (
                    generate(model, PROMPTS, 90, seed=2, eos_id=end, speculate=most, **settings)
                    == expected
                )


def test_a_text_ends_at_a_stop_string_within_a_draft() -> None:
    model = new("gpt2")
    tokenizer = characters([chr(40 + i) for i in range(61)])
    complete = generate(model, PROMPTS, 90, temperature=0)
    texts = [tokenizer.decode(row) for row in complete]
    for position in range(0, 80, 3):
        stop = texts[0][position : position + 4]
        expected = [
            row[: text.index(stop) + 4] if stop in text else row
            for row, text in zip(complete, texts, strict=True)
        ]
        actual = generate(
            model, PROMPTS, 90, temperature=0, stop=stop, tokenizer=tokenizer, speculate=20
        )
        assert actual == expected


def test_drafts_of_many_rows_fit_one_call(calls) -> None:
    model = new("gpt2")
    for count in (20, MAX_TOKENS // 2, MAX_TOKENS // 2 + 1, MAX_TOKENS):
        prompts = [PROMPTS[i % 5] for i in range(count)]
        assert generate(model, prompts, 12, seed=1, speculate=50) == generate(
            model, prompts, 12, seed=1
        )
    assert max(calls) <= MAX_TOKENS


def test_without_native_code_nothing_is_drafted(plain) -> None:
    model = new("gpt2")
    sizes = []

    def work(**more):
        return generate(model, PROMPTS[:1], 40, temperature=0, **more)

    model.register_forward_hook(lambda _, inputs, __: sizes.append(inputs[0].numel()))
    assert work() == work(speculate=9) == plain(lambda: work(speculate=9))
    assert sizes == [len(PROMPTS[0]), *[1] * 39] * 3


@pytest.mark.parametrize("dropped", [0, 1, 5, 30])
def test_an_abandoned_stream_leaves_the_model_usable(dropped) -> None:
    model = new("gpt2")
    expected = generate(model, [PROMPTS[0]], 50, temperature=0)[0]
    ids = stream(model, PROMPTS[0], 50, temperature=0, speculate=20)
    assert [next(ids) for _ in range(dropped)] == expected[:dropped]
    del ids
    assert generate(model, [PROMPTS[0]], 50, temperature=0, speculate=20)[0] == expected


# --- fewer steps ---


def test_text_that_repeats_takes_fewer_readings(calls) -> None:
    for name in ("gpt2", "gptneo"):
        model = new(name)
        texts = generate(model, [PROMPTS[0]], 130, temperature=0)[0]
        assert texts[-20:-10] == texts[-10:] or texts[-24:-12] == texts[-12:], (
            "the test's own text does not repeat"
        )
        without = len(calls)
        assert without == 130
        calls.clear()
        generate(model, [PROMPTS[0]], 130, temperature=0, speculate=8)
        assert len(calls) < without / 2
        calls.clear()


def test_no_more_is_read_than_asked_for(calls) -> None:
    model = new("gpt2")
    for most in (0, 1, 3, 8, 31, 1000):
        calls.clear()
        generate(model, [PROMPTS[0], [5]], 100, temperature=0, speculate=most)
        assert max(calls[2:]) <= min(2 * (1 + most), MAX_TOKENS)
        assert most == 0 or max(calls[2:]) > 2


def test_an_lstm_makes_no_drafts(calls) -> None:
    model = new("lstm")
    generate(model, [PROMPTS[0]], 30, temperature=0, speculate=8)
    assert calls == [len(PROMPTS[0])] + [1] * 29


@pytest.mark.parametrize("bad", [-1, 1.0, 2.5, "3", None])
def test_an_invalid_number_is_rejected_at_the_call(bad) -> None:
    model = new("gpt2")
    for call in (generate, stream):
        prompt = [[1]] if call is generate else [1]
        with pytest.raises(ValueError, match="speculate must be a whole number of 0"):
            call(model, prompt, 5, speculate=bad)


# --- the drafts ---


def expected_draft(text, length):
    """A simple implementation: the tokens after the latest occurrence of the last 3 tokens, else of
    the last 2.
    """
    for size in PromptLookup.SIZES:
        for end in range(len(text) - 1, size - 1, -1):
            if len(text) > size - 1 and text[end - size : end] == text[-size:]:
                longer = list(text)
                while len(longer) < len(text) + length:
                    longer.append(longer[end + len(longer) - len(text)])
                return longer[len(text) :]
    return []


def test_a_draft_is_what_came_after_the_last_ids_before() -> None:
    assert PromptLookup(4)([1, 2, 3, 9, 8, 1, 2, 3], 2) == [9, 8]
    draw = random.Random(0)
    for _ in range(300):
        lookup, text = PromptLookup(draw.choice([1, 2, 5, 20])), []
        for _ in range(12):
            text += [draw.randrange(3) for _ in range(draw.randrange(1, 8))]
            room, sequences = draw.randrange(-1, 12), draw.choice([1, 1, 4, 30])
            draft = lookup(text, room, sequences)
            assert draft == expected_draft(text, max(min(lookup.length(sequences), room), 0))
            assert len(draft) <= max(room, 0)
            assert len(draft) <= lookup.most


def test_the_latest_place_counts_and_three_ids_before_two() -> None:
    lookup = PromptLookup(1)
    assert lookup([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], 9) == [5]
    assert lookup([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3, 7, 9, 2, 3], 9) == [7]
    assert PromptLookup(1)([1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3], 9) == [7]
    assert PromptLookup(5)([1, 2, 3, 4, 5], 9) == []
    assert PromptLookup(5)([1], 9) == []
    assert PromptLookup(5)([1, 1], 9) == []


def test_a_short_period_goes_round() -> None:
    for period in ([4], [4, 5], [4, 5, 6, 7]):
        lookup = PromptLookup(10)
        lookup.right = lookup.total
        text = period * 5
        assert lookup(text, 99) == (period * 10)[:10]


def test_the_length_follows_the_accepted_drafts() -> None:
    lookup, text, lengths = PromptLookup(20), [1, 2] * 10, []
    for _ in range(4):
        draft = lookup(text, 99)
        lengths.append(len(draft))
        text = ([1, 2] * 99)[: len(text) + len(draft) + 1]
    assert lengths[0] in (2, 3, 4)
    assert lengths == sorted(lengths)
    assert lengths[-1] == 20
    for token in (7, 8, 9):  # the 7 follows a draft that was accepted
        text += [token, 1, 2]
        lengths.append(len(lookup(text, 99)))
    assert lengths[-1] < lengths[-2] < lengths[-3] == 20
    assert PromptLookup(1)([1, 2] * 10, 99) == [1]
    assert PromptLookup(0)([1, 2] * 10, 99) == []


def test_drafts_pause_where_they_are_wrong_and_resume_where_the_text_repeats() -> None:
    """While they pause, predictions are compared with the next tokens."""
    lookup, text = PromptLookup(8), [1, 2, 3, 1, 2]
    drafts = []
    for number in range(30):  # after 1, 2 comes another token each time
        drafts.append(len(lookup(text, 99)))
        text.append(10 + number)
        lookup(text, 99)
        text += [1, 2]
    assert drafts[0] > 0
    assert set(drafts[8:]) == {0}
    following = [3, 1, 2] * 40
    for _ in range(12):
        drafts.append(len(lookup(text, 99)))
        text += [following.pop(0) for _ in range(drafts[-1] + 1)]
    assert drafts[30:32] == [0, 0]
    assert drafts[-1] == 8


def test_a_draft_is_shorter_in_a_larger_batch() -> None:
    """A draft token that is accepted half of the time pays for itself alone, and not in a batch."""
    assert draft_price(1) == pytest.approx(TOKEN_TIME)
    prices = [draft_price(count) for count in (1, 2, 8, 64, 10**6)]
    assert prices == sorted(prices)
    assert prices[-1] == pytest.approx(1, rel=1e-4)
    for right, lengths in ((0.5, [2, 1, 0, 0]), (0.9, [18, 8, 5, 1]), (0.05, [0, 0, 0, 0])):
        lookup = PromptLookup(100)
        lookup.right, lookup.total = right * 10, 10
        assert [lookup.length(count) for count in (1, 4, 8, 30)] == lengths
    lookup.right = 0.0
    assert lookup.length(1) == 0
    lookup.right = lookup.total
    assert lookup.length(1000) == 100


def test_a_text_that_grows_is_looked_through_once() -> None:
    torch.manual_seed(0)
    text = some_ids(new("gpt2"), 2000)
    complete, grown = PromptLookup(3), PromptLookup(3)
    for end in range(1, 2000, 7):
        assert grown(text[:end], 3) == expected_draft(text[:end], grown.length(1))
    grown(text, 3)
    assert complete(text, 0) == []
    assert complete.after == grown.after
    assert len(grown.after) <= 2 * 2000


# --- several sequences ---


class Wrong(DraftSource):
    """Drafts of a given length that are rejected."""

    MOST = 100

    def sequence(self, most: int, max_length: int) -> Drafter:
        class Sequence(Drafter):
            def __call__(self, tokens, room, sequences=1):
                return [60 if tokens[-1] < 30 else 0] * min(most, room)

        return Sequence()


class Halves:
    """A grammar: tokens below 30, and after a multiple of 5 those from 30 on, or any token."""

    restricts = True

    def __init__(self) -> None:
        self.last = 1

    def allowed(self) -> torch.Tensor:
        ids = torch.arange(61)
        return ids >= 30 if self.last % 5 == 0 else ids < 30 if self.last < 30 else ids >= 0

    def accept(self, id: int) -> bool:
        self.last = id
        return False


def comparable(events) -> list[tuple]:
    return [(event.id, event.logprob, event.end, event.top) for event in events]


def alone(model, ids, settings, **more) -> list[tuple]:
    """The events of a sequence without drafts, in a separate batch."""
    batch = Batch(model, 1, 140)
    batch.admit(ids, **settings(), **more)
    return comparable(event for _ in range(200) if len(batch) for event in batch.step())


SEQUENCES = [  # prompt, sampling, new tokens, draft tokens
    (PROMPTS[0], {"temperature": 0}, 90, 16),
    (PROMPTS[2], {"temperature": 0.3}, 60, 5),
    (PROMPTS[1], {}, 50, 31),
    (PROMPTS[0], {"temperature": 0, "repetition_penalty": 1.01}, 70, 0),
    (PROMPTS[2], {"temperature": 0.5, "top_p": 0.7}, 40, 100),
    (PROMPTS[4], {"temperature": 0, "presence_penalty": 0.5}, 80, 8),
    (PROMPTS[3], {"temperature": 0}, 30, 8),
]


@needs("decoder")
@pytest.mark.parametrize("chunk", [None, 7])
@pytest.mark.parametrize(
    "name", ["gpt2", "gpt2-short-context", "gpt2-int8", "gptneo-window-2", "llama", "qwen3_5_text"]
)
def test_sequences_of_a_batch_have_drafts_of_their_own(name: str, chunk: int | None) -> None:
    """Tokens, log-probabilities and ends equal those without drafts, bitwise, for sequences that
    join at any time, copy prefixes, and have grammars, end tokens and stop strings.
    """
    if name in MODELS:
        case, changes = MODELS[name]
        model = new(case, **changes)
    else:
        model = random_model(name)
    tokenizer = characters([chr(40 + i) for i in range(61)])

    def settings(number: int) -> dict[str, Any]:
        _, sampling, count, _ = SEQUENCES[number]
        stops = [(frozenset(), ()), (frozenset({17, 40}), ()), (frozenset(), ("0", "CD"))]
        return {
            "max_new_tokens": count,
            "sampling": Sampling(**sampling),
            "generator": torch.Generator().manual_seed(number),
            "stop": StopCriteria(*stops[number % 3], tokenizer),
            "logprobs": number % 2 == 0,
            "top": number % 4,
            "matcher": Halves() if number in (1, 5) else None,
        }

    expected = [
        alone(model, SEQUENCES[number][0], partial(settings, number))
        for number in range(len(SEQUENCES))
    ]
    batch = Batch(model, 5, 140, prefix_bytes=10**7, chunk=chunk, drafts=100)
    waiting, events, keys, passes = list(range(len(SEQUENCES))), defaultdict(list), {}, []
    forward = batch.runner.forward

    def observed(texts, *others, **more):
        passes.append([len(ids) for ids in texts.values()])
        return forward(texts, *others, **more)

    batch.runner.forward = observed
    step = 0
    while len(batch) or waiting:
        if waiting and step % 3 == 0 and len(batch) < 5:
            number = waiting.pop(0)
            prompt, *_, most = SEQUENCES[number]
            keys[batch.admit(prompt, speculate=most, **settings(number))] = number
        for event in batch.step():
            events[keys[event.row]].append(event)
        step += 1
    for number in range(len(SEQUENCES)):
        assert comparable(events[number]) == expected[number], number
    if name.startswith("gpt2"):  # otherwise the text does not repeat
        assert any(len(set(counts)) > 2 for counts in passes)


@needs("decoder")
def test_drafts_know_the_number_of_sequences_of_the_pass() -> None:
    counts = []

    class Counting(Wrong):
        def sequence(self, most: int, max_length: int) -> Drafter:
            class Sequence(Drafter):
                def __call__(self, tokens, room, sequences=1):
                    counts.append(sequences)
                    return []

            return Sequence()

    batch = Batch(new("gpt2"), 3, 60)
    for count in (2, 3, 4):
        batch.admit([1, 2], count, draft=Counting())
    while len(batch):
        batch.step()
    assert counts == [3, 3, 3, 2, 2, 1]


@needs("decoder")
@pytest.mark.parametrize("drafted", [0, 3, 64])
def test_rejected_drafts_do_not_change_shared_prefixes_of_a_ring(drafted: int) -> None:
    """A rejected draft can overwrite the first positions of a full ring."""
    model = new("gptneo-window-2", max_position_embeddings=300)
    prefix, drafts = [5, 6, 7, 8, 9, 10], Wrong()
    settings = {"sampling": Sampling(temperature=0), "logprobs": True}
    batch = Batch(model, 1, 300)
    batch.admit([*prefix, 1], 10, **settings)
    expected = comparable(event for _ in range(10) for event in batch.step())
    for length in (60, 100, 120, 128, 129, 130, 131, 160):
        batch = Batch(model, 2, 300, prefix_bytes=10**7)
        long = [*prefix, *[length % 61] * (length - len(prefix))]
        more = {"speculate": drafted, "draft": drafts} if drafted else {}
        first = batch.admit(long, 130, **settings, **more)
        for _ in range(2):
            batch.step()
        for _ in range(2):  # of an active and of a finished sequence
            row, events = batch.admit([*prefix, 1], 10, **settings), []
            while len(events) < 10:
                events += [event for event in batch.step() if event.row == row]
            assert comparable(events) == expected, length
            batch.retire(first)


# --- a draft model ---


@needs("decoder")
@pytest.mark.parametrize("name", ["gpt2", "gpt2-short-context", "gpt2-int8", "gptneo-window-2"])
def test_a_draft_model_does_not_change_the_tokens(name: str) -> None:
    """The model itself as draft, and another one with another context."""
    case, changes = MODELS[name]
    model, other = (
        new(case, **changes),
        new(case.partition("-")[0], **{**changes, "vocab_size": 50}),
    )
    for settings in (SETTINGS[0], SETTINGS[5]):
        expected = generate(model, PROMPTS, 40, seed=7, **settings)
        for draft in (model, other):
            assert generate(model, PROMPTS, 40, seed=7, draft=draft, **settings) == expected
        assert (
            list(stream(model, PROMPTS[2], 40, seed=7, draft=other, speculate=3, **settings))
            == expected[2]
        )


def test_a_draft_model_counts_its_tokens(calls, monkeypatch) -> None:
    """Greedy drafts of the model itself are all accepted: fewer steps of the model."""
    model, messages = new("gpt2"), []
    draft = DraftModel(model)
    monkeypatch.setattr(
        logging.getLogger("minhub_py.inference.generate"),
        "info",
        lambda *args: messages.append(args),
    )
    [text] = generate(model, [[1, 2, 3]], 41, temperature=0, eos_id=None, draft=draft, speculate=4)
    assert len(text) == 41
    # 1 token after the prompt, 8 steps of 1 + 4 tokens
    assert draft.accepted == draft.proposed == 32
    assert calls.count(5) == 8
    assert messages == [("%d of %d draft tokens accepted", 32, 32)]
    poor = DraftModel(new("gpt2", n_layer=1))
    assert generate(model, [[1, 2, 3]], 41, temperature=0, eos_id=None, draft=poor) == [text]
    assert 0 <= poor.accepted < poor.proposed


def test_an_lstm_as_a_draft_model_is_rejected() -> None:
    with pytest.raises(
        ValueError, match="the draft model must be an unmodified decoder, except LSTM"
    ):
        generate(new("gpt2"), [[1]], 3, draft=new("lstm"))
