"""From a name to a model: hub -> config -> model on meta -> weights map -> assign, and back to files.

A reader's way goes on in `registry`, then a model file, then its table in `weights_map`.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import weights_map
from minhub_py.arguments import check_tokenizer, model_of
from minhub_py.config import build, changed, read
from minhub_py.device import choose_device, choose_dtype
from minhub_py.files import hub
from minhub_py.files.storage import Checkpoint, read_object, write_checkpoint
from minhub_py.inference.quantize import check_kind, refuse_quantized
from minhub_py.inference.quantize import quantize as quantize_layers
from minhub_py.registry import FAMILIES, Entry, Family, entry_of, family_of, preset
from minhub_py.skeleton import skeleton
from weights_map.engine import check_shapes


def from_pretrained(
    identifier: str | os.PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    token: str | None = None,
    local_files_only: bool = False,
) -> Any:
    """The pretrained model of whatever family config.json's model_type names, in eval mode.

    identifier: a Hub repository id, a local folder in Hub layout, or a built-in such as minhub/shakespeare-gpt2.
    revision: a branch, tag or commit of the repository.    device, dtype: see `devices()`; "auto" decides.
    quantize: "int8" or "nf4" (4 bits) makes the weights smaller, text on a CPU faster (by the native decoder; elsewhere
    slower), and changes results a little; such a model is for inference, and is not saved.
    local_files_only: open no connection; so does the environment variable HF_HUB_OFFLINE=1.

    FileNotFoundError: no such repository, revision, folder or file.    PermissionError: a gated repository.
    ConnectionError: the Hub cannot be reached.    ValueError: damaged files, a family or a setting without code,
    tensors that do not fit, an unknown device, dtype or quantization.
    """
    access = {"token": token, "local_files_only": local_files_only}
    return _from_pretrained(identifier, revision, access, device, dtype, quantize)


def _from_pretrained(
    identifier: str | os.PathLike[str],
    revision: str,
    access: Mapping[str, Any],
    device: str,
    dtype: str | torch.dtype,
    quantize: str | None,
    entry: Entry | None = None,
) -> Any:
    """`from_pretrained`, for the model types of one `entry` if it is given."""

    def check(folder: Path) -> None:
        check_family(describe(Checkpoint(folder))[1], entry, identifier)

    check_kind(quantize)
    folder = hub.fetch(identifier, revision, check=check, **access)
    check(folder)
    return load(Checkpoint(folder), device=device, dtype=dtype, quantize=quantize)


def read_config(
    identifier: str | os.PathLike[str],
    revision: str = "main",
    *,
    entry: Entry | None = None,
    token: str | None = None,
    local_files_only: bool = False,
) -> tuple[Family, Any, Path | None]:
    """The family and the config of a model, and the folder that they were read from; no weights are fetched.

    A published size, such as gpt2-xl, is known without the network: no folder then, unless it is in the cache.
    Errors are those of from_pretrained(), and those of check_family().
    """
    folder = hub.locate(identifier, revision)
    if folder is None and revision == "main" and (known := preset(os.fspath(identifier))):
        with suppress(FileNotFoundError):
            folder = hub.cached(os.fspath(identifier), weights=False)
        if folder is None:
            check_family(known[1], entry, identifier)
            return *known, None
    if folder is None:
        folder = hub.fetch(identifier, revision, token=token, local_files_only=local_files_only, weights=False)
    family, config = describe(Checkpoint(folder))
    check_family(config, entry, identifier)
    return family, config, folder


def check_family(config: Any, entry: Entry | None, identifier: object) -> None:
    """ValueError: one `entry` is wanted, and the config is of a model for another."""
    found = entry_of(config.to_hub()["model_type"])
    if entry not in (None, found):
        raise ValueError(f"{identifier} holds a {found.name} model: call {found.name}_from_pretrained()")


def load(
    checkpoint: Checkpoint,
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
) -> Any:
    """The model of an opened checkpoint, in eval mode. On a CPU its weights are the file's own memory-mapped bytes.

    ValueError: an unknown device, dtype or quantization.
    """
    check_kind(quantize)
    family, model, meta = fit(checkpoint)
    probe = choose_device(device)
    target = choose_dtype(dtype, probe, [tensor.dtype for tensor in meta.values()])
    native = native_tensors(checkpoint, family, checkpoint, model.config)
    # What is to be quantized is not rounded to another dtype first, and whole numbers are no weights to round.
    kept = {
        name: meta[name].dtype if quantize or not meta[name].is_floating_point() else target
        for name in model.state_dict()
    }
    weights = {name: place(native[name], torch.device(probe.name), own) for name, own in kept.items()}
    model.load_state_dict(weights, assign=True)
    if quantize:
        quantize_layers(model, quantize)
        model.to(target)
    return model.eval()


def fit(checkpoint: Checkpoint) -> tuple[Family, Any, Mapping[str, Tensor]]:
    """The family, the model without weights, and the shapes and dtypes of the checkpoint's tensors under our names.

    Only the files' headers are read. ValueError lists every tensor that does not fit the table or the config.
    """
    family, config = describe(checkpoint)
    model = skeleton(family, config)
    meta = native_tensors(checkpoint, family, checkpoint.meta(), config)
    check_shapes(meta, model.state_dict(), spare=tied_names(family, config))
    return family, model, meta


def place(tensor: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Bring a weight to its device and dtype; one that is there already is not copied.

    A transposed view is left as one on a CPU in float32, where it is the faster layout for one token (4.8 ms against
    6.8 in tests/benchmarks/layout.py). In 16 bits (out, in) is the faster one, in float16 by far: 1.8 ms against 40.
    """
    tensor = tensor.to(device, dtype)
    return tensor if dtype == torch.float32 and device.type == "cpu" else tensor.contiguous()


def describe(checkpoint: Checkpoint) -> tuple[Family, Any]:
    """The family and the config of a checkpoint, by config.json or, where there is none, by the tensors themselves."""
    if checkpoint.config is not None:
        settings = text_settings(checkpoint.config)
        family = family_of(settings.get("model_type"))
        return family, with_generation_settings(checkpoint, read(family.Config, settings))
    for family in FAMILIES.values():
        if hasattr(family.Config, "from_shapes"):
            table = weights_map.tables[family.model_type]
            if all(table.find(name, "hub") for name in checkpoint):
                native = weights_map.to_native(family.model_type, checkpoint.meta())
                shapes = {name: tuple(tensor.shape) for name, tensor in native.items()}
                return family, build(family.Config, family.Config.from_shapes(shapes))
    raise FileNotFoundError(
        f"{checkpoint.folder} has no config.json, and its tensors do not tell the sizes by themselves"
    )


def text_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of the language model: those of text_config in the config.json of a multimodal model."""
    text = settings.get("text_config")
    wrappers = [kind for family in FAMILIES.values() for kind in family.wrappers]
    if settings.get("model_type") not in wrappers or not isinstance(text, dict):
        return settings
    outer = {name: settings[name] for name in ("tie_word_embeddings", "quantization_config") if name in settings}
    return {**outer, **text}


def with_generation_settings(checkpoint: Checkpoint, config: Any) -> Any:
    """The ids that end a text: generation_config.json, where there is one, is newer than config.json."""
    path = checkpoint.folder / "generation_config.json"
    if not path.exists():
        return config
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    settings = {name: value for name, value in read_object(path).items() if name in names and value is not None}
    try:
        return changed(config, settings)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def native_tensors(
    checkpoint: Checkpoint, family: Family, tensors: Mapping[str, Tensor], config: Any
) -> Mapping[str, Tensor]:
    """`tensors` of the checkpoint's files under our names, whichever layout the files are in."""
    return tensors if checkpoint.layout == "native" else weights_map.to_native(family.model_type, tensors, config)


def tied_names(family: Family, config: Any) -> set[str]:
    """Tensors that a file may hold although the model has no use for them: the head of a config that ties it."""
    rows = weights_map.tables[family.model_type].rows
    tied = {name for row in rows if row.operation.tied_to for name in row.templates("native")}
    return tied if config.tie_word_embeddings else set()


def save_pretrained(
    model: nn.Module, folder: str | Path, tokenizer: Any = None, *, max_shard_size: int = 5 * 10**9
) -> None:
    """Write config.json, model.safetensors (or shards of at most `max_shard_size` bytes) and tokenizer.json.

    The folder is in Hub layout: transformers loads it, and the tensors are bit-identical to the model's.
    With a tokenizer, what an earlier one has left there goes.

    ValueError: not a model of this package, or a quantized one, or not a `tokenizers.Tokenizer`.
    OSError: the disk is full or may not be written; what was in the folder is then still there.
    """
    model = model_of(model, "save_pretrained()")
    model = getattr(model, "_orig_mod", model)  # torch.compile() puts its own before every name
    refuse_quantized(model, "saved")
    if tokenizer is not None:
        check_tokenizer(tokenizer, "to_str")
    config: Any = model.config
    family = family_of(config.to_hub()["model_type"])
    tensors = weights_map.to_hub(family.model_type, model.state_dict(), config)
    dtype = next(model.parameters()).dtype
    settings = {**config.to_hub(), "dtype": str(dtype).removeprefix("torch.")}
    companions = {"tokenizer.json": tokenizer.to_str(pretty=True).encode()} if tokenizer is not None else None
    write_checkpoint(Path(folder), tensors, settings, companions=companions, max_shard_size=max_shard_size)


def entry_points(entry: Entry) -> dict[str, Callable[..., Any]]:
    """`x()`, `x_from_config()` and `x_from_pretrained()` of a family: alike in all, so to learn one is to know all."""
    family, kind = entry.family, entry.title

    def fresh(**config: Any) -> Any:
        return family.Model(entry.config(config))

    def from_config(
        identifier: str | os.PathLike[str],
        revision: str = "main",
        *,
        token: str | None = None,
        local_files_only: bool = False,
    ) -> Any:
        _, config, _ = read_config(identifier, revision, entry=entry, token=token, local_files_only=local_files_only)
        return family.Model(config)

    def pretrained(
        identifier: str | os.PathLike[str],
        revision: str = "main",
        *,
        device: str = "auto",
        dtype: str | torch.dtype = "auto",
        quantize: str | None = None,
        token: str | None = None,
        local_files_only: bool = False,
    ) -> Any:
        access = {"token": token, "local_files_only": local_files_only}
        return _from_pretrained(identifier, revision, access, device, dtype, quantize, entry)

    fresh.__doc__ = f"""A fresh {kind} in training mode, with random weights; the keywords are those of config.json.

    ValueError: an unknown setting, or a value that the model does not honour.
    """
    from_config.__doc__ = f"""A fresh {kind} with random weights, sized by the config.json of a repository or folder.

    The published sizes, such as gpt2-xl, are known without the network.

    Arguments and errors are those of {entry.name}_from_pretrained().
    """
    pretrained.__doc__ = f"""The pretrained {kind} of a Hub repository, a local folder or a built-in, in eval mode.

    Arguments and errors are those of from_pretrained(); ValueError also for a model of another family, with the call
    that is right for it.
    """
    names = (entry.name, f"{entry.name}_from_config", f"{entry.name}_from_pretrained")
    points: dict[str, Callable[..., Any]] = dict(zip(names, (fresh, from_config, pretrained), strict=True))
    for name, function in points.items():
        function.__name__ = function.__qualname__ = name
    return points
