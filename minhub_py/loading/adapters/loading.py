"""The adapters of a model that is loaded: their folders, and their base."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minhub_py.checkpoints import hub
from minhub_py.loading.adapters.attach import attach
from minhub_py.loading.adapters.files import CONFIG, PICKLE, WEIGHTS, read_file
from minhub_py.loading.adapters.fit import read_adapter
from minhub_py.loading.adapters.heads import base_of
from minhub_py.loading.adapters.mlx import WEIGHTS as MLX_WEIGHTS
from minhub_py.models.base import LanguageModel

AdapterSource = str | os.PathLike[str]
DEFAULT_ADAPTER = "default"  # name of an adapter that is loaded alone


def adapter_folders(
    adapter: AdapterSource | Mapping[str, AdapterSource] | None,
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> dict[str, Path]:
    """Each adapter's local folder by its name, downloaded if necessary. Raises the errors of
    `hub.fetch`.

    TypeError: `adapter` has another type.
    """
    if adapter is None:
        return {}
    if not isinstance(adapter, str | os.PathLike | Mapping):
        raise TypeError(
            "adapter must be a folder, a Hub repository, or a dict of them by name, not"
            f" {adapter!r}: pass the folder of a run, run.folder"
        )
    named = {DEFAULT_ADAPTER: adapter} if isinstance(adapter, str | os.PathLike) else dict(adapter)
    folders = {}
    for name, source in named.items():
        identifier, _, revision = (
            os.fspath(source).rpartition("@") if "@" in os.fspath(source) else (source, "", "")
        )
        folders[name] = fetch(
            identifier, revision or "main", token=token, local_files_only=local_files_only
        )
    return folders


def fetch(identifier: str | os.PathLike[str], revision: str, **access: Any) -> Path:
    """An adapter's local folder, downloaded if necessary. Raises the errors of `hub.fetch`."""
    errors: list[FileNotFoundError] = []
    for weights in (WEIGHTS, PICKLE, MLX_WEIGHTS):
        try:
            return hub.fetch(identifier, revision, files=(CONFIG, weights), **access)
        except FileNotFoundError as error:
            errors.append(error)
    raise errors[0]


def is_adapter(path: Path) -> bool:
    """Whether a path is the folder of an adapter without a model."""
    return (path / CONFIG).is_file() and not (path / "config.json").exists()


def base_in(folder: Path) -> tuple[str, str]:
    """The identifier and revision of an adapter's base. ValueError: the adapter does not name
    its base.
    """
    values = read_file(folder)
    base = values.get("base_model_name_or_path")
    if not base:
        raise ValueError(
            f"{folder} is an adapter of an unknown model: load the model with"
            f" adapter={str(folder)!r}"
        )
    return base, values.get("revision") or "main"


def load_adapters(model: LanguageModel, folders: Mapping[str, Path]) -> None:
    """Make adapters available as `model.adapter(name)`. ValueError: an adapter does not fit the
    model.
    """
    if folders:
        model.adapters = {name: with_adapter(model, path) for name, path in folders.items()}


def with_adapter(model: LanguageModel, folder: Path) -> LanguageModel:
    """A view of `model` with the adapter in a folder, and with its classification head. Raises as
    `read_adapter`.
    """
    base = base_of(folder, model)
    view = attach(base, read_adapter(folder, base))
    view._base = (model,)  # with its own head
    return view
