"""Checks of a release that are not part of the suite: `make release-check`, or python
tests/release_check.py [DIST].

Versions and placeholders in all metadata, links between pages with their anchors, the wheels of
DIST (a folder of `make wheels`), and R CMD check --as-cran with the package's tests. Opens no
connection.

The report ends with the checks that this machine skips, with reasons, and with the owner's open
decisions, such as a public address. An open decision is not a failed check. --open lists these
decisions; the exit status is then 1, which stops the publish job.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
R_PACKAGE = ROOT / "r_bridge" / "minhubpy"
METADATA = (
    "README.md",
    "CITATION.cff",
    "pyproject.toml",
    "r_bridge/minhubpy/DESCRIPTION",
    "r_bridge/minhubpy/inst/CITATION",
    "docs/guides/installation.md",
)
# Placeholders of names and addresses.
PLACEHOLDERS = re.compile(r"example\.(?:org|com)|<this repository>|TODO|FIXME|YOUR[-_ ]")
PLATFORMS = (
    "manylinux_2_17_x86_64",
    "manylinux_2_17_aarch64",
    "macosx_11_0_x86_64",
    "macosx_11_0_arm64",
    "win_amd64",
    "win_arm64",
)
# Suggested packages that this machine lacks and repositories that it cannot reach are not a fault
# of the package.
NOT_OURS = re.compile(
    r"suggested but not available for checking|unable to access index for repository"
)
# Programs and the parts of R CMD check that need them.
TOOLS_OF_R = {
    "pdflatex": "the PDF manual (texlive-latex-base)",
    "tidy": "the HTML of R's help pages (tidy)",
    "qpdf": "the size of PDF vignettes, with a warning in the log (qpdf)",
}
# Metadata, and a line of each that contains the public repository.
ADDRESSES = {
    "r_bridge/minhubpy/DESCRIPTION": r"^URL: https?://",
    "r_bridge/minhubpy/codemeta.json": r'"codeRepository": "https?://',
    "CITATION.cff": r"^repository-code: https?://",
    "pyproject.toml": r'^repository = "https?://',
    "r_bridge/packages.json": r'"url": "https?://',
}
# R CMD check --as-cran reads CRAN's list of packages. This one has no packages.
EMPTY_CRAN = """
columns <- c("Package", "Version", "Priority", "Depends", "Imports", "LinkingTo", "Suggests", "Enhances", "License",
             "Maintainer", "Author", "Title", "Description", "Published", "URL", "BugReports")
dir.create("web/packages", recursive = TRUE)
saveRDS(as.data.frame(sapply(columns, function(column) character())), "web/packages/packages.rds")
"""
# Writes Python's numbers for the parity tests of the R package.
WRITE_REFERENCE = """
import pathlib, sys
sys.path.insert(0, sys.argv[1])
import r_package
r_package.write_reference(pathlib.Path(sys.argv[2]))
"""


def versions() -> Iterator[str]:
    """Versions that differ from the Python package's."""
    source = (ROOT / "minhub_py" / "system" / "version.py").read_text(encoding="utf-8")
    version = re.findall(r'^__version__ = "(.*)"', source, re.MULTILINE)[0]
    places = {
        "CITATION.cff": r"^version: (.*)$",
        "r_bridge/minhubpy/DESCRIPTION": r"^Version: (.*)$",
        "r_bridge/minhubpy/codemeta.json": r'"version": "(.*)"',
        "CHANGELOG.md": r"^## ([\d.]+)",
        "r_bridge/minhubpy/NEWS.md": r"^# minhubpy ([\d.]+)",
    }
    for name, pattern in places.items():
        found = re.findall(pattern, (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
        if found[:1] != [version]:
            yield f"{name} has version {(found or ['none'])[0]}, minhub_py {version}"


def placeholders() -> Iterator[str]:
    """Names and addresses that are still missing."""
    for name in METADATA:
        for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), 1):
            if match := PLACEHOLDERS.search(line):
                yield f"{name}:{number}: replace {match[0]}"


def open_decisions() -> Iterator[str]:
    """What only the owner of the project can decide: the maintainer's address and the public
    repository.
    """
    if ".invalid" in (R_PACKAGE / "DESCRIPTION").read_text(encoding="utf-8"):
        yield (
            "the maintainer's address in DESCRIPTION is a placeholder, which R requires to build"
            " the package"
        )
    missing = [name for name, pattern in ADDRESSES.items() if not has_line(ROOT / name, pattern)]
    if missing:
        yield f"no public repository in {', '.join(missing)}"


def has_line(path: Path, pattern: str) -> bool:
    return path.exists() and bool(
        re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    )


def write_addresses(email: str, url: str) -> None:
    """Write the maintainer's address and the public repository into all metadata: `make addresses`."""
    edits = {
        "r_bridge/minhubpy/DESCRIPTION": [
            (r'email = ".*?"', f'email = "{email}"'),
            (
                r"^(?:URL: .*\nBugReports: .*\n)?Depends:",
                f"URL: {url}\nBugReports: {url}/issues\nDepends:",
            ),
        ],
        "r_bridge/minhubpy/man/minhubpy-package.Rd": [(r"\\email\{.*?\}", f"\\email{{{email}}}")],
        "r_bridge/minhubpy/codemeta.json": [
            (r'"email": ".*?"', f'"email": "{email}"'),
            (
                r'^(?:  "codeRepository": .*\n)?  "license":',
                f'  "codeRepository": "{url}",\n  "license":',
            ),
        ],
        "CITATION.cff": [
            (r"^(?:repository-code: .*\n)?license:", f"repository-code: {url}\nlicense:")
        ],
        "pyproject.toml": [
            (
                r"^(?:\[project.urls\]\nrepository = .*\n\n)?\[project.scripts\]",
                f'[project.urls]\nrepository = "{url}"\n\n[project.scripts]',
            )
        ],
    }
    for name, pairs in edits.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        for pattern, line in pairs:
            text = re.sub(pattern, lambda _, line=line: line, text, count=1, flags=re.MULTILINE)
        (ROOT / name).write_text(text, encoding="utf-8")
    package = {"package": "minhubpy", "url": url, "subdir": "r_bridge/minhubpy"}
    (ROOT / "r_bridge" / "packages.json").write_text(
        json.dumps([package], indent=2) + "\n", encoding="utf-8"
    )


def links() -> Iterator[str]:
    """Links between pages, and their anchors, that lead nowhere."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for page in [page for page in pages if "_build" not in page.parts]:
        text = re.sub(
            r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
        )
        for target, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?[^)]*\)", text):
            path = page.parent / target if target else page
            if not path.exists():
                if "reference/" not in target:  # generated by Sphinx
                    yield f"{page.relative_to(ROOT)}: {target} does not exist"
            elif anchor and path.suffix == ".md" and anchor not in anchors(path):
                yield f"{page.relative_to(ROOT)}: {target}#{anchor} does not exist"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as Sphinx and GitHub make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def distributions(folder: Path) -> Iterator[str]:
    """Files that `make wheels` has not written; check_wheels.py and twine have checked their
    contents.
    """
    names = [path.name for path in folder.glob("minhub_py-*")]
    for platform in (*PLATFORMS, ".tar.gz"):
        if not any(platform in name for name in names):
            yield f"{folder} has no {platform}: run make wheels"


def skipped_wheels() -> Iterator[str]:
    """Wheels whose decoder check_wheels.py cannot run on this machine, and the reason."""
    from check_wheels import PROCESSORS, obstacle  # imports lief

    for name in PROCESSORS:
        if reason := obstacle(name):
            yield f"the decoder of {name}: {reason}"


def skipped_tools() -> Iterator[str]:
    """Checks that need a tool that is missing here."""
    if not shutil.which("pyright"):
        yield "types as pyright finds them (mypy did): pip install pyright"
    for program, part in TOOLS_OF_R.items():
        if not shutil.which(program):
            yield f"R CMD check of {part}: {program} is not installed"
    yield "links to other sites, and CRAN's incoming checks: they need a network"


def r_package(skipped: list[str]) -> Iterator[str]:
    """Findings of R CMD check --as-cran. Skipped checks and tests are added to `skipped`."""
    settings = {
        "MINHUBPY_PYTHON": sys.executable,
        "OMP_NUM_THREADS": "1",
        "_R_CHECK_FORCE_SUGGESTS_": "false",
        "_R_CHECK_CRAN_INCOMING_": "false",
        "_R_CHECK_SYSTEM_CLOCK_": "false",
        "NOT_CRAN": "true",
        "R_RD4PDF": "times,hyper",  # without the font inconsolata, which is in a package of 500 MB
    }
    with tempfile.TemporaryDirectory() as folder:
        settings |= dict.fromkeys(("R_CRAN_WEB", "R_CRAN_SRC"), Path(folder).as_uri())
        # PyTorch creates this folder when it trains; R reports new folders in the common one.
        settings |= {
            "MINHUBPY_REFERENCE": folder,
            "TORCHINDUCTOR_CACHE_DIR": str(Path(folder, "inductor")),
        }

        def run(*command: str) -> "subprocess.CompletedProcess[str]":
            return subprocess.run(
                command,
                cwd=folder,
                env=os.environ | settings,
                capture_output=True,
                text=True,
                check=False,
            )

        run("Rscript", "-e", EMPTY_CRAN)
        run(sys.executable, "-c", WRITE_REFERENCE, str(ROOT / "tests" / "support"), folder)
        build = run("R", "CMD", "build", str(R_PACKAGE))
        packages = [*Path(folder).glob("minhubpy_*.tar.gz")]
        if not packages:
            yield f"R CMD build failed: {(build.stdout + build.stderr)[-1000:]}"
            return
        manual = [] if shutil.which("pdflatex") else ["--no-manual"]
        check = run("R", "CMD", "check", "--as-cran", *manual, packages[0].name)
        results = Path(folder, "minhubpy.Rcheck")
        log = (results / "00check.log").read_text(encoding="utf-8", errors="replace")
        tests = "".join(
            path.read_text(encoding="utf-8", errors="replace")
            for path in results.glob("tests/*.Rout*")
        )
    pattern = r"^\* checking .* \.\.\. (?:\[.*\] )?(?:NOTE|WARNING|ERROR)\n(?:(?!\*).*\n)*"
    findings = re.findall(pattern, log, re.MULTILINE)
    ours = [finding for finding in findings if not NOT_OURS.search(finding)]
    yield from ours
    skipped += [f"R: {' '.join(finding.split())}" for finding in findings if finding not in ours]
    summary = re.findall(r"^\[ FAIL .*\]$", tests, re.MULTILINE)
    if not summary:
        yield f"the tests of the R package have not run: {tests[-2000:] or log[-2000:]}"
    skipped += [
        f"tests of the R package: {reason}"
        for reason in re.findall("^• (.*)$", tests, re.MULTILINE)
    ]
    if check.returncode and not ours:
        yield f"R CMD check failed: {(log + check.stdout + check.stderr)[-2000:]}"


def main(arguments: list[str]) -> int:
    """The exit status: 1 if a check has findings."""
    if arguments[:1] == ["--addresses"]:
        write_addresses(*arguments[1:])
        return 0
    decisions = [*open_decisions()]
    if arguments == ["--open"]:
        print(*decisions, sep="\n")
        return 1 if decisions else 0
    skipped = [*skipped_tools()]
    has_r = shutil.which("R") is not None
    results = {"versions": [*versions()], "placeholders": [*placeholders()], "links": [*links()]}
    if has_r:
        results["R CMD check --as-cran"] = [*r_package(skipped)]
    else:
        skipped.append("R CMD check --as-cran, with the package's tests: R is not installed")
    if arguments:
        results["distributions"] = [*distributions(Path(arguments[0]))]
        skipped += skipped_wheels()
    for name, findings in results.items():
        print(f"{name}: {f'{len(findings)} findings' if findings else 'ok'}", *findings, sep="\n  ")
    if not has_r:
        print("R CMD check --as-cran: not checked")
    print("skipped on this machine:", *skipped, sep="\n  ")
    failed = [name for name, findings in results.items() if findings]
    if decisions:
        print(
            "open decision of the owner:",
            *decisions,
            "take it with: make addresses EMAIL=… URL=https://…",
            sep="\n  ",
        )
    if failed:
        print(f"NOT READY: {', '.join(failed)}")
    else:
        ready = (
            "READY, except for the addresses: the publish job refuses this version"
            if decisions
            else "READY"
        )
        print(ready if has_r else f"{ready} (R CMD check has not run)")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
