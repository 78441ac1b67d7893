"""`minhub doctor` on this machine and on machines with problems, for which the report must state
the next step.

R is real. Other versions of R, rpy2 and R torch are small replacements.
"""

import ast
import ctypes
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from huggingface_hub import constants
from needs import needs
from paths import R_PACKAGE, ROOT

from minhub_py import __version__
from minhub_py.cli.main import main
from minhub_py.inference.native import library
from minhub_py.loading.doctor import (
    KERNELS,
    Driver,
    Finding,
    judge_decoder,
    judge_driver,
    nvidia_driver,
)
from minhub_py.system.extras import EXTRAS, pip
from r_bridge.doctor import examine
from r_bridge.probe import ask_r, find_r, try_rpy2

PIP = f"{sys.executable} -m pip install"
INDEX = (
    "--force-reinstall torch --index-url … as https://pytorch.org/get-started/locally shows it for"
    " CUDA"
)


def by_name(r_facts: Mapping[str, str] | None = None) -> dict[str, Finding]:
    return {finding.what: finding for finding in examine(r_facts)}


def executable() -> str:
    r = find_r()
    assert r is not None  # part of the development environment
    return r.executable


@pytest.fixture
def fake_r(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """fake_r(script): put a shell script on the PATH as R."""

    def write(script: str) -> str:
        path = tmp_path / "bin" / "R"
        path.parent.mkdir()
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")
        return str(path)

    return write


def test_this_installation_has_no_problems() -> None:
    findings = by_name()
    assert all(finding.fits for finding in findings.values()), findings
    assert findings["Python"].found.startswith(f"{sys.version.split()[0]} ({sys.executable}), ")
    version, home = subprocess.run(
        [executable(), "--slave", "-e", "cat(format(getRversion()), R.home())"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert findings["R"].found == f"{version} ({executable()}), home {home}"
    assert pip() == PIP


def test_extras_match_pyproject() -> None:
    all_extras = {
        name: dict(map(least, requirements)) for name, requirements in declared_extras().items()
    }
    declared = {name: all_extras[name] for name in EXTRAS}
    for packages in declared.values():
        for name in [name for name in packages if name.startswith("minhub_py[")]:
            del packages[name]
            packages.update(all_extras[name[10:-1]])
    assert {name: extra.packages for name, extra in EXTRAS.items()} == declared


def declared_extras() -> dict[str, list[str]]:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    lines = re.findall(
        r"^(\w+) = (\[.*\])(?:  #.*)?$",
        text.split("[project.optional-dependencies]")[1],
        re.MULTILINE,
    )
    return {name: ast.literal_eval(value) for name, value in lines if value.startswith('["')}


def least(requirement: str) -> tuple[str, str]:
    name, _, version = requirement.partition(">=")
    return name.removesuffix("[data]"), version.partition(",")[0]


def test_missing_extras_are_listed_with_their_purpose_and_installation(tmp_path: Path) -> None:
    """In a Python whose only package is outdated; a missing extra is not a problem."""
    python_package(tmp_path, "pyarrow", "3.0")
    code = (
        "import json, sys; sys.path[:0] = sys.argv[1:]; from minhub_py.loading.doctor import"
        " examine;print(json.dumps({f.what: [f.found, f.fits, f.advice] for f in examine()}))"
    )
    command = [sys.executable, "-S", "-c", code, ROOT, tmp_path]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    findings = json.loads(result.stdout)
    for extra, packages, purpose in (
        ("serve", "starlette, uvicorn, llguidance", "serving"),
        ("json", "llguidance", "output that follows"),
        ("gguf", "gguf", "reading and writing GGUF files"),
        ("plot", "matplotlib", "drawing plots"),
    ):
        state, fits, advice = findings[f"extra {extra}"]
        assert state.startswith(f"missing: {packages} (only needed for {purpose}")
        assert fits
        assert advice.endswith(f" 'minhub_py[{extra}]'")
    state, fits, advice = findings["extra tables"]
    assert (state, fits) == ("pyarrow 3.0", False)
    assert advice.endswith("--upgrade 'minhub_py[tables]'")


def test_optional_components_that_are_missing_are_not_marked_ok(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "minhub_py.loading.doctor.version_of", lambda name: None if name == "pyarrow" else "99"
    )
    lines = CliRunner().invoke(main, ["doctor"]).stdout.splitlines()
    marks = {" ".join(line[4:].split()[:2]): line[:2] for line in lines}
    assert (marks["extra tables"], marks["extra plot"]) == ("--", "ok")
    assert all(line[:2] in ("--", "NO") for line in lines if "missing:" in line)


def python_package(folder: Path, name: str, version: str) -> None:
    """The metadata of an installed Python package."""
    path = folder / f"{name}-{version}.dist-info" / "METADATA"
    path.parent.mkdir(parents=True)
    path.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")


def test_the_user_library_of_r_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile may set the library and print text, which is ignored."""
    library = tmp_path / "library"
    installed(library, "minhubpy", "9.8.7")
    (tmp_path / ".Renviron").write_text(f"R_LIBS_USER={library}\n")
    (tmp_path / ".Rprofile").write_text(
        'cat("Welcome!\\nminhub is fine, no newline follows"); message("loud")\n'
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("R_LIBS_USER", raising=False)
    monkeypatch.chdir(tmp_path)
    facts = ask_r(executable())
    assert facts["minhubpy"] == "9.8.7"
    assert facts.keys() <= {"version", "home", "minhubpy", "torch", "libtorch", "torch_works"}
    finding = by_name()["R package minhubpy"]
    assert not finding.fits
    assert finding.found == f"9.8.7, which does not match minhub_py {__version__}"
    assert finding.advice == "minhub r --install"


def installed(library: Path, name: str, version: str, code: str = "") -> None:
    """Build and install a small R package with R."""
    source = library.parent / f"{name}-source"
    (source / "R").mkdir(parents=True)
    library.mkdir(exist_ok=True)
    (source / "DESCRIPTION").write_text(
        f"Package: {name}\nVersion: {version}\nTitle: T\nDescription: D.\n"
        "License: MIT\nAuthor: A\nMaintainer: A <a@b.c>\n"
    )
    (source / "NAMESPACE").write_text('exportPattern("^[^.]")\n')
    (source / "R" / "all.R").write_text(code)
    install = [
        executable(),
        "CMD",
        "INSTALL",
        "--no-docs",
        "--no-test-load",
        f"--library={library}",
        str(source),
    ]
    subprocess.run(install, check=True, capture_output=True)


R_TORCH = """
torch_version <- "2.8.0"
torch_tensor <- function(x) switch(Sys.getenv("R_TORCH"),
  works = x,
  bare = stop("Lantern is not loaded.\n  Please use `install_torch()`"),
  verifies = stopifnot(Sys.getenv("TORCH_VERIFY_LOAD") == "FALSE", Sys.getenv("TORCH_INSTALL") == "0"),
  crashes = tools::pskill(Sys.getpid(), 9)
)
"""


@pytest.mark.slow
def test_r_torch_and_the_version_of_its_libtorch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replacement of R torch works, has no LibTorch, or crashes the process."""
    library = tmp_path / "library"
    installed(library, "torch", "0.17.0", R_TORCH)
    monkeypatch.setenv("R_LIBS", str(library))
    for name in ("TORCH_HOME", "TORCH_VERIFY_LOAD", "TORCH_INSTALL"):
        monkeypatch.delenv(name, raising=False)
    versions = {"torch": "0.17.0", "libtorch": "2.8.0"}
    trials = {
        "works": {"torch_works": "yes"},
        "verifies": {"torch_works": "yes"},
        "bare": {"torch_works": "Lantern is not loaded. Please use `install_torch()`"},
        "crashes": {},
    }
    for trial, answer in trials.items():
        monkeypatch.setenv("R_TORCH", trial)
        facts = ask_r(executable())
        assert {key: facts[key] for key in facts if "torch" in key} == versions | answer
        finding = by_name(facts)["R torch"]
        assert finding.fits is (answer == {"torch_works": "yes"})
        assert finding.found.startswith("0.17.0, LibTorch 2.8.0")
        assert finding.advice == (
            "" if finding.fits else "in R: torch::install_torch(reinstall = TRUE)"
        )
    assert finding.found == "0.17.0, LibTorch 2.8.0, but: R ended or hung when it was loaded"

    # The installer of R torch writes the version of LibTorch, which may differ from the package's
    # default.
    (library / "torch" / "build-version").write_text(f"{torch.__version__}\n")
    monkeypatch.setenv("R_TORCH", "works")
    facts = ask_r(executable())
    assert facts["libtorch"] == torch.__version__
    same = by_name(facts)["R torch with Python's"]
    assert same.found.endswith("equal, so they can share a process")
    assert same.advice == ""
    different = by_name(facts | {"libtorch": "1.2.3+cpu"})["R torch with Python's"]
    assert (
        different.found
        == f"LibTorch 1.2.3+cpu and Python's {torch.__version__}: different, so they need two"
        " processes"
    )
    assert different.fits  # a plain R session has two processes
    assert "plain R session" in different.advice


def test_a_different_libtorch_is_a_problem_in_a_process_that_hosts_r(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "rpy2.rinterface", sys)
    facts = {
        "version": "4.2.2",
        "home": "/nowhere",
        "torch": "0.17.0",
        "libtorch": "1.2.3",
        "torch_works": "undefined",
    }
    finding = by_name(facts)["R torch"]
    assert (
        finding.found
        == "0.17.0, LibTorch 1.2.3, which does not work in the same process as Python's torch"
    )
    assert not finding.fits
    assert "plain R session" in finding.advice


def test_missing_r_is_reported_and_is_not_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = CliRunner().invoke(main, ["doctor", "--json"])
    [r] = [finding for finding in json.loads(result.stdout) if finding["what"] == "R"]
    assert r == {
        "what": "R",
        "found": "none (only R users need it)",
        "fits": True,
        "advice": "apt-get install r-base-core, or see https://www.r-project.org",
        "present": False,
    }
    assert result.exit_code == 0
    assert "R package minhubpy" not in result.stdout


def test_r_that_does_not_start(fake_r: Callable[[str], str]) -> None:
    path = fake_r(
        '[ "$1" = --version ] && exec echo "R version 4.4.1"\necho "cannot open base" >&2; exit 2'
    )
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 1
    [line] = [line for line in result.stdout.splitlines() if line.startswith("NO")]
    assert f"{path} does not start: cannot open base -> run R in a terminal" in line


def test_r_that_hangs(fake_r: Callable[[str], str]) -> None:
    path = fake_r("exec tail -f /dev/null")
    with pytest.raises(OSError, match=f"{path} does not start: no response within 0.5 seconds"):
        ask_r(path, timeout=0.5)


def test_program_named_r_that_is_not_r(fake_r: Callable[[str], str]) -> None:
    fake_r("echo This is a rabbit")
    finding = by_name()["R"]
    assert not finding.fits
    assert "prints 'This is a rabbit'" in finding.found


def test_rpy2_needs_r_as_a_library(tmp_path: Path) -> None:
    finding = by_name({"version": "4.2.2", "home": str(tmp_path)})["rpy2"]
    assert not finding.fits
    assert finding.found.endswith("this R has no shared library (lib/libR.so)")
    assert finding.advice.endswith("--enable-R-shlib")


@pytest.mark.parametrize(
    ("r", "rpy2", "needed"),
    [
        ("4.2.2", "3.6.7", ">=3.6.1,<3.6.6"),
        ("4.4.3", "3.6.6", ">=3.6.1,<3.6.6"),
        ("4.5.1", "3.5.0", ">=3.6.1"),
    ],
)
def test_incompatible_rpy2(
    r: str, rpy2: str, needed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = an_r_home(tmp_path)
    installed_rpy2(rpy2, tmp_path, monkeypatch)
    finding = by_name({"version": r, "home": home})["rpy2"]
    assert finding == Finding(
        "rpy2",
        f"{rpy2}, which cannot be imported with R {r}",
        False,
        f"{PIP} 'rpy2-rinterface{needed}'",
    )


def an_r_home(tmp_path: Path) -> str:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libR.so").touch()
    return str(tmp_path)


def installed_rpy2(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install an rpy2 of this version, first on the path, that cannot be imported."""
    site = tmp_path / "site"
    (site / "rpy2").mkdir(parents=True)
    (site / "rpy2" / "__init__.py").touch()
    (site / "rpy2" / "rinterface.py").write_text(
        "raise ImportError('libR.so: undefined symbol: R_getVar')\n"
    )
    info = site / f"rpy2_rinterface-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: rpy2-rinterface\nVersion: {version}\n"
    )
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))


def test_rpy2_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An rpy2 with the right version may be built for another R."""
    home = an_r_home(tmp_path)
    installed_rpy2("3.6.5", tmp_path, monkeypatch)
    finding = by_name({"version": "4.2.2", "home": home})["rpy2"]
    assert not finding.fits
    assert finding.found.endswith(
        "does not start R: ImportError: libR.so: undefined symbol: R_getVar"
    )
    assert (
        finding.advice == f"{PIP} 'rpy2-rinterface>=3.6.1,<3.6.6' --force-reinstall --no-cache-dir"
    )
    crash = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"
    (tmp_path / "site" / "rpy2" / "rinterface.py").write_text(crash)
    assert try_rpy2() == "it exited with status -11"


def test_r_home_of_another_r_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("R_HOME", str(tmp_path / "other"))
    finding = by_name({"version": "4.2.2", "home": an_r_home(tmp_path)})["rpy2"]
    assert not finding.fits
    assert finding.found.endswith(f"R_HOME names another R: {tmp_path / 'other'}")
    assert finding.advice == "unset R_HOME"


NO_KERNEL = "CUDA error: no kernel image is available for execution on the device"


@pytest.mark.parametrize(
    ("build", "driver", "fault", "fits", "advice"),
    [
        (None, None, "a build without CUDA", True, ""),
        ("13.0", None, "Found no NVIDIA driver", True, ""),
        ("13.0", Driver((13, 0), 1), "", True, ""),
        ("12.8", Driver((12, 4), 1), "", True, ""),  # within a major version
        ("12.8", Driver((12, 4), 0), "no such device", True, ""),
        (None, Driver((13, 1), 1), "a build without CUDA", False, f"{PIP} {INDEX} 13.0"),
        (None, Driver((12, 2), 2), "a build without CUDA", False, f"{PIP} {INDEX} 12.6"),
        (
            None,
            Driver((11, 4), 1),
            "a build without CUDA",
            False,
            "update the driver (https://www.nvidia.com/drivers)",
        ),
        (
            "13.0",
            Driver((12, 4), 1),
            "the driver is too old",
            False,
            f"{PIP} {INDEX} 12.6 (or update the driver (https://www.nvidia.com/drivers))",
        ),
        ("13.0", Driver((13, 0), 1), NO_KERNEL, False, f"{PIP} {INDEX} 12.6"),
        (
            "12.6",
            Driver((12, 8), 1),
            NO_KERNEL,
            False,
            f"update the driver (https://www.nvidia.com/drivers), then: {PIP} {INDEX} 13.0",
        ),
        (
            "13.0",
            Driver((13, 0), 1),
            "out of memory",
            False,
            "check with nvidia-smi for other processes on the GPU, then run again",
        ),
        (
            "13.0",
            Driver((13, 0), 0, "system has unsupported display driver / cuda driver combination"),
            "none",
            False,
            (
                "restart the computer; if that does not help, update the driver"
                " (https://www.nvidia.com/drivers)"
            ),
        ),
    ],
)
def test_cuda_build_and_driver(
    build: str | None, driver: Driver | None, fault: str, fits: bool, advice: str
) -> None:
    finding = judge_driver(build, driver, fault)
    assert (finding.fits, finding.advice) == (fits, advice)


class LibCuda:
    """The functions of NVIDIA's library that doctor calls, for one GPU and the `status` of its
    driver.
    """

    def __init__(self, status: int) -> None:
        self.status = status

    def cuInit(self, flags: int) -> int:
        return self.status

    def cuDriverGetVersion(self, version: Any) -> None:
        version._obj.value = 12040

    def cuDeviceGetCount(self, count: Any) -> None:
        count._obj.value = 1

    def cuGetErrorString(self, status: int, text: Any) -> None:
        text._obj.value = b"unknown error"


@pytest.mark.parametrize(
    ("status", "driver"),
    [
        (0, Driver((12, 4), 1)),
        (100, Driver((12, 4), 0)),
        (999, Driver((12, 4), 0, "unknown error")),
    ],
)
def test_the_driver_is_queried(
    status: int, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: LibCuda(status))
    assert nvidia_driver() == driver


def test_token_and_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report contains the source of the token, but never the token."""
    file, cache = tmp_path / "token", tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(file))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))  # without R, which would be started for each report
    assert by_name()["Hub token"].found.startswith("none")
    file.write_text("hf_secret")
    assert by_name()["Hub token"].found == f"found, from {file}"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert by_name()["Hub token"].found == "found, from HF_TOKEN"
    assert "hf_secret" not in str(examine())

    assert by_name()["unfinished downloads"] == Finding("unfinished downloads", "none", True)
    blobs = cache / "models--owner--name" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "abc.incomplete").write_bytes(bytes(2_500_000))
    (blobs / "abd").write_bytes(bytes(10))
    finding = by_name()["unfinished downloads"]
    assert finding.found == "2.5 MB of owner/name"
    assert finding.advice == "minhub download owner/name, which resumes the download"

    # in a file, where even root cannot write
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(file / "hub"))
    finding = by_name()["Hub cache"]
    assert (finding.fits, finding.advice) == (False, "set HF_HOME to a writable folder")


def test_the_r_package_has_the_version_of_the_python_package() -> None:
    description = R_PACKAGE / "DESCRIPTION"
    assert f"\nVersion: {__version__}\n" in description.read_text()


@pytest.mark.slow
def test_examine_does_not_hide_distutils() -> None:
    """PyTorch's compiler needs setuptools' distutils in the same process."""
    code = "from r_bridge.doctor import examine; examine()"
    code += "; import setuptools, distutils; print(distutils.__file__)"
    command = [sys.executable, "-W", "error::UserWarning", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "setuptools" in result.stdout, result.stderr


@needs("decoder")
def test_the_kernels_of_the_decoder_are_reported() -> None:
    detail = library.opened().detail
    assert judge_decoder(library.opened()).found == f"{detail} kernels: {KERNELS[detail]}"


def test_an_unusable_decoder_is_reported_with_its_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The advice for a library that does not load is not to install a C compiler."""
    path = tmp_path / "_decoder.so"
    monkeypatch.setattr(library, "PATH", path)
    monkeypatch.delenv("MINHUB_NO_DECODER", raising=False)
    finding = judge_decoder(library.opened.__wrapped__())
    assert finding.fits  # the decoder is optional
    assert finding.found.startswith("not compiled;")
    assert finding.advice.endswith("install a C compiler first")
    path.write_bytes(b"no library")
    finding = judge_decoder(library.opened.__wrapped__())
    assert not finding.fits
    assert finding.found.startswith(f"unusable: {path}: ")
    assert "reinstall this package" in finding.advice
    assert "compiler" not in finding.advice
    monkeypatch.setenv("MINHUB_NO_DECODER", "1")
    finding = judge_decoder(library.opened.__wrapped__())
    assert finding.fits
    assert finding.advice.startswith("unset MINHUB_NO_DECODER")
