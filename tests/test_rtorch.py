"""The R tests that need R torch, in both ways in, where R torch is installed: `make test-rtorch`.

R torch is not in Debian, and its LibTorch is another than Python's, so `make test` skips these.
"""

import os
import subprocess
from pathlib import Path

import pytest
from test_r_package import RSCRIPT, WAYS, environment, run_r_tests, write_reference

pytestmark = pytest.mark.rtorch
NEEDS = """
make test-rtorch needs the R package torch, with its LibTorch, in a library that Rscript looks into (R_LIBS names more):
install.packages("torch") and torch::install_torch() in R."""


@pytest.fixture(scope="module")
def libraries(library: Path) -> str:
    """The package as it is now, and the user's own libraries, one of which has R torch."""
    both = os.pathsep.join([str(library), *filter(None, [os.environ.get("R_LIBS")])])
    code = "cat(as.numeric(torch::torch_tensor(41) + 1))"
    done = subprocess.run(
        [str(RSCRIPT), "--no-init-file", "-e", code],
        env=environment(library, R_LIBS=both), capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    if done.stdout != "42":
        said = done.stderr.strip().splitlines()[:3]
        pytest.exit("\n".join([NEEDS.strip(), "R says:", *said]), returncode=1)
    return both


@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", WAYS)
def test_with_r_torch(way: str, library: Path, libraries: str, tmp_path: Path) -> None:
    results = run_r_tests(way, library, write_reference(tmp_path), only="torch|weights", R_LIBS=libraries)
    found = [(file, *each) for file, all_of_it in results.items() for each in all_of_it]
    bad = [f"{file}: {test}: {message}" for file, kind, test, message in found if kind not in ("success", "skip")]
    assert not bad, "\n".join(bad)
    skipped = [f"{file}: {test}: {message}" for file, kind, test, message in found if kind == "skip"]
    if way == "worker":
        assert all("R torch works here" in each for each in skipped), skipped
    assert {file for file, kind, *_ in found if kind == "success"} == {"test-torch.R", "test-weights.R"}
    print(f"{way}: {len(found) - len(skipped)} expectations passed, {len(skipped)} skipped")
