"""A checkpoint -> another layout, dtype or shard size, tensor by tensor: as little memory as its largest tensor.

TorchScript alone needs the model as a whole.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

import weights_map
from minhub_py.checkpoints.layout import COMPANIONS
from minhub_py.checkpoints.storage import Checkpoint, Layout, write_checkpoint
from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer, tokenizer_files
from minhub_py.export.torchscript import save_torchscript
from minhub_py.pretrained import fit, load, with_values


class OneByOne(Mapping[str, Tensor]):
    """A checkpoint whose files are closed after each tensor, so that no more than one stays in memory."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint

    def __getitem__(self, name: str) -> Tensor:
        self.checkpoint.release()
        return self.checkpoint[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.checkpoint)

    def __len__(self) -> int:
        return len(self.checkpoint)


def convert(
    checkpoint: Checkpoint,
    out: Path,
    *,
    to: Layout | Literal["torchscript"] = "hub",
    dtype: torch.dtype | None = None,
    max_shard_size: int = 5 * 10**9,
    progress: Callable[[int, int], object] | None = None,
) -> None:
    """Write the checkpoint to the folder `out`, with its config and its tokenizer, in place of what was there.

    to: "hub", as transformers reads it, or "native", under our own names and shapes. With "torchscript" `out` is one
    file that LibTorch runs, which holds the config and the tokenizer too.    dtype: None keeps it.
    ValueError: the checkpoint is damaged, or its tensors do not fit its config.    OSError: the disk is full.
    """
    if to == "torchscript":
        model = load(checkpoint, device="cpu", dtype=dtype or "auto", quantize="none")
        save_torchscript(model, out, companions_of(checkpoint.path))
        return
    family, model, meta = fit(checkpoint)  # every check comes before the first byte is written
    tensors = with_values(meta, OneByOne(checkpoint))
    if to == "hub":
        named = weights_map.to_hub(family.model_type, meta, model.config)
        meta, tensors = named, named.over(tensors)
    settings = {**model.config.to_hub(), **(checkpoint.config or {})}
    if not model.config.tie_word_embeddings:  # whatever config.json says: the head has values of its own
        settings |= {"tie_word_embeddings": False}
        if isinstance(text := settings.get("text_config"), dict) and "tie_word_embeddings" in text:
            settings["text_config"] = {**text, "tie_word_embeddings": False}
    settings.pop("torch_dtype", None)  # the old name of dtype
    own = next(tensor.dtype for tensor in meta.values() if tensor.is_floating_point())
    settings["dtype"] = str(dtype or own).removeprefix("torch.")
    write_checkpoint(
        out,
        tensors,
        settings,
        companions=companions_of(checkpoint.path),
        meta=meta,
        dtype=dtype,
        max_shard_size=max_shard_size,
        layout=to,
        progress=progress,
    )


def companions_of(folder: Path) -> dict[str, bytes]:
    """The tokenizer's files, chat template and generation_config.json; a list of characters becomes tokenizer.json.

    So does the tokenizer of a GGUF file, which `folder` may be.
    """
    if folder.is_file():
        return tokenizer_files(read_tokenizer(folder))
    names = [name for name in COMPANIONS if (folder / name).exists()]
    files = {name: (folder / name).read_bytes() for name in names}
    if "vocab.json" in files and "merges.txt" not in files and "tokenizer.json" not in files:
        files["tokenizer.json"] = read_tokenizer(folder).to_str(pretty=True).encode()
        del files["vocab.json"]
    return files
