"""Conversion of a checkpoint to another layout, dtype or shard size, tensor by tensor in the memory
of the largest one.

Conversion to TorchScript loads the complete model.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch

import weights_map
from minhub_py.checkpoints.chat_templates import ADDITIONAL, additional_files
from minhub_py.checkpoints.layout import COMPANIONS, TOKENIZER_FILES
from minhub_py.checkpoints.storage import Layout
from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer, tokenizer_files
from minhub_py.checkpoints.writing import write_checkpoint
from minhub_py.export.single_tensors import SingleTensors
from minhub_py.export.torchscript import save_torchscript
from minhub_py.loading.adapters.fit import read_adapter
from minhub_py.loading.adapters.heads import HEAD_NAMES, base_of, labels_of
from minhub_py.loading.adapters.merge import MergedTensors, merge
from minhub_py.loading.facts import collect, fit
from minhub_py.loading.files import ModelFiles
from minhub_py.loading.pretrained import load
from minhub_py.models.config import with_older_rope
from minhub_py.system.files import read_bytes


def convert(
    files: ModelFiles,
    out: Path,
    *,
    to: Layout | Literal["torchscript"] = "hub",
    dtype: torch.dtype | None = None,
    max_shard_size: int = 5 * 10**9,
    progress: Callable[[int, int], object] | None = None,
) -> None:
    """Convert a checkpoint, with its config and tokenizer, and replace `out`. An adapter is merged
    into the weights.

    Args:
        files: The files of the model.
        out: The output folder; for TorchScript the output file, which includes the config and the
            tokenizer.
        to: "hub" for transformers, "native" for our names and shapes, or "torchscript" for
            LibTorch.
        dtype: The dtype of the weights. By default, it is not changed.
        max_shard_size: Maximum size of a safetensors file in bytes.
        progress: Called with the number of written bytes and the total.

    Raises:
        ValueError: The checkpoint is corrupt or does not match its config.
        OSError: The disk is full or not writable.
    """
    checkpoint, adapter = files.checkpoint, files.adapter
    if to == "torchscript":
        model = load(files, device="cpu", dtype=dtype or "auto", quantize="none")
        save_torchscript(
            model if adapter is None else merge(model), out, companions_of(files.path, adapter)
        )
        return
    facts = collect(files)
    model, meta = fit(facts), facts.meta  # all checks precede the first write
    tensors, config = facts.over(SingleTensors(checkpoint)), model.config
    if adapter is not None:
        model = base_of(adapter, model)
        tensors = merged = MergedTensors(tensors, model, read_adapter(adapter, model))
        meta, config = merged.meta(meta), merged.config
    if to == "hub":
        meta = weights_map.to_hub(facts.architecture.model_type, meta, config)
        tensors = meta.over(tensors)
    settings = with_older_rope(config, {**config.to_hub(), **(checkpoint.config or {})})
    if adapter is not None and labels_of(model) is not None:  # the head of the adapter
        settings |= {name: value for name, value in config.to_hub().items() if name in HEAD_NAMES}
    different: dict[str, object] = {}
    if not config.tie_word_embeddings:  # config.json may be wrong: the head has separate values
        different["tie_word_embeddings"] = False
    if config.vocab_size != model.config.vocab_size:  # the adapter has embeddings of added tokens
        different["vocab_size"] = config.vocab_size
    settings |= different
    if isinstance(text := settings.get("text_config"), dict):
        text = text | {name: value for name, value in different.items() if name in text}
        settings["text_config"] = with_older_rope(config, text)
    settings.pop("torch_dtype", None)  # the former name of dtype
    stored = next(tensor.dtype for tensor in meta.values() if tensor.is_floating_point())
    settings["dtype"] = str(dtype or stored).removeprefix("torch.")
    write_checkpoint(
        out,
        tensors,
        settings,
        companions=companions_of(files.path, adapter),
        meta=meta,
        dtype=dtype,
        max_shard_size=max_shard_size,
        layout=to,
        progress=progress,
    )


def companions_of(folder: Path, adapter: Path | None = None) -> dict[str, bytes]:
    """The files of the tokenizer, the chat template and generation_config.json, by name.

    A character vocabulary, or the tokenizer of a GGUF file (`folder`), is converted to
    tokenizer.json.
    adapter: a merged adapter's folder. Its tokenizer, which may have added tokens, has
    precedence.
    """
    if adapter is not None and (adapter / "tokenizer.json").exists():
        own = {
            name: (adapter / name).read_bytes()
            for name in TOKENIZER_FILES
            if (adapter / name).exists()
        }
        return companions_of(folder) | own
    if folder.is_file():
        return tokenizer_files(read_tokenizer(folder))
    names = [name for name in COMPANIONS if (folder / name).exists()]
    files = {name: read_bytes(folder / name) for name in names}
    files |= {f"{ADDITIONAL}/{file.name}": read_bytes(file) for file in additional_files(folder)}
    if "vocab.json" in files and "merges.txt" not in files and "tokenizer.json" not in files:
        files["tokenizer.json"] = read_tokenizer(folder).to_str(pretty=True).encode()
        del files["vocab.json"]
    return files
