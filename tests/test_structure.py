"""The packages form layers: an import that points up, also one inside a function, makes a cycle."""

import ast
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter

from paths import ROOT

PACKAGES = ("minhub_py", "weights_map", "r_bridge")


def unit(module: str) -> str:
    """The package of a module within minhub_py, or its top-level package."""
    first, *rest = module.split(".")
    return rest[0] if first == "minhub_py" and rest and (ROOT / first / rest[0]).is_dir() else first


def imported(tree: ast.AST) -> Iterator[str]:
    """The modules of these packages that a module imports, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.partition(".")[0] in PACKAGES)


def package_graph() -> dict[str, set[str]]:
    """The packages that each package imports."""
    graph: dict[str, set[str]] = {}
    for package in PACKAGES:
        for path in {*(ROOT / package).rglob("*.py")} - {ROOT / "minhub_py" / "__main__.py"}:
            own = unit(".".join(path.relative_to(ROOT).with_suffix("").parts))
            names = imported(ast.parse(path.read_text(encoding="utf-8")))
            graph.setdefault(own, set()).update({unit(name) for name in names} - {own})
    return graph


def test_imports_between_packages_point_down() -> None:
    graph = package_graph()
    sorter = TopologicalSorter(graph)
    sorter.prepare()  # CycleError names the packages
    layers = 0
    while sorter.is_active():
        sorter.done(*sorter.get_ready())
        layers += 1
    assert len(graph) <= 18
    assert layers <= 10
    assert sum(map(len, graph.values())) <= 100
    assert graph["models"] <= {"system", "weights_map"}
    assert graph["system"] == graph["weights_map"] == set()


def test_a_class_name_has_one_meaning() -> None:
    names = Counter(
        node.name
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    of_model_files = {"Attention", "Block", "MLP"}
    assert {name for name, count in names.items() if count > 1} == of_model_files
