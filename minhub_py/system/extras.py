"""Extras: sets of optional packages, and the command that installs them."""

import shlex
import shutil
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import NamedTuple

from minhub_py.system.spelling import install_call


class Extra(NamedTuple):
    """The packages of an extra with their minimum versions, and its purpose. `MODULES`: modules
    with another name.
    """

    packages: Mapping[str, str]
    purpose: str


EXTRAS = {
    "serve": Extra(
        {"starlette": "1.7", "uvicorn": "0.35", "llguidance": "1.9"}, "serving over HTTP"
    ),
    "json": Extra({"llguidance": "1.9"}, "output that follows a JSON schema"),
    "gguf": Extra({"gguf": "0.17"}, "reading and writing GGUF files"),
    "tables": Extra({"pyarrow": "17"}, "reading and writing .parquet files"),
    "pandas": Extra({"pandas": "2"}, "results as data frames (to_pandas)"),
    "ray": Extra({"ray": "2.40", "pyarrow": "17"}, "running on a Ray cluster"),
    "plot": Extra({"matplotlib": "3.8"}, "drawing plots"),
    "probe": Extra({"scikit-learn": "1.4"}, "fitting probes"),
    "tensorboard": Extra({"tensorboard": "2.18"}, "writing metrics for TensorBoard"),
    "wandb": Extra({"wandb": "0.19"}, "sending metrics to Weights & Biases"),
}
MODULES = {"scikit-learn": "sklearn"}


def install_command(name: str, *, upgrade: bool = False) -> str:
    """The command that installs an extra."""
    return (
        install_call(name)
        or f"{pip()} {'--upgrade ' if upgrade else ''}{shlex.quote(f'minhub_py[{name}]')}"
    )


def require(name: str) -> None:
    """ValueError: a module of the extra is not installed; the message contains the command that
    installs it.
    """
    modules = [
        module for module in EXTRAS[name].packages if find_spec(MODULES.get(module, module)) is None
    ]
    if modules:
        raise ValueError(
            f"{EXTRAS[name].purpose} requires the Python package{'s' * (len(modules) > 1)}"
            f" {', '.join(modules)}: install with {install_command(name)}"
        )


def pip() -> str:
    """The command that installs packages into the running Python; `pip` on the PATH may belong to
    another Python.
    """
    python = shlex.quote(sys.executable)
    # Not find_spec("pip"): setuptools hooks it and removes its distutils, which PyTorch needs to
    # compile.
    try:
        version("pip")
    except PackageNotFoundError:
        if shutil.which("uv"):
            return f"uv pip install --python {python}"
    return f"{python} -m pip install"
