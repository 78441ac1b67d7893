"""A record of environment variables at the moment when PyTorch is imported."""

import os
from pathlib import Path

SITE = """
import os, sys

class Watch:
    def find_spec(self, name, *_):
        if name == "torch":
            with open({path!r}, "a") as file:
                file.write(os.environ.get("GOMP_SPINCOUNT", "unset") + chr(10))

sys.meta_path.insert(0, Watch())
"""


def watch(folder: Path) -> tuple[dict[str, str], Path]:
    """Environment variables for a Python process, and the file in which it records GOMP_SPINCOUNT."""
    folder.mkdir()
    path = folder / "record"
    (folder / "sitecustomize.py").write_text(SITE.format(path=str(path)), encoding="utf-8")
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    }
    return (
        environment
        | {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])},
        path,
    )
