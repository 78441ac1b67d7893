"""Follow an identifier through the functions of the package, to count those that it passes through.

A function counts if an argument, or a variable of an enclosing function, is the identifier, a path
at or below one of `places`, an object with such a path as its attribute `path` (an opened
checkpoint, the files of a model), or a list or dict of these. Tensors by name no longer identify a
model.

    python tests/support/identifier_path.py MODEL     prints the functions for a model, in the order of the first calls
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import minhub_py

ROOT = str(Path(minhub_py.__file__).parents[1]) + os.sep
# Packages and modules from the lowest to the highest layer (CONTRIBUTING.md). Those that are not
# listed are above.
LAYERS = (
    ("system",),
    ("models", "registry", "config"),
    ("inference", "distributed"),
    ("weights_map", "checkpoints"),
    ("loading", "adapters", "pretrained", "inspection"),
)
GENERATED = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>", "<module>")


@dataclass
class Passage:
    """The functions that an identifier passes through. upward: calls of a function in a higher
    layer.
    """

    functions: list[str] = field(default_factory=list)
    upward: list[str] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=dict)  # of every function of the package


def follow(call: Callable[[], object], *places: str | os.PathLike[str]) -> Passage:
    """Run `call` and record the functions that receive one of `places`."""
    roots, passage = [os.fspath(place) for place in places], Passage()

    def record(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event != "call" or not is_ours(code) or code.co_name in GENERATED:
            return
        name = name_of(code)
        passage.calls[name] = passage.calls.get(name, 0) + 1
        if not any(carries(frame.f_locals.get(variable), roots) for variable in variables_of(code)):
            return
        if name not in passage.functions:
            passage.functions.append(name)
        caller = frame.f_back
        while caller is not None and not is_ours(caller.f_code):
            caller = caller.f_back
        if caller is not None and layer_of(caller.f_code) < layer_of(code):
            step = f"{name_of(caller.f_code)} -> {name}"
            passage.upward += [step] * (step not in passage.upward)

    previous = sys.getprofile()
    sys.setprofile(record)
    try:
        call()
    finally:
        sys.setprofile(previous)
    return passage


def carries(value: object, roots: Sequence[str], inside: bool = False) -> bool:
    """Whether a value is, or contains, one of the roots or a path below it."""
    if isinstance(value, str | os.PathLike):
        path = os.fspath(value)
        return isinstance(path, str) and any(
            path == root or path.startswith(root + os.sep) for root in roots
        )
    if (
        isinstance(value, list | tuple | Mapping)
        and not inside
        and type(value) in (list, tuple, dict)
    ):
        items: Any = value.values() if isinstance(value, Mapping) else value
        return any(carries(item, roots, inside=True) for item in list(items)[:100])
    if isinstance(value, type) or not type(value).__module__.startswith("minhub_py"):
        return False
    return carries(getattr(value, "path", None), roots, inside=True)


def variables_of(code: CodeType) -> tuple[str, ...]:
    """The arguments of a function and the variables of enclosing functions."""
    count = (
        code.co_argcount
        + code.co_kwonlyargcount
        + bool(code.co_flags & 4)
        + bool(code.co_flags & 8)
    )
    return code.co_varnames[:count] + code.co_freevars


def is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith((f"{ROOT}minhub_py{os.sep}", f"{ROOT}weights_map{os.sep}"))


def name_of(code: CodeType) -> str:
    module = code.co_filename.removeprefix(ROOT).removesuffix(".py").replace(os.sep, ".")
    return f"{module.removeprefix('minhub_py.')}:{code.co_qualname}"


def layer_of(code: CodeType) -> int:
    package = name_of(code).partition(":")[0].partition(".")[0]
    return next((number for number, names in enumerate(LAYERS) if package in names), len(LAYERS))


if __name__ == "__main__":
    minhub_py.from_pretrained(sys.argv[1])  # imports
    found = follow(lambda: minhub_py.from_pretrained(sys.argv[1]), sys.argv[1])
    print(
        *found.functions,
        f"{len(found.functions)} functions; calls up: {found.upward or 'none'}",
        sep="\n",
    )
