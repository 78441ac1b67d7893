"""How the Hub's tensor names become ours, and back: one table a family, one engine for all."""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules

from torch import Tensor

from weights_map.engine import Mapped, Table

# Every module here but the engine is one family's table, so that a new family is a new file and nothing more.
_modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__) if module.name != "engine"]
tables: dict[str, Table] = {module.table.model_type: module.table for module in _modules}


def to_native(model_type: str, tensors: Mapping[str, Tensor]) -> Mapped:
    """The tensors of a Hub checkpoint under our names and in our shapes, each made when it is asked for.

    ValueError lists names that are unknown, missing, or there twice; KeyError: no such `model_type`.
    """
    return Mapped(tables[model_type], tensors, "hub")


def to_hub(model_type: str, tensors: Mapping[str, Tensor]) -> Mapped:
    """The reverse of `to_native`, under the names that transformers writes today."""
    return Mapped(tables[model_type], tensors, "native")


__all__ = ["tables", "to_hub", "to_native"]
