"""The R package's tests, in a plain R session and in R hosted by Python.

They are in r_bridge/minhubpy/tests/testthat, and compare with results of Python from r_package.py.
"""

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import fast_python
import pytest
from guarantees import EXACT
from needs import RSCRIPT
from paths import PROGRAMS, R_PACKAGE
from r_package import environment

R_TESTS = R_PACKAGE / "tests" / "testthat"
WITHOUT_MATPLOTLIB = PROGRAMS / "without_matplotlib"

# R with a worker, and R inside Python. The latter differs in how it transfers calls, values, errors
# and interrupts.
WAYS = {
    "worker": [str(RSCRIPT), "--no-init-file"],
    "hosted": [sys.executable, "-m", "minhub_py.cli.main", "r"],
}
ALL = sorted(path.name for path in R_TESTS.glob("test-*.R"))
HOSTED = [
    f"test-{name}.R"
    for name in (
        "arguments",
        "chat",
        "console",
        "data",
        "generate",
        "input",
        "model",
        "parity",
        "tokenizer",
        "weights",
        "words",
        "worker",
    )
]
# of the hosted ones, those of `make test`
FIRST = ["test-data.R", "test-generate.R", "test-parity.R"]
RUNS = {("worker", False): ALL, ("hosted", False): FIRST}
RUNS["hosted", True] = [file for file in HOSTED if file not in FIRST]
Results = dict[str, list[tuple[str, str, str]]]


def run_r_tests(
    way: str, library: Path, reference_folder: Path, files: list[str], timeout: int, **more: str
) -> Results:
    """(kind, test, message) of each expectation, by file."""
    # Python's plot of the losses would take longer than the run; test_run_files.py tests it.
    named: dict[str, str | None] = {"PYTHONPATH": str(WITHOUT_MATPLOTLIB), **more}
    # in reverse order, with a Python that is found by the last of several variables
    if way == "worker":
        files = files[::-1]
        named = {"MINHUBPY_PYTHON": None, "RETICULATE_PYTHON": fast_python.python(), **named}
    else:  # `minhub r` installs minhubpy, here without bytecode, which the other way's library has
        named = {
            "R_USER_CACHE_DIR": str(library.parent / "hosted"),
            "R_COMPILE_PKGS": "FALSE",
            **named,
        }
    result = subprocess.run(
        [*WAYS[way], str(PROGRAMS / "run_testthat.R"), str(R_TESTS), *files],
        env=environment(library, MINHUBPY_REFERENCE=str(reference_folder), **named),
        capture_output=True,
        check=False,
        timeout=timeout,
    )
    said = result.stdout.decode(errors="replace") + result.stderr.decode(errors="replace")
    assert result.returncode == 0, said[-5000:]
    results: dict[str, list[tuple[str, str, str]]] = {}
    for line in said.splitlines():
        if line.startswith("minhub-result\t"):
            _, file, kind, test, message = line.split("\t", 4)
            results.setdefault(file, []).append((kind, test, message))
    return results


@pytest.fixture(scope="module")
def results_of(library: Path, reference_folder: Path) -> Callable[[str, bool], Results]:
    """The results of one run of several test files."""
    return functools.cache(
        lambda way, slow: run_r_tests(way, library, reference_folder, RUNS[way, slow], timeout=880)
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("way", "slow", "file"),
    [
        pytest.param(way, slow, file, marks=[pytest.mark.slow] * slow, id=f"{way}-{file}")
        for (way, slow), files in RUNS.items()
        for file in files
    ],
)
def test_r_tests_pass(
    results_of: Callable[[str, bool], Results], way: str, slow: bool, file: str
) -> None:
    results = results_of(way, slow)[file]
    bad = [
        f"{test}: {message}" for kind, test, message in results if kind not in ("success", "skip")
    ]
    assert not bad, "\n".join(bad)
    skipped = {message for kind, _, message in results if kind == "skip"}
    # Only tests of R torch, of recipes, of ggplot2, of a missing decoder, and in hosted R of the worker may be skipped.
    missing = ["torch", "recipes", "ggplot2"]
    missing += {"worker": [], "hosted": ["only a plain R session has a worker"]}[way]
    missing += [] if EXACT else ["no C decoder"]
    assert all(any(reason in message for reason in missing) for message in skipped), skipped
    torch = ["test-torch.R", "test-torch-module.R"]
    needs = {"worker": torch, "hosted": [*torch, "test-worker.R"]}[way]
    assert file in needs or any(kind == "success" for kind, _, _ in results)


@pytest.mark.slow
def test_r_tests_are_skipped_without_python(library: Path, tmp_path: Path) -> None:
    results = run_r_tests(
        "worker", library, tmp_path, ALL, timeout=300, MINHUBPY_PYTHON="/nonexistent"
    )
    kinds = {
        (kind, test, message)
        for lines in results.values()
        for kind, test, message in lines
        if kind != "success"
    }
    assert {kind for kind, _, _ in kinds} == {"skip"}, [line for line in kinds if line[0] != "skip"]


# R torch is not in Debian, and its LibTorch differs from Python's: only `make test-rtorch` runs
# these.

NEEDS_R_TORCH = """this needs the R package torch and its LibTorch: install.packages("torch") and torch::install_torch()
in R, in a library that Rscript looks into (the environment variable R_LIBS adds one). R says: """


@pytest.fixture(scope="module")
def with_r_torch(library: Path) -> str:
    """R_LIBS with the current package and the user's libraries, which include R torch."""
    libraries = os.pathsep.join([str(library), *filter(None, [os.environ.get("R_LIBS")])])
    code = "cat(as.numeric(torch::torch_tensor(41) + 1))"
    result = subprocess.run(
        [str(RSCRIPT), "--no-init-file", "-e", code],
        env=environment(library, R_LIBS=libraries),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if result.stdout != "42":
        pytest.exit(NEEDS_R_TORCH + " ".join(result.stderr.split())[:300], returncode=1)
    return libraries


@pytest.mark.rtorch
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", WAYS)
def test_r_tests_pass_with_r_torch(
    way: str, library: Path, with_r_torch: str, tmp_path: Path
) -> None:
    files = ["test-torch.R", "test-torch-module.R", "test-weights.R"]
    results = run_r_tests(way, library, tmp_path, files, timeout=1700, R_LIBS=with_r_torch)
    result = [
        (kind, f"{file}: {test}: {message}")
        for file, rows in results.items()
        for kind, test, message in rows
    ]
    bad = [what for kind, what in result if kind not in ("success", "skip")]
    assert not bad, "\n".join(bad)
    passed = [what for kind, what in result if kind == "success"]
    skipped = [what for kind, what in result if kind == "skip"]
    assert passed
    assert way == "hosted" or all("R torch works here" in what for what in skipped), skipped
    print(f"{way}: {len(passed)} expectations passed, {len(skipped)} tests skipped")
