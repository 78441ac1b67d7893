"""Fixtures of the tests of models."""

from pathlib import Path
from typing import Any

import pytest
from decoders import kernel  # noqa: F401  # a fixture
from references import CASES, save_reference

import minhub_py


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """load(name): the reference, and our model of its saved file. They are shared: do not change
    them.
    """
    loaded: dict[str, Any] = {}

    def get(name: str) -> tuple[Any, Any, Path]:
        if name not in loaded:
            folder = tmp_path_factory.mktemp(name)
            reference = save_reference(CASES[name].settings(name), folder)
            loaded[name] = reference, minhub_py.from_pretrained(folder, device="cpu"), folder
        return loaded[name]

    return get
