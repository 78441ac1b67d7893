"""The server of the fuzzers' targets ends after their tests."""

from collections.abc import Iterator

import pytest
from fuzz_targets import OPEN, server


@pytest.fixture(scope="package", autouse=True)
def _close() -> Iterator[None]:
    yield
    OPEN.close()
    server.cache_clear()
