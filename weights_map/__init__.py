"""Conversion between the Hub's tensor names and native names: one table per architecture, and one
engine.
"""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules

from torch import Tensor

from weights_map.conversion import Mapped
from weights_map.engine import Table
from weights_map.gguf import GGUFArchitecture

# A module with a `table` adds an architecture. Its `gguf` is a tuple of GGUF architectures.
_modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
tables: dict[str, Table] = {
    table.model_type: table
    for module in _modules
    for table in getattr(module, "tables", [module.table] if hasattr(module, "table") else [])
}
gguf_architectures: dict[str, GGUFArchitecture] = {
    architecture.key: architecture
    for module in _modules
    for architecture in getattr(module, "gguf", ())
}


def table_of(model_type: str, config: object) -> Table:
    """The table of a model with this config. An encoder's table depends on the head."""
    return tables[model_type].for_model(config)


def to_native(model_type: str, tensors: Mapping[str, Tensor], config: object = None) -> Mapped:
    """Convert a Hub checkpoint's tensors to native names and shapes, each on access.

    Args:
        model_type: a key of `tables`.
        tensors: Hub tensors by name. A lazy mapping is not loaded.
        config: the model's config. Some tables require it, such as those with fused heads.

    Raises:
        ValueError: names are unknown, missing or duplicate (all are listed), or the table requires
            a config.
        KeyError: `model_type` is unknown.
    """
    return Mapped(tables[model_type], tensors, "hub", config)


def to_hub(model_type: str, tensors: Mapping[str, Tensor], config: object = None) -> Mapped:
    """Convert native tensors to the Hub names that transformers writes. The inverse of `to_native`."""
    return Mapped(tables[model_type], tensors, "native", config)


__all__ = ["gguf_architectures", "table_of", "tables", "to_hub", "to_native"]
