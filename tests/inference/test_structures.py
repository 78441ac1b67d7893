"""The structures and constants of library.py are those of decoder.h."""

import ctypes
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from needs import compiler, need
from paths import ROOT

from minhub_py.inference.native import library
from minhub_py.inference.native.library import (
    BLOCKS,
    DTYPES,
    KINDS,
    DecoderCall,
    DecoderOperation,
    Matrix,
)

NATIVE = ROOT / "minhub_py" / "inference" / "native"
# other fields of C are pointers
LETTERS = {ctypes.c_int32: "i", ctypes.c_int64: "l", ctypes.c_float: "f"}
FLAGS = (
    "MORE_LINEAR",
    "FROM_SAVED",
    "TO_STREAM",
    "JOINT_NORM",
    "INTERLEAVED",
    "BIDIRECTIONAL",
    "NORM_LAST",
    "LAYER_NORM",
    "NO_KEYS",
    "REPLACES",
    "ROUNDED_SLOPES",
    "SAME_INPUTS",
)
SIZES = ("MAX_TOKENS", "MAX_CHOICES", "MAX_EXPERTS", "BF16_PADDING", "QUERIES", "PANEL")


def run_c(tmp_path: Path, lines: list[str]) -> list[str]:
    """The output of a program that includes decoder.h."""
    need("C compiler")
    source, program = tmp_path / "program.c", tmp_path / "program"
    head = [
        "#include <stddef.h>",
        "#include <stdio.h>",
        f'#include "{NATIVE / "decoder.h"}"',
        "int main(void) {",
    ]
    source.write_text("\n".join([*head, *lines, "}"]), encoding="utf-8")
    subprocess.run([*(compiler() or []), source, "-o", program, "-lm"], check=True)
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()


def fields(structure: Any, prefix: str = "", offset: int = 0) -> Iterator[tuple[str, int, Any]]:
    """Name, offset and type of each field of a structure, and of the structures in it."""
    for name, kind in structure._fields_:
        at = offset + getattr(structure, name).offset
        if name in getattr(structure, "_anonymous_", ()):
            yield from fields(kind, prefix, at)
            continue
        yield prefix + name, at, kind
        if issubclass(kind, ctypes.Structure):
            yield from fields(kind, f"{prefix}{name}.", at)


@pytest.mark.parametrize(
    ("name", "structure"),
    [("matrix", Matrix), ("operation", DecoderOperation), ("call", DecoderCall)],
)
def test_structures_have_the_offsets_of_c(tmp_path: Path, name: str, structure: Any) -> None:
    """Also the sizes and types."""
    expected, lines = [str(ctypes.sizeof(structure))], [f'printf("%zu\\n", sizeof({name}));']
    for field, offset, kind in fields(structure):
        member = f"(({name} *)0)->{field}"
        is_structure = issubclass(kind, ctypes.Structure)
        letter = (
            '"s"'
            if is_structure
            else f'_Generic({member}, int32_t: "i", int64_t: "l", float: "f", default: "p")'
        )
        lines.append(
            f'printf("{field}:%zu:%zu:%s\\n", offsetof({name}, {field}), sizeof({member}),'
            f" {letter});"
        )
        expected.append(
            f"{field}:{offset}:{ctypes.sizeof(kind)}:{'s' if is_structure else LETTERS.get(kind, 'p')}"
        )
    assert run_c(tmp_path, lines) == expected


def test_constants_are_those_of_c(tmp_path: Path) -> None:
    """Kinds, formats, activations, flags and sizes."""
    constants = {name.upper(): number for name, number in KINDS.items()}
    constants |= {
        str(dtype).removeprefix("torch.").upper(): number for dtype, number in DTYPES.items()
    }
    constants["NF4"] = constants.pop("UINT8")
    constants |= {
        {"MXFP4": "MXFP4_BLOCK"}.get(name, name): number for name, number in BLOCKS.items()
    }
    constants |= {
        name.upper(): library.ACTIVATIONS[name] for name in ("gelu", "relu", "silu", "tanh")
    }
    constants |= {"GELU_TANH": library.ACTIVATIONS["gelu_new"], "MXFP4": library.MXFP4}
    constants |= {name: getattr(library, name) for name in (*FLAGS, *SIZES)}
    lines = [f'printf("{name}=%d\\n", {name});' for name in constants]
    assert run_c(tmp_path, lines) == [f"{name}={number}" for name, number in constants.items()]
