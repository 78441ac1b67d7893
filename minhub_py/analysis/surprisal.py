"""Surprisal of words: log-probability, surprisal and entropy, as used in research on reading.

A text's words are joined by `sep` and encoded as one text. A token belongs to the word of its
last character, so that the space before a word belongs to the word. A word's log-probability is the
sum over its tokens.

Sources: Hale (2001) and Levy (2008) for surprisal. First words, spaces and punctuation are treated
as in the R package pangoling (Nicenboim, Emmerly and Cassani), so that the results are equal.
"""

import itertools
import math
import re
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any
from warnings import warn

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from minhub_py.analysis.measures import (
    Boundaries,
    Measures,
    add_lags,
    boundaries_of,
    correction,
    measures_of,
    renyi_entropy,
)
from minhub_py.analysis.predictions import Progress, Span, log_normalizers, predict
from minhub_py.analysis.scores import Scores
from minhub_py.analysis.segments import (
    Segments,
    as_texts,
    describe_shared,
    encode_parts,
    owners_of,
    texts_of_words,
)
from minhub_py.analysis.tokens import encode_prompts, encodings, token_strings
from minhub_py.checkpoints.tokenizers.surroundings import bos_token_id
from minhub_py.inference.arguments import check_integer, check_list, decoder_of, is_text
from minhub_py.inference.prompts import check_prompts
from minhub_py.models.base import LanguageModel
from minhub_py.system.spelling import setting
from minhub_py.system.tables import Columns

NO_MEASURES = Measures()


def word_logprobs(
    model: LanguageModel,
    tokenizer: Tokenizer,
    words: Iterable[str | None],
    *,
    by: Iterable[Hashable] | None = None,
    word_n: Iterable[float] | None = None,
    context: str | Iterable[str | None] | None = None,
    sep: str = " ",
    ignore_regex: str = "",
    bos: bool | None = None,
    correct: str | None = None,
    renyi: float | Iterable[float] | None = None,
    premise: str | None = None,
    lags: int = 0,
    progress: Progress | None = None,
) -> Columns:
    r"""Compute the log-probability, surprisal and entropy of each word, given the words before it
    in its text.

        columns = word_logprobs(model, tokenizer, ["The", "cat", "sat."])
        pandas.DataFrame(columns)

    Args:
        model: A model of this package, not an encoder-decoder.
        tokenizer: The model's tokenizer.
        words: The words of one or more texts. None, NaN and "" are missing words, which are
            skipped.
        by: Each word's text, as any hashable value; texts may be interleaved. None and NaN are
            no text. By default, all words are one text.
        word_n: Numbers that sort the words within each text. By default, words are in order.
        context: Text before the words, which is not scored: one for all texts, or one per word,
            equal within a text.
        sep: Separator between words; "" for languages without spaces.
        ignore_regex: Tokens that match contribute nothing to a word: r"^[^\w\s]$" ignores
            punctuation marks that are separate tokens.
        bos: Whether the beginning-of-text token is put before each text, so that first words have a
            context: the tokenizer's, or else config.json's bos_token_id. By default, the tokenizer
            decides.
        correct: Correction at word boundaries, for tokenizers that mark the beginning of a word
            (GPT-2, Llama): "pimentel" or "oh". The probabilities of all words after a context then
            sum to 1. analysis/measures.py states the formula and the treatment of first and last
            words.
        renyi: Orders of Rényi entropies, such as 0.5 or [0.5, 2].
        premise: Text before each word instead of its context, for PMI. "" requires `bos`.
        lags: Number of previous words of the text whose surprisal and entropy are added
            (spillover).
        progress: Called with the number of processed tokens and the total.

    Returns:
        Columns of one value per word, in the order of `words`: tokens (their number), logprob
        (nats), surprisal (bits) and entropy (bits, of the distribution of the word's first token).
        Missing words and words without a text have 0 tokens and NaN. A text's first word is
        NaN if it has no context. Words that share a token or have no token are NaN, with a warning
        that counts and lists them. Further columns: renyi_ORDER (bits, of the distribution of the
        word's first token); pmi (bits: the log-probability after the context minus that after
        `premise`); surprisal_lag1, entropy_lag1, surprisal_lag2 and so on, which skip missing
        words.

    Raises:
        ValueError: The model is an encoder-decoder or not a model of this package; the tokenizer
            does not match the model, or does not mark words for `correct`; columns differ in
            length; or a word has white space next to a `sep` that is a space.
    """
    model = decoder_of(model, "word_logprobs()")
    refuse_encoder_decoder(model)
    measures = measures_of(correct, renyi, premise, lags, ignored=bool(ignore_regex))
    words = as_texts("words", words)
    texts = texts_of_words(words, by, word_n, context)
    return segment_logprobs(
        model,
        tokenizer,
        texts,
        words,
        sep=sep,
        ignored=ignored_ids(tokenizer, ignore_regex),
        bos=bos,
        measures=measures,
        progress=progress,
    )


def target_logprobs(
    model: LanguageModel,
    tokenizer: Tokenizer,
    contexts: Iterable[str | None],
    targets: Iterable[str | None],
    *,
    sep: str = " ",
    ignore_regex: str = "",
    bos: bool | None = None,
    correct: str | None = None,
    renyi: float | Iterable[float] | None = None,
    premise: str | None = None,
    progress: Progress | None = None,
) -> Columns:
    """Compute the log-probability, surprisal and entropy of each target, given its context.

        target_logprobs(model, tokenizer, ["The cat sat on the"], ["mat"])

    Prefixes that contexts share are evaluated once.

    Args:
        model: A model of this package.
        tokenizer: The model's tokenizer.
        contexts: One context per target. None and "" are no context. For an encoder-decoder, the
            encoder's inputs.
        targets: Words or texts that follow the contexts. For an encoder-decoder, the decoder's
            outputs.
        sep: Separator between context and target; unused for an encoder-decoder.
        ignore_regex: As in `word_logprobs`.
        bos: As in `word_logprobs`; unused for an encoder-decoder.
        correct: As in `word_logprobs`.
        renyi: As in `word_logprobs`.
        premise: As in `word_logprobs`.
        progress: Called with the number of processed tokens and the total.

    Returns:
        The columns of `word_logprobs`, with one value per target.

    Raises:
        ValueError: As in `word_logprobs`, except that encoder-decoders are supported.
    """
    model = decoder_of(model, "target_logprobs()")
    contexts, targets = as_texts("contexts", contexts), as_texts("targets", targets)
    if len(contexts) != len(targets):
        raise ValueError(
            f"{len(targets)} targets for {len(contexts)} contexts: pass one target per context"
        )
    measures = measures_of(correct, renyi, premise, ignored=bool(ignore_regex))
    ignored = ignored_ids(tokenizer, ignore_regex)
    return pair_logprobs(
        model,
        tokenizer,
        contexts,
        targets,
        sep=sep,
        ignored=ignored,
        bos=bos,
        measures=measures,
        progress=progress,
    )


def next_tokens(
    model: LanguageModel,
    tokenizer: Tokenizer | None,
    contexts: Iterable[str] | Iterable[Sequence[int]],
    n: int = 10,
    *,
    progress: Progress | None = None,
) -> Columns:
    """Compute the most likely next tokens of each context. Prefixes that contexts share are
    evaluated once.

    Args:
        model: A model of this package.
        tokenizer: The model's tokenizer; None if contexts are token IDs, which leaves out the
            strings of tokens.
        contexts: Strings or lists of token IDs.
        n: Number of tokens per context.
        progress: Called with the number of processed contexts and the total.

    Returns:
        Columns with `n` rows per context, the most likely token first: context (its number, from
        0), token (its string), id, prob, and logprob (nats).

    Raises:
        ValueError: A context has no tokens; or the model or the tokenizer is invalid, as in
            `word_logprobs`.
    """
    model = decoder_of(model, "next_tokens()")
    if not is_text(contexts):
        check_list("contexts", contexts, "texts")
    n = min(check_integer("n", n, 1), model.output_size)
    prompts: list[Any] = [contexts] if isinstance(contexts, str) else list(contexts)
    if prompts and all(isinstance(text, str) for text in prompts):
        prompts = encode_prompts(model, tokenizer, prompts)
    prompts = check_prompts(model, prompts)
    ids, logprobs = np.zeros((len(prompts), n), np.int64), np.zeros((len(prompts), n), np.float32)

    def consume(logits: Tensor, rows: list[int], numbers: list[int], _: list[int]) -> None:
        logits = logits.float()
        normalizers = log_normalizers(logits)[0]
        best = logits.topk(n, dim=-1)
        logprobs[numbers] = (best.values - normalizers.unsqueeze(1))[rows].cpu()
        ids[numbers] = best.indices[rows].cpu()

    if model.encoder_decoder:
        assert model.decoder_start is not None
        spans = [Span([model.decoder_start], 1, 2, tuple(prompt)) for prompt in prompts]
    else:
        spans = [Span(prompt, len(prompt), len(prompt) + 1) for prompt in prompts]
    predict(model, spans, consume, progress)
    return Columns(
        {
            "context": np.repeat(np.arange(len(prompts)), n),
            "token": token_strings(tokenizer, ids.reshape(-1).tolist()),
            "id": ids.reshape(-1),
            "prob": np.exp(logprobs.reshape(-1).astype(np.float64)),
            "logprob": logprobs.reshape(-1),
        }
    )


def segment_logprobs(
    model: LanguageModel,
    tokenizer: Tokenizer,
    texts: Sequence[Segments],
    words: Sequence[str | None],
    *,
    sep: str = " ",
    ignored: Collection[int] = (),
    bos: bool | None = None,
    measures: Measures = NO_MEASURES,
    progress: Progress | None = None,
) -> Columns:
    """The columns of `word_logprobs` for the parts of texts. words: of each row.    ignored: IDs
    that add nothing.
    """
    count = len(words)
    bos_id = required_bos(model, tokenizer) if bos else None
    boundaries = (
        None if measures.correct is None else boundaries_of(model, tokenizer, measures.correct)
    )
    spans = []
    # for each token of each text, the row that it adds to; `count` for none
    token_rows: list[list[int]] = []
    examples: list[tuple[str, str]] = []
    undefined: set[int] = set()
    scored: list[list[int | None]] = []  # each text's rows
    for text, ids, owners, shared in encode_parts(
        model, tokenizer, texts, sep, add_special_tokens=bos is not False
    ):
        for first, last in shared:
            examples.append((text.parts[first], text.parts[last]))
            undefined.update(row for row in text.rows[first : last + 1] if row is not None)
        if bos_id is not None and ids[:1] != [bos_id]:
            ids.insert(0, bos_id)
            owners.insert(0, None)
        rows = [
            count if part is None or (row := text.rows[part]) is None else row for part in owners
        ]
        scored.append(text.rows)
        start = next((position for position, row in enumerate(rows) if row != count), len(ids))
        spans.append(
            Span(
                ids, max(start, 1), max(len(ids), 1) + (boundaries is not None and start < len(ids))
            )
        )
        token_rows.append(rows)
    columns = row_values(
        model, tokenizer, spans, token_rows, count, ignored, measures, boundaries, progress
    )
    for name in set(columns) - {"tokens"}:
        columns[name][list(undefined)] = np.nan
    if examples:
        warn(describe_shared(len(undefined), examples), stacklevel=3)
    if measures.premise is not None:
        columns["pmi"] = pmi(
            model, tokenizer, words, columns, sep=sep, ignored=ignored, bos=bos, measures=measures
        )
    add_lags(columns, scored, measures.lags)
    return columns


def pmi(
    model: LanguageModel,
    tokenizer: Tokenizer,
    words: Sequence[str | None],
    columns: Columns,
    *,
    sep: str,
    ignored: Collection[int],
    bos: bool | None,
    measures: Measures,
) -> NDArray[np.float64]:
    """The pointwise mutual information (bits) of each word and its context, relative to
    `measures.premise`.
    """
    unique = list(dict.fromkeys(words))
    alone = pair_logprobs(
        model,
        tokenizer,
        [measures.premise] * len(unique),
        unique,
        sep=sep,
        ignored=ignored,
        bos=bos,
        measures=Measures(measures.correct),
    )
    if (
        not measures.premise
        and model.decoder_start is None
        and np.isnan(alone["logprob"]).all()
        and any(unique)
    ):
        raise ValueError(
            f"an empty premise needs a token before each word: set {setting('bos', True)}, or a"
            " premise"
        )
    numbers = {word: number for number, word in enumerate(unique)}
    return (columns["logprob"] - alone["logprob"][[numbers[word] for word in words]]) / math.log(2)


def pair_logprobs(
    model: LanguageModel,
    tokenizer: Tokenizer,
    contexts: Sequence[str | None],
    targets: Sequence[str | None],
    *,
    sep: str = " ",
    ignored: Collection[int] = (),
    bos: bool | None = None,
    measures: Measures = NO_MEASURES,
    progress: Progress | None = None,
) -> Columns:
    """The columns of `target_logprobs`. ignored: token IDs that add nothing."""
    count = len(targets)
    pairs = [
        (row, context or "", target)
        for row, (context, target) in enumerate(zip(contexts, targets, strict=True))
        if target
    ]
    start = model.decoder_start
    if start is None:
        texts = [
            Segments([context, target], [None, row]) if context else Segments([target], [row])
            for row, context, target in pairs
        ]
        return segment_logprobs(
            model,
            tokenizer,
            texts,
            targets,
            sep=sep,
            ignored=ignored,
            bos=bos,
            measures=measures,
            progress=progress,
        )
    boundaries = (
        None if measures.correct is None else boundaries_of(model, tokenizer, measures.correct)
    )
    spans, token_rows = [], []
    inputs = encodings(model, tokenizer, [context for _, context, _ in pairs])
    outputs = encodings(model, tokenizer, [target for _, _, target in pairs])
    for (row, context, target), source, output in zip(pairs, inputs, outputs, strict=True):
        if not source.ids:
            raise ValueError(
                f"the context {context!r} has no tokens: pass a text that is not empty"
            )
        ids, owners, _ = owners_of(output, [target], sep)
        spans.append(
            Span([start, *ids], 1, len(ids) + 1 + (boundaries is not None), tuple(source.ids))
        )
        token_rows.append([count] + [count if part is None else row for part in owners])
    columns = row_values(
        model, tokenizer, spans, token_rows, count, ignored, measures, boundaries, progress
    )
    if measures.premise is not None:
        columns["pmi"] = pmi(
            model, tokenizer, targets, columns, sep=sep, ignored=ignored, bos=bos, measures=measures
        )
    return columns


def row_values(
    model: LanguageModel,
    tokenizer: Tokenizer,
    spans: Sequence[Span],
    token_rows: Sequence[Sequence[int]],
    count: int,
    ignored: Collection[int],
    measures: Measures,
    boundaries: Boundaries | None,
    progress: Progress | None,
) -> Columns:
    """Sum the scores of tokens into `count` rows. token_rows: the row of each token of each text;
    `count` for none.
    """
    renyi = measures.renyi_columns
    needed = {name: renyi_entropy(order) for name, order in renyi.items()}
    scores = Scores(model, spans, progress, needed | (boundaries.measures() if boundaries else {}))
    if model.decoder_start is None:
        # A special token at the start of a word's text has no context and is not part of the word.
        special = [
            id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special
        ]
        firsts = scores.offsets[:-1][np.diff(scores.offsets) > 0]
        scores.logprobs[firsts[np.isin(scores.ids[firsts], special)]] = 0
    rows = np.fromiter(itertools.chain.from_iterable(token_rows), np.int64)
    logprobs = np.where(np.isin(scores.ids, list(ignored)), 0.0, scores.logprobs)
    tokens = np.bincount(rows, minlength=count + 1)[:count]
    total = np.bincount(rows, logprobs, minlength=count + 1)[:count].astype(float)
    total[tokens == 0] = np.nan
    if boundaries is not None:
        ids = [span.ids for span in spans]
        total += correction(scores.measures, scores.slots, ids, token_rows, count, boundaries)
    unique, first = np.unique(rows, return_index=True)
    columns = Columns({"tokens": tokens, "logprob": total, "surprisal": 0.0 - total / math.log(2)})
    at_token = np.arange(len(rows)) + np.repeat(np.arange(len(spans)), np.diff(scores.offsets))
    for name, values in {
        "entropy": scores.entropies,
        **{name: scores.measures[name][at_token] for name in renyi},
    }.items():
        column = np.full(count + 1, np.nan)
        column[unique] = values[first]
        columns[name] = column[:count]
    return columns


def ignored_ids(tokenizer: Tokenizer, pattern: str) -> Collection[int]:
    """The IDs of all tokens that match a regular expression; none for "". ValueError: an invalid
    expression.
    """
    if not pattern:
        return ()
    expression = regex(pattern)
    ids = sorted(tokenizer.get_vocab().values())
    return [
        id
        for id, token in zip(ids, token_strings(tokenizer, ids), strict=True)
        if expression.search(token or "")
    ]


def regex(pattern: str) -> re.Pattern[str]:
    """The compiled `ignore_regex`. ValueError: an invalid expression."""
    if "[[:" in pattern:
        raise ValueError(
            rf"ignore_regex {pattern!r} contains a POSIX class, which Python's re does not support:"
            r" use [^\w\s] for "
            "punctuation"
        )
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"ignore_regex {pattern!r} is not a valid regular expression: {error}"
        ) from error


def refuse_encoder_decoder(model: LanguageModel) -> None:
    """ValueError: the model is an encoder-decoder."""
    if model.encoder_decoder:
        raise ValueError(
            "an encoder-decoder predicts the decoder's text, not its input: use target_logprobs(),"
            " which takes both"
        )


def required_bos(model: LanguageModel, tokenizer: Tokenizer) -> int:
    """The ID of the beginning-of-text token. ValueError: neither the tokenizer nor the model has
    one.
    """
    id = bos_token_id(tokenizer, model.config)
    if id is None:
        raise ValueError(
            f"{setting('bos', True)} needs a bos_token_id, but this model has none: leave bos unset"
        )
    return int(id)
