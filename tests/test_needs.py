"""Every test that needs more than `make test` can install everywhere says so with `needs`."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from needs import REQUIREMENTS, need, needs, package
from paths import ROOT

TESTS = ROOT / "tests"
NEEDS = TESTS / "support" / "needs.py"
# Calls that skip a test, and calls that search for something on this machine.
FORBIDDEN = {"skip", "skipif", "importorskip", "which", "find_spec"}
# Searches that do not decide about a test: a package that holds a model, and a program with a
# fallback.
ALLOWED = {"tests/support/real_models.py: find_spec", "tests/r_bridge/test_r_sessions.py: which"}
# Programs that are started by their names only where `needs` has found them.
PROGRAMS = {"R", "Rscript", "cc", "gcc", "c++", "chromium", "chromium-headless-shell"}


def modules() -> Iterator[tuple[str, ast.Module]]:
    """The tests and their support, without tools and benchmarks, which run on their own."""
    for path in sorted(
        [*TESTS.rglob("test_*.py"), *TESTS.rglob("conftest.py"), *(TESTS / "support").rglob("*.py")]
    ):
        if path != NEEDS and path != Path(__file__):
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def test_only_needs_skips_tests_and_searches_for_programs() -> None:
    found = {
        f"{name}: {node.attr if isinstance(node, ast.Attribute) else node.id}"
        for name, tree in modules()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr in FORBIDDEN and not is_data(node))
        or (isinstance(node, ast.Name) and node.id in FORBIDDEN - {"skip"})
    }
    assert found == ALLOWED


def is_data(node: ast.Attribute) -> bool:
    """An attribute of another object with the same name, such as `result.skip`."""
    return isinstance(node.value, ast.Name) and node.value.id not in (
        "pytest",
        "shutil",
        "importlib",
        "util",
        "mark",
    )


def test_programs_are_started_by_modules_that_name_their_need() -> None:
    for name, tree in modules():
        started = {
            node.elts[0].value
            for node in ast.walk(tree)
            if isinstance(node, ast.List) and node.elts and isinstance(node.elts[0], ast.Constant)
        } & PROGRAMS
        imports = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not started or "needs" in imports, f"{name} starts {started}"


def test_requirements_of_this_machine_are_known_by_name() -> None:
    with pytest.raises(KeyError):
        needs("a program that nobody has heard of")
    for name in REQUIREMENTS:
        mark = needs(name).mark
        assert mark.kwargs["reason"] or not mark.args[0], name


def test_a_missing_package_skips_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(
        REQUIREMENTS, "peft", (lambda: None, "peft is not installed (pip install peft)")
    )
    with pytest.raises(pytest.skip.Exception, match=r"peft is not installed \(pip install peft\)"):
        package("peft")
    with pytest.raises(pytest.skip.Exception, match="peft is not installed"):
        need("peft")
