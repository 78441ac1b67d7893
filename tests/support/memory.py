"""The memory of this process, and of code in a separate process."""

import json
import re
import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

MB = 10**6
PREPARE = """
import json, sys
from pathlib import Path
import torch
import minhub_py
from minhub_py.export.convert import convert
from minhub_py.models.gpt2 import GPT2
from minhub_py.loading.pretrained import from_pretrained
from minhub_py.loading.files import open_files

def memory():
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(fields[name].split()[0]) * 1024 for name in ("VmHWM", "VmRSS", "RssAnon")}

def report():
    global before
    after = memory()
    print(json.dumps({name: after[name] - before[name] for name in after}))
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = memory()

before = memory()
"""


def growths(code: str, *arguments: object) -> list[dict[str, int]]:
    """Run `code` in a separate process. Returns the growth of its memory in bytes before each
    report().
    """
    command = [sys.executable, "-c", PREPARE + code, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith('{"VmHWM"')]


def growth(code: str, *arguments: object) -> dict[str, int]:
    """As `growths`, for code with one report()."""
    [grown] = growths(code, *arguments)
    return grown


def reset_peak() -> None:
    with suppress(OSError):  # not on Linux: the peak then includes earlier memory
        Path("/proc/self/clear_refs").write_text("5")


def peak() -> int:
    """The peak of resident memory in bytes."""
    with suppress(OSError):
        return 1024 * int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
