"""Start of a run on examples: its objective, its data, its defaults, and the model of a
classification.
"""

import dataclasses
import math
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from minhub_py.chat.replies import end_tokens
from minhub_py.chat.templates import ChatTemplate, chat_template_of
from minhub_py.loading.adapters.heads import classifier_config, labels_of
from minhub_py.loading.facts import collect, fit
from minhub_py.loading.files import ModelFiles
from minhub_py.models.base import LanguageModel
from minhub_py.models.registry import Architecture
from minhub_py.models.settings import ModelConfig
from minhub_py.system.formats import read_columns
from minhub_py.system.json_text import JsonObject
from minhub_py.system.spelling import setting
from minhub_py.training import contrastive
from minhub_py.training.adapter_run import invocation_of
from minhub_py.training.checkpoint import RunFolder
from minhub_py.training.decisions import decision_encoder
from minhub_py.training.examples import (
    EMBEDDING,
    ExampleEncoder,
    is_table,
    labels_in,
    prepare_examples,
)
from minhub_py.training.listener import Listener
from minhub_py.training.memory import parts_of
from minhub_py.training.pairs import PairEncoder
from minhub_py.training.rows import form_of
from minhub_py.training.settings import ENCODER_OBJECTIVES, Settings

BATCH, EPOCHS = 8, 4
RATES = {
    "preference": 1e-5,
    "labels": 5e-5,
    "masked": 5e-5,
    "decision": 5e-5,
    "pairs": 2e-5,
    "triplets": 2e-5,
}  # peak learning rates; of adapters, except preference: LORA_RATE


def with_objective(
    settings: Settings, sources: Sequence[Any], start: ModelFiles | None
) -> Settings:
    """The settings with the objective of the files; "text" for text files.

    ValueError: the files have different kinds, or the objective needs a model to fine-tune.
    """
    tables = [source for source in sources if is_table(source)]
    is_encoder = start is not None and start.model_class.encoder_only
    if not tables and not (is_encoder and settings.objective in (None, "masked")):
        if settings.objective not in (None, "text"):
            raise ValueError(
                f"{setting('objective', settings.objective)} needs files with examples, such as"
                " .jsonl"
            )
        check_head(settings, start, "text")
        return dataclasses.replace(settings, objective="text")
    if len(tables) not in (0, len(sources)):
        raise ValueError("files with text and files with examples cannot be mixed: use one kind")
    if start is None:
        raise ValueError(f"training on examples needs {setting('start')}: a model to fine-tune")
    objective = settings.objective
    if objective is None:
        objective = (
            form_of(list(read_columns(tables[0])), tables[0]).objective if tables else "text"
        )
        objective = "masked" if objective == "text" and is_encoder else objective
    if is_encoder and objective not in ENCODER_OBJECTIVES:
        raise ValueError(
            f"{settings.start} is a text encoder: it needs examples with text and label, with"
            " anchor and positive, or only text"
        )
    check_head(settings, start, objective)
    if objective in EMBEDDING:
        if settings.accumulate > 1:
            raise ValueError(
                f"{setting('accumulate')} does not support {objective}, whose texts are compared"
                " within a micro-batch: remove it"
            )
        assert start is not None
        contrastive.settings_of(start)  # raises errors before the rows are read
    return dataclasses.replace(settings, objective=objective)


def check_head(settings: Settings, start: ModelFiles | None, objective: str) -> None:
    """ValueError: a model with a decision head has another objective than decisions."""
    head = None if start is None else getattr(start.config, "head", None)
    if head == "decision" and objective != "decision":
        raise ValueError(
            f"{settings.start} has a decision head: it needs examples with state, question and"
            " answer"
        )


def encode_examples(
    folder: RunFolder,
    settings: Settings,
    start: ModelFiles,
    tokenizer: Tokenizer,
    paths: Sequence[Path],
    fingerprint: str,
    listener: Listener,
) -> None:
    """Write the encoded examples of a run. ValueError: a row is invalid."""
    objective = str(settings.objective)
    labels = labels_in(paths, settings.na) if objective == "labels" else []
    template = chat_template_of(start.checkpoint, tokenizer)
    needs_no_end = objective == "decision" or objective in ENCODER_OBJECTIVES
    eos = None if needs_no_end else eos_of(start.config, template)
    context = settings.context or 0
    if objective in EMBEDDING:
        context = contrastive.write_settings(folder, start, context)
    if objective in ("chat", "completion", "preference") and (
        eos is None or not end_tokens(template)
    ):
        listener.note(
            "config, tokenizer and chat template have no token that ends a reply, so that the "
            "model does not learn to stop: set eos_token in tokenizer_config.json"
        )
    encoder: ExampleEncoder
    if start.model_class.encoder_decoder and objective == "completion":
        encoder = PairEncoder(tokenizer, template, eos, context)
    else:
        encoder = ExampleEncoder(
            tokenizer,
            template,
            eos,
            context,
            invocation_of(settings.lora, start, tokenizer),
            decision_encoder(tokenizer, start) if objective == "decision" else None,
            lower_case=objective in EMBEDDING and contrastive.settings_of(start).lower_case,
        )
    examples = prepare_examples(
        paths,
        [path.name for path in paths],
        folder.tokens,
        encoder,
        objective,
        settings.held_out,
        settings.seed,
        fingerprint,
        listener.preparing,
        labels,
        settings.na,
    )
    for note in notes_on(examples, encoder.unused, f"{setting('context')} {settings.context}"):
        listener.note(note)


def notes_on(examples: JsonObject, unused: Collection[str], context: str) -> Iterator[str]:
    """Notes on rows and columns that are not used as they are.

    examples: the content of tokens.json.    unused: columns.    context: the setting.
    """
    if count := examples["truncated"]:
        yield f"sequences longer than {context}, which were truncated: {count:,}"
    if count := examples["dropped"]:
        yield (
            f"rows dropped, because their prompts fill {context} and leave nothing to learn:"
            f" {count:,}. Increase it"
        )
    if count := examples["empty"]:
        yield f"rows dropped, because they have no tokens to learn: {count:,}"
    if unused:
        yield f"not used in training: {', '.join(unused)}"


def eos_of(config: ModelConfig, template: ChatTemplate) -> int | None:
    """The token that ends a completion: the model's, or else the tokenizer's."""
    eos = config.eos_token_id
    return (
        eos[0] if isinstance(eos, list) and eos else eos if isinstance(eos, int) else template.eos
    )


def with_defaults(
    settings: Settings, requested: Collection[str], examples: JsonObject, most: int
) -> Settings:
    """Defaults that depend on the examples, for settings that are not given.

    examples: the content of tokens.json, with the length of a long example.    most: tokens of a
    micro-batch.
    """
    batch = (
        settings.batch
        if {"batch", "accumulate"} & set(requested)
        else min(BATCH, max(1, examples["train"]))
    )
    changes: JsonObject = {"batch": batch}
    if "accumulate" not in requested and settings.objective not in EMBEDDING:
        changes["accumulate"] = parts_of(batch, examples["length"], most)
    if "steps" not in requested:
        epochs = settings.epochs or EPOCHS
        changes |= {
            "steps": max(1, math.ceil(epochs * examples["train"] / batch)),
            "epochs": epochs,
        }
    steps = changes.get("steps", settings.steps)
    for name, value in (
        ("warm_up", steps // 10),
        ("evaluate_every", steps // 4),
        ("checkpoint_every", steps // 4),
    ):
        if name not in requested:
            changes[name] = min(getattr(settings, name), max(1, value))
    if "weight_decay" not in requested:
        changes["weight_decay"] = 0.0 if settings.lora else 0.01
    return dataclasses.replace(settings, **changes)


def load_classifier(
    start: ModelFiles, settings: Settings, labels: Sequence[str]
) -> tuple[Architecture, LanguageModel]:
    """The model of a checkpoint with a classification head for these labels; () for regression.

    A new head has random weights. ValueError: the architecture has no classification head.
    """
    facts = collect(start)
    architecture, base = facts.architecture, fit(facts)
    config: Any = settings.tuned_config(architecture, classifier_config(base.config, labels))
    torch.manual_seed(settings.seed)
    model = architecture.new(config)
    tensors = facts.tensors
    state = model.state_dict()
    same_labels = labels_of(base) == list(labels)
    for key, tensor in state.items():
        is_output = key.startswith("head.out")
        if key in tensors and tensors[key].shape == tensor.shape and (same_labels or not is_output):
            state[key] = tensors[key].to(torch.float32, copy=True).contiguous()
    model.load_state_dict(state, assign=True)
    return architecture, model
