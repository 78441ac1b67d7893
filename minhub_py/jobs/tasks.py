"""Operations on a table's texts. `TASKS` has one entry per operation.

A task receives the texts of a chunk and returns each text's results: one row or, for words,
several rows. Rows without a text, or without a value in the task's additional column, are not
passed to the task; all their results are missing.
"""

import math
import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from minhub_py.jobs.encoder_tasks import (
    ANSWERS,
    EMBED_WORDS,
    ENTITIES,
    MASKED,
    PSEUDO,
    PSEUDO_TOKENS,
    SPARSE,
    answer,
    classification,
    classify,
    embed,
    embed_sparse,
    embed_words,
    entities,
    masked,
    masked_targets,
    pseudo,
    pseudo_tokens,
    rerank,
)
from minhub_py.jobs.task import Results, RowText, Task, note_problems, note_rows, plain
from minhub_py.system.json_text import JsonMapping, JsonObject
from minhub_py.system.table_writers import Column

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from minhub_py.inference.speculative import DraftModel
    from minhub_py.models.base import LanguageModel

# prompt and new tokens that are generated in one batch, which bounds the KV cache's memory
MAX_BATCH_TOKENS = 16384
NEEDS_TARGETS = (
    "an encoder-decoder model predicts the answer to a prompt, not the prompt: use minhub score"
    " --target COLUMN --out OUT, which reads both"
)


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
    """Each text's measures. They are missing for a text of one token, which has no predicted
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
    from minhub_py.checkpoints.tokenizers.paired import target_tokenizer
    from minhub_py.checkpoints.tokenizers.tokenizer import encode
    from minhub_py.inference.generate import score as log_probabilities

    if model.encoder_decoder:  # an answer includes its special tokens
        answers = target_tokenizer(tokenizer)
        pairs = [(text.ids, encode(answers, text.extra)) for text in texts]
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
    """Each text's continuation. Row n has the seed `seed` + n, so its result does not depend
    on the chunk.

    settings: of `generate`. By default, the model's own.
    draft: a draft model's identifier, or "mtp" for the model's head for multi-token
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
    **settings: object,
) -> list[Results]:
    """Each text's translation."""
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
    model: "LanguageModel", tokenizer: "Tokenizer", texts: Sequence[RowText], **settings: object
) -> list[Results]:
    """Each text's summary."""
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
