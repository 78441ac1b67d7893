"""A job: the rows of some files through a model, and into a file or a folder. It goes on where it was ended.

The record, in job.json, says what the results depend on: the rows, the model's files, the settings. A later call whose
record is the same goes on; another is refused.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, repeat
from pathlib import Path
from reprlib import repr as brief
from typing import TYPE_CHECKING, Any

import click

from minhub_py import __version__
from minhub_py.checkpoints.fingerprint import fingerprint, sha256
from minhub_py.jobs import sources
from minhub_py.jobs.chunks import Parts, remove
from minhub_py.jobs.executors import Chunk, Work, here, processes
from minhub_py.jobs.formats import Column, Writer, arrow, batches, kind_of, writer
from minhub_py.jobs.sources import ENDINGS, Source
from minhub_py.jobs.tasks import TASKS

if TYPE_CHECKING:
    from minhub_py.checkpoints.storage import Checkpoint

MEANINGS = {
    "minhub": "the version of minhub",
    "task": "the command",
    "settings": "the settings",
    "column": "the column",
    "beside": "--by or --target",
    "prefix": "--prefix",
    "input": "the input files",
    "model": "the model's files",
    "loading": "the model's settings",
    "threads": "the number of threads (see --workers)",
}


@dataclass(frozen=True)
class Call:
    """What a user asks for. settings: of the task.    loading: of the model: revision, device, dtype, quantize.

    out: a file of a kind that can be written; any other name is that of a folder, which receives a file for each input.
    column: that of the texts.    beside: the columns that the task needs beside it.    prefix: begins the names of the
    columns of results.    workers: processes that share the work; None: this process alone, or one on each node of the
    Ray cluster at the address `ray`.
    """

    task: str
    model: str
    files: Sequence[str]
    out: Path
    column: str = "text"
    beside: Sequence[str] = ()
    prefix: str = ""
    settings: Mapping[str, Any] | None = None
    loading: Mapping[str, Any] | None = None
    workers: int | None = None
    ray: str | None = None
    overwrite: bool = False


@dataclass(frozen=True)
class Outcome:
    """What was done. missing: rows without a result.    notes: what the work has warned of."""

    rows: int
    missing: int
    notes: list[str]


def run(call: Call, progress: Callable[[int, int], object], kept: Callable[[int, int, Path], object]) -> Outcome | None:
    """Do a job, or what is left of it. None: an earlier process was ended after its last row; nothing was left.

    progress(done, total) hears of rows.    kept(done, total, folder) is told when the job ends early.
    click.UsageError: the output exists, or is one of the inputs.    ValueError: input that cannot be read, or that has
    changed since the job began; another job has begun to write the same output.    OSError: no room, no permission.
    """
    paths = sources.expand(call.files)
    outputs = outputs_of(call, paths)
    check_packages(call, [*paths, *outputs])
    parts = Parts(call.out)
    if not parts.folder.exists():
        check_free(call, outputs)
    task = TASKS[call.task]
    found = [sources.scan(path, call.column, task.beside, call.beside) for path in paths]
    results = result_columns(call, found)
    total = sum(source.rows for source in found)
    sizes = sources.chunk_sizes(found, call.beside if task.beside == "by" else (), task.chunk)
    if not parts.folder.parent.is_dir():
        raise FileNotFoundError(f"{call.out} cannot be written: there is no folder {parts.folder.parent}")
    begun = False

    def rows_of(numbers: Iterable[int]) -> int:
        return sum(sizes[number] for number in numbers)

    with parts.locked():
        try:
            work, record = describe(call, found)
            if (before := parts.recover()) is not None and difference(before, record) is None:
                return None
            check_free(call, outputs)
            record = begin(call, parts, record)
            done, begun = parts.numbers(), True
            rows = rows_of(done)
            progress(rows, total)
            if rows < total:
                work = replace(work, settings=record["settings"])
                for number, content in compute(call, work, chunks(call, found, sizes, done)):
                    parts.put(number, content)
                    rows += rows_of([number])
                    progress(rows, total)
            outcome = join(call, parts, found, results, len(sizes))
            parts.finish(record)
        except BaseException:
            if begun and (done := parts.numbers()):
                kept(rows_of(done), total, parts.folder)
            elif parts.are_none():
                parts.forget()
            raise
    return outcome


def outputs_of(call: Call, paths: Sequence[Path]) -> list[Path]:
    """The files that are written: one for all inputs, or one for each. click.UsageError: they cannot be."""
    if kind_of(call.out):
        if call.out.is_dir():
            raise click.UsageError(f"--out {call.out} is a folder whose name ends like a file's: name another.")
        outputs = [call.out]
    elif call.out.is_file() or (call.out.suffix and not call.out.is_dir()):
        raise click.UsageError(f"--out {call.out} is of no kind that can be written: its name must end in {ENDINGS}.")
    else:
        outputs = [call.out / path.name for path in paths]
        if twice := [path.name for path in outputs if outputs.count(path) > 1]:
            raise click.UsageError(f"two of the files are called {twice[0]}: let --out be one file for all.")
    for path in paths:
        if any(output.exists() and output.samefile(path) for output in outputs):
            raise click.UsageError(f"--out {path} is one of the files to read: name another.")
    return outputs


def check_packages(call: Call, paths: Sequence[Path]) -> None:
    """click.ClickException: a package is missing that a file or --ray needs. Checked before any work."""
    if any(kind_of(path) == "parquet" for path in paths):
        arrow()
    if call.ray is not None:
        from minhub_py.jobs.ray_executor import package

        package()


def check_free(call: Call, outputs: Sequence[Path]) -> None:
    """click.UsageError: a file would be replaced."""
    if not call.overwrite and (there := next((path for path in outputs if path.exists()), None)):
        raise click.UsageError(f"{there} exists already: name another --out, or give --overwrite.")


def result_columns(call: Call, found: Sequence[Source]) -> list[Column]:
    """The columns of results. ValueError: a file has one of the same name."""
    columns = [replace(column, name=call.prefix + column.name) for column in TASKS[call.task].columns]
    if is_merged(call, found):
        columns.insert(0, Column("file", "string"))
    for source in found:
        if both := [column.name for column in columns if column.name in source.columns]:
            advice = (
                "let --out be a folder"
                if both == ["file"]
                else f"give a --prefix, such as --prefix {call.task.split('_')[0]}_"
            )
            raise ValueError(f"{source.path} has a column {both[0]} already, as the results would: {advice}")
    return columns


def is_merged(call: Call, found: Sequence[Source]) -> bool:
    """Whether several files become one, with a column that says which."""
    return len(found) > 1 and kind_of(call.out) is not None


def describe(call: Call, found: Sequence[Source]) -> tuple[Work, dict[str, Any]]:
    """The work, with a model of this machine that is downloaded where it was not; and the record of the job."""
    from minhub_py.checkpoints.local import commit_of
    from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer
    from minhub_py.pretrained import describe as describe_checkpoint
    from minhub_py.pretrained import open_checkpoint

    def check(files: "Checkpoint") -> None:
        read_tokenizer(files.path)
        family, _ = describe_checkpoint(files)
        if not family.Model.encoder_decoder:
            check_joints(call, found)

    loading = dict(call.loading or {})
    path = open_checkpoint(call.model, loading.pop("revision", "main"), check=check).path
    commit = commit_of(path)
    if call.ray is not None and commit:  # other machines download it for themselves
        work = Work(call.task, {}, call.model, {**loading, "revision": commit})
    else:
        work = Work(call.task, {}, str(path.absolute()), loading)
    record = {
        "minhub": __version__, "task": call.task, "settings": dict(call.settings or {}), "column": call.column,
        "beside": list(call.beside), "prefix": call.prefix, "model": fingerprint(path), "loading": loading,
        "input": [[source.path.name, source.rows, source.digest] for source in found],
    }  # fmt: skip
    return work, record if TASKS[call.task].exact else {**record, "threads": threads_of(call)}


def check_joints(call: Call, found: Sequence[Source]) -> None:
    """Check the texts that --sep joins before any of them is computed. ValueError: as `check_joint`, with the row."""
    from minhub_py.analysis.surprisal import check_joint

    if (sep := (call.settings or {}).get("sep")) is None:
        return
    words = TASKS[call.task].beside == "by"
    for source in found:
        previous = text_key = None
        for row, (text, beside) in enumerate(values_of(call, source.path), 1):
            if not text or not beside:
                continue
            where = f"{source.path}, row {row}: "
            if not words:
                check_joint(text, beside, sep, where)
            elif previous is not None and text_key == beside:
                check_joint(previous, text, sep, where)
            previous, text_key = text, beside


def begin(call: Call, parts: Parts, record: dict[str, Any]) -> dict[str, Any]:
    """Begin a job, or go on with the one that has begun. Returns its record, with the seed that was drawn for it.

    ValueError: the parts are another job's.
    """
    before = parts.record()
    if before is not None:
        what = difference(before, record)
        if what is None:
            return before
        if not call.overwrite:
            change = f"{MEANINGS.get(what, what)} changed"
            if what not in ("input", "model"):
                change += f" from {brief(before.get(what))} to {brief(record[what])}"
            raise ValueError(
                f"{parts.folder} holds the beginning of another job: {change}. Run that one to its end, give another "
                "--out, or --overwrite to start again"
            )
    if "seed" in record["settings"] and record["settings"]["seed"] is None:
        record = {**record, "settings": {**record["settings"], "seed": secrets.randbelow(2**63)}}
    parts.begin(record)
    return record


def difference(before: Mapping[str, Any], record: Mapping[str, Any]) -> str | None:
    """The first entry of two records that differs; None: they are of the same job. A seed that is drawn fits any."""
    for name, value in record.items():
        now, then = listed(value), before.get(name)
        if name == "settings" and isinstance(then, dict) and now.get("seed", 0) is None:
            now["seed"] = then.get("seed")
        if now != then:
            return name
    return None


def listed(value: Any) -> Any:
    """The value as JSON gives it back: lists for tuples."""
    if isinstance(value, Mapping):
        return {name: listed(each) for name, each in value.items()}
    return [listed(each) for each in value] if isinstance(value, list | tuple) else value


def chunks(call: Call, found: Sequence[Source], sizes: Sequence[int], done: set[int]) -> Iterator[Chunk]:
    """The chunks that are still to be done, of so many rows each."""
    rows = chain.from_iterable(values_of(call, source.path) for source in found)
    first = 0
    for number, size in enumerate(sizes):
        some = list(islice(rows, size))
        if number not in done:
            yield Chunk(number, first, [text for text, _ in some], [beside for _, beside in some])
        first += size


def values_of(call: Call, path: Path) -> Iterator[tuple[str | None, str | None]]:
    """The text of each row, and what the task needs beside it."""
    texts = sources.texts(path, call.column)
    option = TASKS[call.task].beside
    beside: Iterator[str | None] = repeat(None)
    if option:
        beside = sources.keys(path, call.beside) if option == "by" else sources.texts(path, call.beside[0], option)
    return zip(texts, beside, strict=False)  # `join` tells of a file that has changed meanwhile


def compute(call: Call, work: Work, waiting: Iterator[Chunk]) -> Iterator[tuple[int, bytes]]:
    """Compute chunks where the user wants it."""
    if call.ray is not None:
        from minhub_py.jobs.ray_executor import cluster

        return cluster(work, waiting, call.ray, call.workers)
    if call.workers in (None, 1):
        return here(work, waiting)
    return processes(replace(work, threads=threads_of(call)), waiting, call.workers)


def threads_of(call: Call) -> int:
    """Threads of each process of this machine, so that all of them together use its cores once."""
    import torch

    return max(1, torch.get_num_threads() // (call.workers or 1))


def join(call: Call, parts: Parts, found: Sequence[Source], results: Sequence[Column], count: int) -> Outcome:
    """Write the output from the input and all parts. ValueError: the input has changed meanwhile."""
    notes: dict[str, None] = {}  # a set in order
    missing = 0

    def rows() -> Iterator[list[dict[str, Any]]]:
        for number in range(count):
            part = parts.get(number)
            notes.update(dict.fromkeys(part["notes"]))
            yield from part["rows"]

    merged, made = is_merged(call, found), rows()
    results = [replace(column, width=width_of(column, call, parts, count)) for column in results]
    for group, file in files_of(call, parts, found, results):
        for source in group:
            for batch in batches(source.path):
                places, beside = [], []
                for place in range(len(batch)):
                    for result in next(made, ()):  # none, if the input has grown meanwhile
                        missing += all(value is None for value in result.values())
                        named = {call.prefix + name: value for name, value in result.items()}
                        beside.append({"file": str(source.path), **named} if merged else named)
                        places.append(place)
                with parts.writing():
                    file.write(batch, places, beside)
            if sha256(source.path) != source.digest:
                raise ValueError(f"{source.path} has changed since the job began: restore it, or start again")
        with parts.writing():
            file.close()
    return Outcome(sum(source.rows for source in found), missing, list(notes))


def width_of(column: Column, call: Call, parts: Parts, count: int) -> int:
    """The length of a vector, which the first part that has one tells; 0 for other columns."""
    if column.type == "vector":
        for number in range(count):
            for [row] in parts.get(number)["rows"]:
                if (vector := row[column.name.removeprefix(call.prefix)]) is not None:
                    return len(vector)
    return 0


def files_of(
    call: Call, parts: Parts, found: Sequence[Source], results: Sequence[Column]
) -> Iterator[tuple[Sequence[Source], Writer]]:
    """The inputs of each file of the output, and that file, empty."""
    for old in (parts.joined, parts.joined_files):
        if old.exists():
            remove(old)
    with parts.writing():
        if kind := kind_of(call.out):
            yield found, writer(parts.joined, kind, sources.together(found), results)
            return
        parts.joined_files.mkdir()
        for source in found:
            kind = str(kind_of(source.path))
            yield [source], writer(parts.joined_files / source.path.name, kind, source.columns, results)
