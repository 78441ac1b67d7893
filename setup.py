"""Compiles the C decoder, minhub_py/inference/native; pyproject.toml describes the rest of the
package.

The decoder is a plain shared library that does not use Python's C API, so one wheel per platform
serves every version of Python. Its files are compiled in parallel. Without a working C compiler,
pip installs ziglang for the build.

    CC                  the command of the compiler; otherwise the first of cc, clang and gcc that works, then ziglang
    MINHUB_PLATFORM     cross-compile for one of TARGETS with ziglang (make wheels)
    MINHUB_NO_DECODER   any value: compile nothing; the package then computes with PyTorch alone
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

# Platform of a wheel -> ziglang's target, with the oldest supported system.
TARGETS = {
    "manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "macosx_11_0_x86_64": "x86_64-macos.11.0",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
    "win_amd64": "x86_64-windows-gnu",
    "win_arm64": "aarch64-windows-gnu",
}
FLAGS = ["-O3", "-g0", "-fvisibility=hidden", "-fno-math-errno"]
PLATFORM = os.environ.get("MINHUB_PLATFORM")
if PLATFORM and PLATFORM not in TARGETS:
    sys.exit(f"MINHUB_PLATFORM={PLATFORM} is not one of {', '.join(TARGETS)}")
WINDOWS = PLATFORM.startswith("win") if PLATFORM else sys.platform == "win32"


ZIGLANG = "ziglang~=0.17.1"  # the release of constraints.txt
PROGRAM = (
    "#include <math.h>\n#include <pthread.h>\nint main(void) { return pthread_self() == 0; }\n"
)


def works(command: list[str]) -> bool:
    """Check that a compiler can build a program: Debian's gcc alone lacks the C library's headers."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "program.c")
        source.write_text(PROGRAM)
        command = [*command, str(source), "-o", str(source.with_suffix(".out"))]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def system_compiler() -> list[str] | None:
    """The command in CC, or of the first C compiler on the PATH that works, or None."""
    if chosen := os.environ.get("CC"):
        return shlex.split(chosen)
    # Not GCC on Windows: its code requires a stack aligned for wide registers, which Windows does
    # not provide.
    paths = map(shutil.which, ("clang",) if WINDOWS else ("cc", "clang", "gcc"))
    return next(([path] for path in paths if path and works([path])), None)


def compiler() -> list[str]:
    """The command of the C compiler."""
    ziglang = [sys.executable, "-m", "ziglang", "cc"]
    if PLATFORM:
        return [*ziglang, "-target", TARGETS[PLATFORM]]
    # By default ziglang compiles for the processor of this machine; the decoder selects its kernels
    # when it is loaded.
    return system_compiler() or [*ziglang, "-mcpu=baseline"]


def fusing(command: list[str]) -> list[str]:
    """Flags that make GCC fuse every product with its sum: some of its tunings do not, and then one
    token and several tokens differ in the last bits. Other compilers follow the source.
    """
    preprocess = [*command, "-dM", "-E", "-x", "c", os.devnull]
    macros = subprocess.run(preprocess, capture_output=True, text=True, check=False).stdout
    is_gcc = "__GNUC__" in macros and "__clang__" not in macros
    return ["--param=avoid-fma-max-bits=0"] if is_gcc else []


def run(command: list[str]) -> None:
    """Print and run a command."""
    print(shlex.join(command), flush=True)
    subprocess.run(command, check=True)


class BuildLibrary(build_ext):
    """Compiles the library without the flags that Python uses for extension modules."""

    def run(self) -> None:
        """Without the decoder the package is ten times slower on a CPU, so that a failed
        compilation is an error.
        """
        try:
            super().run()
        except CompileError as error:
            sys.exit(
                f"error: the C decoder of minhub_py was not compiled ({error}): install a C"
                " compiler (Debian: apt-get install gcc libc6-dev), or set MINHUB_NO_DECODER=1 to"
                " install the package without its decoder"
            )

    def build_extension(self, ext: Extension) -> None:
        output = self.get_ext_fullpath(ext.name)
        self.mkpath(os.path.dirname(output))
        self.mkpath(self.build_temp)
        library = os.path.join(self.build_temp, os.path.basename(output))
        objects = {
            source: os.path.join(self.build_temp, f"{Path(source).stem}.o")
            for source in ext.sources
        }
        position_independent = [] if WINDOWS else ["-fPIC"]
        system = ["-s"] if WINDOWS else ["-pthread", "-lm"]
        command = compiler()
        try:
            flags = [*FLAGS, *fusing(command), *position_independent]
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(
                    pool.map(
                        lambda source: run([*command, *flags, "-c", source, "-o", objects[source]]),
                        ext.sources,
                    )
                )
            run([*command, "-shared", *objects.values(), *system, "-o", library])
        except (OSError, subprocess.CalledProcessError) as error:
            raise CompileError(str(error)) from error
        self.copy_file(library, output)

    def get_ext_filename(self, fullname: str) -> str:
        return os.path.join(*fullname.split(".")) + (".dll" if WINDOWS else ".so")


class PlatformWheel(bdist_wheel):
    """A wheel for one platform and every version of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", PLATFORM or super().get_tag()[2]


decoder = Extension(
    "minhub_py.inference.native._decoder",
    # The longest first, so that none of them runs alone at the end.
    sorted(glob("minhub_py/inference/native/*.c"), key=lambda name: "kernels_" not in name),
    depends=sorted(glob("minhub_py/inference/native/*.h")),
)
compiled = not os.environ.get("MINHUB_NO_DECODER")

setup(
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": PlatformWheel},
    ext_modules=[decoder] if compiled else [],
    # pip installs it for the build. In pyproject.toml it would be downloaded where a compiler
    # exists, too (90 MB).
    setup_requires=[ZIGLANG] if compiled and not PLATFORM and system_compiler() is None else [],
)
