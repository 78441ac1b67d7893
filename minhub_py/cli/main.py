"""The `minhub` command. Commands import PyTorch and network code when they run, so that --help is fast.

Results go to standard output, everything else to standard error. Exit status: 0 done, 1 the work failed, 2 the call
was wrong.
"""

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypeVar

import click

from minhub_py import __version__
from minhub_py.checkpoints import cache, hub
from minhub_py.checkpoints.hub import size
from minhub_py.cli import jobs as tables
from minhub_py.cli.bench import CASES, KINDS
from minhub_py.cli.completion import Model
from minhub_py.inference.limits import check_sampling, stop_strings
from minhub_py.registry import ENTRIES, FAMILIES
from minhub_py.system.console import (
    Bytes,
    Group,
    check_writable,
    emit,
    name_of,
    note,
    progress_bar,
    remember_debug,
    say,
    table,
    unread_pipe,
)
from minhub_py.system.printable import displayed
from minhub_py.together import connected, shareable, told

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from minhub_py.checkpoints.storage import Checkpoint, Layout
    from minhub_py.inference.processes import Processes

F = TypeVar("F", bound=Callable[..., None])
TRAINABLE = [name for name, entry in ENTRIES.items() if entry.family.trainable]


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "-V", "--version", prog_name="minhub")
@click.option("--debug", is_flag=True, expose_value=False, callback=remember_debug, help="Show tracebacks.")
def main() -> None:
    """Download, check, convert, run and train language models from the Hugging Face Hub.

    MODEL is a repository on the Hub (gpt2, EleutherAI/gpt-neo-125m), a local folder, a GGUF file (model.gguf, or
    owner/name:model.gguf on the Hub), or a built-in model such as minhub/shakespeare-gpt2, which needs no network:

      minhub generate minhub/shakespeare-gpt2 "ROMEO:"

    Run `minhub COMMAND --help` for the options of a command.
    """


model_argument = click.argument("model", type=Model())
revision_option = click.option(
    "--revision", default="main", show_default=True, help="Branch, tag or commit on the Hub."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
device_option = click.option(
    "--device", default="auto", show_default=True, help="Device: auto, cpu, cuda, cuda:1, mps or xpu."
)
dtype_choice = click.Choice(["float32", "bfloat16", "float16"])
dtype_option = click.option(
    "--dtype",
    type=click.Choice(["auto", *dtype_choice.choices]),
    default="auto",
    show_default=True,
    help="Dtype of the weights; auto keeps that of the checkpoint if the device supports it, and is float32 beside "
    "--quantize int8 or nf4 on a CPU.",
)


quantize_option = click.option(
    "--quantize",
    type=click.Choice(["auto", "none", "int8", "nf4"]),
    help="int8, nf4: store weights in 8 or 4 bits, which is faster on a CPU and slightly less accurate; with --dtype "
    "bfloat16 prompts are read faster still. auto: compute with the quantized weights of a GGUF file, without loss; "
    "the default for such files on a CPU, unless --dtype is set. none: turn them into floating point.",
)


def checked_setting(_: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """A setting within its range. BadParameter: it is not, with the message of the Python functions."""
    try:
        if parameter.name == "stop":
            return stop_strings(value)
        if value is not None:
            check_sampling(str(parameter.name), value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return value


def sampling_options(*, chat: bool = False) -> Callable[[F], F]:
    """Options for the choice of tokens and the end of a text. chat: an unset option is None, the model's default."""
    published = "  [default: the value in the model's generation_config.json, else {}]"
    temperature, top_k, top_p, penalty = map(published.format, ("0.7", "none", "0.95", "1")) if chat else [""] * 4
    neutral: dict[str, Any] = {} if chat else {"default": 1.0, "show_default": True}
    options = [
        click.option("--temperature", type=float, callback=checked_setting, **neutral,
                     help=f"Divides the logits; 0 always takes the most likely token.{temperature}"),
        click.option("--top-k", type=int, callback=checked_setting,
                     help=f"Sample from the k most likely tokens.{top_k}"),
        click.option("--top-p", type=float, callback=checked_setting,
                     help=f"Sample from the smallest set of most likely tokens whose probabilities sum to p.{top_p}"),
        click.option("--repetition-penalty", type=float, callback=checked_setting, **neutral,
                     help=f"Values above 1 reduce repetition.{penalty}"),
        click.option("--seed", type=click.IntRange(0, 2**63 - 1),
                     help="Random seed; the same seed gives the same text."),
        click.option("--stop", multiple=True, callback=checked_setting,
                     help="End the text before this string; may be given several times."),
    ]  # fmt: skip

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def holds_model(name: str) -> bool:
    """Whether a file of this name belongs to a checkpoint that must not be overwritten by mistake."""
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
        state = {True: "complete", False: "incomplete: minhub download"}
        table(
            ["CACHED MODEL", "REVISION", "SIZE", "STATE"],
            [(m.repository, ", ".join(m.revisions) or m.commit[:7], size(m.size), state[m.complete]) for m in cached],
        )
    else:
        click.echo("No cached models yet. To download one: minhub download REPO")
    click.echo()
    table(["PUBLISHED SIZE", "FAMILY"], sizes)
    click.echo('\nTry: minhub generate minhub/shakespeare-gpt2 "ROMEO:"')


@main.command()
@click.argument("repo", type=Model(local=False))
@revision_option
@click.option("--dry-run", is_flag=True, help="Only show what would be downloaded.")
@json_option
def download(repo: str, revision: str, dry_run: bool, as_json: bool) -> None:
    """Download REPO into the local cache.

    The hash of every file is verified. If a repository has weights in several formats, only one is downloaded,
    safetensors rather than .bin. An interrupted download continues where it stopped. For gated and private
    repositories, set HF_TOKEN.
    """
    if repo.startswith("minhub/"):
        raise click.UsageError(f"{repo} ships with the package: there is nothing to download.")
    plan = hub.plan_download(repo, revision)
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
@click.argument("repo", type=Model(local=False))
@click.option("--revision", help="Branch, tag or commit to delete. By default all cached revisions.")
@click.option("-y", "--yes", is_flag=True, help="Delete without asking for confirmation.")
@json_option
def delete(repo: str, revision: str | None, yes: bool, as_json: bool) -> None:
    """Delete REPO from the local cache.

    REPO is a repository, or one GGUF file of it (owner/name:file.gguf). `minhub list` shows cached models. Files that
    other cached revisions use are kept.
    """
    if repo.startswith("minhub/"):
        raise click.UsageError(f"{repo} ships with the package and cannot be deleted.")
    plan = cache.plan_deletion(repo, revision)
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError(f"Deleting {repo} needs a confirmation: add --yes.")
        commits = ", ".join(commit[:7] for commit in plan.commits)
        click.confirm(f"Delete {displayed(repo)} ({commits}; {size(plan.size)})?", abort=True, err=True)
    cache.delete(plan)
    if as_json:
        emit({"repository": repo, "commits": plan.commits, "freed_bytes": plan.size})
    else:
        say("", f"Deleted {displayed(repo)}: {size(plan.size)} freed")


@main.command()
@model_argument
@revision_option
@click.option("--tensors", is_flag=True, help="List all tensors, not only those of one layer.")
@json_option
def inspect(model: str, revision: str, tensors: bool, as_json: bool) -> None:
    """Show the settings, sizes and tensors of MODEL.

    No weights are downloaded or read. Published sizes such as gpt2-xl need no network.
    """
    from minhub_py.inspection import inspect as look

    report = look(model, revision)
    if as_json:
        emit(report)
        return
    source = report["source"]
    origin = {
        "preset": "published size; not downloaded",
        "config": "from config.json; weights not downloaded",
        "hub": "hub layout",
        "native": "native layout",
        "gguf": "GGUF file",
    }
    say(f"{model}: {report['class']}", bold=True)
    if source["kind"] == "files":
        say(f"{source['folder']} ({origin[source['layout']]})")
    else:
        say(origin[source["kind"]])
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
        click.echo(f"{{}} is the layer number; {len(rows)} tensors in all (list them with --tensors)")


def _one_layer(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The rows with the layer number replaced by {}, without duplicates."""
    return list(dict.fromkeys(tuple(re.sub(r"\.\d+\.|(?<=_l)\d+$", lambda m: ".{}." if "." in m[0] else "{}", cell)
                                    for cell in row) for row in rows))  # fmt: skip


def check_out(out: Path, to: str, overwrite: bool, source: Path | None) -> None:
    """Check before any download that `convert` may write OUT. UsageError: it may not."""
    is_file = to == "torchscript"
    if is_file and (out.suffix != ".pt" or out.is_dir()):
        raise click.UsageError("--to torchscript writes one file: OUT must end in .pt and must not be a folder.")
    if not is_file and out.suffix == ".pt":
        raise click.UsageError(
            f"--to {to} writes a folder, and {out} is a name for a file: give --to torchscript, or name a folder."
        )
    if not is_file and out.is_file():
        raise click.UsageError(f"--to {to} writes a folder, but {out} is a file: name another.")
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
              help="hub: the layout of transformers. native: the tensor names and shapes of this package. torchscript: "
                   "one file that R torch (jit_load) and C++ can run without Python.")  # fmt: skip
@click.option("--dtype", type=dtype_choice, help="Dtype of the weights.  [default: unchanged]")
@click.option("--max-shard-size", type=Bytes(), default="5GB", show_default=True,
              help="Maximum size of one weights file, such as 500MB or 2GB.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace an existing checkpoint.")
@revision_option
@json_option
def convert(
    model: str,
    out: Path,
    to: 'Layout | Literal["torchscript"]',
    dtype: str | None,
    max_shard_size: int,
    overwrite: bool,
    revision: str,
    as_json: bool,
) -> None:
    """Convert MODEL to another layout, dtype or shard size.

    OUT is a folder; with --to torchscript it is a file whose name ends in .pt. Only a few tensors are in memory at a
    time, except with --to torchscript. OUT is unchanged until everything is written.
    """
    given = click.get_current_context().get_parameter_source("max_shard_size")
    if to == "torchscript" and given is not click.core.ParameterSource.DEFAULT:
        raise click.UsageError("--to torchscript writes one file: --max-shard-size is for the other layouts.")
    source = hub.locate(model)
    check_out(out, to, overwrite, source)

    from minhub_py.export.convert import convert as write
    from minhub_py.pretrained import open_checkpoint
    from minhub_py.system.device import DTYPES

    checkpoint = open_checkpoint(model, revision)
    with progress_bar("Converting") as update:
        wanted = DTYPES[dtype] if dtype else None
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
    """Check the files, tensors and values of MODEL.

    Compares file sizes and SHA-256 hashes with those on the Hub, and every tensor with the weights table and the
    config. All values must be finite. The exit status is 1 if there is a problem.
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
            click.echo("no problems found")
    if report["problems"]:
        sys.exit(1)


@main.command()
@model_argument
@click.argument("prompts", nargs=-1, metavar="PROMPT | FILE...")
@click.option("-n", "--max-new-tokens", type=click.IntRange(min=0), default=64, show_default=True,
              help="Maximum number of tokens to generate.")  # fmt: skip
@sampling_options()
@click.option("--speculate", type=click.IntRange(min=0), default=0, show_default=True,
              help="Guess up to this many tokens from repetitions in the text: the same result, faster.")  # fmt: skip
@tables.table_options()
@revision_option
@device_option
@dtype_option
@quantize_option
@json_option
@shareable
def generate(
    model: str, prompts: tuple[str, ...], max_new_tokens: int, seed: int | None, stop: tuple[str, ...], revision: str,
    device: str, dtype: str, quantize: str | None, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Generate text that continues PROMPT.

    The text is printed as it is generated. With "-" as PROMPT, the prompt is read from standard input. A model with an
    encoder and a decoder, such as T5, answers PROMPT, and only the answer is printed.

    With --out, each row of FILEs has a prompt in its --column, and gets a new column `generated`. See `minhub score`
    for what FILEs may be, and for what happens when the work is interrupted. Row n, from 0, gets the text that its
    prompt alone gets with --seed SEED + n.
    """
    if not prompts and options["out"]:
        raise click.UsageError("Missing argument 'FILE'. With --out, give the files that have the prompts.")
    if not prompts:
        raise click.UsageError("Missing argument 'PROMPT'. To read it from standard input, give - as PROMPT.")
    if rows := tables.take(options):
        settings = {**options, "max_new_tokens": max_new_tokens, "seed": seed, "stop": stop}
        loading = {"revision": revision, "device": device, "dtype": dtype, "quantize": quantize}
        tables.run("generate", model, prompts, rows, settings, loading, as_json)
        return
    if len(prompts) > 1:
        raise click.UsageError("Give one PROMPT, in quotes; for the rows of FILEs give --out, too.")
    [prompt] = prompts
    processes = connected(device)
    from_pipe = prompt == "-"
    if from_pipe:
        prompt = told(processes, lambda: decode(sys.stdin.buffer.read(), "standard input"))
    network, tokenizer = _open(model, revision, device, dtype, quantize, processes)
    ids = encode(tokenizer, prompt)
    if not ids:
        raise click.BadParameter("it has no token that MODEL knows; give some text", param_hint="'PROMPT'")
    if not from_pipe and unread_pipe():
        note("Note: standard input is not read; to read it, give - as PROMPT.")

    from minhub_py.checkpoints.tokenizers.tokenizer import decode_stream, until
    from minhub_py.inference.generate import stream as make

    made: list[int] = []
    started = time.perf_counter()
    new = make(network, ids, max_new_tokens, seed=seed, stop=stop, tokenizer=tokenizer, **options)
    before = [] if network.encoder_decoder else ids
    pieces = until(decode_stream(tokenizer, keep(new, made), before), stop)
    if as_json:
        text = "".join(pieces)
        speed = len(made) / (time.perf_counter() - started)
        emit({"model": model, "prompt": prompt, "text": text, "ids": made, "tokens_per_second": speed})
        return
    # A pipe or file gets the text unchanged; click.echo would remove escape sequences.
    shown = displayed if sys.stdout.isatty() else str
    if not network.encoder_decoder:
        sys.stdout.write(shown(prompt))
    for piece in pieces:
        sys.stdout.write(shown(piece))
        sys.stdout.flush()
    click.echo()


@main.command()
@model_argument
@click.argument("text", nargs=-1, metavar="")
@click.option("--system", metavar="TEXT", help="System prompt: what the model is told before the conversation.")
@click.option("-n", "--max-new-tokens", type=click.IntRange(min=1), default=512, show_default=True,
              help="Maximum number of tokens of a reply.")  # fmt: skip
@sampling_options(chat=True)
@revision_option
@device_option
@dtype_option
@quantize_option
def chat(
    model: str, text: tuple[str, ...], system: str | None, revision: str, device: str, dtype: str,
    quantize: str | None, **settings: Any,
) -> None:  # fmt: skip
    """Talk with MODEL.

    Type a message and press Enter. Ctrl-C stops a reply and keeps its beginning; /help lists commands; Ctrl-D
    ends the chat. Lines that are pasted are one message.

    If standard input is a pipe or a file, each of its lines is a message, and only the replies are printed.
    """
    if text:
        raise click.UsageError(f"Leave out {text[0]!r:.40}: type messages after the start, or write them into a pipe.")
    if sys.stderr.isatty():
        note(f"Loading {name_of(model)} …", dim=True)

    from minhub_py.chat.wrap import without_echo

    with without_echo():
        network, tokenizer = _open(model, revision, device, dtype, quantize)

    from minhub_py.chat.conversation import Chat
    from minhub_py.chat.terminal import run

    chosen = {name: value for name, value in settings.items() if value is not None}
    run(Chat(network, tokenizer, system, **chosen), name_of(model))


def keep(items: Iterable[int], kept: list[int]) -> Iterator[int]:
    """Yield `items`, and append each to `kept`."""
    for item in items:
        kept.append(item)
        yield item


def decode(data: bytes, where: str) -> str:
    """Decode UTF-8. ValueError: the bytes are not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{where} is not UTF-8 text ({error.reason} at byte {error.start}): convert it first"
        ) from error


def _open(
    model: str, revision: str, device: str, dtype: str, quantize: str | None, processes: "Processes | None" = None
) -> tuple[Any, "Tokenizer"]:
    """Load the model, or this process's part of it, and its tokenizer."""
    from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer
    from minhub_py.pretrained import load, open_checkpoint

    found: list[Any] = []  # before the weights are downloaded

    def check(files: "Checkpoint") -> None:
        found.append(read_tokenizer(files.path))

    checkpoint = open_checkpoint(model, revision, check=check, processes=processes)
    network = load(checkpoint, device=device, dtype=dtype, quantize=quantize, processes=processes)
    note_default(network, quantize)
    return network, found[0]


def note_default(network: Any, quantize: str | None) -> None:
    """Note that a GGUF file's quantized weights are used, unless the user has chosen."""
    from minhub_py.inference.quantize import kind_of

    if quantize is None and (kind := kind_of(network)):
        note(f"Note: weights stay in {kind}, as in the file; --quantize none turns them into floating point.")


def encode(tokenizer: "Tokenizer", text: str) -> list[int]:
    """Encode a text, with a note about characters that are not in the vocabulary. ValueError: it is not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:  # the command line was not UTF-8
        raise ValueError("PROMPT is not UTF-8 text: convert it first") from error
    from minhub_py.checkpoints.tokenizers.tokenizer import describe_unknown, unknown_characters, working

    with working(tokenizer):
        ids: list[int] = tokenizer.encode(text).ids
        lost = unknown_characters(tokenizer, text, ids)
    if lost:
        note(f"Note: {describe_unknown(tokenizer, lost)}")
    return ids


@main.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL...", type=Model())
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 is all of them.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Port; 0 is any free one.")
@click.option("--api-key", metavar="KEY", envvar="MINHUB_API_KEY", show_envvar=True,
              help="Key that clients have to show; needed if --host is not this machine alone.")  # fmt: skip
@click.option("--allow-origin", multiple=True, metavar="URL",
              help="Web page that may call the server from a browser; may be given several times.")  # fmt: skip
@click.option("--rows", type=click.IntRange(min=1), default=8, show_default=True,
              help="Replies that are made at the same time; others wait.")  # fmt: skip
@click.option("--context", type=click.IntRange(min=2), metavar="TOKENS",
              help="Longest prompt and reply together.  [default: the model's, up to 4096]")  # fmt: skip
@click.option("--queue", type=click.IntRange(min=0), default=128, show_default=True,
              help="Requests that may wait; further ones are answered with 429.")  # fmt: skip
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=600.0, show_default=True,
              metavar="SECONDS", help="Longest time for a request.")  # fmt: skip
@click.option("--keep", type=Bytes(), default="512MB", show_default=True,
              help="Memory for texts that were read already; those that begin alike are not read again.")  # fmt: skip
@click.option("--log", is_flag=True, help="Note each request on standard error: its path, status and time.")
@revision_option
@device_option
@dtype_option
@quantize_option
def serve(
    models: tuple[str, ...], host: str, port: int, api_key: str | None, allow_origin: tuple[str, ...], rows: int,
    context: int | None, queue: int, timeout: float, keep: int, log: bool, revision: str, device: str, dtype: str,
    quantize: str | None,
) -> None:  # fmt: skip
    r"""Serve MODELs over HTTP, for programs and for a web browser.

    Open the printed address in a browser to chat. Programs use the same address as that of OpenAI's API
    (http://127.0.0.1:8080/v1) or as that of Ollama (http://127.0.0.1:8080):

    \b
      minhub serve HuggingFaceTB/SmolLM2-135M-Instruct
      curl http://127.0.0.1:8080/v1/models

    Only programs on this machine can connect, unless --host is given. A reply does not depend on what else is served
    at the same time: the same seed gives the same text. Ctrl-C ends the server.
    """
    try:
        from minhub_py.cli import serving
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error.name} is missing: pip install 'minhub_py[serve]'") from error

    if api_key == "":
        raise click.UsageError("--api-key is empty: give a key of some length.")
    serving.check_host(host, api_key)
    serving.run(
        models, lambda name: load_served(name, revision, device, dtype, quantize), host=host, port=port, key=api_key,
        origins=allow_origin, rows=rows, context=context, waiting=queue, seconds=timeout, keep=keep, log=log,
    )  # fmt: skip


def load_served(name: str, revision: str, device: str, dtype: str, quantize: str | None) -> tuple[Any, Any, Any]:
    """A model, its tokenizer and its chat template."""
    from minhub_py.chat.templates import chat_template_of

    network, tokenizer = _open(name, revision, device, dtype, quantize)
    return network, tokenizer, chat_template_of(None, tokenizer)


@main.command()
@model_argument
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@tables.table_options()
@click.option("--target", metavar="COLUMN",
              help="Measure the texts of this column, each after that of --column, or as its answer (T5).")  # fmt: skip
@click.option("--sep", metavar="TEXT",
              help="With --target, joins the two: '' for languages without spaces.  [default: a space]")  # fmt: skip
@revision_option
@device_option
@dtype_option
@quantize_option
@json_option
@shareable
def score(
    model: str, files: tuple[str, ...], target: str | None, sep: str | None, revision: str, device: str, dtype: str,
    quantize: str | None, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    r"""Measure how well MODEL predicts a text.

    Prints the perplexity of the text in FILE ("-" is standard input); --json adds the log-probability of each token.
    A text longer than the model's context is read in windows that overlap by half.

    With --out, each row of FILEs is a text of its own, and the same measures become columns beside it:

    \b
      minhub score gpt2 in.csv --column review --out out.csv
      minhub score gpt2 'texts/*.jsonl' --out scored.parquet

    FILEs may be .csv, .tsv, .jsonl, .parquet (pip install 'minhub_py[tables]'), .txt with one text a line, folders
    of such files, and patterns. If the work is interrupted, by Ctrl-C or a crash, the same command goes on where it
    stopped; what is done lies in OUT.parts until then. It belongs to the weights of MODEL, whose files are hashed
    before the first job (1 GB takes about a second).

    With --target, a second column is measured. Its texts continue the texts of --column, joined by --sep as in
    `target_logprobs()`: neither has white space there. An encoder-decoder such as T5 predicts the answer to
    a text, and --sep has no effect.

    \b
      minhub score gpt2 in.csv --target word --out out.csv
    """
    if sep is not None and target is None:
        raise click.UsageError("--sep joins a text and its target: give --target, too.")
    if rows := tables.take(options):
        loading = {"revision": revision, "device": device, "dtype": dtype, "quantize": quantize}
        if target is None:
            tables.run("score", model, files, rows, {}, loading, as_json)
        else:
            settings = {"sep": " " if sep is None else sep}
            tables.run("score_targets", model, files, rows, settings, loading, as_json, beside=[target])
        return
    if target is not None:
        raise click.UsageError("--target is for the rows of files, whose results need a file too: give --out.")
    if len(files) > 1:
        raise click.UsageError("Give one FILE; for the rows of several give --out, too.")
    if files[0].endswith((".csv", ".tsv", ".jsonl")):
        note(f"Note: {files[0]} is read as one text; for a result of each of its rows give --out, too.")
    where = "standard input" if files[0] == "-" else files[0]

    def read() -> str:
        file: IO[bytes] = click.File("rb").convert(files[0], click.Argument(["file"]), click.get_current_context())
        return decode(file.read(), where)

    processes = connected(device)
    text = told(processes, read)
    from minhub_py.inference.generate import score as evaluate
    from minhub_py.jobs.tasks import NEEDS_TARGETS, measures

    network, tokenizer = _open(model, revision, device, dtype, quantize, processes)
    if network.encoder_decoder:
        raise ValueError(NEEDS_TARGETS)
    ids = encode(tokenizer, text)
    if len(ids) < 2:
        raise ValueError(f"{where} is too short to score: it needs at least 2 tokens and has {len(ids)}")

    with progress_bar("Scoring", "tokens") as update:
        [scores] = evaluate(network, [ids], progress=update)
    result = {"model": model, **measures(tokenizer, ids, scores.tolist())}
    if as_json:
        pairs = zip(ids[1:], scores.tolist(), strict=True)
        emit(
            {**result, "scores": [{"id": id, "token": tokenizer.decode([id]), "logprob": value} for id, value in pairs]}
        )
        return
    table(["MEASURE", "VALUE"], [
        ("tokens scored", result["tokens"]), ("characters scored", result["characters"]),
        ("nats per token", f"{result['nats_per_token']:.4f}"), ("perplexity", f"{result['perplexity']:.3f}"),
        ("bits per character", f"{result['bits_per_character']:.4f}"),
    ])  # fmt: skip


@main.command()
@model_argument
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@tables.table_options()
@click.option("--by", multiple=True, metavar="COLUMN",
              help="Rows are words, those with the same value here a text; may be given several times.")  # fmt: skip
@click.option("--sep", metavar="TEXT",
              help="With --by, what joins words: '' for languages without spaces.  [default: a space]")  # fmt: skip
@click.option("--ignore-regex", default="", metavar="REGEX",
              help=r"Tokens that add nothing to a word: '^[^\w\s]$' leaves out punctuation.")  # fmt: skip
@click.option("--bos/--no-bos", default=None,
              help="Begin texts with the model's token for that, so that first words are predicted.")  # fmt: skip
@revision_option
@device_option
@dtype_option
@quantize_option
@json_option
def words(
    model: str, files: tuple[str, ...], by: tuple[str, ...], sep: str | None, ignore_regex: str, bos: bool | None,
    revision: str, device: str, dtype: str, quantize: str | None, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    r"""Measure how predictable each word is.

    Each row of FILEs has a text in its --column, and becomes a row for each of its words, with columns beside it:
    word_n, word, tokens, logprob (nats), surprisal (bits), and entropy (bits) before the word.

    \b
      minhub words gpt2 text.txt
      minhub words gpt2 in.csv --column sentence --out out.csv
      minhub words gpt2 in.csv --by item --out out.csv

    Without --out, the rows are printed without the text, as a table or with --json; "-" as FILE is standard input.

    With --by, each row has one word, in the column `word` if no --column is given, and gets the last four of these
    columns. The rows of a text lie together, in the order of its words; a text ends with its file. A row without a
    value in a --by column belongs to no text, and one without a word is left out of its text: their numbers are
    missing.

    See `minhub score` for what FILEs may be, and for what happens when the work is interrupted.
    """
    from minhub_py.analysis.surprisal import regex

    if sep is not None and not by:
        raise click.UsageError("--sep is for rows that are words: give --by, too.")
    try:
        regex(ignore_regex)  # before the model is loaded
    except ValueError as error:
        raise click.BadParameter(str(error).removeprefix("ignore_regex "), param_hint="'--ignore-regex'") from error
    settings = {"ignore_regex": ignore_regex, "bos": bos}
    loading = {"revision": revision, "device": device, "dtype": dtype, "quantize": quantize}
    rows = tables.take(options, shown=True) or {}
    run: Callable[..., None] = tables.run if rows["out"] else tables.show
    if by:
        settings["sep"] = " " if sep is None else sep
        if click.get_current_context().get_parameter_source("column") is click.core.ParameterSource.DEFAULT:
            rows["column"] = "word"
        columns = list(dict.fromkeys(by))
        run("words_by", model, files, rows, settings, loading, as_json, beside=columns)
    elif rows["out"]:
        run("words", model, files, rows, settings, loading, as_json)
    else:
        run("words", model, files, rows, settings, loading, as_json, hidden=rows["column"])


@main.command()
@model_argument
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@tables.table_options(required=True)
@click.option("--layer", default=-1, show_default=True, help="Layer; 0 is the embeddings, -1 the last.")
@click.option("--pool", type=click.Choice(["mean", "last"]), default="mean", show_default=True,
              help="What becomes of the tokens: their mean, or the last.")  # fmt: skip
@revision_option
@device_option
@dtype_option
@quantize_option
@json_option
def embed(
    model: str, files: tuple[str, ...], layer: int, pool: str, revision: str, device: str, dtype: str,
    quantize: str | None, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    r"""Turn texts into numbers.

    Each row of FILEs has a text in its --column, and gets the hidden states of the model for it: a column `embedding`
    of lists, or, in .csv and .tsv, a column for each number: embedding_1, embedding_2 and so on.

    \b
      minhub embed gpt2 in.csv --out vectors.parquet

    See `minhub score` for what FILEs may be, and for what happens when the work is interrupted.
    """
    settings = {"layer": layer, "pool": pool}
    loading = {"revision": revision, "device": device, "dtype": dtype, "quantize": quantize}
    tables.run("embed", model, files, tables.take(options) or {}, settings, loading, as_json)


def training_options(command: F) -> F:
    """The options of `train`, in the order of --help. `train.settings.Settings` has their defaults and checks them."""
    whole, part = click.IntRange(min=1), click.FloatRange(0, 1)
    options = [
        click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="New folder for the run."),
        click.option("--resume", type=click.Path(path_type=Path, file_okay=False), metavar="RUN",
                     help="Continue this run from its last checkpoint; without TEXT, and only with options marked *."),
        click.option("--family", type=click.Choice(TRAINABLE), metavar="NAME",
                     help=f"Architecture: {', '.join(TRAINABLE)}.  [default: gpt2]"),
        click.option("--from", "start", type=Model(), help="Fine-tune this model instead of training a new one."),
        click.option("--revision", help="Branch, tag or commit of --from, if it is a repository."),
        click.option("--tokenizer", metavar="KIND",
                     help="characters, bpe (trained on TEXT), or a MODEL whose tokenizer to use.  "
                          "[default: characters, or that of --from]"),
        click.option("--vocab-size", type=click.IntRange(min=257), help="Vocabulary size of bpe.  [default: 4096]"),
        click.option("--layers", type=whole, help="Number of layers.  [default: 4; lstm: 2]"),
        click.option("--width", type=whole, help="Channels, or the LSTM's hidden size.  [default: 128; lstm: 256]"),
        click.option("--heads", type=whole, help="Number of attention heads.  [default: width / 32]"),
        click.option("--context", type=whole,
                     help="Tokens per row; a transformer's context.  [default: 128; --from: its own, up to 1024]"),
        click.option("--dropout", type=part, help="Dropout probability.  [default: 0.1, or that of --from]"),
        click.option("--set", "config", multiple=True, metavar="NAME=VALUE",
                     help="Another setting of config.json, such as window_size=64; may be given several times."),
        click.option("--steps", type=whole, help="* Number of optimizer steps.  [default: 2000]"),
        click.option("--batch", type=whole, help="Rows per step, over all processes.  [default: 32]"),
        click.option("--accumulate", type=whole,
                     help="Split each batch into this many parts, to use less memory.  [default: 1]"),
        click.option("--learning-rate", type=float,
                     help="Peak learning rate.  [default: 0.0015; lstm: 0.003; --from: a tenth]"),
        click.option("--warm-up", type=click.IntRange(min=0), help="Steps until the peak.  [default: 100]"),
        click.option("--floor", type=part,
                     help="Final learning rate of the cosine schedule, as a fraction of the peak.  [default: 0.1]"),
        click.option("--weight-decay", type=float, help="Weight decay of matrices.  [default: 0.1]"),
        click.option("--beta2", type=float, help="Second beta of AdamW.  [default: 0.99]"),
        click.option("--clip", type=float, help="Maximum gradient norm; 0: no clipping.  [default: 1]"),
        click.option("--carry/--no-carry", default=None,
                     help="LSTM: carry the state from one row of the text to the next.  [default: carry]"),
        click.option("--held-out", type=part,
                     help="Fraction of TEXT, at its end, for evaluation only.  [default: 0.1]"),
        click.option("--evaluate-every", type=whole, metavar="STEPS",
                     help="* Steps between evaluations on the held-out text.  [default: 250]"),
        click.option("--evaluate-tokens", type=whole, help="Maximum tokens per evaluation.  [default: 1048576]"),
        click.option("--checkpoint-every", type=whole, metavar="STEPS",
                     help="* Steps between checkpoints.  [default: 250]"),
        click.option("--patience", type=whole, help="* Stop after this many evaluations without a lower loss."),
        click.option("--sample", metavar="PROMPT", help="* Generate text from this prompt at each evaluation."),
        click.option("--sample-tokens", type=whole, help="* Length of that text in tokens.  [default: 200]"),
        click.option("--seed", type=click.IntRange(0, 2**63 - 1),
                     help="Random seed of weights, batches and dropout.  [default: 1337]"),
        click.option("--device", help="* Device: auto, cpu, cuda, cuda:1, mps or xpu.  [default: auto]"),
        click.option("--dtype", type=click.Choice(["auto", "float32", "bfloat16"]),
                     help="Dtype of matrix products; weights are float32.  [default: bfloat16 on CUDA, else float32]"),
        click.option("--compile/--no-compile", default=None, help="* Use torch.compile.  [default: no-compile]"),
        click.option("--parallel", type=click.Choice(["ddp", "fsdp"]),
                     help="* With torchrun: copy the model to each process (ddp) or shard it (fsdp).  [default: ddp]"),
        click.option("--threads", type=whole, help="* Number of CPU threads.  [default: all cores]"),
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

    The folder OUT receives the best model in Hub layout, the losses as CSV and PNG, sample texts, and a
    model card. Ctrl-C stops before the next batch; --resume continues the run, also after a crash.

    TEXT is any plain text of 100 kB or more. The examples use tiny shakespeare (1.1 MB):
    data/tinyshakespeare/input.txt of https://github.com/karpathy/char-rnn

    \b
      minhub train input.txt --out run --sample "ROMEO:"
      minhub generate run "ROMEO:"
      torchrun --nproc-per-node 2 -m minhub_py.training input.txt --out run

    Options marked with * can change when a run is resumed.
    """
    from minhub_py.cli import training

    given = {name: value for name, value in options.items() if value not in (None, ())}
    if resume is not None and (text or out):
        raise click.UsageError("--resume uses the text and the folder of RUN: leave out TEXT and --out.")
    if resume is None and not text:
        raise click.UsageError("Give TEXT, one or more text files; or --resume RUN.")
    if resume is None and out is None:
        raise click.UsageError("Give --out, a new folder for the run.")

    run = training.run(text, out, resume, given, live=not as_json)
    if as_json and training.talks():
        emit(run.to_json())


@main.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw the loss curves into this PNG file."
)
@json_option
def compare(runs: tuple[Path, ...], plot: Path | None, as_json: bool) -> None:
    """Compare runs of `minhub train`.

    The run with the lowest loss comes first. Losses in nats per character are comparable between tokenizers.
    """
    from minhub_py.cli import training

    summaries = training.compare(runs, plot)
    if as_json:
        emit([summary.to_json() for summary in summaries])
    else:
        training.show(summaries)


@main.command()
@click.option("--model", type=Model(), help="Model to measure.  [default: random weights, the sizes of GPT-2 124M]")
@click.option("--only", "cases", multiple=True, type=click.Choice(list(CASES)), metavar="CASE",
              help=f"Run only this case; may be given several times: {', '.join(CASES)}.")  # fmt: skip
@click.option("--weights", "kinds", multiple=True, type=click.Choice(list(KINDS)), metavar="KIND",
              help=f"Measure only these weights; may be given several times: {', '.join(KINDS)}.")  # fmt: skip
@click.option("--quick", is_flag=True, help="Fewer repeats and tokens, for rough numbers.")
@click.option("--threads", type=click.IntRange(min=1), help="Number of threads.  [default: 2, or 1 on one core]")
@click.option("--repeats", type=click.IntRange(min=1), help="Repeats of each measurement.  [default: 5; --quick: 2]")
@click.option("--save", type=click.Path(path_type=Path, dir_okay=False), help="Write the result to this JSON file.")
@json_option
def bench(
    model: str | None, cases: tuple[str, ...], kinds: tuple[str, ...], quick: bool, threads: int | None,
    repeats: int | None, save: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Benchmark this package on the CPU of this machine.

    Measures decoding, prompts, batches and loading for each kind of weights. Needs no network.
    """
    from minhub_py.cli import bench as benchmark
    from minhub_py.system.processor import cores

    check_writable(None, save)
    settings = benchmark.Settings(
        model, kinds or tuple(KINDS), threads or min(2, cores()), repeats or (2 if quick else 5), 16 if quick else 128
    )
    result = benchmark.measure(settings, cases or tuple(CASES))
    if save:
        save.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if as_json:
        emit(result)
    else:
        benchmark.show(result)


@main.command()
@json_option
def devices(as_json: bool) -> None:
    """Show the available devices and which one "auto" selects."""
    from minhub_py.system.device import devices as probe

    report = probe()
    if as_json:
        emit(asdict(report))
    else:
        click.echo(str(report))


@main.command()
@json_option
def doctor(as_json: bool) -> None:
    """Check the installation.

    Reports what is missing or incompatible and how to fix it; the exit status is then 1. Changes nothing and opens no
    connection.
    """
    from minhub_py.system.doctor import examine

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
@click.option("--install", is_flag=True, help="Install minhubpy into your R library, and exit.")
def run_r(arguments: tuple[str, ...], expressions: tuple[str, ...], install: bool) -> None:
    """Run R with the package minhubpy, in this process.

    With SCRIPT ("-" is standard input) or -e it works like Rscript, otherwise it opens R's prompt. Models run in the
    same process.
    """
    from r_bridge.host import command

    if install:
        command.install_for_user()
    else:
        command.run(expressions, arguments)


if __name__ == "__main__":
    main()
