"""Classification heads that belong to an adapter (PEFT's task type SEQ_CLS): the base has none, or
other labels.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from minhub_py.loading.adapters.files import CONFIG, PREFIX, has_weights, read_file, stored_tensors
from minhub_py.loading.adapters.targets import bare_model, conversions_of
from minhub_py.models.base import LanguageModel
from minhub_py.models.config import changed
from minhub_py.models.registry import ARCHITECTURES, architecture_of
from minhub_py.models.settings import ModelConfig
from minhub_py.models.skeleton import skeleton
from minhub_py.system.shapes import parse_json

SEQUENCE_TASK = "SEQ_CLS"
HEAD_NAMES = ("architectures", "id2label", "label2id", "problem_type")  # in config.json


def classifier_config(config: ModelConfig, labels: Sequence[str]) -> ModelConfig:
    """The config of a model with a sequence classification head. labels: () for regression.

    ValueError: the architecture has no classification head.
    """
    if not hasattr(config, "id2label"):
        without = {
            architecture.Config.TITLE
            for architecture in ARCHITECTURES.values()
            if not hasattr(architecture.Config, "id2label")
        }
        raise ValueError(
            f"{config.TITLE} has no classification head: use a model of any architecture except "
            f"{', '.join(sorted(without))}"
        )
    if getattr(config, "encoder_only", False):
        raise ValueError(
            f"{config.TITLE}: a sequence classification head reads the decoder, which this model"
            " lacks: use a checkpoint with a decoder"
        )
    [name] = config.to_hub()["architectures"]
    name = re.sub(r"(Model|LMHeadModel|For[A-Z]\w*)$", "", name) + "ForSequenceClassification"
    kind = "single_label_classification" if labels else "regression"
    names = dict(enumerate(labels or ["LABEL_0"]))
    result: ModelConfig = changed(
        config,
        {"architectures": [name], "id2label": names, "num_labels": None, "problem_type": kind},
    )
    return result


def labels_of(model: LanguageModel) -> list[str] | None:
    """The labels of a model with a sequence classification head; [] for regression, None for other
    models.
    """
    config: Any = model.config
    if getattr(config, "head", None) != "sequence":
        return None
    return [] if config.problem_type == "regression" else list(config.labels)


def with_head(base: LanguageModel, labels: Sequence[str]) -> LanguageModel:
    """`base` with a new classification head; all other weights are shared. The head is the base's
    if labels are equal.

    labels: () for regression.    ValueError: the architecture has no classification head.
    """
    if labels_of(base) == list(labels):
        return base
    config = classifier_config(base.config, labels)
    model: Any = skeleton(architecture_of(config.to_hub()["model_type"]).new, config)
    for name in ("_parameters", "_buffers", "_modules"):
        own, shared = model.__dict__[name], base.__dict__[name]
        own.update({key: shared[key] for key in own if key != "head" and own[key] is not None})
    model.head.to_empty(device=next(base.parameters()).device)
    for module in model.head.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=getattr(config, "initializer_range", 0.02))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return model.train(base.training)  # type: ignore[no-any-return]


def head_modules(model: LanguageModel) -> tuple[str, ...]:
    """The Hub modules of a classification head, for modules_to_save; PEFT saves `classifier`
    completely.
    """
    names = [
        name.rpartition(".")[0]
        for conversion in conversions_of(bare_model(model))
        for name in conversion.targets
        if conversion.sources[0].startswith("head.")
    ]
    return tuple(
        dict.fromkeys("classifier" if name.startswith("classifier.") else name for name in names)
    )


def base_of(folder: Path, model: LanguageModel) -> LanguageModel:
    """The base of the adapter in a folder: `model`, with another head if the adapter contains a
    classification head.

    The labels are those that `write_adapter` stores, else LABEL_0 and so on; one label is a
    regression.
    """
    values = read_file(folder) if (folder / CONFIG).exists() else None
    if values is None or values.get("task_type") != SEQUENCE_TASK or not has_weights(folder):
        return model
    tensors, metadata = stored_tensors(folder)
    stored = metadata.get("labels")
    if stored is not None:
        return with_head(
            model, parse_json(stored.encode(), list[str], f"the labels in the weights of {folder}")
        )
    targets = conversions_of(skeleton_of_head(model))
    [[output]] = [target.targets for target in targets if target.sources == ("head.out.weight",)]
    if f"{PREFIX}{output}" not in tensors:
        return model
    count = len(tensors[f"{PREFIX}{output}"])
    current = labels_of(model)
    if current is not None and max(1, len(current)) == count:
        return model
    return with_head(model, [f"LABEL_{number}" for number in range(count)] if count > 1 else [])


def skeleton_of_head(model: LanguageModel) -> LanguageModel:
    """A model of the architecture with a classification head, without weights."""
    config = classifier_config(model.config, ["LABEL_0", "LABEL_1"])
    return skeleton(architecture_of(config.to_hub()["model_type"]).new, config)
