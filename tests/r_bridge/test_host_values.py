"""Values of Python programs in R: pandas frames, lists of numbers, and dates, compared with R."""

from datetime import date, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from bridge_calls import in_r

from r_bridge.convert import dumps
from r_bridge.host.values import for_r

DAYS = [date(2026, 11, 28), None]
EAST = timezone(timedelta(hours=2))
FRAME = pd.DataFrame(
    {
        "whole": np.array([1, 2], "int64"),
        "missing": [1.5, np.nan],
        "nullable": pd.array([3, None], dtype="Int64"),
        "flag": [True, False],
        "maybe": pd.array([None, True], dtype="boolean"),
        "text": ["a", None],
        "category": pd.Categorical(["x", "y"]),
        "time": pd.to_datetime(["2026-11-28 12:00", None]),
        "zone": pd.to_datetime(["2026-11-28 12:00+02:00"] * 2),
        "day": [date(2026, 11, 28), None],
        3: [0.5, 1],
    },
    index=["first", "second"],
)
NOON = 'as.POSIXct("2026-11-28 12:00", tz = "UTC")'
NOON_AND_NA = 'as.POSIXct(c("2026-11-28 12:00", NA), tz = "UTC")'
R_FRAME = f"""
    data.frame(whole = 1:2, missing = c(1.5, NA), nullable = c(3L, NA), flag = c(TRUE, FALSE), maybe = c(NA, TRUE),
      text = c("a", NA), category = c("x", "y"), time = {NOON_AND_NA}, zone = rep({NOON} - 7200, 2),
      day = as.Date(c("2026-11-28", NA)), `3` = c(0.5, 1), check.names = FALSE)
"""
CASES = [
    ([1, 2, 3], "1:3"),
    ([1, 2.5, None], "c(1, 2.5, NA)"),
    ([True, None], "c(TRUE, NA)"),
    ([2**40, 1], "c(2^40, 1)"),
    ((1.0, 2.0), "c(1, 2)"),
    (["a", None], 'c("a", NA)'),
    ([1, "two"], 'list(1L, "two")'),
    ([True, 1], "list(TRUE, 1L)"),
    ([[1, 2], [3]], "list(1:2, 3L)"),
    ({"a": [1, 2], "b": {"c": [None]}}, "list(a = 1:2, b = list(c = NA_character_))"),
    ([], "list()"),
    (date(2026, 11, 28), 'as.Date("2026-11-28")'),
    (DAYS, 'as.Date(c("2026-11-28", NA))'),
    (datetime(2026, 11, 28, 12), NOON),
    ([datetime(2026, 11, 28, 14, tzinfo=EAST), None], NOON_AND_NA),
    (FRAME, R_FRAME),
    (FRAME["nullable"], "c(3L, NA)"),
    (pd.Index([1, 2]), "1:2"),
    (pd.DatetimeIndex(["2026-11-28 12:00", None]), NOON_AND_NA),
    (pd.Categorical(["a", None]), 'c("a", NA)'),
    (pd.array([3, None], dtype="Int64"), "c(3L, NA)"),
    ([pd.Timestamp("2026-11-28 12:00"), pd.NaT], NOON_AND_NA),
    ([1, pd.NA], "c(1L, NA)"),
    (["a", pd.NA], 'c("a", NA)'),
    ({"a": pd.NaT}, 'list(a = as.POSIXct(NA, tz = "UTC"))'),
    (FRAME.iloc[:0][["text", "missing"]], "data.frame(text = character(), missing = double())"),
]


def test_values_are_identical_in_r(tmp_path: Path) -> None:
    values = dumps([for_r(value) for value, _ in CASES])
    expected = ",\n".join(code for _, code in CASES)
    code = f"""
        actual <- readRDS(IN)
        expected <- list({expected})
        same <- mapply(function(a, b) isTRUE(all.equal(a, b, tolerance = 0)), actual, expected)
        bad <- which(!same)
        shown <- vapply(actual[bad], function(value) paste(deparse(value), collapse = " "), "")
        writeLines(c("bad:", paste(bad, shown)[seq_along(bad)]), OUT)
    """
    assert in_r(tmp_path, code, values).decode().splitlines() == ["bad:"]


def test_columns_with_the_same_name_are_an_error() -> None:
    with pytest.raises(ValueError, match="the data frame has two columns a: rename one of them"):
        for_r(pd.DataFrame([[1, 2]], columns=["a", "a"]))


def test_a_column_without_counterpart_is_named() -> None:
    with pytest.raises(TypeError, match="the column x has no counterpart in R: it contains set"):
        for_r(pd.DataFrame({"x": [{1}, {2}]}))
