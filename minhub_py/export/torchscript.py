"""Export of a model as a TorchScript file for LibTorch without Python: jit_load() in R,
torch::jit::load() in C++.

The code of the file is written from the model's `steps` (torchscript_code.py). Parameters have the
model's names. The code is compiled, not traced: a trace would fix the dropout, device, dtype and
blocks of local attention of one call.

Limitations: PyTorch's writer ends the process when the disk is full. In R torch 0.17, $train() and
$eval() of a TorchScript module fail; model$..ptr..()$train(TRUE) or FALSE works.

Sources: the TorchScript language reference, and LibTorch 2.8, the oldest supported version (R torch
0.17).
Notation: see the model files.
"""

import errno
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path

import torch
from torch import nn

from minhub_py.checkpoints.writing import unwritable
from minhub_py.export.torchscript_code import CodeWriter
from minhub_py.inference.arguments import model_of
from minhub_py.inference.quantize import refuse_quantized
from minhub_py.loading.adapters.attach import attach
from minhub_py.models.base import LanguageModel
from minhub_py.models.experts import has_packed
from minhub_py.models.registry import architecture_of
from minhub_py.models.skeleton import skeleton


def save_torchscript(
    model: nn.Module, path: str | Path, extra_files: Mapping[str, bytes] | None = None
) -> None:
    """Write a model as one file for torch.jit.load() or R torch's jit_load(). An existing file is
    replaced.

    The loaded module maps token IDs idx, int64 (B, T), 0-based in R too, to logits (B, T, V) in the
    model's dtype; an encoder-decoder has two inputs, idx (B, E) for the encoder and decoder_idx (B,
    T); an encoder maps idx without padding, with token types 0, to the result of its head, or to
    hidden states (B, T, C). It is on the CPU and in eval mode, and can be moved, cast and trained:
    train() enables dropout, and parameters have the model's names. It raises an error if idx is
    empty or not a matrix, exceeds the context length, or contains an invalid token ID. An adapter's
    factors are parameters, too; all others then have no gradients.

    Args:
        model: A model of this package.
        path: The output file.
        extra_files: Additional files such as tokenizer.json, stored with config.json.
            torch.jit.load() returns them by `_extra_files`; in the zip archive they are
            STEM/extra/NAME, where STEM is the stem of the file's name.

    Raises:
        ValueError: The model is quantized or not a model of this package, or has a DoRA adapter or
            an activated one.
        OSError: The disk is full or not writable; an existing file is unchanged.
    """
    unwrapped: LanguageModel = model_of(model, "save_torchscript()")
    refuse_quantized(unwrapped, "written as TorchScript")
    if has_packed(unwrapped):
        raise ValueError(
            "experts in MXFP4 cannot be written as TorchScript: use the model in BF16 or F32"
        )
    dtype = str(next(unwrapped.parameters()).dtype).removeprefix("torch.")
    settings = {**unwrapped.config.to_hub(), "dtype": dtype}
    extra = {"config.json": json.dumps(settings, indent=2).encode(), **(extra_files or {})}
    with warnings.catch_warnings():
        # PyTorch recommends torch.export, which R cannot load. A FutureWarning since PyTorch 2.15.
        for category in (DeprecationWarning, FutureWarning):
            warnings.filterwarnings(
                "ignore", r"`torch\.jit\.\w+` is (deprecated|not supported)", category
            )
        write(compiled(unwrapped), Path(path), extra)


def compiled(model: LanguageModel) -> torch.jit.ScriptModule:
    """The model in TorchScript, in eval mode, on the CPU. It shares the memory of weights on the
    CPU.
    """
    base = model.base or model
    copy = skeleton(architecture_of(base.config.to_hub()["model_type"]).new, base.config)
    copy.load_state_dict(
        {name: tensor.cpu() for name, tensor in base.state_dict().items()}, assign=True
    )
    if model.attached is not None:
        copy = attach(copy.requires_grad_(False), deepcopy(model.attached))
    writer = CodeWriter(copy)
    # New classes: TorchScript reuses the code and the order of members of a class for modules with
    # equal members, also of another export.
    root, part = (type(name, (ParameterModule,), {}) for name in (type(copy).__name__, "Part"))
    script = torch.jit.script(parameters_of(copy, root(), part))
    # define() resolves names in the calling frame.
    exec("script.define(code)", {**writer.names, "script": script, "code": writer.code()})
    return script.eval()


class WithoutNames(type):
    """Classes whose dir() is empty."""

    def __dir__(cls) -> list[str]:
        return []


class ParameterModule(nn.Module, metaclass=WithoutNames):
    """A module without code.

    torch.jit.script() examines each name of dir() five times for methods to compile. nn.Module's
    names take a third of an export's time.
    """

    def __dir__(self) -> list[str]:
        return []


def parameters_of(
    module: nn.Module, target: nn.Module, part: type[nn.Module], used: set[int] | None = None
) -> nn.Module:
    """`target` with the parameters, buffers and children of a module under their names, without its
    code.

    part: the class of the children.    used: the parameters so far. Layers that share factors of an
    adapter have one copy, under its first name.
    """
    used = set() if used is None else used
    for name, parameter in module.named_parameters(recurse=False):
        if id(parameter) not in used:
            target.register_parameter(name, parameter)
            used.add(id(parameter))
    for name, buffer in module.named_buffers(recurse=False):
        target.register_buffer(name, buffer)
    for name, child in module.named_children():
        if child.state_dict():
            empty = nn.ModuleList() if isinstance(child, nn.ModuleList) else part()
            target.add_module(name, parameters_of(child, empty, part, used))
    return target


def write(script: torch.jit.ScriptModule, path: Path, extra: Mapping[str, bytes]) -> None:
    """Write a temporary file, then rename it. OSError: with the reason."""
    size = sum(tensor.nbytes for tensor in script.state_dict().values()) + sum(
        map(len, extra.values())
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A folder, since PyTorch names the archive's root after the file.
        with tempfile.TemporaryDirectory(
            prefix=f".{path.name}.", suffix=".partial", dir=path.parent
        ) as folder:
            partial = Path(folder) / path.name
            # 1 MB for code and headers. The writer does not report a full disk: see the limitations
            # above.
            if shutil.disk_usage(folder).free < size + 2**20:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            torch.jit.save(script, partial, _extra_files=extra)
            with partial.open("rb+") as file:
                os.fsync(file.fileno())
            os.replace(partial, path)
    except OSError as error:
        raise unwritable(path, error, "file") from error
