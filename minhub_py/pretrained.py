"""A name -> a model: files of one commit -> config -> model on meta -> weights map -> assign; and back to files.

A reader's way goes on in `registry`, then a model file, then its table in `weights_map`.
"""

import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import weights_map
from minhub_py.checkpoints import hub
from minhub_py.checkpoints.gguf import GGUFCheckpoint, checkpoint_at
from minhub_py.checkpoints.storage import Checkpoint, write_checkpoint
from minhub_py.config import build, changed, read
from minhub_py.inference.arguments import check_tokenizer, model_of
from minhub_py.inference.processes import Processes, connect
from minhub_py.inference.quantize import KINDS, check_kind, layers_of, refuse_quantized, replace_layers
from minhub_py.models.base import LanguageModel, ModelConfig
from minhub_py.models.skeleton import skeleton
from minhub_py.registry import FAMILIES, Entry, Family, entry_of, family_of, preset
from minhub_py.system.device import choose_device, choose_dtype
from minhub_py.system.extras import require
from weights_map.blocks import Blocks
from weights_map.engine import Mapped, check_shapes


def from_pretrained(
    identifier: str | os.PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    token: str | None = None,
    local_files_only: bool = False,
) -> Any:
    """The pretrained model of whatever family config.json's model_type names, in eval mode.

    identifier: a Hub repository id, a local folder in Hub layout, a built-in such as minhub/shakespeare-gpt2, or a GGUF
    file, local or of a repository ("owner/name:file.gguf").
    revision: a branch, tag or commit of the repository.    device, dtype: see `devices()`; "auto" decides.
    quantize: "int8" or "nf4" (4 bits) makes the weights smaller, text on a CPU faster (by the native decoder; elsewhere
    slower), and changes results a little; such a model is for inference, and is not saved. The inputs of its
    products are rounded to 16 bits, or to 8 if dtype is "bfloat16": then prompts are read faster, and results
    change more. dtype "auto" is float32 beside them, on a CPU. "auto" computes with the quantized weights of a GGUF
    file without loss (those in a rare type, such as Q3_K, in int8). "none" turns them into floating point, for training
    or saving. None, the default, is "auto" for a GGUF file on a CPU, and "none" for other models, on other devices,
    with `parallel`, or if `dtype` is not "auto".
    parallel: "tensor" splits the weights among the processes that torchrun has started, each of which makes this call
    and those of `generate`, `stream` and `score`, with the same arguments; on CUDA each has a GPU of its own. In one
    process it changes nothing.
    local_files_only: open no connection; so does the environment variable HF_HUB_OFFLINE=1.

    Two limits: on a CPU the weights are the file's memory-mapped bytes, so truncating the file while the model is in
    use ends the process with SIGBUS; replace files by renaming. As in PyTorch, a process that is forked after the model
    has computed with several threads may hang; use `multiprocessing.get_context("spawn")`.

    FileNotFoundError: no such repository, revision, folder or file.    PermissionError: a gated repository.
    ConnectionError: the Hub cannot be reached.    ValueError: damaged files, a family or a setting without code,
    tensors that do not fit, an unknown device, dtype or quantization.
    """
    access = {"token": token, "local_files_only": local_files_only}
    return _from_pretrained(identifier, revision, access, device, dtype, quantize, parallel)


def _from_pretrained(
    identifier: str | os.PathLike[str],
    revision: str,
    access: Mapping[str, Any],
    device: str,
    dtype: str | torch.dtype,
    quantize: str | None,
    parallel: str | None,
    entry: Entry | None = None,
) -> LanguageModel:
    """`from_pretrained`, for the model types of one `entry` if it is given."""
    check_kind(quantize, "auto", "none")
    if parallel not in (None, "tensor"):
        raise ValueError(f'parallel {parallel!r} is unknown; give None or "tensor"')

    processes = connect(device) if parallel else None
    checkpoint = open_checkpoint(identifier, revision, entry=entry, processes=processes, **access)
    return load(checkpoint, device=device, dtype=dtype, quantize=quantize, processes=processes)


def open_checkpoint(
    identifier: str | os.PathLike[str],
    revision: str = "main",
    *,
    entry: Entry | None = None,
    token: str | None = None,
    local_files_only: bool = False,
    check: Callable[[Checkpoint], object] | None = None,
    processes: Processes | None = None,
) -> Checkpoint:
    """The files of a model, all of one commit: the Hub is asked once what `revision` is.

    The tokenizer that belongs to it is `read_tokenizer(checkpoint.path)`. Before any weights are downloaded (but for a
    GGUF file, which is one), config.json must be of a family with code, and of `entry` if it is given; and `check` may
    raise.
    processes: those that open it, if there are several: one on each machine fetches it for the others.
    Errors are those of from_pretrained(), and those of check_family().
    """
    opened: list[Checkpoint] = []
    if os.fspath(identifier).endswith(".gguf"):
        require("gguf")  # before a download

    def look(path: Path) -> None:
        checkpoint = checkpoint_at(path)
        check_family(describe(checkpoint)[1], entry, identifier)
        if check is not None:
            check(checkpoint)
        opened.append(checkpoint)

    def fetch() -> Path:
        return hub.fetch(identifier, revision, token=token, local_files_only=local_files_only, check=look)

    processes.in_turn(fetch) if processes else fetch()
    return opened[0]


def read_config(
    identifier: str | os.PathLike[str],
    revision: str = "main",
    *,
    entry: Entry | None = None,
    token: str | None = None,
    local_files_only: bool = False,
) -> tuple[Family, ModelConfig, Path | None]:
    """The family and the config of a model, and the folder or GGUF file that they were read from.

    No weights are fetched, but for those in a GGUF file. A published size, such as gpt2-xl, is known without the
    network: no folder then, unless it is in the cache.
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
    family, config = describe(checkpoint_at(folder))
    check_family(config, entry, identifier)
    return family, config, folder


def check_family(config: ModelConfig, entry: Entry | None, identifier: object) -> None:
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
    processes: Processes | None = None,
) -> LanguageModel:
    """The model of an opened checkpoint, in eval mode. On a CPU its weights are the file's own memory-mapped bytes.

    processes: those that share the weights, if there are several.
    ValueError: an unknown device, dtype or quantization.
    """
    check_kind(quantize, "auto", "none")
    probe = choose_device(str(processes.device) if processes else device)
    asked_for_auto = quantize == "auto"
    if quantize is None and dtype == "auto" and probe.name == "cpu" and not processes:
        quantize = "auto" if isinstance(checkpoint, GGUFCheckpoint) else None
    quantize = None if quantize == "none" else quantize
    _, model, meta = fit(checkpoint)
    if dtype == "auto" and quantize in KINDS and probe.name == "cpu":
        dtype = "float32"  # in bfloat16 the decoder rounds more than the weights: only where that is asked for
    target = choose_dtype(dtype, probe, [tensor.dtype for tensor in meta.values()])
    native = with_values(meta, checkpoint)
    if processes is not None:
        model = split(model, native, target, quantize, processes)
        model.generation_config = checkpoint.generation_config
        return model
    paths = {module: path for path, module in model.named_modules()}

    def fill(module: nn.Module) -> None:
        """Put weights where a module, or one within it, has none yet."""
        prefix = f"{paths[module]}." if paths[module] else ""
        names = [name for name, tensor in module.state_dict().items() if tensor.is_meta]
        # Weights that will be quantized are not rounded to another dtype first, and whole numbers are none to round.
        dtypes = [meta[prefix + name].dtype for name in names]
        kept = [own if kinds or not own.is_floating_point else target for own in dtypes]
        weights = {
            name: place(native[prefix + name], torch.device(probe.name), own)
            for name, own in zip(names, kept, strict=True)
        }
        module.load_state_dict(weights, strict=False, assign=True)

    kinds: dict[nn.Module, str | Blocks] = {}
    if quantize == "auto":
        for layer, _ in layers_of(model, "auto"):
            if isinstance(meta, Mapped) and (found := checkpoint.kept_as(f"{paths[layer]}.weight", meta)):
                kinds[layer] = found if isinstance(found, str) else found._replace(rows=found.rows.to(probe.name))
    elif quantize:
        kinds.update(layers_of(model, quantize))
    if asked_for_auto and not kinds:
        warnings.warn(
            'quantize="auto" has no effect: it applies to the quantized weights of GGUF files. '
            '"int8" and "nf4" quantize any model.',
            stacklevel=2,
        )
    replace_layers(model, kinds, fill)
    fill(model)
    if kinds:
        model.to(target)
    model.generation_config = checkpoint.generation_config
    return model.eval()


def split(
    model: LanguageModel, native: Mapping[str, Tensor], dtype: torch.dtype, quantize: str | None, processes: Processes
) -> LanguageModel:
    """A model without weights, with the parts of the `native` weights that belong to this process of several.

    ValueError: the model cannot be split.
    """
    from minhub_py.inference.parallel import ParallelEncoderDecoder, ParallelModel

    if quantize:
        raise ValueError("a quantized model cannot be split among processes: leave out quantize, or parallel")

    def put(tensor: Tensor) -> Tensor:
        return place(tensor, processes.device, dtype if tensor.is_floating_point() else tensor.dtype)

    kind = ParallelEncoderDecoder if model.encoder_decoder else ParallelModel
    return processes.all_succeed(lambda: kind(model, native, put, processes)).eval()


def check_split(identifier: str, revision: str, count: int) -> None:
    """ValueError: the model cannot be split among `count` processes. Its weights are not read."""
    from minhub_py.inference.parallel import split_of

    family, config, _ = read_config(identifier, revision)
    split_of(skeleton(family, config), 0, count)


def fit(checkpoint: Checkpoint) -> tuple[Family, LanguageModel, Mapping[str, Tensor]]:
    """The family, the model without weights, and the shapes and dtypes of the checkpoint's tensors under our names.

    Only the files' headers are read, and a head beside the embedding to which config.json ties it: if its values are
    others they count, as in transformers, and the model is not tied.
    ValueError lists every tensor that does not fit the table or the config.
    """
    family, config = describe(checkpoint)
    meta: Mapping[str, Tensor] = checkpoint.meta
    if checkpoint.layout == "hub":  # "native": the files have our names
        meta = weights_map.to_native(family.model_type, meta, config)
    ties = tied_names(family)
    if getattr(config, "SHARES_A_MISSING_HEAD", False) and not ties.keys() & meta.keys():
        config = changed(config, {"tie_word_embeddings": True})
    ties = ties if config.tie_word_embeddings else {}
    native = with_values(meta, checkpoint)
    both = [(native[head], native[embedding]) for head, embedding in ties.items() if {head, embedding} <= meta.keys()]
    if not all(same_values(head, embedding) for head, embedding in both):
        config, ties = changed(config, {"tie_word_embeddings": False}), {}
    model = skeleton(family, config)
    check_shapes(meta, model.state_dict(), spare=ties)
    return family, model, meta


def with_values(meta: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The `tensors` of a checkpoint's files under our names; `meta` is what `fit` found of them."""
    return meta.over(tensors) if isinstance(meta, Mapped) else tensors


def tied_names(family: Family) -> dict[str, str]:
    """Our name of each tensor that a config may tie -> that of the one to which it is tied."""
    table = weights_map.tables[family.model_type]
    pairs = {}
    for row in table.rows:
        if row.operation.tied_to and (twin := table.find(row.operation.tied_to, "hub")):
            pairs[row.templates("native")[0]] = twin[1].templates("native")[0]
    return pairs


def same_values(tensor: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal, but for the rounding to the first one's dtype. They are read in parts."""
    if tensor.shape != other.shape:
        return False
    parts = zip(tensor.flatten().split(2**22), other.flatten().split(2**22), strict=True)
    return all(torch.equal(part, twin.to(part.dtype)) for part, twin in parts)


def place(tensor: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Bring a weight to its device and dtype; one that is there already is not copied.

    A transposed view is left as one on a CPU in float32, where it is the faster layout for one token (4.8 ms against
    6.8 in tests/benchmarks/layout.py). In 16 bits (out, in) is the faster one, in float16 by far: 1.8 ms against 40.
    """
    tensor = tensor.to(device, dtype)
    return tensor if dtype == torch.float32 and device.type == "cpu" else tensor.contiguous()


def describe(checkpoint: Checkpoint) -> tuple[Family, ModelConfig]:
    """The family and the config of a checkpoint, by config.json or, where there is none, by the tensors themselves."""
    if checkpoint.config is not None:
        settings = text_settings(checkpoint.config)
        family = family_of(settings.get("model_type"))
        return family, with_generation_settings(checkpoint, read(family.Config, settings))
    for family in FAMILIES.values():
        if hasattr(family.Config, "from_shapes"):
            table = weights_map.tables[family.model_type]
            if all(table.find(name, "hub") for name in checkpoint):
                native = weights_map.to_native(family.model_type, checkpoint.meta)
                shapes = {name: tuple(tensor.shape) for name, tensor in native.items()}
                return family, build(family.Config, family.Config.from_shapes(shapes))
    raise FileNotFoundError(
        f"{checkpoint.path} has no config.json, and its tensors do not tell the sizes by themselves"
    )


def text_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of the language model: those of text_config in the config.json of a multimodal model."""
    text = settings.get("text_config")
    wrappers = [kind for family in FAMILIES.values() for kind in family.wrappers]
    if settings.get("model_type") not in wrappers or not isinstance(text, dict):
        return settings
    shared = ("tie_word_embeddings", "quantization_config", "bos_token_id", "eos_token_id", "pad_token_id")
    return {**{name: settings[name] for name in shared if name in settings}, **text}


def with_generation_settings(checkpoint: Checkpoint, config: ModelConfig) -> ModelConfig:
    """The ids that end a text: generation_config.json, where there is one, is newer than config.json."""
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    found = checkpoint.generation_config
    settings = {name: found[name] for name in names if found.get(name) is not None and hasattr(config, name)}
    try:
        return changed(config, settings) if settings else config
    except ValueError as error:
        raise ValueError(f"{checkpoint.path / 'generation_config.json'}: {error}") from error


def save_pretrained(
    model: nn.Module, folder: str | Path, tokenizer: Any = None, *, max_shard_size: int = 5 * 10**9
) -> None:
    """Write config.json, model.safetensors (or shards of at most `max_shard_size` bytes) and tokenizer.json.

    The folder is in Hub layout: transformers loads it, and the tensors are bit-identical to the model's. A tokenizer
    that was read from a folder brings its chat template along; what an earlier one has left in the new folder goes.

    ValueError: not a model of this package, or a quantized one, or not a `tokenizers.Tokenizer`.
    OSError: the disk is full or may not be written; what was in the folder is then still there.
    """
    own: LanguageModel = model_of(model, "save_pretrained()")
    own = getattr(own, "_orig_mod", own)  # torch.compile() puts its own before every name
    refuse_quantized(own, "saved")
    if tokenizer is not None:
        check_tokenizer(tokenizer, "to_str")
    config = own.config
    family = family_of(config.to_hub()["model_type"])
    tensors = weights_map.to_hub(family.model_type, own.state_dict(), config)
    dtype = next(own.parameters()).dtype
    settings = {**config.to_hub(), "dtype": str(dtype).removeprefix("torch.")}
    companions = None
    if tokenizer is not None:
        from minhub_py.checkpoints.tokenizers.tokenizer import tokenizer_files

        companions = tokenizer_files(tokenizer)
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
        parallel: str | None = None,
        token: str | None = None,
        local_files_only: bool = False,
    ) -> Any:
        access = {"token": token, "local_files_only": local_files_only}
        return _from_pretrained(identifier, revision, access, device, dtype, quantize, parallel, entry)

    fresh.__doc__ = f"""A fresh {kind} in training mode, with random weights; the keywords are those of config.json.

    ValueError: an unknown setting, or a value that the model does not honour.
    """
    from_config.__doc__ = f"""A fresh {kind} with random weights, sized by the config.json of a repository or folder.

    The published sizes, such as gpt2-xl, are known without the network.

    Arguments and errors are those of {entry.name}_from_pretrained().
    """
    pretrained.__doc__ = f"""The pretrained {kind} of a repository, a folder, a built-in or a GGUF file, in eval mode.

    Arguments and errors are those of from_pretrained(); ValueError also for a model of another family, with the call
    that is right for it.
    """
    names = (entry.name, f"{entry.name}_from_config", f"{entry.name}_from_pretrained")
    points: dict[str, Callable[..., Any]] = dict(zip(names, (fresh, from_config, pretrained), strict=True))
    for name, function in points.items():
        function.__name__ = function.__qualname__ = name
    return points
