"""R CMD build and R CMD check of the R package, its vignettes, and its help pages."""

import filecmp
import os
import re
import shutil
import subprocess
from pathlib import Path

import fast_python
import pytest
from needs import needs
from paths import PROGRAMS, R_PACKAGE, ROOT
from r_package import environment

from minhub_py import FAMILIES

pytestmark = needs("R")

# R CMD check reports suggested packages that are not installed. Debian has no ellmer, targets and
# torch.
OPTIONAL = "ellmer|ggplot2|jsonlite|lme4|recipes|rlang|shiny|targets|torch"
NOT_OURS = re.compile(
    rf"Packages? suggested but not available for checking:(\s+.({OPTIONAL}).,?)+\n"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source package. R CMD build runs the vignettes and adds their pages."""
    folder = tmp_path_factory.mktemp("build")
    result = run(["R", "CMD", "build", str(R_PACKAGE)], folder)
    assert result.returncode == 0, result.stdout + result.stderr
    [package] = folder.glob("minhubpy_*.tar.gz")
    return package


def run(command: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a command of R with this Python, one OpenMP thread, and no plots of training runs by
    Python.

    The temporary installations have no bytecode, because compilation takes longer than the code.
    The library of the other tests has bytecode.
    """
    settings = {
        "MINHUBPY_PYTHON": fast_python.python(),
        "OMP_NUM_THREADS": "1",
        "_R_CHECK_FORCE_SUGGESTS_": "false",
        "PYTHONPATH": str(PROGRAMS / "without_matplotlib"),
        "R_COMPILE_PKGS": "FALSE",
    }
    return subprocess.run(
        command,
        cwd=folder,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_r_cmd_check_reports_no_problem(built: Path) -> None:
    # test_r_package.py runs the package's tests, and R CMD build has run the vignettes.
    result = run(
        ["R", "CMD", "check", "--no-manual", "--no-tests", "--no-vignettes", built.name],
        built.parent,
    )
    log = (built.parent / "minhubpy.Rcheck" / "00check.log").read_text()
    findings = re.findall(
        r"^\* checking .* \.\.\. (?:\[.*\] )?(?:NOTE|WARNING|ERROR)\n(?:(?!\*).*\n)*",
        log,
        re.MULTILINE,
    )
    ours = [finding for finding in findings if not NOT_OURS.search(finding)]
    assert not ours, "\n".join(ours)
    assert result.returncode == 0, result.stdout
    assert "checking examples ... OK" in log
    assert re.search(r"checking files in .vignettes. \.\.\. OK", log)


def test_vignettes_run_their_code(built: Path) -> None:
    names = [source.stem for source in (R_PACKAGE / "vignettes").glob("*.Rmd")]
    pages = [f"minhubpy/inst/doc/{name}.html" for name in names]
    result = run(["tar", "-xzf", built.name, *pages], built.parent)
    assert result.returncode == 0, result.stderr
    for page in pages:
        text = (built.parent / page).read_text(encoding="utf-8")
        assert "data:image/png;base64," in text, page
        assert "minhubpy_no_python" not in text, page
    # an intended error
    assert "Error in gen" in (built.parent / "minhubpy/inst/doc/minhubpy.html").read_text()


def test_vignettes_are_built_without_python(library: Path, tmp_path: Path) -> None:
    for source in (R_PACKAGE / "vignettes").glob("*.Rmd"):
        shutil.copy(source, tmp_path)
    code = "for (file in dir(pattern = '[.]Rmd$')) knitr::knit(file, quiet = TRUE)"
    result = subprocess.run(
        ["Rscript", "-e", code],
        cwd=tmp_path,
        env=environment(library, MINHUBPY_PYTHON="/nonexistent"),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    for page in tmp_path.glob("*.md"):
        assert "was built without a Python" in page.read_text(encoding="utf-8"), page.name


@pytest.mark.slow
@pytest.mark.parametrize("source", ["built", "folder"])
def test_only_the_built_package_installs_vignettes(
    built: Path, tmp_path: Path, source: str
) -> None:
    """R can install the built package and find its vignettes without knitr."""
    (library := tmp_path / "library").mkdir()
    (empty := tmp_path / "empty").mkdir()
    variables = os.environ | {
        "R_LIBS": str(library),
        "R_LIBS_SITE": str(empty),
        "R_LIBS_USER": str(empty),
    }
    package = str(built if source == "built" else R_PACKAGE)
    install = ["R", "CMD", "INSTALL", "--no-test-load", "--no-byte-compile", package]
    subprocess.run(install, env=variables, capture_output=True, check=True, timeout=120)
    code = 'cat(vignette(package = "minhubpy")$results[, "Item"])'
    result = subprocess.run(
        ["Rscript", "-e", code], env=variables, capture_output=True, text=True, check=True
    )
    names = {source.stem for source in (R_PACKAGE / "vignettes").glob("*.Rmd")}
    assert set(result.stdout.split()) == (names if source == "built" else set())


def test_help_pages_have_a_value_and_links() -> None:
    for page in sorted((R_PACKAGE / "man").glob("*.Rd")):
        text = page.read_text()
        assert "\\seealso{" in text, f"{page.name}: @seealso or @family"
        of_function = "\\docType{" not in text  # neither the package nor a data set
        assert not of_function or "\\value{" in text, f"{page.name}: @returns"


# Arguments of other functions that the help of an argument names.
OF_OTHERS = {
    "generate.Rd": {"mtp"},
    "gpt2.Rd": {"n_positions", "resid_pdrop", "hidden_size"},
    "minhub_train.Rd": {"quantize"},
}


def test_help_of_arguments_names_arguments_of_the_function() -> None:
    """Also inherited help."""
    for page in (R_PACKAGE / "man").glob("*.Rd"):
        text = page.read_text(encoding="utf-8")
        usage = re.search(r"\\usage\{(.*?)\n\}\n", text, re.DOTALL)
        arguments = re.search(r"\\arguments\{(.*?)\n\}\n", text, re.DOTALL)
        if usage and arguments:
            known = set(re.findall(r"[A-Za-z_.][\w.]*(?=\s*(?:=|,|\)|\n))", usage[1]))
            named = set(re.findall(r"\\code\{([a-z_]+) = ", arguments[1]))
            assert named <= known | OF_OTHERS.get(page.name, set()), page.name


def test_code_of_vignettes_is_at_most_80_columns_wide() -> None:
    """The pages clip wider code and output."""
    for source in (R_PACKAGE / "vignettes").glob("*.Rmd"):
        text = source.read_text(encoding="utf-8")
        assert "width = 80" in text
        for options, code in re.findall(
            r"^```\{r (.*?)\}\n(.*?)^```", text, re.MULTILINE | re.DOTALL
        ):
            if "echo = FALSE" not in options and "include = FALSE" not in options:
                assert all(len(line) <= 80 for line in code.splitlines()), (
                    f"{source.name}: {options}"
                )


@pytest.mark.slow
def test_help_pages_are_up_to_date(tmp_path: Path) -> None:
    copy = shutil.copytree(R_PACKAGE, tmp_path / "minhubpy")
    code = "roxygen2::roxygenise('minhubpy', roclets = c('namespace', 'rd'))"
    result = run(["Rscript", "-e", code], tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Warning" not in result.stderr, result.stderr
    assert (copy / "NAMESPACE").read_text() == (R_PACKAGE / "NAMESPACE").read_text()
    pages = filecmp.dircmp(copy / "man", R_PACKAGE / "man")
    assert (pages.left_only, pages.right_only) == ([], [])
    # Other versions of roxygen2 write some pages in another form, and their version into DESCRIPTION.
    same_version = filecmp.cmp(copy / "DESCRIPTION", R_PACKAGE / "DESCRIPTION")
    assert pages.diff_files == [] or not same_version


def test_the_cheat_sheet_lists_every_export_and_no_other_function() -> None:
    text = (ROOT / "docs" / "guides" / "r_cheatsheet.md").read_text(encoding="utf-8")
    exports = set(
        re.findall(r"^export\((.*)\)$", (R_PACKAGE / "NAMESPACE").read_text(), re.MULTILINE)
    )
    generics = {"predict", "plot", "summary", "tidy", "list", "options", "model"}
    named = set(re.findall(r"(?<![$\w.:])([a-z][a-z0-9_]+)\(", text)) - generics
    constructors = {
        f"{name}{end}" for name in FAMILIES for end in ("", "_from_config", "_from_pretrained")
    }
    assert named <= exports, named - exports
    assert exports - constructors - named <= {"tokenizer"}, exports - constructors - named


def test_exports_have_a_help_page() -> None:
    exports = re.findall(r"^export\((.*)\)$", (R_PACKAGE / "NAMESPACE").read_text(), re.MULTILINE)
    topics = {
        alias
        for page in (R_PACKAGE / "man").glob("*.Rd")
        for alias in re.findall(r"\\alias\{(.*?)\}", page.read_text())
    }
    assert set(exports) <= topics
    promised = """
        from_config from_pretrained tokenizer tokenizer_from_pretrained save_pretrained generate next_tokens perplexity
        token_logprobs word_logprobs target_logprobs text_embeddings logit_lens minhub_chat minhub_serve as_torch_module
        text_similarity text_search rerank classify_texts classify_tokens masked_tokens masked_logprobs pseudo_logprobs
        embed_minhub word_embeddings step_minhub_embedding
        minhub_train minhub_resume minhub_run minhub_compare
        minhub_devices minhub_doctor minhub_start minhub_stop minhub_install minhub_uninstall
    """
    families = {
        f"{name}{end}" for name in FAMILIES for end in ("", "_from_config", "_from_pretrained")
    }
    assert families | set(promised.split()) <= set(exports)
    endings = "_from_config", "_from_pretrained"
    assert {name for name in exports if name.endswith(endings)} - families == {
        "tokenizer_from_pretrained"
    }
    assert not {"chat", "embed", "score", "layers"} & set(exports)  # names of other packages
