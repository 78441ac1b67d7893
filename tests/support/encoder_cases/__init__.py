"""Test cases of each encoder, one module per model file; tests/models/test_encoders.py runs them.

A case is a config.json: the `small` settings of its model_type with the changes of the case. Its
name is the model_type, or begins with it and a colon.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any


@dataclass(frozen=True)
class EncoderCases:
    """A model file's cases.

    small: settings of all cases, by model_type.    cases: name -> changes, so that each setting is
    in at least one.
    published: sizes on the Hub -> parameters.    refused: model_type, settings, and a part of the
    message.
    """

    small: Mapping[str, Mapping[str, Any]]
    cases: Mapping[str, Mapping[str, Any]]
    published: Mapping[str, int]
    refused: tuple[tuple[str, Mapping[str, Any], str], ...]

    def settings(self, name: str) -> dict[str, Any]:
        """The config.json of a case, without the head."""
        model_type = name.partition(":")[0]
        return {"model_type": model_type, **self.small[model_type], **self.cases[name]}


ENCODERS: dict[str, EncoderCases] = {
    module.name: import_module(f"{__name__}.{module.name}").CASES
    for module in iter_modules(__path__)
}
