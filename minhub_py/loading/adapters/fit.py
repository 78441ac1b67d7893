"""A file's adapter for a model: each tensor is used, or named in one error with all other
problems.

PEFT ignores unexpected names and warns about missing ones. Names are described in `files.py`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

import weights_map
from minhub_py.loading.adapters.config import AdapterConfig
from minhub_py.loading.adapters.files import PREFIX, Adapter, stored_adapter
from minhub_py.loading.adapters.targets import (
    Target,
    bare_model,
    brief,
    hub_tensors,
    is_saved,
    targets_of,
)
from minhub_py.loading.adapters.ties import (
    embedding_names,
    module_of,
    select_with_ties,
    token_ids,
    view_config,
)
from minhub_py.models.base import LanguageModel
from minhub_py.models.lora import LoRAFactors
from minhub_py.models.registry import architecture_of
from weights_map.engine import Table

FACTORS = {
    ".lora_A.weight": "A",
    ".lora_B.weight": "B",
    ".lora_embedding_A": "embedding A",
    ".lora_embedding_B": "embedding B",
    ".lora_magnitude_vector": "magnitude",
    ".lora_magnitude_vector.weight": "magnitude",
    ".token_adapter.trainable_tokens_delta": "tokens",
    # the base's, to disable the adapter
    ".token_adapter.trainable_tokens_original": "original tokens",
    ".lora_B.bias": "lora_bias",
}
WRAPPERS = {
    "token_adapter.base_layer": "base",
    "base_layer": "base",
    "original_module": "original",
    "modules_to_save": "copy",
}


@dataclass
class Stored:
    """A file's tensors.

    factors: by Hub module and part.    copies: by kind ("plain" or a value of WRAPPERS) and Hub
    name.
    names: in the file, by Hub name and part or kind.
    """

    factors: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    copies: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    names: dict[tuple[str, str], str] = field(default_factory=dict)


class Problems(dict[str, list[str]]):
    """Names of tensors by problem."""

    def add(self, problem: str, names: Iterable[str]) -> None:
        self.setdefault(problem, []).extend(names)

    def check(self) -> None:
        """ValueError: there are problems."""
        if lines := [f"{problem}: {brief(names)}" for problem, names in self.items() if names]:
            raise ValueError(f"the adapter does not fit the model. {'; '.join(lines)}")


def read_adapter(folder: Path, model: LanguageModel) -> Adapter:
    """The adapter in a folder, for a model.

    FileNotFoundError: the folder is not an adapter.
    ValueError: a setting is not supported, or the tensors do not fit the settings or the model; all
    are listed.
    """
    config, tensors = stored_adapter(folder)
    try:
        return build_adapter(config, tensors, model)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error


def build_adapter(
    config: AdapterConfig, tensors: Mapping[str, Tensor], model: LanguageModel
) -> Adapter:
    """The adapter of tensors under PEFT's names. ValueError: they do not fit; all names are listed."""
    model_type = model.config.to_hub()["model_type"]
    table = weights_map.table_of(architecture_of(model_type).model_type, model.config)
    problems, bare = Problems(), bare_model(model)
    stored = sort_tensors(tensors, table, config, problems)
    names = embedding_names(bare)
    sizes = {
        name: len(copies[name])
        for copies in stored.copies.values()
        for name in copies.keys() & names
    }
    model_config, ties = view_config(model, config, sizes)
    adapter = Adapter(config, model_config, ties=ties)
    view = bare if adapter.model_config is model.config else bare_model(model, adapter.model_config)
    targets = targets_of(view)
    selected = {
        module: targets[module] for module in select_with_ties(config, targets, model_type, ties)
    }
    shapes = shapes_of(view)
    sort_copies(adapter, stored, shapes.keys(), names, selected, problems)
    add_factors(adapter, stored, selected, problems)
    add_tokens(adapter, stored, token_ids(config, view, targets, adapter.ties), shapes, problems)
    check_shapes(adapter, shapes, shapes_of(bare), problems)
    problems.check()
    return adapter


def sort_tensors(
    tensors: Mapping[str, Tensor], table: Table, config: AdapterConfig, problems: Problems
) -> Stored:
    """Sort a file's tensors by the forms of their names. ValueError: a form that is not
    supported.
    """
    stored = Stored()
    for name, tensor in tensors.items():
        module, leaf, kind = kind_of(name.removeprefix(PREFIX))
        if kind == "lora_bias":
            raise ValueError(f"{name}: trained biases of factors (lora_bias) are not supported")
        if kind == "original tokens":
            continue
        match = table.find(f"{module}.{leaf}", "hub")
        if not name.startswith(PREFIX) or match is None:
            problems.add("unknown", [name])
        elif not match[1].templates("native"):  # such as GPT-2's masks, whose names end with .bias
            problems.add("unexpected", [name] * (config.bias != "all" or leaf != "bias"))
        elif kind in FACTORS.values():
            module = module_of(match[0])
            stored.factors.setdefault(module, {})[kind], stored.names[module, kind] = tensor, name
        else:
            stored.copies.setdefault(kind, {})[match[0]], stored.names[match[0], kind] = (
                tensor,
                name,
            )
    return stored


def kind_of(name: str) -> tuple[str, str, str]:
    """The Hub module, the tensor, and the kind of a tensor: a value of FACTORS or WRAPPERS, or
    "plain".
    """
    for ending, part in FACTORS.items():
        if name.endswith(ending):
            return name.removesuffix(ending), "weight", part
    module, _, leaf = name.rpartition(".")
    for wrapper, kind in WRAPPERS.items():
        if module.endswith(f".{wrapper}"):
            return module.removesuffix(f".{wrapper}"), leaf, kind
    return module, leaf, "plain"


def shapes_of(bare: LanguageModel) -> dict[str, tuple[int, ...]]:
    """The shapes of a model's tensors by Hub name."""
    tensors = hub_tensors(bare)
    return {name: tuple(tensors[name].shape) for name in tensors}


def sort_copies(
    adapter: Adapter,
    stored: Stored,
    names: Collection[str],
    embeddings: Collection[str],
    selected: Collection[str],
    problems: Problems,
) -> None:
    """Sort the complete tensors to trained copies and tensors of the base. names: of the model with
    the adapter.
    """
    ties = adapter.ties
    expected = {name for name in names if is_copy(adapter.config, name, selected)}
    copies = expected | {
        head for head, embedding in ties.items() if embedding in expected and head not in names
    }
    for kind in ("original", "base", "plain"):
        for name, tensor in stored.copies.get(kind, {}).items():
            if name in copies and kind != "original":
                adapter.saved[name] = tensor
            elif name in embeddings or (module_of(name) in selected and name.endswith(".weight")):
                adapter.base[name] = tensor
            elif kind != "original":  # the base's tensor is not used where the adapter has a copy
                problems.add("unexpected", [stored.names[name, kind]])
    problems.add("missing", expected - adapter.saved.keys())
    for name, tensor in stored.copies.get("copy", {}).items():
        if name not in adapter.saved or not torch.equal(tensor, adapter.saved[name]):
            problems.add("contradictory", [f"two copies of {name}"])
    for head, embedding in ties.items():
        for values in (adapter.base, adapter.saved if head not in names else {}):
            if {head, embedding} <= values.keys() and not torch.equal(
                values[head], values[embedding]
            ):
                problems.add("contradictory", [f"{head} and {embedding}, which are tied"])
        if {head, embedding} <= adapter.base.keys():
            del adapter.base[head]


def is_copy(config: AdapterConfig, name: str, selected: Collection[str]) -> bool:
    """Whether an adapter contains a trained copy of a tensor, by the settings modules_to_save and
    bias.
    """
    module, _, leaf = name.rpartition(".")
    trained_bias = config.bias == "all" or (config.bias == "lora_only" and module in selected)
    return is_saved(config.modules_to_save, module) or (leaf == "bias" and trained_bias)


def add_factors(
    adapter: Adapter, stored: Stored, selected: Mapping[str, Target], problems: Problems
) -> None:
    """Add the factors of the selected modules."""
    config = adapter.config
    for module, parts in stored.factors.items():
        if module not in selected:
            problems.add(
                "unexpected", [stored.names[module, part] for part in parts if part != "tokens"]
            )
    for module, target in selected.items():
        rank, (rows, columns) = config.rank(module), target.shape
        shapes: dict[str, tuple[int, ...]] = {"A": (rank, columns), "B": (rows, rank)}
        if target.is_embedding:
            shapes = {"embedding A": (rank, rows), "embedding B": (columns, rank)}
        shapes |= (
            {"magnitude": (columns if target.is_embedding else rows,)} if config.use_dora else {}
        )
        parts = {
            part: tensor
            for part, tensor in stored.factors.get(module, {}).items()
            if part != "tokens"
        }
        problems.add("missing", [f"{module} ({part})" for part in shapes.keys() - parts.keys()])
        problems.add(
            "unexpected", [stored.names[module, part] for part in parts.keys() - shapes.keys()]
        )
        wrong = [
            part
            for part in parts.keys() & shapes.keys()
            if tuple(parts[part].shape) != shapes[part]
        ]
        problems.add(
            "wrong shape",
            [
                f"{module} ({part}) is {tuple(parts[part].shape)}, not {shapes[part]}"
                for part in wrong
            ],
        )
        if parts.keys() == shapes.keys() and not wrong:
            factors = factors_of(
                list(map(parts.__getitem__, shapes)),
                config.scale(module),
                config.lora_dropout,
                is_embedding=target.is_embedding,
            )
            (adapter.embeddings if target.is_embedding else adapter.factors)[module] = factors


def factors_of(
    parts: Sequence[Tensor], scale: float, dropout: float, *, is_embedding: bool
) -> LoRAFactors:
    """A module's factors from the tensors of the file: the two matrices, and for DoRA the
    magnitude.
    """
    dtype = torch.promote_types(parts[0].dtype, torch.float32)  # as PEFT: factors are float32
    first, second, *magnitude = (
        part.t() if is_embedding and part.dim() == 2 else part for part in parts
    )
    a, b = (second, first) if is_embedding else (first, second)
    # Copies: the sums of MKL depend on the alignment of memory, which a file does not provide.
    a, b, *magnitude = (part.to(dtype, copy=True).contiguous() for part in (a, b, *magnitude))
    return LoRAFactors(a, b, scale, magnitude[0] if magnitude else None, dropout)


def add_tokens(
    adapter: Adapter,
    stored: Stored,
    ids: Mapping[str, Sequence[int]],
    shapes: Mapping[str, tuple[int, ...]],
    problems: Problems,
) -> None:
    """Add the rows of trained tokens. ids: their IDs by module.    shapes: of the model with the
    adapter.
    """
    rows = {
        module: parts["tokens"] for module, parts in stored.factors.items() if "tokens" in parts
    }
    problems.add("missing", [f"{module} (tokens)" for module in ids.keys() - rows.keys()])
    for head, embedding in adapter.ties.items():
        module, tied = module_of(head), module_of(embedding)
        if module in rows and module not in ids and tied in ids and tied in rows:
            if not torch.equal(rows[module], rows[tied]):
                problems.add(
                    "contradictory", [f"the tokens of {module} and {tied}, which are tied"]
                )
            del rows[module]
    problems.add(
        "unexpected", [stored.names[module, "tokens"] for module in rows.keys() - ids.keys()]
    )
    for module in rows.keys() & ids.keys():
        count, columns = shapes[f"{module}.weight"]
        expected = (len(ids[module]), columns)
        if tuple(rows[module].shape) != expected:
            problems.add(
                "wrong shape", [f"{module} (tokens) is {tuple(rows[module].shape)}, not {expected}"]
            )
        elif max(ids[module]) >= count:
            raise ValueError(
                f"trainable_token_indices contains {max(ids[module])}, but {module} has {count}"
                " rows: save the adapter with save_embedding_layers=True"
            )
        adapter.tokens[module], adapter.token_ids[module] = rows[module], tuple(ids[module])


def check_shapes(
    adapter: Adapter,
    shapes: Mapping[str, tuple[int, ...]],
    base: Mapping[str, tuple[int, ...]],
    problems: Problems,
) -> None:
    """Compare the copies with the model with the adapter, and its other tensors with the tensors of
    the base.
    """

    def name_in(names: Mapping[str, object], name: str) -> str:
        return name if name in names else adapter.ties[name]

    for name, tensor in (adapter.base | adapter.saved).items():
        shape = shapes[name_in(shapes, name)]
        if tuple(tensor.shape) != shape:
            problems.add("wrong shape", [f"{name} is {tuple(tensor.shape)}, not {shape}"])
    for name, shape in shapes.items():
        if adapter.value(name) is None and (actual := base[name_in(base, name)]) != shape:
            problems.add(
                "missing",
                [f"{name} {shape} for the tokens of the adapter; the model's is {actual}"],
            )
