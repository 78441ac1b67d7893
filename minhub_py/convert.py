"""A checkpoint -> another layout, dtype or shard size, tensor by tensor: as little memory as its largest tensor."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

import weights_map
from minhub_py.hub import COMPANIONS
from minhub_py.pretrained import describe, native_tensors, skeleton, tied_names
from minhub_py.storage import Checkpoint, Layout, write_checkpoint
from minhub_py.tokenizer import read_tokenizer
from weights_map.engine import check_shapes


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
    to: Layout = "hub",
    dtype: torch.dtype | None = None,
    max_shard_size: int = 5 * 10**9,
    progress: Callable[[int], object] | None = None,
) -> None:
    """Write the checkpoint to the folder `out`, with its config and its tokenizer.

    to: "hub", as transformers reads it, or "native", under our own names and shapes.    dtype: None keeps it.
    ValueError: the checkpoint is damaged, or its tensors do not fit its config.    OSError: the disk is full.
    """
    family, config = describe(checkpoint)
    # Every check comes before the first byte is written.
    expected = skeleton(family, config).state_dict()
    meta = native_tensors(checkpoint, family, checkpoint.meta())
    check_shapes(meta, expected, spare=tied_names(family, config))

    tensors = native_tensors(checkpoint, family, OneByOne(checkpoint))
    if to == "hub":
        meta, tensors = (weights_map.to_hub(family.model_type, side) for side in (meta, tensors))
    settings = {**config.to_hub(), **(checkpoint.config or {})}
    settings.pop("torch_dtype", None)  # the old name of dtype
    settings["dtype"] = str(dtype or next(iter(meta.values())).dtype).removeprefix("torch.")
    write_checkpoint(
        out, tensors, settings, meta=meta, dtype=dtype, max_shard_size=max_shard_size, layout=to, progress=progress
    )
    copy_companions(checkpoint.folder, out)


def copy_companions(folder: Path, out: Path) -> None:
    """The tokenizer's files and generation_config.json; a list of characters becomes a tokenizer.json."""
    names = [name for name in COMPANIONS if (folder / name).exists()]
    if "vocab.json" in names and "merges.txt" not in names and "tokenizer.json" not in names:
        read_tokenizer(folder).save(str(out / "tokenizer.json"))
        names.remove("vocab.json")
    for name in names:
        shutil.copyfile(folder / name, out / name)
