"""Fixtures of the tests of models."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from decoders import kernel  # noqa: F401  # a fixture
from random_weights import draw
from references import CASES
from transformers import AutoConfig, AutoModelForCausalLM

import minhub_py


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """load(name): the reference, and our model of its saved file. They are shared: do not change them."""
    loaded: dict[str, Any] = {}

    def get(name: str) -> tuple[Any, Any, Path]:
        if name not in loaded:
            folder = tmp_path_factory.mktemp(name)
            settings = CASES[name].settings(name)
            # A copy: transformers adds missing rope_parameters to the dict.
            reference = AutoModelForCausalLM.from_config(AutoConfig.for_model(**deepcopy(settings))).eval()
            draw(reference)
            reference.save_pretrained(folder)
            (folder / "generation_config.json").unlink(missing_ok=True)
            # The settings of the case, in old or new spelling, and not as transformers writes them.
            (folder / "config.json").write_text(json.dumps(settings))
            loaded[name] = reference, minhub_py.from_pretrained(folder, device="cpu"), folder
        return loaded[name]

    return get
