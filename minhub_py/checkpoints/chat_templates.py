"""The sources of chat templates by name, in a model folder or in a GGUF file's metadata.

chat_template.jinja                       the repository's template
additional_chat_templates/NAME.jinja      further templates; "tool_use" applies to requests with
tools tokenizer_config.json, "chat_template"    a template, or several with names
tokenizer.chat_template                   metadata of a GGUF file; tokenizer.chat_template.NAME for
further ones
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from minhub_py.system.files import read_text
from minhub_py.system.shapes import ADVICE, convert

GGUF_KEY = "tokenizer.chat_template"
ADDITIONAL = "additional_chat_templates"  # a folder


class NamedTemplate(TypedDict):
    """One of several templates."""

    name: str
    template: str


def folder_templates(folder: Path, settings: Mapping[str, object]) -> tuple[dict[str, str], str]:
    """A folder's templates, and a description of their file. settings: of
    tokenizer_config.json.

    ValueError: a file is corrupt.
    """
    file = folder / "chat_template.jinja"
    origin = str(file)
    if file.is_file():
        templates = {"default": read_template(file)}
    else:
        origin = f"the chat template in {folder / 'tokenizer_config.json'}"
        templates = named_templates(settings.get("chat_template"), folder)
    return templates | {path.stem: read_template(path) for path in additional_files(folder)}, origin


def gguf_templates(metadata: Mapping[str, object]) -> dict[str, str]:
    """The templates in a GGUF file's metadata."""
    return {
        key.removeprefix(GGUF_KEY).lstrip(".") or "default": value
        for key, value in metadata.items()
        if (key == GGUF_KEY or key.startswith(f"{GGUF_KEY}.")) and isinstance(value, str)
    }


def gguf_pairs(templates: Mapping[str, str]) -> dict[str, object]:
    """The metadata of templates, as the package gguf writes them. Names consist of letters, digits
    and underscores.
    """
    names = {re.sub("[^A-Za-z0-9]", "_", name): text for name, text in templates.items()}
    further = sorted(names.keys() - {"default"})
    pairs: dict[str, object] = {GGUF_KEY: names["default"]} if "default" in names else {}
    pairs |= {f"{GGUF_KEY}.{name}": names[name] for name in further}
    return pairs | ({"tokenizer.chat_templates": further} if further else {})


def template_files(templates: Mapping[str, str]) -> dict[str, bytes]:
    """The files of templates in a folder, by name."""
    return {
        "chat_template.jinja" if name == "default" else f"{ADDITIONAL}/{name}.jinja": text.encode()
        for name, text in templates.items()
    }


def additional_files(folder: Path) -> list[Path]:
    """The files of further templates in a folder."""
    return sorted(path for path in (folder / ADDITIONAL).glob("*.jinja") if path.is_file())


def named_templates(stored: object, folder: Path) -> dict[str, str]:
    """The templates in tokenizer_config.json's "chat_template" by name. ValueError: it has an
    unknown type.
    """
    shape = str | list[NamedTemplate] | dict[str, str] | None
    value = convert(
        stored, shape, str(folder / "tokenizer_config.json"), ADVICE, path="chat_template"
    )
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, list):
        return {entry["name"]: entry["template"] for entry in value}
    return dict(value)


def read_template(path: Path) -> str:
    """A template file. ValueError: it is not UTF-8."""
    try:
        return read_text(path)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: it is corrupt, download it again") from error
