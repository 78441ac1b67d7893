"""The R package as R's own tools see it: R CMD check, the vignette, and help pages that say what the code says."""

import filecmp
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from paths import PROGRAMS, R_PACKAGE

from minhub_py.registry import ENTRIES

# ellmer and torch are not in Debian, and lme4 need not be there; R says so.
NOT_OURS = re.compile(r"Packages? suggested but not available for checking:(\s+.(ellmer|lme4|torch).,?)+\n")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as one file, with its vignette, which is run for it."""
    folder = tmp_path_factory.mktemp("build")
    done = run(["R", "CMD", "build", str(R_PACKAGE)], folder)
    assert done.returncode == 0, done.stdout + done.stderr
    [package] = folder.glob("minhubpy_*.tar.gz")
    return package


def run(command: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    """A command of R's, which finds this very Python."""
    # No fork bomb of OpenMP threads beside the other tests; torch is suggested, not needed. The pictures that Python
    # makes of runs would take longer than the runs.
    settings = {"MINHUBPY_PYTHON": sys.executable, "OMP_NUM_THREADS": "1", "_R_CHECK_FORCE_SUGGESTS_": "false",
                "PYTHONPATH": str(PROGRAMS / "without_matplotlib")}  # fmt: skip
    environment = os.environ | settings
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500, check=False
    )


@pytest.mark.timeout(600)
def test_r_cmd_check_finds_nothing(built: Path) -> None:
    # Its tests are run in both ways in by the tests beside this one, and the vignette was run for the build.
    done = run(["R", "CMD", "check", "--no-manual", "--no-tests", "--no-vignettes", built.name], built.parent)
    log = (built.parent / "minhubpy.Rcheck" / "00check.log").read_text()
    findings = re.findall(
        r"^\* checking .* \.\.\. (?:\[.*\] )?(?:NOTE|WARNING|ERROR)\n(?:(?!\*).*\n)*", log, re.MULTILINE
    )
    ours = [finding for finding in findings if not NOT_OURS.search(finding)]
    assert not ours, "\n".join(ours)
    assert done.returncode == 0, done.stdout
    assert "checking examples ... OK" in log
    assert re.search(r"checking files in .vignettes. \.\.\. OK", log)


def test_the_vignette_has_pictures(built: Path) -> None:
    listing = run(["tar", "-xzf", built.name, "minhubpy/inst/doc/minhubpy.html"], built.parent)
    assert listing.returncode == 0, listing.stderr
    page = (built.parent / "minhubpy" / "inst" / "doc" / "minhubpy.html").read_text()
    assert page.count("data:image/png;base64,") >= 2
    assert "minhubpy_no_python" not in page
    assert "Error in gen" in page  # what goes wrong is shown on purpose, once Python was found


def test_the_vignette_is_there_after_an_installation_from_a_folder(tmp_path: Path) -> None:
    """Made by `make vignette`; R needs no knitr to install it, nor to find it."""
    for source in (R_PACKAGE / "vignettes").glob("*.Rmd"):
        installed = R_PACKAGE / "inst" / "doc" / source.name
        assert installed.exists(), f"{source.name} is new: make vignette"
        assert installed.read_bytes() == source.read_bytes(), f"{source.name} has changed: make vignette"
        assert "<img" in installed.with_suffix(".html").read_text(encoding="utf-8")
    (library := tmp_path / "library").mkdir()
    (nothing := tmp_path / "nothing").mkdir()
    libraries = {"R_LIBS": str(library), "R_LIBS_SITE": str(nothing), "R_LIBS_USER": str(nothing)}
    environment = os.environ | libraries
    install = ["R", "CMD", "INSTALL", "--no-test-load", "--no-byte-compile", str(R_PACKAGE)]
    subprocess.run(install, env=environment, capture_output=True, check=True, timeout=120)
    code = 'found <- vignette("minhubpy"); cat(found$Title, "|", file.path(found$Dir, "doc", found$PDF))'
    done = subprocess.run(["Rscript", "-e", code], env=environment, capture_output=True, text=True, check=True)
    title, page = done.stdout.split(" | ")
    assert title == "Language models in R, without Python in the way"
    assert "<img" in Path(page).read_text(encoding="utf-8")


def test_every_help_page_has_a_value_and_links() -> None:
    for page in sorted((R_PACKAGE / "man").glob("*.Rd")):
        text = page.read_text()
        assert "\\seealso{" in text, f"{page.name}: @seealso or @family"
        of_function = "\\docType{" not in text  # not the page of the package, nor of a data set
        assert not of_function or "\\value{" in text, f"{page.name}: @returns"


def test_code_of_vignettes_fits_their_pages() -> None:
    """A page cuts what is wider, code and the output of the width that is set."""
    for source in (R_PACKAGE / "vignettes").glob("*.Rmd"):
        text = source.read_text(encoding="utf-8")
        assert "width = 80" in text
        for options, code in re.findall(r"^```\{r (.*?)\}\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            if "echo = FALSE" not in options and "include = FALSE" not in options:
                assert all(len(line) <= 80 for line in code.splitlines()), f"{source.name}: {options}"


def test_help_pages_are_made_from_the_code(tmp_path: Path) -> None:
    copy = shutil.copytree(R_PACKAGE, tmp_path / "minhubpy")
    code = "roxygen2::roxygenise('minhubpy', roclets = c('namespace', 'rd'))"
    done = run(["Rscript", "-e", code], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr
    assert (copy / "NAMESPACE").read_text() == (R_PACKAGE / "NAMESPACE").read_text()
    pages = filecmp.dircmp(copy / "man", R_PACKAGE / "man")
    assert (pages.left_only, pages.right_only, pages.diff_files) == ([], [], [])


def test_every_export_has_a_help_page() -> None:
    exports = re.findall(r"^export\((.*)\)$", (R_PACKAGE / "NAMESPACE").read_text(), re.MULTILINE)
    topics = {
        alias
        for page in (R_PACKAGE / "man").glob("*.Rd")
        for alias in re.findall(r"\\alias\{(.*?)\}", page.read_text())
    }
    assert set(exports) <= topics
    promised = """
        from_pretrained tokenizer tokenizer_from_pretrained save_pretrained generate next_tokens perplexity
        token_logprobs word_logprobs target_logprobs text_embeddings logit_lens minhub_chat minhub_serve as_torch_module
        minhub_train minhub_resume minhub_run minhub_compare
        minhub_devices minhub_doctor minhub_start minhub_stop minhub_install
    """
    families = {f"{name}{end}" for name in ENTRIES for end in ("", "_from_config", "_from_pretrained")}
    assert families | set(promised.split()) <= set(exports)
    assert not {"chat", "embed", "score", "layers"} & set(exports)  # names of other packages
