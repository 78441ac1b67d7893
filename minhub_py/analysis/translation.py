"""Translations of texts with an encoder-decoder: `translate`."""

import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from tokenizers import Tokenizer

from minhub_py.analysis.language_names import language_code, listed
from minhub_py.analysis.predictions import Progress
from minhub_py.analysis.segments import as_texts
from minhub_py.analysis.sentences import parts
from minhub_py.analysis.text_to_text import (
    EncodedText,
    encoder_decoder_of,
    generate_texts,
    generation_of,
)
from minhub_py.checkpoints.tokenizers.languages import languages_of
from minhub_py.checkpoints.tokenizers.surroundings import stored_settings
from minhub_py.checkpoints.tokenizers.tokenizer import encode
from minhub_py.models.base import LanguageModel
from minhub_py.system.spelling import SettingError, setting

TASK = "translation"
MAX_NUMBERS = 5  # texts in a warning


@dataclass(frozen=True)
class LanguagePair:
    """How a model translates from one language to another.

    task: the name of its settings.    source: the encoder's tokens of a text.
    admission: the beginning of the decoder's sequence; see `Batch.admit`.
    """

    task: str
    source: Callable[[str], list[int]]
    admission: Mapping[str, int]


@dataclass(frozen=True)
class Translations:
    """Translations by the number of the text.

    problems: of texts without a translation.    divided: numbers of the texts that were divided.
    """

    texts: Mapping[int, str]
    problems: Mapping[int, str]
    divided: list[int]


def translate(
    model: LanguageModel,
    tokenizer: Tokenizer,
    texts: Iterable[str | None],
    *,
    source: str | None = None,
    target: str | None = None,
    beams: int | None = None,
    max_new_tokens: int | None = None,
    length_penalty: float | None = None,
    early_stopping: bool | Literal["never"] | None = None,
    no_repeat_ngram_size: int | None = None,
    progress: Progress | None = None,
) -> list[str | None]:
    """Translate texts with an encoder-decoder, such as Marian, NLLB, M2M100, mBART or T5.

        translate(model, tokenizer, ["A text."], source="English", target="German")

    The result is the best sequence of a beam search (see `beam_search`). Arguments that are None
    have the model's values, of generation_config.json or config.json. A text with more tokens than
    the model has positions is divided at the ends of sentences; the parts are translated separately
    and joined, with a warning.

    Args:
        model: An encoder-decoder.
        tokenizer: The model's tokenizer.
        texts: Texts; None for a missing text.
        source: Language of the texts: an English name, or a code such as de, deu or deu_Latn. A
            model of one pair of languages does not need it.
        target: Language of the translations, in the same way.
        beams: Number of beams. Without a value of the model, 4.
        max_new_tokens: Maximum number of tokens of a translation, or of each part of a divided
            text. Without a value of the model, 256.
        length_penalty: Values above 0 favor longer translations.
        early_stopping: When the search ends: True, False or "never".
        no_repeat_ngram_size: n-grams of this size occur at most once in a translation.
        progress: Called with the number of complete texts or parts and the total.

    Returns:
        Each text's translation; None for a missing text.

    Raises:
        ValueError: The model is not an encoder-decoder, or lacks a language; a text is empty, or
            has a sentence with more tokens than the model has positions; a setting is out of range.
    """
    rows = as_texts("texts", texts)
    present = {number: text for number, text in enumerate(rows) if text is not None}
    arguments = {
        "beams": beams,
        "max_new_tokens": max_new_tokens,
        "length_penalty": length_penalty,
        "early_stopping": early_stopping,
        "no_repeat_ngram_size": no_repeat_ngram_size,
    }
    translated = translations(
        model,
        tokenizer,
        present,
        source,
        target,
        arguments,
        progress,
        check=True,
    )
    if translated.divided:
        warnings.warn(divided_warning("text", translated.divided), stacklevel=2)
    return [translated.texts.get(number) for number in range(len(rows))]


def divided_warning(name: str, numbers: list[int]) -> str:
    """The warning about texts that were divided. name: of a text, with its number."""
    shown = ", ".join(map(str, numbers[:MAX_NUMBERS]))
    remainder = "" if len(numbers) <= MAX_NUMBERS else f" and {len(numbers) - MAX_NUMBERS} more"
    names = name if len(numbers) == 1 else f"{name}s"
    return (
        f"{names} {shown}{remainder} exceeded the positions of the model: divided at the ends of"
        " sentences, translated in parts and joined"
    )


def translations(
    model: LanguageModel,
    tokenizer: Tokenizer,
    texts: Mapping[int, str],
    source: str | None,
    target: str | None,
    arguments: Mapping[str, object],
    progress: Progress | None = None,
    *,
    check: bool = False,
) -> Translations:
    """The translations of texts by their numbers. check: raise the first problem as a ValueError."""
    model = encoder_decoder_of(model, tokenizer, "translate()")
    languages = languages_between(model, tokenizer, source, target)
    generation = generation_of(model, tokenizer, languages.task, arguments)
    encoded: dict[str, list[int]] = {}

    def ids_of(text: str) -> list[int]:
        if text not in encoded:
            encoded[text] = languages.source(generation.prefix + text)
        return encoded[text]

    def fits(text: str) -> bool:
        return len(ids_of(text)) <= generation.positions

    problems: dict[int, str] = {}
    pieces: dict[int, list[tuple[list[int], str]]] = {}
    for number, text in texts.items():
        if not text.strip():
            problems[number] = "is empty"
            continue
        divided = [(text, "")] if fits(text) else parts(text, fits)
        longest = max(len(ids_of(part)) for part, _ in divided)
        if longest > generation.positions:
            problems[number] = (
                f"has a sentence of {longest:,} tokens, and the model has"
                f" {generation.positions:,} positions: shorten or split it"
            )
        else:
            pieces[number] = [(ids_of(part), space) for part, space in divided if part.strip()]
        encoded.clear()
        if number in problems and check:
            break
    for number, problem in problems.items() if check else ():
        raise ValueError(f"text {number} {problem}")
    sources = [
        EncodedText(ids, languages.admission) for divided in pieces.values() for ids, _ in divided
    ]
    results = iter(generate_texts(model, tokenizer, sources, generation, progress))
    joined = {}
    for number, encoded_parts in pieces.items():
        sentences = [(next(results), space or " ") for _, space in encoded_parts]
        joined[number] = (
            sentences[0][0]
            if len(sentences) == 1
            else "".join(text.strip() + space for text, space in sentences[:-1])
            + sentences[-1][0].strip()
        )
    return Translations(joined, problems, [n for n, divided in pieces.items() if len(divided) > 1])


def languages_between(
    model: LanguageModel,
    tokenizer: Tokenizer,
    source: str | None,
    target: str | None,
    names: tuple[str, str] = ("source", "target"),
) -> LanguagePair:
    """How a model translates from `source` to `target`. names: of these arguments.

    SettingError: the model lacks a language.
    """
    languages = languages_of(tokenizer)
    if languages is None:
        task = task_between(model, tokenizer, source, target, names)
        return LanguagePair(task, lambda text: encode(tokenizer, text), {})
    to = code_of(names[1], target, languages.codes)
    origin = code_of(names[0], source, languages.codes) if languages.marks_source else None
    tokens = {"first": languages.first_id(to), "start": languages.start_id(to)}
    return LanguagePair(
        TASK,
        lambda text: languages.source_ids(text, source=origin, target=to),
        {name: id for name, id in tokens.items() if id is not None},
    )


def code_of(name: str, language: str | None, codes: list[str]) -> str:
    """The model's code of the language of an argument. SettingError: missing or unknown."""
    if language is None:
        raise SettingError(
            f"the model needs {setting(name)}: a name, such as English, or one of its codes:"
            f" {listed(codes)}"
        )
    try:
        return language_code(language, codes)
    except ValueError as error:
        raise SettingError(f"{setting(name)}: {error}") from error


def task_between(
    model: LanguageModel,
    tokenizer: Tokenizer,
    source: str | None,
    target: str | None,
    names: tuple[str, str],
) -> str:
    """The name of the task's settings for a model without tokens of languages: one of T5's tasks,
    or the only pair of languages.
    """
    tasks = model.task_settings.get("task_specific_params") or {}
    pairs = {
        (match[1], match[2]): name
        for name in tasks
        if (match := re.fullmatch(r"translation_(\w+)_to_(\w+)", name))
    }
    stored = stored_settings(tokenizer)
    if not pairs and stored.get("source_lang") and stored.get("target_lang"):
        pairs = {(str(stored["source_lang"]), str(stored["target_lang"])): TASK}
    if not pairs:
        if source is None and target is None:
            return TASK
        raise SettingError(
            "the model's files do not state its languages, so that they cannot be checked: omit"
            f" {setting(names[0])} and {setting(names[1])}"
        )
    sources, targets = ([*dict.fromkeys(languages)] for languages in zip(*pairs, strict=True))
    pair = tuple(
        codes[0] if language is None and len(codes) == 1 else code_of(name, language, codes)
        for name, language, codes in zip(names, (source, target), (sources, targets), strict=True)
    )
    if pair not in pairs:
        raise SettingError(
            f"the model does not translate from {pair[0]} to {pair[1]}: it translates "
            + ", ".join(f"from {first} to {second}" for first, second in pairs)
        )
    return pairs[pair]
