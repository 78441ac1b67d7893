"""Conversion of values between Python and R, compared with R."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from bridge_calls import EXAMPLE, in_r

from r_bridge import arguments, convert
from r_bridge.convert import Frame, dumps, loads

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
    (arguments.character([]), "character()"),
    (arguments.character(iter(["a"])), '"a"'),
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
    (
        np.arange(3 * 2**17, dtype=np.float32).reshape(3, -1),
        "matrix(as.numeric(0:393215), 3, byrow = TRUE)",
    ),
    (np.arange(3 * 2**17).reshape(-1, 3), "matrix(0:393215, ncol = 3, byrow = TRUE)"),
    (np.array(["2026-01-02", "NaT"], "datetime64[D]"), 'as.Date(c("2026-01-02", NA))'),
    (
        np.array(["1969-12-31T23:59:59.5", "NaT"], "datetime64[ms]"),
        'as.POSIXct(c(-0.5, NA), "UTC", origin = "1970-01-01")',
    ),
    (
        np.ma.MaskedArray(np.array([1500, 2], "timedelta64[ms]"), [False, True]),
        'as.difftime(c(1.5, NA), units = "secs")',
    ),
    (
        np.array([["2026-01-02", "2026-01-03"]], "datetime64[D]"),
        'structure(c(20455, 20456), class = "Date", dim = 1:2)',
    ),
    (Frame({"a": np.array([1, 2]), "b": ["x", None]}), 'data.frame(a = 1:2, b = c("x", NA))'),
    (
        Frame({"a": np.array([], np.int32), "b": arguments.character([])}),
        "data.frame(a = integer(), b = character())",
    ),
    (Frame({}), "data.frame()"),
]


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
    columns = {
        "a": np.arange(1.5, 4),
        "b": ["x", None, "\u00e9"],
        "c": None,
        "d": np.arange(6.0).reshape(2, 3),
    }
    frame = Frame({"i": np.array([3, 1]), "t": np.array([True, False])})
    for value, code in [
        (
            columns,
            (
                'list(a = 1:3 + 0.5, b = c("x", NA, "\\u00e9"), c = NULL, d = matrix(c(0, 3, 1, 4,'
                " 2, 5), 2))"
            ),
        ),
        (frame, "data.frame(i = c(3L, 1L), t = c(TRUE, FALSE))"),
    ]:
        from_r = in_r(tmp_path, f"writeBin(serialize({code}, NULL, xdr = FALSE, version = 2), OUT)")
        assert from_r[14:] == dumps(value)[14:]


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
    (
        "matrix(c(1L, NA, 3L, 4L), 2)",
        np.ma.MaskedArray([[1, 3], [0, 4]], [[False, False], [True, False]]),
    ),
    (
        "structure(1:2, class = c('haven_labelled', 'vctrs_vctr', 'integer'), labels = c(x = 1L))",
        np.array([1, 2], np.int32),
    ),
    ('table(c("a", "b", "a"))', np.array([2, 1], np.int32)),
    ('structure("a", class = c("glue", "character"))', ["a"]),
    ("structure(list(x = 1), class = 'whatever')", {"x": np.array([1.0])}),
    # bit64::as.integer64(c(2^40, NA, -7)): the bits of integers in doubles
    (
        (
            "structure(readBin(as.raw(c(0, 0, 0, 0, 0, 1, 0, 0, rep(0, 7), 128, 249, rep(255, 7))),"
            " 'double', 3), class = 'integer64')"
        ),
        np.ma.MaskedArray(np.array([2**40, 0, -7]), [False, True, False]),
    ),
    (
        'as.Date(c("2026-01-02", NA, "1969-12-31")) + 0.5',
        np.array(["2026-01-02", "NaT", "1969-12-31"], "M8[D]"),
    ),
    (
        "as.Date(0:1, origin = '1970-01-01')",
        np.array(["1970-01-01", "1970-01-02"], "datetime64[D]"),
    ),
    (
        'as.POSIXct(c("2026-01-02 12:00:00.25", NA), tz = "Europe/Berlin")',
        np.array(["2026-01-02T11:00:00.25", "NaT"], "datetime64[us]"),
    ),
    ("as.POSIXct(Inf, origin = '1970-01-01')", np.array(["NaT"], "datetime64[us]")),
    (
        'as.difftime(c(1.5, NA), units = "hours")',
        np.array([5_400_000_000, "NaT"], "timedelta64[us]"),
    ),
    ('data.frame(day = as.Date("2026-01-02"))', {"day": np.array(["2026-01-02"], "datetime64[D]")}),
    ("structure(list(x = 1), note = 'a', other = 'b')", {"x": np.array([1.0])}),
]


def same(a: Any, b: Any) -> bool:
    match a, b:
        case np.ndarray(), np.ndarray():
            masks = np.array_equal(np.ma.getmaskarray(a), np.ma.getmaskarray(b))
            if a.dtype.kind in "mM":
                return a.dtype == b.dtype and np.array_equal(a.astype(np.int64), b.astype(np.int64))
            return (
                a.dtype == b.dtype and a.shape == b.shape and masks and bool(np.ma.allequal(a, b))
            )
        case list(), list():
            return len(a) == len(b) and all(map(same, a, b))
        case dict(), dict():
            return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and a == b


def test_r_values_are_equal_in_python(tmp_path: Path) -> None:
    codes = ", ".join(code for code, _ in FROM_R)
    data = in_r(
        tmp_path, f"writeBin(serialize(list({codes}), NULL, xdr = FALSE, version = 2), OUT)"
    )
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
    codes = [
        "1:3",
        "c(1.5, NA, NaN, -Inf)",
        "c(TRUE, NA)",
        'c("a", NA, "\\u00e9")',
        "as.raw(1:9)",
        "matrix(rnorm(6), 2)",
        'list(a = 1L, b = list("x", NULL))',
        "array(1:24, 2:4)",
    ]
    write = f"set.seed(1); x <- list({', '.join(codes)})"
    data = in_r(tmp_path, f"{write}; writeBin(serialize(x, NULL, xdr = FALSE, version = 2), OUT)")
    check = (
        f"{write}; same <- identical(readRDS(IN), x, single.NA = FALSE);"
        " writeLines(as.character(same), OUT)"
    )
    assert in_r(tmp_path, check, dumps(loads(data))).decode().strip() == "TRUE"


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, 1j, np.array([1j]), np.array([None]), [object()], {"a": print}]
)
def test_unsupported_python_values_raise_type_error(value: Any) -> None:
    with pytest.raises(TypeError, match="has no counterpart in R"):
        dumps(value)


def test_frame_columns_must_have_equal_length() -> None:
    with pytest.raises(ValueError, match=r"differ in length: \[1, 2\]"):
        dumps(Frame({"a": np.arange(1), "b": np.arange(2)}))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("quote(x)", "a name"),
        ("function(x) x", "a function"),
        ("sum", "a function"),
        ("globalenv()", "an environment"),
        ("1i", "a complex number"),
        ("expression(a)", "an expression"),
        ("y ~ x", "a call"),
        ("new.env()", "an environment"),
        ("baseenv()", "an environment"),
        ("asNamespace('stats')", "an environment"),
        ("pairlist(a = 1)", "a pairlist"),
        ("methods::getClass('numeric')", "an S4 object"),
        ("as.POSIXlt('2026-01-02')", "the class POSIXlt"),
        ("utils::as.roman(5)", "the class roman"),
        ("as.hexmode(10)", "the class hexmode"),
        ("structure(5, class = 'units', units = 'm')", "the class units"),
        ("list(a = list(utils::as.roman(5)))", "the class roman"),
        ("structure(list(a = as.octmode(8)), class = 'data.frame')", "the class octmode"),
        ("structure(TRUE, class = 'answer')", "the class answer"),
    ],
)
def test_unsupported_r_values_raise_value_error(tmp_path: Path, code: str, kind: str) -> None:
    """Values that can be called or evaluated, and numbers with another meaning, are rejected by
    name.
    """
    data = in_r(tmp_path, f"writeBin(serialize({code}, NULL, xdr = FALSE, version = 2), OUT)")
    with pytest.raises(ValueError, match=f"^{kind} has no counterpart in Python"):
        loads(data)


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
    values = [
        dumps(EXAMPLE),
        dumps(Frame({"a": np.arange(2), "b": ["x", "y"]})),
        factor(),
        dumps([[["deep"]]] * 3),
    ]
    refused = 0
    for number in range(20_000):
        data = bytearray(values[number % len(values)])
        for _ in range(random.integers(1, 4)):
            position = random.integers(14, len(data))
            # Most integers of the format are aligned to four bytes.
            if random.random() < 0.5 and position + 4 <= len(data):
                small = random.choice(
                    [
                        -1,
                        0,
                        1,
                        2,
                        3,
                        9,
                        13,
                        14,
                        16,
                        19,
                        254,
                        255,
                        1026,
                        2**31 - 1,
                        -(2**31),
                        531,
                        19 + 512,
                    ]
                )
                data[position : position + 4] = struct.pack("=i", small)
            else:
                data[position] = random.integers(256)
        try:
            loads(bytes(data))
        except ValueError:
            refused += 1
    assert refused > 5000


def factor() -> bytes:
    """factor(c("u", "v")), serialized by R."""
    codes = struct.pack(
        "=iiii", convert.INTEGER | convert.HAS_ATTRIBUTES | convert.IS_OBJECT, 2, 1, 2
    )
    attributes = b"".join(convert._attributes({"levels": ["u", "v"], "class": ["factor"]}))
    return convert.HEADER + codes + attributes


def test_invalid_lengths_do_not_allocate_memory() -> None:
    before = psutil.Process().memory_info().rss
    for kind in (
        convert.REAL,
        convert.INTEGER,
        convert.STRINGS,
        convert.LIST,
        convert.RAW,
        convert.LOGICAL,
    ):
        for length in (
            struct.pack("=i", 2**31 - 1),
            struct.pack("=iii", -1, 2**20, 0),
            struct.pack("=i", -2),
        ):
            with pytest.raises(ValueError, match="invalid length|the data ends"):
                loads(convert.HEADER + struct.pack("=i", kind) + length)
    nested = convert.HEADER + struct.pack("=ii", convert.LIST, 1) * 100_000
    with pytest.raises(ValueError, match="nested more than 100 levels deep"):
        loads(nested)
    assert psutil.Process().memory_info().rss - before < 50e6


@pytest.mark.parametrize("names", ['c("a", "a")', 'c("a", NA)', 'c("a", "")', "1:2"])
def test_names_of_a_list_must_be_unique(tmp_path: Path, names: str) -> None:
    data = in_r(
        tmp_path,
        f"writeBin(serialize(`attr<-`(list(1, 2), 'names', {names}), NULL, xdr = FALSE, version ="
        " 2), OUT)",
    )
    if names == "1:2":
        assert list(loads(data)) == ["1", "2"]  # R converts them to strings
        return
    with pytest.raises(ValueError, match="names of a list must be complete and unique"):
        loads(data)


def test_numbers_of_json_are_doubles_in_r_if_they_exceed_its_integers() -> None:
    """Models write any number."""
    value = arguments.json_data(
        {"a": 10**400, "b": [1, -(2**70)], "c": [0.5, 10**400], "d": -(2**70), "e": [1, 2]}
    )
    result = loads(dumps(value))
    largest = np.finfo(float).max
    assert [np.asarray(result[name]).tolist() for name in "abcde"] == [
        [largest],
        [1.0, -(2.0**70)],
        [0.5, largest],
        [-(2.0**70)],
        [1, 2],
    ]


def test_a_schema_that_cannot_be_compiled_is_an_error_in_r() -> None:
    for text in ("[" * 700 + "]" * 700, '{"maximum": 1e999}', "{"):
        with pytest.raises(ValueError, match="schema must be valid JSON"):
            arguments.json_schema([text])
