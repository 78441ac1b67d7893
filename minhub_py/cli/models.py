"""Commands for model files: `list`, `download`, `delete`, `inspect`, `convert` and `verify`."""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from minhub_py.checkpoints import cache, hub, local
from minhub_py.checkpoints.hub import size
from minhub_py.cli.completion import ModelArgument
from minhub_py.cli.group import Command
from minhub_py.cli.options import (
    Bytes,
    dtype_choice,
    is_set,
    json_option,
    model_argument,
    revision_option,
    threads_option,
)
from minhub_py.cli.output import emit, progress_bar, say, table
from minhub_py.models.registry import ARCHITECTURES
from minhub_py.system.console import stdin_is_terminal
from minhub_py.system.json_text import JsonMapping
from minhub_py.system.printable import displayed

if TYPE_CHECKING:
    from minhub_py.checkpoints.storage import Layout

SOURCES = {  # of `inspect`
    "preset": "published size; not downloaded",
    "config": "from config.json; weights not downloaded",
    "hub": "hub layout",
    "native": "native layout",
    "gguf": "GGUF file",
}


@click.command("list", cls=Command)
@click.option(
    "--published", is_flag=True, help="Also show the published sizes of all architectures."
)
@json_option
def list_models(published: bool, as_json: bool) -> None:
    """Show built-in and cached models."""
    built_in = [
        (f"minhub/{path.name}", local.folder_size(path))
        for path in sorted(local.BUILTIN.iterdir())
        if path.is_dir()
    ]
    cached = local.cached_models()
    sizes = [(name, family.name) for family in ARCHITECTURES.values() for name in family.published]
    if as_json:
        emit(
            {
                "built_in": [{"model": name, "bytes": count} for name, count in built_in],
                "cached": [{**asdict(model), "folder": str(model.folder)} for model in cached],
                "presets": [{"name": name, "family": family} for name, family in sizes],
            }
        )
        return
    table(["BUILT-IN MODEL", "SIZE"], [(name, size(count)) for name, count in built_in])
    click.echo()
    if cached:
        state = {True: "complete", False: "incomplete: minhub download"}
        table(
            ["CACHED MODEL", "REVISION", "SIZE", "STATE"],
            [
                (
                    m.repository,
                    ", ".join(m.revisions) or m.commit[:7],
                    size(m.size),
                    state[m.complete],
                )
                for m in cached
            ],
        )
    else:
        click.echo("No cached models yet. To download one: minhub download REPO")
    click.echo()
    if published:
        table(["PUBLISHED SIZE", "FAMILY"], sizes)
    else:
        click.echo(f"Models on the Hub, {len(sizes)} of them: minhub list --published")
    click.echo('Try: minhub generate minhub/shakespeare-gpt2 "ROMEO:"')


@click.command(cls=Command)
@click.argument("repo", type=ModelArgument(local=False))
@revision_option
@click.option("--dry-run", is_flag=True, help="Only show the files to download.")
@json_option
def download(repo: str, revision: str, dry_run: bool, as_json: bool) -> None:
    """Download REPO into the local cache.

    The hash of every file is verified. If a repository has weights in several formats, only one is
    downloaded, safetensors rather than .bin. An interrupted download continues where it stopped.
    For gated and private repositories, set HF_TOKEN.
    """
    if repo.startswith("minhub/"):
        raise click.UsageError(f"{repo} is included in the package; no download is necessary.")
    plan = hub.plan_download(repo, revision)
    folder = None
    if not dry_run:
        folder = hub.download(plan)
    if as_json:
        emit(
            {
                **asdict(plan),
                "total_bytes": plan.total_bytes,
                "missing_bytes": plan.missing_bytes,
                "folder": folder and str(folder),
            }
        )
    elif dry_run:
        table(
            ["FILE", "SIZE", ""],
            [(f.name, size(f.size), "in the cache" if f.cached else "") for f in plan.files],
        )
        say(
            "",
            f"{repo} at {plan.commit[:7]}: {size(plan.missing_bytes)} of {size(plan.total_bytes)}"
            " to download",
        )
    else:
        say(str(folder))


@click.command(cls=Command)
@click.argument("repo", type=ModelArgument(local=False))
@click.option(
    "--revision", help="Branch, tag or commit to delete.  [default: all cached revisions]"
)
@click.option("-y", "--yes", is_flag=True, help="Delete without asking for confirmation.")
@json_option
def delete(repo: str, revision: str | None, yes: bool, as_json: bool) -> None:
    """Delete REPO from the local cache.

    REPO is a repository, or one of its GGUF files (owner/name:file.gguf). `minhub list` shows
    cached models. Files that other cached revisions use are not deleted.
    """
    if repo.startswith("minhub/"):
        raise click.UsageError(f"{repo} is included in the package and cannot be deleted.")
    plan = cache.plan_deletion(repo, revision)
    if not yes:
        if not stdin_is_terminal():
            raise click.UsageError(f"Deleting {repo} requires confirmation: add --yes.")
        commits = ", ".join(commit[:7] for commit in plan.commits)
        click.confirm(
            f"Delete {displayed(repo)} ({commits}; {size(plan.size)})?", abort=True, err=True
        )
    cache.delete(plan)
    if as_json:
        emit({"repository": repo, "commits": plan.commits, "freed_bytes": plan.size})
    else:
        say("", f"Deleted {displayed(repo)}: {size(plan.size)} freed")


@click.command(cls=Command)
@model_argument
@revision_option
@click.option("--tensors", is_flag=True, help="List the tensors of all layers instead of one.")
@json_option
def inspect(model: str, revision: str, tensors: bool, as_json: bool) -> None:
    """Show the settings, sizes and tensors of MODEL, or of an adapter's folder.

    No weights are downloaded or read. Published sizes such as gpt2-xl need no network.
    """
    from minhub_py.loading.adapters.inspection import inspect_adapter
    from minhub_py.loading.inspection import inspect as inspect_model

    adapter = inspect_adapter(model)
    report = adapter or inspect_model(model, revision)
    if as_json:
        emit(report)
        return
    if adapter is not None:
        _show_adapter(adapter, tensors)
        return
    source = report["source"]
    say(f"{model}: {report['class']}", bold=True)
    if source["kind"] == "files":
        say(f"{source['folder']} ({SOURCES[source['layout']]})")
    else:
        say(SOURCES[source["kind"]])
    count = report["parameters"]["total"]
    click.echo(
        f"\n{count:,} parameters: {size(4 * count)} in float32, {size(2 * count)} in 16 bits\n"
    )
    parts = [
        (name, n, f"{100 * n / count:.1f} %")
        for name, n in report["parameters"].items()
        if name != "total"
    ]
    table(["COMPONENT", "PARAMETERS", "SHARE"], parts)
    click.echo()
    table(
        ["SETTING", "VALUE"],
        [(name, json.dumps(value)) for name, value in report["config"].items()],
    )
    click.echo()
    rows = [
        (t["hub"], t["native"] or "-", t["operation"], "×".join(map(str, t["shape"])), t["dtype"])
        for t in report["tensors"]
    ]
    _show_tensors(
        ["TENSOR ON THE HUB", "TENSOR HERE", "OPERATION", "SHAPE", "DTYPE"], rows, tensors
    )


def _show_adapter(report: JsonMapping, tensors: bool) -> None:
    """Print the report of `inspect_adapter`. tensors: of all layers."""
    say(
        f"{report['model']}: an adapter (LoRA) of {report['base'] or 'an unknown model'}", bold=True
    )
    say(report["source"]["folder"])
    click.echo(f"\n{report['parameters']['total']:,} parameters\n")
    settings = report["settings"]
    if isinstance(settings.get("target_modules"), tuple):
        names = _one_layer([(name,) for name in settings["target_modules"]])
        settings = settings | {"target_modules": [name for (name,) in names]}
    table(["SETTING", "VALUE"], [(name, json.dumps(value)) for name, value in settings.items()])
    click.echo()
    rows = [
        (entry["name"], "×".join(map(str, entry["shape"])), entry["dtype"])
        for entry in report["tensors"]
    ]
    _show_tensors(["TENSOR", "SHAPE", "DTYPE"], rows, tensors)


def _show_tensors(
    headings: Sequence[str], rows: Sequence[tuple[str, ...]], all_layers: bool
) -> None:
    """Print a table of tensors, of one layer or of all."""
    shown = rows if all_layers else _one_layer(rows)
    table(headings, shown)
    if len(shown) < len(rows):
        click.echo(f"{{}} is the layer number; {len(rows)} tensors in total (--tensors lists all)")


def _one_layer(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The rows with the layer number replaced by {}, without duplicates."""
    return list(
        dict.fromkeys(
            tuple(
                re.sub(r"\.\d+\.|(?<=_l)\d+$", lambda m: ".{}." if "." in m[0] else "{}", cell)
                for cell in row
            )
            for row in rows
        )
    )


# Layouts of one file, with its extension.
FILES = {"torchscript": ".pt", "gguf": ".gguf"}
# Types of matrices in a GGUF file
TYPES = (
    "F32",
    "F16",
    "BF16",
    "Q8_0",
    "Q6_K",
    "Q5_K_M",
    "Q5_K_S",
    "Q4_K_M",
    "Q4_K_S",
    "Q5_0",
    "Q5_1",
    "Q4_0",
    "Q4_1",
)


def check_out(out: Path, to: str, overwrite: bool, source: Path | None) -> None:
    """Check before any download that `convert` can write OUT, else raise UsageError."""
    suffix = FILES.get(to)
    is_file = suffix is not None
    if is_file and (out.suffix != suffix or out.is_dir()):
        raise click.UsageError(
            f"--to {to} writes one file: OUT must end in {suffix} and must not be a folder."
        )
    for format, ending in FILES.items():
        if not is_file and out.suffix == ending:
            raise click.UsageError(
                f"--to {to} writes a folder, but {out} is a file name: use --to {format} or choose a"
                " folder."
            )
    if not is_file and out.is_file():
        raise click.UsageError(
            f"--to {to} writes a folder, but {out} is a file: choose another name."
        )
    folder = out.parent if is_file else out
    if source is not None and folder.exists() and folder.resolve() == source.resolve():
        raise click.UsageError("OUT is MODEL's folder: choose another folder.")
    if overwrite or not out.exists():
        return
    if is_file:
        raise click.UsageError(f"{out} already exists: choose another file, or add --overwrite.")
    if existing := sorted(path.name for path in out.iterdir() if _is_checkpoint_file(path.name)):
        raise click.UsageError(
            f"{out} already contains {existing[0]}: choose another folder, or add --overwrite."
        )


def _is_checkpoint_file(name: str) -> bool:
    """Check whether a file of this name belongs to a checkpoint, so that overwriting it needs
    --overwrite.
    """
    return name == "config.json" or name.endswith((".safetensors", ".bin", ".pt"))


@click.command(cls=Command)
@model_argument
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--to",
    type=click.Choice(["hub", "native", "torchscript", "gguf"]),
    help=(
        "hub: the layout of transformers. native: the tensor names and shapes of this package."
        " torchscript: one file that R torch (jit_load) and C++ can run without Python. gguf: one"
        " file for llama.cpp.  [default: gguf if OUT ends in .gguf, otherwise hub]"
    ),
)
@click.option(
    "--type",
    "type_",
    type=click.Choice(TYPES, case_sensitive=False),
    metavar="TYPE",
    help=f"Type of the matrices in a GGUF file: {', '.join(TYPES)}.  [default: F16]",
)
@click.option("--dtype", type=dtype_choice, help="Dtype of the weights.  [default: unchanged]")
@click.option(
    "--max-shard-size",
    type=Bytes(),
    default="5GB",
    show_default=True,
    help="Maximum size of one weights file, such as 500MB or 2GB.",
)
@click.option(
    "--merge",
    "adapter",
    metavar="ADAPTER",
    help="Merge this LoRA adapter (a folder or a repository) into the weights.",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing checkpoint.")
@threads_option
@revision_option
@json_option
def convert(
    model: str,
    out: Path,
    to: 'Layout | Literal["torchscript", "gguf"] | None',
    type_: str | None,
    dtype: str | None,
    max_shard_size: int,
    adapter: str | None,
    overwrite: bool,
    revision: str,
    as_json: bool,
) -> None:
    """Convert MODEL to another layout, dtype or shard size, or merge an adapter into it.

    OUT is a folder, or a file: with the extension .gguf for llama.cpp, or with --to torchscript and
    the extension .pt. Only a few tensors are in memory at a time, except with --to torchscript. OUT
    is replaced only after the conversion is complete.
    """
    if to is None:
        to = "gguf" if out.suffix == ".gguf" else "hub"
    if to in FILES and is_set("max_shard_size"):
        raise click.UsageError(f"--to {to} writes one file: remove --max-shard-size.")
    if to == "gguf" and dtype:
        raise click.UsageError("--dtype does not apply to GGUF files: use --type.")
    if to != "gguf" and type_:
        raise click.UsageError(
            f"--type applies to GGUF files only, but --to is {to}: use --dtype, or end OUT in"
            " .gguf."
        )
    if to == "gguf" and adapter:
        raise click.UsageError(
            "--merge writes the other layouts: merge into a folder first, then convert the folder."
        )
    source = local.locate(model)
    check_out(out, to, overwrite, source)

    from minhub_py.export.convert import convert as convert_files
    from minhub_py.loading.files import open_files
    from minhub_py.system.device import DTYPES

    files = open_files(model, revision, adapter=adapter)
    with progress_bar("Converting") as update:
        if to == "gguf":
            from minhub_py.export.gguf import write_gguf

            write_gguf(files, out, type_ or "F16", progress=update)
        else:
            convert_files(
                files,
                out,
                to=to,
                dtype=DTYPES[dtype] if dtype else None,
                max_shard_size=max_shard_size,
                progress=update,
            )
    written = sorted(path.name for path in out.iterdir()) if out.is_dir() else [out.name]
    if as_json:
        emit({"out": str(out), "layout": to, "files": written})
    else:
        say(f"{out}: {', '.join(written)}" if out.is_dir() else str(out))


@click.command(cls=Command)
@model_argument
@threads_option
@revision_option
@json_option
def verify(model: str, revision: str, as_json: bool) -> None:
    """Check the files, tensors and values of MODEL, or of an adapter's folder.

    Compares file sizes and SHA-256 hashes with those on the Hub, and every tensor with the weight
    table and the config. All values must be finite. The exit status is 1 if there is a problem.
    """
    from minhub_py.loading.adapters.inspection import verify_adapter
    from minhub_py.loading.inspection import verify as verify_model

    with progress_bar("Checking") as update:
        report = verify_adapter(model) or verify_model(model, revision, progress=update)
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
