"""Real data for the tests that compare published values.

It lies in ../shared/data, beside the checkout of a developer and of CI; the README there tells of it. A clone of
anybody else has nothing beside it.
"""

import os
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def real_data(name: str) -> Path:
    """A folder of the real data. Where it is missing the test is skipped, and where CI=true it fails."""
    folder = DATA / name
    if not folder.is_dir():
        message = f"compares published values, and the real data is not beside this checkout: {folder}"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return folder
