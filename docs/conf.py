"""Configuration of the documentation. `make docs` builds it without network access into
docs/_build/html.

Before Sphinx reads the pages, this file generates the R reference from the package's Rd files and a
page from each notebook. sphinx-click generates the command reference from the help texts, which
this file marks up.
"""

import html
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

from minhub_py import __version__  # noqa: E402

project = "minhub_py"
author = "The minhub_py developers"
copyright = "2026, the minhub_py developers"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "drafts"]
nitpicky = False
smartquotes = False  # option names and quotes can be copied from the text
autodoc_typehints = "none"  # signatures with all types are unreadable; docstrings state types
autodoc_member_order = "bysource"

html_theme = "furo"
html_title = f"minhub_py {release}"
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"

RD_TO_HTML = """
args <- commandArgs(TRUE)
files <- list.files(args[1], "[.]Rd$", full.names = TRUE)
pages <- sub("[.]Rd$", ".html", basename(files))
aliases <- lapply(files, function(file) {
  rd <- tools::parse_Rd(file)
  tags <- vapply(rd, function(part) attr(part, "Rd_tag"), "")
  vapply(rd[tags == "\\\\alias"], function(part) paste(unlist(part), collapse = ""), "")
})
links <- stats::setNames(rep(pages, lengths(aliases)), unlist(aliases))
for (i in seq_along(files)) {
  page <- file.path(args[2], pages[i])
  tools::Rd2HTML(files[i], out = page, stages = c("build", "install", "render"), Links = links, Links2 = links)
}
"""


def relink(link: re.Match[str], manual: Path) -> str:
    """Link to a help page of this package; keep only the text of links to other packages."""
    return (
        f'<a href="{link[1]}.html">{link[2]}</a>'
        if (manual / f"{link[1]}.Rd").exists()
        else link[2]
    )


def r_pages() -> None:
    """Write reference/r/TOPIC.md for each Rd file of the R package, or a note if R is not
    installed.
    """
    folder = HERE / "reference" / "r"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    manual = ROOT / "r_bridge" / "minhubpy" / "man"
    if shutil.which("Rscript") is None:
        (folder / "index.md").write_text(
            "# R\n\nR was not installed during this build: no help pages.\n"
        )
        return
    subprocess.run(
        ["Rscript", "-e", RD_TO_HTML, str(manual), str(folder)], check=True, capture_output=True
    )
    titles = {}
    for page in sorted(folder.glob("*.html")):
        text = page.read_text(encoding="utf-8")
        page.unlink()
        title = html.unescape(
            re.sub(r"<[^>]+>", "", re.findall(r"<h2[^>]*>(.*?)</h2>", text, re.S)[0])
        ).strip()
        body = text[text.index("</h2>") + 5 : text.index("</body>")].rpartition("</div>")[0]
        body = re.sub(r"<(/?)h3", r"<\1h2", body)  # below the page's own heading
        body = re.sub(
            r"<a href=[^>]*?([\w.-]+)\.html['\"]>(.*?)</a>", lambda link: relink(link, manual), body
        )
        (folder / f"{page.stem}.md").write_text(
            f"# {title}\n\n```{{raw}} html\n{body}\n```\n", encoding="utf-8"
        )
        titles[page.stem] = title
    names = "\n".join(sorted(titles))
    (folder / "index.md").write_text(
        f"# R\n\n```{{toctree}}\n:maxdepth: 1\n\n{names}\n```\n", encoding="utf-8"
    )


def notebook_pages() -> None:
    """Write the text and the code of each notebook to a page of the same name."""
    for source in (HERE / "notebooks").glob("*.ipynb"):
        cells = []
        for cell in json.loads(source.read_text(encoding="utf-8"))["cells"]:
            text = "".join(cell["source"])
            cells.append(
                text
                if cell["cell_type"] == "markdown"
                else f"```{{code-block}} python\n{text}\n```"
            )
        title, *body = cells
        note = f"This page is the notebook `docs/notebooks/{source.name}`."
        source.with_suffix(".md").write_text(
            "\n\n".join([title, note, *body]) + "\n", encoding="utf-8"
        )


def literal(line: str) -> str:
    """A line of a help text as reStructuredText: code in double backquotes, and no other markup."""
    parts = re.split(r"`([^`]*)`", line)
    return "".join(
        f"``{part}``" if i % 2 else re.sub(r"([*_|\\])", r"\\\1", part)
        for i, part in enumerate(parts)
    )


def mark_up_description(_app: object, _context: object, lines: list[str]) -> None:
    """Show the examples of a help text as code: indented lines, which begin with "| " if click must
    not wrap them.
    """
    marked: list[str] = []
    is_code = False
    for line in lines:
        text = line.removeprefix("| ")
        if text.startswith(" ") and not is_code:
            marked += [".. code-block:: text", ""]
        is_code = text.startswith(" ")
        marked += [f"   {text.strip()}" if is_code else literal(text)]
        marked += [""] * (text == "")
    lines[:] = marked


def mark_up_options(_app: object, _context: object, lines: list[str]) -> None:
    """Quote code in the help of options; the directives and fields of sphinx-click remain."""
    required = "    **Required** "
    for number, line in enumerate(lines):
        start = required if line.startswith(required) else ""
        if not line.lstrip().startswith((".. ", ":default:", ":options:")):
            lines[number] = start + literal(line.removeprefix(start))


def setup(app: Any) -> None:
    app.connect("sphinx-click-process-description", mark_up_description)
    app.connect("sphinx-click-process-options", mark_up_options)


r_pages()
notebook_pages()
