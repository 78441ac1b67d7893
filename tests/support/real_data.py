"""Real data for tests that compare published values.

It is in ../shared/data, next to the checkouts of developers and of CI; the README there describes
it. Other clones do not have it.
"""

import os
from pathlib import Path

import pytest
from needs import require

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def real_data(name: str) -> Path:
    """A folder of the real data. If it is missing, the test is skipped, or fails with CI=true."""
    folder = DATA / name
    if not folder.is_dir():
        message = (
            f"compares published values, and the real data is not beside this checkout: {folder}"
        )
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        require(False, message)
    return folder
