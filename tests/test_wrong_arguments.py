"""Public functions with None, a tokenizer or a model in place of another argument: the message
names the argument.
"""

from collections.abc import Callable
from typing import Any

import pytest

import minhub_py as m

GPT2 = "minhub/shakespeare-gpt2"
# Calls with a model and a tokenizer. Functions for encoders check the model with the same code.
WITH_MODEL: dict[str, Callable[[Any, Any], object]] = {
    "complete": lambda model, tokenizer: m.complete(model, tokenizer, "hi", 2),
    "embed": lambda model, tokenizer: m.embed(model, tokenizer, ["hi"]),
    "word_logprobs": lambda model, tokenizer: m.word_logprobs(model, tokenizer, ["a", "b"]),
    "target_logprobs": lambda model, tokenizer: m.target_logprobs(model, tokenizer, ["a"], ["b"]),
    "next_tokens": lambda model, tokenizer: m.next_tokens(model, tokenizer, "a"),
    "minimal_pairs": lambda model, tokenizer: m.minimal_pairs(model, tokenizer, [("a", "b")]),
    "logprob_matrix": lambda model, tokenizer: m.logprob_matrix(model, tokenizer, "abc"),
    "annotate": lambda model, tokenizer: m.annotate(model, tokenizer, ["a"], ["x", "y"]),
    "attention_weights": lambda model, tokenizer: m.attention_weights(model, tokenizer, "abc"),
    "logit_lens": lambda model, tokenizer: m.logit_lens(model, tokenizer, "abc"),
    "activations": lambda model, tokenizer: m.activations(model, tokenizer, ["abc"]),
    "patching": lambda model, tokenizer: m.patching(model, tokenizer, "ab", "ac", ("e", "o")),
    "attribution": lambda model, tokenizer: m.attribution(model, tokenizer, "ab", "e"),
    "Chat": m.Chat,
}
WITHOUT_TOKENIZER: dict[str, Callable[[Any], object]] = {
    "generate": lambda model: m.generate(model, [[1]], 2),
    "stream": lambda model: m.stream(model, [1], 2),
    "score": lambda model: m.score(model, [[1, 2]]),
    "head_scores": lambda model: m.head_scores(model, length=5, samples=1),
    "intervene": lambda model: m.intervene(model, "layers.1.resid", "zero"),
    "save_pretrained": lambda model: m.save_pretrained(model, "unused"),
}


@pytest.fixture(scope="module")
def model() -> Any:
    return m.from_pretrained(GPT2)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return m.tokenizer_from_pretrained(GPT2)


@pytest.mark.parametrize("name", WITH_MODEL)
def test_a_wrong_model_or_tokenizer_is_named(name: str, model: Any, tokenizer: Any) -> None:
    call = WITH_MODEL[name]
    with pytest.raises(
        ValueError, match="not a tokenizer: pass the model first, then the tokenizer"
    ):
        call(tokenizer, model)
    if name != "Chat":  # Chat(name)
        with pytest.raises(
            ValueError, match=r"takes a model, not its name: load it with from_pretrained\('gpt2'\)"
        ):
            call("gpt2", tokenizer)
    with pytest.raises(ValueError, match="takes models of this package, not None"):
        call(None, tokenizer)
    with pytest.raises(ValueError, match=r"tokenizer_from_pretrained\('gpt2'\)"):
        call(model, "gpt2")
    for wrong in (None, model):
        with pytest.raises(
            ValueError, match=r"tokenizer must be a tokenizers.Tokenizer|requires a tokenizer"
        ):
            call(model, wrong)


@pytest.mark.parametrize("name", WITHOUT_TOKENIZER)
def test_a_wrong_model_is_named(name: str, tokenizer: Any) -> None:
    with pytest.raises(ValueError, match="takes a model, not a tokenizer"):
        WITHOUT_TOKENIZER[name](tokenizer)
    with pytest.raises(ValueError, match="takes models of this package, not None"):
        WITHOUT_TOKENIZER[name](None)


def test_names_and_paths_are_checked(model: Any, tokenizer: Any) -> None:
    calls: list[Callable[[Any], object]] = [
        m.from_pretrained,
        m.gpt2_from_pretrained,
        m.gpt2_from_config,
        m.tokenizer_from_pretrained,
        m.resume,
        m.replay,
        lambda value: m.save_pretrained(model, value),
        lambda value: m.train(value, "unused"),
        lambda value: m.train("unused.txt", value),
    ]
    for call in calls:
        for wrong in (None, tokenizer, 3):
            with pytest.raises(
                ValueError, match="must be a name or a path, not (None|Tokenizer|int)"
            ):
                call(wrong)


def test_lists_are_checked(model: Any, tokenizer: Any) -> None:
    calls: list[Callable[[Any], object]] = [
        lambda value: m.next_tokens(model, tokenizer, value),
        lambda value: m.logprob_matrix(model, tokenizer, value),
        lambda value: m.embed(model, tokenizer, value),
        lambda value: m.word_logprobs(model, tokenizer, value),
        lambda value: m.direction(model, tokenizer, value, ["a"], "layers.1.resid"),
        lambda value: m.tuned_lens(model, tokenizer, value),
        lambda value: m.agreement(value, ["a"]),
        lambda value: m.choose_for_coding(value, 3),
        lambda value: m.probe(value, ["a"]),
        lambda value: m.probe([[1.0]], value),
        lambda value: list(m.decode_stream(tokenizer, value)),
    ]
    for call in calls:
        for wrong in (None, tokenizer):
            with pytest.raises(ValueError, match="must be a list of"):
                call(wrong)
    with pytest.raises(ValueError, match="tokenizer must be a tokenizers.Tokenizer, not None"):
        list(m.decode_stream(None, [1]))
