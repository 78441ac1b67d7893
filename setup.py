"""The one part of the package that is compiled, native/decoder.c; pyproject.toml has all the rest.

It is a plain shared library, which knows nothing of Python: one command of a C compiler makes it, and one wheel for
each platform serves every version of Python. Without a compiler the package works all the same, on PyTorch alone.

    CC                the compiler's command, otherwise the first of cc, clang and gcc that there is
    MINHUB_PLATFORM   a wheel for another platform than this, one of TARGETS; ziglang compiles it (make wheels)
"""

import os
import shlex
import shutil
import subprocess
import sys
from glob import glob

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

# The platform of a wheel, and ziglang's name for it with the oldest system that it is for.
TARGETS = {
    "manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "macosx_11_0_x86_64": "x86_64-macos.11.0",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
    "win_amd64": "x86_64-windows-gnu",
    "win_arm64": "aarch64-windows-gnu",
}
FLAGS = ["-shared", "-O3", "-g0", "-fvisibility=hidden", "-fno-math-errno"]
PLATFORM = os.environ.get("MINHUB_PLATFORM")
if PLATFORM and PLATFORM not in TARGETS:
    sys.exit(f"MINHUB_PLATFORM={PLATFORM} is none of {', '.join(TARGETS)}")
WINDOWS = PLATFORM.startswith("win") if PLATFORM else sys.platform == "win32"


def compiler() -> list[str]:
    """The command of a C compiler. CompileError: there is none."""
    if PLATFORM:
        return [sys.executable, "-m", "ziglang", "cc", "-target", TARGETS[PLATFORM]]
    if chosen := os.environ.get("CC"):
        return shlex.split(chosen)
    # Not gcc on Windows: its code expects a stack that is aligned for wide registers, which that of Windows is not.
    for name in ("clang",) if WINDOWS else ("cc", "clang", "gcc"):
        if found := shutil.which(name):
            return [found]
    raise CompileError("no C compiler was found")


def fused(command: list[str]) -> list[str]:
    """What GCC must be told so that it fuses every product with its sum: it has tunings that leave some apart, and then
    one id would have other bits than many. Others do as the source says.
    """
    asked = [*command, "-dM", "-E", "-x", "c", os.devnull]
    defined = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    is_gcc = "__GNUC__" in defined and "__clang__" not in defined
    return ["--param=avoid-fma-max-bits=0"] if is_gcc else []


class BuildLibrary(build_ext):
    """Compiles the library, without Python's own flags: they are for its extension modules."""

    def build_extension(self, ext: Extension) -> None:
        output = self.get_ext_fullpath(ext.name)
        self.mkpath(os.path.dirname(output))
        self.mkpath(self.build_temp)
        made = os.path.join(self.build_temp, os.path.basename(output))  # what else compilers write stays there
        system = ["-s"] if WINDOWS else ["-fPIC", "-pthread", "-lm"]
        chosen = compiler()
        try:
            command = [*chosen, *FLAGS, *fused(chosen), *ext.sources, *system, "-o", made]
            print(shlex.join(command), flush=True)
            subprocess.run(command, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise CompileError(str(error)) from error
        self.copy_file(made, output)

    def get_ext_filename(self, fullname: str) -> str:
        return os.path.join(*fullname.split(".")) + (".dll" if WINDOWS else ".so")


class PlatformWheel(bdist_wheel):
    """Of a platform, for every Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", PLATFORM or super().get_tag()[2]


setup(
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": PlatformWheel},
    ext_modules=[
        Extension(
            "minhub_py.inference._decoder",
            ["minhub_py/inference/native/decoder.c"],
            depends=sorted(glob("minhub_py/inference/native/*.h")),
            optional=True,
        )
    ],
)
