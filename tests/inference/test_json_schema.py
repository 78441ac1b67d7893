"""JSON texts that constrained decoding allows: escapes, bounds of numbers, closed objects and
formats.
"""

import itertools
import json
from decimal import Decimal
from typing import Any

import pytest
from tokenizers import Tokenizer

from minhub_py.checkpoints.tokenizers.tokenizer import train_byte_level_bpe
from minhub_py.inference.grammar import Grammar, GrammarError, Vocabulary
from minhub_py.inference.json_schema import closed

END = 0


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_byte_level_bpe(["The quick brown fox jumps over the lazy dog."], 280)


@pytest.fixture(scope="module")
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary(tokenizer, tokenizer.get_vocab_size(), [END])


def accepts(grammar: Grammar, tokenizer: Tokenizer, text: str) -> bool:
    """Whether a text can be written and can end."""
    matcher, complete = grammar.matcher(), False
    for id in tokenizer.encode(text).ids:
        if complete or not matcher.allowed()[id]:
            return False
        complete = matcher.accept(id)
    return complete or bool(matcher.allowed()[END])


TEXTS = ["é", "ÿ", "€", "日本", "😀", "a\tb\n", "\x01\x1f", 'quo"te\\', "A"]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {},
        {"type": "string", "minLength": 1, "maxLength": 8},
        {"anyOf": [{"type": "string"}]},
    ],
    ids=repr,
)
def test_strings_can_have_every_unicode_escape(
    vocabulary: Vocabulary, tokenizer: Tokenizer, schema: Any
) -> None:
    grammar = vocabulary.grammar(schema)
    for text in TEXTS:
        for written in (
            json.dumps(text),
            json.dumps(text).replace("\\u00e9", "\\u00E9"),
            json.dumps(text, ensure_ascii=False),
        ):
            assert accepts(grammar, tokenizer, written), written
    assert accepts(grammar, tokenizer, '"\\u0041\\u0022"')
    for invalid in (
        '"\\ud800"',
        '"\\ud83d\\u0041"',
        '"\\udc00"',
        '"\\x41"',
        '"\\u00g1"',
        '"\\u12"',
    ):
        assert not accepts(grammar, tokenizer, invalid), invalid


def test_keys_and_nested_values_can_have_unicode_escapes(
    vocabulary: Vocabulary, tokenizer: Tokenizer
) -> None:
    value = {"größe": ["é", {"日": "😀"}]}
    for schema in (None, {"type": "object"}, {"type": "object", "additionalProperties": {}}):
        assert accepts(vocabulary.grammar(schema), tokenizer, json.dumps(value))
    open_schema = {"type": "object", "properties": {"a": {}}, "additionalProperties": True}
    assert accepts(vocabulary.grammar(open_schema), tokenizer, json.dumps({"a": "é", **value}))


def test_a_string_with_a_pattern_is_not_forced_to_control_characters(
    vocabulary: Vocabulary, tokenizer: Tokenizer
) -> None:
    """The library has no escapes of printable characters for patterns, so that none can begin."""
    grammar = vocabulary.grammar({"type": "string", "pattern": "^.{1,5}$"})
    assert accepts(grammar, tokenizer, '"é€"')
    matcher = grammar.matcher(tokenizer.encode('"\\').ids)
    assert not matcher.allowed()[tokenizer.token_to_id("u")]
    lines = vocabulary.grammar({"type": "string", "pattern": r"^(.|\n)*$"})
    assert accepts(lines, tokenizer, '"a\\nb"')
    assert not accepts(lines, tokenizer, '"\\u0001"')


BOUNDS = (None, -10, -1.5, -1, -0.5, -0.25, 0, 0.25, 0.5, 1, 1.5, 2, 10, 99.5, 100)
NUMBERS = (
    "0",
    "-0",
    "0.0",
    "-0.0",
    "0.25",
    "0.5",
    "-0.5",
    "-0.25",
    "1",
    "-1",
    "1.0",
    "-1.0",
    "1.5",
    "-1.5",
    "2",
    "-2",
    "10",
    "10.0",
    "-10",
    "99.5",
    "100",
    "100.0",
    "0.1",
    "-0.1",
    "1.25",
    "-1.25",
    "0e0",
    "1e1",
    "0.000001",
    "0.24",
    "0.49",
    "-0.49",
    "99.49",
)


def is_valid(text: str, schema: dict[str, Any]) -> bool:
    value = Decimal(text)
    return (
        (schema["type"] == "number" or text.lstrip("-").isdecimal())
        and not ("minimum" in schema and value < Decimal(str(schema["minimum"])))
        and not ("maximum" in schema and value > Decimal(str(schema["maximum"])))
        and not ("exclusiveMinimum" in schema and value <= Decimal(str(schema["exclusiveMinimum"])))
        and not ("exclusiveMaximum" in schema and value >= Decimal(str(schema["exclusiveMaximum"])))
    )


def bounded(kind: str, low: tuple[str, Any], high: tuple[str, Any]) -> dict[str, Any]:
    return {"type": kind, **{key: bound for key, bound in (low, high) if bound is not None}}


@pytest.mark.parametrize("kind", ["number", "integer"])
@pytest.mark.parametrize(
    "keys", itertools.product(("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
)
def test_numbers_are_within_all_combinations_of_bounds(
    vocabulary: Vocabulary, tokenizer: Tokenizer, kind: str, keys: tuple[str, str]
) -> None:
    for low, high in itertools.product(BOUNDS, BOUNDS):
        schema = bounded(kind, (keys[0], low), (keys[1], high))
        try:
            grammar = vocabulary.grammar(schema)
        # no number is within the bounds, or the library cannot show that one is
        except GrammarError:
            continue
        invalid = [
            text
            for text in NUMBERS
            if accepts(grammar, tokenizer, text) and not is_valid(text, schema)
        ]
        assert not invalid, schema
    for text in ("-1.25", "0.1", "1.25", "99.5"):
        wide = bounded("number", (keys[0], -10), (keys[1], 100))
        assert accepts(vocabulary.grammar(wide), tokenizer, text)


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"type": "number", "exclusiveMinimum": 0}, ["0.5", "7"], ["0", "0.0", "-1"]),
        (
            {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5},
            ["0.25", "0.5", "0.001"],
            ["0", "0.0", "0.51"],
        ),
        ({"type": "number", "exclusiveMinimum": 3, "minimum": 5}, ["5", "5.5"], ["4", "3"]),
        ({"type": "number", "exclusiveMinimum": 5, "minimum": 3}, ["5.5"], ["5", "4"]),
        (
            {"type": "number", "exclusiveMaximum": 123456.75, "minimum": 123456},
            ["123456.6"],
            ["123456.75", "123457"],
        ),
        (
            {"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.5, "maximum": 1},
            ["0.5", "1"],
            ["0", "0.25"],
        ),
        ({"allOf": [{"type": "number", "exclusiveMinimum": 0}, {"maximum": 0.5}]}, ["0.5"], ["0"]),
        (
            {"type": "number", "exclusiveMinimum": 7, "exclusiveMaximum": 7.5},
            ["7.2", "7.4"],
            ["7", "7.0", "7.5"],
        ),
        (
            {"type": "number", "exclusiveMinimum": -0.5, "exclusiveMaximum": 0},
            ["-0.4", "-0.1"],
            ["0", "-0", "-0.5"],
        ),
    ],
    ids=repr,
)
def test_exclusive_bounds(
    vocabulary: Vocabulary, tokenizer: Tokenizer, schema: Any, valid: list[str], invalid: list[str]
) -> None:
    grammar = vocabulary.grammar(schema)
    assert [text for text in valid if not accepts(grammar, tokenizer, text)] == []
    assert [text for text in invalid if accepts(grammar, tokenizer, text)] == []


A, B = (
    {"properties": {"a": {"type": "integer"}}},
    {"properties": {"b": {"type": "integer"}}, "required": ["b"]},
)
DEFS = {"$defs": {"A": {"type": "object", **A}, "B": {"type": "object", **B}}}
REF_A, REF_B = {"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}
TREE = {
    "$defs": {
        "T": {
            "type": "object",
            "properties": {
                "v": {"type": "integer"},
                "next": {"anyOf": [{"$ref": "#/$defs/T"}, {"type": "null"}]},
            },
            "required": ["v"],
        }
    },
    "$ref": "#/$defs/T",
}
OBJECTS: list[tuple[Any, list[Any], list[Any]]] = [
    (A, [{"a": 1}, {}], [{"a": 1, "x": 2}, {"x": 2}]),
    ({**A, "type": "object", "additionalProperties": True}, [{"a": 1, "x": 2}], [{"a": "1"}]),
    ({**A, "type": "object", "additionalProperties": {"type": "integer"}}, [{"a": 1, "x": 2}], [{"x": "2"}]),
    ({"type": "object"}, [{"x": 2}, {}], []),
    ({"type": "object", "properties": {}}, [{}], [{"x": 2}]),
    ({**A, "type": "object", "patternProperties": {"^x": {}}}, [{"a": 1, "x1": 2}], [{"y": 2}]),
    ({**A, "type": "object", "required": ["a", "z"]}, [{"a": 1, "z": 2}], [{"a": 1}, {"a": 1, "z": 2, "x": 3}]),
    ({"type": "object", "properties": {"o": {"type": "object", **A}}}, [{"o": {"a": 1}}], [{"o": {"x": 1}}]),
    ({"type": "object", **A, "required": ["a"], "minProperties": 2}, [{"a": 1, "x": 2}], [{"a": 1}]),
    ({"type": "object", **A, "minProperties": 1}, [{"a": 1}], [{}, {"x": 1}]),
    ({"type": "array", "items": {"type": "object", **A}}, [[{"a": 1}, {}]], [[{"x": 1}]]),
    ({"type": "object", "properties": {"o": REF_A}, **DEFS}, [{"o": {"a": 1}}], [{"o": {"x": 1}}]),
    ({"allOf": [{"type": "object", **A}, B]}, [{"a": 1, "b": 2}, {"b": 2}], [{"b": 2, "x": 3}, {"a": 1}]),
    ({"allOf": [REF_A, REF_B], **DEFS}, [{"a": 1, "b": 2}], [{"a": 1, "b": 2, "x": 3}]),
    ({"allOf": [REF_A], "description": "one", **DEFS}, [{"a": 1}], [{"x": 3}]),
    ({"anyOf": [REF_A, REF_B], **DEFS}, [{"a": 1}, {"b": 2}], [{"a": 1, "b": 2}, {"x": 1}]),
    ({"anyOf": [REF_A, {"type": "null"}], **DEFS}, [{"a": 1}, None], [{"x": 1}]),
    ({"type": "object", **A, "anyOf": [B, {"properties": {"c": {}}, "required": ["c"]}]},
     [{"a": 1, "b": 2}, {"a": 1, "c": 3}], [{"a": 1, "b": 2, "x": 3}, {"a": 1}]),
    ({"type": "object", **A, "anyOf": [REF_B], **DEFS}, [{"a": 1, "b": 2}], [{"a": 1, "b": 2, "x": 3}]),
    ({"$ref": "#/$defs/A", **B, **DEFS}, [{"a": 1, "b": 2}], [{"a": 1, "b": 2, "x": 3}]),
    ({"type": "object", "properties": {"one": REF_A, "both": {"allOf": [REF_A, B]}}, **DEFS},
     [{"one": {"a": 1}, "both": {"a": 1, "b": 2}}], [{"one": {"b": 2}}]),
    ({"allOf": [REF_A, B], "additionalProperties": True, **DEFS}, [{"a": 1, "b": 2, "x": 3}], [{"a": 1}]),
    ({"allOf": [{"type": "object", **A}, {"type": "object", "properties": {"n": {"type": "object", **A}}}]},
     [{"a": 1, "n": {"a": 1}}], [{"n": {"x": 1}}]),
    ({"type": "object", "properties": {"properties": A}}, [{"properties": {"a": 1}}], [{"properties": {"x": 1}}]),
    ({"type": "object", **A, "examples": [{"properties": {}}], "default": {"properties": {"q": 1}}}, [{"a": 1}],
     [{"q": 1}]),
    (TREE, [{"v": 1, "next": {"v": 2, "next": None}}], [{"v": 1, "next": {"v": 2, "x": 1}}, {"v": 1, "x": 1}]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "valid", "invalid"), OBJECTS, ids=repr)
def test_objects_that_list_properties_are_closed(
    vocabulary: Vocabulary, tokenizer: Tokenizer, schema: Any, valid: list[Any], invalid: list[Any]
) -> None:
    before = json.dumps(schema)
    grammar = vocabulary.grammar(schema)
    assert json.dumps(schema) == before
    assert [value for value in valid if not accepts(grammar, tokenizer, json.dumps(value))] == []
    assert [value for value in invalid if accepts(grammar, tokenizer, json.dumps(value))] == []


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"T": {"allOf": [{"$ref": "#/$defs/T"}, A]}}, "$ref": "#/$defs/T"},
        {
            "$defs": {
                "T": {"type": "object", "properties": {"n": {"allOf": [{"$ref": "#/$defs/T"}, A]}}}
            },
            "$ref": "#/$defs/T",
        },
        {"allOf": [{"$ref": "#/missing"}, A]},
        {
            "$defs": {
                f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2, **A} for n in range(60)
            },
            "$ref": "#/$defs/d0",
        },
    ],
    ids=["a cycle", "recursion", "a missing definition", "many copies"],
)
def test_a_combination_that_cannot_be_closed_remains_open(schema: dict[str, Any]) -> None:
    assert closed(schema) == schema


def test_an_unknown_format_is_an_annotation(vocabulary: Vocabulary, tokenizer: Tokenizer) -> None:
    for name in ("int32", "password", "color", "regex"):
        assert accepts(vocabulary.grammar({"type": "string", "format": name}), tokenizer, '"x"')
    properties = {"format": {"type": "string", "format": "date"}}
    dated = vocabulary.grammar({"type": "object", "properties": properties, "required": ["format"]})
    assert accepts(dated, tokenizer, '{"format": "2026-01-31"}')
    assert not accepts(dated, tokenizer, '{"format": "x"}')


@pytest.mark.parametrize(
    "schema", [{"type": "string", "pattern": "^(?!a)b"}, {"type": "string", "pattern": "(?<=a)b"}]
)
def test_the_message_for_look_ahead_has_the_reason(
    vocabulary: Vocabulary, schema: dict[str, Any]
) -> None:
    reason = "look-around, including look-ahead and look-behind, is not supported"
    message = f"^unsupported JSON schema: regex parse error: {reason}$"
    with pytest.raises(GrammarError, match=message):
        vocabulary.grammar(schema)
    with pytest.raises(GrammarError, match=message):
        vocabulary.lark(f"start: %json {json.dumps(schema)}")
