"""The bridge to R: the R package minhubpy, the worker process that serves it, and R inside Python (`RSession`).

Names are imported at their first use, since `RSession` needs NumPy and rpy2.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from r_bridge.host.session import RError as RError
    from r_bridge.host.session import RSession as RSession
    from r_bridge.host.session import RWarning as RWarning
    from r_bridge.probe import find_r as find_r

_HOMES = {"RSession": "host.session", "RError": "host.session", "RWarning": "host.session", "find_r": "probe"}
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"r_bridge.{_HOMES[name]}"), name)
