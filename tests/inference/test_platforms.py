"""Other systems: recorded calls of the decoder, and branches for Windows that can run on Linux."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from block_models import new_of_blocks
from decoders import kernels, new
from needs import compiler, need
from paths import PROGRAMS, ROOT
from recorded_calls import record

import minhub_py
from minhub_py.training import checkpoint

LIBRARY = (
    Path(minhub_py.__file__).parent
    / "inference"
    / "native"
    / ("_decoder.dll" if os.name == "nt" else "_decoder.so")
)


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that repeats recorded calls."""
    program = tmp_path_factory.mktemp("replay") / "replay"
    need("decoder", "C compiler")
    command = compiler() or []
    subprocess.run(
        [*command, "-O1", PROGRAMS / "replay.c", "-o", program, "-ldl", "-lm"], check=True
    )
    return program


def test_recorded_calls_give_the_same_again(replay: Path, tmp_path: Path) -> None:
    """With each kernel; a different logit, and one that should be bitwise identical, are detected."""
    models = {
        "gpt2": new("gpt2"),
        "lstm": new("lstm-one-layer", "int8"),
        "llama": new_of_blocks("Q4_K"),
    }
    cases = [
        record(name, model, threads) for threads, (name, model) in enumerate(models.items(), 1)
    ]
    file = tmp_path / "calls"
    file.write_bytes(b"".join(cases))
    for kernel in kernels():
        result = subprocess.run(
            [replay, LIBRARY, file, kernel], capture_output=True, text=True, check=True
        )
        assert result.stdout.startswith(f"{kernel} kernels: 3 passed, 0 failed")
    length = 45 + 45 + 47 + 6  # tokens, as in `record`
    equals, logits = 24 * length, 4 * 61 * length
    # the last logit, the first one, the first of equal ones
    for position in (-equals - 1, -equals - logits + 3, -24):
        damaged = bytearray(cases[0])
        damaged[position] ^= 0x41
        file.write_bytes(damaged)
        result = subprocess.run(
            [replay, LIBRARY, file], capture_output=True, text=True, check=False
        )
        assert (result.returncode, "0 passed, 1 failed" in result.stdout) == (1, True)


def test_a_wheel_is_for_a_known_platform() -> None:
    for platform, error in (
        ("win_amd64", ""),
        ("beos_x86", "MINHUB_PLATFORM=beos_x86 is not one of manylinux_2_17_x86_64"),
    ):
        result = subprocess.run(
            [sys.executable, "setup.py", "--name"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "MINHUB_PLATFORM": platform},
        )
        assert error in result.stderr
        assert (result.returncode == 0) == (not error)


def test_checkpoints_where_no_folder_opens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on Windows, where only writable files can be flushed."""

    def open_as_on_windows(path: Path, flags: int) -> int:
        if path.is_dir() or flags & os.O_RDWR != os.O_RDWR:
            raise PermissionError(13, "Permission denied")
        return plain_open(path, flags)

    plain_open = os.open
    (tmp_path / "file").write_text("text", encoding="utf-8")
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(os, "open", open_as_on_windows)
    checkpoint._sync(tmp_path)
    checkpoint._sync(tmp_path / "file")
