"""Embeddings and heads under an adapter: whether it separates tied ones, and the size of its
vocabulary.
"""

from collections.abc import Mapping
from types import MappingProxyType

import weights_map
from minhub_py.loading.adapters.config import ALL_LINEAR, AdapterConfig
from minhub_py.loading.adapters.targets import (
    Target,
    hub_tensors,
    is_saved,
    is_selected,
    matches,
    select,
    targets_of,
)
from minhub_py.models.base import LanguageModel
from minhub_py.models.config import changed
from minhub_py.models.registry import architecture_of
from minhub_py.models.settings import ModelConfig
from minhub_py.models.steps import Embed

TokenIds = tuple[int, ...]


def tie_pairs(model: LanguageModel) -> dict[str, str]:
    """Hub name of each tensor that the architecture can tie -> Hub name of the tensor that it is
    tied to.
    """
    table = weights_map.table_of(
        architecture_of(model.config.to_hub()["model_type"]).model_type, model.config
    )
    pairs = {}
    for row in table.rows:
        if (
            row.operation.tied_to
            and row.templates("native")
            and (tied := table.find(row.operation.tied_to, "hub"))
        ):
            pairs[row.templates("hub")[0]] = tied[0]
    return pairs


def view_config(
    model: LanguageModel, config: AdapterConfig, sizes: Mapping[str, int] = MappingProxyType({})
) -> tuple[ModelConfig, dict[str, str]]:
    """The config of `model` with an adapter, and the pairs of tensors that `model` ties.

    sizes: the numbers of rows of the embeddings and heads in the adapter.
    ValueError: the model does not support the adapter's embeddings.
    """
    pairs, changes = tie_pairs(model), dict[str, object]()
    ties = pairs if model.config.tie_word_embeddings else {}
    for head, embedding in pairs.items():
        if not head.endswith(".weight"):
            continue
        if model.encoder_decoder and changes_embedding(config, module_of(embedding), bool(ties)):
            raise ValueError(
                f"{model.config.TITLE}: an adapter of {embedding} is not supported, because"
                " transformers has separate embeddings of encoder and decoder: retrain the adapter"
                " without it"
            )
        if ties and separates(config, module_of(head), module_of(embedding)):
            changes["tie_word_embeddings"] = False
    if len(rows := set(sizes.values())) == 1 and rows != {model.config.vocab_size}:
        changes["vocab_size"] = rows.pop()
    view: ModelConfig = changed(model.config, changes) if changes else model.config
    return view, ties


def select_with_ties(
    config: AdapterConfig, targets: Mapping[str, Target], model_type: str, ties: Mapping[str, str]
) -> list[str]:
    """The Hub modules that an adapter changes, with heads whose factors PEFT ties to the
    embedding's.

    Raises the errors of `select`.
    """
    selected = select(config, targets, model_type)
    heads = {
        module_of(head) for head, embedding in ties.items() if module_of(embedding) in selected
    }
    tied = heads if config.ensure_weight_tying else set()
    return [module for module in targets if module in selected or module in tied]


def separates(config: AdapterConfig, head: str, embedding: str) -> bool:
    """Whether an adapter gives a head and the embedding that it is tied to different weights, as in
    PEFT.
    """
    copies = any(is_saved(config.modules_to_save, name) for name in (head, embedding))
    factors = any(is_named(config, name) for name in (head, embedding))
    ids = {name: named_ids(config, name) for name in (head, embedding)}
    tokens = ids[head] is not None and ids[head] != ids[embedding]
    # Factors that PEFT ties are in the file for both modules, and applied to both.
    return factors or tokens or (copies and not config.ensure_weight_tying)


def changes_embedding(config: AdapterConfig, embedding: str, tied: bool) -> bool:
    """Whether an adapter changes an embedding. PEFT applies token IDs without a module to all that
    are tied to it.
    """
    ids = config.trainable_token_indices
    has_ids = ids is not None and (
        not tied if isinstance(ids, tuple) else named_ids(config, embedding) is not None
    )
    return has_ids or is_named(config, embedding) or is_saved(config.modules_to_save, embedding)


def is_named(config: AdapterConfig, module: str) -> bool:
    """Whether target_modules names a module, which may be a head or an embedding."""
    patterns = config.target_modules
    return (
        patterns not in (None, ALL_LINEAR)
        and matches(patterns, module)
        and is_selected(config, module)
    )


def named_ids(config: AdapterConfig, module: str) -> TokenIds | None:
    """The trained token IDs of a module that trainable_token_indices names."""
    indices = config.trainable_token_indices
    named = indices.items() if isinstance(indices, Mapping) else ()
    return next((ids for name, ids in named if module.endswith(name)), None)


def token_ids(
    config: AdapterConfig,
    view: LanguageModel,
    targets: Mapping[str, Target],
    ties: Mapping[str, str],
) -> dict[str, TokenIds]:
    """The trained token IDs by Hub module. view: the model with the adapter.

    ValueError: a module does not exist, or has a trained copy or factors, too.
    """
    indices = config.trainable_token_indices
    heads = {
        module_of(head): module_of(name) for head, name in ties.items() if head.endswith(".weight")
    }
    if indices is None:
        return {}
    tables = [module for module, target in targets.items() if target.is_embedding or target.is_head]
    if isinstance(indices, Mapping):
        for name in indices:
            if not any(module.endswith(name) for module in [*tables, *heads]):
                raise ValueError(
                    f"trainable_token_indices: the model has {', '.join(tables)}, but no {name!r}"
                )
        result = {
            module: ids for module in tables if (ids := named_ids(config, module)) is not None
        }
    else:
        result = {input_embedding(view, targets): indices}
    names = {*hub_tensors(view), *ties}
    for module in [*result, *(head for head, embedding in heads.items() if embedding in result)]:
        if f"{module}.bias" in names:
            raise ValueError(
                f"trainable_token_indices is not supported for {module}, because PEFT ignores its"
                " bias"
            )
        if is_saved(config.modules_to_save, module) or is_named(config, module):
            raise ValueError(
                "trainable_token_indices cannot be combined with factors or a trained copy of"
                f" {module}"
            )
    return result


def module_of(name: str) -> str:
    """A tensor's module."""
    return name.rpartition(".")[0]


def embedding_names(bare: LanguageModel) -> set[str]:
    """The Hub names of the embedding of tokens, and of the tensors that an architecture ties to it."""
    return {f"{input_embedding(bare, targets_of(bare))}.weight", *tie_pairs(bare)}


def input_embedding(bare: LanguageModel, targets: Mapping[str, Target]) -> str:
    """The Hub module of the embedding of tokens."""
    tokens = next(step.tokens for step in bare.steps() if isinstance(step, Embed))
    path = next(name for name, module in bare.named_modules() if module is tokens)
    return next(
        name
        for name, target in targets.items()
        if target.is_embedding and target.layers[0][0] == path
    )
