"""Translations and summaries of texts."""

import warnings
from collections.abc import Mapping

from r_bridge.arguments import character, vector_values
from r_bridge.convert import Character, Frame, Numeric
from r_bridge.methods.text import find_tokenizer, search_settings
from r_bridge.objects import Model, Session, Tokenizer


def translate(
    session: Session,
    model: Model,
    texts: Character,
    numbers: Numeric,
    source: str | None,
    target: str | None,
    settings: Mapping[str, object] | None,
    tokenizer: Tokenizer | None,
) -> dict[str, object]:
    """Each text's translation. numbers: of the texts, for messages."""
    from minhub_py.analysis.translation import divided_warning, translations

    tok = find_tokenizer(model, tokenizer, needed=True)
    rows = numbered(texts, numbers)
    translated = translations(
        model.module,
        tok,
        rows,
        source,
        target,
        search_settings(settings),
        session.progress,
        check=True,
    )
    if translated.divided:
        warnings.warn(divided_warning("text", translated.divided), stacklevel=2)
    return result(numbers, translated.texts)


def summarize(
    session: Session,
    model: Model,
    texts: Character,
    numbers: Numeric,
    settings: Mapping[str, object] | None,
    tokenizer: Tokenizer | None,
) -> dict[str, object]:
    """Each text's summary. numbers: of the texts, for messages."""
    from minhub_py.analysis.summaries import summaries_of

    tok = find_tokenizer(model, tokenizer, needed=True)
    rows = numbered(texts, numbers)
    summaries, _ = summaries_of(
        model.module, tok, rows, search_settings(settings), session.progress, check=True
    )
    return result(numbers, summaries)


def numbered(texts: Character, numbers: Numeric) -> dict[int, str]:
    """The texts by their numbers, without missing ones."""
    pairs = zip(vector_values(numbers), texts or [], strict=True)
    return {int(number): text for number, text in pairs if text is not None}


def result(numbers: Numeric, texts: Mapping[int, str]) -> dict[str, object]:
    """The column of the results; NA for missing texts."""
    column = character(texts.get(int(number)) for number in vector_values(numbers))
    return {"frame": Frame({"text": column}), "labels": None}
