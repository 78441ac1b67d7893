"""The worker itself, and what this machine can do."""

import importlib.metadata
import platform
import sys
from typing import Any

import numpy as np

from minhub_py.system import extras
from r_bridge.convert import Frame, character, one
from r_bridge.objects import Caller


def hello(caller: Caller) -> dict[str, Any]:
    """Versions and path of this Python."""
    return {
        "minhub_py": importlib.metadata.version("minhub_py"),
        "python": platform.python_version(),
        "executable": sys.executable,
        "torch": importlib.metadata.version("torch"),
    }


def nothing(caller: Caller) -> None:
    """An empty call, to measure what a call costs."""


def warm_up(caller: Caller) -> str:
    """Import PyTorch now. Returns its version."""
    import torch

    return torch.__version__


def devices(caller: Caller) -> Frame:
    """The devices that were probed: columns device, works, dtypes, detail, picked."""
    from minhub_py.system.device import devices as probe

    report = probe()
    return Frame({
        "device": character(found.name for found in report.probes),
        "works": np.array([found.works for found in report.probes]),
        "dtypes": character(", ".join(found.dtypes) if found.works else "" for found in report.probes),
        "detail": character(found.detail for found in report.probes),
        "picked": np.array([found.name == report.device for found in report.probes]),
    })  # fmt: skip


def require_extra(caller: Caller, name: str) -> None:
    """Check for an extra. ValueError: it is missing; the message has the command that installs it."""
    extras.require(name)


def doctor(caller: Caller, facts: Any) -> Frame:
    """The doctor's findings: columns what, found, fits, advice. `facts` are R's facts about itself (probe.FACTS)."""
    from minhub_py.system.doctor import examine

    findings = examine({name: one(value, str) for name, value in facts.items()})
    return Frame({
        "what": character(f.what for f in findings),
        "found": character(f.found for f in findings),
        "fits": np.array([f.fits for f in findings]),
        "advice": character(f.advice for f in findings),
    })  # fmt: skip
