"""Fixtures of the tests of training."""

import sys
from pathlib import Path

import pytest
from training_runs import TEXT

from minhub_py.training import progress


@pytest.fixture
def pictures() -> None:
    """Allow matplotlib in a test."""


@pytest.fixture(autouse=True)
def no_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide matplotlib, because drawing takes longer than everything else in these tests."""
    if "pictures" not in request.fixturenames:
        monkeypatch.setitem(sys.modules, "matplotlib", None)


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the hint that the machine is busy."""
    monkeypatch.setattr(progress, "load_average", lambda: (0.0, 1))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path
