"""Predictability of words, as reading research uses it: log-probabilities, surprisal and entropy.

A word's log-probability is the sum over its tokens. The words of a text are joined by `sep`, the text is encoded as a
whole, and a token belongs to the word that its last character belongs to: so the space before a word is the word's own.

Sources: Hale (2001) and Levy (2008) for surprisal. First words, spaces and punctuation are treated as by the R package
pangoling (Nicenboim, Emmerly and Cassani), so that the numbers are the same.
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

from minhub_py.analysis.predictions import Progress, Wanted, log_normalizers, predict
from minhub_py.analysis.scores import Scores
from minhub_py.analysis.tokens import encodings, token_strings
from minhub_py.checkpoints.tokenizers.tokenizer import describe_unknown, unknown_characters
from minhub_py.inference.arguments import check_tokenizer, model_of, whole
from minhub_py.inference.generate import check_prompts
from minhub_py.models.base import LanguageModel
from minhub_py.system.spelling import setting

Columns = dict[str, Any]  # name -> an array, or a list; all of one length


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
    r"""How predictable each word is, given the words before it in its text.

        found = word_logprobs(model, tokenizer, ["The", "cat", "sat."])
        pandas.DataFrame(found)

    by: which text each word belongs to, in any order; without it all are one text.    word_n: numbers that give the
    order of the words in each text, if it is not that of `words`.    context: what stands before each text and is not
    scored: one for all, or one for each word, the same for all words of a text.    sep: what stands between words; ""
    for languages without spaces.    ignore_regex: tokens whose text it finds add nothing: r"^[^\w\s]$" leaves out
    punctuation that is a token of its own.    bos: whether a text begins with the model's token for that, so that its
    first word is predicted too; None: as the tokenizer does it.    progress(done, total): hears of tokens.

    Columns, in the order of `words`: tokens (how many the word has), logprob (nats), surprisal (bits), and entropy
    (bits) of what could stand in the place of the word's first token. A word that is None, NaN or "", or belongs to no
    text (`by` is None or NaN), has 0 tokens and NaN, and the text goes on without it. NaN are also a text's first word,
    which nothing predicts, and, with a warning, words that share a token, and those that have none.

    ValueError: an encoder-decoder, columns of different lengths, a tokenizer of another model, no model; white space
    where words are joined, if `sep` is a space, which would be doubled.
    """
    model = model_of(model, "word_logprobs()")
    refuse_encoder_decoder(model)
    given = as_texts("words", words)
    texts = texts_of_words(given, by, word_n, context)
    return segment_logprobs(
        model, tokenizer, texts, len(given), sep=sep, ignored=matching(tokenizer, ignore_regex), bos=bos,
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
    """How predictable each target, a word or several, is after its context. Arguments and columns: `word_logprobs`.

        target_logprobs(model, tokenizer, ["The cat sat on the"], ["mat"])

    `sep` joins a context and its target, so neither has white space there. What contexts have in common is read once.
    A target without a context, None or "", is the first of its text. For an encoder-decoder, contexts are texts for the
    encoder and targets its answers; `sep` and `bos` are unused.

    ValueError: as `word_logprobs`.
    """
    model = model_of(model, "target_logprobs()")
    before, after = as_texts("contexts", contexts), as_texts("targets", targets)
    if len(before) != len(after):
        raise ValueError(f"{len(after)} targets for {len(before)} contexts: give one for each")
    ignored = matching(tokenizer, ignore_regex)
    return pair_logprobs(model, tokenizer, before, after, sep=sep, ignored=ignored, bos=bos, progress=progress)


def next_tokens(
    model: Any,
    tokenizer: Any,
    contexts: Iterable[str] | Iterable[Sequence[int]],
    n: int = 10,
    *,
    progress: Progress | None = None,
) -> Columns:
    """The `n` likeliest next tokens of each context, which is text or ids. What contexts have in common is read once.

    Columns, with `n` rows for each context, the likeliest first: context (its number, from 0), token (its text), id,
    prob, logprob (nats). tokenizer: None if contexts are ids, and tokens are not wanted: they are None.
    ValueError: a context without a token, and as `word_logprobs`.
    """
    model = model_of(model, "next_tokens()")
    n = min(whole("n", n, 1), model.config.vocab_size)
    given: list[Any] = [contexts] if isinstance(contexts, str) else list(contexts)
    if given and all(isinstance(text, str) for text in given):
        given = [encoding.ids for encoding in encodings(model, tokenizer, given)]
    rows = check_prompts(model, given)
    ids, logprobs = np.zeros((len(rows), n), np.int64), np.zeros((len(rows), n), np.float32)

    def take(logits: Tensor, places: list[int], numbers: list[int], _: list[int]) -> None:
        logits = logits.float()
        normalizers, _entropies = log_normalizers(logits)
        best = logits.topk(n, dim=-1)
        logprobs[numbers] = (best.values - normalizers.unsqueeze(1))[places].cpu()
        ids[numbers] = best.indices[places].cpu()

    if model.encoder_decoder:
        wanted = [Wanted([model.decoder_start], 1, 2, tuple(row)) for row in rows]
    else:
        wanted = [Wanted(row, len(row), len(row) + 1) for row in rows]
    predict(model, wanted, take, progress)
    return {
        "context": np.repeat(np.arange(len(rows)), n),
        "token": token_strings(tokenizer, ids.reshape(-1).tolist()),
        "id": ids.reshape(-1),
        "prob": np.exp(logprobs.reshape(-1).astype(np.float64)),
        "logprob": logprobs.reshape(-1),
    }


@dataclass(frozen=True)
class Segments:
    """A text in parts, and the row of the result that each part is for; None for a part that is not scored."""

    parts: list[str]
    rows: list[int | None]


def texts_of_words(
    words: Sequence[str | None],
    by: Iterable[Hashable] | None,
    word_n: Iterable[float] | None,
    context: str | Iterable[str | None] | None,
) -> list[Segments]:
    """The words of each text, in order, after its context. ValueError: columns that do not fit the words."""
    groups = [0] * len(words) if by is None else column("by", by, len(words))
    order = None if word_n is None else column("word_n", word_n, len(words))
    if order is not None and any(map(is_missing, order)):
        raise ValueError("word_n has missing values: give the place of each word in its text")
    if context is None or isinstance(context, str):
        contexts: list[str | None] = [context] * len(words)
    else:
        contexts = as_texts("context", column("context", context, len(words)))
    texts: dict[Hashable, list[int]] = {}
    for row, group in enumerate(groups):
        if not is_missing(group):
            texts.setdefault(group, []).append(row)
    found = []
    for group, rows in texts.items():
        before = {contexts[row] or "" for row in rows}
        if len(before) > 1:
            advice = (
                f"pass {setting('by')}, or use target_logprobs()"
                if by is None
                else "a text has one, before its first word"
            )
            raise ValueError(f"the words of text {group!r} have different contexts: {advice}")
        [first] = before
        known = [row for row in rows if words[row]]
        if order is not None:
            known.sort(key=order.__getitem__)
        opening = [first] if first else []
        found.append(Segments(opening + [words[row] or "" for row in known], [None] * len(opening) + known))
    return found


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
    """Columns as of `word_logprobs`, of so many rows, for the parts of texts. ignored: ids that add nothing."""
    first = first_id(model) if bos else None
    wanted = []
    rows: list[list[int]] = []  # what each token of a text adds to; `count` for nothing
    shared: list[tuple[str, str]] = []
    lost: list[int] = []
    for text, ids, owners, both in joined(model, tokenizer, texts, sep, add_special_tokens=bos is not False):
        for low, high in both:
            shared.append((text.parts[low], text.parts[high]))
            lost += [row for row in text.rows[low : high + 1] if row is not None]
        if first is not None and ids[:1] != [first]:
            ids.insert(0, first)
            owners.insert(0, None)
        adds = [count if part is None or (row := text.rows[part]) is None else row for part in owners]
        start = next((place for place, row in enumerate(adds) if row != count), len(ids))
        wanted.append(Wanted(ids, max(start, 1), max(len(ids), 1)))
        rows.append(adds)
    scores = Scores(wanted)
    scores.logprobs[scores.firsts(special_ids(tokenizer))] = 0  # it begins every text, and says nothing of a word
    predict(model, wanted, scores.take, progress)
    columns = sums(scores, rows, count, ignored)
    for name in ("logprob", "surprisal", "entropy"):
        columns[name][lost] = np.nan
    if shared:
        warn(describe_shared(len(set(lost)), shared[0]), stacklevel=3)
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
    result: list[tuple[list[int], list[int]]] = []
    shared: list[tuple[str, str]] = []
    for text, ids, owners, both in joined(model, tokenizer, texts, sep):
        start = owners.index(1) if 1 in owners and text.parts[1] and not both else len(ids)
        result.append((ids[:start], ids[start:]))
        if both:
            shared.append((text.parts[0], text.parts[1]))
    if shared:
        warn(describe_shared(len(shared), shared[0]), stacklevel=3)
    return result


def joined(
    model: LanguageModel, tokenizer: Any, texts: Sequence[Segments], sep: str, *, add_special_tokens: bool = True
) -> Iterator[tuple[Segments, list[int], list[int | None], list[tuple[int, int]]]]:
    """Each text, encoded with its parts joined by `sep`, and `owners_of` its encoding. ValueError: as `target_ids`."""
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
        f"{source}{text} with white space, and sep is a space, which would double it: remove the white space, or set "
        "sep to an empty string"
    )


def describe_shared(count: int, example: tuple[str, str]) -> str:
    """The warning about words that share a token."""
    one, other = example
    return f"{count} words have no number, as a token is a part of two of them, such as of {one!r} and {other!r}"


def without_unknown(tokenizer: Any, texts: Sequence[Segments]) -> Sequence[Segments]:
    """The texts without characters that the tokenizer would leave out, which makes it lose count; with a warning."""
    if tokenizer.token_to_id("<unk>") is not None:
        return texts
    known = sorted({char for text in texts for part in text.parts for char in part})
    lost = unknown_characters(tokenizer, "".join(known))
    if not lost:
        return texts
    warn(describe_unknown(tokenizer, lost), stacklevel=4)
    table = dict.fromkeys(map(ord, lost))
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
    """As `target_logprobs`. ignored: ids that add nothing."""
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
            model, tokenizer, texts, len(targets), sep=sep, ignored=ignored, bos=bos, progress=progress
        )
    wanted, rows = [], []
    sources = encodings(model, tokenizer, [context for _, context, _ in pairs])
    answers = encodings(model, tokenizer, [target for _, _, target in pairs])
    for (row, context, target), source, answer in zip(pairs, sources, answers, strict=True):
        if not source.ids:
            raise ValueError(f"the context {context!r} has no token: give it some text")
        ids, owners, _ = owners_of(answer, [target], sep)
        wanted.append(Wanted([start, *ids], 1, len(ids) + 1, tuple(source.ids)))
        rows.append([len(targets)] + [len(targets) if part is None else row for part in owners])
    scores = Scores(wanted)
    predict(model, wanted, scores.take, progress)
    return sums(scores, rows, len(targets), ignored)


def sums(scores: Scores, rows: Sequence[Sequence[int]], count: int, ignored: Collection[int]) -> Columns:
    """Columns of so many rows, from the row that each token of each text adds to: a larger one is left out."""
    into = np.fromiter(itertools.chain.from_iterable(rows), np.int64)
    logprobs = np.where(np.isin(scores.ids, list(ignored)), 0.0, scores.logprobs)
    tokens = np.bincount(into, minlength=count + 1)[:count]
    total = np.bincount(into, logprobs, minlength=count + 1)[:count].astype(float)
    total[tokens == 0] = np.nan
    entropies = np.full(count + 1, np.nan)
    known, first = np.unique(into, return_index=True)
    entropies[known] = scores.entropies[first]
    return {
        "tokens": tokens,
        "logprob": total,
        "surprisal": 0.0 - total / math.log(2),
        "entropy": entropies[:count],
    }


def owners_of(
    encoding: Any, parts: Sequence[str], sep: str
) -> tuple[list[int], list[int | None], list[tuple[int, int]]]:
    """A text's ids, without special tokens at its end, and the part that each belongs to; None for a special token.

    Third, the first and the last part of each token that more than one have.
    """
    ends = np.cumsum([len(part) for part in parts]) + len(sep) * np.arange(len(parts))
    offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    last = np.maximum.accumulate(np.minimum(np.searchsorted(ends, offsets[:, 1]), len(parts) - 1))
    first = np.searchsorted(ends, offsets[:, 0], side="right")
    special = encoding.special_tokens_mask
    count = len(special)
    while count and special[count - 1]:
        count -= 1
    both = [(int(first[i]), int(last[i])) for i in np.flatnonzero(first < last) if not special[i]]
    owners = [None if special[i] else int(last[i]) for i in range(count)]
    return list(encoding.ids[:count]), owners, both


def matching(tokenizer: Any, pattern: str) -> Collection[int]:
    """The ids of all tokens whose text a regular expression finds. ValueError: it is none of Python's."""
    found = regex(pattern)
    if not pattern:
        return ()
    ids = sorted(tokenizer.get_vocab().values())
    return [id for id, text in zip(ids, token_strings(tokenizer, ids), strict=True) if found.search(text or "")]


def regex(pattern: str) -> re.Pattern[str]:
    """The regular expression of `ignore_regex`. ValueError: it is none of Python's."""
    if "[[:" in pattern:
        raise ValueError(
            rf"ignore_regex is Python's: it has no [[:punct:]] and the like, but [^\w\s] is, not {pattern!r}"
        )
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"ignore_regex {pattern!r} is no regular expression: {error}") from error


def refuse_encoder_decoder(model: LanguageModel) -> None:
    """ValueError: the model is one."""
    if model.encoder_decoder:
        raise ValueError("this model predicts the answer to a text, not the text: target_logprobs() takes both")


def first_id(model: LanguageModel) -> int:
    """The id that texts begin with. ValueError: the model has none."""
    id = getattr(model.config, "bos_token_id", None)
    if id is None:
        raise ValueError(f"{setting('bos', True)}: this model's config.json has no bos_token_id; leave it out")
    return int(id)


def special_ids(tokenizer: Any) -> set[int]:
    """The ids of special tokens."""
    return {id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special}


def as_texts(name: str, values: Iterable[str | None]) -> list[str | None]:
    """A column of strings, None for what is missing. ValueError: it is something else."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{name} must be a list of strings, not {brief(values)}")
    found = [None if is_missing(value) else value for value in values]
    for place, value in enumerate(found):
        if not isinstance(value, str | None):
            raise ValueError(f"{name} must be strings, but number {place} is {brief(value)}")
    return found


def column(name: str, values: Iterable[Any], count: int) -> list[Any]:
    """A column of so many values. ValueError: it has not as many."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{name} must be a list, with a value for each word, not {brief(values)}")
    found = list(values)
    if len(found) != count:
        raise ValueError(f"{name} has {len(found)} values for {count} words: give one for each")
    return found


def is_missing(value: object) -> bool:
    """Whether it is None, NaN, or what pandas has for a missing value."""
    return value is None or type(value).__name__ == "NAType" or value != value  # noqa: PLR0124
