"""`make addresses`: the maintainer's address and the public repository in all metadata, and the
decision until then.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

DESCRIPTION = "r_bridge/minhubpy/DESCRIPTION"
HELP = "r_bridge/minhubpy/man/minhubpy-package.Rd"
CODEMETA = "r_bridge/minhubpy/codemeta.json"
FILES = (DESCRIPTION, HELP, CODEMETA, "CITATION.cff", "pyproject.toml")
URL = "https://code.minhub.test/minhub_py"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The files that contain addresses, as they are before the first release."""
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "tests/release_check.py", tmp_path / "tests")
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / name).read_text(encoding="utf-8")
        text = re.sub(
            r"^(?:URL|BugReports|repository-code|  \"codeRepository\"): .*\n|^\[project.urls\]\n.*\n\n",
            "",
            text,
            flags=re.MULTILINE,
        )
        text = re.sub(r'(email"?[ :=]+)".*?"', r'\1"maintainer@minhub.invalid"', text)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def check(copy: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, copy / "tests/release_check.py", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_an_address_publishing_is_an_open_decision(copy: Path) -> None:
    result = check(copy, "--open")
    assert result.returncode == 1
    assert "the maintainer's address in DESCRIPTION is a placeholder" in result.stdout
    for name in (DESCRIPTION, CODEMETA, "CITATION.cff", "pyproject.toml", "r_bridge/packages.json"):
        assert name in result.stdout


def test_addresses_are_written_into_all_metadata_and_can_change(copy: Path) -> None:
    for email, url in (
        ("first@minhub.test", "https://old.minhub.test"),
        ("someone@minhub.test", URL),
    ):
        assert check(copy, "--addresses", email, url).returncode == 0
    result = check(copy, "--open")
    assert (result.returncode, result.stdout.strip()) == (0, "")
    texts = {name: (copy / name).read_text(encoding="utf-8") for name in FILES}
    assert "first@" not in "".join(texts.values())
    assert "old.minhub" not in "".join(texts.values())
    assert f"\nURL: {URL}\nBugReports: {URL}/issues\nDepends:" in texts[DESCRIPTION]
    assert 'email = "someone@minhub.test"' in texts[DESCRIPTION]
    assert r"\email{someone@minhub.test}" in texts[HELP]
    codemeta = json.loads(texts[CODEMETA])
    assert (codemeta["codeRepository"], codemeta["maintainer"][0]["email"]) == (
        URL,
        "someone@minhub.test",
    )
    assert f"\nrepository-code: {URL}\n" in texts["CITATION.cff"]
    assert f'[project.urls]\nrepository = "{URL}"\n' in texts["pyproject.toml"]
    [package] = json.loads((copy / "r_bridge/packages.json").read_text(encoding="utf-8"))
    assert package == {"package": "minhubpy", "url": URL, "subdir": "r_bridge/minhubpy"}
