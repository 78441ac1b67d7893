"""The extras of minhub_py: the optional packages of each, and the command that installs them."""

import shlex
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import NamedTuple


class Extra(NamedTuple):
    """The modules of an extra, and their purpose."""

    modules: tuple[str, ...]
    purpose: str


EXTRAS = {
    "serve": Extra(("starlette", "uvicorn"), "serving over HTTP"),
    "json": Extra(("llguidance",), "output that follows a JSON schema"),
    "gguf": Extra(("gguf",), "reading GGUF files"),
    "tables": Extra(("pyarrow",), "reading and writing .parquet files"),
    "plot": Extra(("matplotlib",), "drawing plots"),
}


def missing(name: str) -> list[str]:
    """The modules of an extra that are not installed."""
    return [module for module in EXTRAS[name].modules if find_spec(module) is None]


def install_command(name: str) -> str:
    """The command that installs an extra."""
    return f"{pip()} {shlex.quote(f'minhub_py[{name}]')}"


def require(name: str) -> None:
    """Check for an extra before starting work. ValueError: a module is missing; the message has the command."""
    if modules := missing(name):
        raise ValueError(
            f"{EXTRAS[name].purpose} requires the Python package{'s' * (len(modules) > 1)} {' and '.join(modules)}: "
            f"install with {install_command(name)}"
        )


def pip() -> str:
    """The command that installs packages into the running Python, which `pip` on the PATH may not do."""
    python = shlex.quote(sys.executable)
    # Not find_spec("pip"): setuptools hooks that and removes its distutils, which PyTorch needs to compile.
    try:
        version("pip")
    except PackageNotFoundError:
        if shutil.which("uv"):
            return f"uv pip install --python {python}"
    return f"{python} -m pip install"
