"""Name, vendor and number of cores of the processor."""

import os
import platform
from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")  # on Linux


def name() -> str:
    """The name of the processor, or its architecture if the system does not provide a name."""
    return described("model name") or platform.processor() or platform.machine()


@cache
def is_amd() -> bool:
    """Whether the processor is from AMD, where MKL, which PyTorch uses on x86-64, does not use
    AVX-512.
    """
    return "AuthenticAMD" in (
        described("vendor_id") or platform.processor()
    )  # on Windows, the description ends with the vendor


@cache
def has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 numbers in hardware, as far as Linux reports it."""
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(described("flags").split())


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def described(field: str) -> str:
    """A field of the first processor in /proc/cpuinfo; empty if it is missing."""
    lines = CPUINFO.read_text(errors="replace").splitlines() if CPUINFO.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), "")
