"""Surprisal of words: log-probability, surprisal and entropy, as used in research on reading.

The words of a text are joined by `sep` and encoded as one text. A token belongs to the word of its last character, so
that the space before a word belongs to the word. A word's log-probability is the sum over its tokens.

Sources: Hale (2001) and Levy (2008) for surprisal. First words, spaces and punctuation are treated as in the R package
pangoling (Nicenboim, Emmerly and Cassani), so that the results are equal.
"""

import itertools
import math
import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from reprlib import repr as brief
from typing import Any
from warnings import warn

import numpy as np
from torch import Tensor

from minhub_py.analysis.predictions import Progress, Span, log_normalizers, predict
from minhub_py.analysis.scores import Scores
from minhub_py.analysis.tokens import encodings, is_missing, token_strings
from minhub_py.checkpoints.tokenizers.tokenizer import describe_unknown, unknown_characters
from minhub_py.inference.arguments import check_tokenizer, decoder_of, whole
from minhub_py.inference.generate import check_prompts
from minhub_py.models.base import LanguageModel
from minhub_py.system import html
from minhub_py.system.spelling import setting


class Columns(dict[str, Any]):
    """Arrays or lists of equal length, by name. Notebooks show a table."""

    def _repr_html_(self) -> str:
        return html.table(self)


def word_logprobs(
    model: Any,
    tokenizer: Any,
    words: Iterable[str | None],
    *,
    by: Iterable[Hashable] | None = None,
    word_n: Iterable[float] | None = None,
    context: str | Iterable[str | None] | None = None,
    sep: str = " ",
    ignore_regex: str = "",
    bos: bool | None = None,
    progress: Progress | None = None,
) -> Columns:
    r"""Compute the log-probability, surprisal and entropy of each word, given the words before it in its text.

        columns = word_logprobs(model, tokenizer, ["The", "cat", "sat."])
        pandas.DataFrame(columns)

    Args:
        model: A model of this package, not an encoder-decoder.
        tokenizer: The model's tokenizer.
        words: The words of one or more texts. None, NaN and "" are missing words, which are skipped.
        by: The text of each word, as any hashable value; texts may be interleaved. None and NaN are no text. By
            default, all words are one text.
        word_n: Numbers that sort the words within each text. By default, words are in order.
        context: Text before the words, which is not scored: one for all texts, or one per word, equal within a text.
        sep: Separator between words; "" for languages without spaces.
        ignore_regex: Tokens that match contribute nothing to a word: r"^[^\w\s]$" ignores punctuation marks that are
            separate tokens.
        bos: Whether the model's beginning-of-sequence token is put before each text, so that first words have a
            context. By default, the tokenizer decides.
        progress: Called with the number of processed tokens and the total.

    Returns:
        Columns of one value per word, in the order of `words`: tokens (their number), logprob (nats), surprisal (bits)
        and entropy (bits, of the distribution of the word's first token). Missing words and words without a text have 0
        tokens and NaN. The first word of a text is NaN if it has no context. Words that share a token or have no token
        are NaN, with a warning.

    Raises:
        ValueError: The model is an encoder-decoder or not a model of this package; the tokenizer does not match the
            model; columns differ in length; or a word has white space next to a `sep` that is a space.
    """
    model = decoder_of(model, "word_logprobs()")
    refuse_encoder_decoder(model)
    words = as_texts("words", words)
    texts = texts_of_words(words, by, word_n, context)
    return segment_logprobs(
        model, tokenizer, texts, len(words), sep=sep, ignored=ignored_ids(tokenizer, ignore_regex), bos=bos,
        progress=progress,
    )  # fmt: skip


def target_logprobs(
    model: Any,
    tokenizer: Any,
    contexts: Iterable[str | None],
    targets: Iterable[str | None],
    *,
    sep: str = " ",
    ignore_regex: str = "",
    bos: bool | None = None,
    progress: Progress | None = None,
) -> Columns:
    """Compute the log-probability, surprisal and entropy of each target, given its context.

        target_logprobs(model, tokenizer, ["The cat sat on the"], ["mat"])

    Prefixes that contexts share are evaluated once.

    Args:
        model: A model of this package.
        tokenizer: The model's tokenizer.
        contexts: One context per target. None and "" are no context. For an encoder-decoder, the encoder's inputs.
        targets: Words or texts that follow the contexts. For an encoder-decoder, the decoder's outputs.
        sep: Separator between context and target; unused for an encoder-decoder.
        ignore_regex: As in `word_logprobs`.
        bos: As in `word_logprobs`; unused for an encoder-decoder.
        progress: Called with the number of processed tokens and the total.

    Returns:
        The columns of `word_logprobs`, with one value per target.

    Raises:
        ValueError: As in `word_logprobs`, except that encoder-decoders are supported.
    """
    model = decoder_of(model, "target_logprobs()")
    contexts, targets = as_texts("contexts", contexts), as_texts("targets", targets)
    if len(contexts) != len(targets):
        raise ValueError(f"{len(targets)} targets for {len(contexts)} contexts: pass one target per context")
    ignored = ignored_ids(tokenizer, ignore_regex)
    return pair_logprobs(model, tokenizer, contexts, targets, sep=sep, ignored=ignored, bos=bos, progress=progress)


def next_tokens(
    model: Any,
    tokenizer: Any,
    contexts: Iterable[str] | Iterable[Sequence[int]],
    n: int = 10,
    *,
    progress: Progress | None = None,
) -> Columns:
    """Compute the most likely next tokens of each context. Prefixes that contexts share are evaluated once.

    Args:
        model: A model of this package.
        tokenizer: The model's tokenizer; None if contexts are token IDs, which leaves out the strings of tokens.
        contexts: Strings or lists of token IDs.
        n: Number of tokens per context.
        progress: Called with the number of processed contexts and the total.

    Returns:
        Columns with `n` rows per context, the most likely token first: context (its number, from 0), token (its
        string), id, prob, and logprob (nats).

    Raises:
        ValueError: A context has no tokens; or the model or the tokenizer is invalid, as in `word_logprobs`.
    """
    model = decoder_of(model, "next_tokens()")
    n = min(whole("n", n, 1), model.config.vocab_size)
    prompts: list[Any] = [contexts] if isinstance(contexts, str) else list(contexts)
    if prompts and all(isinstance(text, str) for text in prompts):
        prompts = [encoding.ids for encoding in encodings(model, tokenizer, prompts)]
    prompts = check_prompts(model, prompts)
    ids, logprobs = np.zeros((len(prompts), n), np.int64), np.zeros((len(prompts), n), np.float32)

    def consume(logits: Tensor, rows: list[int], numbers: list[int], _: list[int]) -> None:
        logits = logits.float()
        normalizers, _entropies = log_normalizers(logits)
        best = logits.topk(n, dim=-1)
        logprobs[numbers] = (best.values - normalizers.unsqueeze(1))[rows].cpu()
        ids[numbers] = best.indices[rows].cpu()

    if model.encoder_decoder:
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


@dataclass(frozen=True)
class Segments:
    """A text in parts, and the row of the result for each part; None for a part that is not scored."""

    parts: list[str]
    rows: list[int | None]


def texts_of_words(
    words: Sequence[str | None],
    by: Iterable[Hashable] | None,
    word_n: Iterable[float] | None,
    context: str | Iterable[str | None] | None,
) -> list[Segments]:
    """Group words into texts, sorted and after their context. ValueError: columns do not match the words."""
    groups = [0] * len(words) if by is None else column("by", by, len(words))
    order = [0] * len(words) if word_n is None else column("word_n", word_n, len(words))
    if any(map(is_missing, order)):
        raise ValueError("word_n has missing values: pass the position of every word in its text")
    if context is None or isinstance(context, str):
        contexts: list[str | None] = [context] * len(words)
    else:
        contexts = as_texts("context", column("context", context, len(words)))
    rows_by_group: dict[Hashable, list[int]] = {}
    for row, group in enumerate(groups):
        if not is_missing(group):
            rows_by_group.setdefault(group, []).append(row)
    texts = []
    for group, rows in rows_by_group.items():
        prefixes = {contexts[row] or "" for row in rows}
        if len(prefixes) > 1:
            advice = "use the same for all of its words"
            if by is None:
                advice = f"pass {setting('by')}, or use target_logprobs()"
            raise ValueError(f"the words of text {group!r} have different contexts: {advice}")
        prefix = [text for text in prefixes if text]
        scored = sorted(((row, word) for row in rows if (word := words[row])), key=lambda item: order[item[0]])
        parts = prefix + [word for _, word in scored]
        texts.append(Segments(parts, [None] * len(prefix) + [row for row, _ in scored]))
    return texts


def segment_logprobs(
    model: LanguageModel,
    tokenizer: Any,
    texts: Sequence[Segments],
    count: int,
    *,
    sep: str = " ",
    ignored: Collection[int] = (),
    bos: bool | None = None,
    progress: Progress | None = None,
) -> Columns:
    """The columns of `word_logprobs` for the parts of texts. count: rows.    ignored: token IDs that add nothing."""
    bos_id = bos_token_id(model) if bos else None
    spans = []
    token_rows: list[list[int]] = []  # for each token of each text, the row that it adds to; `count` for none
    examples: list[tuple[str, str]] = []
    undefined: set[int] = set()
    for text, ids, owners, shared in encode_parts(model, tokenizer, texts, sep, add_special_tokens=bos is not False):
        for first, last in shared:
            examples.append((text.parts[first], text.parts[last]))
            undefined.update(row for row in text.rows[first : last + 1] if row is not None)
        if bos_id is not None and ids[:1] != [bos_id]:
            ids.insert(0, bos_id)
            owners.insert(0, None)
        rows = [count if part is None or (row := text.rows[part]) is None else row for part in owners]
        start = next((position for position, row in enumerate(rows) if row != count), len(ids))
        spans.append(Span(ids, max(start, 1), max(len(ids), 1)))
        token_rows.append(rows)
    scores = Scores(model, spans, progress)
    # A special token at the start of a word's text has no context and is not part of the word.
    special = [id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special]
    firsts = scores.offsets[:-1][np.diff(scores.offsets) > 0]
    scores.logprobs[firsts[np.isin(scores.ids[firsts], special)]] = 0
    columns = sum_by_row(scores, token_rows, count, ignored)
    for name in ("logprob", "surprisal", "entropy"):
        columns[name][list(undefined)] = np.nan
    if examples:
        warn(describe_shared(len(undefined), examples[0]), stacklevel=3)
    return columns


def target_ids(
    model: LanguageModel, tokenizer: Any, contexts: Sequence[str], targets: Sequence[str], sep: str = " "
) -> list[tuple[list[int], list[int]]]:
    """Token IDs of each context and of its target. Both are encoded as one text, joined by `sep`.

    The list is empty for a target without known characters and, with a warning, for a target that shares a token with
    its context.

    ValueError: white space next to a `sep` that is a space; a tokenizer of another model.
    """
    texts = [Segments(list(pair), [None, None]) for pair in zip(contexts, targets, strict=True)]
    pairs: list[tuple[list[int], list[int]]] = []
    examples: list[tuple[str, str]] = []
    for text, ids, owners, shared in encode_parts(model, tokenizer, texts, sep):
        start = owners.index(1) if 1 in owners and text.parts[1] and not shared else len(ids)
        pairs.append((ids[:start], ids[start:]))
        if shared:
            examples.append((text.parts[0], text.parts[1]))
    if examples:
        warn(describe_shared(len(examples), examples[0]), stacklevel=3)
    return pairs


def encode_parts(
    model: LanguageModel, tokenizer: Any, texts: Sequence[Segments], sep: str, *, add_special_tokens: bool = True
) -> Iterator[tuple[Segments, list[int], list[int | None], list[tuple[int, int]]]]:
    """Each text, joined by `sep`, and the result of `owners_of` for its encoding. ValueError: as `target_ids`."""
    check_tokenizer(tokenizer, "encode_batch")
    for text in texts:
        for before, after in itertools.pairwise(text.parts):
            check_joint(before, after, sep)
    texts = without_unknown(tokenizer, texts)
    lines = (sep.join(text.parts) for text in texts)
    encoded = encodings(model, tokenizer, lines, add_special_tokens=add_special_tokens)
    for text, encoding in zip(texts, encoded, strict=True):
        yield text, *owners_of(encoding, text.parts, sep)


def check_joint(before: str, after: str, sep: str, source: str = "") -> None:
    """ValueError: `sep` is a space, and one of its neighbors has white space there: the space would be doubled.

    source: the file and row of the texts, for the message.
    """
    if sep != " " or not (before[-1:].isspace() or after[:1].isspace()):
        return
    text = f"{brief(after)} starts" if after[:1].isspace() else f"{brief(before)} ends"
    raise ValueError(
        f"{source}{text} with white space, and {setting('sep')} is a space, which would double it: remove the white "
        f"space, or set {setting('sep')} to an empty string"
    )


def describe_shared(count: int, example: tuple[str, str]) -> str:
    """The warning for words that share a token."""
    subject = "1 word has" if count == 1 else f"{count} words have"
    before, after = example
    return (
        f"{subject} no log-probability, because a token contains parts of two words, such as {before!r} and {after!r}: "
        "merge such words, or choose another sep"
    )


def without_unknown(tokenizer: Any, texts: Sequence[Segments]) -> Sequence[Segments]:
    """The texts without characters that the tokenizer drops, which would shift its offsets; with a warning."""
    if tokenizer.token_to_id("<unk>") is not None:
        return texts
    characters = sorted({char for text in texts for part in text.parts for char in part})
    unknown = unknown_characters(tokenizer, "".join(characters))
    if not unknown:
        return texts
    warn(describe_unknown(tokenizer, unknown), stacklevel=4)
    table = dict.fromkeys(map(ord, unknown))
    return [Segments([part.translate(table) for part in text.parts], text.rows) for text in texts]


def pair_logprobs(
    model: LanguageModel,
    tokenizer: Any,
    contexts: Sequence[str | None],
    targets: Sequence[str | None],
    *,
    sep: str = " ",
    ignored: Collection[int] = (),
    bos: bool | None = None,
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
        return segment_logprobs(model, tokenizer, texts, count, sep=sep, ignored=ignored, bos=bos, progress=progress)
    spans, token_rows = [], []
    inputs = encodings(model, tokenizer, [context for _, context, _ in pairs])
    outputs = encodings(model, tokenizer, [target for _, _, target in pairs])
    for (row, context, target), source, output in zip(pairs, inputs, outputs, strict=True):
        if not source.ids:
            raise ValueError(f"the context {context!r} has no tokens: pass a text that is not empty")
        ids, owners, _ = owners_of(output, [target], sep)
        spans.append(Span([start, *ids], 1, len(ids) + 1, tuple(source.ids)))
        token_rows.append([count] + [count if part is None else row for part in owners])
    return sum_by_row(Scores(model, spans, progress), token_rows, count, ignored)


def sum_by_row(scores: Scores, token_rows: Sequence[Sequence[int]], count: int, ignored: Collection[int]) -> Columns:
    """Sum the scores of tokens into `count` rows. token_rows: the row of each token of each text; `count` for none."""
    rows = np.fromiter(itertools.chain.from_iterable(token_rows), np.int64)
    logprobs = np.where(np.isin(scores.ids, list(ignored)), 0.0, scores.logprobs)
    tokens = np.bincount(rows, minlength=count + 1)[:count]
    total = np.bincount(rows, logprobs, minlength=count + 1)[:count].astype(float)
    total[tokens == 0] = np.nan
    entropies = np.full(count + 1, np.nan)
    unique, first = np.unique(rows, return_index=True)
    entropies[unique] = scores.entropies[first]
    return Columns(
        {
            "tokens": tokens,
            "logprob": total,
            "surprisal": 0.0 - total / math.log(2),
            "entropy": entropies[:count],
        }
    )


def owners_of(
    encoding: Any, parts: Sequence[str], sep: str
) -> tuple[list[int], list[int | None], list[tuple[int, int]]]:
    """The token IDs of an encoding without special tokens at its end, and the part of each; None for a special token.

    Third, the first and the last part of each token that spans several parts.
    """
    ends = np.cumsum([len(part) for part in parts]) + len(sep) * np.arange(len(parts))
    offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    last = np.maximum.accumulate(np.minimum(np.searchsorted(ends, offsets[:, 1]), len(parts) - 1))
    first = np.searchsorted(ends, offsets[:, 0], side="right")
    special = encoding.special_tokens_mask
    count = len(special)
    while count and special[count - 1]:
        count -= 1
    shared = [(int(first[i]), int(last[i])) for i in np.flatnonzero(first < last) if not special[i]]
    owners = [None if special[i] else int(last[i]) for i in range(count)]
    return list(encoding.ids[:count]), owners, shared


def ignored_ids(tokenizer: Any, pattern: str) -> Collection[int]:
    """The IDs of all tokens that match a regular expression; none for "". ValueError: an invalid expression."""
    if not pattern:
        return ()
    expression = regex(pattern)
    ids = sorted(tokenizer.get_vocab().values())
    return [id for id, token in zip(ids, token_strings(tokenizer, ids), strict=True) if expression.search(token or "")]


def regex(pattern: str) -> re.Pattern[str]:
    """The compiled `ignore_regex`. ValueError: an invalid expression."""
    if "[[:" in pattern:
        raise ValueError(
            rf"ignore_regex {pattern!r} contains a POSIX class, which Python's re does not support: use [^\w\s] for "
            "punctuation"
        )
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"ignore_regex {pattern!r} is not a valid regular expression: {error}") from error


def refuse_encoder_decoder(model: LanguageModel) -> None:
    """ValueError: the model is an encoder-decoder."""
    if model.encoder_decoder:
        raise ValueError(
            "an encoder-decoder predicts the decoder's text, not its input: use target_logprobs(), which takes both"
        )


def bos_token_id(model: LanguageModel) -> int:
    """The ID of the beginning-of-sequence token. ValueError: the model has none."""
    id = getattr(model.config, "bos_token_id", None)
    if id is None:
        raise ValueError(f"{setting('bos', True)} needs a bos_token_id, but this model has none: leave bos unset")
    return int(id)


def as_texts(name: str, values: Iterable[str | None]) -> list[str | None]:
    """A list of strings, with None for missing values. ValueError: other values."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{name} must be a list of strings, not {brief(values)}")
    texts = [None if is_missing(value) else value for value in values]
    for number, text in enumerate(texts):
        if not isinstance(text, str | None):
            raise ValueError(f"{name} must be strings, but number {number} is {brief(text)}")
    return texts


def column(name: str, values: Iterable[Any], count: int) -> list[Any]:
    """A list of `count` values. ValueError: not a list, or a different length."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{name} must be a list with one value per word, not {brief(values)}")
    values = list(values)
    if len(values) != count:
        raise ValueError(f"{name} has {len(values)} values for {count} words: pass one value per word")
    return values
