"""Load models in one pass, and save them.

    open_files    identifier -> the checkpoint with its config, and the folders of adapters (loading/files.py)
    collect       head, tied embeddings, multi-token prediction and quantization of the files (loading/facts.py)
    fit           the model on the meta device; each tensor belongs to a parameter
    assign        the weights: views of the mapped file, in other dtypes, or quantized
    load_adapters models with adapters, which share the weights (adapters/loading.py)

Continue reading in `registry`, a model file, and the architecture's table in `weights_map`.
"""

import json
import os
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

import weights_map
from minhub_py.checkpoints import local
from minhub_py.checkpoints.embedding_files import embedding_files
from minhub_py.checkpoints.gguf import GGUFCheckpoint
from minhub_py.checkpoints.layout import AGENT_FILES, EMBEDDING_FILES, TOKENIZER_FILES
from minhub_py.checkpoints.sentence_transformers import read_embedding_settings
from minhub_py.checkpoints.storage import Checkpoint
from minhub_py.checkpoints.writing import write_checkpoint
from minhub_py.distributed.process_group import ProcessGroup, connect
from minhub_py.inference.arguments import check_path, check_tokenizer, model_of
from minhub_py.inference.quantize import (
    check_kind,
    layers_of,
    refuse_quantized,
    replace_layers,
    round_activations,
)
from minhub_py.loading.adapters.loading import DEFAULT_ADAPTER, AdapterSource, load_adapters
from minhub_py.loading.facts import Facts, collect, fit
from minhub_py.loading.files import ModelFiles, file_settings, open_files, other_architecture
from minhub_py.models.base import LanguageModel
from minhub_py.models.config import GENERATION, with_older_rope
from minhub_py.models.encoder import channels_of
from minhub_py.models.experts import ExpertMatrices
from minhub_py.models.registry import Architecture, Entry, architecture_of, preset
from minhub_py.models.settings import ModelConfig
from minhub_py.models.steps import LayerInputs
from minhub_py.system.device import DeviceProbe, choose_device, choose_dtype
from minhub_py.system.habits import with_hints
from minhub_py.system.quantization import KINDS
from weights_map.blocks import Blocks
from weights_map.conversion import Mapped

if TYPE_CHECKING:
    from tokenizers import Tokenizer
ADAPTER_IN_GROUP = (
    "a model with an adapter cannot be split among processes: merge it with minhub convert --merge"
)


@with_hints
def from_pretrained(
    identifier: str | os.PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: AdapterSource | Mapping[str, AdapterSource] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> LanguageModel:
    """Load a pretrained model in eval mode. config.json's model_type selects the architecture.

    Args:
        identifier: A Hub repository ("owner/name"), a local folder in Hub layout, a built-in model
            such as "minhub/shakespeare-gpt2", a local folder with an adapter, which names its
            model, or a GGUF file: a local path, or "owner/name:file.gguf" on the Hub.
        revision: A branch, tag or commit of the repository.
        device: "auto", "cpu", "cuda", "cuda:1", "mps" or "xpu"; see `devices()`.
        dtype: The dtype of the weights and activations, by name or as a `torch.dtype`. "auto"
            selects the checkpoint's dtype if the device supports it, and otherwise float32.
        quantize: "int8" or "nf4" (4 bits) quantizes the weights. This saves memory, speeds up the
            native decoder on a CPU, and changes results slightly; other devices become slower.
            Quantized models cannot be trained or saved. Activations are rounded to 16 bits, or to 8
            bits if `dtype` is "bfloat16": prefill is then faster and the error larger. With dtype
            "auto" the remaining weights are float32 on a CPU. "auto" computes with the quantized
            weights of a GGUF file as they are stored, or with the integers of GPTQ, AWQ and
            compressed-tensors, and activations are rounded to 8 bits, except in the head; with
            `dtype` "float32", K-quants round them to 15 bits, and other types compute in float32.
            "none" dequantizes the weights, for training or saving. The default, None, means "auto"
            for these files on a CPU. It means "none" for other models and devices, with `parallel`,
            and if `dtype` is not "auto". FP8 weights are dequantized.
        parallel: "tensor" splits the weights among the processes that torchrun started; on CUDA,
            each process needs its own GPU. All processes must make the same calls of
            `from_pretrained`, `generate`, `stream` and `score` with the same arguments. No effect
            in a single process.
        adapter: A LoRA adapter in PEFT's format: a folder or a Hub repository, with "@revision" at
            the end for a branch, tag or commit. The result is the model with this adapter. A
            dictionary of several adapters by name returns the model without an adapter;
            ``model.adapter("name")`` is the model with one. All share the weights of the model.
        mtp: Also load the head for multi-token prediction (Qwen 3.5, Qwen 3 Next), for
            ``generate(…, draft="mtp")``. It needs the memory of one more layer.
        token: A Hub access token. Default: the environment variable HF_TOKEN, or the token saved by
            `hf auth login`.
        local_files_only: Use cached files only and open no connection, as with HF_HUB_OFFLINE=1.

    Returns:
        The model, a `torch.nn.Module` in eval mode.

    Raises:
        FileNotFoundError: The repository, revision, folder or file does not exist.
        PermissionError: The repository is gated, or the token is invalid.
        ConnectionError: The Hub cannot be reached.
        ValueError: A file is corrupt, the architecture or a setting is not supported, tensors do
            not fit the model, or a device, dtype or quantization is unknown.

    Note:
        On a CPU the weights are memory-mapped. Truncating the file while the model is in use ends
        the process with SIGBUS: replace files by renaming. As in PyTorch, forking after a
        computation with several threads may hang: use ``multiprocessing.get_context("spawn")``.
    """
    return _from_pretrained(
        identifier,
        revision,
        device=device,
        dtype=dtype,
        quantize=quantize,
        parallel=parallel,
        adapter=adapter,
        mtp=mtp,
        token=token,
        local_files_only=local_files_only,
    )


def _from_pretrained(
    identifier: str | os.PathLike[str],
    revision: str = "main",
    *,
    entry: Entry | None = None,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: AdapterSource | Mapping[str, AdapterSource] | None = None,
    mtp: bool = False,
    **access: Any,
) -> LanguageModel:
    """`from_pretrained` for the model types of `entry`; any model type by default."""
    if parallel not in (None, "tensor"):
        raise ValueError(f'parallel {parallel!r} is unknown; give None or "tensor"')
    if adapter is not None and parallel:
        raise ValueError(ADAPTER_IN_GROUP)
    check_kind(quantize, "auto", "none")
    group = connect(device) if parallel else None
    opening = partial(open_files, identifier, revision, entry=entry, adapter=adapter, **access)
    files = group.run_in_turn(opening) if group else opening()
    return load(files, device=device, dtype=dtype, quantize=quantize, group=group, mtp=mtp)


def read_config(
    identifier: str | os.PathLike[str],
    revision: str = "main",
    *,
    entry: Entry | None = None,
    token: str | None = None,
    local_files_only: bool = False,
) -> tuple[Architecture, ModelConfig, Path | None]:
    """The architecture and config of a model, and the folder or GGUF file that contains them.

    Downloads no weights, except those in a GGUF file. Published sizes such as gpt2-xl need no
    network; their folder is None unless the model is cached. Raises the errors of `open_files`.
    """
    opening = partial(open_files, identifier, revision, entry=entry, weights="never", token=token)
    if (
        revision == "main"
        and local.locate(identifier) is None
        and (published := preset(os.fspath(identifier)))
    ):
        try:
            files = opening(local_files_only=True)
        except FileNotFoundError:  # not cached
            if problem := other_architecture(published[1], entry):
                raise ValueError(f"{identifier} {problem}") from None
            return *published, None
    else:
        files = opening(local_files_only=local_files_only)
    return files.architecture, files.config, files.path


def load(
    files: ModelFiles,
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    group: ProcessGroup | None = None,
    mtp: bool = False,
) -> LanguageModel:
    """The model of opened files with its adapters, in eval mode. On a CPU its weights are
    memory-mapped.

    group: the processes that share the weights, if there are several.    mtp: see
    `from_pretrained`.
    ValueError: an unknown device, dtype or quantization, or a missing head for multi-token
    prediction.
    """
    if files.adapters and group is not None:
        raise ValueError(ADAPTER_IN_GROUP)
    if mtp and group is not None:
        raise ValueError(
            "a model with a head for multi-token prediction cannot be split among processes:"
            " omit mtp"
        )
    check_kind(quantize, "auto", "none")  # from_pretrained() also checks it before a download
    probe = choose_device(str(group.device) if group else device)
    facts = collect(files, mtp)
    model = fit(facts)
    kind, target = choose_types(facts, probe, dtype, quantize, is_shared=group is not None)
    model.generation_config = files.checkpoint.generation_config
    model.task_settings = {
        name: value for name, value in (files.checkpoint.config or {}).items() if name in GENERATION
    }
    if group is not None:
        return split(model, facts.tensors, target, kind, group)
    target_device = torch.device(probe.name)
    kinds: Mapping[object, str | Blocks] = {}
    if kind == "auto":
        kinds = stored_blocks(model, facts, files.checkpoint, target_device)
        if kinds and dtype == "auto" and probe.name == "cpu":
            target = torch.float32  # as for the other kinds, in choose_types()
    elif kind is not None:
        kinds = {**dict(layers_of(model, kind))}
    if quantize == "auto" and not kinds:
        warnings.warn(
            'quantize="auto" has no effect: it applies to the quantized weights of GGUF, GPTQ and AWQ'
            ' files. "int8" and "nf4" quantize any model.',
            stacklevel=2,
        )
    assign(model, facts, kinds, target_device, target)
    if kind == "auto" and dtype == "auto":
        round_activations(model)
    if isinstance(files.checkpoint, GGUFCheckpoint):
        model.embedding_settings = files.checkpoint.embedding_settings
    else:
        model.embedding_settings = (
            read_embedding_settings(files.path) if facts.has_modules else None
        )
    model.eval()
    load_adapters(model, files.adapters)
    return model.adapter(DEFAULT_ADAPTER) if files.adapter is not None else model


def choose_types(
    facts: Facts,
    probe: DeviceProbe,
    dtype: str | torch.dtype,
    quantize: str | None,
    *,
    is_shared: bool,
) -> tuple[str | None, torch.dtype]:
    """The kind of quantization, or None, and the dtype of the other weights.

    is_shared: whether several processes share the weights.
    """
    kind = None if quantize == "none" else quantize
    on_cpu = probe.name == "cpu"
    if quantize is None and facts.has_blocks and dtype == "auto" and on_cpu and not is_shared:
        kind = "auto"
    if dtype == "auto" and kind in KINDS and on_cpu:
        dtype = "float32"  # bfloat16 would also quantize activations to 8 bits: only on request
    return kind, choose_dtype(dtype, probe, [tensor.dtype for tensor in facts.meta.values()])


def assign(
    model: LanguageModel,
    facts: Facts,
    kinds: Mapping[object, str | Blocks],
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    """Give a model on the meta device its weights.

    kinds: of the layers to quantize.    dtype: of the other weights.
    """
    paths = {module: path for path, module in model.named_modules()}

    def fill(module: nn.Module) -> None:
        """Assign the weights of a module and its submodules that are still on the meta device."""
        prefix = f"{paths[module]}." if paths[module] else ""
        weights = {}
        for name in [name for name, tensor in module.state_dict().items() if tensor.is_meta]:
            stored = facts.meta[prefix + name].dtype
            # Quantization starts from the checkpoint's dtype, and integer weights keep theirs.
            own = stored if kinds or not stored.is_floating_point else dtype
            weights[name] = place(facts.tensors[prefix + name], device, own)
        module.load_state_dict(weights, strict=False, assign=True)

    replace_layers(model, kinds, fill)
    fill(model)
    if kinds:
        cast(model, dtype)


def stored_blocks(
    model: LanguageModel, facts: Facts, checkpoint: Checkpoint, device: torch.device
) -> dict[object, str | Blocks]:
    """The layers whose weights a file stores in blocks, or in integers that become blocks, with the
    kinds of quantization that use them.
    """
    kinds: dict[object, str | Blocks] = {}
    paths: dict[object, str] = {module: path for path, module in model.named_modules()}
    for layer, _ in layers_of(model, "auto"):
        leaves = [*layer.state_dict()] if isinstance(layer, ExpertMatrices) else ["weight"]
        names = [f"{paths[layer]}.{leaf}" for leaf in leaves]
        meta = facts.meta
        if isinstance(meta, Mapped) and (kind := checkpoint.auto_quantization(names, meta)):
            kinds[layer] = (
                kind if isinstance(kind, str) else kind._replace(rows=kind.rows.to(device))
            )
    return kinds


def cast(model: LanguageModel, dtype: torch.dtype) -> None:
    """Change the dtype of a quantized model. Tables that are only looked up stay in the mapped
    file, in its dtype.
    """
    steps = [step for step in model.steps() if isinstance(step, LayerInputs)]
    tables = [step.tokens for step in steps if step.tokens is not None]
    weights = [table.weight for table in tables]
    for table in tables:
        table.weight = None  # type: ignore[assignment]
    model.to(dtype)
    for table, weight in zip(tables, weights, strict=True):
        table.weight = weight


def split(
    model: LanguageModel,
    native: Mapping[str, Tensor],
    dtype: torch.dtype,
    quantize: str | None,
    group: ProcessGroup,
) -> LanguageModel:
    """Give the model the shards of this process, in place.    native: the weights under native
    names.

    ValueError: the model cannot be split.
    """
    from minhub_py.distributed.tensor_parallel import shard

    if quantize:
        raise ValueError(
            "a quantized model cannot be split among processes: omit quantize or parallel"
        )

    def put(tensor: Tensor) -> Tensor:
        return place(tensor, group.device, dtype if tensor.is_floating_point() else tensor.dtype)

    group.run_on_all(lambda: shard(model, native, put, group))
    return model.eval()


def place(tensor: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Move a weight to its device and dtype, without a copy if it is already there.

    A transposed view stays a view for float32 on a CPU, where this layout is faster for a single
    token (4.8 ms instead of 6.8 ms in benchmarks/layout.py). For 16 bits, (out, in) is faster: 1.8
    ms instead of 40 ms in float16.
    """
    tensor = tensor.to(device, dtype)
    return tensor if dtype == torch.float32 and device.type == "cpu" else tensor.contiguous()


def save_pretrained(
    model: nn.Module,
    folder: str | Path,
    tokenizer: "Tokenizer | None" = None,
    *,
    max_shard_size: int = 5 * 10**9,
) -> None:
    """Save a model in Hub layout: config.json, model.safetensors and optionally a tokenizer.

    transformers 4.57 and 5 load the folder, and sentence-transformers a model that comes from its
    repositories. The tensors are bitwise identical to the model's. config.json has both forms of
    the rotary settings: rope_parameters, and rope_theta and rope_scaling, which transformers 4
    reads. generation_config.json is saved if the model has one. The files of a previous model in
    the folder are deleted, and the files of a previous tokenizer if a tokenizer is given.

    Args:
        model: A model of this package that is not quantized.
        folder: The folder to write to. It is created if it does not exist.
        tokenizer: A `tokenizers.Tokenizer`. A chat template that came with it is saved, too.
        max_shard_size: Maximum size of a weight file in bytes. Larger models are saved as several
            shards.

    Raises:
        ValueError: The model is quantized or not a model of this package, or the tokenizer is not a
            `tokenizers.Tokenizer`.
        OSError: The disk is full or not writable. Existing files of the folder are then unchanged.
    """
    own: LanguageModel = model_of(model, "save_pretrained()")
    check_path("folder", folder)
    own = getattr(own, "_orig_mod", own)  # a model compiled by torch.compile() prefixes its names
    if getattr(own, "attached", None) is not None:
        raise ValueError(
            "save_pretrained() does not save a model with an adapter: save the adapter with "
            "save_adapter(), or write a complete model with minhub convert --merge"
        )
    refuse_quantized(own, "saved")
    if tokenizer is not None:
        check_tokenizer(tokenizer, "to_str")
    config = own.config
    architecture = architecture_of(config.to_hub()["model_type"])
    tensors = weights_map.to_hub(architecture.model_type, own.state_dict(), config)
    dtype = next(own.parameters()).dtype
    settings = file_settings(
        {
            **(own.task_settings if own.encoder_decoder else {}),
            **with_older_rope(config, config.to_hub()),
            "dtype": str(dtype).removeprefix("torch."),
        }
    )
    # Laya has its settings, and its tokenizer, in further files.
    extra = config.further_files() if hasattr(config, "further_files") else {}
    companions = {name: json.dumps(content, indent=2).encode() for name, content in extra.items()}
    outdated = ["generation_config.json", *EMBEDDING_FILES, *AGENT_FILES]
    if own.generation_config:
        companions["generation_config.json"] = json.dumps(
            dict(own.generation_config), indent=2
        ).encode()
    if own.embedding_settings is not None:
        companions |= embedding_files(own.embedding_settings, channels_of(own))
    if tokenizer is not None:
        from minhub_py.checkpoints.tokenizers.tokenizer import tokenizer_files

        inside = "tokenizer/" if extra else ""
        files = tokenizer_files(tokenizer)
        companions |= {f"{inside}{name}": content for name, content in files.items()}
        outdated += TOKENIZER_FILES
    write_checkpoint(
        Path(folder),
        tensors,
        settings,
        companions=companions,
        outdated=outdated,
        max_shard_size=max_shard_size,
    )
