"""Fixtures of the tests of checkpoints."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from corruption import TINY, save
from memory import peak, reset_peak


@pytest.fixture(scope="module", params=TINY)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(family: str, tmp_path: Path) -> Path:
    """A valid checkpoint."""
    return save(family, tmp_path / family)


@pytest.fixture
def bounded_memory() -> Iterator[None]:
    """Limit each test's memory to 300 MB, independent of the sizes that files declare."""
    reset_peak()
    before = peak()
    yield
    assert peak() - before < 300 * 2**20


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the seconds that the client would sleep, without sleeping."""
    seconds: list[float] = []
    monkeypatch.setattr(time, "sleep", seconds.append)
    return seconds
