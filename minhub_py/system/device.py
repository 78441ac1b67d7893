"""Choice of device and dtype.

"auto" selects the first of CUDA, XPU, MPS and CPU that works. Each is probed by running a kernel:
only this detects an outdated driver, or a GPU for which this build of PyTorch has no kernels. A GPU
that does not work is reported with the reason and is never an error.
"""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

import torch

from minhub_py.system.quantization import KINDS
from minhub_py.system.spelling import SettingError, setting
from minhub_py.system.tables import Columns, Result

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


@dataclass(frozen=True)
class DeviceProbe:
    """The result of probing one device: its name in PyTorch, whether it works, and its memory in
    bytes.
    """

    name: str
    works: bool
    detail: str
    memory: int | None = None
    free_memory: int | None = None
    dtypes: tuple[str, ...] = ("float32",)


@dataclass(frozen=True, repr=False)
class Devices(Result):
    """All probes and the device that "auto" selects; prints as a table."""

    probes: tuple[DeviceProbe, ...]
    device: str
    reason: str

    def __str__(self) -> str:
        rows = [("DEVICE", "WORKS", "DETAIL")]
        rows += [
            (probe.name, "yes" if probe.works else "no", probe.detail) for probe in self.probes
        ]
        lines = [f"{name:8}{works:7}{detail}" for name, works, detail in rows]
        return "\n".join([*lines, f'"auto" selects {self.device}: {self.reason}'])

    def table(self) -> Columns:
        """A row for each device: device, works and detail."""
        names = {"device": "name", "works": "works", "detail": "detail"}
        return Columns(
            {
                title: [getattr(probe, name) for probe in self.probes]
                for title, name in names.items()
            }
        )

    def heading(self) -> list[str]:
        """The choice of "auto"."""
        return [f'"auto" selects {self.device}: {self.reason}']

    __repr__ = __str__  # for a Python prompt and a notebook


def devices() -> Devices:
    """Probe all devices.

    Returns:
        A report with each device's probe, the device that "auto" selects, and the reason. A
        device that does not work is reported with its error; the function itself raises none.
    """
    by_type = [probe() for probe in PROBES.values()]
    working = next(filter(None, ([probe for probe in probes if probe.works] for probes in by_type)))
    best = max(working, key=lambda probe: probe.free_memory or 0)
    reason = "the first of CUDA, XPU, MPS and CPU that works"
    if len(working) > 1:
        reason += ", with the most free memory of its kind"
    return Devices(tuple(probe for probes in by_type for probe in probes), best.name, reason)


def probe_cuda() -> list[DeviceProbe]:
    """One probe per CUDA (or ROCm) device; without a device, a single probe with the reason."""
    if not torch.backends.cuda.is_built():
        hint = ""
        if shutil.which("nvidia-smi"):
            hint = (
                "; an NVIDIA driver is installed, so install a CUDA build of PyTorch (see"
                " pytorch.org)"
            )
        return [
            DeviceProbe(
                "cuda", False, f"this PyTorch ({torch.__version__}) is built without CUDA{hint}"
            )
        ]
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
    try:
        torch.cuda.init()
        count = torch.cuda.device_count()
    except (RuntimeError, AssertionError) as error:  # no driver, or one too old for this build
        return [
            DeviceProbe("cuda", False, f"PyTorch is built for {build}, but: {first_line(error)}")
        ]
    if count == 0:
        return [DeviceProbe("cuda", False, f"PyTorch is built for {build}, but there is no GPU")]
    return [probe_cuda_device(index, build) for index in range(count)]


def probe_cuda_device(index: int, build: str) -> DeviceProbe:
    """Probe one CUDA device: its name, compute capability and memory, and whether a kernel runs on
    it.
    """
    name = f"cuda:{index}"
    try:
        about = torch.cuda.get_device_properties(index)
        run_kernel(name)
        free, total = torch.cuda.mem_get_info(index)
    except (RuntimeError, AssertionError) as error:
        return DeviceProbe(name, False, first_line(error))
    detail = (
        f"{about.name}, capability {about.major}.{about.minor}, {free / 2**30:.1f} of"
        f" {total / 2**30:.1f} GiB free"
    )
    # bfloat16 is emulated, slowly, before Ampere.
    bf16 = about.major >= 8 or torch.version.hip is not None
    dtypes = ("float32", "float16", *(["bfloat16"] if bf16 else []), "float64")
    return DeviceProbe(name, True, f"{detail}, {build}", total, free, dtypes)


def probe_xpu() -> list[DeviceProbe]:
    """Probe Intel GPUs."""
    if not torch.xpu.is_available():
        return [DeviceProbe("xpu", False, "no Intel GPU, or PyTorch is built without XPU")]
    return probe_by_kernel("xpu", torch.xpu.get_device_name(0), ("float32", "float16", "bfloat16"))


def probe_mps() -> list[DeviceProbe]:
    """Probe Apple GPUs."""
    if not torch.backends.mps.is_available():
        return [DeviceProbe("mps", False, "no Apple GPU, or PyTorch is built without Metal")]
    return probe_by_kernel("mps", "Apple GPU", ("float32", "float16", "bfloat16"))


def probe_cpu() -> list[DeviceProbe]:
    """The CPU, which always works."""
    threads = torch.get_num_threads()
    detail = f"{threads} thread{'s' * (threads > 1)}, {torch.backends.cpu.get_cpu_capability()}"
    return [DeviceProbe("cpu", True, detail, dtypes=tuple(DTYPES))]


def has_onednn_bfloat16() -> bool:
    """Whether oneDNN, which PyTorch includes, computes in bfloat16 here: on x86-64, that takes
    AVX-512.
    """
    # not in a PyTorch without oneDNN
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return supported is not None and bool(supported())


def probe_by_kernel(name: str, detail: str, dtypes: tuple[str, ...]) -> list[DeviceProbe]:
    """Probe a device by running a kernel alone."""
    try:
        run_kernel(name)
    except RuntimeError as error:
        return [DeviceProbe(name, False, first_line(error))]
    return [DeviceProbe(name, True, detail, dtypes=dtypes)]


def run_kernel(device: str) -> None:
    """Run a matrix product and wait for the result, since asynchronous errors appear only then."""
    ones = torch.ones(8, 8, device=device)
    if (ones @ ones).sum().item() != 512:
        raise RuntimeError("a matrix product gave a wrong result")


def first_line(error: BaseException) -> str:
    """The first line of an exception's message; PyTorch's messages can be pages long."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def choose_device(device: str | torch.device = "auto") -> DeviceProbe:
    """The probe of the device given by `device=`. ValueError: the device is unknown or does not
    work.
    """
    if device == "auto":
        report = devices()
        return next(probe for probe in report.probes if probe.name == report.device)
    try:
        requested = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise SettingError(
            f'device {device!r} is unknown; give "auto", "cpu", "cuda", "cuda:1", "mps" or "xpu"'
        ) from error
    if requested.type not in PROBES:
        raise SettingError(
            f'device {device!r} is not one of "auto", "cpu", "cuda", "cuda:1", "mps" or "xpu"'
        )
    probes = PROBES[requested.type]()
    matching = [
        probe
        for probe in probes
        if requested.index is None or probe.name in (str(requested), requested.type)
    ]
    for probe in matching:
        if probe.works:
            return probe
    why = (
        "; ".join(probe.detail for probe in matching)
        or f"there are {len(probes)} devices of this kind"
    )
    advice = f"use {setting('device', 'auto')} to select a working device"
    raise SettingError(f'device "{device}" does not work here: {why}; {advice}')


def choose_dtype(
    dtype: str | torch.dtype, device: DeviceProbe, stored: Iterable[torch.dtype]
) -> torch.dtype:
    """The torch.dtype given by `dtype=`, for weights stored in the dtypes `stored`.

    "auto" keeps the dtype of the checkpoint (the widest, if it has several) if the device supports
    it, and otherwise selects float32. ValueError: unknown dtype.
    """
    if isinstance(dtype, torch.dtype):
        dtype = str(dtype).removeprefix("torch.")
    if dtype != "auto":
        if dtype not in DTYPES:
            raise ValueError(
                f"dtype {dtype!r} is unknown; give auto, {', '.join(DTYPES)}, or for fewer bits"
                f" quantize: {' or '.join(KINDS)}"
            )
        return DTYPES[dtype]
    widest = reduce(torch.promote_types, list(stored) or [torch.float32])
    return widest if str(widest).removeprefix("torch.") in device.dtypes else torch.float32


# In the order of preference of "auto".
PROBES = {"cuda": probe_cuda, "xpu": probe_xpu, "mps": probe_mps, "cpu": probe_cpu}
