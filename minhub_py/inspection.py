"""The reports of `minhub inspect` and `minhub verify` on a checkpoint, as plain data."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

import weights_map
from minhub_py.checkpoints import hub
from minhub_py.checkpoints.gguf import checkpoint_at
from minhub_py.checkpoints.storage import Checkpoint, Layout
from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer, tokenizer_file
from minhub_py.inference.quantize import count
from minhub_py.models.base import ModelConfig
from minhub_py.models.skeleton import skeleton
from minhub_py.pretrained import describe, fit, read_config, same_values
from minhub_py.registry import Family
from weights_map.mxfp4 import NAN_SCALE

RELEASE_AFTER = 2**28  # bytes of tensors that `verify` reads before it frees the memory that they mapped


def inspect(identifier: str, revision: str = "main") -> dict[str, Any]:
    """A model's family, settings, parameter counts and tensors. No weights are downloaded, and none are read.

    A folder, a built-in or a cached repository is described from its files; a published size (gpt2-xl) or a
    repository that is not cached from its config alone. Errors are those of `from_pretrained`.
    """
    folder = hub.locate(identifier, revision)
    if folder is None:
        with suppress(FileNotFoundError):  # not in the cache: the config will do
            folder = hub.cached(identifier, revision)
    if folder is not None:
        checkpoint = checkpoint_at(folder)
        family, config = describe(checkpoint)
        model, tensors, layout = skeleton(family, config), checkpoint.meta, checkpoint.layout
        stored = {name: checkpoint.stored_as(name) for name in tensors}
        source = {"kind": "files", "folder": str(folder), "layout": "gguf" if folder.is_file() else layout}
    else:
        family, config, read_from = read_config(identifier, revision)
        source = {"kind": "preset" if read_from is None else "config"}
        model, layout = skeleton(family, config), "hub"
        tensors = dict(weights_map.to_hub(family.model_type, model.state_dict(), config))
        stored = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()}
    return {
        "model": identifier,
        "source": source,
        "family": family.name,
        "class": family.classes[1],
        "context": config.context_length,
        "parameters": count_parameters(model),
        "config": asdict(config),
        "tensors": [
            {"hub": hub_name, "native": native, "operation": operation, "shape": list(tensors[name].shape),
             "dtype": stored[name]}
            for name, hub_name, native, operation in _operations(family, config, list(tensors), layout)
        ],
    }  # fmt: skip


def _operations(
    family: Family, config: ModelConfig, names: list[str], layout: Layout
) -> Iterator[tuple[str, str, str, str]]:
    """(name in the file, Hub name, our name, operation) of each tensor."""
    table = weights_map.tables[family.model_type]
    for name in names:
        hit = table.find(name, layout)
        if hit is None:
            yield name, name, "", "unknown"
            continue
        _, row, place = hit
        hub_name = name if layout == "hub" else ", ".join(row.names("hub", place))
        # A head that the config does not tie is a weight like any other.
        operation = "same" if row.operation.tied_to and not config.tie_word_embeddings else row.operation.name
        yield name, hub_name, ", ".join(row.names("native", place)), operation


def count_parameters(model: nn.Module) -> dict[str, int]:
    """Parameters in all and by part: each module at the top, so the blocks (`h`) count as one."""
    parts = {name: count(child) for name, child in model.named_children()}
    return {"total": count(model), **{name: n for name, n in parts.items() if n}}


def verify(
    identifier: str, revision: str = "main", *, progress: Callable[[int, int], object] | None = None
) -> dict[str, Any]:
    """Check a model's files: {"folder", "checked", "problems"}, the latter a line each and empty if all is well.

    Checked are sizes and SHA-256 against what the Hub declares (for a repository), every tensor against the weight
    table and the config, every value and every scale of MXFP4 for NaN and infinity, a stored head against the embedding
    it is tied to, and the tokenizer. `progress(done, total)` hears of bytes. Errors: those of `hub.fetch`.
    """
    folder = hub.locate(identifier, revision)
    checked: list[str] = []
    problems: list[str] = []
    if folder is None:
        folder = hub.cached(identifier, revision)
        try:
            # The commit that is here, wherever the branch is now.
            plan = hub.plan_download(identifier, hub.commit_of(folder) or revision)
        except ConnectionError:
            plan = None
        problems += hub.file_problems(folder, plan)
        checked.append("files, against the Hub's hashes" if plan else "files, against the cache's hashes (offline)")
    checkpoint = checkpoint_at(folder)
    checks = {
        "tensors": _check_tensors,
        "values": _check_values,
        "tied head": _check_ties,
        "tokenizer": _check_tokenizer,
    }
    for what, check in checks.items():
        try:
            problems += check(checkpoint, progress)
            checked.append(what)
        except (ValueError, OSError) as error:  # one finding, which the next checks may come upon too
            if str(error) not in problems:
                problems.append(str(error))
    return {"model": identifier, "folder": str(folder), "checked": checked, "problems": problems}


Progress = Callable[[int, int], object] | None


def _check_tensors(checkpoint: Checkpoint, progress: Progress) -> list[str]:
    fit(checkpoint)
    return []


def _check_values(checkpoint: Checkpoint, progress: Progress) -> list[str]:
    problems = []
    meta = checkpoint.meta
    total, done, mapped = sum(tensor.nbytes for tensor in meta.values()), 0, 0
    for name, about in meta.items():
        if about.is_floating_point():
            # In parts: isfinite makes three tensors on its way.
            wrong = sum(int((~torch.isfinite(part)).sum()) for part in checkpoint[name].flatten().split(2**22))
            if wrong:
                problems.append(f"{name}: {wrong} of {about.numel()} values are NaN or infinite")
        elif name.endswith("scales"):  # of MXFP4, in either layout; its blocks have no NaN
            wrong = int((checkpoint[name] == NAN_SCALE).sum())
            if wrong:
                problems.append(f"{name}: {wrong} of {about.numel()} scales are {NAN_SCALE}, which stands for NaN")
        done += about.nbytes
        if done - mapped > RELEASE_AFTER:  # to open a file again, its whole header is parsed
            checkpoint.release()
            mapped = done
        if progress is not None:
            progress(done, total)
    return problems


def _check_ties(checkpoint: Checkpoint, progress: Progress) -> list[str]:
    """A head that a tied model's file holds all the same should be the embedding once more."""
    family, config = describe(checkpoint)
    if not config.tie_word_embeddings or checkpoint.layout == "native":
        return []
    found = {
        hit[0]: (name, hit[1])
        for name in checkpoint
        if (hit := weights_map.tables[family.model_type].find(name, "hub"))
    }
    problems = []
    for name, row in found.values():
        if row.operation.tied_to in found:  # if it is missing, that is said elsewhere
            twin, _ = found[row.operation.tied_to]
            head, embedding = checkpoint[name], checkpoint[twin]
            if not same_values(head, embedding):
                problems.append(
                    f"{name} differs from {twin}, to which config.json ties it, and is used: "
                    "set tie_word_embeddings to false"
                )
    return problems


def _check_tokenizer(checkpoint: Checkpoint, progress: Progress) -> list[str]:
    if tokenizer_file(checkpoint.path) is None:
        return []  # weights may come alone
    size, room = read_tokenizer(checkpoint.path).get_vocab_size(), describe(checkpoint)[1].vocab_size
    return [f"the tokenizer has {size} ids, the model only {room}"] if size > room else []
