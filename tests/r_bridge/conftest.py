"""Fixtures of the tests of the R bridge."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from r_package import environment
from r_processes import RProcess, StartR


@pytest.fixture
def start_r(library: Path, tmp_path: Path) -> Iterator[StartR]:
    """Start R processes. Remaining processes and their workers are killed after the test."""
    started: list[RProcess] = []

    def start(
        code: str | Path,
        *,
        before: Sequence[str] = (),
        arguments: Sequence[str] = (),
        popen: dict[str, Any] | None = None,
        **more: str | None,
    ) -> RProcess:
        # A separate temporary folder, so that remaining files are detected.
        (tmp_path / "tmp").mkdir(exist_ok=True)
        # A worker that is a child process of R, whose lifetime tests observe.
        more = {"TMPDIR": str(tmp_path / "tmp"), "MINHUBPY_PYTHON": sys.executable, **more}
        started.append(
            RProcess(
                tmp_path, code, environment(library, **more), before, arguments, **(popen or {})
            )
        )
        return started[-1]

    yield start
    for r in started:
        r.process.kill()
        r.process.communicate()
