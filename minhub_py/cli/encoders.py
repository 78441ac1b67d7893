"""The commands `rerank`, `classify`, `masked`, `pll`, `entities` and `answer` of text encoders, for
texts or files.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from minhub_py.cli import jobs
from minhub_py.cli.group import Command
from minhub_py.cli.inputs import input_files, texts_argument
from minhub_py.cli.loading import LoadingOptions, open_model
from minhub_py.cli.options import is_set, json_option, loading_options, model_argument
from minhub_py.cli.output import progress_bar
from minhub_py.system.console import note
from minhub_py.system.json_text import JsonObject

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from minhub_py.models.encoder import Encoder

Update = Callable[[int, int], object]  # of a progress bar: done, total


@click.command(cls=Command)
@model_argument
@click.argument("query")
@texts_argument
@click.option(
    "-n",
    "--top",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of texts to print.  [default: all]",
)
@click.option(
    "--raw-scores", is_flag=True, help="Scores before the sigmoid, which can be any number."
)
@click.option(
    "--instruction",
    metavar="TEXT",
    help="For Qwen3-Reranker: the task of retrieval.  [default: web search]",
)
@jobs.table_options()
@loading_options
@json_option
def rerank(
    model: str,
    query: str,
    texts: tuple[str, ...],
    top: int | None,
    raw_scores: bool,
    instruction: str | None,
    table: jobs.TableOptions,
    loading: LoadingOptions,
    as_json: bool,
) -> None:
    r"""Sort texts by their relevance to QUERY.

    MODEL is a cross-encoder or Qwen3-Reranker. Prints the TEXTs, the most relevant one first; INDEX
    counts them from 0. If the arguments are names of files, the texts are their rows.

    \b
      minhub rerank MODEL cars "A fast car." "A slow train."
      minhub rerank MODEL cars texts.csv --top 3

    With --out, the rows of FILEs keep their order, and the new column `score` contains the
    relevance. See `minhub score --help` for supported FILEs and for interrupted jobs.
    """
    if table["out"] and top is not None:
        raise click.UsageError("--top is for printed texts: remove it, or --out.")
    settings: JsonObject = {
        "query": query,
        "raw_scores": raw_scores,
        "instruction": instruction,
    }

    def results(
        network: "Encoder", tokenizer: "Tokenizer", rows: list[str], update: Update
    ) -> list[JsonObject]:
        from minhub_py.analysis.classify import rerank as rerank_texts

        columns = rerank_texts(network, tokenizer, texts=rows, k=top, **settings, progress=update)
        results = rows_of({"index": columns["text"], "score": columns["score"]})
        return [{**row, "text": rows[row["index"]]} for row in results]

    run("rerank", model, texts, settings, loading, as_json, table, results)


@click.command(cls=Command)
@model_argument
@texts_argument
@click.option(
    "--labels",
    metavar="LABELS",
    help="Zero-shot classification: labels, separated by commas. MODEL is an entailment model.",
)
@click.option(
    "--hypothesis",
    default="This example is {}.",
    show_default=True,
    metavar="TEXT",
    help="With --labels: a sentence with {} in place of the label.",
)
@click.option(
    "--multi-label", is_flag=True, help="With --labels: several labels can apply to a text."
)
@jobs.table_options()
@loading_options
@json_option
def classify(
    model: str,
    texts: tuple[str, ...],
    labels: str | None,
    hypothesis: str,
    multi_label: bool,
    table: jobs.TableOptions,
    loading: LoadingOptions,
    as_json: bool,
) -> None:
    r"""Classify texts.

    MODEL has a sequence classification head. Prints the most likely label of each TEXT and the
    probability of each label, or the predicted value of a regression. If the arguments are names of
    files, their rows are classified.

    \b
      minhub classify MODEL "I enjoyed this film."
      minhub classify MODEL "Who wins?" --labels art,sport
      minhub classify MODEL in.csv --out out.csv

    With --out, the new columns are `label`, `prob`, and `prob_LABEL` for each label; of a
    regression, `value`. See `minhub score --help` for supported FILEs and for interrupted jobs.
    """
    names = parse_labels(labels)
    if names is None:
        for option in ("hypothesis", "multi_label"):
            if is_set(option):
                raise click.UsageError(
                    f"--{option.replace('_', '-')} is for zero-shot classification: add --labels."
                )
    elif "{}" not in hypothesis:
        raise click.UsageError("--hypothesis must contain {} in place of the label.")
    settings: JsonObject = {"hypothesis": hypothesis, "multi_label": multi_label}

    def results(
        network: "Encoder", tokenizer: "Tokenizer", rows: list[str], update: Update
    ) -> list[JsonObject]:
        from minhub_py.analysis.classify import classify as classify_texts

        columns = classify_texts(network, tokenizer, rows, names, **settings, progress=update)
        return rows_of({"text": rows, **columns})

    stored: JsonObject = {}
    if table["out"]:
        stored = (
            {"labels": names, "zero_shot": True} if names else head_of(model, loading["revision"])
        )
    run("classify", model, texts, settings | stored, loading, as_json, table, results)


def parse_labels(labels: str | None) -> list[str] | None:
    """The labels of --labels. UsageError: a label is empty or occurs twice."""
    if labels is None:
        return None
    names = [label.strip() for label in labels.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise click.UsageError("--labels must be different labels, separated by commas.")
    return names


def head_of(model: str, revision: str) -> dict[str, object]:
    """A job's settings for a checkpoint's own labels. ValueError: it has no sequence
    classification head.
    """
    from minhub_py.analysis.classify import check_classifier
    from minhub_py.loading.files import open_files

    config: Any = open_files(model, revision, weights="never").config
    check_classifier(config, "classify")
    regression = {"regression": True} if config.problem_type == "regression" else {}
    return {"labels": list(config.labels), "zero_shot": False, **regression}


@click.command(cls=Command)
@model_argument
@texts_argument
@click.option(
    "-n",
    "--top",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="Number of tokens per mask.",
)
@click.option(
    "--token",
    "tokens",
    multiple=True,
    metavar="TOKEN",
    help="Token to print instead of the most likely tokens; may be repeated.",
)
@click.option(
    "--target",
    metavar="COLUMN",
    help="With --out: score the words in this column in place of the masks.",
)
@jobs.table_options()
@loading_options
@json_option
def masked(
    model: str,
    texts: tuple[str, ...],
    top: int,
    tokens: tuple[str, ...],
    target: str | None,
    table: jobs.TableOptions,
    loading: LoadingOptions,
    as_json: bool,
) -> None:
    r"""Predict the masked tokens of texts.

    MODEL is a masked language model such as BERT. Prints the most likely tokens at each [MASK] of
    the TEXTs, with their probability and its logarithm (nats). If the arguments are names of files,
    the texts are their rows.

    \b
      minhub masked MODEL "The [MASK] sat on the mat."
      minhub masked MODEL in.csv --out out.csv

    With --out, the output has one row per predicted token, with the new columns mask_n, token, prob
    and logprob; with --target one row per row of FILEs, with the new columns tokens and logprob. A
    target of several tokens replaces the mask by as many masks. See `minhub score --help` for
    supported FILEs and for interrupted jobs.
    """
    if table["out"] and tokens:
        raise click.UsageError("--token is for printed tokens: use --target COLUMN with --out.")
    if table["out"] and target is not None:
        if is_set("top"):
            raise click.UsageError("--top and --target exclude each other: remove one.")
        jobs.run("masked_targets", model, texts, table, {}, loading, as_json, columns=[target])
        return
    if target is not None:
        raise click.UsageError(
            "--target is for the rows of files: add --out, a file for the results."
        )

    def results(
        network: "Encoder", tokenizer: "Tokenizer", rows: list[str], update: Update
    ) -> list[JsonObject]:
        from minhub_py.analysis.masked import masked_tokens

        return rows_of(
            masked_tokens(network, tokenizer, rows, top, targets=tokens or None, progress=update)
        )

    run("masked", model, texts, {"n": top}, loading, as_json, table, results)


@click.command(cls=Command)
@model_argument
@texts_argument
@click.option(
    "--method",
    type=click.Choice(["within-word-l2r", "original"]),
    default="within-word-l2r",
    show_default=True,
    help="Mask a token with the later tokens of its word, or one token only.",
)
@click.option(
    "--tokens", is_flag=True, help="Print or write one row per token instead of one per text."
)
@jobs.table_options()
@loading_options
@json_option
def pll(
    model: str,
    texts: tuple[str, ...],
    method: str,
    tokens: bool,
    table: jobs.TableOptions,
    loading: LoadingOptions,
    as_json: bool,
) -> None:
    r"""Compute the pseudo-log-likelihood of texts.

    MODEL is a masked language model such as BERT. Each token of a text is masked and predicted from
    the other tokens; LOGPROB is the sum of their log-probabilities (nats), and PERPLEXITY the
    pseudo-perplexity. If the arguments are names of files, the texts are their rows.

    \b
      minhub pll MODEL "The keys are here." "A key are."
      minhub pll MODEL in.csv --tokens --out out.csv

    With --out, the new columns are `tokens`, `logprob` and `perplexity`, or with --tokens
    `token_n`, `token` and `logprob`. See `minhub score --help` for supported FILEs and for
    interrupted jobs.
    """
    settings = {"method": method.replace("-", "_")}
    run("pseudo_tokens" if tokens else "pseudo", model, texts, settings, loading, as_json, table)


@click.command(cls=Command)
@model_argument
@texts_argument
@click.option(
    "--aggregation",
    type=click.Choice(["simple", "first", "average", "max", "none"]),
    default="simple",
    show_default=True,
    help=(
        "How tokens are joined: adjacent tokens of one label (simple), words by the "
        "label of the first token, of the mean or of the maximum, or not."
    ),
)
@click.option(
    "--ignore",
    multiple=True,
    default=["O"],
    show_default=True,
    metavar="LABEL",
    help="Label to leave out; may be repeated.",
)
@click.option(
    "--stride",
    type=click.IntRange(min=0),
    metavar="N",
    help="Tokens in which two windows of a long text overlap.  [default: half of a window]",
)
@jobs.table_options()
@loading_options
@json_option
def entities(
    model: str,
    texts: tuple[str, ...],
    aggregation: str,
    ignore: tuple[str, ...],
    stride: int | None,
    table: jobs.TableOptions,
    loading: LoadingOptions,
    as_json: bool,
) -> None:
    r"""Find the names of persons, places and others in texts.

    MODEL has a token classification head. Prints each entity of the TEXTs, the positions of its
    characters (END is exclusive), its label and probability. If the arguments are names of files,
    the texts are their rows.

    \b
      minhub entities MODEL "Hamlet lives in Denmark."
      minhub entities MODEL in.csv --out out.csv

    With --out, the output has one row per entity, with the new columns word, start, end, label and
    prob. See `minhub score --help` for supported FILEs and for interrupted jobs.
    """
    settings = {"aggregation": aggregation, "ignore": list(ignore), "stride": stride}
    run("entities", model, texts, settings, loading, as_json, table)


@click.command(cls=Command)
@model_argument
@click.argument("question")
@texts_argument
@click.option(
    "-n",
    "--top",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Maximum number of answers in each text.",
)
@click.option(
    "--no-answer", is_flag=True, help="The text may not contain an answer, which is then empty."
)
@click.option(
    "--max-answer",
    type=click.IntRange(min=1),
    default=15,
    show_default=True,
    metavar="N",
    help="Maximum number of tokens of an answer.",
)
@click.option(
    "--stride",
    type=click.IntRange(min=0),
    metavar="N",
    help="Tokens in which two parts of a long text overlap.  [default: 128]",
)
@jobs.table_options()
@loading_options
@json_option
def answer(
    model: str,
    question: str,
    texts: tuple[str, ...],
    top: int,
    no_answer: bool,
    max_answer: int,
    stride: int | None,
    table: jobs.TableOptions,
    loading: LoadingOptions,
    as_json: bool,
) -> None:
    r"""Find the answers to QUESTION in texts.

    MODEL has a question answering head. Prints the most likely answer in each TEXT, the positions
    of its characters (END is exclusive) and its probability. If the arguments are names of files,
    the texts are their rows.

    \b
      minhub answer MODEL "Where does Hamlet live?" "Hamlet lives in Denmark."
      minhub answer MODEL "Who is the author?" in.csv --out out.csv

    With --out, the output has one row per answer, with the new columns rank, answer, start, end and
    score. See `minhub score --help` for supported FILEs and for interrupted jobs.
    """
    settings = {
        "question": question,
        "k": top,
        "no_answer": no_answer,
        "max_answer": max_answer,
        "stride": stride,
    }
    run("answer", model, texts, settings, loading, as_json, table)


Results = Callable[["Encoder", "Tokenizer", list[str], Update], list[JsonObject]]


def run(
    task: str,
    model: str,
    texts: Sequence[str],
    settings: Mapping[str, object],
    loading: LoadingOptions,
    as_json: bool,
    table: jobs.TableOptions,
    results: Results | None = None,
) -> None:
    """Run a task on the rows of files, or print its results for texts.

    results: printed rows of a model, its tokenizer, texts and a progress function; by default the
    task's.
    """
    if table["out"]:
        jobs.run(task, model, texts, table, settings, loading, as_json)
        return
    rows = read_texts(texts, table["column"], table["na"])
    from minhub_py.jobs.task import RowText
    from minhub_py.jobs.tasks import TASKS

    network, tokenizer = open_model(model, **loading, encoders=True)
    with (
        warnings.catch_warnings(record=True) as caught,
        progress_bar(TASKS[task].verb, "tokens") as update,
    ):
        warnings.simplefilter("always")
        if results is not None:
            shown = results(network, tokenizer, rows, update)
        else:
            values = TASKS[task].run(
                network, tokenizer, [RowText(i, row, []) for i, row in enumerate(rows)], **settings
            )
            shown = [
                {"text": text, **result}
                for text, items in zip(rows, values, strict=True)
                for result in items
            ]
    for warning in caught:
        note(f"Note: {warning.message}")
    jobs.show(shown, as_json)


def rows_of(columns: Mapping[str, object]) -> list[JsonObject]:
    """The rows of a table of columns, which can be arrays."""
    from minhub_py.jobs.task import plain

    return [
        dict(zip(columns, row, strict=True))
        for row in zip(*map(plain, columns.values()), strict=True)
    ]


def read_texts(texts: Sequence[str], column: str, na: Sequence[str]) -> list[str]:
    """The TEXTs, the texts in the rows of files, or the lines of standard input. na: missing values
    of files.

    UsageError: an option requires --out, or there are no texts.    ValueError: a file is corrupt,
    or has no texts.
    """
    from minhub_py.jobs.sources import expand_paths, read_texts, scan

    jobs.require_out(*(name for name in jobs.NAMES if name not in ("column", "na")))
    rows: list[str] = []
    with input_files(texts, column) as files:
        for path in expand_paths(files):
            scan(path, [("column", column)], na=na)
            rows += [text for text in read_texts(path, column, na=na) if text]
    if not rows:
        raise ValueError(f"{texts[0]} has no texts in column {column}")
    return rows
