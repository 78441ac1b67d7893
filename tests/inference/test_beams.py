"""Beam search: the sequences and scores of transformers, for each kind of cache, in any batch."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from bart_models import CASES as CASES_OF_BART
from bart_models import saved
from decoders import in_dtype
from guarantees import EXACT, assert_same, tolerance
from references import CASES, FIRST, save_reference
from small_models import T5, tokenizer

from minhub_py import beam_search, from_config, from_pretrained, generate, score, stream
from minhub_py.inference.batch import Batch
from minhub_py.inference.beams import BeamSearch, largest, repeating
from minhub_py.inference.sampling import Sampling, StopCriteria
from minhub_py.models.base import LanguageModel

V = 61
NEW = 24
SEARCHES = {
    "plain": {"beams": 4},
    "early": {"beams": 3, "length_penalty": 2.0, "early_stopping": True},
    "never": {"beams": 5, "length_penalty": 0.6, "early_stopping": "never"},
    "short": {"beams": 4, "length_penalty": -0.5, "no_repeat_ngram_size": 2},
    "penalty": {"beams": 2, "repetition_penalty": 1.3, "no_repeat_ngram_size": 3},
}
# Caches: keys and values, grouped heads, a window, a bias of positions, states, an encoder
MODELS = ["gpt2", "llama", "mistral", "t5", "lfm2"]


def text(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(3, V), k=length)


def settings_of(name: str) -> dict[str, Any]:
    if name == "t5":
        return {"model_type": "t5", **T5, "decoder_start_token_id": 0}
    return CASES[FIRST[name]].settings(FIRST[name])


def new(name: str) -> LanguageModel:
    """A model with large random weights."""
    torch.manual_seed(0)
    settings = {**settings_of(name), "eos_token_id": 1}
    model = from_config(settings.pop("model_type"), **settings).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(
                torch.randn(parameter.shape)
                * (0.3 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5)
            )
    return model


def expected(reference: Any, ids: list[int], ends: list[int], settings: dict) -> list:
    """The new tokens and scores of transformers."""
    names = {**settings, "num_beams": settings["beams"]}
    names.pop("beams")
    output = reference.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        max_new_tokens=NEW,
        do_sample=False,
        num_return_sequences=settings["beams"],
        output_scores=True,
        return_dict_in_generate=True,
        eos_token_id=ends,
        pad_token_id=0,
        **names,
    )
    start = 1 if reference.config.is_encoder_decoder else len(ids)
    results = []
    for sequence, value in zip(output.sequences, output.sequences_scores, strict=True):
        new = sequence.tolist()[start:]
        count = next((i + 1 for i, id in enumerate(new) if id in ends), len(new))
        results.append((new[:count], value.item()))
    return results


@pytest.mark.parametrize("name", MODELS)
def test_sequences_and_scores_equal_transformers(name: str, tmp_path: Path) -> None:
    auto_class = "ForSeq2SeqLM" if name == "t5" else "ForCausalLM"
    reference = save_reference(settings_of(name), tmp_path, auto_class)
    model = from_pretrained(tmp_path)
    for number, search in enumerate(SEARCHES.values()):
        ids, ends = text(number, 3 * number + 1), [1, 2, 7][: 1 + number % 3]
        # equal for another prompt in the batch
        found = beam_search(model, [ids, text(9, 5)], NEW, eos_id=ends, **search)[0]
        for hypothesis, (tokens, value) in zip(
            found, expected(reference, ids, ends, search), strict=True
        ):
            assert hypothesis.ids == tokens
            assert hypothesis.score == pytest.approx(value, rel=1e-5, abs=1e-4)
            assert hypothesis.end == ("stop" if tokens[-1] in ends else "length")


FORCED = {"forced_bos_token_id": 7, "forced_eos_token_id": 2, "bad_words_ids": [[3], [4, 5]]}
LIMITED = {"bad_words_ids": [[3], [9], [8, 4]], "renormalize_logits": True,
           "encoder_no_repeat_ngram_size": 1}  # fmt: skip


@pytest.mark.parametrize("name", ["bart", "marian-ids", "marian-two-sizes", "m2m100", "pegasus"])
@pytest.mark.parametrize("forced", [{}, FORCED, LIMITED], ids=["free", "forced", "limited"])
def test_forced_and_banned_tokens_of_encoder_decoders(
    name: str, forced: dict[str, Any], tmp_path: Path
) -> None:
    reference = saved(name, tmp_path)
    own = {key: value for key, value in CASES_OF_BART[name].items() if key in FORCED}
    forced = {**dict.fromkeys({**FORCED, **LIMITED}), **own, **forced}
    end = reference.config.eos_token_id
    if forced["forced_eos_token_id"] is not None:
        forced["forced_eos_token_id"] = end
    model = from_pretrained(tmp_path)
    model.generation_config = forced
    for key, value in forced.items():
        setattr(reference.generation_config, key, value)
    start = {"decoder_start_token_id": reference.config.decoder_start_token_id}
    searches = [
        {"beams": 4},
        {"beams": 3, "no_repeat_ngram_size": 2},
        {"beams": 2, "repetition_penalty": 1.3},
    ]
    for number, search in enumerate(searches):
        ids = [token for token in text(number, 12) if token < 40]
        found = beam_search(model, [ids], NEW, **search)[0]
        for hypothesis, (tokens, value) in zip(
            found, expected(reference, ids, [end], {**search, **start}), strict=True
        ):
            assert hypothesis.ids == tokens
            assert hypothesis.score == pytest.approx(value, rel=1e-5, abs=1e-4)


@pytest.mark.parametrize("name", ["forced_bos_token_id", "forced_eos_token_id", "bad_words_ids"])
def test_limits_of_wrong_types_are_rejected_by_name(name: str) -> None:
    model = new("t5")
    wrong: list[object] = [True, "x", 1.5, -1, [None], [[None]], [[]], [["a"]], [-1], [[-1]], {}]
    wrong += [[V], [[V]], [[3, V]]] if name == "bad_words_ids" else [V, [V], [[1]]]
    for value in wrong:
        model.generation_config = {name: value}
        with pytest.raises(ValueError, match=name):
            beam_search(model, [[1]], 2, beams=2)


def test_candidates_that_cannot_occur_are_no_results() -> None:
    """transformers returns sequences with a score of minus infinity, and copies of a beam."""
    model, ids = new("t5"), text(1, 9)
    model.generation_config = {"forced_bos_token_id": 7}
    [found] = beam_search(model, [ids], 1, beams=4)
    assert [hypothesis.ids for hypothesis in found] == [[7]]
    # two tokens: one ends the reply, the other cannot follow itself
    banned = [[id] for id in range(V) if id not in (1, 7)]
    for renormalize in (False, True):
        model.generation_config = {"bad_words_ids": banned, "renormalize_logits": renormalize}
        [found] = beam_search(model, [ids], 4, beams=4, no_repeat_ngram_size=1, length_penalty=0.0)
        assert sorted(hypothesis.ids for hypothesis in found) == [[1], [7, 1]]
        assert all(hypothesis.score > -100 for hypothesis in found)
        with pytest.raises(ValueError, match="no possible sequence: allow more tokens, or reduce"):
            beam_search(model, [ids], 4, beams=4, no_repeat_ngram_size=1, eos_id=None)
    # no token can follow one of the beams
    banned = [[id] for id in range(V) if id not in (7, 8)] + [[7, 7], [7, 8]]
    for renormalize in (False, True):
        model.generation_config = {"bad_words_ids": banned, "renormalize_logits": renormalize}
        [found] = beam_search(model, [ids], 2, beams=2)
        assert sorted(hypothesis.ids for hypothesis in found) == [[8, 7], [8, 8]]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8", "nf4"])
@pytest.mark.parametrize("name", MODELS)
def test_scores_are_the_log_probabilities_of_the_sequences(name: str, dtype: str) -> None:
    """A cache's shared positions have the keys, values and states of the sequence's tokens."""
    model = in_dtype(new(name), dtype)
    ids = text(1, 9)
    found = beam_search(model, [ids], 40, beams=4, length_penalty=0.0)[0]
    targets = [hypothesis.ids for hypothesis in found]
    logprobs = score(model, [ids] * len(targets), targets=targets)
    for hypothesis, values in zip(found, logprobs, strict=True):
        limit = 1e-3 + len(values) * tolerance(dtype)
        assert hypothesis.score == pytest.approx(values.sum().item(), abs=limit)


@pytest.mark.parametrize("name", MODELS)
def test_a_search_does_not_depend_on_the_batch(name: str) -> None:
    model = new(name)
    prompts = [text(1, 12), text(2, 3), text(3, 20)]
    searches = [BeamSearch(3), BeamSearch(4, 0.5, "never"), BeamSearch(2, no_repeat_ngram_size=2)]
    stop = StopCriteria(frozenset([1, 2]), (), None)
    alone = []
    for ids, search in zip(prompts, searches, strict=True):
        batch = Batch(model, search.beams, 64)
        batch.admit(ids, NEW, search=search, stop=stop)
        [event] = run(batch)
        alone.append(event.hypotheses)
    batch = Batch(model, 13, 64, chunk=5, prefix_bytes=2**20)
    results = {}
    keys = [batch.admit(text(5, 7), 30, sampling=Sampling(temperature=0))]
    for ids, search in zip(prompts, searches, strict=True):
        keys.append(batch.admit(ids, NEW, search=search, stop=stop))
        keys.append(batch.admit(ids, 5, sampling=Sampling(temperature=0)))
        for event in batch.step():
            results[event.row] = event.hypotheses
    results |= {event.row: event.hypotheses for event in run(batch)}
    for key, hypotheses in zip(keys[1::2], alone, strict=True):
        assert [found.ids for found in results[key]] == [found.ids for found in hypotheses]
        assert_same([found.score for found in results[key]], [found.score for found in hypotheses])
    assert batch.cache.sources is None


def run(batch: Batch) -> list:
    events = []
    while len(batch):
        events += batch.step()
    return events


def test_a_step_copies_no_keys_and_values() -> None:
    model = new("llama")
    batch = Batch(model, 4, 64)
    ids = text(1, 6)
    batch.admit(ids, NEW, search=BeamSearch(4), stop=StopCriteria(frozenset(), (), None))
    reordered = False
    batch.step()
    while len(batch):
        before = [tensor.clone() for tensors in batch.cache.layers for tensor in tensors]
        length = batch.cache.lengths[0]
        batch.step()
        if not batch.rows:
            break
        for old, tensor in zip(
            before, (tensor for tensors in batch.cache.layers for tensor in tensors), strict=True
        ):
            assert torch.equal(old[:, :, :length], tensor[:, :, :length])
        sources = batch.cache.sources
        reordered |= sources is not None and len(sources[:, length].unique()) < 4
    assert reordered


def test_a_context_that_is_full_continues_with_its_second_half() -> None:
    model = new("gpt2")
    context = model.config.context_length
    ids = text(1, context - 4)
    found = beam_search(model, [ids], 12, beams=3, length_penalty=0.0, eos_id=None)[0]
    logprobs = score(model, [ids] * 3, targets=[hypothesis.ids for hypothesis in found])
    for hypothesis, values in zip(found, logprobs, strict=True):
        assert hypothesis.score == pytest.approx(values.sum().item(), abs=1e-3)


def test_one_beam_is_greedy_decoding() -> None:
    model = new("llama")
    prompts = [text(number, 5) for number in range(4)]
    greedy = generate(model, prompts, NEW, temperature=0)
    assert generate(model, prompts, NEW, beams=1) == greedy
    assert [found.ids for [found] in beam_search(model, prompts, NEW, beams=1)] == greedy


def test_limits_and_stop_strings_apply_to_each_beam() -> None:
    model, tok = new("llama"), tokenizer()
    ids = text(2, 5)
    for found in beam_search(model, [ids], NEW, beams=4, min_new_tokens=9)[0]:
        assert 1 not in found.ids[:9]
    for found in beam_search(model, [ids], NEW, beams=4, no_repeat_ngram_size=1)[0]:
        assert len({*ids, *found.ids}) == len(set(ids)) + len(found.ids)
    for found in beam_search(model, [ids], NEW, beams=4, stop=["a", "e"], tokenizer=tok)[0]:
        assert (found.end == "stop") == any(
            letter in tok.decode(found.ids[-1:]) for letter in "ae"
        ) or found.ids[-1] == 1
    assert beam_search(model, [ids], 0) == [[]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beams": 0}, "beams must be a whole number from 1"),
        ({"beams": 65}, "to 64"),
        ({"beams": 2, "length_penalty": "1"}, "length_penalty must be a number"),
        ({"beams": 2, "early_stopping": "always"}, 'must be True, False or "never"'),
        ({"beams": 2, "early_stopping": 1}, 'must be True, False or "never"'),
        ({"beams": 2, "no_repeat_ngram_size": -1}, "no_repeat_ngram_size must be"),
        ({"length_penalty": 2.0}, "length_penalty is a setting of beam search: set beams too"),
        ({"beams": 2, "top_k": 5}, "top_k has no effect on beam search"),
        ({"beams": 2, "temperature": 0.7}, "temperature has no effect on beam search"),
        ({"beams": 2, "speculate": 3}, "speculate has no effect on beam search"),
    ],
)
def test_settings_that_are_wrong_or_without_effect_are_rejected(settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        generate(new("llama"), [[1, 2]], 3, **settings)


def test_streams_reject_beams_with_the_reason() -> None:
    with pytest.raises(TypeError, match="a beam search has no tokens before its end"):
        stream(new("llama"), [1, 2], beams=4)


def test_a_batch_rejects_a_search_with_draft_tokens() -> None:
    with pytest.raises(ValueError, match="draft tokens cannot be combined with a beam search"):
        Batch(new("llama"), 2, 64).admit(text(1, 4), 5, search=BeamSearch(2), speculate=2)


def test_an_error_ends_its_search_only() -> None:
    model = new("llama")
    batch = Batch(model, 6, 64)
    good = batch.admit(text(1, 4), 5, search=BeamSearch(2))
    bad = batch.admit(text(1, 4), 5, search=BeamSearch(2), sampling=Sampling(logit_bias={3: 1.0}))
    with torch.no_grad():
        batch.runner.forward, forward = (
            lambda texts, *rest: broken(forward(texts, *rest), list(texts)),
            batch.runner.forward,
        )

    def broken(logits, slots):
        logits = logits.clone()
        for row in batch.rows:
            if row.key == bad:
                logits[slots.index(row.slot)] = torch.nan
        return logits

    events = []
    while len(batch):
        events += batch.advance()
    assert {event.row: event.error is None for event in events} == {good: True, bad: False}


def test_largest_numbers_of_a_vocabulary() -> None:
    values = torch.randn(4, 30011, generator=torch.Generator().manual_seed(0))
    scores = [0.0, 0.5, -1e9, 0.25]
    for few in (values, values[:, :100]):
        sums = few + torch.tensor(scores).unsqueeze(1)
        best, indices = sums.flatten().topk(8)
        places = [divmod(index, few.size(1)) for index in indices.tolist()]
        found = largest(few, scores, 8)
        assert found == [(score, *at) for score, at in zip(best.tolist(), places, strict=True)]
    assert repeating([1, 2, 3, 1, 2], 3) == [3]
    assert repeating([1, 2], 3) == []
    assert EXACT in (True, False)
