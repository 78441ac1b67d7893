"""What tests need beyond Python and the packages of the extra `test`; without it they are skipped.

    @needs("Chromium")              a test, or with pytestmark all tests of a module
    need("R")                       the rest of a test or fixture
    peft = package("peft")          imports an optional package

No other code of the tests skips or looks for programs and packages: tests/test_needs.py checks
that.
"""

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from minhub_py.inference.native.library import library, opened

RSCRIPT = shutil.which("Rscript")
LM_EVAL = os.environ.get("MINHUB_LM_EVAL") or shutil.which("lm_eval")
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None
)
# Packages that the extra `test` does not install: command that installs them, or the reason.
PACKAGES = {
    "furo": "pip install '.[docs]'",
    "jsonschema": "pip install jsonschema",
    "langchain_openai": "pip install langchain-openai",
    "litellm": "pip install litellm",
    "llama_cpp": "pip install llama-cpp-python",
    "llguidance": "pip install '.[json]'",
    "llm": "pip install '.[llm]'",
    "matplotlib": "pip install '.[plot]'",
    "pandas": "pip install '.[pandas]'",
    "peft": "pip install peft",
    "pydantic_ai": "pip install pydantic-ai-slim[openai]",
    "ray": "pip install '.[ray]'",
    "sentence_transformers": "pip install sentence-transformers",
    "sklearn": "pip install '.[probe]'",
    "tensorboard": "pip install '.[tensorboard]'",
    "wandb": "pip install '.[wandb]'",
}


@cache
def starts_browser() -> bool:
    """Whether there is a Chromium, and playwright's driver finds its libraries."""
    from playwright._impl._driver import compute_driver_executable

    command = [compute_driver_executable()[0], "--version"]
    return (
        CHROMIUM is not None
        and not subprocess.run(command, capture_output=True, check=False).returncode
    )


@cache
def compiler() -> list[str] | None:
    """The command of a C compiler, as setup.py finds it: the first one that works, then ziglang."""
    for path in filter(None, map(shutil.which, ("cc", "clang", "gcc"))):
        program = ["-x", "c", "-", "-o", os.devnull]
        source = b"#include <math.h>\nint main(void) { return 0; }\n"
        result = subprocess.run([path, *program], input=source, capture_output=True, check=False)
        if not result.returncode:  # Debian's gcc alone lacks the C library's headers
            return [path]
    return [sys.executable, "-m", "ziglang", "cc"] if find_spec("ziglang") else None


def may_mount() -> bool:
    """Whether this user may mount a file system in a new mount namespace."""
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/dev/shm"]
    return (
        bool(shutil.which("unshare"))
        and not subprocess.run(command, capture_output=True, check=False).returncode
    )


def has_pangoling() -> bool:
    """The R package, which runs transformers in a Python of its own."""
    code = 'quit(status = !requireNamespace("pangoling", quietly = TRUE))'
    if not RSCRIPT or "RETICULATE_PYTHON" not in os.environ:
        return False
    return not subprocess.run([RSCRIPT, "-e", code], capture_output=True, check=False).returncode


# Name -> whether it is here, and what to do if it is not.
REQUIREMENTS: dict[str, tuple[Callable[[], object], str]] = {
    "decoder": (library, f"the C decoder is {opened()[1]}"),
    "R": (lambda: RSCRIPT, "R is not installed (Debian: r-base-core)"),
    "Chromium": (
        starts_browser,
        "no Chromium is installed (Debian: chromium-headless-shell and libatomic1)",
    ),
    "C compiler": (compiler, "no C compiler is installed (Debian: gcc and libc6-dev)"),
    "C++ compiler": (
        lambda: any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))),
        "no C++ compiler is installed (Debian: g++), which PyTorch's inductor uses",
    ),
    "Linux": (lambda: sys.platform == "linux", "only Linux has /proc and limits of memory"),
    "fork": (lambda: hasattr(os, "fork"), "the system has no fork and no pseudo-terminals"),
    "full device": (Path("/dev/full").exists, "only Linux has /dev/full"),
    "mount": (may_mount, "this user may not mount a small file system"),
    "OpenVINO": (
        lambda: "MINHUB_BENCH_OPENVINO" in os.environ,
        "MINHUB_BENCH_OPENVINO does not name a Python with OpenVINO (compare.py --help)",
    ),
    "lm_eval": (
        lambda: LM_EVAL,
        (
            "lm_eval is not installed (pip install lm_eval into its own environment, and name it in"
            " MINHUB_LM_EVAL)"
        ),
    ),
    "chat templates": (
        lambda: os.environ.get("MINHUB_CHAT_TEMPLATES"),
        (
            "MINHUB_CHAT_TEMPLATES does not name a folder of *.jinja, such as llama.cpp's"
            " models/templates"
        ),
    ),
    "transformers 5.24": (
        lambda: find_spec("transformers.decision"),
        "transformers before 5.24 has no decisions (pip install --upgrade transformers)",
    ),
    "transformers 4": (
        lambda: "MINHUB_TRANSFORMERS4" in os.environ,
        "MINHUB_TRANSFORMERS4 does not name a folder with transformers 4 (pip install --target)",
    ),
    "pangoling": (
        has_pangoling,
        "the R package pangoling or its Python in RETICULATE_PYTHON is missing",
    ),
}
REQUIREMENTS |= {
    name: (lambda name=name: find_spec(name), f"{name} is not installed ({install})")
    for name, install in PACKAGES.items()
}


def missing(*names: str) -> str:
    """The first requirement that is missing, or an empty string."""
    return next(
        (text for available, text in map(REQUIREMENTS.__getitem__, names) if not available()), ""
    )


def needs(*names: str) -> pytest.MarkDecorator:
    """The mark of a test with these requirements."""
    reason = missing(*names)
    return pytest.mark.skipif(bool(reason), reason=reason)


def need(*names: str) -> None:
    """Skip the running test if one of the requirements is missing."""
    require(not (reason := missing(*names)), reason)


def package(name: str) -> Any:
    """An optional package's module."""
    need(name.partition(".")[0])
    return importlib.import_module(name)


def require(condition: object, reason: str) -> None:
    """Skip the running test unless a condition holds that is a fact of this machine."""
    if not condition:
        pytest.skip(reason, allow_module_level=True)


def need_kernels(name: str | None) -> None:
    """Skip the running test unless the decoder has these kernels here. The decoder selects them;
    None: its choice.
    """
    need("decoder")
    require(
        library().choose(name and name.encode()) is not None,
        f"the processor lacks the {name} kernels",
    )
