"""Checks the wheels of `make wheels`: tags, contents, what their libraries say of themselves, and
that they run.

    python tests/check_wheels.py dist

The decoder of each wheel repeats recorded calls (recorded_calls.py) where it can run: on this
machine, by qemu-aarch64-static, or by wine. For macOS, and where neither is installed, only the
library's headers are read.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import lief

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # setup.py's table
FUNCTIONS = {"choose", "decode", "interface", "has_bfloat16_tiles", "pack_nf4"}
# Each platform's processor, as the header of a library says it.
PROCESSORS = {
    "manylinux_2_17_x86_64": "X86_64",
    "manylinux_2_17_aarch64": "AARCH64",
    "macosx_11_0_x86_64": "X86_64",
    "macosx_11_0_arm64": "ARM64",
    "win_amd64": "AMD64",
    "win_arm64": "ARM64",
}
TARGETS = dict(re.findall(r'"(\w+)": "([\w.-]+)"', (ROOT / "setup.py").read_text(encoding="utf-8")))
ARM_LIBRARIES = "/usr/aarch64-linux-gnu"  # Debian's libc6-arm64-cross


def main() -> None:
    folder = Path(sys.argv[1])
    (source,) = folder.glob("*.tar.gz")
    wheels = {path.stem.split("-")[-1]: path for path in folder.glob("*.whl")}
    assert wheels.keys() == PROCESSORS.keys() == TARGETS.keys(), f"wheels of {sorted(wheels)}"
    modules = set[str]()
    with tempfile.TemporaryDirectory() as scratch:
        record = Path(scratch, "calls")
        subprocess.run(
            [sys.executable, ROOT / "tests/support/recorded_calls.py", record], check=True
        )
        for name, wheel in sorted(wheels.items()):
            assert wheel.name == source.name.removesuffix(".tar.gz") + f"-py3-none-{name}.whl"
            with zipfile.ZipFile(wheel) as archive:
                files = set(archive.namelist())
                (library,) = [
                    file for file in files if file.endswith((".so", ".dll", ".dylib", ".pyd"))
                ]
                archive.extract(library, Path(scratch, name))
            assert library == "minhub_py/inference/native/_decoder" + (
                ".dll" if name.startswith("win") else ".so"
            )
            modules = modules or {file for file in files if file.endswith(".py")}
            assert modules == {file for file in files if file.endswith(".py")}, (
                "wheels with other modules"
            )
            path = Path(scratch, name, library)
            needs = look_at(path, name)
            print(
                f"{name}: {path.stat().st_size:,} bytes; {needs}; {run(path, name, record)}",
                flush=True,
            )


def look_at(path: Path, name: str) -> str:
    """The processor and functions of a library, and that it needs nothing that a fresh system
    lacks.
    """
    binary: Any = lief.parse(path)
    system = name.partition("_")[0]
    if system == "manylinux":
        processor = binary.header.machine_type.name
        needed = set(binary.libraries)
        symbols = [
            symbol
            for needs in binary.symbols_version_requirement
            for symbol in needs.get_auxiliary_symbols()
        ]
        versions = {
            tuple(map(int, symbol.name.removeprefix("GLIBC_").split("."))) for symbol in symbols
        }
        assert max(versions) <= (2, 17), f"{name} needs glibc {max(versions)}"
        assert needed <= {
            "libc.so.6",
            "libm.so.6",
            "libpthread.so.0",
            "ld-linux-aarch64.so.1",
        }, needed
        if shutil.which("auditwheel", path=sysconfig.get_path("scripts")):
            audit = [
                sys.executable,
                "-m",
                "auditwheel",
                "show",
                next(Path(sys.argv[1]).glob(f"*{name}.whl")),
            ]
            result = subprocess.run(audit, capture_output=True, text=True, check=True).stdout
            assert name in result, result
    elif system == "macosx":
        binary = binary.at(0) if isinstance(binary, lief.MachO.FatBinary) else binary
        processor = binary.header.cpu_type.name
        needed = {
            library.name for library in binary.libraries if not library.name.endswith(path.name)
        }
        assert [*binary.build_version.minos][:2] == [11, 0]
        assert processor != "ARM64" or binary.has_code_signature, (
            "macOS on ARM loads signed libraries only"
        )
    else:
        processor = binary.header.machine.name
        needed = {library.name.lower() for library in binary.imports}
        ours = {
            file
            for file in needed
            if file != "kernel32.dll" and not file.startswith("api-ms-win-crt-")
        }
        assert not ours, f"{name} needs {ours}"
    assert processor == PROCESSORS[name], f"{name} is for {processor}"
    functions = {str(function.name).lstrip("_") for function in binary.exported_functions}
    assert functions >= FUNCTIONS, f"{name} has {functions}"
    return "needs " + ", ".join(sorted(needed))


def emulator_of(name: str) -> str | None:
    """The program that runs a platform's decoder here; None if it runs directly or not at all."""
    if name.startswith("manylinux"):
        if (
            platform.machine() == name.removeprefix("manylinux_2_17_")
            or not Path(ARM_LIBRARIES).is_dir()
        ):
            return None
        return shutil.which("qemu-aarch64-static") if name.endswith("aarch64") else None
    return shutil.which("wine") if name == "win_amd64" else None


def obstacle(name: str) -> str:
    """Why a platform's decoder does not run here; empty if it does."""
    if emulator_of(name) or name == f"manylinux_2_17_{platform.machine()}":
        return ""
    missing = {
        "manylinux_2_17_aarch64": "qemu-user-static and libc6-arm64-cross",
        "win_amd64": "wine",
    }.get(name)
    return (
        f"install {missing}"
        if missing
        else "no emulator of this platform; only the library's headers are checked"
    )


def run(library: Path, name: str, record: Path) -> str:
    """What the recorded calls gave, or why they were not repeated."""
    if reason := obstacle(name):
        return f"SKIPPED the run: {reason}"
    emulator = emulator_of(name)
    program = library.with_name("replay.exe")
    libraries = [] if name.startswith("win") else ["-ldl", "-lm"]
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", TARGETS[name]]
    subprocess.run(
        [*compiler, "-O1", ROOT / "tests/support/programs/replay.c", *libraries, "-o", program],
        check=True,
    )
    command = [emulator, program, library, record] if emulator else [program, library, record]
    # wine is not to show windows or messages.
    environment = {"QEMU_LD_PREFIX": ARM_LIBRARIES, "WINEDEBUG": "-all", **os.environ}
    said = []
    # Of ARM's processors one that has all instructions, and one without dot products.
    for processor in ("max", "cortex-a72") if emulator and name.startswith("manylinux") else ("",):
        environment["QEMU_CPU"] = processor
        result = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment
        )
        print(result.stdout, result.stderr[-2000:])
        assert result.returncode == 0
        said.append(result.stdout.splitlines()[-1])
    return f"ran{' by ' + Path(emulator).name if emulator else ''}: {'; '.join(said)}"


if __name__ == "__main__":
    main()
