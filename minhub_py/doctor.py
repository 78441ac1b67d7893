"""`minhub doctor`: what is installed, whether it fits together, and the exact next step where it does not."""

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# The oldest versions that pyproject.toml accepts.
PACKAGES = {
    "torch": "2.4",
    "numpy": "1.26",
    "safetensors": "0.5",
    "tokenizers": "0.22",
    "huggingface_hub": "2.4",
    "httpx2": "2",
    "click": "8.1",
    "rich": "13",
}


@dataclass(frozen=True)
class Finding:
    """One line of the report. `advice` is the next step, empty where all is well."""

    what: str
    found: str
    fits: bool
    advice: str = ""


def examine() -> list[Finding]:
    """All findings. Nothing is changed, and no connection is opened."""
    findings: list[Finding] = []
    for what, section in {"Python": _python, "packages": _packages, "devices": _devices, "Hub": _hub, "R": _r}.items():
        try:
            findings += section()
        except Exception as error:  # a doctor reports what is broken
            findings.append(Finding(what, f"{type(error).__name__}: {error}", False, "mend what this names"))
    return findings


def _python() -> Iterator[Finding]:
    yield Finding("Python", f"{platform.python_version()} ({sys.executable})", True)


def _packages() -> Iterator[Finding]:
    for name, oldest in PACKAGES.items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name, "missing", False, f"pip install '{name}>={oldest}'")
            continue
        fits = _numbers(found) >= _numbers(oldest)
        yield Finding(name, found, fits, "" if fits else f"pip install --upgrade '{name}>={oldest}'")


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.partition("+")[0].split(".")[:2] if part.isdigit()]


def _devices() -> Iterator[Finding]:
    from minhub_py.device import devices

    report = devices()
    for probe in report.probes:
        # A machine without a GPU is in order; only one whose GPU fails has a next step, and the detail says it.
        yield Finding(probe.name, probe.detail if probe.works else f"none: {probe.detail}", True)
    yield Finding('device "auto"', report.device, True)


def _hub() -> Iterator[Finding]:
    from huggingface_hub import constants, get_token

    cache = Path(constants.HF_HUB_CACHE)
    existing = next(path for path in (cache, *cache.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    writable = os.access(existing, os.W_OK)
    advice = "" if writable else "set HF_HOME to a folder that you may write"
    yield Finding("Hub cache", f"{cache} ({free / 1e9:.0f} GB free)", writable, advice)
    yield Finding("Hub token", "found" if get_token() else "none (only private and gated models need one)", True)
    yield Finding(
        "Hub address", constants.ENDPOINT + (" (HF_HUB_OFFLINE is set)" if constants.HF_HUB_OFFLINE else ""), True
    )


def _r() -> Iterator[Finding]:
    from r_bridge import find_r

    r = find_r()
    if r is None:
        yield Finding("R", "none (only R users need it)", True)
        return
    yield Finding("R", f"{'.'.join(map(str, r.version))} ({r.executable})", True)
    fits = r.rpy2_found is None or r.rpy2_fits
    found = r.rpy2_found or "none (only Python programs that host R need it)"
    yield Finding("rpy2", found, fits, "" if fits else f"pip install 'rpy2-rinterface{r.rpy2}'")
