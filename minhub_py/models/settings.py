"""Settings of a config that exist for some model types only, declared as field metadata "model_types"."""

import dataclasses
from typing import Any


def unavailable(config: Any, model_type: str) -> dict[str, Any]:
    """The settings of a config, or its class, that do not exist for a model type, and their defaults."""
    return {
        field.name: field.default
        for field in dataclasses.fields(config)
        if model_type not in field.metadata.get("model_types", (model_type,))
    }
