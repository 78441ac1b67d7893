"""The commands `train` and `compare`: options, console output, and messages."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from minhub_py.cli.completion import ModelArgument
from minhub_py.cli.group import Command
from minhub_py.cli.inputs import standard_input
from minhub_py.cli.options import Seed, add_options, json_option, na_option
from minhub_py.cli.output import check_writable, emit, say, table
from minhub_py.models.registry import ENTRIES
from minhub_py.system.console import note
from minhub_py.system.json_text import parse
from minhub_py.system.quantization import KINDS
from minhub_py.system.spelling import ShellSpelling, use_spelling

if TYPE_CHECKING:
    from minhub_py.training.progress import ConsoleListener
    from minhub_py.training.summary import RunSummary

TRAINABLE = [name for name, entry in ENTRIES.items() if entry.architecture.trainable]
# commands for objectives without generation
USES = {
    "labels": ("classify", "TEXT"),
    "masked": ("embed", "FILE"),
    "pairs": ("embed", "FILE"),
    "triplets": ("embed", "FILE"),
    "decision": ("decide", "TEXT --questions FILE"),
}
POSITIVE = click.IntRange(min=1)


@click.command(cls=Command)
@click.argument("text", nargs=-1, type=click.Path(path_type=Path))
@add_options(
    [  # training.settings.Settings defines defaults and checks
        click.option(
            "--out",
            type=click.Path(path_type=Path, file_okay=False),
            help="New folder for the run.",
        ),
        click.option(
            "--resume",
            type=click.Path(path_type=Path, file_okay=False),
            metavar="RUN",
            help=(
                "Continue this run from its last checkpoint; without TEXT, and only with options"
                " marked *."
            ),
        ),
        click.option(
            "--family",
            type=click.Choice(TRAINABLE),
            metavar="NAME",
            help=f"Architecture: {', '.join(TRAINABLE)}.  [default: gpt2]",
        ),
        click.option(
            "--from",
            "start",
            type=ModelArgument(),
            help="Fine-tune this model instead of training a new one.",
        ),
        click.option("--revision", help="Branch, tag or commit of --from, if it is a repository."),
        click.option(
            "--tokenizer",
            metavar="KIND",
            help=(
                "characters, bpe (trained on TEXT), or a MODEL that provides the tokenizer.  "
                "[default: characters, or --from's tokenizer]"
            ),
        ),
        click.option(
            "--vocab-size",
            type=click.IntRange(min=257),
            help="Vocabulary size of bpe.  [default: 4096]",
        ),
        click.option("--layers", type=POSITIVE, help="Number of layers.  [default: 4; lstm: 2]"),
        click.option(
            "--width",
            type=POSITIVE,
            help="Channels, or the LSTM's hidden size.  [default: 128; lstm: 256]",
        ),
        click.option(
            "--heads", type=POSITIVE, help="Number of attention heads.  [default: width / 32]"
        ),
        click.option(
            "--context",
            type=POSITIVE,
            help=(
                "Tokens per sequence; a transformer's context length.  [default: 128; --from: the"
                " model's, up to 1024]"
            ),
        ),
        click.option(
            "--dropout",
            type=click.FloatRange(0, 0.99),
            help="Dropout probability.  [default: 0.1, or --from's setting]",
        ),
        click.option(
            "--set",
            "config",
            multiple=True,
            metavar="NAME=VALUE",
            help="Another setting of config.json, such as window_size=64; may be repeated.",
        ),
        click.option(
            "--lora",
            multiple=True,
            metavar="RANK",
            help=(
                "Train an adapter of --from (LoRA, in PEFT's format) with this rank instead of all"
                " weights. NAME=VALUE sets alpha, dropout, targets, dora, rslora, or invocation:"
                " the text in the prompt that activates the adapter; may be repeated."
            ),
        ),
        click.option(
            "--objective",
            type=click.Choice(
                [
                    "chat",
                    "completion",
                    "preference",
                    "labels",
                    "decision",
                    "pairs",
                    "triplets",
                    "masked",
                    "text",
                ]
            ),
            metavar="NAME",
            help=(
                "Objective of files with examples: chat, completion, preference, labels, decision, "
                "pairs, triplets, masked or text.  [default: decided by their columns]"
            ),
        ),
        na_option(),
        click.option(
            "--beta",
            type=float,
            help=(
                "Beta of DPO (preference): larger values stay closer to the reference.  "
                "[default: 0.1]"
            ),
        ),
        click.option(
            "--scale",
            type=float,
            help="Factor of the cosine of text embeddings (pairs, triplets).  [default: 20]",
        ),
        click.option(
            "--margin",
            type=float,
            help=(
                "Triplets: the least difference of the distances of anchor and negative, and of "
                "anchor and positive, instead of in-batch negatives."
            ),
        ),
        click.option(
            "--keep-weight",
            type=float,
            help=(
                "Weight of rows whose column keep is true: their loss is the divergence from"
                " --from.  [default: 10]"
            ),
        ),
        click.option(
            "--epochs",
            type=float,
            help="With --from: passes over the data, instead of --steps.  [default: 4]",
        ),
        click.option(
            "--checkpointing/--no-checkpointing",
            default=None,
            help="Compute blocks twice to save memory.  [default: no-checkpointing]",
        ),
        click.option(
            "--quantize",
            type=click.Choice(KINDS),
            help="With --lora: store the frozen weights in 8 or 4 bits, to save memory.",
        ),
        click.option(
            "--steps",
            type=POSITIVE,
            help="* Number of optimizer steps.  [default: 2000; --from: by --epochs]",
        ),
        click.option(
            "--batch",
            type=POSITIVE,
            help="Sequences per step, over all processes.  [default: 32; --from: 8]",
        ),
        click.option(
            "--accumulate",
            type=POSITIVE,
            help=(
                "Split each batch into this number of parts (examples: at most), to reduce memory. "
                " [default: 1; --from: by memory]"
            ),
        ),
        click.option(
            "--learning-rate",
            type=float,
            help=(
                "Peak learning rate.  [default: 0.0015; lstm: 0.003; --from: a tenth of these, or "
                "5e-5 for labels and masked; --lora: 5e-4, or 1e-5 for preference]"
            ),
        ),
        click.option(
            "--warm-up",
            type=click.IntRange(min=0),
            help="Warm-up steps to the peak.  [default: 100; --from: at most steps/10]",
        ),
        click.option(
            "--floor",
            type=click.FloatRange(0, 1),
            help=(
                "Final learning rate of the cosine schedule, as a fraction of the peak.  [default:"
                " 0.1]"
            ),
        ),
        click.option(
            "--weight-decay",
            type=float,
            help="Weight decay of matrices.  [default: 0.1; --from: 0.01; --lora: 0]",
        ),
        click.option("--beta2", type=float, help="Second beta of AdamW.  [default: 0.99]"),
        click.option(
            "--clip", type=float, help="Maximum gradient norm; 0 disables clipping.  [default: 1]"
        ),
        click.option(
            "--carry/--no-carry",
            default=None,
            help=(
                "LSTM: pass the state from each sequence to the next one of the text.  [default:"
                " carry]"
            ),
        ),
        click.option(
            "--held-out",
            type=click.FloatRange(0, 0.9, min_open=True),
            help=(
                "Fraction for evaluation only: the end of TEXT, or examples drawn by --seed. "
                " [default: 0.1]"
            ),
        ),
        click.option(
            "--evaluate-every",
            type=POSITIVE,
            metavar="STEPS",
            help="* Steps between evaluations.  [default: 250; --from: at most steps/4]",
        ),
        click.option(
            "--evaluate-tokens",
            type=POSITIVE,
            help="Maximum tokens per evaluation.  [default: 1048576]",
        ),
        click.option(
            "--checkpoint-every",
            type=POSITIVE,
            metavar="STEPS",
            help="* Steps between checkpoints.  [default: 250; --from: at most steps/4]",
        ),
        click.option(
            "--patience",
            type=POSITIVE,
            help="* Stop after this many evaluations without a lower loss.  [default: never]",
        ),
        click.option(
            "--sample",
            metavar="PROMPT",
            help="* Generate text from this prompt at each evaluation.",
        ),
        click.option(
            "--sample-tokens",
            type=POSITIVE,
            help="* Length of that text in tokens.  [default: 200]",
        ),
        click.option(
            "--metrics",
            metavar="TARGET",
            help=(
                "* Also write losses and speed to a .jsonl file, tensorboard:FOLDER or"
                " wandb:PROJECT."
            ),
        ),
        click.option(
            "--seed",
            type=Seed(),
            help="Random seed of weights, batches and dropout.  [default: 1337]",
        ),
        click.option(
            "--device", help="* Device: auto, cpu, cuda, cuda:1, mps or xpu.  [default: auto]"
        ),
        click.option(
            "--dtype",
            type=click.Choice(["auto", "float32", "bfloat16"]),
            help=(
                "Dtype of matrix products; weights are float32.  [default: bfloat16 on CUDA (not"
                " lstm), and with --lora on a CPU with bfloat16; else float32]"
            ),
        ),
        click.option(
            "--compile/--no-compile",
            default=None,
            help="* Use torch.compile.  [default: no-compile]",
        ),
        click.option(
            "--parallel",
            type=click.Choice(["ddp", "fsdp"]),
            help="* With torchrun: replicate the model (ddp) or shard it (fsdp).  [default: ddp]",
        ),
        click.option(
            "--threads", type=POSITIVE, help="* Number of CPU threads.  [default: all cores]"
        ),
    ]
)
@json_option
def train(
    text: tuple[Path, ...], out: Path | None, resume: Path | None, as_json: bool, **options: Any
) -> None:
    r"""Train a model on UTF-8 text files, or on examples.

    The folder OUT receives the best model in Hub layout, the losses as CSV and PNG, sample texts,
    and a model card. Ctrl-C stops before the next batch; --resume continues the run, also after a
    crash.

    TEXT is any plain text of 100 kB or more. The examples use tiny shakespeare (1.1 MB):
    data/tinyshakespeare/input.txt of https://github.com/karpathy/char-rnn

    \b
      minhub train input.txt --out run --sample "ROMEO:"
      minhub generate run "ROMEO:"
      minhub train notes.txt --from gpt2 --lora 16 --out run
      torchrun --nproc-per-node 2 -m minhub_py train input.txt --out run

    Files with examples (.jsonl, .json, .csv, .tsv, .parquet) need --from. Their columns decide the
    objective: messages, conversations (ShareGPT), or instruction, input and output (Alpaca) for
    chats, with the loss on the replies only; prompt and completion; prompt, chosen and rejected
    (DPO, with --lora); text and label (classification, or regression); anchor, positive and
    optionally negative (text embeddings); text (masked words, with an encoder).

    Options marked with * can change when a run is resumed.
    """
    settings = {name: value for name, value in options.items() if value not in (None, ())}
    if resume is not None and (text or out):
        raise click.UsageError("--resume uses RUN's text and folder: remove TEXT and --out.")
    if resume is None and not text:
        raise click.UsageError(
            "Missing argument 'TEXT': give one or more text files, or --resume RUN."
        )
    folder = out or resume
    if folder is None:
        raise click.UsageError("Missing option '--out': give a new folder for the run.")
    if text.count(Path("-")) > 1:
        raise click.UsageError("Use - once: standard input can be read only once.")
    if "config" in settings:
        settings["config"] = dict(parse_setting(word) for word in settings["config"])

    if "lora" in settings:
        words = [word if "=" in word else f"r={word}" for word in settings["lora"]]
        settings["lora"] = dict(parse_setting(word, "lora") for word in words)

    from minhub_py import training
    from minhub_py.training.progress import ConsoleListener, is_main_process
    from minhub_py.training.summary import read

    console = ConsoleListener(shown=not as_json)
    with use_spelling(ShellSpelling()), note_interrupt(folder, console):
        if resume is not None:
            run = training.resume(resume, listener=console, **settings)
        else:
            sources = [standard_input() if str(path) == "-" else path for path in text]
            run = training.train(sources, folder, listener=console, **settings)
        command, argument = USES.get(run.settings.objective or "text", ("generate", "PROMPT"))
        console.finished(
            run.best, run.unit, folder, f": minhub {command} {shlex.quote(str(folder))} {argument}"
        )
        summary = read(folder)
    if as_json and is_main_process():
        emit(summary.to_json())


@contextmanager
def note_interrupt(folder: Path, console: "ConsoleListener") -> Iterator[None]:
    """Print the command that continues the run when Ctrl-C or SIGTERM ends the process."""
    from minhub_py.training.checkpoint import RunFolder
    from minhub_py.training.progress import is_main_process

    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        console.close()
        if is_main_process():
            files = RunFolder(folder)
            can_continue = files.settings.exists() or files.preparation.exists()
            note(
                f"Stopped. To continue: {ShellSpelling().resume(folder)}"
                if can_continue
                else "Stopped before the first step; nothing was written."
            )
        raise
    finally:
        console.close()


def parse_setting(text: str, option: str = "set") -> tuple[str, object]:
    """Split NAME=VALUE; the value is JSON or text. UsageError: the name or "=" is missing."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise click.UsageError(f"--{option} {text}: use NAME=VALUE, for example window_size=64.")
    try:
        return name, parse(value)
    except ValueError:
        return name, value


@click.command(cls=Command)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Plot the loss curves to this PNG file.",
)
@json_option
def compare(runs: tuple[Path, ...], plot: Path | None, as_json: bool) -> None:
    """Compare runs of `minhub train`.

    Runs are sorted by loss. Losses on text are in nats per character, which is comparable between
    tokenizers. Runs with different units of the loss, such as classifiers and language models, are
    listed in separate tables.
    """
    from minhub_py.training.summary import draw, group_comparable, read

    check_writable(plot)
    with use_spelling(ShellSpelling()):
        groups = group_comparable([read(run) for run in runs])
    if plot is not None:
        if len(groups) > 1:
            units = ", ".join(group[0].compared_unit for group in groups)
            raise click.UsageError(
                f"--plot: the losses of these runs have different units ({units}): plot runs of one"
                " unit."
            )
        draw(groups[0], plot, compared=True)
    if as_json:
        emit([summary.to_json() for group in groups for summary in group])
        return
    for number, group in enumerate(groups):
        if len(groups) > 1:
            say(*[""] * (number > 0), f"Losses in {group[0].compared_unit}")
        show(group)


def show(summaries: Sequence["RunSummary"]) -> None:
    """Print comparable summaries as a table."""
    from minhub_py.training.checkpoint import MEASURES
    from minhub_py.training.summary import HEADINGS, duration, family_title

    measures = [name for name in MEASURES if any(name in run.measures for run in summaries)]
    units = dict.fromkeys((summaries[0].unit.name, summaries[0].compared_unit))
    table(
        [
            "RUN",
            "MODEL",
            "PARAMETERS",
            "TOKENIZER",
            "VOCABULARY",
            "STEPS",
            "BEST AT",
            *map(str.upper, units),
            *(HEADINGS[name].upper() for name in measures),
            "TOKENS/S",
            "TIME",
        ],
        [
            (
                run.name,
                family_title(run.family),
                run.parameters,
                run.tokenizer,
                run.vocab_size,
                run.steps,
                run.best_step,
                *(f"{loss:.4f}" for loss in (run.loss, run.compared_loss)[: len(units)]),
                *(f"{run.measures[name]:.4f}" if name in run.measures else "" for name in measures),
                f"{run.tokens_per_second:,.0f}",
                duration(run.seconds),
            )
            for run in summaries
        ],
    )
