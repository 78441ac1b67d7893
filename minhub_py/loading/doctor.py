"""Checks of the installation for `minhub doctor`, with instructions for missing and incompatible
components.
"""

import ctypes
import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from minhub_py.system.extras import EXTRAS, install_command, pip

if TYPE_CHECKING:
    from minhub_py.inference.native.library import Opened

# The minimum versions, as in pyproject.toml.
PACKAGES = {
    "torch": "2.4",
    "numpy": "1.26",
    "safetensors": "0.5",
    "tokenizers": "0.23.3",
    "huggingface_hub": "2.4",
    "httpx2": "2",
    "click": "8.4.2",
    "rich": "13",
    "jinja2": "3.1.6",
    "filelock": "3.13",
    "pyyaml": "6",
}
# The build of PyTorch to install, by the driver's CUDA version. Within a major version any driver
# runs any build.
WHEELS = {(13, 0): "13.0", (12, 0): "12.6"}
# Why the C decoder selected its kernels.
KERNELS = {
    "amx": "the processor has AVX-512 and AMX",
    "bf16": "the processor has AVX-512 with VNNI and BF16, but AMX is missing or not permitted",
    "vnni": (
        "the processor has AVX-512 with VNNI, but BF16 is missing or not supported by the compiler"
    ),
    "avx512": "the processor has AVX-512",
    "avx2": "the processor has AVX2, but not all required parts of AVX-512",
    "dotprod": "a 64-bit ARM processor with dot products of 8-bit numbers",
    "neon": "a 64-bit ARM processor without dot products of 8-bit numbers",
    "plain": "the processor has neither AVX2 nor NEON",
}
DRIVERS = "https://www.nvidia.com/drivers"
BUILDS = "https://pytorch.org/get-started/locally"


@dataclass(frozen=True)
class Finding:
    """A line of the report: component, state, whether it works, and advice.

    present: False for an optional component that is not installed.
    advice: how to fix the problem; for a working component an optional improvement, or empty.
    """

    what: str
    found: str
    fits: bool
    advice: str = ""
    present: bool = True


Section = Callable[[], Iterable[Finding]]


def examine(further: Mapping[str, Section] = MappingProxyType({})) -> list[Finding]:
    """Check the installation, without changing it or opening a connection.

    further: sections of other packages, by the name under which an unexpected error is reported.
    """
    sections: dict[str, Section] = {
        "Python": _python,
        "packages": _packages,
        "extras": _extras,
        "devices": _devices,
        "Hub": _hub,
        **further,
    }
    findings: list[Finding] = []
    for what, section in sections.items():
        try:
            findings += section()
        except Exception as error:  # a broken installation can fail anywhere: report it
            findings.append(
                Finding(
                    what, f"{type(error).__name__}: {error}", False, "fix the cause of this error"
                )
            )
    return findings


def _python() -> Iterator[Finding]:
    if sys.prefix != sys.base_prefix:
        kind = "a virtual environment"
    elif Path(sys.prefix, "conda-meta").is_dir():
        kind = "a conda environment"
    else:
        kind = "no virtual environment"
    yield Finding("Python", f"{platform.python_version()} ({sys.executable}), {kind}", True)


def version_of(package: str) -> str | None:
    """The version of an installed Python package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _packages() -> Iterator[Finding]:
    for name, minimum in PACKAGES.items():
        version = version_of(name)
        if version is None:
            yield Finding(name, "missing", False, f"{pip()} '{name}>={minimum}'")
        else:
            fits = _numbers(version) >= _numbers(minimum)
            yield Finding(
                name, version, fits, "" if fits else f"{pip()} --upgrade '{name}>={minimum}'"
            )


def _extras() -> Iterator[Finding]:
    """Optional packages. An outdated package is a problem; a missing package is not."""
    for name, extra in EXTRAS.items():
        versions = {package: version_of(package) for package in extra.packages}
        minimum = {package: _numbers(version) for package, version in extra.packages.items()}
        old = any(
            version and _numbers(version) < minimum[package]
            for package, version in versions.items()
        )
        states = [f"{package} {version}" for package, version in versions.items() if version]
        absent = [package for package, version in versions.items() if version is None]
        if absent:
            states.append(f"missing: {', '.join(absent)} (only needed for {extra.purpose})")
        advice = install_command(name, upgrade=old) if absent or old else ""
        yield Finding(f"extra {name}", ", ".join(states), not old, advice, present=not absent)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.partition("+")[0].split(".")[:2] if part.isdigit())


def _devices() -> Iterator[Finding]:
    try:
        import torch
    except (ImportError, OSError) as error:  # a part of PyTorch or a shared library is missing
        yield Finding(
            "devices",
            f"PyTorch cannot be imported: {error}",
            False,
            f"{pip()} --force-reinstall torch",
        )
        return

    from minhub_py.inference.native.library import opened
    from minhub_py.system.device import devices

    report = devices()
    for probe in report.probes:
        # A machine without a GPU is fine; problems of an NVIDIA GPU are reported with its driver.
        detail = probe.detail if probe.works else f"none: {probe.detail}"
        yield Finding(probe.name, detail, True, present=probe.works)
    yield Finding('device "auto"', report.device, True)
    yield judge_decoder(opened())
    cuda = [probe for probe in report.probes if probe.name.startswith("cuda")]
    fault = "" if any(probe.works for probe in cuda) else cuda[0].detail
    yield judge_driver(torch.version.cuda, nvidia_driver(), fault)


def judge_decoder(opened: "Opened") -> Finding:
    """Whether the C decoder works. It is optional; without it, generation on a CPU is slower."""
    if opened.library is not None:
        return Finding("decoder in C", f"{opened.detail} kernels: {KERNELS[opened.detail]}", True)
    slower = f"{opened.detail}; generation on a CPU uses PyTorch, which is slower"
    return Finding("decoder in C", slower, not opened.broken, opened.advice, present=False)


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver: its maximum CUDA version, the number of GPUs, and its error if it does not
    start.
    """

    cuda: tuple[int, int]
    gpus: int
    fault: str = ""


def nvidia_driver() -> Driver | None:
    """Query the driver's library; None without a driver. PyTorch's CPU build cannot query it;
    nvidia-smi may hang.
    """
    try:
        cuda = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
    version, gpus, text = ctypes.c_int(), ctypes.c_int(), ctypes.c_char_p()
    cuda.cuDriverGetVersion(ctypes.byref(version))  # 12040 is 12.4
    status = cuda.cuInit(0)
    if status == 0:
        cuda.cuDeviceGetCount(ctypes.byref(gpus))
    elif status != 100:  # CUDA_ERROR_NO_DEVICE
        cuda.cuGetErrorString(status, ctypes.byref(text))
    newest = (version.value // 1000, version.value % 1000 // 10)
    return Driver(newest, gpus.value, (text.value or b"").decode())


def judge_driver(build: str | None, driver: Driver | None, fault: str) -> Finding:
    """Whether the build of PyTorch, the driver and the GPU are compatible.

    build: the CUDA version of PyTorch.    fault: why no GPU works; empty if a GPU works.
    """
    state = f"PyTorch for CUDA {build}" if build else "PyTorch without CUDA"
    if driver is None:
        return Finding("CUDA", f"{state}, no NVIDIA driver", True, present=False)
    state += f", driver for CUDA up to {driver.cuda[0]}.{driver.cuda[1]}, GPUs: {driver.gpus}"
    update = f"update the driver ({DRIVERS})"
    if driver.fault:
        advice = f"restart the computer; if that does not help, {update}"
        return Finding("CUDA", f"{state}; the driver does not start: {driver.fault}", False, advice)
    if not fault or not driver.gpus:
        return Finding("CUDA", state, True)
    wheel = next((wheel for minimum, wheel in WHEELS.items() if driver.cuda >= minimum), None)
    if wheel is None:
        return Finding("CUDA", f"{state}; the driver is too old", False, update)
    if build is None:
        return Finding("CUDA", f"{state}; the GPU is not used", False, _install_torch(wheel))
    if driver.cuda < _numbers(build)[:1]:
        return Finding(
            "CUDA",
            f"{state}; the driver is too old",
            False,
            f"{_install_torch(wheel)} (or {update})",
        )
    advice = "check with nvidia-smi for other processes on the GPU, then run again"
    # the build does not support the GPU's generation: try the other major version of CUDA
    if "kernel image" in fault:
        minimum, wheel = next(item for item in WHEELS.items() if item[0][:1] != _numbers(build)[:1])
        advice = ("" if driver.cuda >= minimum else f"{update}, then: ") + _install_torch(wheel)
    return Finding("CUDA", f"{state}; {fault}", False, advice)


def _install_torch(wheel: str) -> str:
    # Without --force-reinstall, pip does not replace another build of the same version.
    return f"{pip()} --force-reinstall torch --index-url … as {BUILDS} shows it for CUDA {wheel}"


def _hub() -> Iterator[Finding]:
    from huggingface_hub import constants, get_token

    from minhub_py.checkpoints.hub import size

    cache = Path(constants.HF_HUB_CACHE).expanduser()
    existing = next(path for path in (cache, *cache.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    advice = ""
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        advice = "set HF_HOME to a writable folder"
    elif free < 1e9:  # twice the size of GPT-2
        advice = "free some space, or set HF_HOME to a folder on a larger disk"
    yield Finding("Hub cache", f"{cache} ({size(free)} free)", not advice, advice)

    # Reports contain the source of the token, but never the token.
    variables = [
        name for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") if os.environ.get(name, "").strip()
    ]
    source = f"found, from {(*variables, constants.HF_TOKEN_PATH)[0]}"
    token = get_token() is not None
    state = source if token else "none (only private and gated models need one)"
    yield Finding("Hub token", state, True, present=token)
    yield Finding(
        "Hub address",
        constants.ENDPOINT + (" (HF_HUB_OFFLINE is set)" if constants.HF_HUB_OFFLINE else ""),
        True,
    )

    partial = sorted(cache.glob("models--*/blobs/*.incomplete"))
    models = sorted(
        {path.parents[1].name.removeprefix("models--").replace("--", "/") for path in partial}
    )
    state = (
        f"{size(sum(path.stat().st_size for path in partial))} of {', '.join(models)}"
        if partial
        else "none"
    )
    advice = f"minhub download {models[0]}, which resumes the download" if partial else ""
    yield Finding("unfinished downloads", state, True, advice)
