"""Reports of `minhub inspect` and `minhub verify` about the folder of an adapter, as plain data."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from minhub_py.adapters.attach import attach
from minhub_py.adapters.config import AdapterConfig, read_config
from minhub_py.adapters.files import CONFIG, WEIGHTS, read_adapter
from minhub_py.adapters.heads import base_of
from minhub_py.adapters.loading import adapter_folder, local_adapter
from minhub_py.checkpoints.storage import open_safetensors, read_object
from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer, tokenizer_file
from minhub_py.models.skeleton import skeleton
from minhub_py.pretrained import read_config as read_model_config


def inspect_adapter(identifier: str) -> dict[str, Any] | None:
    """The base, or None, the settings and the tensors of an adapter; None if `identifier` is not such a folder.

    ValueError: a setting is not supported, or a file is corrupt.
    """
    if (folder := local_adapter(identifier)) is None:
        return None
    config = read_config(read_object(folder / CONFIG), str(folder / CONFIG))
    defaults = asdict(AdapterConfig())
    settings = {name: value for name, value in asdict(config).items() if name == "r" or value != defaults[name]}
    for name in ("base_model_name_or_path", "revision"):
        settings.pop(name, None)
    file = open_safetensors(folder / WEIGHTS)
    slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
    tensors = [{"name": name, "shape": part.get_shape(), "dtype": part.get_dtype()} for name, part in slices.items()]
    return {
        "model": identifier,
        "source": {"kind": "adapter", "folder": str(folder)},
        "base": config.base_model_name_or_path,
        "revision": config.revision or "main",
        "parameters": {"total": sum(math.prod(tensor["shape"]) for tensor in tensors)},
        "settings": settings,
        "tensors": tensors,
    }


def verify_adapter(identifier: str) -> dict[str, Any] | None:
    """The report of `inspection.verify` about an adapter; None if `identifier` is not the folder of an adapter.

    Checks the settings and tensors against the config of the base, all values, and the tokenizer.
    """
    if (parts := adapter_folder(identifier)) is None:
        return None
    base, revision, folder = parts
    checked, problems = list[str](), list[str]()
    try:
        checked, problems = check_adapter(base, revision, folder)
    except (ValueError, OSError) as error:
        problems.append(str(error))
    return {"model": identifier, "folder": str(folder), "checked": checked, "problems": problems}


def check_adapter(base: str, revision: str, folder: Path) -> tuple[list[str], list[str]]:
    """What was checked, and the problems. Raises the errors of `from_pretrained`."""
    architecture, config, _ = read_model_config(base, revision)
    model = base_of(folder, skeleton(architecture.new, config))
    adapter = read_adapter(folder, model)
    tensors = {f"{module} ({name})": tensor for module, factors in adapter.factors.items()
               for name, tensor in factors.named_parameters()} | adapter.saved  # fmt: skip
    problems = [
        f"{name}: {count} of {tensor.numel()} values are NaN or infinite"
        for name, tensor in tensors.items()
        if (count := int((~tensor.isfinite()).sum()))
    ]
    attach(model, adapter)  # raises errors
    checked = [f"settings and tensors, against {base}", "values"]
    if tokenizer_file(folder) is not None:
        size = read_tokenizer(folder).get_vocab_size()
        if size > config.vocab_size:
            problems.append(f"the tokenizer has {size} token IDs, the model only {config.vocab_size}")
        checked.append("tokenizer")
    return checked, problems
