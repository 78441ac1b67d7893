"""Correct responses to the stored inputs of `make fuzz`."""

from pathlib import Path

import pytest
from fuzz_targets import TARGETS

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*/*.bin"))


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_earlier_failures_are_answered_correctly(path: Path, tmp_path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes(), tmp_path)
