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
    """load(name): the reference, and our model of the file that it saves. They are shared: leave them as they are."""
    loaded: dict[str, Any] = {}

    def get(name: str) -> tuple[Any, Any, Path]:
        if name not in loaded:
            folder = tmp_path_factory.mktemp(name)
            settings = CASES[name].settings(name)
            # A copy: transformers writes what rope_parameters leave out into the dicts that it is given.
            reference = AutoModelForCausalLM.from_config(AutoConfig.for_model(**deepcopy(settings))).eval()
            draw(reference)
            reference.save_pretrained(folder)
            (folder / "generation_config.json").unlink(missing_ok=True)
            # As it was given, in the old spelling or the new, and not as transformers writes it.
            (folder / "config.json").write_text(json.dumps(settings))
            loaded[name] = reference, minhub_py.from_pretrained(folder, device="cpu"), folder
        return loaded[name]

    return get
