"""The settings of tasks in manifests, which anyone can change between a job and its replay."""

from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import signature
from typing import Annotated, Any, TypedDict

from minhub_py.jobs.tasks import TASKS
from minhub_py.system.shapes import Within, convert

# The functions that receive a task's further settings.
RECEIVERS = {
    "generate": "minhub_py.inference.generate.generate",
    "words": "minhub_py.analysis.surprisal.word_logprobs",
    "words_by": "minhub_py.analysis.surprisal.word_logprobs",
    "embed": "minhub_py.analysis.embeddings.embed",
    "embed_sparse": "minhub_py.analysis.embeddings.embed",
    "embed_words": "minhub_py.analysis.word_embeddings.word_embeddings",
    "annotate": "minhub_py.analysis.annotate.annotate",
    "translate": "minhub_py.analysis.translation.translate",
    "summarize": "minhub_py.analysis.summaries.summarize",
}


class GenerateSettings(TypedDict):
    """Settings of `generate`."""

    max_new_tokens: Annotated[int, Within(1)]
    seed: int
    stop: list[str]


class TranslateSettings(TypedDict):
    """Settings of `translate`."""

    source: str | None
    target: str | None


class LabelSettings(TypedDict):
    """A label of a codebook."""

    label: str


class CodebookSettings(TypedDict):
    """A codebook."""

    labels: Annotated[list[LabelSettings], Within(1)]


class AnnotateSettings(TypedDict):
    """Settings of `annotate`."""

    codebook: CodebookSettings


class ClassifySettings(TypedDict):
    """Settings of `classify`."""

    labels: list[str]


SHAPES: Mapping[str, object] = {
    "generate": GenerateSettings,
    "translate": TranslateSettings,
    "annotate": AnnotateSettings,
    "classify": ClassifySettings,
}


def check_settings(task: str, settings: Mapping[str, object], where: str, path: str) -> None:
    """ValueError: the settings are not those of a task. where, path: their file, and their location
    in it.
    """
    functions: list[Callable[..., object]] = [TASKS[task].run]
    if task in RECEIVERS:
        module, _, name = RECEIVERS[task].rpartition(".")
        functions.append(getattr(import_module(module), name))
    names = {name for function in functions for name in signature(function).parameters}
    required = [
        name
        for name, parameter in signature(TASKS[task].run).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
    ]
    advice = "restore the file that the job wrote"
    if unknown := sorted(settings.keys() - names):
        raise ValueError(
            f"{where}: {path} has {unknown[0][:64]!r}, which {task} does not have: {advice}"
        )
    if absent := [name for name in required if name not in settings]:
        raise ValueError(f"{where}: {path} must have {', '.join(absent)}: {advice}")
    convert(settings, SHAPES.get(task, dict[str, Any]), where, advice, path)
