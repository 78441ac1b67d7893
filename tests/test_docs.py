"""Every code block of the README and the documentation runs, and `make docs` builds a site without
external addresses.

Blocks of one page share their names, as a reader would type them. A small random model is served as
each Hub repository that the pages name. Blocks marked `text` are not run: installations, several
machines, and programs that do not end.
"""

import contextlib
import inspect
import io
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import click
import pytest
from docs_models import publish
from fast_python import programs, python
from guarantees import EXACT
from hub_server import HubServer
from needs import RSCRIPT, need, needs
from paths import ROOT, TEXT

import weights_map
from minhub_py.cli.main import main
from minhub_py.models.registry import ARCHITECTURES, ENTRIES

GENERATED = {"_build", "r", "notebooks"}  # folders of docs/
PAGES = ["README.md"] + [
    str(path.relative_to(ROOT))
    for path in sorted((ROOT / "docs").rglob("*.md"))
    if not GENERATED & set(path.parts)
]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    """A page's blocks in a language."""
    return [
        code
        for name, code in FENCE.findall((ROOT / page).read_text(encoding="utf-8"))
        if name == language
    ]


def pages_with(language: str) -> list[str]:
    return [page for page in PAGES if blocks(page, language)]


@pytest.fixture
def folder(tmp_path: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A reader's working directory: input.txt, and a Hub with the repositories that the pages
    name.
    """
    publish(hub, tmp_path / "published")
    for name, value in hub.settings.items():
        monkeypatch.setenv(name, value)
    text = TEXT.read_text(encoding="utf-8")
    (tmp_path / "input.txt").write_text(text * 4, encoding="utf-8")
    (tmp_path / "work").mkdir()
    (tmp_path / "input.txt").rename(tmp_path / "work" / "input.txt")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


@pytest.mark.parametrize("page", pages_with("python"))
def test_python_blocks_run(page: str, folder: Path) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    for number, code in enumerate(blocks(page, "python")):
        if code.startswith("class Attention"):
            continue  # the README's quotation of gpt2.py, which the next test checks
        if "draft=" in code and not EXACT:
            continue  # drafts need the decoder
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(code, f"{page}, block {number}", "exec"), names)


@pytest.mark.parametrize(
    "notebook", sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem
)
def test_notebooks_run(notebook: Path) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile("".join(cell["source"]), notebook.name, "exec"), names)


# The commands of adding.md need the checkout: tests/test_adding.py.
@pytest.mark.parametrize(
    "page", [page for page in pages_with("sh") if page != "docs/internals/adding.md"]
)
def test_shell_blocks_run(page: str, folder: Path) -> None:
    path = os.pathsep.join([str(programs()), str(Path(sys.executable).parent), os.environ["PATH"]])
    for code in blocks(page, "sh"):
        process = subprocess.run(
            ["bash", "-eu", "-c", code],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
            timeout=250,
        )
        assert process.returncode == 0, f"{code}\n{process.stderr}"


@needs("R")
@pytest.mark.parametrize("page", pages_with("r"))
def test_r_blocks_run(page: str, folder: Path, library: Path) -> None:
    code = "\n".join(["pdf(NULL)", *blocks(page, "r")])
    process = subprocess.run(
        [str(RSCRIPT), "-e", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
        env={
            **os.environ,
            "R_LIBS": str(library),
            "MINHUBPY_PYTHON": python(),
            "OMP_NUM_THREADS": "1",
        },
    )
    assert process.returncode == 0, process.stderr


def test_readme_quotes_the_attention_of_gpt2() -> None:
    source = (ROOT / "minhub_py" / "models" / "gpt2.py").read_text(encoding="utf-8")
    [quoted] = [
        code for code in blocks("README.md", "python") if code.startswith("class Attention")
    ]
    assert quoted.strip() in source


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_table_of_architectures_lists_every_family_and_model_type() -> None:
    page = (ROOT / "docs/guides/architectures.md").read_text(encoding="utf-8")
    cells = [
        row.split(" | ")[:2]
        for row in page.partition("## ")[0].splitlines()
        if row.startswith("| `")
    ]
    names = {name for families, _ in cells for name in re.findall(r"`(\w+)`", families)}
    types = {kind for _, kinds in cells for kind in re.findall(r"[\w-]+", kinds)}
    assert names == set(ENTRIES)
    assert {kind for entry in ENTRIES.values() for kind in entry.model_types} <= types


def test_the_page_of_architectures_lists_the_model_types_of_gguf() -> None:
    page = (ROOT / "docs/guides/architectures.md").read_text(encoding="utf-8")
    [listed] = re.findall(
        r"^GGUF files of these model types [^:]*: (.*?)\.$", page, re.MULTILINE | re.DOTALL
    )
    architectures = weights_map.gguf_architectures.values()
    types = {kind for each in architectures for kind in each.model_types or (each.model_type,)}
    assert listed.split() == ", ".join(sorted(types)).split()


def test_readme_names_supported_architectures() -> None:
    _, _, text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Architectures")
    groups = re.findall(r"\(([A-Z][^)]+)\)", text.partition("##")[0].replace("\n", " "))
    names = [name for group in groups for name in group.removesuffix(" and others").split(", ")]
    known = {
        name.replace(" ", "").lower()
        for architecture in ARCHITECTURES.values()
        for name in (architecture.title, *architecture.names)
    }
    unknown = [
        name
        for name in names
        if not any(each.startswith(name.replace(" ", "").lower()) for each in known)
    ]
    assert len(names) > 10
    assert unknown == []


def test_links_between_pages_resolve() -> None:
    for page in PAGES:
        text = FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
        for target in re.findall(r"\]\((?!https?:)([^)#\s]+)[^)]*\)", text):
            assert (ROOT / page).parent.joinpath(target).exists() or "reference/" in target, (
                f"{page}: {target}"
            )


class Addresses(HTMLParser):
    """Addresses that a browser loads without a click."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [
            value or ""
            for name, value in attrs
            if name == "src" or (tag == "link" and name == "href")
        ]


class Text(HTMLParser):
    """A page's text, and its code blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.blocks: list[str] = []
        self.in_block = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "pre":
            self.in_block = True
            self.blocks.append("")

    def handle_endtag(self, tag: str) -> None:
        self.in_block = self.in_block and tag != "pre"

    def handle_data(self, data: str) -> None:
        self.parts.append(data)
        if self.in_block:
            self.blocks[-1] += data


def text_of(page: Path) -> Text:
    parser = Text()
    parser.feed(page.read_text(encoding="utf-8"))
    return parser


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The website, built as by `make docs`, where a warning is an error."""
    need("R", "furo")
    folder = tmp_path_factory.mktemp("site")
    options = ["-W", "--keep-going", "-q", "-b", "html"]
    command = [sys.executable, "-m", "sphinx", *options, str(ROOT / "docs"), str(folder)]
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert process.returncode == 0, process.stderr
    return folder


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    for file in site.rglob("*.html"):
        parser = Addresses()
        parser.feed(file.read_text(encoding="utf-8"))
        assert not [address for address in parser.found if re.match(r"(https?:)?//", address)], file


@pytest.mark.slow
def test_pages_contain_no_markup_of_their_sources_and_no_replaced_characters(site: Path) -> None:
    for file in site.rglob("*.html"):
        prose = "".join(text_of(file).parts)
        assert not re.findall(r"\.\. [a-z:-]+::|^:\w+:`|\n```", prose), file
        # straight quotes and -- are typed in a shell
        assert not re.findall(r"[“”]|\s–[a-z]", prose), file


@pytest.mark.slow
def test_the_command_reference_quotes_every_help_text(site: Path) -> None:
    page = site / "reference" / "command.html"
    text, html = text_of(page), page.read_text(encoding="utf-8")
    prose = " ".join("".join(text.parts).split())
    examples = {line.strip() for block in text.blocks for line in block.splitlines()}
    for name, command in main.commands.items():
        for line in inspect.cleandoc(command.help or "").splitlines():
            expected = " ".join(line.replace("`", "").replace("\b", "").split())
            assert (expected in examples) if line.startswith("  ") else (expected in prose), line
        for option in command.params:
            if isinstance(option, click.Option):
                assert f'id="cmdoption-minhub-{name}-{option.opts[0].lstrip("-")}"' in html, (
                    option.opts
                )
                assert " ".join((option.help or "").replace("`", "").split()) in prose, option.help
