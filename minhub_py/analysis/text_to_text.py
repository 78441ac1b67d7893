"""Texts from texts with an encoder-decoder: the common part of translations and summaries.

Settings are the model's: those of generation_config.json, or of config.json in older repositories,
replaced by the task's in `task_specific_params` of config.json, as in the pipelines of
transformers 4.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer

from minhub_py.analysis.predictions import Progress
from minhub_py.checkpoints.tokenizers.surroundings import stored_settings
from minhub_py.checkpoints.tokenizers.tokenizer import working
from minhub_py.inference.arguments import check_integer, check_tokenizer, decoder_of
from minhub_py.inference.beam_search import search_batch
from minhub_py.inference.beams import BeamSearch
from minhub_py.inference.sampling import Sampling, StopCriteria
from minhub_py.inference.token_limits import generation_settings
from minhub_py.models.base import LanguageModel
from minhub_py.system.spelling import SettingError, setting

# tokens of the encoder and of all beams that are computed together
MAX_BATCH_TOKENS = 16384
MAX_NEW_TOKENS = 256  # without a setting of the model
POSITIONS = 512  # of a model without a maximum, such as T5: more than in its training
# Settings of generation that change the result and are not supported, with their values without
# an effect.
UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "num_beam_groups": (1,),
    "diversity_penalty": (0,),
    "sequence_bias": (),
    "encoder_repetition_penalty": (1,),
    "guidance_scale": (1,),
    "force_words_ids": ([],),
    "constraints": ([],),
    "watermarking_config": (),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "exponential_decay_length_penalty": (),
}
# Settings that the batch reads for all replies.
OF_ALL_TASKS = ("encoder_no_repeat_ngram_size", "renormalize_logits")


@dataclass(frozen=True)
class TaskGeneration:
    """A task's settings, and the texts of the model's two sides.

    prefix: text before each text.    positions: maximum number of tokens of a text.
    """

    search: BeamSearch
    sampling: Sampling
    max_new_tokens: int
    min_new_tokens: int
    prefix: str
    positions: int


@dataclass(frozen=True)
class EncodedText:
    """The token IDs of a text, and the beginning of the decoder's sequence; see `Batch.admit`."""

    ids: list[int]
    admission: Mapping[str, int] = field(default_factory=dict)


def encoder_decoder_of(model: LanguageModel, tokenizer: Tokenizer, call: str) -> LanguageModel:
    """A call's model. ValueError: not an encoder-decoder, or not a tokenizer."""
    decoder = decoder_of(model, call)
    check_tokenizer(tokenizer, "encode")
    if not decoder.encoder_decoder:
        raise ValueError(
            f"{call} needs a model with an encoder and a decoder, such as T5, BART or Marian;"
            f" {decoder.config.TITLE} is a decoder: write the task as a prompt, for Chat or"
            " complete()"
        )
    return decoder


def generation_of(
    model: LanguageModel, tokenizer: Tokenizer, task: str, arguments: Mapping[str, Any]
) -> TaskGeneration:
    """A task's settings. arguments: of the call; None selects the model's.

    ValueError: the model has a setting that is out of range or not supported.
    """
    settings = task_settings(model, task)
    check_settings(model, settings)
    names = {
        "beams": "num_beams",
        "length_penalty": "",
        "early_stopping": "",
        "no_repeat_ngram_size": "",
    }
    search = {name: value for name in names if (value := arguments.get(name)) is not None}
    published = {
        name: settings[hub_name or name]
        for name, hub_name in names.items()
        if settings.get(hub_name or name) is not None
    }
    try:
        BeamSearch(**published)
        sampling = Sampling(repetition_penalty=settings.get("repetition_penalty") or 1.0)
    except ValueError as error:
        raise SettingError(f"the model's settings of generation: {error}") from error
    try:
        beam_search = BeamSearch(**{"beams": 4, **published, **search})
    except ValueError as error:
        raise SettingError(str(error)) from error
    positions = positions_of(model, tokenizer)
    maximum = arguments.get("max_new_tokens")
    if maximum is None:  # lengths include the token before the first one
        maximum = settings.get("max_new_tokens") or (settings.get("max_length") or 0) - 1
        maximum = MAX_NEW_TOKENS if maximum < 1 else maximum
    maximum = min(check_integer(setting("max_new_tokens"), maximum, 1), positions)
    minimum = arguments.get("min_new_tokens")
    if minimum is None:
        minimum = settings.get("min_new_tokens") or max((settings.get("min_length") or 0) - 1, 0)
    minimum = min(check_integer(setting("min_new_tokens"), minimum, 0), maximum)
    return TaskGeneration(
        beam_search, sampling, maximum, minimum, str(settings.get("prefix") or ""), positions
    )


def check_settings(model: LanguageModel, settings: Mapping[str, Any]) -> None:
    """ValueError: a setting of generation that is not supported."""
    reasons = {
        name: "is not supported"
        for name, harmless in UNSUPPORTED.items()
        if settings.get(name) is not None and settings[name] not in harmless
    }
    if settings.get("do_sample"):
        reasons["do_sample"] = "is not supported: the search has no random tokens"
    for name in OF_ALL_TASKS:
        if (settings.get(name) or 0) != (generation_settings(model).get(name) or 0):
            reasons[name] = "is not supported for one task only"
    for name, reason in reasons.items():
        raise ValueError(
            f"the model's settings of generation have {name}, which {reason}. Delete it from a"
            " local copy of generation_config.json and config.json"
        )


def task_settings(model: LanguageModel, task: str) -> dict[str, Any]:
    """The model's settings of generation for a task."""
    older = dict(model.task_settings)
    tasks = older.pop("task_specific_params", None) or {}
    general = dict(model.generation_config) or older
    prefix = {"prefix": older["prefix"]} if older.get("prefix") else {}
    return {**prefix, **general, **(tasks.get(task) or {})}


def positions_of(model: LanguageModel, tokenizer: Tokenizer) -> int:
    """The maximum number of tokens of a text."""
    stored = stored_settings(tokenizer)
    longest = stored.get("model_max_length")
    limits = [model.config.context_length or POSITIONS]
    if isinstance(longest, int) and 0 < longest < limits[0]:
        limits.append(longest)
    return min(limits)


def generate_texts(
    model: LanguageModel,
    tokenizer: Tokenizer,
    sources: Sequence[EncodedText],
    generation: TaskGeneration,
    progress: Progress | None = None,
) -> list[str]:
    """The text of the best sequence for each source."""
    criteria = StopCriteria.of(model, "auto", (), None)
    results: list[list[int]] = [[] for _ in sources]
    processed = 0
    for numbers in batches(sources, generation):
        searched = search_batch(
            model,
            [sources[number].ids for number in numbers],
            generation.max_new_tokens,
            generation.search,
            generation.sampling,
            criteria,
            generation.min_new_tokens,
            [sources[number].admission for number in numbers],
        )
        for number, hypotheses in zip(numbers, searched, strict=True):
            results[number] = hypotheses[0].ids
        processed += len(numbers)
        if progress is not None:
            progress(processed, len(sources))
    with working(tokenizer):
        return list(tokenizer.decode_batch(results, skip_special_tokens=True))


def batches(sources: Sequence[EncodedText], generation: TaskGeneration) -> Iterator[list[int]]:
    """Numbers of sources by ascending length, in batches of at most MAX_BATCH_TOKENS tokens of all
    beams, or of one source.
    """
    group: list[int] = []
    for number in sorted(range(len(sources)), key=lambda number: len(sources[number].ids)):
        width = max(len(sources[number].ids), generation.max_new_tokens)
        if group and (len(group) + 1) * width * generation.search.beams > MAX_BATCH_TOKENS:
            yield group
            group = []
        group.append(number)
    if group:
        yield group
