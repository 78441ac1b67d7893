"""Summaries of texts with an encoder-decoder: `summarize`."""

from collections.abc import Iterable, Mapping
from typing import Literal

from tokenizers import Tokenizer

from minhub_py.analysis.predictions import Progress
from minhub_py.analysis.segments import as_texts
from minhub_py.analysis.text_to_text import (
    EncodedText,
    encoder_decoder_of,
    generate_texts,
    generation_of,
)
from minhub_py.checkpoints.tokenizers.tokenizer import encode
from minhub_py.models.base import LanguageModel


def summarize(
    model: LanguageModel,
    tokenizer: Tokenizer,
    texts: Iterable[str | None],
    *,
    beams: int | None = None,
    max_new_tokens: int | None = None,
    min_new_tokens: int | None = None,
    length_penalty: float | None = None,
    early_stopping: bool | Literal["never"] | None = None,
    no_repeat_ngram_size: int | None = None,
    progress: Progress | None = None,
) -> list[str | None]:
    """Summarize texts with an encoder-decoder, such as BART, Pegasus or T5.

        summarize(model, tokenizer, ["A long article about …"])

    The result is the best sequence of a beam search (see `beam_search`). Arguments that are None
    have the model's values: of "summarization" in task_specific_params of config.json, else of
    generation_config.json. T5's prefix, "summarize: ", is one of these settings.

    Args:
        model: An encoder-decoder.
        tokenizer: The model's tokenizer.
        texts: Texts; None for a missing text.
        beams: Number of beams. Without a value of the model, 4.
        max_new_tokens: Maximum number of tokens of a summary. Without a value of the model, 256.
        min_new_tokens: Minimum number of tokens of a summary.
        length_penalty: Values above 0 favor longer summaries.
        early_stopping: When the search ends: True, False or "never".
        no_repeat_ngram_size: n-grams of this size occur at most once in a summary.
        progress: Called with the number of complete texts and the total.

    Returns:
        Each text's summary; None for a missing text.

    Raises:
        ValueError: The model is not an encoder-decoder; a text is empty or has more tokens than the
            model has positions; a setting is out of range.
    """
    rows = as_texts("texts", texts)
    arguments = {
        "beams": beams,
        "max_new_tokens": max_new_tokens,
        "min_new_tokens": min_new_tokens,
        "length_penalty": length_penalty,
        "early_stopping": early_stopping,
        "no_repeat_ngram_size": no_repeat_ngram_size,
    }
    present = {number: text for number, text in enumerate(rows) if text is not None}
    summaries, _ = summaries_of(model, tokenizer, present, arguments, progress, check=True)
    return [summaries.get(number) for number in range(len(rows))]


def summaries_of(
    model: LanguageModel,
    tokenizer: Tokenizer,
    texts: Mapping[int, str],
    arguments: Mapping[str, object],
    progress: Progress | None = None,
    *,
    check: bool = False,
) -> tuple[dict[int, str], dict[int, str]]:
    """The summaries of texts, and the problems of those without one, by their numbers.

    check: raise the first problem as a ValueError.
    """
    model = encoder_decoder_of(model, tokenizer, "summarize()")
    generation = generation_of(model, tokenizer, "summarization", arguments)
    sources, problems = {}, {}
    for number, text in texts.items():
        ids = encode(tokenizer, generation.prefix + text) if text.strip() else []
        if not ids:
            problems[number] = "is empty"
        elif len(ids) > generation.positions:
            problems[number] = (
                f"has {len(ids):,} tokens, and the model has {generation.positions:,} positions:"
                " shorten or split it"
            )
        else:
            sources[number] = EncodedText(ids)
    for number, problem in problems.items() if check else ():
        raise ValueError(f"text {number} {problem}")
    sequences = generate_texts(model, tokenizer, list(sources.values()), generation, progress)
    return dict(zip(sources, sequences, strict=True)), problems
