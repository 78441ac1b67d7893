"""The processor of this machine, as its system describes it."""

import os
import platform
from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")  # of Linux


def name() -> str:
    """The name of the processor, where the system provides it; else its architecture."""
    return described("model name") or platform.processor() or platform.machine()


@cache
def is_amd() -> bool:
    """Whether AMD made the processor: MKL, which PyTorch calls on x86-64, does not use AVX-512 there."""
    return "AuthenticAMD" in (described("vendor_id") or platform.processor())  # Windows ends its description with it


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def described(field: str) -> str:
    """A field of the first processor in Linux's description; "": there is none."""
    lines = CPUINFO.read_text(errors="replace").splitlines() if CPUINFO.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), "")
