"""The `minhub` command. Whatever needs PyTorch or the network is imported inside the commands, so that --help is quick.

Results go to standard output, everything else to standard error. Exit status: 0 done, 1 the work failed, 2 the call
was wrong.
"""

import json
import math
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from minhub_py import __version__
from minhub_py.bench import CASES
from minhub_py.completion import Model
from minhub_py.console import (
    Bytes,
    Group,
    check_files,
    emit,
    note,
    progress_bar,
    remember_debug,
    say,
    table,
    unread_pipe,
)
from minhub_py.files import hub
from minhub_py.files.hub import size
from minhub_py.printable import displayed
from minhub_py.registry import FAMILIES


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "-V", "--version", prog_name="minhub")
@click.option("--debug", is_flag=True, expose_value=False, callback=remember_debug, help="Show tracebacks.")
def main() -> None:
    """Download, check, convert and run language models of the Hugging Face Hub.

    MODEL is a repository (gpt2, EleutherAI/gpt-neo-125m), a local folder, or a built-in model such as
    minhub/shakespeare-gpt2, which needs no network:

      minhub generate minhub/shakespeare-gpt2 "ROMEO:"

    `minhub COMMAND --help` describes a command.
    """


model_argument = click.argument("model", type=Model())
revision_option = click.option("--revision", default="main", show_default=True, help="Branch, tag or commit.")
json_option = click.option("--json", "as_json", is_flag=True, help="Machine-readable output on standard output.")
device_option = click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1, mps or xpu.")
dtype_choice = click.Choice(["float32", "bfloat16", "float16"])
dtype_option = click.option(
    "--dtype",
    type=click.Choice(["auto", *dtype_choice.choices]),
    default="auto",
    show_default=True,
    help="Of the weights.",
)


quantize_option = click.option(
    "--quantize",
    type=click.Choice(["int8", "nf4"]),
    help="Weights in 8 or 4 bits: on a CPU faster, and a little different.",
)


def readable(folder: Path) -> None:
    """Before weights are downloaded: is there code for the model? ValueError says what is missing."""
    from minhub_py.files.storage import Checkpoint
    from minhub_py.pretrained import describe

    describe(Checkpoint(folder))


def holds_model(name: str) -> bool:
    """Whether a file of this name belongs to a checkpoint that should not be written over by mistake."""
    return name == "config.json" or name.endswith((".safetensors", ".bin", ".pt"))


@main.command("list")
@json_option
def list_models(as_json: bool) -> None:
    """Show built-in and cached models."""
    built_in = [
        (f"minhub/{path.name}", hub.folder_size(path)) for path in sorted(hub.BUILTIN.iterdir()) if path.is_dir()
    ]
    cached = hub.cached_models()
    sizes = [(name, family.name) for family in FAMILIES.values() for name in family.published]
    if as_json:
        emit({
            "built_in": [{"model": name, "bytes": count} for name, count in built_in],
            "cached": [{**asdict(model), "folder": str(model.folder)} for model in cached],
            "presets": [{"name": name, "family": family} for name, family in sizes],
        })  # fmt: skip
        return
    table(["BUILT-IN MODEL", "SIZE"], [(name, size(count)) for name, count in built_in])
    click.echo()
    if cached:
        state = {True: "complete", False: "not complete: minhub download"}
        table(
            ["IN THE CACHE", "REVISION", "SIZE", "STATE"],
            [(m.repository, ", ".join(m.revisions) or m.commit[:7], size(m.size), state[m.complete]) for m in cached],
        )
    else:
        click.echo("Nothing in the cache of the Hub yet: minhub download REPO")
    click.echo()
    table(["PUBLISHED SIZE", "FAMILY"], sizes)
    click.echo('\nTry: minhub generate minhub/shakespeare-gpt2 "ROMEO:"')


@main.command()
@click.argument("repo", type=Model(local=False))
@revision_option
@click.option("--dry-run", is_flag=True, help="Only show what would be fetched.")
@json_option
def download(repo: str, revision: str, dry_run: bool, as_json: bool) -> None:
    """Fetch REPO into the local cache.

    Every file is checked by its hash. One format of weights is fetched, safetensors before .bin. A download that
    was interrupted continues where it stopped. For gated and private repositories set HF_TOKEN.
    """
    if repo.startswith("minhub/"):
        raise click.UsageError(f"{repo} ships with the package: there is nothing to download.")
    plan = hub.plan(repo, revision)
    folder = None
    if not dry_run:
        folder = hub.download(plan)
    if as_json:
        emit({**asdict(plan), "total_bytes": plan.total_bytes, "missing_bytes": plan.missing_bytes,
              "folder": folder and str(folder)})  # fmt: skip
    elif dry_run:
        table(["FILE", "SIZE", ""], [(f.name, size(f.size), "in the cache" if f.cached else "") for f in plan.files])
        say("", f"{repo} at {plan.commit[:7]}: {size(plan.missing_bytes)} of {size(plan.total_bytes)} to fetch")
    else:
        say(str(folder))


@main.command()
@model_argument
@revision_option
@click.option("--tensors", is_flag=True, help="List every tensor, not only one layer's.")
@json_option
def inspect(model: str, revision: str, tensors: bool, as_json: bool) -> None:
    """Show MODEL's settings, sizes and tensors.

    No weights are downloaded or read; a published size (gpt2-xl) needs no network at all.
    """
    from minhub_py.inspection import inspect as look

    report = look(model, revision)
    if as_json:
        emit(report)
        return
    source = report["source"]
    where = {
        "preset": "a published size; not on this machine",
        "config": "from its config.json; weights not downloaded",
    }
    say(f"{model}: {report['class']}", bold=True)
    say(where.get(source["kind"]) or f"{source['folder']} ({source['layout']} layout)")
    count = report["parameters"]["total"]
    click.echo(f"\n{count:,} parameters: {size(4 * count)} in float32, {size(2 * count)} in 16 bits\n")
    parts = [(name, n, f"{100 * n / count:.1f} %") for name, n in report["parameters"].items() if name != "total"]
    table(["PART", "PARAMETERS", "SHARE"], parts)
    click.echo()
    table(["SETTING", "VALUE"], [(name, json.dumps(value)) for name, value in report["config"].items()])
    click.echo()
    rows = [(t["hub"], t["native"] or "-", t["operation"], "×".join(map(str, t["shape"])), t["dtype"])
            for t in report["tensors"]]  # fmt: skip
    shown = rows if tensors else _one_layer(rows)
    table(["TENSOR ON THE HUB", "TENSOR HERE", "OPERATION", "SHAPE", "DTYPE"], shown)
    if len(shown) < len(rows):
        click.echo(f"{{}} is the layer; {len(rows)} tensors in all (--tensors lists them)")


def _one_layer(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Rows with the layer's number as {}, each once."""
    return list(dict.fromkeys(tuple(re.sub(r"\.\d+\.|(?<=_l)\d+$", lambda m: ".{}." if "." in m[0] else "{}", cell)
                                    for cell in row) for row in rows))  # fmt: skip


def check_out(out: Path, to: str, overwrite: bool, source: Path | None) -> None:
    """Before anything is fetched: may `convert` write OUT? UsageError says why not."""
    is_file = to == "torchscript"
    if is_file and (out.suffix != ".pt" or out.is_dir()):
        raise click.UsageError("--to torchscript writes one file: give OUT a name that ends in .pt and is no folder's.")
    if not is_file and out.is_file():
        raise click.UsageError(f"--to {to} writes a folder, and {out} is a file: name another.")
    folder = out.parent if is_file else out
    if source is not None and folder.exists() and folder.resolve() == source.resolve():
        raise click.UsageError("OUT is the folder of MODEL itself: name another.")
    if overwrite or not out.exists():
        return
    if is_file:
        raise click.UsageError(f"{out} exists already: name another file, or give --overwrite.")
    if held := sorted(path.name for path in out.iterdir() if holds_model(path.name)):
        raise click.UsageError(f"{out} holds {held[0]} already: name another folder, or give --overwrite.")


@main.command()
@model_argument
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--to", type=click.Choice(["hub", "native", "torchscript"]), default="hub", show_default=True,
              help="hub: as transformers reads it. native: this package's own names and shapes. torchscript: one file "
                   "that R torch (jit_load) and C++ run without Python.")  # fmt: skip
@click.option("--dtype", type=dtype_choice, help="Of the weights; as they are, if not given.")
@click.option("--max-shard-size", type=Bytes(), default="5GB", show_default=True, help="Of one file: 500MB, 2GB …")
@click.option("--overwrite", is_flag=True, help="Replace a checkpoint that is in OUT, or is OUT, already.")
@revision_option
@json_option
def convert(
    model: str,
    out: Path,
    to: Any,
    dtype: str | None,
    max_shard_size: int,
    overwrite: bool,
    revision: str,
    as_json: bool,
) -> None:
    """Write MODEL to OUT in another form.

    OUT is a folder; with --to torchscript it is a file, whose name ends in .pt. Layout, dtype and shard size can
    change. A few tensors are in memory at a time; for torchscript the whole model is. Nothing in OUT changes until
    all is written.
    """
    given = click.get_current_context().get_parameter_source("max_shard_size")
    if to == "torchscript" and given is not click.core.ParameterSource.DEFAULT:
        raise click.UsageError("--to torchscript writes one file: --max-shard-size is for the other forms.")
    source = hub.locate(model)
    check_out(out, to, overwrite, source)
    folder = source or hub.fetch(model, revision, check=readable)

    from minhub_py.convert import convert as write
    from minhub_py.device import DTYPES
    from minhub_py.files.storage import Checkpoint

    with progress_bar("Converting") as update:
        wanted = DTYPES[dtype] if dtype else None
        checkpoint = Checkpoint(folder)
        write(checkpoint, out, to=to, dtype=wanted, max_shard_size=max_shard_size, progress=update)
    files = sorted(path.name for path in out.iterdir()) if out.is_dir() else [out.name]
    if as_json:
        emit({"out": str(out), "layout": to, "files": files})
    else:
        say(f"{out}: {', '.join(files)}" if out.is_dir() else str(out))


@main.command()
@model_argument
@revision_option
@json_option
def verify(model: str, revision: str, as_json: bool) -> None:
    """Check MODEL's files, tensors and values.

    Sizes and SHA-256 are compared with what the Hub declares, every tensor with the weight table and the config;
    values must be finite. The exit status is 1 if anything is wrong.
    """
    from minhub_py.inspection import verify as check

    with progress_bar("Checking") as update:
        report = check(model, revision, progress=update)
    if as_json:
        emit(report)
    else:
        say(report["folder"], f"checked: {'; '.join(report['checked'])}")
        for problem in report["problems"]:
            say(f"PROBLEM: {problem}", fg="red")
        if not report["problems"]:
            click.echo("all is well")
    if report["problems"]:
        sys.exit(1)


@main.command()
@model_argument
@click.argument("prompt", required=False, metavar="PROMPT")
@click.option("-n", "--max-new-tokens", type=click.IntRange(min=0), default=64, show_default=True,
              help="Number of tokens to generate, at most.")  # fmt: skip
@click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="Divides the logits; 0 takes the likeliest token each time.",
)
@click.option("--top-k", type=click.IntRange(min=1), help="Sample from the k likeliest tokens.")
@click.option(
    "--top-p",
    type=click.FloatRange(0, 1, min_open=True),
    help="Sample from the fewest likeliest tokens that reach probability p.",
)
@click.option(
    "--repetition-penalty",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Above 1: repeat less of the text.",
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="The same seed gives the same text.")
@click.option("--stop", multiple=True, help="End the text at this string; may be given several times.")
@click.option("--speculate", type=click.IntRange(min=0), default=0, show_default=True,
              help="Guess up to so many tokens from what the text repeats: the same text, sooner.")  # fmt: skip
@revision_option
@device_option
@dtype_option
@quantize_option
@json_option
def generate(
    model: str, prompt: str | None, max_new_tokens: int, seed: int | None, stop: tuple[str, ...], revision: str,
    device: str, dtype: str, quantize: str | None, as_json: bool, **sampling: Any,
) -> None:  # fmt: skip
    """Generate text that continues PROMPT.

    The text appears as it is generated. With "-" as PROMPT, the prompt is read from standard input.
    """
    if prompt is None:
        raise click.UsageError("Missing argument 'PROMPT'. To read it from standard input, give - as PROMPT.")
    if "" in stop:
        raise click.BadParameter("a stop string cannot be empty", param_hint="'--stop'")
    from_pipe = prompt == "-"
    if from_pipe:
        prompt = decode(sys.stdin.buffer.read(), "standard input")
    network, tokenizer = _open(model, revision, device, dtype, quantize)
    ids = encode(tokenizer, prompt)
    if not ids:
        raise click.BadParameter("it has no token that MODEL knows; give it some text", param_hint="'PROMPT'")
    if not from_pipe and unread_pipe():
        note("Note: what is piped in is not read; give - as PROMPT for that.")

    from minhub_py.files.tokenizer import decode_stream, until
    from minhub_py.inference.generate import stream as make

    made: list[int] = []
    started = time.perf_counter()
    new = make(network, ids, max_new_tokens, seed=seed, stop=stop, tokenizer=tokenizer, **sampling)
    pieces = until(decode_stream(tokenizer, keep(new, made), ids), stop)
    if as_json:
        text = "".join(pieces)
        speed = len(made) / (time.perf_counter() - started)
        emit({"model": model, "prompt": prompt, "text": text, "ids": made, "tokens_per_second": speed})
        return
    # A file, or a program, gets the text as it is; click.echo would take escape sequences out.
    shown = displayed if sys.stdout.isatty() else str
    sys.stdout.write(shown(prompt))
    for piece in pieces:
        sys.stdout.write(shown(piece))
        sys.stdout.flush()
    click.echo()


def keep(items: Iterable[int], kept: list[int]) -> Iterator[int]:
    """Pass `items` on, and remember them."""
    for item in items:
        kept.append(item)
        yield item


def decode(data: bytes, where: str) -> str:
    """UTF-8 text. ValueError: it is none."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{where} is not UTF-8 text ({error.reason} at byte {error.start}): convert it first"
        ) from error


def _open(model: str, revision: str, device: str, dtype: str, quantize: str | None) -> tuple[Any, Any]:
    """The model and its tokenizer."""
    from minhub_py.files.storage import Checkpoint
    from minhub_py.files.tokenizer import read_tokenizer
    from minhub_py.pretrained import load

    def check(folder: Path) -> None:
        readable(folder)
        read_tokenizer(folder)

    folder = hub.fetch(model, revision, check=check)
    tokenizer = read_tokenizer(folder)
    return load(Checkpoint(folder), device=device, dtype=dtype, quantize=quantize), tokenizer


def encode(tokenizer: Any, text: str) -> list[int]:
    """The ids of a text; a note where characters are not in the vocabulary. ValueError: it is no text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:  # bytes of a command line that are no UTF-8
        raise ValueError("PROMPT is not UTF-8 text: convert it first") from error
    from minhub_py.files.tokenizer import describe_unknown, unknown_characters, working

    with working(tokenizer):
        ids: list[int] = tokenizer.encode(text).ids
        lost = unknown_characters(tokenizer, text, ids)
    if lost:
        note(f"Note: {describe_unknown(tokenizer, lost)}")
    return ids


@main.command()
@model_argument
@click.argument("file", type=click.File("rb"))
@revision_option
@device_option
@dtype_option
@quantize_option
@json_option
def score(model: str, file: Any, revision: str, device: str, dtype: str, quantize: str | None, as_json: bool) -> None:
    """Measure how well MODEL predicts a text.

    Prints the perplexity of the text in FILE ("-" is standard input); --json adds the log-probability of each
    token. A text longer than the model's context is read in overlapping windows, each half new.
    """
    where = getattr(file, "name", "standard input")
    text = decode(file.read(), where)
    network, tokenizer = _open(model, revision, device, dtype, quantize)
    ids = encode(tokenizer, text)
    if len(ids) < 2:
        raise ValueError(f"{where} has {len(ids)} tokens: there is nothing to predict with fewer than 2")

    from minhub_py.inference.generate import score as evaluate

    with progress_bar("Scoring", "tokens") as update:
        [scores] = evaluate(network, [ids], progress=update)
    nats = -scores.double().sum().item()
    characters = len(tokenizer.decode(ids[1:]))  # the first token is not predicted
    result = {
        "model": model, "tokens": len(scores), "characters": characters, "nats": nats,
        "nats_per_token": nats / len(scores), "perplexity": float((-scores.double().mean()).exp()),
        "bits_per_character": nats / math.log(2) / max(characters, 1),
    }  # fmt: skip
    if as_json:
        pairs = zip(ids[1:], scores.tolist(), strict=True)
        emit(
            {**result, "scores": [{"id": id, "token": tokenizer.decode([id]), "logprob": value} for id, value in pairs]}
        )
        return
    table(["MEASURE", "VALUE"], [
        ("tokens scored", result["tokens"]), ("characters in them", result["characters"]),
        ("nats per token", f"{result['nats_per_token']:.4f}"), ("perplexity", f"{result['perplexity']:.3f}"),
        ("bits per character", f"{result['bits_per_character']:.4f}"),
    ])  # fmt: skip


def training_options(command: Any) -> Any:
    """Those of `train`, in the order of its help; `train.settings.Settings` has their defaults and checks them."""
    whole, part = click.IntRange(min=1), click.FloatRange(0, 1)
    options = [
        click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="The run's folder."),
        click.option("--resume", type=click.Path(path_type=Path, file_okay=False), metavar="RUN",
                     help="Continue this run from its last checkpoint; without TEXT, and only with options marked *."),
        click.option("--family", type=click.Choice(list(FAMILIES)), help="Architecture.  [default: gpt2]"),
        click.option("--from", "start", type=Model(), help="Fine-tune this model instead of a fresh one."),
        click.option("--tokenizer", metavar="KIND", help="characters, bpe (learnt from TEXT), or that of a MODEL.  "
                                                         "[default: characters, or that of --from]"),
        click.option("--vocab-size", type=click.IntRange(min=257), help="Of the bpe.  [default: 4096]"),
        click.option("--layers", type=whole, help="Number of blocks.  [default: 4; lstm: 2]"),
        click.option("--width", type=whole, help="Channels, or the LSTM's hidden size.  [default: 128; lstm: 256]"),
        click.option("--heads", type=whole, help="Attention heads.  [default: one for 32 channels]"),
        click.option("--context", type=whole,
                     help="Tokens of a row; a transformer's positions.  [default: 128; --from: its own, to 1024]"),
        click.option("--dropout", type=part,
                     help="Of embeddings, residuals, LSTM layers.  [default: 0.1, or that of --from]"),
        click.option("--set", "config", multiple=True, metavar="NAME=VALUE",
                     help="A further setting of config.json: window_size=64; may be given several times."),
        click.option("--steps", type=whole, help="* Optimizer steps.  [default: 2000]"),
        click.option("--batch", type=whole, help="Rows of a step, of all processes together.  [default: 32]"),
        click.option("--accumulate", type=whole, help="Read them in so many pieces, with less memory.  [default: 1]"),
        click.option("--learning-rate", type=float, help="Its peak.  [default: 0.0015; lstm: 0.003; --from: a tenth]"),
        click.option("--warm-up", type=click.IntRange(min=0), help="Steps until the peak.  [default: 100]"),
        click.option("--floor", type=part, help="What the cosine ends at, of the peak.  [default: 0.1]"),
        click.option("--weight-decay", type=float, help="Of matrices.  [default: 0.1]"),
        click.option("--beta2", type=float, help="Of AdamW.  [default: 0.99]"),
        click.option("--clip", type=float, help="The largest norm of the gradients; 0: any.  [default: 1]"),
        click.option("--carry/--no-carry", default=None,
                     help="LSTM: rows follow on, and its state is carried.  [default: carry]"),
        click.option("--held-out", type=part, help="The part of TEXT, its last, that measures.  [default: 0.1]"),
        click.option("--evaluate-every", type=whole, metavar="STEPS",
                     help="* Measure the held-out loss this often.  [default: 250]"),
        click.option("--evaluate-tokens", type=whole, help="At most, spread over that part.  [default: 1048576]"),
        click.option("--checkpoint-every", type=whole, metavar="STEPS", help="* Save this often.  [default: 250]"),
        click.option("--patience", type=whole, help="* Stop after so many evaluations without a lower loss."),
        click.option("--sample", metavar="PROMPT", help="* Generate text from it at each evaluation."),
        click.option("--sample-tokens", type=whole, help="* Length of that text.  [default: 200]"),
        click.option("--seed", type=click.IntRange(0, 2**63 - 1),
                     help="Of weights, batches and dropout.  [default: 1337]"),
        click.option("--device", help="* auto, cpu, cuda, cuda:1, mps or xpu.  [default: auto]"),
        click.option("--dtype", type=click.Choice(["auto", "float32", "bfloat16"]),
                     help="Of products; weights are float32.  [default: bfloat16 on CUDA]"),
        click.option("--compile/--no-compile", default=None, help="* With torch.compile.  [default: no-compile]"),
        click.option("--parallel", type=click.Choice(["ddp", "fsdp"]), help="* Under torchrun.  [default: ddp]"),
        click.option("--threads", type=whole, help="* Of the CPU.  [default: all]"),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@main.command()
@click.argument("text", nargs=-1, type=click.Path(path_type=Path))
@training_options
@json_option
def train(text: tuple[Path, ...], out: Path | None, resume: Path | None, as_json: bool, **options: Any) -> None:
    r"""Train a model on UTF-8 text files.

    The folder of the run gets the best model in Hub layout, a CSV and a picture of the losses, samples,
    and a model card. Ctrl-C stops after the current step; --resume continues, also after a crash.

    TEXT is any plain text of 100 kB or more. The examples of this package use tiny shakespeare (1.1 MB):
    data/tinyshakespeare/input.txt of https://github.com/karpathy/char-rnn

    \b
      minhub train input.txt --out run --sample "ROMEO:"
      minhub generate run "ROMEO:"
      torchrun --nproc-per-node 2 -m minhub_py.train input.txt --out run

    Options marked with * can change when a run is resumed.
    """
    from minhub_py.train import cli as training

    given = {name: value for name, value in options.items() if value not in (None, ())}
    if resume is not None and (text or out):
        raise click.UsageError("--resume goes on with the text and in the folder of RUN: leave TEXT and --out away.")
    if resume is None and not text:
        raise click.UsageError("Give TEXT, one or more text files; or --resume RUN.")
    if resume is None and out is None:
        raise click.UsageError("Give --out, the folder for the run.")

    run = training.run(text, out, resume, given, live=not as_json)
    if as_json and training.talks():
        emit(run.to_json())


@main.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="Write their curves here, a .png.")
@json_option
def compare(runs: tuple[Path, ...], plot: Path | None, as_json: bool) -> None:
    """Compare runs of `minhub train`.

    The run with the lowest loss comes first. Losses in nats per character can be compared between tokenizers.
    """
    from minhub_py.train import cli as training

    summaries = training.compare(runs, plot)
    if as_json:
        emit([summary.to_json() for summary in summaries])
    else:
        training.show(summaries)


@main.command()
@click.option("--model", type=Model(), help="Measure this one; otherwise random weights of the published sizes.")
@click.option("--only", "names", multiple=True, type=click.Choice(list(CASES)), metavar="CASE",
              help=f"Measure this case alone; may be given several times: {', '.join(CASES)}.")  # fmt: skip
@click.option("--quick", is_flag=True, help="Fewer repeats, dtypes and ids: rough figures soon.")
@click.option("--threads", type=click.IntRange(min=1), help="For all; 2, or the number of cores if there are fewer.")
@click.option("--repeats", type=click.IntRange(min=1), help="Of which medians are taken: 5, or 2 with --quick.")
@click.option("--text", type=click.File("rb"), help="What the case quality reads, instead of a scene of Shakespeare's.")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="Write a picture here, a .png.")
@click.option("--save", type=click.Path(path_type=Path, dir_okay=False), help="Write the result here, as JSON.")
@click.option("--from", "saved", type=click.File("rb"), help="Measure nothing: show what --save has written.")
@click.option("--markdown", is_flag=True, help="Tables for a README.")
@json_option
def bench(
    names: tuple[str, ...], text: Any, plot: Path | None, save: Path | None, saved: Any, markdown: bool,
    as_json: bool, **settings: Any,
) -> None:  # fmt: skip
    """Measure the speed on this machine's CPU.

    Compares this package with transformers and CTranslate2, as far as they are installed (pip install
    transformers ctranslate2). Needs no network. Takes twenty minutes; with --quick a few.
    """
    from minhub_py.bench import cli as benchmark

    if markdown and as_json:
        raise click.UsageError("--markdown and --json are two forms of one output: give one of them.")
    measured = {**settings, "text": text, "save": save}
    if saved and (given := [name for name, value in measured.items() if value]):
        raise click.UsageError(f"--from measures nothing: leave out --{given[0]}.")

    check_files(plot, save)
    live = not (markdown or as_json)
    if saved:
        result = benchmark.read(decode(saved.read(), saved.name), saved.name, names)
        if live:
            benchmark.show(result)
    else:
        passage = decode(text.read(), text.name) if text else ""
        result = benchmark.run(names, save, live, text=passage, **settings)
    if plot:
        benchmark.draw(result, plot)
    if as_json:
        emit(result)
    elif markdown:
        benchmark.show_markdown(result)
    if result["failed"]:
        sys.exit(1)


@main.command()
@json_option
def devices(as_json: bool) -> None:
    """Show the devices found, and what "auto" picks."""
    from minhub_py.device import devices as probe

    report = probe()
    if as_json:
        emit(asdict(report))
    else:
        click.echo(str(report))


@main.command()
@json_option
def doctor(as_json: bool) -> None:
    """Check the installation.

    Reports what is missing or does not fit, with the next step; then the exit status is 1. Nothing is changed, and
    no connection is opened.
    """
    from minhub_py.doctor import examine

    findings = examine()
    if as_json:
        emit([asdict(finding) for finding in findings])
    else:
        rows = [("ok" if f.fits else "NO", f.what, f.found + (f" -> {f.advice}" if f.advice else "")) for f in findings]
        table(["", "WHAT", "FOUND"], rows)
    if not all(finding.fits for finding in findings):
        sys.exit(1)


@main.command("r", context_settings={"allow_interspersed_args": False})
@click.argument("arguments", nargs=-1, metavar="[SCRIPT] [ARGS]...")
@click.option("-e", "expressions", multiple=True, metavar="EXPR", help="Run R code; may be given several times.")
@click.option("--install", is_flag=True, help="Install minhubpy into your own R library, and do nothing else.")
def run_r(arguments: tuple[str, ...], expressions: tuple[str, ...], install: bool) -> None:
    """Run R in this process, with minhubpy.

    With SCRIPT ("-" is standard input) or -e like Rscript, otherwise R's prompt. The models run in this process too.
    """
    from r_bridge.host import command

    if install:
        command.install_for_user()
    else:
        command.run(expressions, arguments)


if __name__ == "__main__":
    main()
