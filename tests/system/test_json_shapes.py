"""JSON values with declared shapes, and JSON texts whose values can be written and converted."""

import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import pytest
from commands import failed

from minhub_py.system.json_text import encodable, object_in, parse
from minhub_py.system.shapes import ShapeError, Within, convert, fits, read_json


class Entry(TypedDict):
    name: str


class Settings(Entry, total=False):
    layers: list[int]
    mode: str | list[str]
    kind: Literal["a", 1]
    scale: float
    on: bool
    ids: Annotated[list[Annotated[int, Within(0, 9)]], Within(1)]
    nested: dict[str, Entry]


@dataclass(frozen=True)
class Record:
    pair: tuple[int, str]
    others: tuple[float, ...] = ()
    more: Mapping[str, Sequence[int]] | None = None


VALID = {
    "name": "x",
    "layers": [1],
    "mode": ["a"],
    "kind": 1,
    "scale": 2,
    "on": False,
    "ids": [0, 9],
    "nested": {"a": {"name": "y", "unknown": 5}},
    "unknown": float("inf"),
}


def test_a_value_with_the_declared_shape_is_returned() -> None:
    assert convert(VALID, Settings) == VALID
    assert convert({"name": "x", "layers": None}, Settings) == {"name": "x", "layers": None}
    record = convert({"pair": [1, "a"], "others": [1, 2.5], "more": {"a": [1]}}, Record)
    assert record == Record((1, "a"), (1, 2.5), {"a": (1,)})
    assert convert(2**64, float) == float(2**64)
    assert isinstance(convert(2**64, float), float)  # PyTorch's integers have 64 bits


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": None}, "name must be a string, not None"),
        ({"name": "\ud800"}, "name contains a lone surrogate, which is not valid Unicode"),
        ({"layers": [1, True]}, "layers[1] must be an integer, not True"),
        ({"layers": [2**63]}, "layers[0] must be an integer of 64 bits, not 9223372036854775808"),
        ({"layers": {}}, "layers must be a list of integers, not {}"),
        ({"mode": 5}, "mode must be a string or a list of strings, not 5"),
        ({"mode": ["a", 5]}, "mode[1] must be a string, not 5"),
        ({"kind": True}, "kind must be a or 1, not True"),
        ({"scale": float("inf")}, "scale must be a number, not inf"),
        ({"scale": 10**400}, "scale must be a number, not 1" + "0" * 17 + "..." + "0" * 19),
        ({"on": 1}, "on must be true or false, not 1"),
        ({"ids": [1, 10]}, "ids[1] must be an integer from 0 to 9, not 10"),
        ({"ids": []}, "ids must be a non-empty list of integers, not []"),
        ({"nested": {"a b": {"name": 1}}}, "nested.a b.name must be a string, not 1"),
        ({"nested": {"a": {}}}, "nested.a must have name"),
        (
            {"nested": {"\ud800": {"name": "x"}}},
            "nested has a name with a lone surrogate, which is not valid Unicode",
        ),
        ({"nested": {"\x1b[2J": 1}}, r"nested.\x1b[2J must be an object, not 1"),
    ],
)
def test_an_error_names_the_file_the_value_and_the_next_step(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ShapeError) as raised:
        convert(VALID | changes, Settings, "a.json", "correct it")
    assert str(raised.value) == f"a.json: {message}: correct it"
    # from a worker process
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    assert not fits(VALID | changes, Settings)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"pair": [1]}, "pair must be a list of 2 elements, not [1]"),
        ({"pair": [1, "a"], "x": 1}, "x is unknown: remove it"),
        ({}, "the value must have pair"),
        ({"pair": [1, "a"], "others": None}, "others must be a list of numbers, not None"),
        ([], "the value must be an object, not []"),
    ],
)
def test_a_record_has_no_other_members(value: Any, message: str) -> None:
    with pytest.raises(ShapeError) as raised:
        convert(value, Record)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not valid JSON (Expecting property name"),
        (b"\xff", "is not valid JSON ('utf-8' codec"),
        (b"[" * 100_000, "is not valid JSON (nested too deeply: at most 128"),
        (b"1" * 5000, "is not valid JSON (Exceeds"),
        (b"[1]", "must be an object, not [1]"),
        (b"{}", "must have name"),
    ],
)
def test_a_file_with_another_content_is_an_error(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="correct the file, or download it again$") as raised:
        read_json(path, Settings)
    assert str(raised.value).startswith(f"{path} {message}")
    with pytest.raises(ValueError, match="the maximum is 0"):
        read_json(path, Settings, limit=0)


@pytest.mark.parametrize(
    "text",
    [
        "1e999",
        "-1e999",
        "[1E+0400]",
        "1" * 400,
        "-" + "9" * 309,
        "1" * 299 + "e99",
        "NaN",
        "Infinity",
        '{"a": 2e308}',
        "[" * 129 + "]" * 129,
        '{"a":' * 129 + "1" + "}" * 129,
        "{",
        "",
    ],
)
def test_a_text_whose_value_cannot_be_written_is_rejected(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "1.7e308",
        "1e-999",
        "9" * 308,
        "0." + "1" * 400,
        '"1e999"',
        '"[' + "[" * 500 + '"',
        "[" * 128 + "]" * 128,
        r'"\"[[[["',
        '{"a": [1, 2.5, null, true, "\\ud800"]}',
    ],
)
def test_other_texts_equal_json_loads(text: str) -> None:
    assert parse(text) == json.loads(text)
    assert json.loads(json.dumps(parse(text), allow_nan=False)) == parse(text)


def test_hostile_texts_are_checked_in_linear_time() -> None:
    """Quadratic time would take hours."""
    for text in (
        '[[["' * 300_000,
        '"\\"' * 300_000 + "[" * 200,
        "[" + "1" * 1_000_000,
        "e0" * 500_000,
    ):
        with pytest.raises(ValueError):  # noqa: PT011
            parse(text)


def test_lone_surrogates_are_replaced() -> None:
    assert encodable({"a\ud800": ["\udc00", "é", 1]}) == {"a?": ["?", "é", 1]}
    assert encodable("\ud800x") == "?x"
    assert object_in("[" * 5000) is None
    assert object_in("[1]") is None


def test_commands_show_one_line(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "base_model_name_or_path": [1]})
    )
    message = failed("generate", tmp_path, "Hi")
    assert "adapter_config.json: base_model_name_or_path must be a string, not [1]" in " ".join(
        message.split()
    )
