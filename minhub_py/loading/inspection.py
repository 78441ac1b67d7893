"""Reports of `minhub inspect` and `minhub verify`, as plain data."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import weights_map
from minhub_py.checkpoints import hub, local
from minhub_py.checkpoints.gguf import checkpoint_at
from minhub_py.checkpoints.storage import Checkpoint, Layout
from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer, tokenizer_file
from minhub_py.inference.quantize import count
from minhub_py.loading.fitting import describe, fit, same_values, with_stored_head
from minhub_py.loading.pretrained import read_config
from minhub_py.models.base import ModelConfig
from minhub_py.models.registry import Architecture
from minhub_py.models.skeleton import skeleton
from weights_map.mxfp4 import NAN_SCALE

RELEASE_AFTER = 2**28  # bytes: `verify` releases memory-mapped tensors after this amount


def inspect(identifier: str, revision: str = "main") -> dict[str, Any]:
    """A model's architecture, settings, parameter counts and tensors. Downloads and reads no
    weights.

    Folders, built-ins and cached repositories are described from their files; published sizes
    (gpt2-xl) and repositories that are not cached, from the config only. Raises the errors of
    `from_pretrained`.
    """
    folder = local.locate(identifier, revision)
    if folder is None:
        with suppress(FileNotFoundError):  # not cached: use the config only
            folder = local.cached(identifier, revision)
    if folder is not None:
        checkpoint = checkpoint_at(folder)
        architecture, config = describe(checkpoint)
        config = with_stored_head(checkpoint, architecture, config)
        model, tensors, layout = (
            skeleton(architecture.new, config),
            checkpoint.meta,
            checkpoint.layout,
        )
        stored = {name: checkpoint.stored_dtype(name) for name in tensors}
        source = {
            "kind": "files",
            "folder": str(folder),
            "layout": "gguf" if folder.is_file() else layout,
        }
    else:
        architecture, config, path = read_config(identifier, revision)
        source = {"kind": "preset" if path is None else "config"}
        model, layout = skeleton(architecture.new, config), "hub"
        tensors = dict(weights_map.to_hub(architecture.model_type, model.state_dict(), config))
        stored = {
            name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()
        }
    return {
        "model": identifier,
        "source": source,
        "family": architecture.name,
        "class": architecture.classes[1],
        "context": config.context_length,
        "parameters": count_parameters(model),
        "config": asdict(config),
        "tensors": [
            {
                "hub": hub_name,
                "native": native,
                "operation": operation,
                "shape": list(tensors[name].shape),
                "dtype": stored[name],
            }
            for name, hub_name, native, operation in _operations(
                architecture, config, list(tensors), layout
            )
        ],
    }


def _operations(
    architecture: Architecture, config: ModelConfig, names: list[str], layout: Layout
) -> Iterator[tuple[str, str, str, str]]:
    """(name in the file, Hub name, native name, operation) of each tensor."""
    table = weights_map.table_of(architecture.model_type, config)
    for name in names:
        hit = table.find(name, layout)
        if hit is None:
            yield name, name, "", "unknown"
            continue
        _, row, indices = hit
        hub_name = name if layout == "hub" else ", ".join(row.names("hub", indices))
        # An untied head is an ordinary weight.
        operation = (
            "same"
            if row.operation.tied_to and not config.tie_word_embeddings
            else row.operation.name
        )
        yield name, hub_name, ", ".join(row.names("native", indices)), operation


def count_parameters(model: nn.Module) -> dict[str, int]:
    """The number of parameters in total and per top-level module. All blocks (`h`) count as one
    module.
    """
    parts = {name: count(child) for name, child in model.named_children()}
    return {"total": count(model), **{name: n for name, n in parts.items() if n}}


def verify(
    identifier: str, revision: str = "main", *, progress: Callable[[int, int], object] | None = None
) -> dict[str, Any]:
    """Check a model's files. Returns {"model", "folder", "checked", "problems"}; each problem is
    one line.

    Checks sizes and SHA-256 against the Hub (for a repository), all tensors against the weight
    table and the config, all values and MXFP4 scales for NaN and infinity, a stored head against
    the embedding that it is tied to, and the tokenizer. `progress(done, total)` receives bytes.
    Raises the errors of `hub.fetch`.
    """
    folder = local.locate(identifier, revision)
    checked: list[str] = []
    problems: list[str] = []
    if folder is None:
        folder = local.cached(identifier, revision)
        try:
            # The cached commit, even if the branch has moved.
            plan = hub.plan_download(identifier, local.commit_of(folder) or revision)
        except ConnectionError:
            plan = None
        problems += hub.file_problems(folder, plan)
        checked.append(
            "files, against the Hub's hashes"
            if plan
            else "files, against the cache's hashes (offline)"
        )
    checkpoint = checkpoint_at(folder)
    checks = {
        "tensors": _check_tensors,
        "values": _check_values,
        "tied head": _check_ties,
        "tokenizer": _check_tokenizer,
    }
    for name, check in checks.items():
        try:
            problems += check(checkpoint, progress)
            checked.append(name)
        except (ValueError, OSError) as error:  # several checks may find the same problem
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
    total, count, mapped = sum(tensor.nbytes for tensor in meta.values()), 0, 0
    for name, about in meta.items():
        if about.is_floating_point():
            # In chunks: isfinite allocates three tensors.
            problems += value_problems(name, checkpoint[name].flatten().split(2**22))
        elif name.endswith("scales"):  # of MXFP4, in either layout; its 4-bit numbers cannot be NaN
            wrong = int((checkpoint[name] == NAN_SCALE).sum())
            if wrong:
                problems.append(
                    f"{name}: {wrong} of {about.numel()} scales are {NAN_SCALE}, which means NaN"
                )
        count += about.nbytes
        # not after each tensor: reopening a file parses its header
        if count - mapped > RELEASE_AFTER:
            checkpoint.release()
            mapped = count
        if progress is not None:
            progress(count, total)
    return problems


def _check_ties(checkpoint: Checkpoint, progress: Progress) -> list[str]:
    """If config.json ties the head, a stored head must equal the embedding."""
    architecture, config = describe(checkpoint)
    if not config.tie_word_embeddings or checkpoint.layout == "native":
        return []
    table = weights_map.table_of(
        architecture.model_type, with_stored_head(checkpoint, architecture, config)
    )
    hits = {hit[0]: (name, hit[1]) for name in checkpoint if (hit := table.find(name, "hub"))}
    problems = []
    for name, row in hits.values():
        if row.operation.tied_to in hits:  # _check_tensors reports missing tensors
            twin, _ = hits[row.operation.tied_to]
            head, embedding = checkpoint[name], checkpoint[twin]
            if not same_values(head, embedding):
                problems.append(
                    f"{name} differs from {twin}, to which config.json ties it, and is used: "
                    "set tie_word_embeddings to false"
                )
    return problems


def _check_tokenizer(checkpoint: Checkpoint, progress: Progress) -> list[str]:
    if tokenizer_file(checkpoint.path) is None:
        return []  # a tokenizer is optional
    return tokenizer_problems(checkpoint.path, describe(checkpoint)[1].vocab_size)


def tokenizer_problems(path: Path, vocab_size: int) -> list[str]:
    """The problems of a tokenizer for a model with `vocab_size` token IDs."""
    size = read_tokenizer(path).get_vocab_size()
    return (
        [f"the tokenizer has {size} token IDs, the model only {vocab_size}"]
        if size > vocab_size
        else []
    )


def value_problems(name: str, parts: Sequence[Tensor]) -> list[str]:
    """The problems of the values of a tensor, which is in parts."""
    wrong = sum(int((~part.isfinite()).sum()) for part in parts)
    count = sum(part.numel() for part in parts)
    return [f"{name}: {wrong} of {count} values are NaN or infinite"] if wrong else []
