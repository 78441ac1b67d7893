"""The commands `generate` and `score`, for one text or for the rows of files."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any

import click

from minhub_py.cli import jobs
from minhub_py.cli.group import Command
from minhub_py.cli.inputs import read_stdin, standard_input, unread_pipe
from minhub_py.cli.loading import LoadingOptions, decode_utf8, encode, open_model
from minhub_py.cli.options import (
    beam_options,
    files_argument,
    json_option,
    loading_options,
    model_argument,
    sampling_options,
    speculate_option,
)
from minhub_py.cli.output import emit, progress_bar
from minhub_py.cli.output import table as print_table
from minhub_py.cli.parallel import broadcast, connected, tensor_parallel_option
from minhub_py.system.console import note
from minhub_py.system.json_text import JsonMapping, JsonObject
from minhub_py.system.printable import displayed

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from minhub_py.inference.beams import Hypothesis
    from minhub_py.inference.speculative import DraftModel, PredictionHead
    from minhub_py.models.base import LanguageModel


@click.command(cls=Command)
@model_argument
@click.argument("prompts", nargs=-1, metavar="[PROMPT | FILE]...")
@click.option(
    "-n",
    "--max-new-tokens",
    type=click.IntRange(min=0),
    default=64,
    show_default=True,
    help="Maximum number of tokens to generate.",
)
@sampling_options()
@beam_options()
@speculate_option
@click.option(
    "--draft",
    metavar="MODEL",
    help=(
        "Smaller model with the same tokenizer, which proposes the draft tokens: same output. mtp:"
        " MODEL's head for multi-token prediction (Qwen 3.5)."
    ),
)
@click.option(
    "--adapter", metavar="ADAPTER", help="LoRA adapter of MODEL: a folder or a repository."
)
@jobs.table_options()
@loading_options
@json_option
@tensor_parallel_option
def generate(
    model: str,
    prompts: tuple[str, ...],
    max_new_tokens: int,
    seed: int | None,
    stop: tuple[str, ...],
    table: jobs.TableOptions,
    loading: LoadingOptions,
    as_json: bool,
    adapter: str | None,
    draft: str | None,
    **options: Any,
) -> None:
    """Generate text that continues PROMPT.

    The text is printed as it is generated. Without PROMPT, or if it is "-", it is read from
    standard input. A model with an encoder and a decoder, such as T5, answers PROMPT, and only the
    answer is printed.

    With --out, the --column of FILEs contains one prompt per row, and the results are a new column
    `generated`. Row n, counted from 0, has the same text as a single run with --seed SEED + n. See
    `minhub score --help` for supported FILEs and for interrupted jobs.
    """
    if not prompts and table["out"]:
        raise click.UsageError(
            "Missing argument 'FILE'. With --out, give the files that contain the prompts."
        )
    options = {name: value for name, value in options.items() if value is not None}
    if table["out"]:
        if adapter is not None:
            raise click.UsageError(
                "--adapter has no effect on FILEs: merge it with minhub convert --merge."
            )
        settings = {**options, "max_new_tokens": max_new_tokens, "seed": seed, "stop": stop}
        settings |= {} if draft is None else {"draft": draft}
        jobs.run("generate", model, prompts, table, settings, loading, as_json)
        return
    jobs.require_out(*jobs.NAMES)
    if len(prompts) > 1:
        raise click.UsageError("Give one PROMPT, in quotes. For the rows of FILEs, add --out.")
    group = connected(loading["device"])
    from_pipe = prompts in ((), ("-",))
    prompt = broadcast(group, lambda: prompt_from_pipe(prompts)) if from_pipe else prompts[0]
    network, tokenizer = open_model(
        model, **loading, group=group, adapter=adapter, mtp=draft == "mtp"
    )
    drafts = None if draft is None else open_draft(draft, network, tokenizer, loading)
    prompt_ids = encode(tokenizer, prompt, prompt=not network.encoder_decoder)
    if not prompt_ids:
        raise click.BadParameter(
            "the prompt has no tokens in MODEL's vocabulary; give some text", param_hint="'PROMPT'"
        )
    if not from_pipe and unread_pipe():
        note("Note: standard input is ignored; to read it, use - as PROMPT.")

    from minhub_py.chat.defaults import completion_settings
    from minhub_py.checkpoints.tokenizers.tokenizer import decode_stream, until
    from minhub_py.inference.generate import stream

    new_ids: list[int] = []
    started = time.perf_counter()
    options = completion_settings(network, options)
    context = [] if network.encoder_decoder else prompt_ids
    hypotheses = searched(network, tokenizer, prompt_ids, max_new_tokens, stop, drafts, options)
    if hypotheses is not None:
        texts = [
            "".join(until(decode_stream(tokenizer, hypothesis.ids, context), stop))
            for hypothesis in hypotheses
        ]
        print_sequences(
            hypotheses, texts, {"model": model, "prompt": prompt}, bool(context), as_json
        )
        return
    options |= {"seed": seed, "stop": stop, "tokenizer": tokenizer, "draft": drafts}
    tokens = stream(network, prompt_ids, max_new_tokens, **options)
    pieces = until(decode_stream(tokenizer, record(tokens, new_ids), context), stop)
    if as_json:
        text = "".join(pieces)
        speed = len(new_ids) / (time.perf_counter() - started)
        result = {
            "model": model,
            "prompt": prompt,
            "text": text,
            "ids": new_ids,
            "tokens_per_second": speed,
        }
        emit(
            result
            if drafts is None
            else {**result, "proposed": drafts.proposed, "accepted": drafts.accepted}
        )
        return
    # A pipe or file gets the text unchanged; click.echo would remove escape sequences.
    escape = displayed if sys.stdout.isatty() else str
    if not network.encoder_decoder:
        sys.stdout.write(escape(prompt))
    for piece in pieces:
        sys.stdout.write(escape(piece))
        sys.stdout.flush()
    click.echo()
    if drafts is not None:
        note(f"Note: {drafts.accepted} of {drafts.proposed} draft tokens were accepted.")


def prompt_from_pipe(prompts: tuple[str, ...]) -> str:
    """The prompt in standard input. prompts: the argument of the command."""
    message = "Missing argument 'PROMPT'. Give a text in quotes, or pipe it to standard input."
    return read_stdin(message, named=bool(prompts))


def print_sequences(
    hypotheses: "list[Hypothesis]",
    texts: list[str],
    call: JsonObject,
    with_prompt: bool,
    as_json: bool,
) -> None:
    """Print the best sequence of a beam search, or all of them as JSON.

    call: the model and the prompt.    with_prompt: print the prompt before the text.
    """
    if as_json:
        pairs = zip(texts, hypotheses, strict=True)
        emit(
            {
                **call,
                "sequences": [{"text": text, **hypothesis._asdict()} for text, hypothesis in pairs],
            }
        )
        return
    text = "".join([call["prompt"] if with_prompt else "", *texts[:1]])
    click.echo(displayed(text) if sys.stdout.isatty() else text)


def searched(
    network: "LanguageModel",
    tokenizer: "Tokenizer",
    prompt_ids: list[int],
    max_new_tokens: int,
    stop: tuple[str, ...],
    drafts: object,
    options: dict[str, Any],
) -> "list[Hypothesis] | None":
    """A beam search's sequences, in descending order of their scores; None without --beams.

    Removes its options.
    """
    from minhub_py.inference.beam_search import search_batch, search_of
    from minhub_py.inference.sampling import Sampling, StopCriteria

    names = ("beams", "length_penalty", "early_stopping", "no_repeat_ngram_size")
    settings = {name: options.pop(name) for name in names if name in options}
    sampling = Sampling(**{name: options[name] for name in Sampling.names() if name in options})
    search = search_of(sampling, speculate=options["speculate"], draft=drafts, **settings)
    if search is None:
        return None
    criteria = StopCriteria.of(network, "auto", stop, tokenizer)
    [hypotheses] = search_batch(network, [prompt_ids], max_new_tokens, search, sampling, criteria)
    return hypotheses


def open_draft(
    identifier: str, network: "LanguageModel", tokenizer: "Tokenizer", loading: JsonMapping
) -> "DraftModel | PredictionHead":
    """The source of draft tokens of `--draft`: a model, or "mtp" for the head of `network`.

    UsageError: it has another tokenizer, or cannot make drafts.
    """
    from minhub_py.inference.speculative import DraftModel, PredictionHead

    if identifier == "mtp":
        return PredictionHead(network)
    model, draft_tokenizer = open_model(identifier, **{**loading, "revision": "main"})
    if draft_tokenizer.get_vocab() != tokenizer.get_vocab():
        raise click.UsageError("--draft: this model has another tokenizer than MODEL.")
    try:
        return DraftModel(model)
    except ValueError as error:
        raise click.UsageError(f"--draft: {error}.") from error


def record(items: Iterable[int], history: list[int]) -> Iterator[int]:
    """Yield `items` and append each to `history`."""
    for item in items:
        history.append(item)
        yield item


@click.command(cls=Command)
@model_argument
@files_argument
@jobs.table_options()
@click.option(
    "--target",
    metavar="COLUMN",
    help="Score the texts in this column, given the texts in --column.",
)
@click.option(
    "--sep",
    metavar="TEXT",
    help=(
        "With --target: the separator between a text and its target; '' for languages without"
        " spaces.  [default: a space]"
    ),
)
@loading_options
@json_option
@tensor_parallel_option
def score(
    model: str,
    files: tuple[str, ...],
    target: str | None,
    sep: str | None,
    table: jobs.TableOptions,
    loading: LoadingOptions,
    as_json: bool,
) -> None:
    r"""Measure how well MODEL predicts a text.

    Prints the perplexity of the text in FILE ("-" is standard input); --json adds the
    log-probability of each token. A text longer than the model's context is scored in windows that
    overlap by half.

    With --out, each row of FILEs is a separate text, and the measures are new columns:

    \b
      minhub score gpt2 in.csv --column review --out out.csv
      minhub score gpt2 'texts/*.jsonl' --out scored.parquet

    FILEs can be .csv, .tsv, .jsonl, .parquet (pip install 'minhub_py[tables]'), .txt with one text
    per line, folders of such files, and glob patterns. To continue an interrupted job, run the same
    command again: completed rows are stored in OUT.parts until the job ends. MODEL's weights must
    be unchanged; their files are hashed before the first job (about one second per GB).

    With --target, the texts of a second column are scored. They continue the texts in --column,
    joined by --sep, and neither text may have white space at the joint. An encoder-decoder such as
    T5 scores a target as the answer to its text, and ignores --sep.

    \b
      minhub score gpt2 in.csv --target word --out out.csv
    """
    if sep is not None and target is None:
        raise click.UsageError("--sep joins a text and its target: add --target.")
    if table["out"]:
        if target is None:
            jobs.run("score", model, files, table, {}, loading, as_json)
        else:
            settings = {"sep": " " if sep is None else sep}
            jobs.run(
                "score_targets", model, files, table, settings, loading, as_json, columns=[target]
            )
        return
    jobs.require_out(*jobs.NAMES)
    if target is not None:
        raise click.UsageError(
            "--target is for the rows of files: add --out, a file for the results."
        )
    if len(files) > 1:
        raise click.UsageError("Give one FILE. For the rows of several files, add --out.")
    if files[0].endswith((".csv", ".tsv", ".jsonl")):
        note(f"Note: {files[0]} is read as one text; for a result per row, add --out.")
    source = "standard input" if files[0] == "-" else files[0]

    def read() -> str:
        if files[0] == "-":
            return decode_utf8(standard_input().read(), source)
        file: IO[bytes] = click.File("rb").convert(
            files[0], click.Argument(["file"]), click.get_current_context()
        )
        return decode_utf8(file.read(), source)

    group = connected(loading["device"])
    text = broadcast(group, read)
    from minhub_py.inference.generate import score as log_probabilities
    from minhub_py.jobs.tasks import NEEDS_TARGETS, measures

    network, tokenizer = open_model(model, **loading, group=group)
    if network.encoder_decoder:
        raise ValueError(NEEDS_TARGETS)
    token_ids = encode(tokenizer, text)
    if len(token_ids) < 2:
        raise ValueError(
            f"{source} is too short to score: at least 2 tokens are required, not {len(token_ids)}"
        )

    with progress_bar("Scoring", "tokens") as update:
        [scores] = log_probabilities(network, [token_ids], progress=update)
    result = {"model": model, **measures(tokenizer, token_ids, scores.tolist())}
    if as_json:
        pairs = zip(token_ids[1:], scores.tolist(), strict=True)
        emit(
            {
                **result,
                "scores": [
                    {"id": id, "token": tokenizer.decode([id]), "logprob": value}
                    for id, value in pairs
                ],
            }
        )
        return
    print_table(
        ["MEASURE", "VALUE"],
        [
            ("tokens scored", result["tokens"]),
            ("characters scored", result["characters"]),
            ("nats per token", f"{result['nats_per_token']:.4f}"),
            ("perplexity", f"{result['perplexity']:.3f}"),
            ("bits per character", f"{result['bits_per_character']:.4f}"),
        ],
    )
