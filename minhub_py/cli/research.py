"""The commands `words`, `embed`, `activations`, `annotate` and `decide`, for texts or the rows of files."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

from minhub_py.cli import jobs
from minhub_py.cli.encoders import parse_labels
from minhub_py.cli.group import Command
from minhub_py.cli.inputs import require_files, texts_argument
from minhub_py.cli.loading import LoadingOptions
from minhub_py.cli.options import (
    files_argument,
    is_set,
    json_option,
    loading_options,
    model_argument,
)
from minhub_py.cli.output import check_writable
from minhub_py.system.json_text import JsonMapping, JsonObject


@click.command(cls=Command)
@model_argument
@texts_argument
@jobs.table_options()
@click.option(
    "--by",
    multiple=True,
    metavar="COLUMN",
    help="Rows are words; rows with the same value in this column form a text. May be repeated.",
)
@click.option(
    "--sep",
    metavar="TEXT",
    help=(
        "With --by: the separator between words; '' for languages without spaces.  "
        "[default: a space]"
    ),
)
@click.option(
    "--ignore-regex",
    default="",
    metavar="REGEX",
    help=r"Exclude matching tokens from the words' values, such as punctuation: '^[^\w\s]$'.",
)
@click.option(
    "--bos/--no-bos",
    default=None,
    help=(
        "Put the model's BOS token before each text, so that first words have values.  [default: if"
        " the tokenizer adds it]"
    ),
)
@click.option(
    "--correct",
    type=click.Choice(["pimentel", "oh"]),
    help="Correction at word boundaries, for tokenizers that mark the beginning of words.",
)
@click.option(
    "--renyi",
    multiple=True,
    type=click.FloatRange(min=0),
    metavar="ORDER",
    help="Add the Rényi entropy of this order, such as 0.5. May be repeated.",
)
@click.option(
    "--premise",
    metavar="TEXT",
    help="Add the PMI of each word and its context: compared to the word after this text.",
)
@click.option(
    "--lags",
    default=0,
    type=click.IntRange(min=0),
    metavar="N",
    help="Add the surprisal and entropy of the N previous words.  [default: 0]",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Plot the surprisal of the words of printed texts to this PNG file.",
)
@loading_options
@json_option
def words(
    model: str,
    texts: tuple[str, ...],
    by: tuple[str, ...],
    sep: str | None,
    ignore_regex: str,
    bos: bool | None,
    correct: str | None,
    renyi: tuple[float, ...],
    premise: str | None,
    lags: int,
    plot: Path | None,
    table: jobs.TableOptions,
    loading: LoadingOptions,
    as_json: bool,
) -> None:
    r"""Measure how predictable each word is.

    The arguments are texts, or names of files, whose --column contains one text per row. The output
    has one row per word, with the new columns word_n, word, tokens, logprob (nats), surprisal
    (bits), and entropy (bits) before the word.

    \b
      minhub words gpt2 "The old man the boat." --plot out.png
      minhub words gpt2 text.txt
      minhub words gpt2 in.csv --column sentence --out out.csv
      minhub words gpt2 in.csv --by item --out out.csv
      minhub words gpt2 text.txt --correct pimentel --lags 2

    Without --out, the rows are printed without the text, as a table or with --json. Without
    arguments, or with -, each line of standard input is a text. --plot draws the surprisal of each
    word.

    With --by, each row contains one word, in the column `word` unless --column is set, and gets the
    last four of these columns. A text's words must be adjacent and in order; a text ends at
    the end of its file. A row without a value in a --by column belongs to no text. A row without a
    word is skipped. The measures of such rows are missing values.

    See `minhub score --help` for supported FILEs and for interrupted jobs.
    """
    from minhub_py.analysis.surprisal import regex

    if plot is not None and table["out"]:
        raise click.UsageError("--plot is for printed texts: remove it, or --out.")
    check_writable(plot)
    if by:
        require_files(texts, "--by")
    if sep is not None and not by:
        raise click.UsageError("--sep joins rows that are words: add --by.")
    try:
        regex(ignore_regex)  # before the model is loaded
    except ValueError as error:
        raise click.BadParameter(
            str(error).removeprefix("ignore_regex "), param_hint="'--ignore-regex'"
        ) from error
    if correct is not None and ignore_regex:
        raise click.UsageError(
            "--correct is the probability of complete words: remove --ignore-regex."
        )
    settings = {
        "ignore_regex": ignore_regex,
        "bos": bos,
        "correct": correct,
        "renyi": list(renyi),
        "premise": premise,
        "lags": lags,
    }
    if by and not is_set("column"):
        table["column"] = "word"
    word, prefix = table["column"] if by else f"{table['prefix']}word", table["prefix"]
    draw = None if plot is None else partial(plot_words, word=word, by=by, prefix=prefix, path=plot)
    if by:
        settings["sep"] = " " if sep is None else sep
        keys = list(dict.fromkeys(by))
        jobs.run(
            "words_by", model, texts, table, settings, loading, as_json, columns=keys, plot=draw
        )
    else:
        jobs.run(
            "words",
            model,
            texts,
            table,
            settings,
            loading,
            as_json,
            hidden=table["column"],
            plot=draw,
        )


def plot_words(
    rows: Sequence[JsonMapping], word: str, by: Sequence[str], prefix: str, path: Path
) -> None:
    """Plot the surprisal of words.

    word, by: the columns of the words and, if rows are words, of their texts.    prefix: of the new
    columns.
    """
    from minhub_py.analysis.plots import plot_surprisal

    texts: list[list[tuple[str, float | None]]] = []
    previous: object = None
    for row in rows:
        key = [row[name] for name in by] if by else None
        if row.get(word) is None:
            continue
        if not texts or key != previous or (not by and row[f"{prefix}word_n"] == 1):
            texts.append([])
        texts[-1].append((row[word], row[f"{prefix}surprisal"]))
        previous = key
    plot_surprisal(texts, path)


@click.command(cls=Command)
@model_argument
@texts_argument
@jobs.table_options()
@click.option(
    "--layer",
    default="-1",
    show_default=True,
    metavar="N",
    help=("Layer; 0 is the embeddings, -1 the last layer. Also several, separated by commas."),
)
@click.option(
    "--words",
    is_flag=True,
    help="An embedding of each word in its context: the mean of its tokens.",
)
@click.option(
    "--combine",
    type=click.Choice(["join", "mean"]),
    default="join",
    show_default=True,
    help="Join the vectors of several layers, or average them.",
)
@click.option(
    "--pool",
    type=click.Choice(["mean", "last", "cls", "max"]),
    help=(
        "Pooling of the tokens' hidden states: their mean, the last or the first (cls) token's, or "
        "their maximum.  [default: the model's, with its dense layers and normalization; "
        "otherwise mean]"
    ),
)
@click.option(
    "--sparse",
    is_flag=True,
    help=(
        "Sparse embeddings (SPLADE): the weights of tokens of the vocabulary, in one row per token."
        " MODEL is a masked language model."
    ),
)
@click.option(
    "--prompt",
    metavar="NAME",
    help=(
        "Name of the model's prompt that is put before each text, such as query or document. "
        " [default: the model's default prompt, if any]"
    ),
)
@click.option(
    "--dimensions",
    type=click.IntRange(min=1),
    help="Number of leading dimensions, or with --sparse of largest weights, to keep.  [default: all]",
)
@click.option(
    "--normalize/--no-normalize",
    default=None,
    help="Whether to divide each embedding by its length at the end.  [default: as the model]",
)
@loading_options
@json_option
def embed(
    model: str,
    texts: tuple[str, ...],
    layer: str,
    words: bool,
    combine: str,
    pool: str | None,
    sparse: bool,
    prompt: str | None,
    dimensions: int | None,
    normalize: bool | None,
    table: jobs.TableOptions,
    loading: LoadingOptions,
    as_json: bool,
) -> None:
    r"""Compute embeddings of texts.

    The arguments are texts, or names of files, whose --column contains one text per row. Without
    arguments, or with -, each line of standard input is a text. An embedding is the pooled hidden
    states of a text. Without --out, --json prints all of its values, and the table the first ones.

    \b
      minhub embed MODEL "A cat." "A dog." --json
      minhub embed gpt2 in.csv --out vectors.parquet
      minhub embed MODEL in.csv --prompt query --out v.npy
      minhub embed MODEL "A cat." --sparse
      minhub embed MODEL in.csv --words --layer 5,6 --out words.parquet

    With --out, the new column `embedding` contains lists or, in .csv and .tsv files, there is one
    column per dimension: embedding_1, embedding_2 and so on. A .npy file contains only the
    embeddings, as a float32 matrix with one row per text. With --sparse, the output has one row per
    token of a text's embedding, the largest weight first, with the new columns token and weight.
    With --words, it has one row per word, with the new columns word_n, word and embedding. By
    default, text encoders follow the settings of their sentence-transformers repository.

    See `minhub score --help` for supported FILEs and for interrupted jobs.
    """
    layers = parse_layers(layer)
    settings: JsonObject = {"prompt": prompt, "dimensions": dimensions, "normalize": normalize}
    if words:
        exclude("words", "sparse", "pool", "prompt", "dimensions", "normalize")
        settings = {"layers": layers, "combine": combine}
        jobs.run("embed_words", model, texts, table, settings, loading, as_json)
        return
    if sparse:
        exclude("sparse", "layer", "combine", "pool")
        jobs.run("embed_sparse", model, texts, table, settings, loading, as_json)
        return
    settings |= {"layer": layers[0], "pool": pool}
    if len(layers) > 1:
        settings |= {"layer": layers, "combine": combine}
    jobs.run("embed", model, texts, table, settings, loading, as_json)


def parse_layers(text: str) -> list[int]:
    """The layers of --layer. UsageError: not whole numbers."""
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise click.UsageError(
            f"--layer must be a whole number or several, such as 5,6, not {text!r}."
        ) from None


def exclude(name: str, *excluded: str) -> None:
    """UsageError: another option is set, too."""
    for option in excluded:
        if is_set(option):
            raise click.UsageError(f"--{option} and --{name} exclude each other: remove one.")


@click.command(cls=Command)
@model_argument
@files_argument
@jobs.table_options(required=True)
@click.option(
    "--at",
    required=True,
    metavar="POINT",
    help=(
        "Point of the model: embeddings, layers.3.attn, layers.3.mlp, layers.3.resid,"
        " layers.3.heads.2, layers.3.neurons, or final."
    ),
)
@click.option(
    "--pool",
    type=click.Choice(["last", "mean", "none"]),
    default="last",
    show_default=True,
    help="The last token, the mean over the tokens, or a row for each token.",
)
@loading_options
@json_option
def activations(
    model: str,
    files: tuple[str, ...],
    at: str,
    pool: str,
    table: jobs.TableOptions,
    loading: LoadingOptions,
    as_json: bool,
) -> None:
    r"""Record the values at a point of a model.

    The --column of FILEs contains one text per row. The new columns are token_n, token, and
    `activation`: a list, or in .csv and .tsv files one column per channel. A .npy file contains
    only the activations, as a float32 matrix. Layers and heads count from 1.

    \b
      minhub activations gpt2 in.csv --at final --out a.npy
      minhub activations M a.csv --at layers.3.mlp --out b.csv

    A text longer than the model's context has no result. See `minhub score --help` for interrupted
    jobs.
    """
    if "*" in at:
        raise click.UsageError(f"--at {at} must be one point, without *.")
    jobs.run("activations", model, files, table, {"at": at, "pool": pool}, loading, as_json)


@click.command(cls=Command)
@model_argument
@texts_argument
@jobs.table_options()
@click.option("--labels", metavar="LABELS", help="Labels, separated by commas.")
@click.option(
    "--codebook",
    type=click.Path(exists=True, dir_okay=False),
    help="YAML file with labels, and optionally definitions, an instruction and examples.",
)
@click.option(
    "--instruction",
    metavar="TEXT",
    help="The task.  [default: the codebook's, or a list of the labels]",
)
@click.option(
    "--calibrate",
    type=click.Choice(["contextual", "pmi"]),
    help="Calibration: by texts without content, or by the prompt without a text.  [default: none]",
)
@click.option(
    "--length",
    type=click.Choice(["sum", "tokens", "characters"]),
    default="sum",
    show_default=True,
    help="Score of a label: its log-probability, or the mean per token or character.",
)
@click.option(
    "--examples",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with coded examples, in the columns text and label.",
)
@click.option(
    "--template",
    metavar="TEXT",
    help=(
        "The prompt of a text, with {text}.  [default: 'Text: {text}', "
        "a line end and 'Label:'; for a chat 'Text: {text}']"
    ),
)
@click.option(
    "--sep",
    metavar="TEXT",
    help="Between prompt and label.  [default: a space; for a chat, nothing]",
)
@click.option(
    "--chat/--no-chat",
    default=None,
    help="Whether to use the chat template.  [default: if there is one]",
)
@loading_options
@json_option
def annotate(
    model: str,
    texts: tuple[str, ...],
    labels: str | None,
    codebook: str | None,
    instruction: str | None,
    calibrate: str | None,
    length: str,
    examples: Path | None,
    template: str | None,
    sep: str | None,
    chat: bool | None,
    table: jobs.TableOptions,
    loading: LoadingOptions,
    as_json: bool,
) -> None:
    r"""Label texts with a language model.

    The arguments are texts, or names of files, whose --column contains one text per row. The new
    columns are `label` (the most likely), `prob` (its probability), `margin` (the difference to the
    second), and `prob_LABEL` for each label. A label is scored as the answer to a prompt.

    \b
      minhub annotate MODEL "I enjoyed it." --labels good,bad
      minhub annotate MODEL in.csv --labels a,b --out out.csv
      minhub annotate MODEL in.csv --codebook codebook.yaml

    Without --out, the rows are printed, as a table or with --json. Without arguments, or with -,
    each line of standard input is a text. See `minhub score --help` for supported FILEs and for
    interrupted jobs.
    """
    from minhub_py.analysis.codebook import codebook_of

    if (labels is None) == (codebook is None):
        raise click.UsageError("Labels are missing: add --labels or --codebook, but not both.")
    pairs = [] if examples is None else read_examples(examples)
    book = codebook_of(parse_labels(labels) if codebook is None else codebook, instruction, pairs)
    settings = {
        "codebook": book.to_dict(),
        "calibrate": calibrate,
        "length": length,
        "template": template,
        "chat": chat,
        "sep": sep,
    }
    jobs.run("annotate", model, texts, table, settings, loading, as_json)


@click.command(cls=Command)
@model_argument
@texts_argument
@jobs.table_options()
@click.option(
    "--questions",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="YAML or JSON file with the questions by name, each with type, instructions and criteria.",
)
@click.option(
    "--orders",
    default=1,
    show_default=True,
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of orders of the options whose mean probability is the result.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the orders.")
@click.option("--options", is_flag=True, help="Add a column prob_OPTION for each option.")
@loading_options
@json_option
def decide(
    model: str,
    texts: tuple[str, ...],
    questions: Path,
    orders: int,
    seed: int,
    options: bool,
    table: jobs.TableOptions,
    loading: LoadingOptions,
    as_json: bool,
) -> None:
    r"""Answer typed questions about texts with a chat model or a decision model.

    The arguments are texts, or names of files, whose --column contains one text per row. The result
    has one row per text and question: question, type, answer, prob (the answer's probability),
    confidence, score (of a score question), and spread (over --orders). A question is a choice
    between options, a score with levels, or a noul: true or false.

    \b
      tone:
        type: choice
        instructions: What is the tone?
        criteria: {calm: null, bad: null}
      refund:
        type: noul
        instructions: A refund?

    \b
      minhub decide MODEL "I was charged twice." --questions q.yaml
      minhub decide MODEL in.csv --questions q.yaml --out out.csv

    Nothing is generated: answers are read from the probabilities of the next token. See `minhub
    score --help` for supported FILEs and for interrupted jobs.
    """
    from minhub_py.analysis.questions import ANY_LABELS, parse_questions, read_questions

    parsed = read_questions(questions)
    parse_questions(parsed, ANY_LABELS)
    settings = {"questions": parsed, "orders": orders, "seed": seed, "options": options}
    jobs.run("decide", model, texts, table, settings, loading, as_json)


def read_examples(path: Path) -> list[tuple[str, str]]:
    """The texts and labels in a table. click.UsageError: it does not have these columns, or a value
    is missing.
    """
    from minhub_py.system.csv_values import without_missing
    from minhub_py.system.formats import format_of, read_batches, read_columns

    columns = read_columns(path) if format_of(path) else {}
    if not {"text", "label"} <= set(columns):
        raise click.UsageError(
            f"--examples {path} must be a table with the columns text and label."
        )
    rows = [
        without_missing(row)
        for batch in read_batches(path, ["text", "label"])
        for row in batch.rows
    ]
    for number, row in enumerate(rows, 1):
        if row["text"] is None or row["label"] is None:
            raise click.UsageError(
                f"--examples {path}, row {number}: the text or the label is missing."
            )
    return [(str(row["text"]), str(row["label"])) for row in rows]
