"""The checklist of docs/internals/adding.md names every requirement, and its example is in the
repository.
"""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cases import ARCHITECTURES as CASES
from encoder_cases import ENCODERS
from fast_python import programs
from paths import ROOT
from references import FIRST

import weights_map
from minhub_py.models.registry import ENTRIES

PAGE = (ROOT / "docs/internals/adding.md").read_text(encoding="utf-8")
STEPS = dict(
    re.findall(
        r"^### (\d)\. [^\n]+\n(.*?)(?=^##|\Z)", PAGE[: PAGE.index("No other file")], re.M | re.S
    )
)
EXAMPLE = "arcee"
# The first file that a step names is the file of the step.
FILES = [
    found[0] for step in STEPS.values() if (found := re.findall(r"^`([\w/]+\.\w+)`", step, re.M))
]
# Their tests are in other files: tests/models/test_lstm.py, test_sinusoidal.py, test_t5.py,
# test_bart.py and test_embedding_gemma2.py, and tests/analysis/test_laya.py.
TESTED_ELSEWHERE = {"bart", "embeddinggemma2", "laya", "lstm", "sinusoidal", "t5"}
# Of files for a repository's own code: tests/models/test_remote_encoders.py.
OF_OTHER_CODE = {"new"}


def naming(word: str) -> set[str]:
    """The files that name an architecture."""
    folders = ("minhub_py", "weights_map", "tests", "docs", "r_bridge", "examples")
    paths = [
        *ROOT.glob("*.*"),
        *(path for folder in folders for path in (ROOT / folder).rglob("*")),
    ]
    texts = {path: path.read_text(encoding="utf-8") for path in paths if is_source(path)}
    return {
        str(path.relative_to(ROOT))
        for path, text in texts.items()
        if re.search(rf"\b{word}\b", text)
    }


def is_source(path: Path) -> bool:
    """Whether people write the file: no generated pages, and no lists of changes."""
    written = path.suffix in (".py", ".R", ".md", ".Rmd", ".toml", ".c", ".h") and path.is_file()
    return written and path.name not in ("CHANGELOG.md", "NEWS.md") and "_build" not in path.parts


def test_the_checklist_names_every_file_of_its_example() -> None:
    assert len(FILES) == 5
    assert naming(EXAMPLE) == {*FILES, "docs/internals/adding.md", "tests/test_adding.py"}


def test_the_example_is_the_code_of_its_files() -> None:
    code = {
        ast.dump(node)
        for name in FILES
        if name.endswith(".py")
        for node in ast.walk(ast.parse((ROOT / name).read_text(encoding="utf-8")))
    }
    quoted = [
        getattr(node, "value", node) if isinstance(node, ast.Expr) else node
        for block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
        for node in ast.parse(block).body
        if not isinstance(node, ast.ImportFrom)
    ]
    assert len(quoted) >= 5
    assert [ast.unparse(node) for node in quoted if ast.dump(node) not in code] == []


@pytest.mark.parametrize("name", ENTRIES)
def test_each_architecture_has_what_the_checklist_requires(name: str) -> None:
    """A config with defaults, a weight table, cases of each model type, and published numbers of
    parameters.
    """
    entry = ENTRIES[name]
    architecture = entry.architecture
    assert entry.config({}).to_hub()["model_type"] in entry.model_types
    assert architecture.model_type in weights_map.tables
    if not TESTED_ELSEWHERE & {architecture.name, *entry.model_types}:
        assert {*entry.model_types} - OF_OTHER_CODE <= {
            *FIRST,
            *(kind for cases in ENCODERS.values() for kind in cases.small),
        }
        counts = [
            size for cases in (*CASES.values(), *ENCODERS.values()) for size in cases.published
        ]
        assert {*architecture.published} & {*counts}


def test_the_commands_of_the_checklist_run() -> None:
    """Tests are collected only: the suite runs them. Each selected file has tests of the example."""
    path = os.pathsep.join([str(programs()), str(Path(sys.executable).parent), os.environ["PATH"]])
    commands = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.M | re.S)
    assert len(commands) >= 3
    for command in commands:
        collect = command.replace("python -m pytest", "python -m pytest --collect-only")
        process = subprocess.run(
            ["bash", "-eu", "-c", collect],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
            timeout=250,
        )
        assert process.returncode == 0, f"{command}\n{process.stdout[-2000:]}\n{process.stderr}"
        if collect != command:
            files = re.findall(r"tests/\w+/test_\w+\.py", command)
            assert [name for name in files if name not in process.stdout] == []
