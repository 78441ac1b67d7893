"""The R bridge: the R package minhubpy, its worker process, and R embedded in Python (`RSession`).

Names are imported lazily, since `RSession` requires NumPy and rpy2.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from r_bridge.host.session import RError as RError
    from r_bridge.host.session import RSession as RSession
    from r_bridge.host.session import RWarning as RWarning
    from r_bridge.probe import find_r as find_r

_MODULES = {
    "RSession": "host.session",
    "RError": "host.session",
    "RWarning": "host.session",
    "find_r": "probe",
}
__all__ = [*_MODULES]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"r_bridge.{_MODULES[name]}"), name)
