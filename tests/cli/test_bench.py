"""`minhub bench` on built-in models. No test asserts a time."""

import json
import math
import os
import subprocess
from pathlib import Path

import pytest
from commands import done, failed, minhub
from fast_python import python

from minhub_py import gpt2, save_pretrained

GPT2 = "minhub/shakespeare-gpt2"
QUICK = ("bench", "--quick", "--repeats", "1", "--threads", "1", "--model")


@pytest.mark.slow
def test_every_case_measures_every_requested_kind(tmp_path: Path) -> None:
    saved = tmp_path / "run.json"
    shown = done(*QUICK, GPT2, "--weights", "float32", "--weights", "nf4", "--save", str(saved))
    result = json.loads(saved.read_text())
    assert result["model"] == GPT2
    assert result["machine"]["threads"] == 1
    assert list(result["cases"]) == ["decode", "prefill", "batch", "load"]
    for name, rows in result["cases"].items():
        assert [row["weights"] for row in rows] == ["float32", "nf4"]
        for key, value in (
            (key, value) for row in rows for key, value in row.items() if key != "weights"
        ):
            # Differences of two times, which a busy machine can make negative.
            assert math.isfinite(value) if key in ("ms/token", "% of bandwidth") else value > 0, key
        assert f"{name}: " in shown
    decode, nf4 = result["cases"]["decode"]
    # all parameters except the positions
    assert decode["MB/token"] * 1e6 == 4 * (1_907_360 - 256 * 160)
    assert nf4["MB/token"] < decode["MB/token"] / 4
    # its context has 256 positions
    assert list(result["cases"]["prefill"][0]) == ["weights", "ms at 32", "ms at 256"]


def test_json_has_the_same_result_as_a_table() -> None:
    result = json.loads(
        done(*QUICK, "minhub/shakespeare-lstm", "--only", "decode", "--weights", "int8", "--json")
    )
    assert list(result["cases"]) == ["decode"]
    assert result["repeats"] == 1


def test_errors_precede_measurements(tmp_path: Path) -> None:
    for arguments, status, message in (
        (
            ["--only", "everything"],
            2,
            "'everything' is not one of 'decode', 'prefill', 'batch', 'load'",
        ),
        (
            ["--save", "nowhere/run.json"],
            1,
            "nowhere/run.json cannot be written: the folder nowhere does not exist",
        ),
        (["--model", "./nowhere"], 1, "There is no folder ./nowhere"),
        (["--threads", "0"], 2, "0 is not in the range x>=1"),
    ):
        error = failed("bench", *arguments, status=status)
        assert message in error
        assert "Measuring" not in error


def test_a_profile_has_the_time_of_each_operation() -> None:
    arguments = (*QUICK, GPT2, "--profile", "--weights", "float32", "--weights", "int8", "--json")
    cases = json.loads(done(*arguments))["cases"]
    assert list(cases) == ["prompt", "tokens"]
    for rows in cases.values():
        for kind in ("float32", "int8"):
            part = {row["operation"]: row for row in rows if row["weights"] == kind}
            assert math.isclose(sum(row["% of time"] for row in part.values()), 100)
            layer = part["Linear h.mlp.c_fc"]
            assert min(layer[name] for name in ("ms", "GMAC/s", "% of peak", "GB/s")) > 0
            assert part["Norm"]["GMAC/s"] is None


def test_a_profile_fits_a_short_context(tmp_path: Path) -> None:
    save_pretrained(gpt2(vocab_size=10, n_positions=9, n_embd=8, n_layer=1, n_head=2), tmp_path)
    arguments = (*QUICK, str(tmp_path), "--profile", "--weights", "float32", "--json")
    cases = json.loads(done(*arguments))["cases"]
    assert list(cases) == ["prompt", "tokens"]


def test_a_profile_replaces_the_cases() -> None:
    for arguments, message in (
        (["--profile", "--only", "decode"], "--profile replaces the cases"),
        (["--weights", "stored"], "--weights stored needs a --model"),
    ):
        assert message in failed("bench", *arguments, status=2)


def test_a_pipe_shows_each_case_when_it_is_measured() -> None:
    arguments = (*QUICK, GPT2, "--weights", "int8", "--only", "decode", "--only", "prefill")
    output = minhub(*arguments).output  # both streams, in their order
    assert [
        line.split()[0]
        for line in output.splitlines()
        if line.startswith(("Preparing", "Measuring", "int8"))
    ] == [
        "Preparing",
        "Measuring",
        "int8",
        "Measuring",
        "int8",
    ]


@pytest.mark.slow
def test_the_decoder_is_named_and_its_absence_is_an_error_unless_it_is_requested() -> None:
    """A checkout that is not compiled would measure PyTorch unnoticed, at a tenth of the speed."""
    code = """
import os, pathlib, sys
from minhub_py.inference.native import library
if sys.argv.pop(1) == "missing":
    library.PATH = pathlib.Path("/nowhere/_decoder.so")
from minhub_py.cli.main import main
main()
"""
    arguments = [*QUICK, GPT2, "--only", "decode", "--weights", "float32"]
    results = {
        (state, disabled): subprocess.run(
            [python(), "-c", code, state, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "MINHUB_NO_DECODER": disabled},
        )
        for state, disabled in (("missing", ""), ("missing", "1"), ("present", "1"))
    }
    missing = results["missing", ""]
    assert missing.returncode == 1
    assert "the decoder in C is not compiled, so this would measure" in missing.stderr
    assert "Preparing" not in missing.stderr
    for key in (("missing", "1"), ("present", "1")):
        assert results[key].returncode == 0, results[key].stderr
        assert "PyTorch without the decoder in C" in results[key].stdout
