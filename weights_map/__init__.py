"""How the Hub's tensor names become ours, and back: one table a family, one engine for all."""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from torch import Tensor

from weights_map.engine import Mapped, Table
from weights_map.gguf import Form

# Every module here with a table is one family's, so that a new family is a new file and nothing more.
_modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
tables: dict[str, Table] = {
    table.model_type: table
    for module in _modules
    for table in getattr(module, "tables", [module.table] if hasattr(module, "table") else [])
}
# By the name of the architecture in GGUF files.
gguf_forms: dict[str, Form] = {form.architecture: form for module in _modules for form in getattr(module, "gguf", ())}


def table_of(model_type: str, config: Any) -> Table:
    """The table of a model with this config: that of an encoder depends on the head."""
    return tables[model_type].for_head(getattr(config, "head", None))


def to_native(model_type: str, tensors: Mapping[str, Tensor], config: Any = None) -> Mapped:
    """The tensors of a Hub checkpoint under our names and in our shapes, each made when it is asked for.

    config: the model's; some tables need it, as where fused heads are told apart by their number alone.
    ValueError lists names that are unknown, missing, or there twice; or the table needs the config.
    KeyError: no such `model_type`.
    """
    return Mapped(tables[model_type], tensors, "hub", config)


def to_hub(model_type: str, tensors: Mapping[str, Tensor], config: Any = None) -> Mapped:
    """The reverse of `to_native`, under the names that transformers writes today."""
    return Mapped(tables[model_type], tensors, "native", config)


__all__ = ["gguf_forms", "table_of", "tables", "to_hub", "to_native"]
