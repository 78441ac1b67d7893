"""Generation and scores, compared with a simple implementation that runs the complete text for
every token.
"""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from minhub_py import (
    complete,
    from_pretrained,
    generate,
    gpt2,
    gptneo,
    lstm,
    save_pretrained,
    score,
    stream,
    tokenizer_from_pretrained,
)
from minhub_py.checkpoints.tokenizers.tokenizer import characters
from minhub_py.inference.native_runner import NativeRunner, runner_of
from minhub_py.inference.rows import context_start
from minhub_py.inference.sampling import Sampling, most_likely

V, CONTEXT = 61, 16


def models() -> dict:
    torch.manual_seed(0)
    ends = {"bos_token_id": None, "eos_token_id": None}
    models = {
        "gpt2": gpt2(vocab_size=V, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=4, **ends),
        "gptneo": gptneo(
            vocab_size=V,
            max_position_embeddings=CONTEXT,
            hidden_size=32,
            num_layers=2,
            num_heads=4,
            window_size=5,
            **ends,
        ),
        "lstm": lstm(vocab_size=V, embedding_size=16, hidden_size=24, num_layers=2),
    }
    for model in models.values():
        model.eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.4)
    return models


MODELS = models()
PROMPTS = [
    [1, 2, 3],
    [5] * 40,
    [7],
    list(range(CONTEXT)),
    list(range(CONTEXT + 1)),
    [9] * (CONTEXT - 1),
]
SETTINGS = [
    {"temperature": 0},
    {},
    {"temperature": 0.7, "top_k": 5},
    {"top_p": 0.8},
    {"top_k": 20, "top_p": 0.9, "repetition_penalty": 1.5},
]


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest):
    return MODELS[request.param]


@torch.no_grad()
def logits_after(model, text: list[int]) -> torch.Tensor:
    """The logits by the rule for long texts, without a cache."""
    start = context_start(len(text), model.config.context_length)
    return model(torch.tensor([text[start:]]))[0, -1]


def test_the_rule_for_long_texts() -> None:
    assert [context_start(n, 8) for n in range(1, 18)] == [0] * 8 + [4] * 4 + [8] * 4 + [12]
    assert context_start(10**6, None) == 0
    for n, context in itertools.product(range(1, 200), (1, 2, 3, 7, 8)):
        assert 1 <= n - context_start(n, context) <= context


def test_greedy_decoding_takes_the_most_likely_token(model) -> None:
    for prompt in PROMPTS:
        text = list(prompt)
        for _ in range(40):  # far beyond the context
            text.append(int(logits_after(model, text).argmax()))
        assert generate(model, [prompt], 40, temperature=0) == [text[len(prompt) :]]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_batched_rows_match_single_runs(model, settings) -> None:
    together = generate(model, PROMPTS, 40, seed=3, **settings)
    assert together == [generate(model, [prompt], 40, seed=3, **settings)[0] for prompt in PROMPTS]
    assert together == [list(stream(model, prompt, 40, seed=3, **settings)) for prompt in PROMPTS]


def test_the_end_of_the_prompt_does_not_change_the_text(model) -> None:
    [new] = generate(model, [[1, 2, 3]], 40, temperature=0)
    for cut in (1, 12, 13, 14, 25, 39):
        assert generate(model, [[1, 2, 3, *new[:cut]]], 40 - cut, temperature=0) == [new[cut:]]


def test_rows_that_end_early_do_not_change_other_rows(model) -> None:
    plain = generate(model, PROMPTS, 30, seed=11)
    end = plain[0][4]
    ended = generate(model, PROMPTS, 30, seed=11, eos_id=end)
    for full, short in zip(plain, ended, strict=True):
        length = full.index(end) + 1 if end in full else len(full)
        assert short == full[:length]  # the end token is the last one
    assert len(ended[0]) <= 5


def test_eos_comes_from_the_config_unless_given() -> None:
    ends = list(range(10, 20))
    model = gpt2(
        vocab_size=V,
        n_positions=64,
        n_embd=32,
        n_layer=1,
        n_head=2,
        eos_token_id=ends,
        bos_token_id=None,
    )
    model.eval()
    plain = generate(model, [[1]], 60, seed=0, eos_id=None)[0]
    auto = generate(model, [[1]], 60, seed=0)[0]
    first = next(i for i, id in enumerate(plain) if id in ends)
    assert auto == plain[: first + 1]
    assert generate(model, [[1]], 60, seed=0, eos_id=tuple(reversed(ends)))[0] == auto


def test_seeds_determine_texts(model) -> None:
    prompt = [1, 2, 3]
    assert generate(model, [prompt], 20, seed=5) == generate(model, [prompt], 20, seed=5)
    assert generate(model, [prompt], 20, seed=5) != generate(model, [prompt], 20, seed=6)
    both = generate(model, [prompt, prompt], 20, seed=[5, 6])
    assert both == [generate(model, [prompt], 20, seed=seed)[0] for seed in (5, 6)]
    free = generate(model, [prompt] * 4, 20)
    assert len({tuple(row) for row in free}) == 4
    torch.manual_seed(0)
    one = generate(model, [prompt] * 2, 5)
    torch.manual_seed(0)
    assert generate(model, [prompt] * 2, 5) == one
    before = torch.get_rng_state()
    generate(model, [prompt], 5, seed=1)
    # the state of the caller's generator does not change
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({}, [0.4, 0.3, 0.2, 0.1]),
        ({"temperature": 0.5}, [16 / 30, 9 / 30, 4 / 30, 1 / 30]),
        ({"top_k": 2}, [4 / 7, 3 / 7, 0, 0]),
        ({"top_k": 9}, [0.4, 0.3, 0.2, 0.1]),
        ({"top_p": 0.69}, [4 / 7, 3 / 7, 0, 0]),
        ({"top_p": 0.71}, [4 / 9, 3 / 9, 2 / 9, 0]),
        ({"top_p": 1e-9}, [1, 0, 0, 0]),
        ({"top_k": 3, "top_p": 0.7}, [4 / 7, 3 / 7, 0, 0]),
        ({"temperature": 0}, [1, 0, 0, 0]),
        ({"min_p": 0.7}, [4 / 7, 3 / 7, 0, 0]),
        (
            {"min_p": 0.6, "temperature": 2},
            np.array([2, 3**0.5, 2**0.5, 0]) / (2 + 3**0.5 + 2**0.5),
        ),
        ({"min_p": 0.4, "top_p": 0.69}, [4 / 7, 3 / 7, 0, 0]),
        ({"logit_bias": {2: -100, 1: math.log(2)}}, [8 / 13, 3 / 13, 2 / 13, 0]),
        ({"logit_bias": {2: 100}, "temperature": 0}, [0, 0, 0, 1]),
    ],
    ids=str,
)
def test_ids_are_drawn_with_the_probabilities_that_the_settings_mean(sampling, expected) -> None:
    shuffle = [2, 0, 3, 1]  # token IDs and probabilities have different orders
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()[shuffle].expand(1000, 4)
    # evenly, so that the frequencies are exact
    draws = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    ids = Sampling(**sampling).choose(logits, [[]] * 1000, draws)
    shares = torch.bincount(torch.tensor(ids), minlength=4) / 1000
    assert torch.allclose(shares, torch.tensor(expected, dtype=torch.float)[shuffle], atol=2e-3)


def test_the_most_likely_id_equals_torch() -> None:
    nan, inf = float("nan"), float("inf")
    rows = [
        [1, 3, 3, 2],
        [nan, 3, inf, 0],
        [1, nan, inf, nan],
        [-inf] * 4,
        [-inf, 0, -0.0, -1],
        [inf] * 4,
    ]
    logits = torch.tensor(rows)
    for values in (logits, logits.T.contiguous().T, logits.repeat(1, 100)[:, 7:]):
        largest, ids = most_likely(values)
        expected = values.max(dim=-1)
        assert ids.tolist() == expected.indices.tolist()
        torch.testing.assert_close(largest, expected.values, rtol=0, atol=0, equal_nan=True)


def test_the_repetition_penalty_matches_transformers() -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    logits = torch.randn(2, V) * 3
    texts = [[1, 5, 5, 9], [0, 60, 3, 3]]
    expected = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor(texts), logits.clone())
    assert torch.equal(Sampling(repetition_penalty=1.7)._penalize(logits, texts), expected)


def test_presence_and_frequency_penalties_count_the_output_only() -> None:
    """OpenAI's formula; the prompt, the first two tokens of each text, has no penalty."""
    logits = torch.randn(2, V) * 3
    expected = logits.clone()
    expected[0, 5] -= 0.5 + 2 * 0.25
    expected[0, 9] -= 0.5 + 0.25
    sampling = Sampling(presence_penalty=0.5, frequency_penalty=0.25)
    assert torch.equal(
        sampling._penalize_output(logits, [[1, 2, 5, 9, 5], [3, 4]], [2, 2]), expected
    )


def test_penalties_and_biases_change_generated_text_alone(model) -> None:
    [plain] = generate(model, [[1, 2]], 12, temperature=0)
    [neutral] = generate(
        model, [[1, 2]], 12, temperature=0, min_p=0, presence_penalty=0, logit_bias={}
    )
    assert plain == neutral
    [biased] = generate(
        model, [[1, 2]], 12, temperature=0, logit_bias={plain[0]: -100}, eos_id=None
    )
    assert plain[0] not in biased
    [varied] = generate(
        model,
        [[1, 2]],
        12,
        temperature=0,
        logit_bias={5: 50, 6: 50},
        frequency_penalty=2,
        eos_id=None,
    )
    assert set(varied) == {5, 6}
    drafts = generate(
        model, [[1, 2, 1, 2], [3]], 12, temperature=0, frequency_penalty=2, speculate=4
    )
    assert drafts == [
        *generate(model, [[1, 2, 1, 2]], 12, temperature=0, frequency_penalty=2),
        *generate(model, [[3]], 12, temperature=0, frequency_penalty=2),
    ]
    with pytest.raises(
        ValueError, match=f"logit_bias has token {V}, but the model's token IDs are 0 to {V - 1}"
    ):
        generate(model, [[1, 2]], 1, logit_bias={V: 1})
    with pytest.raises(ValueError, match="logit_bias must map token IDs to numbers"):
        generate(model, [[1, 2]], 1, logit_bias=[5])


def test_complete_returns_text(tmp_path: Path) -> None:
    """With the settings of the model's generation_config.json, as in a chat, or else the model's
    distribution.
    """
    model, tokenizer = (
        load("minhub/shakespeare-gpt2") for load in (from_pretrained, tokenizer_from_pretrained)
    )
    ids = tokenizer.encode("ROMEO:").ids
    [expected] = generate(model, [ids], 30, seed=1)
    assert complete(model, tokenizer, "ROMEO:", 30, seed=1) == tokenizer.decode(expected)
    text = complete(model, tokenizer, "ROMEO:", 30, temperature=0)
    assert (
        complete(model, tokenizer, "ROMEO:", 30, temperature=0, stop=text[4:6])
        == text[: text.index(text[4:6])]
    )
    model.generation_config = {"do_sample": False}
    assert complete(model, tokenizer, "ROMEO:", 30) == text
    for wrong, message in (({"temprature": 0}, "temprature"), ({"top_k": 0}, "top_k must be")):
        with pytest.raises(ValueError, match=message):
            complete(model, tokenizer, "ROMEO:", **wrong)


def test_texts_end_before_a_stop_string(model) -> None:
    tokenizer = TOKENIZER
    [plain] = generate(model, [[1, 2]], 40, seed=2)
    text = tokenizer.decode(plain)
    stop = text[10:12]
    end = text.index(stop) + 2
    assert generate(model, [[1, 2]], 40, seed=2, stop=stop, tokenizer=tokenizer) == [plain[:end]]
    assert generate(model, [[1, 2]], 40, seed=2, stop=["nowhere", stop], tokenizer=tokenizer) == [
        plain[:end]
    ]
    # A stop string that begins in the prompt and ends in the new text does not count.
    seam = tokenizer.decode([2, plain[0]])
    if seam not in text:
        assert generate(model, [[1, 2]], 40, seed=2, stop=seam, tokenizer=tokenizer) == [plain]


def test_scores_are_log_probabilities(model) -> None:
    prompts = [[3], [1, 2], list(range(V)), [4, 9] * 30]
    for prompt, scores in zip(prompts, score(model, prompts), strict=True):
        assert scores.dtype == torch.float32
        assert scores.shape == (len(prompt) - 1,)
        expected = [
            logits_after(model, prompt[:n]).log_softmax(-1)[prompt[n]]
            for n in range(1, len(prompt))
        ]
        assert torch.allclose(scores, torch.tensor(expected), atol=2e-5)


def test_batched_scores_match_single_scores(model) -> None:
    """In any order, with several short ones per call; `progress` counts every token once."""
    prompts = [
        [(7 * row + position) % V for position in range(length)]
        for row, length in enumerate([9, 1, 70, 33, 2] * 9)
    ]
    recorded = []
    together = score(model, prompts, progress=lambda *counts: recorded.append(counts))
    total = sum(len(prompt) - 1 for prompt in prompts)
    assert [done for done, _ in recorded] == sorted({done for done, _ in recorded})
    assert recorded[-1] == (total, total)
    assert {of for _, of in recorded} == {total}
    for prompt, scores in zip(prompts, together, strict=True):
        alone = score(model, [prompt])[0]
        if isinstance(runner_of(model), NativeRunner):
            assert torch.equal(scores, alone)
        else:  # PyTorch's sums depend on a call's other tokens
            torch.testing.assert_close(scores, alone, rtol=0, atol=2e-5)


def test_a_stream_gives_each_id_as_soon_as_it_is_known(model) -> None:
    calls = []
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    ids = stream(model, [1, 2], 10, seed=0)
    assert calls == []
    next(ids)
    after_first = len(calls)
    next(ids)
    assert len(calls) == after_first + 1
    handle.remove()


def test_empty_inputs_give_empty_outputs(model) -> None:
    assert generate(model, [], 5) == []
    assert generate(model, [[1], [2]], 0) == [[], []]
    assert score(model, []) == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: generate(m, [[]], 5), "prompt 0 is empty"),
        (
            lambda m: generate(m, [[1], [V]], 5),
            f"token IDs must be whole numbers between 0 and {V - 1}, but prompt 1 has {V}",
        ),
        (lambda m: generate(m, [[-1]], 5), "but prompt 0 has -1"),
        (lambda m: generate(m, [[1.5]], 5), "but prompt 0 has 1.5"),
        (
            lambda m: generate(m, ["text"], 5),
            r"a prompt is a list of token IDs, not text.*tokenizer.encode\('text'\).ids\]\)",
        ),
        (lambda m: generate(m, [3], 5), "a list of lists of token IDs"),
        (lambda m: generate(m, [[1]], -1), "max_new_tokens must be a whole number of 0 or more"),
        (lambda m: generate(m, [[1]], 2.5), "max_new_tokens must be a whole number of 0 or more"),
        (lambda m: generate(m, [["a"]], 5), "a list of lists of token IDs"),
        (lambda m: generate(m, [[1]], 5, temperature=-0.1), "temperature must be 0"),
        (lambda m: generate(m, [[1]], 5, temperature=float("nan")), "temperature must be 0"),
        (lambda m: generate(m, [[1]], 5, top_k=0), "top_k must be a whole number of at least 1"),
        (lambda m: generate(m, [[1]], 5, top_p=0), "top_p must be above 0"),
        (lambda m: generate(m, [[1]], 5, top_p=1.1), "top_p must be above 0"),
        (
            lambda m: generate(m, [[1]], 5, repetition_penalty=0),
            "repetition_penalty must be between 0.01 and 100",
        ),
        (
            lambda m: generate(m, [[1]], 5, repetition_penalty=1e-300),
            "repetition_penalty must be between 0.01",
        ),
        (
            lambda m: generate(m, [[1]], 5, repetition_penalty=math.nan),
            "repetition_penalty must be between 0.01",
        ),
        (lambda m: generate(m, [[1]], 5, stop="x" * 1001), "at most 1,000 characters, not 1,001"),
        (lambda m: generate(m, [[1]], 5, stop=["x"] * 65), "at most 64 strings, not 65"),
        (lambda m: generate(m, [[1]], 5, seed=[1, 2]), "2 seeds for 1 prompts"),
        (lambda m: generate(m, [[1]], 5, seed=2**70), "a seed must be a 64-bit integer, not"),
        (lambda m: generate(m, [[1]], 5, eos_id="end"), 'eos_id must be "auto"'),
        (
            lambda m: generate(m, [[1]], 5, stop="x"),
            "stop strings require a tokenizer: pass tokenizer=",
        ),
        (
            lambda m: generate(m, [[1]], 5, stop="", tokenizer=object()),
            "a stop string cannot be empty",
        ),
        (lambda m: stream(m, [], 5), "the prompt is empty"),  # at the call, not at the first token
        (lambda m: score(m, [[V]]), f"but prompt 0 has {V}"),
        (lambda m: m(torch.tensor([[0, V]])), f"token IDs must be 0 to {V - 1}, not 0 to {V}"),
        (lambda m: m(torch.tensor([0, 1])), r"idx must be \(B, T\)"),
        (lambda m: m(torch.zeros(1, 0, dtype=torch.long)), r"idx must be \(B, T\)"),
        (lambda m: m(torch.tensor([[1], [2]]), m.new_cache(1, 4)), "do not fit a cache"),
    ],
)
def test_invalid_arguments_are_rejected(model, call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(model)


class OfTransformers:
    backend_tokenizer = None

    def encode(self, text):
        return [1]

    decode = to_str = encode


class Around(torch.nn.Module):
    def __init__(self, module) -> None:
        super().__init__()
        self.module = module


TOKENIZER = characters([chr(40 + i) for i in range(V)])
NAMES_THE_BACKEND = (
    r"tokenizers\.Tokenizer, not the OfTransformers of transformers: pass"
    r" tokenizer\.backend_tokenizer"
)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda m: stream(m, [[1, 2]]),
            r"stream\(\) takes one prompt, a list of token IDs, not \[\[1, 2\]\]",
        ),
        (lambda m: stream(m, 3), r"stream\(\) takes one prompt, a list of token IDs, not 3"),
        (
            lambda m: stream(m, [V]),
            f"token IDs must be whole numbers between 0 and {V - 1}, but the prompt has {V}",
        ),
        (lambda m: generate(m, None), "prompts must be a list of lists of token IDs, not None"),
        (lambda m: generate(m, TOKENIZER), "not a tokenizer"),
        (lambda m: generate(m, [TOKENIZER.encode("1")]), "not an encoding: pass its ids"),
        (lambda m: generate(m, {"input_ids": [[1]]}), "not a mapping"),
        (lambda m: generate(m, [b"1"]), "not text"),
        (lambda m: generate(m, [[math.inf]]), "a list of lists of token IDs"),
        (lambda m: generate(m, [[math.nan]]), "a list of lists of token IDs"),
        (
            lambda m: score(m, [1, 2]),
            "prompts must be a list of lists of token IDs, but prompt 0 is 1: put a single",
        ),
        (lambda m: score(m, 5), "prompts must be a list of lists of token IDs, not 5"),
        (
            lambda m: generate(m, [[1]], temperature="0.8"),
            "temperature must be a number, not '0.8'",
        ),
        (lambda m: generate(m, [[1]], temperature=True), "temperature must be a number, not True"),
        (lambda m: generate(m, [[1]], temperature=None), "temperature must be a number, not None"),
        (lambda m: generate(m, [[1]], top_p="1"), "top_p must be a number"),
        (lambda m: generate(m, [[1]], top_p=True), "top_p must be a number"),
        (
            lambda m: generate(m, [[1]], repetition_penalty="1"),
            "repetition_penalty must be a number",
        ),
        (lambda m: generate(m, [[1]], top_k="5"), "top_k must be a whole number"),
        (lambda m: generate(m, [[1]], top_k=True), "top_k must be a whole number"),
        (lambda m: generate(m, [[1]], "5"), "max_new_tokens must be a whole number"),
        (lambda m: generate(m, [[1]], True), "max_new_tokens must be a whole number"),
        (lambda m: generate(m, [[1]], speculate="5"), "speculate must be a whole number"),
        (lambda m: generate(m, [[1]], seed="1"), "a seed must be a 64-bit integer"),
        (lambda m: generate(m, [[1]], seed=1.5), "a seed must be a 64-bit integer"),
        (lambda m: generate(m, [[1]], seed=True), "a seed must be a 64-bit integer"),
        (
            lambda m: generate(m, [[1]], eos_id=1.5),
            'eos_id must be "auto", None, a token ID or a list of token IDs',
        ),
        (
            lambda m: generate(m, [[1]], eos_id=["a"]),
            'eos_id must be "auto", None, a token ID or a list of token IDs',
        ),
        (lambda m: generate(m, [[1]], stop=5), "stop must be a string or a list of strings, not 5"),
        (lambda m: generate(m, [[1]], stop=["a", 5]), "stop must be a string or a list of strings"),
        (lambda m: generate(m, [[1]], stop="a", tokenizer=OfTransformers()), NAMES_THE_BACKEND),
        (lambda m: generate(m, [[1]], stop="a", tokenizer=5), r"tokenizers\.Tokenizer, not int"),
        (lambda m: save_pretrained(m, "never", OfTransformers()), NAMES_THE_BACKEND),
        (lambda m: generate(None, [[1]]), r"generate\(\) takes models of this package, not None"),
        (
            lambda m: stream("gpt2", [1]),
            r"takes a model, not its name: load it with from_pretrained\('gpt2'\)",
        ),
        (lambda m: score(TOKENIZER, [[1]]), r"score\(\) takes a model, not a tokenizer"),
        (
            lambda m: save_pretrained(None, "never"),
            r"save_pretrained\(\) takes models of this package, not None",
        ),
        (lambda m: generate(Around(m), [[1]]), r"not a Around around one: pass model\.module"),
    ],
)
def test_wrong_types_are_rejected(model, call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(model)


@pytest.mark.parametrize(
    "idx", [[[1]], np.array([[1]]), "text", None, torch.ones(1, 1), torch.ones(1, 1) > 0], ids=str
)
def test_a_model_takes_a_tensor_of_whole_numbers(model, idx) -> None:
    with pytest.raises(
        TypeError,
        match=r"idx must be a LongTensor \(B, T\), such as torch\.tensor\(\[token_ids\]\), not",
    ):
        model(idx)
    assert torch.equal(
        model(torch.ones(1, 2, dtype=torch.int32)), model(torch.ones(1, 2, dtype=torch.int64))
    )


def test_numpy_numbers_are_accepted(model) -> None:
    settings = {
        "temperature": 0.5,
        "top_k": 9,
        "top_p": 0.75,
        "repetition_penalty": 1.5,
        "seed": 3,
        "eos_id": 7,
    }
    expected = generate(model, [[1, 2]], 9, **settings)
    numpy_settings = {
        name: (np.float32 if type(value) is float else np.int64)(value)
        for name, value in settings.items()
    }
    for prompts in (np.array([[1, 2]]), np.array([[1.0, 2.0]]), [torch.tensor([1, 2])]):
        assert generate(model, prompts, np.int64(9), **numpy_settings) == expected
    assert (
        generate(model, [[1, 2]], 9, **{**settings, "seed": np.array([3]), "eos_id": np.array([7])})
        == expected
    )


def test_what_data_parallelism_and_compiling_wrap_around(model, tmp_path) -> None:
    wrapped = torch.nn.DataParallel(model)
    expected = generate(model, [[1, 2]], 9, seed=1)
    assert generate(wrapped, [[1, 2]], 9, seed=1) == expected
    assert list(stream(wrapped, [1, 2], 9, seed=1)) == expected[0]
    assert torch.equal(score(wrapped, [[1, 2]])[0], score(model, [[1, 2]])[0])
    for name, variant in (
        ("plain", model),
        ("wrapped", wrapped),
        ("compiled", torch.compile(model)),
    ):
        save_pretrained(variant, tmp_path / name)
    saved = [
        (tmp_path / name / "model.safetensors").read_bytes()
        for name in ("plain", "wrapped", "compiled")
    ]
    assert saved[0] == saved[1] == saved[2]


def test_a_model_of_transformers_is_named() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    reference_model = GPT2LMHeadModel(
        GPT2Config(vocab_size=9, n_positions=8, n_embd=4, n_layer=1, n_head=1)
    )
    with pytest.raises(
        ValueError,
        match=r"not GPT2LMHeadModel of transformers: .* load it with from_pretrained\(folder\)",
    ):
        generate(reference_model, [[1]])
    with pytest.raises(ValueError, match="GPT2LMHeadModel of transformers"):
        save_pretrained(reference_model, "never")


@pytest.mark.parametrize("family", ["gpt2", "gptneo"])
def test_too_many_positions_are_rejected(family: str) -> None:
    model = MODELS[family]
    with pytest.raises(ValueError, match=f"{CONTEXT + 1} positions, but this model has {CONTEXT}"):
        model(torch.zeros(1, CONTEXT + 1, dtype=torch.long))
    cache = model.new_cache(1, 4)
    model(torch.zeros(1, 3, dtype=torch.long), cache)
    with pytest.raises(ValueError, match="1 rows of 5 positions do not fit a cache of 1 rows of 4"):
        model(torch.zeros(1, 2, dtype=torch.long), cache)


def test_weights_that_are_nan_are_named() -> None:
    model = gpt2(vocab_size=V, n_positions=8, n_embd=8, n_layer=1, n_head=1).eval()
    torch.nn.init.constant_(model.ln_f.bias, torch.nan)
    for call in (lambda: generate(model, [[1]], 3), lambda: score(model, [[1, 2]])):
        with pytest.raises(ValueError, match="logits are NaN or infinite"):
            call()
    for bad in (torch.inf, torch.nan):
        logits = torch.zeros(1, V)
        logits[0, 7] = bad
        with pytest.raises(ValueError, match="logits are NaN or infinite"):
            Sampling().choose(logits, [[]], torch.zeros(1))


def test_a_tiny_temperature_is_almost_greedy() -> None:
    logits = torch.randn(3, V) * 10
    ids = Sampling(temperature=1e-39).choose(logits, [[]] * 3, torch.rand(3))
    assert ids == logits.argmax(-1).tolist()


def test_a_model_in_training_mode_generates_without_dropout() -> None:
    model = gpt2(vocab_size=V, n_positions=32, n_embd=16, n_layer=1, n_head=2, embd_pdrop=0.5)
    assert model.training
    once = generate(model, [[1, 2]], 20, temperature=0)
    assert model.training
    assert once == generate(model.eval(), [[1, 2]], 20, temperature=0)
    assert torch.equal(score(model.train(), [[1, 2, 3]])[0], score(model.eval(), [[1, 2, 3]])[0])
