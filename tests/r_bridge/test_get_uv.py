"""inst/get_uv.py, by which minhub_install() installs uv with any Python: a local package index,
wheels, and errors.
"""

import ast
import hashlib
import runpy
import zipfile
from pathlib import Path
from typing import Any

import pytest

import r_bridge

PROGRAM = Path(r_bridge.__file__).parent / "minhubpy" / "inst" / "get_uv.py"
NAMES = [
    f"uv-1.0-py3-none-{tag}.whl"
    for tag in (
        "manylinux_2_17_x86_64.manylinux2014_x86_64",
        "manylinux_2_17_aarch64.musllinux_1_1_aarch64",
        "musllinux_1_1_x86_64",
        "macosx_11_0_arm64",
        "macosx_10_12_x86_64",
        "win_amd64",
        "win_arm64",
    )
]


@pytest.fixture(scope="module")
def get_uv() -> dict[str, Any]:
    return runpy.run_path(str(PROGRAM))


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index with a wheel for each platform; pip can access no other index."""
    for name in ("UV_FIND_LINKS", "PIP_FIND_LINKS", "UV_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    folder = tmp_path / "simple" / "uv"
    folder.mkdir(parents=True)
    for name in NAMES:
        with zipfile.ZipFile(folder / name, "w") as archive:
            for program in ("uv", "uv.exe", "uvx"):
                archive.writestr(f"uv-1.0.data/scripts/{program}", f"{program} of {name}")
    (folder / "index.html").write_text(
        "".join(f'<a href="{name}#sha256=0">{name}</a>' for name in NAMES)
    )
    monkeypatch.setenv("UV_DEFAULT_INDEX", str(folder.parent))
    return folder


def pins(index: Path) -> list[str]:
    return [f"{name}={hashlib.sha256((index / name).read_bytes()).hexdigest()}" for name in NAMES]


def answer(get_uv: dict[str, Any], capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The program's output after the word minhubpy."""
    status = get_uv["main"]([str(argument) for argument in arguments])
    text = capsys.readouterr().out.removeprefix("minhubpy ").strip()
    assert status == text.startswith("problem ")
    return text


def test_it_runs_on_python_3_6() -> None:
    """The oldest Python on machines with R 4.2, such as RHEL 8's."""
    ast.parse(PROGRAM.read_text(encoding="utf-8"), feature_version=(3, 6))


def test_uv_comes_from_an_index_a_folder_or_a_wheel(
    get_uv,
    index: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = Path(answer(get_uv, capsys, tmp_path / "a", *pins(index)))
    [name] = get_uv["suitable"](dict.fromkeys(NAMES))
    assert program.read_text() == f"{program.name} of {name}"
    assert program.stat().st_mode & 0o111
    monkeypatch.setenv("UV_DEFAULT_INDEX", str(tmp_path / "nothing"))
    wheel = Path(answer(get_uv, capsys, tmp_path / "b", *pins(index), index / name))
    assert wheel.read_text() == program.read_text()
    monkeypatch.setenv("UV_FIND_LINKS", f"{tmp_path} {index}")
    assert answer(get_uv, capsys, tmp_path / "c", *pins(index)) == str(
        tmp_path / "c" / program.name
    )


def test_another_file_under_the_name_of_the_wheel_is_rejected(
    get_uv, index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pinned = pins(index)
    for name in NAMES:
        (index / name).write_bytes(b"another program")
    text = answer(get_uv, capsys, tmp_path / "uv", *pinned)
    assert "is not the pinned wheel of uv: its SHA-256 is" in text
    assert not (tmp_path / "uv").exists()


def test_an_error_names_every_attempt(
    get_uv,
    index: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pinned = pins(index)
    (index / "index.html").write_text("")
    text = answer(get_uv, capsys, tmp_path / "uv", *pinned)
    assert "No matching distribution found for uv==1.0" in text
    assert "has no wheel of uv 1.0 for this machine" in text
    monkeypatch.setenv("UV_DEFAULT_INDEX", "nonsense")
    assert "unknown url type" in answer(get_uv, capsys, tmp_path / "uv", *pinned)
    assert "no wheel of uv for this kind of machine" in answer(
        get_uv, capsys, tmp_path / "uv", "uv-1.0-other.whl=0"
    )


@pytest.mark.parametrize(
    ("system", "machine", "libc", "expected"),
    [
        ("linux", "x86_64", "glibc", 0),
        ("linux", "aarch64", "glibc", 1),
        ("linux", "x86_64", "", 2),
        ("linux", "aarch64", "", 1),
        ("darwin", "arm64", "", 3),
        ("darwin", "x86_64", "", 4),
        ("win32", "AMD64", "", 5),
        ("win32", "ARM64", "", 6),
    ],
)
def test_each_platform_has_one_wheel(
    get_uv, monkeypatch: pytest.MonkeyPatch, system: str, machine: str, libc: str, expected: int
) -> None:
    monkeypatch.setattr("sys.platform", system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("platform.libc_ver", lambda: (libc, ""))
    assert [*get_uv["suitable"](dict.fromkeys(NAMES))] == [NAMES[expected]]
