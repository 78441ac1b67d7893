"""Writes minhub_py/entry_points.pyi, the types of the registry's functions: `make stub`."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, get_args

import minhub_py
from minhub_py.chat.turns import SAMPLING_FIELDS, ReplySettings
from minhub_py.models.registry import ENTRIES, Entry
from minhub_py.training.settings import CHANGEABLE, Settings

STUB = Path(minhub_py.__file__).with_name("entry_points.pyi")

HEADER = '''"""Types of the functions of each architecture. Generated from the registry by `make stub`; do not edit."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict

import torch
from typing_extensions import Unpack

'''

FUNCTIONS = """
def {name}(**config: Unpack[{settings}]) -> {model}: ...
def {name}_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> {model}: ...
def {name}_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> {model}: ...
"""

# config.one_rope accepts these names for parts of rope_parameters.
ROPE_SETTINGS = {"rope_theta": "float", "rope_scaling": "dict[str, Any] | None"}


def stub() -> str:
    """The text of the stub."""
    models = {entry.architecture.Model for entry in ENTRIES.values()}
    imports = sorted(f"from {Model.__module__} import {Model.__name__}" for Model in models)
    names = [f"{name}{end}" for name in ENTRIES for end in ("", "_from_config", "_from_pretrained")]
    listed = "__all__ = [\n" + "".join(f'    "{name}",\n' for name in names) + "]\n"
    return HEADER + "\n".join(imports) + "\n\n" + listed + "".join(parts())


def parts() -> Iterator[str]:
    """The settings of each config class, of runs and of replies, and the functions of each entry."""
    for Config in dict.fromkeys(entry.architecture.Config for entry in ENTRIES.values()):
        yield typed_dict(settings_name(Config), settings_of(Config))
    training = settings_of(Settings)
    yield typed_dict("TrainSettings", training)
    yield typed_dict(
        "ResumeSettings", {name: kind for name, kind in training.items() if name in CHANGEABLE}
    )
    sampling = {
        name: kind for name, kind in settings_of(ReplySettings).items() if name in SAMPLING_FIELDS
    }
    yield typed_dict("SamplingSettings", sampling)
    automatic = {name: kind + ' | Literal["auto"]' for name, kind in sampling.items()}
    yield typed_dict(
        "ChatSettings", {**settings_of(ReplySettings), **automatic, "stop": "str | Sequence[str]"}
    )
    for entry in ENTRIES.values():
        yield functions(entry)


def typed_dict(name: str, items: dict[str, str]) -> str:
    """The class of a TypedDict whose keys are optional."""
    return f"\nclass {name}(TypedDict, total=False):\n" + "".join(
        f"    {key}: {items[key]}\n" for key in items
    )


def functions(entry: Entry) -> str:
    """The three functions of a public name."""
    Config, Model = entry.architecture.Config, entry.architecture.Model
    return FUNCTIONS.format(name=entry.name, settings=settings_name(Config), model=Model.__name__)


def settings_name(Config: Any) -> str:
    """GPT2Config -> GPT2Settings."""
    return str(Config.__name__).removesuffix("Config") + "Settings"


def settings_of(Config: Any) -> dict[str, str]:
    """The annotation of each setting, by name."""
    settings = {field.name: annotation(field.type) for field in dataclasses.fields(Config)}
    if "rope_parameters" in settings:
        older = dict.fromkeys(getattr(Config, "ROPE_NAMES", {}), "float")
        settings |= {
            name: kind for name, kind in {**ROPE_SETTINGS, **older}.items() if name not in settings
        }
    return settings


def annotation(kind: Any) -> str:
    """The source text of a type."""
    if isinstance(kind, UnionType):
        return " | ".join(
            "None" if part is type(None) else annotation(part) for part in get_args(kind)
        )
    if kind in (list, dict):
        return {list: "list[Any]", dict: "dict[str, Any]"}[kind]
    return (
        kind.__name__
        if isinstance(kind, type) and not get_args(kind)
        else re.sub(r"(\w+\.)+", "", str(kind))
    )


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
