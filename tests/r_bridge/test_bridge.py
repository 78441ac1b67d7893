"""The Python part of the R bridge: conversion, methods, and a worker whose client imitates R."""

import itertools
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

import weights_map
from minhub_py.system import spelling
from minhub_py.training import Run
from r_bridge import convert, protocol
from r_bridge.convert import Frame, dumps, id_rows, loads, scalar
from r_bridge.methods import METHODS
from r_bridge.objects import Cancelled
from r_bridge.service import Service
from r_bridge.spelling import use_r_spelling
from r_bridge.training import RListener

NA = np.ma.masked


# Conversion, compared with R


def in_r(tmp_path: Path, code: str, value: bytes = b"") -> bytes:
    """Run R code that reads the file IN with `value`. Returns the content of the file OUT."""
    (tmp_path / "in").write_bytes(value)
    (tmp_path / "out").unlink(missing_ok=True)
    code = f'IN <- "{tmp_path}/in"; OUT <- "{tmp_path}/out"; {code}'
    (tmp_path / "code.R").write_text(code, encoding="utf-8")
    rscript = shutil.which("Rscript")
    assert rscript is not None, "the tests of the bridge need R: apt-get install r-base-core"
    done = subprocess.run([rscript, "--vanilla", tmp_path / "code.R"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return (tmp_path / "out").read_bytes()


# Python values, and R code for the identical values.
TO_R: list[tuple[Any, str]] = [
    (None, "NULL"),
    (True, "TRUE"),
    (False, "FALSE"),
    (7, "7L"),
    (-7, "-7L"),
    (2**31 - 1, ".Machine$integer.max"),
    (-(2**31) + 1, "-.Machine$integer.max"),
    (2**31, "2147483648"),
    (-(2**31), "-2147483648"),
    (2**53, "2^53"),
    (0.1, "0.1"),
    (float("inf"), "Inf"),
    (float("nan"), "NaN"),
    (-0.0, "-0"),
    (5e-324, "4.9406564584124654e-324"),
    ("", '""'),
    ("text", '"text"'),
    ("fa\u00e7ile \u4e2d \U0001f600", '"fa\\u00e7ile \\u4e2d \\U1F600"'),
    ("a\0b", '"a\\ufffdb"'),
    ("half \udc80", '"half ?"'),
    (b"", "raw()"),
    (bytes(range(256)), "as.raw(0:255)"),
    (memoryview(b"ab"), 'charToRaw("ab")'),
    (["a", None, "b"], 'c("a", NA, "b")'),
    ([None], "NA_character_"),
    ([None, None], "c(NA_character_, NA_character_)"),
    (("a", "b"), 'c("a", "b")'),
    ([], "list()"),
    ([1, "a", None, [2.5]], 'list(1L, "a", NULL, list(2.5))'),
    ({}, "structure(list(), names = character())"),
    ({"a": 1, "b": [1, 2], "\u00e9": None}, 'list(a = 1L, b = list(1L, 2L), "\\u00e9" = NULL)'),
    (convert.character([]), "character()"),
    (convert.character(iter(["a"])), '"a"'),
    (np.array(["a", "b"]), 'c("a", "b")'),
    (np.array([True, False]), "c(TRUE, FALSE)"),
    (np.ma.MaskedArray([True, False], [False, True]), "c(TRUE, NA)"),
    (np.array([1, 2], np.int64), "1:2"),
    (np.array([1, 2], np.uint8), "1:2"),
    (np.array([], np.int64), "integer()"),
    (np.array([], np.float32), "numeric()"),
    (np.array([1, 2**31]), "c(1, 2147483648)"),
    (np.array([1, -(2**31)]), "c(1, -2147483648)"),
    (np.array([2**63], np.uint64), "2^63"),
    (np.array([1, convert.NA_INTEGER], np.int32), "c(1L, NA)"),
    (np.ma.MaskedArray([1, 2, 3], [False, True, False]), "c(1L, NA, 3L)"),
    (np.ma.MaskedArray([1.5, 2, 3], [False, True, False]), "c(1.5, NA, 3)"),
    (np.array([0.1], np.float32), "0.100000001490116119384765625"),
    (np.array([0.1], np.float16), "0.0999755859375"),
    (torch.tensor([0.1], dtype=torch.bfloat16), "0.10009765625"),
    (torch.tensor([0.1], requires_grad=True), "0.100000001490116119384765625"),
    (torch.tensor([1, 2]), "1:2"),
    (torch.tensor(3.0), "3"),
    (np.float32(0.5), "0.5"),
    (np.int64(5), "5L"),
    (torch.arange(6).reshape(2, 3), "matrix(0:5, 2, byrow = TRUE)"),
    (torch.arange(6).reshape(2, 3).T, "matrix(0:5, 3)"),
    (np.arange(24.0).reshape(2, 3, 4), "aperm(array(as.numeric(0:23), 4:2), 3:1)"),
    (np.zeros((0, 3)), "matrix(0, 0, 3)"),
    (np.zeros((2, 0, 3), np.float32), "array(0, c(2, 0, 3))"),
    (np.arange(6, dtype=np.int16)[::2], "c(0L, 2L, 4L)"),
    (np.arange(12).reshape(3, 4)[:, ::-1][1:], "matrix(c(7:4, 11:8), 2, byrow = TRUE)"),
    (np.arange(3 * 2**17, dtype=np.float32).reshape(3, -1), "matrix(as.numeric(0:393215), 3, byrow = TRUE)"),
    (np.arange(3 * 2**17).reshape(-1, 3), "matrix(0:393215, ncol = 3, byrow = TRUE)"),
    (Frame({"a": np.array([1, 2]), "b": ["x", None]}), 'data.frame(a = 1:2, b = c("x", NA))'),
    (Frame({"a": np.array([], np.int32), "b": convert.character([])}), "data.frame(a = integer(), b = character())"),
    (Frame({}), "data.frame()"),
]  # fmt: skip


def test_python_values_are_identical_in_r(tmp_path: Path) -> None:
    values = dumps([value for value, _ in TO_R])
    expected = ",\n".join(code for _, code in TO_R)
    code = f"""
        actual <- readRDS(IN); expected <- list({expected})
        same <- mapply(function(a, b) identical(a, b, num.eq = FALSE, single.NA = TRUE), actual, expected)
        stopifnot(length(actual) == length(expected))
        wrong <- which(!same)
        writeLines(as.character(c(length(wrong), wrong, Encoding(actual[[18]]))), OUT)
    """
    count, *wrong, encoding = in_r(tmp_path, code, values).decode().split()
    assert (count, wrong) == ("0", []), [TO_R[int(number) - 1] for number in wrong]
    assert encoding == "UTF-8"


def test_serialized_bytes_match_r(tmp_path: Path) -> None:
    """After the header, which contains R's version."""
    columns = {"a": np.arange(1.5, 4), "b": ["x", None, "\u00e9"], "c": None, "d": np.arange(6.0).reshape(2, 3)}
    frame = Frame({"i": np.array([3, 1]), "t": np.array([True, False])})
    for value, code in [
        (columns, 'list(a = 1:3 + 0.5, b = c("x", NA, "\\u00e9"), c = NULL, d = matrix(c(0, 3, 1, 4, 2, 5), 2))'),
        (frame, "data.frame(i = c(3L, 1L), t = c(TRUE, FALSE))"),
    ]:
        theirs = in_r(tmp_path, f"writeBin(serialize({code}, NULL, xdr = FALSE, version = 2), OUT)")
        assert theirs[14:] == dumps(value)[14:]


FROM_R: list[tuple[str, Any]] = [
    ("NULL", None),
    ("1:3", np.array([1, 2, 3], np.int32)),
    ("c(1.5, NA, Inf)", None),  # checked below
    ("c(TRUE, NA, FALSE)", np.ma.MaskedArray([True, True, False], [False, True, False])),
    ("c(5L, NA)", np.ma.MaskedArray([5, 0], [False, True])),
    ("NA", np.ma.MaskedArray([True], [True])),
    ("integer()", np.array([], np.int32)),
    ("character()", []),
    ('c("a", NA, "")', ["a", None, ""]),
    ('{x <- "fa\\xe7ile"; Encoding(x) <- "latin1"; x}', ["fa\u00e7ile"]),
    ('"\\u4e2d"', ["\u4e2d"]),
    ("as.raw(0:3)", b"\0\1\2\3"),
    ('factor(c("u", NA, "v", "u"))', ["u", None, "v", "u"]),
    ("list()", []),
    ('list(1L, "a", NULL)', [np.array([1], np.int32), ["a"], None]),
    ('list(a = 1L, b = list(c = "x"))', {"a": np.array([1], np.int32), "b": {"c": ["x"]}}),
    ('data.frame(a = 1:2, b = c("x", "y"))', {"a": np.array([1, 2], np.int32), "b": ["x", "y"]}),
    ("matrix(1:6, 2)", np.array([[1, 3, 5], [2, 4, 6]], np.int32)),
    ("array(as.numeric(1:24), 2:4)", np.arange(1.0, 25).reshape((2, 3, 4), order="F")),
    ("matrix(c(1L, NA, 3L, 4L), 2)", np.ma.MaskedArray([[1, 3], [0, 4]], [[False, False], [True, False]])),
    ("structure(1:2, names = c('a', 'b'), class = 'whatever', note = list(1))", np.array([1, 2], np.int32)),
    ("structure(list(x = 1), note = 'a', other = 'b')", {"x": np.array([1.0])}),
]  # fmt: skip


def same(a: Any, b: Any) -> bool:
    match a, b:
        case np.ndarray(), np.ndarray():
            masks = np.array_equal(np.ma.getmaskarray(a), np.ma.getmaskarray(b))
            return a.dtype == b.dtype and a.shape == b.shape and masks and bool(np.ma.allequal(a, b))
        case list(), list():
            return len(a) == len(b) and all(map(same, a, b))
        case dict(), dict():
            return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and a == b


def test_r_values_are_equal_in_python(tmp_path: Path) -> None:
    codes = ", ".join(code for code, _ in FROM_R)
    data = in_r(tmp_path, f"writeBin(serialize(list({codes}), NULL, xdr = FALSE, version = 2), OUT)")
    actual = loads(data)
    for (code, expected), value in zip(FROM_R, actual, strict=True):
        if code.startswith("c(1.5"):
            assert value[0] == 1.5
            assert value[2] == np.inf
            # NA is R's own NaN, and returns as NA.
            assert value.view(np.uint64)[1] == convert.NA_REAL.view(np.uint64)
        elif expected is not None and isinstance(expected, np.ma.MaskedArray):
            assert same(value, np.ma.MaskedArray(expected, dtype=value.dtype)), (code, value)
        else:
            assert same(value, expected), (code, value)


def test_round_trip_from_r_is_identical(tmp_path: Path) -> None:
    codes = ["1:3", "c(1.5, NA, NaN, -Inf)", "c(TRUE, NA)", 'c("a", NA, "\\u00e9")',
             "as.raw(1:9)", "matrix(rnorm(6), 2)",
             'list(a = 1L, b = list("x", NULL))', "array(1:24, 2:4)"]  # fmt: skip
    write = f"set.seed(1); x <- list({', '.join(codes)})"
    data = in_r(tmp_path, f"{write}; writeBin(serialize(x, NULL, xdr = FALSE, version = 2), OUT)")
    check = f"{write}; same <- identical(readRDS(IN), x, single.NA = FALSE); writeLines(as.character(same), OUT)"
    assert in_r(tmp_path, check, dumps(loads(data))).decode().strip() == "TRUE"


@pytest.mark.parametrize("value", [object(), {1, 2}, 1j, np.array([1j]), np.array([None]), [object()], {"a": print}])
def test_unsupported_python_values_raise_type_error(value: Any) -> None:
    with pytest.raises(TypeError, match="has no counterpart in R"):
        dumps(value)


def test_frame_columns_must_have_equal_length() -> None:
    with pytest.raises(ValueError, match=r"differ in length: \[1, 2\]"):
        dumps(Frame({"a": np.arange(1), "b": np.arange(2)}))


@pytest.mark.parametrize(
    "code", ["quote(x)", "function(x) x", "globalenv()", "1i", "expression(a)", "y ~ x", "new.env()"]
)
def test_unsupported_r_values_raise_value_error(tmp_path: Path, code: str) -> None:
    """Values that can be called or evaluated are not supported."""
    data = in_r(tmp_path, f"writeBin(serialize({code}, NULL, xdr = FALSE, version = 2), OUT)")
    with pytest.raises(ValueError, match="has no counterpart in Python"):
        loads(data)


EXAMPLE = {"a": np.arange(3.0), "b": ["x", None, "\u00e9"], "c": np.arange(6).reshape(2, 3), "d": [None, True, b"raw"]}


def test_truncated_bytes_raise_value_error() -> None:
    data = dumps(EXAMPLE)
    for end in range(len(data)):
        with pytest.raises(ValueError):  # noqa: PT011  # the message depends on the position
            loads(data[:end])
    with pytest.raises(ValueError, match="1 unexpected bytes"):
        loads(data + b"\0")
    for wrong in (b"X\n", b"A\n", b"\x1f\x8b"):
        with pytest.raises(ValueError, match="not in R's binary serialization format"):
            loads(wrong + data[2:])
    with pytest.raises(ValueError, match="version must be 2, not 3"):
        loads(data[:2] + struct.pack("=i", 3) + data[6:])


def test_corrupt_bytes_return_a_value_or_raise_value_error() -> None:
    """No other exception, and memory proportional to the data."""
    random = np.random.default_rng(0)
    values = [dumps(EXAMPLE), dumps(Frame({"a": np.arange(2), "b": ["x", "y"]})), factor(), dumps([[["deep"]]] * 3)]
    refused = 0
    for number in range(20_000):
        data = bytearray(values[number % len(values)])
        for _ in range(random.integers(1, 4)):
            place = random.integers(14, len(data))
            # Most integers of the format are aligned to four bytes.
            if random.random() < 0.5 and place + 4 <= len(data):
                small = random.choice(
                    [-1, 0, 1, 2, 3, 9, 13, 14, 16, 19, 254, 255, 1026, 2**31 - 1, -(2**31), 531, 19 + 512]
                )
                data[place : place + 4] = struct.pack("=i", small)
            else:
                data[place] = random.integers(256)
        try:
            loads(bytes(data))
        except ValueError:
            refused += 1
    assert refused > 5000


def factor() -> bytes:
    """factor(c("u", "v")), serialized by R."""
    codes = struct.pack("=iiii", convert.INTEGER | convert.HAS_ATTRIBUTES | convert.IS_OBJECT, 2, 1, 2)
    attributes = b"".join(convert._attributes({"levels": ["u", "v"], "class": ["factor"]}))
    return convert.HEADER + codes + attributes


def test_invalid_lengths_do_not_allocate_memory() -> None:
    before = psutil.Process().memory_info().rss
    for kind in (convert.REAL, convert.INTEGER, convert.STRINGS, convert.LIST, convert.RAW, convert.LOGICAL):
        for length in (struct.pack("=i", 2**31 - 1), struct.pack("=iii", -1, 2**20, 0), struct.pack("=i", -2)):
            with pytest.raises(ValueError, match="invalid length|the data ends"):
                loads(convert.HEADER + struct.pack("=i", kind) + length)
    nested = convert.HEADER + struct.pack("=ii", convert.LIST, 1) * 100_000
    with pytest.raises(ValueError, match="nested more than 100 levels deep"):
        loads(nested)
    assert psutil.Process().memory_info().rss - before < 50e6


@pytest.mark.parametrize("names", ['c("a", "a")', 'c("a", NA)', 'c("a", "")', "1:2"])
def test_names_of_a_list_must_be_unique(tmp_path: Path, names: str) -> None:
    data = in_r(
        tmp_path, f"writeBin(serialize(`attr<-`(list(1, 2), 'names', {names}), NULL, xdr = FALSE, version = 2), OUT)"
    )
    if names == "1:2":
        assert list(loads(data)) == ["1", "2"]  # R converts them to strings
        return
    with pytest.raises(ValueError, match="names of a list must be complete and unique"):
        loads(data)


# Arguments of methods


def test_scalar_converts_each_type() -> None:
    f64, i32 = np.array([3.0]), np.array([3], np.int32)
    assert scalar(i32, int) == 3
    assert type(scalar(f64, int)) is int
    assert type(scalar(i32, float)) is float
    assert scalar(["x"], str) == "x"
    assert scalar(np.array([True]), bool) is True
    assert scalar(None, str) is None
    assert scalar([None], str) is None
    assert scalar(np.ma.MaskedArray([0], [True]), int) is None
    assert scalar(np.array([np.nan]), float) is None
    for value, kind, message in [
        (np.array([1, 2]), int, "expected a whole number, not 2 values"),
        (np.array([1.5]), int, "expected a whole number, not 1.5"),
        (["x"], int, "expected a whole number, not text|expected a whole number, not 'x'"),
        (i32, str, "expected a string, not 3"),
        (i32, bool, "expected TRUE or FALSE, not 3"),
        (np.array([True]), int, "expected a whole number, not True"),
        (["a", "b"], str, "expected a string, not text"),
        ([], str, "expected a string, not a list of 0"),
        ({"a": 1}, str, "expected a string, not a list with names"),
        (b"ab", str, "expected a string, not raw bytes"),
    ]:
        with pytest.raises(ValueError, match=message):
            scalar(value, kind)


def ids(*values: Any) -> np.ndarray[Any, Any]:
    return np.array(values)


def test_ids_of_every_form_are_rows_of_python_ints() -> None:
    whole = np.array([1, 2], np.int32)
    many = {"ids": np.array([1, 2, 3], np.int32), "lengths": np.array([2, 0, 1], np.int32)}
    for value, expected in [
        (whole, [[1, 2]]), (ids(1.0, 2.0), [[1, 2]]), (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        ([whole, ids(3.0)], [[1, 2], [3]]), ([None, whole], [[], [1, 2]]), ([], []), (whole[:0], [[]]),
        (many, [[1, 2], [], [3]]), (many | {"ids": ids(1.0, 2.0, 3.0)}, [[1, 2], [], [3]]),
    ]:  # fmt: skip
        rows = id_rows(value, 10)
        assert rows == expected
        assert all(type(id) is int for row in rows for id in row)
    assert id_rows(ids(1, 10), 10, first=1) == [[0, 9]]
    assert id_rows(many, 3, first=1) == [[0, 1], [], [2]]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (ids(1, 10), "row 1: ids must be between 0 and 9, not 10"),
        (ids(-1), "row 1: ids must be between 0 and 9, not -1"),
        (ids(1.0, 0.5), "row 1: ids must be whole numbers, not 0.5"),
        (ids(1.0, np.nan), "row 1: an id is NA"),
        (ids(1.0, np.inf), "row 1: ids must be between 0 and 9, not inf"),
        (ids(1e300), "row 1: ids must be between 0 and 9, not 1"),
        (np.ma.MaskedArray([1, 2], [False, True]), "row 1: an id is NA"),
        ([ids(1), np.ma.MaskedArray([1, 2], [False, True])], "row 2: an id is NA"),
        ({"ids": np.ma.MaskedArray([1, 2, 3], [0, 0, 1], np.int32), "lengths": ids(1, 2)}, "row 2: an id is NA"),
        ({"ids": np.array([1, 2, 11], np.int32), "lengths": ids(1, 2)}, "row 2: ids must be between 0 and 9, not 11"),
        ({"ids": ids(1.0, 2.0, 2.5), "lengths": ids(1, 2)}, "row 2: ids must be whole numbers, not 2.5"),
        (ids(True), "row 1: ids must be whole numbers, not 1 values .TRUE and FALSE."),
        (["a"], "row 1: ids must be whole numbers, not str"),
        (np.zeros((2, 2, 2)), "ids have 3 dimensions"),
        (None, "ids are missing"),
        ("text", "ids are missing"),
        ([[ids(1)]], "row 1: ids must be whole numbers, not a list of 1"),
    ],
)  # fmt: skip
def test_invalid_ids_raise_value_error(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        id_rows(value, 10)


def test_zero_in_an_r_torch_tensor_has_its_own_message() -> None:
    with pytest.raises(ValueError, match="an id is 0, but the ids in an R torch tensor count from 1"):
        id_rows(ids(0, 1), 10, first=1)
    with pytest.raises(ValueError, match="ids must be between 1 and 10, not 11"):
        id_rows(ids(11), 10, first=1)
    with pytest.raises(ValueError, match="an id is NA"):  # an integer in R torch
        id_rows(ids(1.0, -(2.0**31)), 10, first=1)


# The service


def run(service: Service, method: str, /, cancelled: Any = None, **arguments: Any) -> tuple[str, Any]:
    """Run a request from the bytes that R would send."""
    call = loads(dumps({"method": method, "arguments": arguments, "release": np.array([], np.int32)}))
    kind, value = service.run(call, lambda value: None, cancelled or threading.Event())
    return kind, loads(dumps(value))


def test_unknown_methods_and_arguments_are_rejected() -> None:
    service = Service()
    assert run(service, "nothing") == ("done", None)
    for name in ("__class__", "add", "run", "objects", "print", "exec", ""):
        kind, failure = run(service, name)
        assert kind == "failed"
        assert failure["class"] == ["ValueError"]
        assert "no method" in failure["message"][0]
    for arguments, message in [
        ({"x": 1}, "nothing has no argument x"),
        ({"service": 1, "self": 2}, "nothing has no argument self, service"),
    ]:
        assert message in run(service, "nothing", **arguments)[1]["message"][0]
    for broken in (
        None,
        [],
        {"method": ["nothing"]},
        {"method": None, "arguments": None, "release": None},
        {"release": ["a"]},
    ):
        kind, failure = service.run(broken, lambda value: None, threading.Event())  # type: ignore[arg-type]
        assert kind == "failed"
        assert failure["message"]
    assert len(METHODS) >= 20


def create_model(service: Service, **more: Any) -> int:
    config = {"vocab_size": 10, "n_embd": 8, "n_head": 2, "n_layer": 1, "n_positions": 16}
    kind, about = run(service, "fresh", family="gpt2", config=config | more, seed=1)
    assert kind == "done", about
    number = scalar(about["number"], int)
    run(service, "train", model=number, mode=False)
    return number


def replace_weights(service: Service, number: int, state: dict[str, Any]) -> str | None:
    """Replace a model's weights like R. Returns the error message, or None."""
    shapes = [value["shape"] for value in state.values()]
    calls: list[tuple[str, dict[str, Any]]] = [
        ("check_state_dict", {"model": number, "names": list(state), "shapes": shapes})
    ]
    room = scalar(run(service, "new_state_dict")[1], int)
    calls += [("add_weight", {"state": room, "name": name, "value": value}) for name, value in state.items()]
    calls += [(method, {"model": number, "state": room}) for method in ("prepare_state_dict", "load_state_dict")]
    for method, arguments in calls:
        kind, answer = run(service, method, **arguments)
        if kind == "failed":
            return str(answer["message"][0])
    return None


def as_buffer(tensor: torch.Tensor) -> dict[str, Any]:
    """A tensor in the form in which R sends R torch tensors."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"shape": np.array(tensor.shape), "dtype": dtype, "data": tensor.contiguous().numpy().tobytes()}


@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_accepted_with_native_and_hub_names(tied: bool) -> None:
    """Hub names have the Hub's layout in checkpoints, and native layout in modules of the R package minhub."""
    service = Service()
    number = create_model(service, tie_word_embeddings=tied)
    module = service.session.objects[number].module
    torch.manual_seed(0)
    ours = {name: torch.randn(weight.shape) for name, weight in module.named_parameters()}
    hub = dict(weights_map.to_hub("gpt2", ours))
    named = {("" if name == "lm_head.weight" else "transformer.") + name: tensor for name, tensor in ours.items()}
    head = {} if not tied else {"lm_head.weight": ours["wte.weight"]}
    buffers = {"transformer.h.0.attn.bias": torch.ones(1, 1, 16, 16)}
    unprefixed = {name.removeprefix("transformer."): tensor for name, tensor in hub.items()}
    for state in (ours, hub, hub | buffers | head, named, named | head, unprefixed):
        module.load_state_dict({name: torch.zeros_like(w) for name, w in module.state_dict().items()})
        assert replace_weights(service, number, {name: as_buffer(tensor) for name, tensor in state.items()}) is None
        for name, weight in module.named_parameters():
            assert torch.equal(weight, ours[name]), name


def test_invalid_weights_do_not_change_the_model() -> None:
    service = Service()
    number = create_model(service)
    module = service.session.objects[number].module
    before = {name: weight.detach().clone() for name, weight in module.named_parameters()}
    good = {name: as_buffer(torch.ones(weight.shape)) for name, weight in before.items()}
    hub = {f"transformer.{name}": value for name, value in good.items()}
    nan = as_buffer(torch.tensor([1.0, 2, 3, 4, 5, 6, 7, float("nan")]))
    for state, message in [
        (good | {"ln_f.bias": nan}, "state_dict has NA or NaN in ln_f.bias"),
        (good | {"ln_f.bias": as_buffer(torch.ones(9))}, "the shape of ln_f.bias must be 8, not 9"),
        (
            hub | {"transformer.wte.weight": as_buffer(torch.ones(8, 10))},
            "the shape of wte.weight must be 10 x 8, not 8 x 10",
        ),
        (good | {"more": nan}, "unknown weights in state_dict: more; see names(model$parameters)"),
        (dict(list(hub.items())[1:]), "missing weights in state_dict: wte.weight"),
        (good | hub, "state_dict has wte.weight twice, as wte.weight and as transformer.wte.weight: remove one"),
        (
            hub | {"lm_head.weight": as_buffer(torch.zeros(10, 8))},
            "lm_head.weight must equal transformer.wte.weight: they are one tied weight in this model",
        ),
    ]:
        assert replace_weights(service, number, state) == message
        assert all(torch.equal(weight, before[name]) for name, weight in module.named_parameters())
    assert replace_weights(service, number, good) is None


def test_float64_weights_are_not_rounded() -> None:
    service = Service()
    number = create_model(service)
    run(service, "to", model=number, device=None, dtype="float64")
    weights = service.session.objects[number].module
    third = {n: as_buffer(torch.full(w.shape, 1 / 3, dtype=torch.float64)) for n, w in weights.named_parameters()}
    assert replace_weights(service, number, third) is None
    assert all(bool((weight == 1 / 3).all()) for weight in weights.parameters())


def test_objects_exist_until_r_releases_them() -> None:
    service = Service()
    number = create_model(service)
    assert run(service, "forward", model=number, ids=np.array([1, 2]), first=0, as_torch=False)[0] == "done"
    again = loads(dumps({"method": "nothing", "arguments": {}, "release": np.array([number, 99])}))
    assert service.run(again, lambda value: None, threading.Event()) == ("done", None)
    assert service.session.objects == {}
    kind, failure = run(service, "parameters", model=number)
    assert (kind, failure["class"]) == ("failed", ["LookupError"])
    # A tokenizer is not a model.
    number = scalar(run(service, "tokenizer_from_pretrained", identifier="minhub/shakespeare-gpt2", revision="main",
                     token=None, local_files_only=True)[1], int)  # fmt: skip
    assert run(service, "parameters", model=number)[0] == "failed"


def test_cancelled_request_returns_cancelled() -> None:
    service = Service()
    number = create_model(service)
    cancelled = threading.Event()
    arguments = {
        "model": number, "prompts": [np.array([1])], "tokenizer": None, "max_new_tokens": 10**9, "temperature": 1.0,
        "top_k": None, "top_p": None, "repetition_penalty": 1.0, "seeds": np.array([1.0]), "eos_id": None, "stop": None,
        "stream": False,
    }  # fmt: skip
    threading.Timer(0.2, cancelled.set).start()
    assert run(service, "generate", cancelled, **arguments) == ("cancelled", None)
    # Closing the iterator cancels the request, and the next one runs.
    frames = service.stream({"method": ["generate"], "arguments": loads(dumps(arguments)), "release": []})
    assert next(frames)[0] == "part"  # progress
    service.session.cancelled.set()
    assert [frame for frame in frames if frame[0] != "part"] == [("cancelled", None)]
    frames = service.stream({"method": ["generate"], "arguments": loads(dumps(arguments)), "release": []})
    assert next(frames)[0] == "part"
    frames.close()
    frames = service.stream({"method": ["nothing"], "arguments": None, "release": []})
    assert list(frames) == [("done", None)]
    assert not issubclass(Cancelled, Exception)


def test_error_messages_are_specific() -> None:
    service = Service()
    number = create_model(service)
    _, failure = run(service, "forward", model=number, ids=np.array([10]), first=0, as_torch=False)
    assert failure["message"] == ["row 1: ids must be between 0 and 9, not 10"]
    _, failure = run(service, "parameter", model=number, name="nope")
    assert "nope" in failure["message"][0]
    _, failure = run(service, "fresh", family="nope", config={}, seed=1)
    assert failure["class"] == ["KeyError"]


# Training

TEXT = "To be, or not to be, that is the question.\n" * 60
TINY = {"family": "lstm", "layers": 1.0, "width": 8.0, "context": 8.0, "batch": 2.0, "evaluate_every": 4.0, "seed": 1.0}


class Training:
    """A service that trains on a small text, with the events of the run."""

    def __init__(self, folder: Path) -> None:
        self.service = Service()
        self.text, self.out = folder / "text.txt", folder / "run"
        self.text.write_text(TEXT, encoding="utf-8")
        self.received: list[dict[str, Any]] = []
        self.cancelled = threading.Event()
        self.cancel_at = ""

    def emit(self, news: Any) -> None:
        self.received.append(loads(dumps(news)))
        if news["event"] == self.cancel_at:
            self.cancelled.set()

    def call(self, method: str, **arguments: Any) -> tuple[str, Any]:
        self.received.clear()
        self.cancelled = threading.Event()
        call = loads(dumps({"method": method, "arguments": arguments, "release": np.array([], np.int32)}))
        kind, value = self.service.run(call, self.emit, self.cancelled)
        return kind, loads(dumps(value))

    def train(self, **settings: Any) -> tuple[str, Any]:
        return self.call("train_model", texts=[str(self.text)], out=str(self.out), settings=TINY | settings)

    def resume(self, **settings: Any) -> tuple[str, Any]:
        return self.call("resume_training", out=str(self.out), settings=settings)

    def events(self) -> list[str]:
        return [news["event"][0] for news in self.received]


@pytest.fixture
def training(tmp_path: Path) -> Training:
    return Training(tmp_path)


def test_run_sends_events_and_returns_columns(training: Training) -> None:
    kind, run = training.train(steps=10.0, sample="To", sample_tokens=3, config={"embedding_size": np.array([4.0])})
    assert kind == "done", run
    rows = Run(training.out).losses
    losses = run["losses"]
    assert losses["step"].dtype == np.int32
    assert losses["step"].tolist() == [0, 4, 8, 10] == [row["step"] for row in rows]
    assert np.isnan(losses["train_loss"]).tolist() == [True, False, False, False]
    # NA, not NaN: R distinguishes them by their bits.
    assert losses["train_loss"][:1].tobytes() == convert.NA_REAL.tobytes()
    assert losses["held_out_loss"].tolist() == [row["held_out_loss"] for row in rows]
    assert run["best_step"].tolist() == [10]
    assert run["nats_per_token"].tolist() == [min(losses["held_out_loss"])]
    settings = run["settings"]
    assert (settings["steps"].tolist(), settings["config"]["embedding_size"].tolist()) == ([10], [4])
    assert "start" not in settings
    assert settings["from"] is None

    events = [event for event in training.events() if event not in ("preparing", "working", "stepped")]
    assert events == ["begins", "estimated", *["evaluated", "sampled"] * 4]
    evaluated = [news for news in training.received if news["event"] == ["evaluated"]]
    for news, row in zip(evaluated, rows, strict=True):
        for name, value in row.items():
            assert np.array_equal(news[name].astype(float), [value], equal_nan=True), name
    assert training.call("read_run", out=str(training.out))[1]["losses"].keys() == losses.keys()


def test_cancelled_run_has_a_checkpoint_and_resumes(training: Training) -> None:
    training.cancel_at = "evaluated"
    assert training.train(steps=10**6) == ("cancelled", None)
    [checkpoint] = (training.out / "checkpoints").iterdir()
    step = int(checkpoint.name[5:])
    training.cancel_at = ""
    kind, run = training.resume(steps=step + 3.0)
    assert kind == "done", run
    assert [news["step"].tolist() for news in training.received if news["event"] == ["begins"]] == [[step]]
    assert run["losses"]["step"][-1] == step + 3
    # Before the model exists, the same call or resume_training continues the preparation.
    training.out = training.out.with_name("other")
    training.text.write_text(TEXT * 20, encoding="utf-8")  # several pieces
    training.cancel_at = "preparing"
    for call in (training.train, training.train, training.resume):
        assert call() == ("cancelled", None)
        assert [path.name for path in training.out.iterdir()] == ["tokens"]
    training.cancel_at = ""
    kind, run = training.resume(steps=3.0)
    assert kind == "done", run


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 2.5}, "steps must be an integer, not 2.5"),
        ({"speed": 1.0, "start": "gpt2"}, "unknown settings speed, start; the settings are family, from, tokenizer"),
        ({"warmup": 3.0}, "unknown setting warmup; did you mean warm_up?"),
        ({"context": 5000.0}, "use a longer text, or context = "),
        ({"batch": 900.0}, "a smaller batch or context, or carry = FALSE"),
        ({"from": "minhub/shakespeare-gpt2"}, "remove family"),
        ({"config": {"x": np.array([1.0])}}, "config: unknown setting x; the settings of lstm are"),
    ],
)
def test_training_errors_use_r_spelling(training: Training, settings: Any, message: str) -> None:
    kind, failure = training.train(**settings)
    assert (kind, failure["class"]) == ("failed", ["ValueError"])
    assert message in failure["message"][0]
    assert "--" not in failure["message"][0]


def test_notes_are_sent_except_about_matplotlib(training: Training) -> None:
    training.service.session.emit = training.emit
    news = RListener(training.service.session)
    news.note("the curves are not drawn: pip install 'minhub_py[plot]' brings matplotlib")
    news.note("2 characters are not known")
    assert training.received == [{"event": ["note"], "text": ["2 characters are not known"]}]


def test_messages_contain_r_settings_and_calls(training: Training) -> None:
    assert training.train(steps=1.0)[0] == "done"
    _, failure = training.train(steps=1.0)
    assert failure["class"] == ["FileExistsError"]
    assert f'resume it with minhub_resume("{training.out}"), or' in failure["message"][0]
    assert "is not a run of minhub_train()" in training.call("read_run", out=str(training.text.parent))[1]["message"][0]
    with use_r_spelling():
        assert spelling.setting("start") == "from"
        assert spelling.setting("start", 'a "run"') == r'from = "a \"run\""'
        assert spelling.setting("carry", False) == "carry = FALSE"
        assert spelling.resume_call("run", steps=20) == 'minhub_resume("run", steps = 20)'
        assert spelling.download_call("owner/name", "v1") == 'from_pretrained("owner/name", revision = "v1")'
    assert spelling.resume_call("run", steps=20) == "resume('run', steps=20)"


# The worker


class Peer:
    """A client that imitates R."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(0o700)
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "r_bridge.worker", str(folder), str(os.getpid())],
            stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while not (folder / "address").exists():
            assert self.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        address = loads((folder / "address").read_bytes())
        (folder / "address").unlink()
        self.socket = socket.create_connection(("127.0.0.1", scalar(address["port"], int)))
        self.socket.settimeout(60)
        self.socket.sendall(protocol.pack(protocol.HELLO, 0, address["secret"]))
        assert protocol.read_frame(self.socket) == (protocol.WELCOME, 0, address["proof"])
        self.calls = itertools.count(1)

    def call(self, payload: bytes) -> tuple[int, Any]:
        """The kind and value of the final response to a request."""
        number = next(self.calls)
        self.socket.sendall(protocol.pack(protocol.CALL, number, payload))
        return self.end_of(number)

    def end_of(self, number: int) -> tuple[int, Any]:
        """The kind and value of the final response, after any number of parts."""
        while True:
            kind, call, data = protocol.read_frame(self.socket)
            if call == number and kind & 0xFF != protocol.PART:
                return kind, loads(data if kind < protocol.FILE else Path(data.decode()).read_bytes())

    def ask(self, method: str, /, **arguments: Any) -> tuple[int, Any]:
        return self.call(dumps({"method": method, "arguments": arguments, "release": np.array([], np.int32)}))

    def rss(self) -> int:
        return psutil.Process(self.process.pid).memory_info().rss

    def end(self) -> str:
        """Close the connection. Returns the worker's standard error."""
        self.socket.close()
        _, said = self.process.communicate(timeout=30)
        return said.decode()


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Any]:
    made: list[Peer] = []

    def peer() -> Peer:
        made.append(Peer(tmp_path / f"folder {len(made)}"))
        return made[-1]

    yield peer
    for each in made:
        each.socket.close()
        each.process.kill()
        each.process.communicate()


def test_worker_survives_corrupt_requests(peers: Any) -> None:
    peer = peers()
    assert peer.ask("nothing") == (protocol.DONE, None)
    random = np.random.default_rng(1)
    good = dumps({"method": "nothing", "arguments": {"a": [1, "x"], "b": EXAMPLE}, "release": np.arange(3)})
    requests = [b"", b"garbage", good[:-1], good + b"x", dumps(None), dumps([1, 2]), dumps({"method": 5}), dumps("x")]
    # Valid values with invalid attributes.
    integer = struct.pack("=iii", convert.INTEGER | convert.HAS_ATTRIBUTES, 1, 5)
    for attributes in ({"levels": ["u"]}, {"levels": 5}, {"dim": ["a"]}, {"dim": [None]}, {"dim": np.array([2.5])},
                       {"dim": np.array([-3, 7])}, {"dim": {}}, {"dim": []}, {"levels": b"x"}):  # fmt: skip
        requests.append(convert.HEADER + integer + b"".join(convert._attributes(attributes)))
    listed = struct.pack("=iii", convert.LIST | convert.HAS_ATTRIBUTES, 1, convert.NULL)
    for names in ([["x"]], [{}], 5, {"a": 1}, b"x", [None], np.array([1.5]), np.array([1, 2])):
        requests.append(convert.HEADER + listed + b"".join(convert._attributes({"names": names})))
    for _ in range(1000):
        data = bytearray(good)
        for _ in range(random.integers(1, 4)):
            data[random.integers(len(data))] = random.integers(256)
        requests.append(bytes(data))
    kinds = set()
    for request in requests:
        kind, value = peer.call(request)
        kinds.add(kind)
        if kind == protocol.FAILED:
            assert set(value) == {"class", "message"}
            assert value["message"][0]
    assert kinds <= {protocol.FAILED, protocol.DONE}
    assert peer.ask("nothing") == (protocol.DONE, None)
    assert peer.end() == ""
    assert not peer.folder.exists()


def test_worker_exits_silently_after_an_invalid_frame(peers: Any) -> None:
    header = struct.Struct("=iiii").pack
    for nonsense in [
        b"x" * 16,
        np.random.default_rng(2).bytes(1 << 16),
        header(protocol.MAGIC, protocol.CALL, 1, -1),
        header(protocol.MAGIC, protocol.CALL, 1, 2**31 - 1) + b"only this",
        header(protocol.MAGIC, protocol.CALL, 1, 100)[:7],
    ]:
        peer = peers()
        before = peer.rss()
        with suppress(OSError):  # the worker may exit earlier
            peer.socket.sendall(nonsense)
            peer.socket.shutdown(socket.SHUT_WR)
        with pytest.raises(OSError):  # noqa: PT011  # ProtocolError, or the connection is reset
            protocol.read_frame(peer.socket)
        assert peer.end() == ""
        assert peer.process.returncode == 0
        assert not peer.folder.exists()
        assert before < 300e6


def test_worker_ignores_unknown_frames(peers: Any) -> None:
    """Unknown kinds, CANCEL for a completed or unknown request, and many at once."""
    peer = peers()
    for kind, call in [(protocol.CANCEL, 0), (protocol.CANCEL, 77), (99, 1), (protocol.HELLO, 0), (-5, -5), (0, 0)]:
        peer.socket.sendall(protocol.pack(kind, call, b"some bytes"))
    assert peer.ask("nothing") == (protocol.DONE, None)
    peer.socket.sendall(protocol.pack(protocol.CANCEL, 1) * 5000)
    assert peer.ask("nothing") == (protocol.DONE, None)
    # Concurrent requests run in sequence.
    request = dumps({"method": "nothing", "arguments": {}, "release": []})
    numbers = [next(peer.calls) for _ in range(200)]
    peer.socket.sendall(b"".join(protocol.pack(protocol.CALL, number, request) for number in numbers))
    assert [protocol.read_frame(peer.socket)[1] for _ in numbers] == numbers
    assert peer.end() == ""


def test_cancelled_request_responds_with_its_number(peers: Any) -> None:
    peer = peers()
    kind, about = peer.ask(
        "fresh", family="lstm", config={"vocab_size": 9, "hidden_size": 8, "embedding_size": 8}, seed=1
    )
    assert kind == protocol.DONE
    arguments = {
        "model": about["number"], "prompts": [np.array([1])], "tokenizer": None, "max_new_tokens": 10**9,
        "temperature": 1.0, "top_k": None, "top_p": None, "repetition_penalty": 1.0, "seeds": np.array([1.0]),
        "eos_id": None, "stop": None, "stream": False,
    }  # fmt: skip
    for _ in range(20):
        number = next(peer.calls)
        request = dumps({"method": "generate", "arguments": arguments, "release": []})
        peer.socket.sendall(protocol.pack(protocol.CALL, number, request) + protocol.pack(protocol.CANCEL, number))
        assert peer.end_of(number) == (protocol.CANCELLED, None)
        assert peer.ask("nothing") == (protocol.DONE, None)
    # The worker exits without completing the request when the connection closes.
    peer.socket.sendall(protocol.pack(protocol.CALL, next(peer.calls), request))
    assert peer.end() == ""


def test_large_results_use_a_file_or_the_socket(peers: Any, tmp_path: Path) -> None:
    peer = peers()
    config = {"vocab_size": 5000, "n_embd": 8, "n_head": 2, "n_layer": 1, "n_positions": 16}
    about = peer.ask("fresh", family="gpt2", config=config, seed=1)[1]
    by_file = peer.ask("parameter", model=about["number"], name="wte.weight")
    assert by_file[0] == protocol.DONE | protocol.FILE
    assert len(list(peer.folder.iterdir())) == 1  # the reader deletes it
    shutil.rmtree(peer.folder)
    by_socket = peer.ask("parameter", model=about["number"], name="wte.weight")
    assert by_socket[0] == protocol.DONE
    assert by_socket[1].shape == (5000, 8)
    assert np.array_equal(by_file[1], by_socket[1])
    assert peer.end() == ""


def test_unsendable_result_is_an_error() -> None:
    """The peer receives FAILED, and no file remains."""
    from r_bridge.worker import respond

    class Odd(Service):
        def __init__(self, value: Any) -> None:
            super().__init__()
            self.value = value

        def run(self, *_: Any) -> tuple[str, Any]:
            return "done", self.value

    large = np.zeros(10**6)
    for value in (object(), [object()], [large, object()], {"a": large, "b": 1j}):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            folder = Path(__file__).parent / "not there"
            respond(Odd(value), theirs, folder, 7, threading.Event(), dumps(None))
            kind, call, payload = protocol.read_frame(ours)
            assert (kind, call) == (protocol.FAILED, 7)
            assert set(loads(payload)) == {"class", "message"}


def test_large_file_is_announced_before_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "LEAD", 1 << 20)
    value = np.arange(3e5, dtype=np.float32).reshape(2, 50, 3000)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        protocol.send_value(theirs, protocol.DONE, 7, value, tmp_path)
        ahead, whole = protocol.read_frame(ours), protocol.read_frame(ours)
    assert (ahead[:2], whole[:2]) == ((protocol.AHEAD, 7), (protocol.DONE | protocol.FILE, 7))
    assert ahead[2] == whole[2]
    assert np.array_equal(loads(Path(whole[2].decode()).read_bytes()), value)


def test_unsendable_large_result_leaves_no_file(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with pytest.raises(TypeError):
            protocol.send_value(theirs, protocol.DONE, 1, [np.zeros(10**6), object()], tmp_path)
        assert list(tmp_path.iterdir()) == []


def test_failure_message_may_contain_invalid_utf8() -> None:
    """A file name in an error may contain arbitrary bytes."""
    from r_bridge.worker import respond

    class Odd(Service):
        def run(self, *_: Any) -> tuple[str, Any]:
            return "failed", {"class": "OSError", "message": "no such file: \udcff"}

    ours, theirs = socket.socketpair()
    with ours, theirs:
        respond(Odd(), theirs, Path(), 7, threading.Event(), dumps(None))
        kind, _, payload = protocol.read_frame(ours)
        assert kind == protocol.FAILED
        assert "no such file" in loads(payload)["message"][0]
