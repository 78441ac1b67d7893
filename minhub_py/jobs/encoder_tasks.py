"""Tasks of text encoders: embeddings, labels, relevance, masked words and answers in texts."""

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from minhub_py.jobs.task import Results, RowText, note_rows, plain
from minhub_py.system.json_text import JsonMapping
from minhub_py.system.table_writers import Column

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from minhub_py.analysis.token_labels import Aggregation
    from minhub_py.models.base import LanguageModel
    from minhub_py.models.encoder import Encoder

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


def rerank(
    model: "LanguageModel",
    tokenizer: "Tokenizer",
    texts: Sequence[RowText],
    *,
    query: str,
    raw_scores: bool,
    instruction: str | None,
) -> list[Results]:
    """Each text's relevance for the query."""
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
    """Each target's log-probability in place of the mask of its text."""
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
    """Each text's entities, one row per entity."""
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


def mask_pattern(tokenizer: "Tokenizer") -> str:
    """A pattern that matches a mask: [MASK], or the tokenizer's own spelling."""
    from minhub_py.analysis.masked import mask_of

    return f"{re.escape('[MASK]')}|{re.escape(mask_of(tokenizer))}"
