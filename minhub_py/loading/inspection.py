"""Reports of `minhub inspect` and `minhub verify`, as plain data."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path

from torch import Tensor, nn

import weights_map
from minhub_py.checkpoints import hub, local
from minhub_py.checkpoints.opening import checkpoint_at
from minhub_py.checkpoints.storage import Checkpoint, Layout
from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer, tokenizer_file
from minhub_py.inference.quantize import count
from minhub_py.loading.facts import Facts, collect, fit, with_stored_head
from minhub_py.loading.files import ModelFiles, open_files
from minhub_py.loading.pretrained import read_config
from minhub_py.models.registry import Architecture
from minhub_py.models.settings import ModelConfig
from minhub_py.models.skeleton import skeleton
from minhub_py.system.json_text import JsonObject
from weights_map.conversion import Mapped
from weights_map.mxfp4 import NAN_SCALE

RELEASE_AFTER = 2**28  # bytes: `verify` releases memory-mapped tensors after this amount


def inspect(identifier: str, revision: str = "main") -> JsonObject:
    """A model's architecture, settings, parameter counts and tensors. Downloads and reads no
    weights.

    Folders, built-ins and cached repositories are described from their files; published sizes
    (gpt2-xl) and repositories that are not cached, from the config only. Raises the errors of
    `from_pretrained`.
    """
    try:
        files = open_files(identifier, revision, local_files_only=True)
    except FileNotFoundError:  # not cached: use the config only
        architecture, config, path = read_config(identifier, revision)
        layout: Layout = "hub"
        source = {"kind": "preset" if path is None else "config"}
        model = skeleton(architecture.new, config)
        tensors: Mapping[str, Tensor] = dict(
            weights_map.to_hub(architecture.model_type, model.state_dict(), config)
        )
        stored = {
            name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()
        }
    else:
        architecture, config, (tensors, _, layout) = (
            files.architecture,
            files.config,
            files.checkpoint.contents,
        )
        if layout == "hub":
            config = with_stored_head(architecture, config, tensors)
        model = skeleton(architecture.new, config)
        stored = {name: files.checkpoint.stored_dtype(name) for name in tensors}
        source = {
            "kind": "files",
            "folder": str(files.path),
            "layout": "gguf" if files.path.is_file() else layout,
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
) -> JsonObject:
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
    files = cache(partial(open_files, folder, local_files_only=True))
    facts = cache(lambda: collect(files()))
    checks: dict[str, Callable[[], list[str]]] = {
        "tensors": lambda: _check_tensors(facts()),
        "values": lambda: _check_values(checkpoint, progress),
        "tied head": lambda: _check_ties(facts()),
        "tokenizer": lambda: _check_tokenizer(files()),
    }
    for name, check in checks.items():
        try:
            problems += check()
            checked.append(name)
        except (ValueError, OSError) as error:  # several checks may find the same problem
            if str(error) not in problems:
                problems.append(str(error))
    return {"model": identifier, "folder": str(folder), "checked": checked, "problems": problems}


Progress = Callable[[int, int], object] | None


def _check_tensors(facts: Facts) -> list[str]:
    fit(facts)
    return []


def _check_values(checkpoint: Checkpoint, progress: Progress) -> list[str]:
    problems = []
    meta = checkpoint.contents.meta
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


def _check_ties(facts: Facts) -> list[str]:
    """If config.json ties the head, a stored head must equal the embedding."""
    problems = []
    for pair in facts.differing.items():
        name, alias = (
            facts.meta.sources(name)[0] if isinstance(facts.meta, Mapped) else name for name in pair
        )
        problems.append(
            f"{name} differs from {alias}, to which config.json ties it, and is used: set"
            " tie_word_embeddings to false"
        )
    return problems


def _check_tokenizer(files: ModelFiles) -> list[str]:
    if tokenizer_file(files.path) is None:
        return []  # a tokenizer is optional
    return tokenizer_problems(files.path, files.config.vocab_size)


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
