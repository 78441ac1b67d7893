"""JSON values with declared shapes: small files, and parts of requests.

    class Pooling(TypedDict, total=False):
        pooling_mode: str | list[str]

    read_json(folder / "config.json", Pooling)      ValueError: …/config.json: pooling_mode[1] must be a string, not 5

A shape is a type annotation:

    None, bool, str     without lone surrogates, which UTF-8 cannot encode
    int                 of 64 bits; not a bool
    float               finite; also an int
    list[T], tuple[T, ...], Sequence[T]; tuple[T, U]; dict[str, T], Mapping[str, T]; T | U; Literal[…]
    list, dict          with any elements
    a TypedDict         an object. Optional keys can be null, and unknown keys are ignored
    a dataclass         an object; unknown keys are errors
    Any                 any value
    Annotated[T, Within(low, high)]     a number in a range, or a text or a list with such a length

`convert` returns tuples and dataclasses where the shape has them.
"""

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from reprlib import repr as brief
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
    overload,
)

from minhub_py.system.files import read_bytes
from minhub_py.system.json_text import check_depth
from minhub_py.system.printable import printable

T = TypeVar("T")
Reader = Callable[[object], object]
TITLES = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    NoneType: "null",
}
LISTS, OBJECTS = (list, tuple, Sequence), (dict, Mapping)
ADVICE = "correct the file, or download it again"
MAX_CHOICES = 12  # that a message lists


class ShapeError(ValueError):
    """A value has another shape.

    path: its location, such as target_modules[2].    problem: completes the sentence.    reason:
    both.
    """

    def __init__(self, problem: str, path: str = "", where: str = "", advice: str = "") -> None:
        text = (
            f"{where}: {path} {problem}"
            if path and where
            else f"{path or where or 'the value'} {problem}"
        )
        super().__init__(f"{text}: {advice}" if advice else text)
        self.path, self.problem, self.reason = path, problem, f"{path} {problem}".lstrip()
        self._arguments = (problem, path, where, advice)

    def __reduce__(self) -> tuple[type["ShapeError"], tuple[str, str, str, str]]:
        return ShapeError, self._arguments  # from a worker process

    def inside(self, key: str | int) -> "ShapeError":
        """The error of the container. key: of the value in the container."""
        return ShapeError(
            self.problem,
            joined(f"[{key}]" if isinstance(key, int) else printable(key[:64]), self.path),
        )


def joined(path: str, tail: str) -> str:
    """The path of a member or an element."""
    return f"{path}{'' if not (path and tail) or tail.startswith('[') else '.'}{tail}"


@dataclass(frozen=True)
class Within:
    """The range of a number, or of the length of a text or a list."""

    low: float
    high: float = math.inf

    def range(self) -> str:
        """The range of a number, in a message."""
        return (
            f"of at least {self.low}"
            if self.high == math.inf
            else f"from {self.low} to {self.high}"
        )

    def count(self) -> str:
        """The range of a length, in a message."""
        low, high = (
            (f"at least {self.low:,}", "")
            if self.high == math.inf
            else (f"{self.low:,}", f" to {self.high:,}")
        )
        return f"at most {self.high:,}" if self.low == 0 else low + high


TokenID = Annotated[int, Within(0, 2**31 - 1)]


@overload
def read_json(path: Path, shape: type[T], *, limit: int | None = ..., advice: str = ...) -> T: ...


@overload
def read_json(path: Path, shape: object, *, limit: int | None = ..., advice: str = ...) -> Any: ...


def read_json(path: Path, shape: object, *, limit: int | None = None, advice: str = ADVICE) -> Any:
    """A JSON file's content. NaN and infinity, which Python writes, are allowed in values
    without a shape.

    limit: in bytes.    advice: the next step, for the message.

    ValueError: the file is not JSON, is too large, has another shape, or is not a regular file.
    """
    content = read_bytes(path) if limit is None else read_bytes(path, limit)
    try:
        return parse_json(content, shape)
    except ShapeError as error:
        raise ShapeError(error.problem, error.path, str(path), advice) from error.__cause__


def parse_json(content: bytes, shape: object, where: str = "", advice: str = "") -> Any:
    """As `read_json`, for a file's content. where: its name in messages."""
    try:
        text = content.decode()
        check_depth(text)
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        problem = f"is not valid JSON ({printable(str(error)[:200])})"
        raise ShapeError(problem, "", where, advice) from error
    return convert(value, shape, where, advice)


def convert(value: object, shape: object, where: str = "", advice: str = "", path: str = "") -> Any:
    """The value in a shape's types. path: the value's location.

    ShapeError: it has another shape; the message contains where, the location and the advice.
    """
    try:
        return reader(shape)(value)
    except ShapeError as error:
        raise ShapeError(error.problem, joined(path, error.path), where, advice) from None


def fits(value: object, shape: object) -> bool:
    """Whether a value has a shape."""
    try:
        reader(shape)(value)
    except ShapeError:
        return False
    return True


@cache
def reader(shape: object) -> Reader:
    """A function that returns a value in a shape's types, or raises ShapeError."""
    origin, arguments = get_origin(shape), get_args(shape)
    if shape in (Any, object):
        return lambda value: value
    if shape in (list, dict):
        return partial(_unchecked, shape)
    if shape in TITLES:
        return partial(_scalar, shape)
    if origin is Annotated:
        return partial(_within, reader(arguments[0]), shape)
    if origin in (Union, UnionType):
        return partial(_alternative, [reader(part) for part in arguments], shape)
    if origin is Literal:
        return partial(_choice, arguments, shape)
    if origin is tuple and arguments[1:] != (...,):
        return partial(_tuple, [reader(part) for part in arguments], shape)
    if origin in LISTS:
        return partial(_list, reader(arguments[0]), list if origin is list else tuple, shape)
    if origin in OBJECTS:
        return partial(_object, reader(arguments[1]), shape)
    return partial(
        _members, {name: reader(part) for name, part in members(shape)[0].items()}, shape
    )


def _scalar(kind: object, value: Any) -> object:
    if kind is float and type(value) is int and abs(value) <= sys.float_info.max:
        return value if abs(value) < 2**53 else float(value)  # PyTorch's integers have 64 bits
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        raise _wrong(value, kind)
    if kind is int and not -(2**63) <= value < 2**63:
        raise ShapeError(f"must be an integer of 64 bits, not {brief(value)}")
    if kind is str and not is_unicode(value):
        raise ShapeError("contains a lone surrogate, which is not valid Unicode")
    return value


def _unchecked(kind: type, value: object) -> object:
    if not isinstance(value, Mapping if kind is dict else list | tuple):
        raise _wrong(value, kind)
    return value


def _within(read: Reader, shape: Any, value: object) -> object:
    result = read(value)
    number = len(result) if isinstance(result, Sequence) else result
    if isinstance(number, int | float) and not all(
        part.low <= number <= part.high for part in shape.__metadata__ if isinstance(part, Within)
    ):
        raise _wrong(value, shape)
    return result


def _alternative(readers: Sequence[Reader], shape: object, value: object) -> object:
    """The value in the first of several shapes that fits. The error of a part of it is more precise
    than its own.
    """
    errors = []
    for read in readers:
        try:
            return read(value)
        except ShapeError as error:
            errors.append(error)
    raise next(
        (error for error in errors if error.path or "surrogate" in error.problem),
        _wrong(value, shape),
    )


def _choice(choices: Sequence[object], shape: object, value: object) -> object:
    if not any(value == choice and type(value) is type(choice) for choice in choices):
        raise _wrong(value, shape)
    return value


def _list(read: Reader, kind: type, shape: object, value: object) -> object:
    if not isinstance(value, list | tuple):
        raise _wrong(value, shape)
    return kind([_item(read, index, item) for index, item in enumerate(value)])


def _tuple(readers: Sequence[Reader], shape: object, value: object) -> object:
    if not isinstance(value, list | tuple) or len(value) != len(readers):
        raise _wrong(value, shape)
    return tuple(
        _item(read, index, item)
        for index, (read, item) in enumerate(zip(readers, value, strict=True))
    )


def _object(read: Reader, shape: object, value: object) -> object:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise _wrong(value, shape)
    if not all(map(is_unicode, value)):
        raise ShapeError("has a name with a lone surrogate, which is not valid Unicode")
    return {key: _item(read, key, item) for key, item in value.items()}


def _members(readers: Mapping[str, Reader], shape: Any, value: object) -> object:
    """An object in the form of a TypedDict or a dataclass."""
    if not isinstance(value, Mapping):
        raise _wrong(value, shape)
    required, is_record = members(shape)[1], not is_typeddict(shape)
    if absent := sorted(required - value.keys()):
        raise ShapeError(f"must have {', '.join(absent)}")
    if is_record and (unknown := sorted(value.keys() - readers.keys())):
        raise ShapeError("is unknown: remove it").inside(unknown[0])
    result = dict(value)
    for name, read in readers.items():
        if name in value and (is_record or name in required or value[name] is not None):
            result[name] = _item(read, name, value[name])
    return shape(**result) if is_record else result


def _item(read: Reader, key: str | int, item: object) -> object:
    """An item of a container in the types of its shape."""
    try:
        return read(item)
    except ShapeError as error:
        raise error.inside(key) from None


@cache
def members(shape: Any) -> tuple[dict[str, object], frozenset[str]]:
    """The shapes of the members of a TypedDict or a dataclass, and the names of those that it
    requires.
    """
    shapes = get_type_hints(shape, include_extras=True)
    if is_typeddict(shape):
        return shapes, shape.__required_keys__
    fields, absent = dataclasses.fields(shape), dataclasses.MISSING
    required = {
        field.name
        for field in fields
        if field.default is absent and field.default_factory is absent
    }
    return {field.name: shapes[field.name] for field in fields}, frozenset(required)


def _wrong(value: object, shape: object) -> ShapeError:
    return ShapeError(f"must be {described(shape)}, not {printable(brief(value))}")


def described(shape: Any) -> str:
    """A shape in a message: "a list of strings"."""
    origin, arguments = get_origin(shape), get_args(shape)
    if shape in TITLES:
        return TITLES[shape]
    if origin is Annotated:
        inner, within = (
            described(arguments[0]),
            next(part for part in shape.__metadata__ if isinstance(part, Within)),
        )
        if arguments[0] in (int, float):
            return f"{inner} {within.range()}"
        name, _, elements = inner.partition(" of ")
        if within == Within(1):
            return f"a non-empty {inner.removeprefix('a ')}"
        return (
            f"{name} of {within.count()}"
            f" {elements or ('characters' if arguments[0] is str else 'elements')}"
        )
    if origin in (Union, UnionType):
        return _joined([described(part) for part in arguments if part is not NoneType])
    if origin is Literal:
        return _joined([str(choice) for choice in arguments[:MAX_CHOICES]])
    if origin is tuple and arguments[1:] != (...,):
        return f"a list of {len(arguments)} elements"
    if shape is list:
        return "a list"
    if origin in LISTS:
        element = described(
            get_args(arguments[0])[0] if get_origin(arguments[0]) is Annotated else arguments[0]
        )
        several = element.removeprefix("a ").removeprefix("an ")
        simple = get_origin(arguments[0]) not in (Union, UnionType, Literal) and several != element
        return f"a list of {several}s" if simple and " " not in several else "a list"
    return "an object"


def _joined(parts: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def is_unicode(text: str) -> bool:
    """Whether a text has no lone surrogates, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
