"""The time and the names of an import."""

import ast
import importlib.metadata
import inspect
import pickle
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
import torch

import minhub_py
from minhub_py.loading.doctor import PACKAGES
from r_bridge.probe import rpy2_range

ROOT = Path(minhub_py.__file__).parents[1]


def python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.parametrize(
    "module", ["minhub_py", "minhub_py.cli.main", "minhub_py.models.registry", "r_bridge"]
)
def test_importing_is_cheap(module: str) -> None:
    """The import budget: nothing heavy before it is used."""
    heavy = {
        "torch",
        "numpy",
        "huggingface_hub",
        "httpx2",
        "tokenizers",
        "safetensors",
        "rich",
        "transformers",
    }
    assert python(f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))") == "[]"


def test_every_promised_name_is_there() -> None:
    families = {
        f"{name}{end}"
        for name in minhub_py.FAMILIES
        for end in ("", "_from_config", "_from_pretrained")
    }
    others = {
        "from_config",
        "from_pretrained",
        "tokenizer_from_pretrained",
        "save_pretrained",
        "generate",
        "stream",
        "score",
        "devices",
    }
    assert families | others <= set(minhub_py.__all__) <= set(dir(minhub_py))
    for name in minhub_py.__all__:
        function = getattr(minhub_py, name)
        assert callable(function)
        assert inspect.getdoc(function)
        assert function.__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'gpt9'"):
        minhub_py.gpt9  # noqa: B018


def test_entry_points_stay_functions_when_their_modules_are_imported() -> None:
    """Python binds a submodule to its package; gpt2 and generate are names of both."""
    code = """
import minhub_py.models.gpt2, minhub_py.inference.generate, minhub_py.models.lstm
from minhub_py.models.gpt2 import GPT2
from minhub_py import gpt2, generate, lstm
assert isinstance(gpt2(n_layer=1, n_embd=8, n_head=1, vocab_size=5), GPT2)
assert callable(generate) and callable(lstm)
print("ok")
"""
    assert python(code) == "ok"


def test_fresh_models_and_their_mistakes() -> None:
    model = minhub_py.gpt2(n_layer=1, n_embd=8, n_head=2, vocab_size=5)
    assert model.config.n_positions == 1024
    with pytest.raises(ValueError, match=r"GPT-2 has no setting layers; did you mean n_layer\?"):
        minhub_py.gpt2(layers=3)
    with pytest.raises(
        ValueError, match="GPT-2 has no setting colour; its settings are vocab_size, n_positions"
    ):
        minhub_py.gpt2(colour=3)
    with pytest.raises(ValueError, match=r"n_embd \(10\) must be a multiple of n_head \(3\)"):
        minhub_py.gpt2(n_embd=10, n_head=3)
    with pytest.raises(ValueError, match="describes 2 layers, num_layers is 3"):
        minhub_py.gptneo(num_layers=3, attention_types=[[["global", "local"], 1]])
    with pytest.raises(ValueError, match="tie_word_embeddings needs embedding_size"):
        minhub_py.lstm(tie_word_embeddings=True, embedding_size=3, hidden_size=4)


def test_models_can_be_pickled_and_saved_when_compiled(tmp_path: Path) -> None:
    for model in (
        minhub_py.gpt2(n_layer=1, n_embd=8, n_head=2, vocab_size=5),
        minhub_py.gptneo(num_layers=2, hidden_size=8, num_heads=2, vocab_size=5, window_size=3),
    ):
        again = pickle.loads(pickle.dumps(model))
        assert torch.equal(again.wte.weight, model.wte.weight)
        minhub_py.save_pretrained(torch.compile(model), tmp_path)
        assert torch.equal(minhub_py.from_pretrained(tmp_path).wte.weight, model.wte.weight)


def test_weights_are_mapped_and_yet_ones_own(tmp_path: Path) -> None:
    """A fine-tuning step writes to the model's pages, never to the file, and saving over the file
    is safe.
    """
    torch.manual_seed(0)
    minhub_py.save_pretrained(minhub_py.gpt2(n_layer=1, n_embd=8, n_head=2, vocab_size=5), tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    model = minhub_py.from_pretrained(tmp_path)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    minhub_py.save_pretrained(model, tmp_path)
    again = minhub_py.from_pretrained(tmp_path)
    assert all(
        torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True)
    )


def test_saving_refuses_what_it_cannot_save(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="takes models of this package, not Linear"):
        minhub_py.save_pretrained(torch.nn.Linear(1, 1), tmp_path)
    with pytest.raises(
        ValueError, match=r"tokenizer must be a tokenizers\.Tokenizer, not its name"
    ):
        minhub_py.save_pretrained(minhub_py.lstm(hidden_size=2, embedding_size=2), tmp_path, "gpt2")
    assert not any(tmp_path.iterdir())


def test_dir_lists_public_names_alone() -> None:
    names = python(
        "import minhub_py, minhub_py.cli.main; minhub_py.generate; print(*dir(minhub_py))"
    ).split()
    assert [name for name in names if not name.startswith("__")] == sorted(minhub_py.__all__)
    assert "__version__" in names


def test_modules_import_no_cycle() -> None:
    """At import time, and under TYPE_CHECKING. Imports within functions are not counted."""
    files = [
        path
        for package in ("minhub_py", "weights_map", "r_bridge")
        for path in (ROOT / package).rglob("*.py")
    ]
    paths = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in files
    }
    graph: dict[str, set[str]] = {}
    for module, path in paths.items():
        results: set[str] = set()
        waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.Import):
                results |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                results |= {name if name in paths else str(node.module) for name in names}
            elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                waiting.extend(ast.iter_child_nodes(node))
        graph[module] = (results & set(paths)) - {module}
    TopologicalSorter(graph).prepare()  # CycleError names the modules


def test_editors_know_every_public_name() -> None:
    """They read the file, and do not run __getattr__."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(Path(minhub_py.__file__).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    assert set(minhub_py.__all__) <= names


def test_the_extra_r_works_with_the_r_that_most_have() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'r = ["rpy2-rinterface{rpy2_range((4, 2, 2))}"]' in project


def test_uvx_and_pipx_find_a_command_with_the_name_of_the_package() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    scripts = dict(
        re.findall(
            r'^(\w+) = "(minhub_py\.[\w.:]+)"',
            project.partition("[project.scripts]")[2].partition("\n[")[0],
            re.MULTILINE,
        )
    )
    assert scripts["minhub_py"] == scripts["minhub"] == "minhub_py.cli.main:main"


def test_the_citation_is_of_this_version() -> None:
    lines = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    assert f"version: {minhub_py.__version__}" in lines
    assert "cff-version: 1.2.0" in lines


def test_doctor_knows_the_versions_of_pyproject() -> None:
    required = importlib.metadata.requires("minhub_py")
    oldest = {
        name: version
        for line in required
        if "extra" not in line
        for name, version in re.findall(r"^([\w-]+).*?>=([\d.]+)", line)
    }
    assert oldest == PACKAGES


def test_every_package_is_installed() -> None:
    """An editable installation, as in these tests, contains every folder; a wheel only what
    pyproject.toml lists.
    """
    listed = re.search(
        r"^packages = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL
    )
    assert listed is not None
    folders = [
        path.parent.relative_to(ROOT)
        for name in ("minhub_py", "weights_map", "r_bridge")
        for path in (ROOT / name).rglob("__init__.py")
    ]
    assert set(re.findall(r'"(.*?)"', listed[1])) == {".".join(folder.parts) for folder in folders}
