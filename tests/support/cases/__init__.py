"""Test cases of each architecture, one module each; tests/models/test_architectures.py runs them.

A module has a `FAMILY`. A case is a config.json: the `small` settings with the changes of the case.
Its name begins with the model_type, up to the first "-", unless the settings have a model_type.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from importlib import import_module
from pkgutil import iter_modules
from typing import Any


@dataclass(frozen=True)
class Cases:
    """The cases of a family.

    small: settings of all cases, as in config.json.    cases: name -> changes, so that each setting
    is in at least one case.    few: names, one for each model_type and kind of cache, for tests
    that do not depend on other settings.
    gradients: names whose gradients are compared with the reference's.    published: sizes on the
    Hub -> parameters.
    refused: settings -> a part of the message.
    """

    small: Mapping[str, Any]
    cases: Mapping[str, Mapping[str, Any]]
    few: tuple[str, ...]
    gradients: tuple[str, ...]
    published: Mapping[str, int]
    refused: tuple[tuple[Mapping[str, Any], str], ...] = ()
    fresh: Mapping[str, Any] = field(
        default_factory=dict
    )  # settings that a new small model needs in addition to `small`

    def settings(self, name: str) -> dict[str, Any]:
        """The config.json of a case."""
        # A copy: transformers changes the dict of rotary settings.
        return deepcopy(
            {"model_type": name.split("-", maxsplit=1)[0], **self.small, **self.cases[name]}
        )


ARCHITECTURES: dict[str, Cases] = {
    module.name: import_module(f"{__name__}.{module.name}").FAMILY
    for module in iter_modules(__path__)
}
