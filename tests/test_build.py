"""The compilation of the C decoder by setup.py."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from needs import compiler, needs
from paths import ROOT

from minhub_py.inference.native.library import PATH

pytestmark = [needs("decoder"), needs("C compiler")]
CC = " ".join(compiler() or ())


def build(out: Path, root: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Compile the decoder to `out`, as pip does."""
    command = [
        sys.executable,
        "setup.py",
        "build_ext",
        "--build-lib",
        out,
        "--build-temp",
        out / "temp",
    ]
    environment = {**os.environ, "MINHUB_NO_DECODER": "", **environment}
    return subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def quick(tmp_path: Path) -> Callable[..., str]:
    """quick(link, real): a compiler that compiles only `real`, to empty objects, and runs `link` in
    the shell to link.

    link: writes $library; by default it copies the library of this installation.
    """

    def write(link: str = f'cp {PATH} "$library"', real: str = "none") -> str:
        path = tmp_path / "quick"
        path.write_text(f"""#!/bin/sh
case "$*" in
*-dM*) exit;;
*{real}.c*) exec {CC} "$@";;
*-shared*) shared=1;;
esac
while [ "$1" != -o ]; do shift; done
library=$2
: > "$library"
[ -z "$shared" ] || {link}
""")
        path.chmod(0o700)
        return str(path)

    return write


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy of all files of the build."""
    root = tmp_path / "root"
    for name in (
        "setup.py",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "minhub_py/system/version.py",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    ignored = shutil.ignore_patterns("*.so", "*.dll", "*.py", "__pycache__")
    shutil.copytree(PATH.parent, root / "minhub_py" / "inference" / "native", ignore=ignored)
    return root


def test_a_failed_compilation_is_an_error_unless_the_decoder_is_left_out(
    tmp_path: Path, quick: Callable[..., str]
) -> None:
    result = build(tmp_path / "failed", CC="/bin/false")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith(
        "error: the C decoder of minhub_py was not compiled ("
    )
    assert "install a C compiler" in result.stderr
    assert "set MINHUB_NO_DECODER=1" in result.stderr
    assert build(tmp_path / "without", CC="/bin/false", MINHUB_NO_DECODER="1").returncode == 0
    assert build(tmp_path / "compiled", CC=quick()).returncode == 0
    assert [
        len(list((tmp_path / name).rglob("_decoder*")))
        for name in ("failed", "without", "compiled")
    ] == [0, 0, 2]


def test_a_library_that_does_not_load_is_an_error_of_the_build(
    tmp_path: Path, quick: Callable[..., str]
) -> None:
    """The compiler works, so that the advice is not to install one."""
    for number, (link, reason) in enumerate(
        [
            ("true", "file too short"),
            (f'{CC} -shared -o "$library" {tmp_path}/undefined.c', "undefined symbol: missing"),
        ]
    ):
        (tmp_path / "undefined.c").write_text(
            "void missing(void);\nvoid choose(void) { missing(); }\n"
        )
        out = tmp_path / str(number)
        result = build(out, CC=quick(link))
        message = result.stderr.splitlines()[-1]
        assert result.returncode == 1
        assert "the library does not load: " in message
        assert reason in message
        assert "fix the error above or select another compiler with CC" in message
        assert not list((out / "minhub_py").rglob("_decoder*"))


def test_the_build_compiles_only_what_has_changed(
    tmp_path: Path, sources: Path, quick: Callable[..., str]
) -> None:
    """A file that it includes, and the flags count, too."""
    native, setup = sources / "minhub_py" / "inference" / "native", sources / "setup.py"

    def compiled() -> set[str]:
        result = build(tmp_path / "out", sources, CC=quick())
        assert result.returncode == 0, result.stderr
        return set(re.findall(r" -c \S*/(\w+)\.c ", result.stdout))

    everything = {path.stem for path in native.glob("*.c")}
    assert compiled() == everything
    assert compiled() == set()
    with (native / "pack_nf4.c").open("a") as file:
        file.write("\n")
    assert compiled() == {"pack_nf4"}
    with (native / "threads.h").open("a") as file:
        file.write("\n")
    assert compiled() == {"threads", "operations"}
    setup.write_text(setup.read_text().replace('"-O3"', '"-O2"'))
    assert compiled() == everything


def test_an_undeclared_function_is_an_error_of_the_compiler(
    tmp_path: Path, sources: Path, quick: Callable[..., str]
) -> None:
    with (sources / "minhub_py" / "inference" / "native" / "pack_nf4.c").open("a") as file:
        file.write("void f(void) { undeclared(); }\n")
    result = build(tmp_path / "out", sources, CC=quick(real="pack_nf4"))
    assert result.returncode == 1
    assert "undeclared" in result.stderr
    assert not list((tmp_path / "out" / "temp").glob("pack_nf4*"))


def test_pip_installs_a_compiler_for_the_build_where_none_works(tmp_path: Path) -> None:
    """Debian's gcc alone has no headers. With CC the user decides."""
    code = "from setuptools import build_meta; print(build_meta.get_requires_for_build_wheel())"
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o700)
    for environment, expected in (
        ({}, True),
        ({"CC": "/bin/false"}, False),
        ({"MINHUB_NO_DECODER": "1"}, False),
    ):
        result = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            env={"PATH": str(tmp_path), "HOME": str(tmp_path), **environment},
        )
        assert ("ziglang~=" in result.stdout.splitlines()[-1]) == expected, environment
