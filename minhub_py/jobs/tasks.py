"""Operations on the texts of a table. `TASKS` has one entry per operation.

A task receives the texts of a chunk and returns the results of each text: one row or, for words,
several rows. Rows without a text, or without a value in the task's additional column, are not
passed to the task; all their results are missing.
"""

import math
import re
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from minhub_py.system.json_text import JsonMapping, JsonObject
from minhub_py.system.table_writers import Column

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from minhub_py.analysis.token_labels import Aggregation
    from minhub_py.inference.speculative import DraftModel
    from minhub_py.models.base import LanguageModel
    from minhub_py.models.encoder import Encoder

# prompt and new tokens that are generated in one batch, which bounds the KV cache's memory
MAX_BATCH_TOKENS = 16384
NEEDS_TARGETS = (
    "an encoder-decoder model predicts the answer to a prompt, not the prompt: use minhub score"
    " --target COLUMN --out OUT, which reads both"
)

Results = list[JsonObject]


@dataclass(frozen=True)
class RowText:
    """A text. row: its number in the entire input, from 0.    extra: the value of the task's
    additional column.

    ids: at least one token ID, except for a word.
    """

    row: int
    text: str
    ids: list[int]
    extra: str = ""


@dataclass(frozen=True)
class Task:
    """An operation on texts.

    run: called as run(model, tokenizer, texts, **settings); returns the rows of results for each
    text.
    columns: the columns of the results.
    chunk: the number of texts computed together, the most that is lost in a kill.
    verb: the label of the progress bar.
    exact: with the C decoder, results are bitwise identical for any number of threads. Otherwise,
        and without the decoder, a resumed job requires the same number.
    models: the models that compute the task.
    more_columns: further columns of the results, which depend on the settings.
    extra: the option that names an additional input column: "target", or "by", whose values
        identify the text to which a word belongs. With "by", a chunk contains complete texts.
    options: the command's names of the options "column" and `extra`, where they differ.
    """

    run: Callable[..., list[Results]]
    columns: tuple[Column, ...]
    chunk: int
    verb: str
    exact: bool = True
    extra: Literal["", "target", "by"] = ""
    models: Literal["all", "decoders", "encoders"] = "decoders"
    more_columns: Callable[[JsonMapping], Sequence[Column]] | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def all_columns(self, settings: Mapping[str, object]) -> Sequence[Column]:
        """The columns of the results with these settings."""
        return (*self.columns, *(() if self.more_columns is None else self.more_columns(settings)))


def measures(tokenizer: "Tokenizer", ids: Sequence[int], logprobs: Sequence[float]) -> JsonObject:
    """Perplexity and related measures of a text. logprobs: of the last or all of its token IDs, in
    nats.
    """
    nats = -math.fsum(logprobs)
    characters = len(tokenizer.decode(list(ids[len(ids) - len(logprobs) :])))
    mean = nats / len(logprobs)
    return {
        "tokens": len(logprobs),
        "characters": characters,
        "nats": nats,
        "nats_per_token": mean,
        "perplexity": math.exp(mean) if mean < 700 else math.inf,
        "bits_per_character": nats / math.log(2) / max(characters, 1),
    }


def score(
    model: "LanguageModel", tokenizer: "Tokenizer", texts: Sequence[RowText]
) -> list[Results]:
    """The measures of each text. They are missing for a text of one token, which has no predicted
    token.
    """
    from minhub_py.inference.generate import score as log_probabilities

    if model.encoder_decoder:
        raise ValueError(NEEDS_TARGETS)
    scores = iter(log_probabilities(model, [text.ids for text in texts if len(text.ids) > 1]))
    no_result: JsonObject = {**dict.fromkeys(column.name for column in SCORE), "tokens": 0}
    return [
        [measures(tokenizer, text.ids, next(scores).tolist()) if len(text.ids) > 1 else no_result]
        for text in texts
    ]


def score_targets(
    model: "LanguageModel", tokenizer: "Tokenizer", texts: Sequence[RowText], *, sep: str = " "
) -> list[Results]:
    """The measures of each text's target: the text's continuation after `sep`, or an
    encoder-decoder's answer.
    """
    from minhub_py.analysis.segments import target_ids
    from minhub_py.checkpoints.tokenizers.tokenizer import encode
    from minhub_py.inference.generate import score as log_probabilities

    if model.encoder_decoder:  # an answer includes its special tokens
        pairs = [
            (text.ids, encode(tokenizer, text.extra, add_special_tokens=True)) for text in texts
        ]
    else:
        pairs = target_ids(
            model, tokenizer, [text.text for text in texts], [text.extra for text in texts], sep
        )
    complete = [(prompt, target) for prompt, target in pairs if prompt and target]
    targets = [target for _, target in complete]
    scores = iter(log_probabilities(model, [prompt for prompt, _ in complete], targets=targets))
    return [
        [measures(tokenizer, target, next(scores).tolist())] if prompt and target else []
        for prompt, target in pairs
    ]


def generate(
    model: "LanguageModel",
    tokenizer: "Tokenizer",
    texts: Sequence[RowText],
    *,
    seed: int,
    stop: Sequence[str],
    draft: str | None = None,
    **settings: Any,
) -> list[Results]:
    """The continuation of each text. Row n has the seed `seed` + n, so its result does not depend
    on the chunk.

    settings: of `generate`. By default, the model's own.
    draft: the identifier of a draft model, or "mtp" for the model's head for multi-token
    prediction.
    """
    from minhub_py.chat.defaults import completion_settings
    from minhub_py.checkpoints.tokenizers.tokenizer import decode_stream, until, without_end
    from minhub_py.inference.generate import generate as generate_ids

    settings = completion_settings(model, settings)
    if settings.get("logit_bias"):  # a replayed job has the keys of JSON, which are strings
        settings["logit_bias"] = {int(id): bias for id, bias in settings["logit_bias"].items()}
    drafts: Any = draft
    if draft not in (None, "mtp"):
        drafts = draft_model(draft, tokenizer, str(next(model.parameters()).device))
    prompts = texts
    if not model.encoder_decoder:
        prompts = [replace(text, ids=without_end(tokenizer, text.ids)) for text in texts]
    results: dict[int, Results] = {}
    beams = settings.get("beams") or 1
    for batch in memory_batches(
        [text for text in prompts if text.ids], settings["max_new_tokens"], beams
    ):
        seeds = [(seed + text.row) % 2**63 for text in batch]
        outputs = generate_ids(
            model,
            [text.ids for text in batch],
            seed=seeds,
            stop=stop,
            tokenizer=tokenizer,
            draft=drafts,
            **settings,
        )
        for text, ids in zip(batch, outputs, strict=True):
            context = [] if model.encoder_decoder else text.ids
            results[text.row] = [
                {"generated": "".join(until(decode_stream(tokenizer, ids, context), stop))}
            ]
    return [results.get(text.row, []) for text in texts]


def translate(
    model: "LanguageModel",
    tokenizer: "Tokenizer",
    texts: Sequence[RowText],
    *,
    source: str | None,
    target: str | None,
    **settings: Any,
) -> list[Results]:
    """The translation of each text."""
    from minhub_py.analysis.translation import divided_warning, translations

    translated = translations(
        model, tokenizer, {text.row: text.text for text in texts}, source, target, settings
    )
    note_problems(texts, translated.problems)
    for number in translated.divided:
        warnings.warn(divided_warning("row", [number + 1]), stacklevel=2)
    return [
        [{"translation": translated.texts[text.row]}] if text.row in translated.texts else []
        for text in texts
    ]


def summarize(
    model: "LanguageModel", tokenizer: "Tokenizer", texts: Sequence[RowText], **settings: Any
) -> list[Results]:
    """The summary of each text."""
    from minhub_py.analysis.summaries import summaries_of

    summaries, problems = summaries_of(
        model, tokenizer, {text.row: text.text for text in texts}, settings
    )
    note_problems(texts, problems)
    return [[{"summary": summaries[text.row]}] if text.row in summaries else [] for text in texts]


@lru_cache(1)  # for all chunks
def draft_model(identifier: str, tokenizer: "Tokenizer", device: str) -> "DraftModel":
    """The draft model of `generate`. ValueError: it has another tokenizer, or cannot make drafts."""
    from minhub_py.checkpoints.tokenizers.tokenizer import tokenizer_from_pretrained
    from minhub_py.inference.speculative import DraftModel
    from minhub_py.loading.pretrained import from_pretrained

    if tokenizer_from_pretrained(identifier).get_vocab() != tokenizer.get_vocab():
        raise ValueError("--draft: this model has another tokenizer than MODEL")
    return DraftModel(from_pretrained(identifier, device=device))


def memory_batches(
    texts: Sequence[RowText], max_new_tokens: int, beams: int = 1
) -> Iterator[Sequence[RowText]]:
    """Split texts into consecutive batches of at most `MAX_BATCH_TOKENS` padded and new tokens of
    all beams, or of one text.
    """
    start, longest = 0, 0
    for index, text in enumerate(texts):
        longest = max(longest, len(text.ids))
        size = (index + 1 - start) * (longest + max_new_tokens) * beams
        if index > start and size > MAX_BATCH_TOKENS:
            yield texts[start:index]
            start, longest = index, len(text.ids)
    if texts[start:]:
        yield texts[start:]


def words(
    model: "LanguageModel", tokenizer: "Tokenizer", texts: Sequence[RowText], **settings: object
) -> list[Results]:
    """The surprisal of each word of each text, one row per word. Words are separated by white
    space.
    """
    pairs = [(index, word) for index, text in enumerate(texts) for word in text.text.split()]
    values = word_values(
        model, tokenizer, [word for _, word in pairs], [index for index, _ in pairs], **settings
    )
    results: list[Results] = [[] for _ in texts]
    for (index, word), row in zip(pairs, values, strict=True):
        results[index].append({"word_n": len(results[index]) + 1, "word": word, **row})
    return results


def words_by(
    model: "LanguageModel", tokenizer: "Tokenizer", texts: Sequence[RowText], **settings: object
) -> list[Results]:
    """The surprisal of words that are rows. Words with the same key belong to one text."""
    words, keys = [text.text for text in texts], [text.extra for text in texts]
    return [[row] for row in word_values(model, tokenizer, words, keys, **settings)]


def word_values(
    model: "LanguageModel",
    tokenizer: "Tokenizer",
    words: Sequence[str],
    by: Sequence[Hashable],
    **settings: Any,
) -> Iterator[JsonObject]:
    """The values of `word_logprobs` for each word, with None instead of NaN."""
    from minhub_py.analysis.surprisal import word_logprobs

    if model.encoder_decoder:
        raise ValueError(NEEDS_TARGETS)
    columns = word_logprobs(model, tokenizer, words, by=by, **settings)
    names = [column.name for column in (*WORD_VALUES, *word_measures(settings))]
    for values in zip(*(columns[name].tolist() for name in names), strict=True):
        yield {
            name: None if math.isnan(value) else value
            for name, value in zip(names, values, strict=True)
        }


def word_measures(settings: JsonMapping) -> list[Column]:
    """The further columns of words."""
    from minhub_py.analysis.measures import measures_of

    requested = {
        name: settings[name] for name in ("correct", "renyi", "premise", "lags") if name in settings
    }
    return [Column(name, "float64") for name in measures_of(**requested).columns]


def classification(settings: JsonMapping) -> Sequence[Column]:
    """The columns of `classify`."""
    from minhub_py.analysis.columns import value_names

    labels = settings["labels"]
    if settings.get("regression"):
        return [Column(name, "float64") for name in value_names(labels)]
    return [
        Column("label", "string"),
        *(Column(name, "float64") for name in ("prob", *(f"prob_{x}" for x in labels))),
    ]


def pairs(
    model: "LanguageModel", tokenizer: "Tokenizer", texts: Sequence[RowText], *, bos: bool | None
) -> list[Results]:
    """The log-probabilities of the two sentences of each pair, and whether the first is larger (1
    or 0).
    """
    from minhub_py.analysis.minimal_pairs import sentence_logprobs

    if model.encoder_decoder:
        raise ValueError(NEEDS_TARGETS)
    sentences = [text.text for text in texts] + [text.extra for text in texts]
    logprobs = sentence_logprobs(model, tokenizer, sentences, bos)
    results: list[Results] = []
    for good, bad in zip(logprobs[: len(texts)], logprobs[len(texts) :], strict=True):
        values = {
            "logprob_good": good,
            "logprob_bad": bad,
            "difference": good - bad,
            "correct": int(good > bad),
        }
        results.append([] if math.isnan(good - bad) else [values])
    return results


def embed(
    model: "LanguageModel", tokenizer: "Tokenizer", texts: Sequence[RowText], **settings: Any
) -> list[Results]:
    """The embedding of each text. Numbers have the fewest digits that identify a float32 value."""
    from minhub_py.analysis.embeddings import embed as embed_texts

    vectors = embed_texts(model, tokenizer, [text.text for text in texts], **settings)
    if isinstance(vectors, list):
        raise ValueError(
            "the model has one vector per token (ColBERT), which a table cannot contain: use embed()"
            " in Python, or text_embeddings() in R"
        )
    if vectors.is_sparse:
        raise ValueError("the model has sparse embeddings (SPLADE): add --sparse")
    return [
        [{"embedding": [float(str(number)) for number in vector]}] for vector in vectors.numpy()
    ]


def embed_sparse(
    model: "LanguageModel", tokenizer: "Tokenizer", texts: Sequence[RowText], **settings: Any
) -> list[Results]:
    """The tokens of the sparse embedding of each text, and their weights, the largest first."""
    from minhub_py.analysis.embeddings import embed as embed_texts
    from minhub_py.analysis.tokens import token_strings

    rows = [text.text for text in texts]
    vectors = embed_texts(model, tokenizer, rows, pool="splade", **settings)
    results: list[Results] = []
    for vector in vectors:
        weights, order = vector.coalesce().values().sort(descending=True)
        tokens = token_strings(tokenizer, vector.coalesce().indices()[0][order].tolist())
        values = zip(tokens, plain(weights.numpy()), strict=True)
        results.append([{"token": token, "weight": weight} for token, weight in values])
    return results


def embed_words(
    model: "LanguageModel", tokenizer: "Tokenizer", texts: Sequence[RowText], **settings: Any
) -> list[Results]:
    """The words of each text and their embeddings."""
    from minhub_py.analysis.word_embeddings import word_embeddings

    columns, vectors = word_embeddings(model, tokenizer, [text.text for text in texts], **settings)
    results: list[Results] = [[] for _ in texts]
    rows = zip(columns["text"], columns["word_n"], columns["word"], vectors.numpy(), strict=True)
    for number, word_n, word, vector in rows:
        embedding = [float(str(value)) for value in vector]
        results[number].append({"word_n": int(word_n) + 1, "word": word, "embedding": embedding})
    return results


def activations(
    model: "LanguageModel",
    tokenizer: "Tokenizer",
    texts: Sequence[RowText],
    *,
    at: str,
    pool: Literal["none", "last", "mean"],
) -> list[Results]:
    """The values at a point of the model: a row per token, or the row of each text."""
    from minhub_py.analysis.activations import activations as activations_of

    limit = None if model.encoder_decoder else model.config.context_length
    short = [number for number, text in enumerate(texts) if limit is None or len(text.ids) <= limit]
    note_rows(
        [text for text in texts if limit and len(text.ids) > limit],
        f"the text has more than {limit:,} tokens",
    )
    results: list[Results] = [[] for _ in texts]
    if not short:
        return results
    result = activations_of(
        model, tokenizer, [texts[number].ids for number in short], at, pool=pool
    )
    if len(result.values) != 1:
        raise ValueError(
            f"--at {at} names {len(result.values)} points: name one, such as"
            f" {next(iter(result.values))}"
        )
    [values] = result.values.values()
    columns = zip(result.texts, result.positions, result.tokens, values.numpy(), strict=True)
    for number, position, token, vector in columns:
        location = {"token_n": position + 1 if position >= 0 else None, "token": token}
        results[short[number]].append(
            {**location, "activation": [float(str(value)) for value in vector]}
        )
    return results


def classify(
    model: "LanguageModel",
    tokenizer: "Tokenizer",
    texts: Sequence[RowText],
    *,
    labels: Sequence[str],
    zero_shot: bool,
    hypothesis: str,
    multi_label: bool,
    regression: bool = False,
) -> list[Results]:
    """The most likely label of each text, and the probability of each label; or the value of a
    regression.
    """
    from minhub_py.analysis.classify import classify as classify_texts

    columns = classify_texts(
        model,
        tokenizer,
        [text.text for text in texts],
        labels if zero_shot else None,
        hypothesis=hypothesis,
        multi_label=multi_label,
    )
    return [
        [dict(zip(columns, values, strict=True))]
        for values in zip(*map(plain, columns.values()), strict=True)
    ]


def annotate(
    model: "LanguageModel",
    tokenizer: "Tokenizer",
    texts: Sequence[RowText],
    *,
    codebook: JsonMapping,
    **settings: Any,
) -> list[Results]:
    """The most likely label of each text, its margin, and the probability of each label."""
    from minhub_py.analysis.annotate import annotate as annotate_texts

    columns = annotate_texts(model, tokenizer, [text.text for text in texts], codebook, **settings)
    return [
        [dict(zip(columns, values, strict=True))]
        for values in zip(*map(plain, columns.values()), strict=True)
    ]


def decide(
    model: "LanguageModel",
    tokenizer: "Tokenizer",
    texts: Sequence[RowText],
    *,
    questions: Mapping[str, JsonObject],
    orders: int,
    options: bool,
    seed: int,
) -> list[Results]:
    """The answer to each question about each text, one row per question."""
    from minhub_py.analysis.decisions import answer

    result, problems = answer(
        model, tokenizer, [text.text for text in texts], questions, orders=orders, seed=seed
    )
    for number, problem in problems.items():
        note_rows([texts[number]], f"the text {problem}")
    columns = result.table(options)
    numbers = columns.pop("text").tolist()
    results: list[Results] = [[] for _ in texts]
    for number, *values in zip(numbers, *map(plain, columns.values()), strict=True):
        if number not in problems:
            results[number].append(dict(zip(columns, values, strict=True)))
    return results


def decision_options(settings: Mapping[str, object]) -> Sequence[Column]:
    """The columns of the options of all questions."""
    from minhub_py.analysis.questions import ANY_LABELS, parse_questions

    if not settings["options"]:
        return []
    questions = parse_questions(settings["questions"], ANY_LABELS)
    names = dict.fromkeys(option for question in questions for option in question.options)
    return [Column(f"prob_{name}", "float64") for name in names]


def rerank(
    model: "LanguageModel",
    tokenizer: "Tokenizer",
    texts: Sequence[RowText],
    *,
    query: str,
    raw_scores: bool,
    instruction: str | None,
) -> list[Results]:
    """The relevance of each text for the query."""
    from minhub_py.analysis.classify import rerank as rerank_texts

    columns = rerank_texts(
        model,
        tokenizer,
        query,
        [text.text for text in texts],
        raw_scores=raw_scores,
        instruction=instruction,
    )
    scores = dict(zip(columns["text"].tolist(), plain(columns["score"]), strict=True))
    return [[{"score": scores[number]}] for number in range(len(texts))]


def masked(
    model: "Encoder", tokenizer: "Tokenizer", texts: Sequence[RowText], *, n: int
) -> list[Results]:
    """The most likely tokens at each mask of each text, `n` rows per mask."""
    from minhub_py.analysis.masked import limit_of, predict_masks

    pattern = mask_pattern(tokenizer)
    with_mask = [number for number, text in enumerate(texts) if re.search(pattern, text.text)]
    results: list[Results] = [[] for _ in texts]
    if with_mask:
        columns, truncated = predict_masks(
            model, tokenizer, [texts[number].text for number in with_mask], n
        )
        for number, mask, token, prob, logprob in zip(
            *map(plain, (columns[name] for name in ("text", "mask", "token", "prob", "logprob"))),
            strict=True,
        ):
            results[with_mask[number]].append(
                {"mask_n": mask + 1, "token": token, "prob": prob, "logprob": logprob}
            )
        note_rows(
            [texts[with_mask[number]] for number in truncated],
            f"a mask is beyond {limit_of(model)}",
        )
    return results


def masked_targets(
    model: "Encoder", tokenizer: "Tokenizer", texts: Sequence[RowText]
) -> list[Results]:
    """The log-probability of each target in place of the mask of its text."""
    from minhub_py.analysis.masked import limit_of, score_targets

    results: list[Results] = [[] for _ in texts]
    pattern = mask_pattern(tokenizer)
    parts = {number: re.split(pattern, text.text) for number, text in enumerate(texts)}
    numbers = [number for number, part in parts.items() if len(part) == 2]
    if numbers:
        columns, truncated = score_targets(
            model,
            tokenizer,
            [parts[number][0].strip() for number in numbers],
            [texts[number].extra for number in numbers],
            [parts[number][1].strip() for number in numbers],
        )
        for number, tokens, logprob in zip(numbers, *map(plain, columns.values()), strict=True):
            results[number] = [{"tokens": tokens, "logprob": logprob}]
        note_rows(
            [texts[numbers[number]] for number in truncated],
            f"the target is beyond {limit_of(model)}",
        )
    return results


def pseudo(
    model: "Encoder", tokenizer: "Tokenizer", texts: Sequence[RowText], *, method: str
) -> list[Results]:
    """The pseudo-log-likelihood and the pseudo-perplexity of each text."""
    return [
        (
            [
                {
                    "tokens": len(rows),
                    "logprob": sum(row["logprob"] for row in rows),
                    "perplexity": math.exp(
                        min(-sum(row["logprob"] for row in rows) / len(rows), 709)
                    ),
                }
            ]
            if rows
            else []
        )
        for rows in pseudo_tokens(model, tokenizer, texts, method=method)
    ]


def pseudo_tokens(
    model: "Encoder", tokenizer: "Tokenizer", texts: Sequence[RowText], *, method: str
) -> list[Results]:
    """The log-probability of each token of each text, given the other tokens, one row per token."""
    from minhub_py.analysis.masked import limit_of, score_tokens

    columns, truncated = score_tokens(model, tokenizer, [text.text for text in texts], method)
    results: list[Results] = [[] for _ in texts]
    for number, token, logprob in zip(
        *(plain(columns[name]) for name in ("text", "token", "logprob")), strict=True
    ):
        results[number].append(
            {"token_n": len(results[number]) + 1, "token": token, "logprob": logprob}
        )
    note_rows([texts[number] for number in truncated], f"the text is beyond {limit_of(model)}")
    return results


def entities(
    model: "Encoder",
    tokenizer: "Tokenizer",
    texts: Sequence[RowText],
    *,
    aggregation: "Aggregation",
    ignore: Sequence[str],
    stride: int | None = None,
) -> list[Results]:
    """The entities of each text, one row per entity."""
    from minhub_py.analysis.token_labels import classify_tokens

    columns = classify_tokens(
        model,
        tokenizer,
        [text.text for text in texts],
        aggregation=aggregation,
        ignore=tuple(ignore),
        stride=stride,
    )
    names, results = [column.name for column in ENTITIES], list[Results]([] for _ in texts)
    for number, *values in zip(*(plain(columns[name]) for name in ("text", *names)), strict=True):
        results[number].append(dict(zip(names, values, strict=True)))
    return results


def answer(
    model: "Encoder",
    tokenizer: "Tokenizer",
    texts: Sequence[RowText],
    *,
    question: str,
    **settings: Any,
) -> list[Results]:
    """The answers to the question in each text, one row per answer."""
    from minhub_py.analysis.answers import answer_questions

    columns = answer_questions(
        model, tokenizer, question, [text.text for text in texts], **settings
    )
    names, results = [column.name for column in ANSWERS], list[Results]([] for _ in texts)
    for number, *values in zip(*(plain(columns[name]) for name in ("text", *names)), strict=True):
        results[number].append(dict(zip(names, values, strict=True)))
    return results


def note_rows(texts: Sequence[RowText], problem: str) -> None:
    """Note why rows have no result."""
    for text in texts:
        warnings.warn(f"row {text.row + 1} has no result: {problem}", stacklevel=2)


def note_problems(texts: Sequence[RowText], problems: Mapping[int, str]) -> None:
    """Note the problems of rows, by their numbers."""
    for text in texts:
        if text.row in problems:
            note_rows([text], f"the text {problems[text.row]}")


def mask_pattern(tokenizer: "Tokenizer") -> str:
    """A pattern that matches a mask: [MASK], or the tokenizer's own spelling."""
    from minhub_py.analysis.masked import mask_of

    return f"{re.escape('[MASK]')}|{re.escape(mask_of(tokenizer))}"


def plain(values: Any) -> list[object]:
    """A column as values of Python. Numbers in float32 have the fewest digits that identify them;
    NaN is None.
    """
    if not hasattr(values, "dtype"):
        return list(values)
    values = (
        [float(str(value)) for value in values]
        if str(values.dtype) == "float32"
        else values.tolist()
    )
    return [None if isinstance(value, float) and math.isnan(value) else value for value in values]


DECISION = (
    Column("question", "string"),
    Column("type", "string"),
    Column("answer", "string"),
    Column("prob", "float64"),
    Column("confidence", "float64"),
    Column("score", "float64"),
    Column("spread", "float64"),
    Column("temperature", "float64"),
)
SCORE = (
    Column("tokens", "int64"),
    Column("characters", "int64"),
    Column("nats", "float64"),
    Column("nats_per_token", "float64"),
    Column("perplexity", "float64"),
    Column("bits_per_character", "float64"),
)
WORD_VALUES = (
    Column("tokens", "int64"),
    Column("logprob", "float64"),
    Column("surprisal", "float64"),
    Column("entropy", "float64"),
)
PAIRS = (
    Column("logprob_good", "float64"),
    Column("logprob_bad", "float64"),
    Column("difference", "float64"),
    Column("correct", "int64"),
)
ACTIVATIONS = (
    Column("token_n", "int64"),
    Column("token", "string"),
    Column("activation", "vector"),
)
EMBED_WORDS = (
    Column("word_n", "int64"),
    Column("word", "string"),
    Column("embedding", "vector"),
)
SPARSE = (Column("token", "string"), Column("weight", "float64"))
MASKED = (
    Column("mask_n", "int64"),
    Column("token", "string"),
    Column("prob", "float64"),
    Column("logprob", "float64"),
)
PSEUDO = (Column("tokens", "int64"), Column("logprob", "float64"), Column("perplexity", "float64"))
PSEUDO_TOKENS = (
    Column("token_n", "int64"),
    Column("token", "string"),
    Column("logprob", "float64"),
)
ENTITIES = (
    Column("word", "string"),
    Column("start", "int64"),
    Column("end", "int64"),
    Column("label", "string"),
    Column("prob", "float64"),
)
ANSWERS = (
    Column("rank", "int64"),
    Column("answer", "string"),
    Column("start", "int64"),
    Column("end", "int64"),
    Column("score", "float64"),
)
WORDS = (Column("word_n", "int64"), Column("word", "string"), *WORD_VALUES)

TASKS: Mapping[str, Task] = {
    "score": Task(score, SCORE, 256, "Scoring"),
    "score_targets": Task(score_targets, SCORE, 256, "Scoring", extra="target"),
    "generate": Task(generate, (Column("generated", "string"),), 64, "Generating"),
    "translate": Task(translate, (Column("translation", "string"),), 64, "Translating"),
    "summarize": Task(summarize, (Column("summary", "string"),), 64, "Summarizing"),
    "words": Task(words, WORDS, 128, "Scoring words", more_columns=word_measures),
    "words_by": Task(
        words_by, WORD_VALUES, 1024, "Scoring words", extra="by", more_columns=word_measures
    ),
    "pairs": Task(
        pairs,
        PAIRS,
        256,
        "Scoring pairs",
        extra="target",
        options={"column": "good", "target": "bad"},
    ),
    "embed": Task(
        embed, (Column("embedding", "vector"),), 256, "Embedding", exact=False, models="all"
    ),
    "embed_sparse": Task(embed_sparse, SPARSE, 256, "Embedding", exact=False, models="encoders"),
    "embed_words": Task(embed_words, EMBED_WORDS, 64, "Embedding", exact=False, models="all"),
    "activations": Task(activations, ACTIVATIONS, 64, "Computing", exact=False, models="all"),
    "classify": Task(
        classify, (), 256, "Classifying", models="encoders", more_columns=classification
    ),
    "annotate": Task(
        annotate,
        (Column("label", "string"), Column("prob", "float64"), Column("margin", "float64")),
        256,
        "Annotating",
        more_columns=lambda settings: [
            Column(f"prob_{label['label']}", "float64") for label in settings["codebook"]["labels"]
        ],
    ),
    "decide": Task(decide, DECISION, 256, "Deciding", models="all", more_columns=decision_options),
    "rerank": Task(
        rerank, (Column("score", "float64"),), 256, "Reranking", exact=False, models="all"
    ),
    "masked": Task(masked, MASKED, 128, "Predicting", models="encoders"),
    "masked_targets": Task(
        masked_targets,
        (Column("tokens", "int64"), Column("logprob", "float64")),
        256,
        "Scoring targets",
        extra="target",
        models="encoders",
    ),
    "pseudo": Task(pseudo, PSEUDO, 128, "Scoring", models="encoders"),
    "pseudo_tokens": Task(pseudo_tokens, PSEUDO_TOKENS, 128, "Scoring", models="encoders"),
    "entities": Task(entities, ENTITIES, 256, "Classifying", models="encoders"),
    "answer": Task(answer, ANSWERS, 256, "Answering", models="encoders"),
}
