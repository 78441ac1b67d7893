"""Draft tokens of models with recurrent layers: rejected tokens leave no trace in the states."""

from threading import Event
from typing import Any

import pytest
import torch
from decoders import new
from needs import needs
from references import CASES, FEW, configured, random_model

from minhub_py import generate, stream
from minhub_py.inference.batch import Batch
from minhub_py.inference.beams import BeamSearch
from minhub_py.inference.native.library import MAX_TOKENS
from minhub_py.inference.native_runner import MAX_STATES, NativeRunner
from minhub_py.inference.sampling import Sampling
from minhub_py.inference.speculative import Drafter, DraftModel, DraftSource
from minhub_py.models.cache import State
from minhub_py.models.skeleton import skeleton

pytestmark = needs("decoder")  # without it, nothing is drafted


def recurrent(name: str) -> bool:
    """Whether a case has layers with states."""
    architecture, config = configured(name)
    layout = skeleton(architecture.Model, config).cache_layout()
    return any(isinstance(layer, State) for layer in layout)


NAMES = [name for name in (*FEW, "lfm2", "lfm2-convolves") if recurrent(name)]
PROMPTS = [[1, 2, 3, 4, 1, 2, 3, 4, 1, 2], [5], [7, 8, 9] * 8]


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {name: random_model(name) for name in NAMES} | {"lstm": new("lstm")}


def states_of(cache: Any, row: int) -> list[torch.Tensor]:
    """The current states of all recurrent layers of a row."""
    layers = [number for number, layer in enumerate(cache.layout) if isinstance(layer, State)]
    assert layers
    with cache.row(row) as one:
        return [tensor.clone() for layer in layers for tensor in one.state(layer)]


@torch.inference_mode()
@pytest.mark.parametrize("name", [*NAMES, "lstm"])
def test_states_after_a_rejection_equal_those_without_drafts(
    models: dict[str, Any], name: str
) -> None:
    """Bitwise, for each number of rejected tokens, in rows of different lengths and over several
    calls.
    """
    runner = NativeRunner(models[name])
    ids = torch.randint(61, (90,), generator=torch.Generator().manual_seed(3)).tolist()
    wrong = [(id + 1) % 61 for id in ids]
    plain, drafted = runner.new_cache(3, 90), models[name].new_cache(3, 90, runner.lookahead, 5)
    assert drafted.removable == 5
    ends = [40, 1, 13]
    for cache in (plain, drafted):
        runner.forward({row: ids[:end] for row, end in enumerate(ends)}, cache)
    for accepted in ((5, 0, 2), (0, 0, 0), (1, 3, 5), (4, 5, 0), (0, 1, 3)):
        texts = {
            row: [*ids[end : end + 1 + count], *wrong[end + 1 + count : end + 6]]
            for row, (end, count) in enumerate(zip(ends, accepted, strict=True))
        }
        runner.forward(texts, drafted, every=True)
        for row, count in enumerate(accepted):
            drafted.truncate(row, 5 - count)
            runner.forward({row: ids[ends[row] : ends[row] + 1 + count]}, plain)
            ends[row] += 1 + count
        assert drafted.lengths == plain.lengths == ends
        for row in range(3):
            for actual, expected in zip(
                states_of(drafted, row), states_of(plain, row), strict=True
            ):
                assert torch.equal(actual, expected)
    # One token per call, as a draft model adds them.
    for token in wrong[:4]:
        runner.forward({1: [token]}, drafted)
    drafted.truncate(1, 4)
    assert all(
        torch.equal(a, b) for a, b in zip(states_of(drafted, 1), states_of(plain, 1), strict=True)
    )
    following = [
        runner.forward({row: [7] for row in range(3)}, cache).clone() for cache in (plain, drafted)
    ]
    assert torch.equal(*following)


@torch.inference_mode()
@pytest.mark.parametrize("name", ["qwen3_5_text", "lfm2"])
def test_states_are_kept_across_calls_of_the_decoder(name: str, models: dict[str, Any]) -> None:
    """A text of more than MAX_TOKENS tokens is divided; the last states are those of its end."""
    runner = NativeRunner(models[name])
    length = min(MAX_TOKENS + 3, models[name].config.max_position_embeddings - 9)
    ids = torch.randint(61, (length,), generator=torch.Generator().manual_seed(3)).tolist()
    for removed in range(MAX_STATES + 1):
        cache, expected = runner.new_cache(1, length, MAX_STATES), runner.new_cache(1, length)
        runner.forward({0: ids}, cache)
        cache.truncate(0, removed)
        runner.forward({0: ids[: length - removed]}, expected)
        assert all(
            torch.equal(a, b)
            for a, b in zip(states_of(cache, 0), states_of(expected, 0), strict=True)
        )


@torch.inference_mode()
def test_rows_of_a_ring_of_states_are_copied_and_moved(models: dict[str, Any]) -> None:
    """`set_row`, `copy_of` and `leave` copy the current state, between caches with different
    numbers of slots.
    """
    runner = NativeRunner(models["qwen3_5_text"])
    cache, plain = runner.new_cache(3, 50, 4), runner.new_cache(3, 50)
    runner.forward({row: [row + 1] * (5 + row) for row in range(3)}, cache)
    expected = states_of(cache, 2)
    plain.set_row(1, cache, 2)
    for actual in (states_of(plain, 1), states_of(cache.copy_of(2), 0)):
        assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
    cache.set_row(0, plain, 1)
    assert cache.lengths == [7, 6, 7]
    assert all(torch.equal(a, b) for a, b in zip(states_of(cache, 0), expected, strict=True))
    cache.clear(0)
    cache.leave(0)
    assert cache.lengths == [7, 6]
    assert all(torch.equal(a, b) for a, b in zip(states_of(cache, 0), expected, strict=True))


@torch.inference_mode()
@pytest.mark.parametrize("name", ["qwen3_5_text", "lfm2_moe"])
def test_forward_uses_a_ring_of_states(name: str, models: dict[str, Any]) -> None:
    """PyTorch continues from the states of the native runner, and stores its own where the native
    runner expects it.
    """
    model = models[name]
    runner, ids = NativeRunner(model), [*range(1, 30)]
    expected = runner.forward({0: ids, 1: ids[3:]}, runner.new_cache(2, 60), every=True).clone()
    cache = runner.new_cache(2, 60, 3)
    runner.forward({0: ids[:11], 1: ids[3:9]}, cache)
    model(torch.tensor([ids[11:15], ids[9:13]]), cache)
    actual = runner.forward({0: ids[15:], 1: ids[13:]}, cache, every=True)
    places = [*range(15, 29), *range(29 + 10, 29 + 26)]
    torch.testing.assert_close(
        actual, expected[places], rtol=0, atol=5e-5 * expected.abs().max().item()
    )


@pytest.mark.parametrize("name", NAMES)
def test_drafts_do_not_change_the_tokens(models: dict[str, Any], name: str) -> None:
    """Prompt lookup, the model itself as draft model, and another recurrent draft model."""
    model, other = (
        models[name],
        random_model("lfm2-types" if name.startswith("qwen") else "qwen3_5_text-types"),
    )
    for settings in (
        {"temperature": 0},
        {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.1},
    ):
        expected = generate(model, PROMPTS, 40, seed=7, eos_id=None, **settings)
        for most in (1, 3, 100):
            assert (
                generate(model, PROMPTS, 40, seed=7, eos_id=None, speculate=most, **settings)
                == expected
            )
        for draft in (model, other):
            drafts = DraftModel(draft)
            assert (
                generate(model, PROMPTS, 40, seed=7, eos_id=None, draft=drafts, **settings)
                == expected
            )
            assert drafts.proposed > 0
        assert (
            list(
                stream(
                    model, PROMPTS[2], 40, seed=7, eos_id=None, draft=other, speculate=3, **settings
                )
            )
            == expected[2]
        )


class Mixed(DraftSource):
    """Drafts of maximum length: 0, 1, 2 … right tokens of a text, then wrong ones."""

    MOST = 100

    def __init__(self, text: list[int]) -> None:
        super().__init__()
        self.text, self.calls, self.lengths = text, 0, set[int]()

    def sequence(self, most: int, max_length: int) -> Drafter:
        source = self

        class Sequence(Drafter):
            def __call__(self, tokens: Any, room: int, sequences: int = 1) -> list[int]:
                following = source.text[len(tokens) : len(tokens) + room]
                right = source.calls % (len(following) + 1)
                source.calls += 1
                source.lengths.add(len(following))
                return following[:right] + [(token + 1) % 61 for token in following[right:]]

            def update(self, accepted: int, proposed: int) -> None:
                source.accepted += accepted
                source.proposed += proposed

        return Sequence()


@pytest.mark.parametrize("name", NAMES)
def test_drafts_of_maximum_length_are_rejected_at_any_position(
    models: dict[str, Any], name: str
) -> None:
    [expected] = generate(models[name], PROMPTS[:1], 70, seed=5, eos_id=None)
    drafts = Mixed(PROMPTS[0] + expected)
    assert generate(models[name], PROMPTS[:1], 70, seed=5, eos_id=None, draft=drafts) == [expected]
    assert max(drafts.lengths) == MAX_STATES
    assert 0 < drafts.accepted < drafts.proposed


@pytest.mark.parametrize("name", NAMES)
def test_greedy_drafts_of_the_model_itself_are_accepted(models: dict[str, Any], name: str) -> None:
    drafts = DraftModel(models[name])
    [text] = generate(
        models[name], [[1, 2, 3]], 41, temperature=0, eos_id=None, draft=drafts, speculate=4
    )
    assert len(text) == 41
    # 1 token after the prompt, 8 steps of 1 + 4 tokens
    assert drafts.accepted == drafts.proposed == 32


def test_states_use_memory_for_drafts_only(models: dict[str, Any]) -> None:
    """One state per row by default; one more for each draft token, at most MAX_STATES."""
    model = models["qwen3_5_text"]
    runner = NativeRunner(model)
    slots = [runner.new_cache(2, 50, drafts).slot_counts[0] for drafts in (0, 1, 3, 1000)]
    assert slots == [1, 2, 4, 1 + MAX_STATES]
    assert NativeRunner(models["lstm"]).new_cache(2, 50, 3).slot_counts == [1, 1]
    batch = Batch(model, rows=1, max_length=60)  # as in the server: without drafts
    batch.admit([1, 2, 1, 2, 1, 2], 20, sampling=Sampling(temperature=0), speculate=8)
    while len(batch):
        assert len(batch.step()) == 1


def test_cases_have_recurrent_layers() -> None:
    for name in NAMES:
        assert any(isinstance(layer, State) for layer in random_model(name).cache_layout()), CASES[
            name
        ]


class Waiting:
    """A grammar of all tokens. The mask after the first token waits for an event."""

    restricts = True

    def __init__(self) -> None:
        self.ready, self.accepted = Event(), 0
        self.ready.set()

    def allowed(self) -> torch.Tensor:
        assert self.ready.wait(60)
        return torch.ones(61, dtype=torch.bool)

    def accept(self, id: int) -> bool:
        self.accepted += 1
        if self.accepted == 1:
            self.ready.clear()
        return False


@pytest.mark.parametrize("name", NAMES)
def test_a_row_with_an_unchecked_draft_can_move(models: dict[str, Any], name: str) -> None:
    """The mask of its grammar is not ready when another sequence ends."""
    settings: dict[str, Any] = {"sampling": Sampling(temperature=0), "logprobs": True}

    def events(others: int, drafts: DraftSource | None) -> list[tuple[int, float | None]]:
        batch, grammar = Batch(models[name], 2, 60, drafts=5), Waiting()
        for _ in range(others):
            batch.admit([3, 4], 4, **settings)
        row = batch.admit(PROMPTS[0], 20, **settings, matcher=grammar, draft=drafts)
        result = []
        while len(batch):
            if len(batch) == 1 and grammar.accepted:
                grammar.ready.set()
            result += [(event.id, event.logprob) for event in batch.step() if event.row == row]
        return result

    expected = events(0, None)
    assert len(expected) == 20
    drafts = Mixed(PROMPTS[0] + [id for id, _ in expected])
    assert events(1, drafts) == expected
    assert 0 < drafts.accepted < drafts.proposed


@pytest.mark.parametrize("name", ["qwen3_5_text", "lfm2"])
def test_beams_beside_drafts_are_those_without(models: dict[str, Any], name: str) -> None:
    """As in a server: a batch whose cache has states for drafts."""

    def found(drafts: int) -> list[list[int]]:
        batch, result = Batch(models[name], 4, 60, drafts=drafts), list[list[int]]()
        batch.admit(PROMPTS[0], 20, sampling=Sampling(temperature=0), speculate=drafts)
        row = batch.admit(PROMPTS[2], 12, search=BeamSearch(3))
        while len(batch):
            for event in batch.step():
                if event.row == row:
                    result += [hypothesis.ids for hypothesis in event.hypotheses]
        return result

    assert found(5) == found(0)
    assert len(found(0)) == 3
