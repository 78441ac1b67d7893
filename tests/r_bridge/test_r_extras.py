"""The R package with a Python without the extras of minhub_py, as most users have at first."""

import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from needs import RSCRIPT
from paths import PROGRAMS, R_PACKAGE, ROOT
from r_package import environment

from minhub_py.system.extras import EXTRAS, MODULES

HIDDEN = (
    *(package.replace("-", "_") for extra in EXTRAS.values() for package in extra.packages),
    *MODULES.values(),
)
# Tests and examples that use extras.
FILES = ["test-serve.R", "test-chat.R"]
PAGES = re.compile(r"minhub_serve|schema|[.]gguf|minhub_doctor")


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtualenv with links to this Python's packages, except the modules of extras."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    venv.create(folder, with_pip=False)
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    command = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    for package in installed():
        if not (site / package.name).exists():
            (site / package.name).symlink_to(package)
    (site / "repository.pth").write_text(f"{ROOT}\n")
    return python


def installed() -> Iterator[Path]:
    for folder in map(Path, sys.path):
        if folder.name == "site-packages":
            for path in folder.iterdir():
                if not path.name.lower().startswith(HIDDEN) and path.suffix != ".pth":
                    yield path


def run_r(library: Path, python: Path, *arguments: str, **env: str) -> str:
    """Standard output and error of Rscript."""
    result = subprocess.run(
        [str(RSCRIPT), "--no-init-file", *arguments],
        env=environment(library, MINHUBPY_PYTHON=str(python), **env),
        capture_output=True,
        check=False,
        timeout=280,
    )
    output = result.stdout.decode(errors="replace") + result.stderr.decode(errors="replace")
    assert result.returncode == 0, output[-3000:]
    return output


def test_missing_extras_are_reported_before_work_starts(
    library: Path, bare_python: Path, tmp_path: Path
) -> None:
    (tmp_path / "code.R").write_text("""
        library(minhubpy)
        options(minhubpy.quiet = TRUE)
        model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
        show <- function(expr) cat("@", tryCatch({ expr; "no error" }, minhubpy_error = conditionMessage), "\n")
        show(minhub_serve(model))
        show(minhub_chat(model, schema = list(type = "object")))
        show(minhub_chat(model)$say("Hi", schema = list(type = "object")))
        show(from_pretrained("owner/name:model.gguf"))
        report <- minhub_doctor()
        report <- report[grepl("^extra ", report$what), ]
        cat("@", paste(report$what, report$found, report$fits, report$advice, sep = "|"), sep = "\n@ ")
    """)
    lines = [
        line[2:].strip()
        for line in run_r(library, bare_python, str(tmp_path / "code.R")).splitlines()
        if line.startswith("@ ")
    ]
    pip = (
        f"{bare_python} -m pip install" if (bare_python.parent / "pip").exists() else "pip install"
    )
    serve, json_, again, gguf = lines[:4]
    assert serve.startswith(
        "serving over HTTP requires the Python packages starlette, uvicorn, llguidance: install"
        " with "
    )
    assert json_.startswith(
        "output that follows a JSON schema requires the Python package llguidance: install with "
    )
    assert again == json_
    assert gguf.startswith(
        "reading and writing GGUF files requires the Python package gguf: install with "
    )
    for line, name in zip((serve, json_, gguf), ("serve", "json", "gguf"), strict=True):
        assert pip in line
        assert line.endswith(f"'minhub_py[{name}]'")
    rows = [line.split("|") for line in lines[4:] if line]
    assert [row[0] for row in rows] == [f"extra {name}" for name in EXTRAS]
    assert all(
        row[1].startswith("missing: ")
        and row[2] == "TRUE"
        and row[3].endswith(f"'minhub_py[{row[0][6:]}]'")
        for row in rows
    )


def test_missing_extras_are_reported_with_a_call_that_works(
    library: Path, bare_python: Path, tmp_path: Path
) -> None:
    """The virtual environment of minhub_install() may have neither pip nor uv."""
    (tmp_path / "minhubpy").mkdir()
    (tmp_path / "minhubpy" / "venv").symlink_to(bare_python.parent.parent)
    python = tmp_path / "minhubpy" / "venv" / bare_python.parent.name / bare_python.name
    (tmp_path / "code.R").write_text("""
        library(minhubpy)
        options(minhubpy.quiet = TRUE)
        show <- function(expr) cat("@", tryCatch({ expr; "no error" }, minhubpy_error = conditionMessage), "\n")
        show(linear_probe(matrix(rnorm(40), 10), rep(c("a", "b"), 5)))
        show(minhub_serve(gpt2_from_pretrained("minhub/shakespeare-gpt2")))
        report <- minhub_doctor()
        cat("@", report$advice[grepl("^extra ", report$what)], sep = "\n@ ")
        cat("\n@", c(minhubpy:::EXTRAS, minhubpy:::OTHER_EXTRAS))
    """)
    lines = [
        line[2:].strip()
        for line in run_r(library, python, str(tmp_path / "code.R")).splitlines()
        if line.startswith("@ ")
    ]
    probe, serve, *advice = [line for line in lines if line]
    assert probe.endswith('scikit-learn: install with minhub_install(extras = "probe")')
    assert serve.endswith('install with minhub_install(extras = "serve")')
    assert advice[:-1] == [f'minhub_install(extras = "{name}")' for name in EXTRAS]
    # The choices of minhub_install(extras = ): R has data frames, and its jobs run in one worker.
    assert set(advice[-1].split()) == set(EXTRAS) - {"pandas", "ray"}


def test_examples_and_tests_skip_what_needs_a_missing_extra(
    library: Path, bare_python: Path, tmp_path: Path
) -> None:
    pages = [
        page
        for page in (R_PACKAGE / "man").glob("*.Rd")
        if PAGES.search(page.read_text(encoding="utf-8"))
    ]
    assert len(pages) > 2
    code = [
        f"tools::Rd2ex({str(page)!r}, {f'{page.stem}.R'!r}, commentDontrun = TRUE);"
        f" library(minhubpy); if (file.exists({f'{page.stem}.R'!r})) source({f'{page.stem}.R'!r});"
        " if (nrow(showConnections())) stop('a connection is left open')"
        for page in pages
    ]
    script = tmp_path / "examples.R"
    script.write_text("\n".join([f"setwd({str(tmp_path)!r})", *code]))
    assert "Error" not in run_r(
        library, bare_python, str(script), _R_CHECK_CONNECTIONS_LEFT_OPEN_="true"
    )
    output = run_r(
        library,
        bare_python,
        str(PROGRAMS / "run_testthat.R"),
        str(R_PACKAGE / "tests" / "testthat"),
        *FILES,
    )
    results = [
        line.split("\t")[1:] for line in output.splitlines() if line.startswith("minhub-result\t")
    ]
    assert {file for file, *_ in results} == set(FILES)
    assert [result for result in results if result[1] not in ("success", "skip")] == []
    assert any(
        "lacks minhub_py[serve]" in message for _, kind, _, message in results if kind == "skip"
    )
    assert any(
        "lacks minhub_py[json]" in message for _, kind, _, message in results if kind == "skip"
    )
