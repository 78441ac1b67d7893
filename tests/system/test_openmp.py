"""The spinning of PyTorch's threads."""

import subprocess
import sys
from pathlib import Path

import pytest
from import_watch import watch


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "unset")],
)
def test_commands_limit_spinning_before_they_import_pytorch(
    tmp_path: Path, settings: dict[str, str], expected: str
) -> None:
    """Unless the user sets it."""
    environment, record = watch(tmp_path / "site")
    command = [
        sys.executable,
        "-m",
        "minhub_py",
        "generate",
        "minhub/shakespeare-gpt2",
        "A",
        "--max-new-tokens",
        "1",
    ]
    subprocess.run(command, check=True, capture_output=True, env=environment | settings)
    assert record.read_text(encoding="utf-8").split() == [expected]
