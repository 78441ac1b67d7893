"""The worker and the machine: versions, devices, diagnosis."""

import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping

from minhub_py.system import extras
from r_bridge.arguments import frame, scalar
from r_bridge.convert import Frame
from r_bridge.objects import Session


def hello(session: Session) -> dict[str, object]:
    """The versions and the path of this Python, and the requested number of threads."""
    threads = os.environ.get("OMP_NUM_THREADS", "")
    return {
        "minhub_py": importlib.metadata.version("minhub_py"),
        "python": platform.python_version(),
        "executable": sys.executable,
        "torch": importlib.metadata.version("torch"),
        "threads": int(threads) if threads.isdecimal() else None,
    }


def nothing(session: Session) -> None:
    """Do nothing, to measure a request's overhead."""


def warm_up(session: Session) -> str:
    """Import PyTorch. Returns its version."""
    import torch

    return torch.__version__


def devices(session: Session) -> Frame:
    """The probed devices: columns device, works, dtypes, detail, picked."""
    from minhub_py.system.device import devices as probe_devices

    report = probe_devices()
    return frame(
        {
            "device": [probe.name for probe in report.probes],
            "works": [probe.works for probe in report.probes],
            "dtypes": [", ".join(probe.dtypes) if probe.works else "" for probe in report.probes],
            "detail": [probe.detail for probe in report.probes],
            "picked": [probe.name == report.device for probe in report.probes],
        }
    )


def require_extra(session: Session, name: str) -> None:
    """ValueError: an extra is not installed; the message contains the command that installs it."""
    extras.require(name)


def doctor(session: Session, facts: Mapping[str, object]) -> Frame:
    """The findings of minhub doctor: columns what, found, fits, advice. facts: about R, from
    probe.FACTS.
    """
    from r_bridge.doctor import examine

    findings = examine({name: scalar(value, str) for name, value in facts.items()})
    return frame(
        {
            name: [getattr(finding, name) for finding in findings]
            for name in ("what", "found", "fits", "advice")
        }
    )
