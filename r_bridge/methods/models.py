"""Models: load, create, inspect, move, save, and compute logits."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from r_bridge.arguments import character, id_rows, setting
from r_bridge.convert import Character, Numeric
from r_bridge.objects import Model, Session, StateDict, Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from minhub_py.models.base import LanguageModel
    from minhub_py.models.encoder import Encoder
    from minhub_py.models.registry import Architecture
    from minhub_py.models.settings import ModelConfig


def from_pretrained(
    session: Session,
    identifier: str,
    revision: str,
    family: str | None,
    device: str,
    dtype: str,
    quantize: str | None,
    token: str | None,
    local_files_only: bool,
    adapter: str | None = None,
    mtp: bool = False,
) -> dict[str, object]:
    """Load a pretrained model. ValueError: it does not belong to the requested family."""
    from minhub_py.checkpoints.fingerprint import signature
    from minhub_py.loading.files import open_files
    from minhub_py.loading.pretrained import load
    from minhub_py.models.registry import ENTRIES

    files = open_files(
        identifier,
        revision,
        entry=ENTRIES[family] if family else None,
        adapter=adapter,
        token=token,
        local_files_only=local_files_only,
    )
    before = signature(files.path)  # before loading, to detect later changes of the files
    module = load(files, device=device, dtype=dtype, quantize=quantize, mtp=mtp)
    model = Model(module, files.path, signature=before, adapter=files.adapter)
    return about(model, session.add(model)) | {"commit": _commit(identifier, files.path)}


def adapter(session: Session, model: Model, source: str | None) -> dict[str, object]:
    """The model with an adapter, or without one. The weights are shared."""
    from minhub_py.inference.arguments import model_of
    from minhub_py.loading.adapters.loading import adapter_folders, with_adapter

    module = model_of(model.module, "model$adapter()")
    base, folder = module.base or module, None
    if source is not None:
        [folder] = adapter_folders(source).values()
    view = base if folder is None else with_adapter(base, folder)
    result = Model(view, model.folder, model.identifier, signature=model.signature, adapter=folder)
    return about(result, session.add(result)) | {"commit": None}


def from_config(
    session: Session,
    identifier: str,
    path: str,
    revision: str,
    family: str | None,
    config: Mapping[str, object] | None,
    token: str | None,
    local_files_only: bool,
    seed: int,
) -> dict[str, object]:
    """Create a model with random weights from a model type or a config.json.

    path: the identifier, or the absolute path if it is the name of a folder or file in R's working
    folder.
    family: accept repositories of this architecture only, and no model types.
    """
    from minhub_py.checkpoints.fingerprint import signature
    from minhub_py.loading.entry_points import new_config
    from minhub_py.models.registry import ENTRIES, named_entry

    is_type = family is None and revision == "main" and named_entry(identifier) is not None
    architecture, settings, folder = new_config(
        identifier if is_type else path,
        revision,
        _settings(config),
        entry=ENTRIES[family] if family else None,
        token=token,
        local_files_only=local_files_only,
    )
    network = _new(architecture, settings, seed)
    model = Model(
        network, folder, None if is_type else path, signature=folder and signature(folder)
    )
    return about(model, session.add(model)) | {"commit": folder and _commit(path, folder)}


def fresh(
    session: Session, family: str, config: Mapping[str, object] | None, seed: int
) -> dict[str, object]:
    """Create a model with random weights from settings."""
    from minhub_py.models.registry import ENTRIES

    entry = ENTRIES[family]
    model = Model(_new(entry.architecture, entry.config(_settings(config)), seed))
    return about(model, session.add(model)) | {"commit": None}


def _settings(config: Mapping[str, object] | None) -> dict[str, object]:
    """Settings that R has sent, with the names of config.json."""
    return {name: setting(value) for name, value in dict(config or {}).items()}


def _new(
    architecture: "Architecture", config: "ModelConfig", seed: int
) -> "LanguageModel | Encoder":
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return architecture.new(config)


def _commit(identifier: str, folder: Path) -> str | None:
    """The commit of a repository's snapshot; None for other folders."""
    from minhub_py.checkpoints import local

    return local.commit_of(folder) if local.locate(identifier) is None else None


def about(model: Model, number: int) -> dict[str, object]:
    """A description of a model, which R stores."""
    from minhub_py.inference.quantize import count, kind_of
    from minhub_py.models.registry import architecture_of

    module = model.module
    weight = next(module.parameters())
    config = module.config.to_hub()
    architecture = architecture_of(config["model_type"])
    return {
        "number": number,
        "family": architecture.name,
        "class": architecture.classes[1],
        "config": {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in config.items()
        },
        "context": module.config.context_length,
        "vocab_size": module.config.vocab_size,
        "parameters": float(count(module)),
        "device": str(weight.device),
        "dtype": str(weight.dtype).removeprefix("torch."),
        "quantized": kind_of(module),
        "training": module.training,
        "folder": None if model.folder is None else str(model.folder),
    }


def train(session: Session, model: Model, mode: bool) -> None:
    """Switch between training mode and eval mode."""
    model.module.train(mode)


def to(session: Session, model: Model, device: str | None, dtype: str | None) -> dict[str, object]:
    """Move a model to a device, a dtype or both."""
    from minhub_py.system.device import choose_device, choose_dtype

    weight = next(model.module.parameters())
    probe = choose_device(device or str(weight.device))
    model.module.to(probe.name, choose_dtype(dtype or "auto", probe, [weight.dtype]))
    return about(model, 0)


def parameters(session: Session, model: Model) -> dict[str, object]:
    """The name, shape and dtype of each weight. ValueError: the model is quantized."""
    from minhub_py.inference.quantize import refuse_quantized

    refuse_quantized(model.module, "split into its weights")
    named = dict(model.module.named_parameters())
    return {
        "name": character(named),
        "shape": [np.array(tuple(weight.shape), np.int32) for weight in named.values()],
        "dtype": character(str(weight.dtype).removeprefix("torch.") for weight in named.values()),
    }


def parameter(session: Session, model: Model, name: str) -> "Tensor":
    """A weight as an array."""
    named = dict(model.module.named_parameters())
    if name not in named:
        raise LookupError(f"the model has no weight {name!r}; see names(model$parameters)")
    return named[name]


def save_pretrained(
    session: Session, model: Model, folder: str, tokenizer: Tokenizer | None
) -> None:
    """Save a model in Hub layout, with a tokenizer or its own tokenizer."""
    from minhub_py.loading.pretrained import save_pretrained as save

    save(model.module, folder, tokenizer.tokenizer if tokenizer else model.optional_tokenizer())


def new_adapter(
    session: Session, model: Model, lora: Mapping[str, object], seed: int
) -> dict[str, object]:
    """The model with a new adapter for training in R torch. lora: settings as in minhub_train()."""
    from minhub_py.inference.arguments import model_of
    from minhub_py.loading.adapters import attach
    from minhub_py.training.adapter_run import adapter_config

    base = model_of(model.module, "as_torch_module(lora =)")
    config = adapter_config({name: setting(value) for name, value in dict(lora).items()})
    if config.alora_invocation_tokens is not None:
        raise ValueError(
            "as_torch_module() does not support invocation: train the adapter with minhub_train()"
        )
    view = attach.attach(base, attach.new_adapter(base, config, seed))
    result = Model(view, model.folder, model.identifier, signature=model.signature)
    return about(result, session.add(result)) | {"commit": None}


def adapter_weights(session: Session, model: Model) -> Character | Numeric:
    """The names of the weights of a model's adapter."""
    return character(name for name, _ in model.module.named_parameters() if ".factors." in name)


def save_adapter(session: Session, model: Model, folder: str, weights: StateDict | None) -> None:
    """Save a model's adapter in PEFT's format. weights: new values of its weights, which the
    model receives.
    """
    import torch

    from minhub_py.loading.adapters.attach import save_adapter as save

    if weights is not None:
        named = dict(model.module.named_parameters())
        with torch.no_grad():
            for name, tensor in weights.tensors.items():
                named[name].copy_(tensor)
    save(model.module, folder)


def save_torchscript(session: Session, model: Model, path: str) -> None:
    """Save a model as a TorchScript file for R torch."""
    from minhub_py.export.torchscript import save_torchscript as save

    save(model.module, Path(path))


def forward(
    session: Session,
    model: Model,
    ids: object,
    first: int,
    as_torch: bool,
    attention_mask: object = None,
    token_type_ids: object = None,
) -> "Tensor | dict[str, object]":
    """Logits (B, T, V), or the result of an encoder's head, as an R array or as the components of
    an R torch tensor.
    """
    import torch

    if model.module.encoder_decoder:
        raise ValueError(
            "an encoder-decoder model computes logits for a prompt and its answer: use generate(),"
            " next_tokens(), or token_logprobs() with targets"
        )
    rows = id_rows(ids, model.module.config.vocab_size, first)
    lengths = {len(row) for row in rows}
    if not rows or 0 in lengths:
        raise ValueError("ids are empty: pass at least one id per row")
    if len(lengths) > 1:
        raise ValueError(
            f"all rows must have the same length, not {min(lengths)} to {max(lengths)} ids: call"
            " the model with one row at a time (generate() and token_logprobs() accept rows of"
            " different lengths)"
        )
    device = next(model.module.parameters()).device
    options = {
        name: torch.tensor(values, device=device)
        for name, values in encoder_inputs(model.module, attention_mask, token_type_ids).items()
    }
    with torch.inference_mode():
        logits = model.module(torch.tensor(rows, device=device), **options)
    session.check_cancelled()
    return raw_tensor(logits) if as_torch else logits


def encoder_inputs(
    module: "LanguageModel | Encoder", attention_mask: object, token_type_ids: object
) -> dict[str, list[list[int]]]:
    """The mask and the token types that R has sent. ValueError: the model does not use them, or a
    value is invalid.
    """
    from minhub_py.models.encoder import Encoder

    types = getattr(module, "embed_types", None)
    sizes = {
        "attention_mask": 2,
        "token_type_ids": types.num_embeddings if types is not None else None,
    }
    inputs = {}
    for name, values in (("attention_mask", attention_mask), ("token_type_ids", token_type_ids)):
        if values is None:
            continue
        size = sizes[name] if isinstance(module, Encoder) else None
        if size is None:
            raise ValueError(f"{module.config.TITLE}: this model has no {name}: omit the argument")
        try:
            inputs[name] = id_rows(values, size)
        except ValueError as error:
            raise ValueError(
                f"{name} must contain whole numbers between 0 and {size - 1}"
            ) from error
    return inputs


def raw_tensor(tensor: "Tensor") -> dict[str, object]:
    """The shape, R torch's name of the dtype, and the elements in row order."""
    import torch

    names = {
        torch.float32: "float",
        torch.float16: "half",
        torch.bfloat16: "bfloat16",
        torch.float64: "double",
    }
    return {
        "shape": np.array(tuple(tensor.shape), np.int32),
        "dtype": names[tensor.dtype],
        "data": tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data,
    }
