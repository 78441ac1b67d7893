"""Checks of R for `minhub doctor` and R's minhub_doctor(): R, its package, rpy2 and R torch."""

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from minhub_py.loading import doctor
from minhub_py.loading.doctor import Finding, version_of
from minhub_py.system.extras import pip
from minhub_py.system.version import __version__
from r_bridge.probe import R, ask_r, describe, find_r, try_rpy2

# R's shared library, which rpy2 loads: on Linux, macOS and Windows.
LIBR = ("lib/libR.so", "lib/libR.dylib", "bin/x64/R.dll")


def examine(facts: Mapping[str, str] | None = None) -> list[Finding]:
    """Check the installation with R, without changing it or opening a connection.

    facts: from a calling R session, with the keys of `ask_r`; R is then started only to test rpy2.
    By default, the R on the PATH is started to determine them.
    """
    return doctor.examine({"R": lambda: r_findings(facts)})


def r_findings(facts: Mapping[str, str] | None) -> Iterator[Finding]:

    try:
        r = describe(str(Path(facts["home"], "bin", "R")), facts["version"]) if facts else find_r()
        if r is None:
            advice = "apt-get install r-base-core, or see https://www.r-project.org"
            yield Finding("R", "none (only R users need it)", True, advice, present=False)
            return
        facts = facts or ask_r(r.executable)
    except OSError as error:
        yield Finding(
            "R", str(error), False, "run R in a terminal and fix the error, or reinstall R"
        )
        return
    yield Finding("R", f"{facts['version']} ({r.executable}), home {facts['home']}", True)
    yield _rpy2(r, facts["home"])

    package = facts.get("minhubpy")
    fits = package in (None, __version__)
    state = package or "not in R's library (only R users need it)"
    state += "" if fits else f", which does not match minhub_py {__version__}"
    advice = "" if package == __version__ else "minhub r --install"
    yield Finding("R package minhubpy", state, fits, advice, present=package is not None)
    yield from _r_torch(facts, version_of("torch"), hosted="rpy2.rinterface" in sys.modules)


def _rpy2(r: R, home: str) -> Finding:
    """Requirements for hosting R in Python: R's shared library, this R's R_HOME, and a compatible
    rpy2.
    """
    state = r.rpy2_found or "none (only `minhub r` and Python programs that host R need it)"
    install = f"{pip()} 'rpy2-rinterface{r.rpy2}'"
    if not any(Path(home, name).exists() for name in LIBR):
        advice = (
            "install R from r-base-core, conda or www.r-project.org, or build it with ./configure"
            " --enable-R-shlib"
        )
        return Finding(
            "rpy2",
            f"{state}; this R has no shared library ({LIBR[0]})",
            r.rpy2_found is None,
            advice,
        )
    if r.rpy2_found is None:
        return Finding("rpy2", state, True, install, present=False)
    r_home = os.environ.get("R_HOME") or home
    if Path(r_home).resolve() != Path(home).resolve():
        return Finding(
            "rpy2", f"{state}, but R_HOME names another R: {r_home}", False, "unset R_HOME"
        )
    if not r.rpy2_fits:
        return Finding(
            "rpy2",
            f"{state}, which cannot be imported with R {'.'.join(map(str, r.version))}",
            False,
            install,
        )
    if "rpy2.rinterface" not in sys.modules and (fault := try_rpy2()):
        # The extension may be built for another R; pip would reinstall it from its cache.
        advice = f"{install} --force-reinstall --no-cache-dir"
        return Finding("rpy2", f"{state}, but it does not start R: {fault}", False, advice)
    return Finding("rpy2", state, True)


def _r_torch(facts: Mapping[str, str], python_torch: str | None, hosted: bool) -> Iterator[Finding]:
    """R torch, and whether it can share a process with Python's torch, which requires the same
    version of LibTorch.

    hosted: R runs in this process.
    """
    version = facts.get("torch")
    if version is None:
        advice = 'in R: install.packages("torch"), then torch::install_torch()'
        yield Finding(
            "R torch", "none (only needed for R torch tensors)", True, advice, present=False
        )
        return
    libtorch = facts.get("libtorch", "of unknown version")
    state = f"{version}, LibTorch {libtorch}"
    works = facts.get("torch_works", "R ended or hung when it was loaded")
    same = python_torch is not None and libtorch.partition("+")[0] == python_torch.partition("+")[0]
    advice = (
        "use R torch in a plain R session, where Python runs in another process; it does not work"
        " in `minhub r`"
    )
    if works == "yes":
        yield Finding("R torch", state, True)
    elif hosted and not same:
        yield Finding(
            "R torch",
            f"{state}, which does not work in the same process as Python's torch",
            False,
            advice,
        )
    else:
        yield Finding(
            "R torch",
            f"{state}, but: {works}",
            False,
            "in R: torch::install_torch(reinstall = TRUE)",
        )
    if python_torch is not None:
        result = (
            "equal, so they can share a process"
            if same
            else "different, so they need two processes"
        )
        state = f"LibTorch {libtorch} and Python's {python_torch}: {result}"
        yield Finding("R torch with Python's", state, True, "" if same else advice)
