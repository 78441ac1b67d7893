"""Unsupported JSON schemas: each is rejected with a short message, before or during its reply."""

from reprlib import repr
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from minhub_py import Chat, gpt2
from minhub_py.checkpoints.tokenizers.tokenizer import characters, train_byte_level_bpe
from minhub_py.inference.grammar import GrammarError, Vocabulary

LOOP = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_byte_level_bpe(["The quick brown fox jumps over the lazy dog."], 280)


@pytest.fixture(scope="module")
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary(tokenizer, tokenizer.get_vocab_size(), [0])


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def wide(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(count)}}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"$ref": "#"}, "unsupported JSON schema: no JSON text satisfies it"),
        ({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, "no JSON text satisfies it"),
        ({"enum": []}, "Unsatisfiable schema"),
        ({"type": "string", "pattern": "("}, "regex parse error: unclosed group"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "Unsatisfiable schema"),
        (
            {"$ref": "#/a", "a": {"$ref": "#/b"}, "b": {"$ref": "#/a"}},
            "unsupported JSON schema: Schema intersection",
        ),
        ({"type": "string", "minLength": 5, "maxLength": 2}, "minLength"),
        (
            {"const": "x" * 100_000},
            "invalid JSON schema: it has 100,0.. characters; at most 100,000 are supported",
        ),
        ({"enum": ["y", "x" * 10_001]}, "a string of 10,001 characters"),
        ({"properties": {"x" * 10_001: {}}}, "a string of 10,001 characters"),
        ({"enum": [f"value {n}" for n in range(20_000)]}, "at most 100,000 are supported"),
        (nested(90_000 // 30), "recursion limit exceeded|nested too deeply|recursion depth"),
        ({"type": "integer", "multipleOf": 10**15 + 1}, "multipleOf can be at most 10,000"),
        ({"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}, "multipleOf can be at most 10,000"),
        ({"type": "integer", "multipleOf": float("nan")}, "invalid JSON schema"),
        (False, "invalid JSON schema"),
        ({"const": {1, 2}}, "invalid JSON schema"),
    ],
    ids=repr,
)
def test_schemas_that_are_refused(vocabulary: Vocabulary, schema: Any, message: str) -> None:
    with pytest.raises(GrammarError, match=message) as caught:
        vocabulary.grammar(schema)
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


def test_the_message_for_an_unsupported_tokenizer_names_supported_ones() -> None:
    tokenizer = characters(["a", "b"])
    with pytest.raises(
        ValueError, match=r"^replies in JSON require a byte-level tokenizer \(.*use another model$"
    ):
        Vocabulary(tokenizer, tokenizer.get_vocab_size(), [0])


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "multipleOf": 10_000},
        {"type": "number", "multipleOf": 0.01},
        {"properties": {"a": {"multipleOf": 7919}, "b": {"multipleOf": 7907}}},
        {"anyOf": [{"multipleOf": 0.5}, {"multipleOf": 1000}]},
        {"enum": ["x" * 10_000]},
        wide(300),
        LOOP,
    ],
    ids=repr,
)
def test_schemas_that_are_followed(vocabulary: Vocabulary, schema: Any) -> None:
    matcher = vocabulary.grammar(schema).matcher()
    for _ in range(30):
        if matcher.accept(int(matcher.allowed().nonzero()[0])):
            break


def test_a_client_cannot_change_the_white_space(vocabulary: Vocabulary) -> None:
    schema = {"type": "object", "x-guidance": {"whitespace_pattern": "[ ]{0,1000}"}}
    matcher = vocabulary.grammar(schema).matcher(vocabulary._tokens.tokenize_str("{ "))
    assert not matcher.allowed()[vocabulary._tokens.tokenize_str(" ")[0]]


def test_a_text_that_cannot_continue_ends_with_a_short_message(
    tokenizer: Tokenizer, vocabulary: Vocabulary
) -> None:
    matcher = vocabulary.grammar(wide(700)).matcher()
    with pytest.raises(
        GrammarError, match="cannot continue by its JSON schema or grammar: Parser Error"
    ) as caught:
        matcher.accept(vocabulary._tokens.tokenize_str("{")[0])
    assert len(str(caught.value)) < 400
    torch.manual_seed(0)
    vocab_size = tokenizer.get_vocab_size()
    model = gpt2(
        vocab_size=vocab_size, n_embd=16, n_layer=1, n_head=2, n_positions=64, eos_token_id=0
    ).eval()
    chat = Chat(model, tokenizer, max_new_tokens=20)
    with pytest.raises(ValueError, match="the reply cannot continue by its JSON schema"):
        chat.say("Hi", schema=wide(700))
    assert chat.say("Hi", schema={"enum": ["yes"]}).text == '"yes"'
