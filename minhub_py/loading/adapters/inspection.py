"""Reports of `minhub inspect` and `minhub verify` about an adapter's folder, as plain data."""

from dataclasses import asdict
from pathlib import Path

from minhub_py.checkpoints.local import locate
from minhub_py.checkpoints.tokenizers.tokenizer import tokenizer_file
from minhub_py.loading.adapters.attach import attach
from minhub_py.loading.adapters.config import AdapterConfig
from minhub_py.loading.adapters.files import stored_adapter
from minhub_py.loading.adapters.fit import read_adapter
from minhub_py.loading.adapters.heads import base_of
from minhub_py.loading.adapters.loading import base_in, is_adapter
from minhub_py.loading.inspection import tokenizer_problems, value_problems
from minhub_py.loading.pretrained import read_config as read_model_config
from minhub_py.models.skeleton import skeleton
from minhub_py.system.json_text import JsonObject


def inspect_adapter(identifier: str) -> JsonObject | None:
    """The base, or None, the settings and the tensors of an adapter; None if `identifier` is not
    such a folder.

    FileNotFoundError: its tensors are missing.    ValueError: a setting is not supported, or a file
    is corrupt.
    """
    folder = locate(identifier)
    if folder is None or not is_adapter(folder):
        return None
    config, tensors = stored_adapter(folder)
    defaults = asdict(AdapterConfig())
    settings = {
        name: value
        for name, value in asdict(config).items()
        if name == "r" or value != defaults[name]
    }
    for name in ("base_model_name_or_path", "revision"):
        settings.pop(name, None)
    return {
        "model": identifier,
        "source": {"kind": "adapter", "folder": str(folder)},
        "base": config.base_model_name_or_path,
        "revision": config.revision or "main",
        "parameters": {"total": sum(tensor.numel() for tensor in tensors.values())},
        "settings": settings,
        "tensors": [
            {
                "name": name,
                "shape": list(tensor.shape),
                "dtype": str(tensor.dtype).removeprefix("torch."),
            }
            for name, tensor in tensors.items()
        ],
    }


def verify_adapter(identifier: str) -> JsonObject | None:
    """The report of `inspection.verify` about an adapter; None if `identifier` is not the folder of
    an adapter.

    Checks the settings and tensors against the config of the base, all values, and the tokenizer.
    """
    folder = locate(identifier)
    if folder is None or not is_adapter(folder):
        return None
    base, revision = base_in(folder)
    checked, problems = list[str](), list[str]()
    try:
        checked, problems = check_adapter(base, revision, folder)
    except (ValueError, OSError) as error:
        problems.append(str(error))
    return {"model": identifier, "folder": str(folder), "checked": checked, "problems": problems}


def check_adapter(base: str, revision: str, folder: Path) -> tuple[list[str], list[str]]:
    """The names of the checks, and the problems. Raises the errors of `from_pretrained`."""
    architecture, config, _ = read_model_config(base, revision)
    model = base_of(folder, skeleton(architecture.new, config))
    adapter = read_adapter(folder, model)
    tensors = (
        {
            f"{module} ({name})": tensor
            for module, factors in (adapter.factors | adapter.embeddings).items()
            for name, tensor in factors.named_parameters()
        }
        | adapter.base
        | adapter.saved
    )
    tensors |= {f"{module} (tokens)": rows for module, rows in adapter.tokens.items()}
    problems = [
        problem for name, tensor in tensors.items() for problem in value_problems(name, [tensor])
    ]
    config = attach(model, adapter).config  # raises errors
    checked = [f"settings and tensors, against {base}", "values"]
    if tokenizer_file(folder) is not None:
        problems += tokenizer_problems(folder, config.vocab_size)
        checked.append("tokenizer")
    return checked, problems
