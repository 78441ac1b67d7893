"""A job: compute a task for the rows of input files, and write them with the results to a file or a
folder.

The record in job.json describes everything that the results depend on: the rows, the model's files,
the settings. The same command resumes an interrupted job. A command with another record is
rejected.
"""

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import chain, islice, repeat
from pathlib import Path
from reprlib import repr as brief

import click

from minhub_py.checkpoints.fingerprint import fingerprint, sha256
from minhub_py.jobs import sources
from minhub_py.jobs.arguments import Job
from minhub_py.jobs.chunks import Parts, remove
from minhub_py.jobs.executors import Chunk, Worker, run_in_process, run_in_processes
from minhub_py.jobs.manifest import different, write_manifest
from minhub_py.jobs.sources import Source
from minhub_py.jobs.task import Task
from minhub_py.jobs.tasks import TASKS
from minhub_py.system.formats import EXTENSIONS, format_of, import_pyarrow, read_batches
from minhub_py.system.json_text import JsonObject
from minhub_py.system.table_writers import Column, NpyWriter, ParquetWriter, TextWriter, open_writer
from minhub_py.system.version import __version__

RECORD_LABELS = {
    "minhub": "the version of minhub",
    "task": "the command",
    "settings": "the settings",
    "column": "the column",
    "extra_columns": "--by or --target",
    "prefix": "--prefix",
    "na": "--na",
    "input": "the input files",
    "model": "the model's files",
    "loading": "the model's settings",
    "threads": "the number of threads (see --workers)",
}


@dataclass(frozen=True)
class JobSummary:
    """A completed job.

    rows: the number of input rows.    written: the number of output rows.
    missing: the number of output rows without a result.    notes: the task's warnings.
    computed: how the parts were computed, see `manifest.computation`.
    """

    rows: int
    written: int
    missing: int
    notes: list[str]
    computed: list[JsonObject]


def run(
    job: Job,
    progress: Callable[[int, int], object],
    on_interrupt: Callable[[int, int, Path], object],
) -> JobSummary | None:
    """Run or resume a job.

    Args:
        job: The job's arguments.
        progress: Called with the number of completed rows and the total.
        on_interrupt: Called with the number of completed rows, the total and the folder of the
            parts if the job ends early with completed chunks.

    Returns:
        A summary, or None if all chunks were complete and only the output was moved to its final
        name.

    Raises:
        click.UsageError: The output exists, or is one of the inputs.
        ValueError: The input is corrupt or has changed since the job started, or an unfinished job
            with another record has the same output.
        OSError: The disk is full, permissions are missing, or an output has appeared during the
            job.
    """
    started_on = datetime.now(timezone.utc)
    paths = sources.expand_paths(job.files)
    outputs = output_paths(job, paths)
    if job.manifest is not None:
        check_manifest(job.manifest, [*paths, *outputs])
    check_packages(job, [*paths, *outputs])
    parts = Parts(job.out)
    if not parts.folder.exists():
        check_outputs(job, outputs)
    task = TASKS[job.task]
    inputs = [scan(job, path) for path in paths]
    columns = result_columns(job, inputs)
    total = sum(source.rows for source in inputs)
    sizes = sources.chunk_sizes(inputs, job.extra_columns if task.extra == "by" else (), task.chunk)
    if not parts.folder.parent.is_dir():
        raise FileNotFoundError(
            f"{job.out} cannot be written: create the folder {parts.folder.parent} first"
        )
    started = False

    def count_rows(chunks: Iterable[int]) -> int:
        return sum(sizes[number] for number in chunks)

    with parts.lock():
        try:
            worker, record = prepare(job, inputs)
            if (recovered := parts.recover(job.overwrite)) is not None and changed_entry(
                recovered, record
            ) is None:
                return None
            check_outputs(job, outputs)
            record = start(job, parts, record)
            completed, started = parts.completed(), True
            rows = count_rows(completed)
            progress(rows, total)
            if rows < total:
                worker = replace(worker, settings=record["settings"])
                for number, content in execute(
                    job, worker, read_chunks(job, inputs, sizes, completed)
                ):
                    parts.write(number, content)
                    rows += sizes[number]
                    progress(rows, total)
            summary = join(job, parts, inputs, columns, len(sizes))
            if job.manifest is not None:
                write_manifest(
                    job.manifest,
                    job,
                    record,
                    inputs,
                    parts.contents(outputs),
                    summary.computed,
                    started_on,
                )
            parts.finish(record, job.overwrite)
        except BaseException:
            if started and (completed := parts.completed()):
                on_interrupt(count_rows(completed), total, parts.folder)
            elif parts.is_empty():
                parts.remove()
            raise
    return summary


def output_paths(job: Job, paths: Sequence[Path]) -> list[Path]:
    """The output files: one for all inputs, or one per input. click.UsageError: a path is not
    possible.
    """
    if output_format_of(job.out, TASKS[job.task]):
        if job.out.is_dir():
            raise click.UsageError(
                f"--out {job.out} is a folder with the extension of a file. Use another name."
            )
        outputs = [job.out]
    elif job.out.is_file() or (job.out.suffix and not job.out.is_dir()):
        names = f"{EXTENSIONS}, .npy" if supports_npy(TASKS[job.task]) else EXTENSIONS
        raise click.UsageError(
            f"--out {job.out} has an unsupported file type. Its name must end in {names}."
        )
    else:
        outputs = [job.out / path.name for path in paths]
        if duplicates := [path.name for path in outputs if outputs.count(path) > 1]:
            raise click.UsageError(
                f"Two input files are named {duplicates[0]}. Set --out to a file instead."
            )
    for path in paths:
        if any(output.exists() and output.samefile(path) for output in outputs):
            raise click.UsageError(f"--out {path} is one of the input files. Use another name.")
    return outputs


def supports_npy(task: Task) -> bool:
    """Whether the output can be a .npy file: the task has one vector column."""
    return [column.type for column in task.columns].count("vector") == 1


def output_format_of(path: Path, task: Task) -> str | None:
    """An output file's format."""
    if path.suffix.lower() == ".npy" and supports_npy(task):
        return "npy"
    return format_of(path)


def check_packages(job: Job, paths: Sequence[Path]) -> None:
    """ValueError: a package is missing that a .parquet file or --ray requires."""
    if any(format_of(path) == "parquet" for path in paths):
        import_pyarrow()
    if job.ray is not None:
        from minhub_py.jobs.ray_executor import import_ray

        import_ray()


def check_outputs(job: Job, outputs: Sequence[Path]) -> None:
    """click.UsageError: an output file exists, without --overwrite."""
    if not job.overwrite and (existing := next((path for path in outputs if path.exists()), None)):
        raise click.UsageError(f"{existing} already exists. Use another --out, or --overwrite.")


def check_manifest(manifest: Path, paths: Sequence[Path]) -> None:
    """Check a manifest's name. click.UsageError: it names another file of the job, or a
    missing folder.
    """
    if manifest.suffix != ".json":
        raise click.UsageError(f"--manifest {manifest} must end in .json.")
    if any(manifest.absolute() == path.absolute() for path in paths):
        raise click.UsageError(
            f"--manifest {manifest} is an input or output file. Use another name."
        )
    if not manifest.absolute().parent.is_dir():
        raise click.UsageError(f"--manifest {manifest} cannot be written. Create its folder first.")


def result_columns(job: Job, inputs: Sequence[Source]) -> list[Column]:
    """The columns of the results. ValueError: an input column has the same name."""
    columns = TASKS[job.task].all_columns(job.settings or {})
    columns = [replace(column, name=job.prefix + column.name) for column in columns]
    if is_merged(job, inputs):
        columns.insert(0, Column("file", "string"))
    for source in inputs:
        if duplicates := [column.name for column in columns if column.name in source.columns]:
            advice = (
                "set --out to a folder"
                if duplicates == ["file"]
                else f"set a --prefix, for example --prefix {job.task.split('_')[0]}_"
            )
            raise ValueError(
                f"{source.path} already has a column {duplicates[0]}, as do the results: {advice}"
            )
    return columns


def is_merged(job: Job, inputs: Sequence[Source]) -> bool:
    """Whether several files are merged into one, with an additional column `file`."""
    return len(inputs) > 1 and output_format_of(job.out, TASKS[job.task]) is not None


def prepare(job: Job, inputs: Sequence[Source]) -> tuple[Worker, JsonObject]:
    """Download and validate the model. Returns the worker and the job's record."""
    from minhub_py.checkpoints.local import commit_of
    from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer
    from minhub_py.inference.arguments import not_a_decoder
    from minhub_py.inference.native.library import library
    from minhub_py.loading.files import open_files

    task, loading = TASKS[job.task], dict(job.loading or {})
    files = open_files(job.model, loading.pop("revision", "main"), weights="later")
    if files.adapter is not None:
        raise ValueError(
            f"{files.adapter} is an adapter: merge it into its model first, with minhub convert"
        )
    path, is_encoder = files.path, files.model_class.encoder_only
    read_tokenizer(path)
    if is_encoder and task.models == "decoders":
        raise ValueError(not_a_decoder(files.config))
    if not is_encoder and task.models == "encoders":
        raise ValueError(
            f"this command needs a text encoder such as BERT, not {files.config.TITLE}"
        )
    if not files.architecture.Model.encoder_decoder:
        check_separators(job, inputs)
    files.complete()
    commit = commit_of(path)
    if job.ray is not None and commit:  # each node downloads the model
        worker = Worker(job.task, {}, job.model, {**loading, "revision": commit})
    else:
        worker = Worker(job.task, {}, str(path.absolute()), loading)
    record = {
        "minhub": __version__,
        "task": job.task,
        "settings": dict(job.settings or {}),
        "column": job.column,
        "extra_columns": list(job.extra_columns),
        "prefix": job.prefix,
        "na": list(job.na),
        "model": fingerprint(path),
        "loading": loading,
        "input": [[source.path.name, source.rows, source.digest] for source in inputs],
    }
    exact = task.exact and library() is not None
    return worker, record if exact else {**record, "threads": threads_per_process(job)}


def check_separators(job: Job, inputs: Sequence[Source]) -> None:
    """Check that no text has white space next to a --sep of white space. ValueError: a row does."""
    from minhub_py.analysis.segments import check_joint

    if (sep := (job.settings or {}).get("sep")) is None:
        return
    rows_are_words = TASKS[job.task].extra == "by"
    for source in inputs:
        previous = previous_key = None
        for row, (text, extra) in enumerate(read_values(job, source.path), 1):
            if not text or not extra:
                continue
            location = f"{source.path}, row {row}: "
            if not rows_are_words:
                check_joint(text, extra, sep, location)
            elif previous is not None and previous_key == extra:
                check_joint(previous, text, sep, location)
            previous, previous_key = text, extra


def start(job: Job, parts: Parts, record: JsonObject) -> JsonObject:
    """Start or resume the job. Returns its record with the seed, which is drawn if the user sets
    none.

    ValueError: the parts belong to another job.
    """
    previous = parts.read_record()
    if previous is not None:
        name = changed_entry(previous, record)
        if name is None:
            return previous
        if not job.overwrite:
            change = f"{RECORD_LABELS.get(name, name)} changed"
            if name not in ("input", "model"):
                change += f" from {brief(previous.get(name))} to {brief(record[name])}"
            raise ValueError(
                f"{parts.folder} contains an unfinished job with other settings: {change}. Complete"
                " that job, set another --out, or use --overwrite to start again"
            )
    if "seed" in record["settings"] and record["settings"]["seed"] is None:
        record = {**record, "settings": {**record["settings"], "seed": secrets.randbelow(2**63)}}
    parts.start(record)
    return record


def changed_entry(previous: Mapping[str, object], record: Mapping[str, object]) -> str | None:
    """The name of the first entry that differs from a previous record, or None. A seed of None
    matches any seed.
    """
    for name, current in json.loads(json.dumps(record)).items():
        stored = previous.get(name)
        if name == "settings" and isinstance(stored, dict) and current.get("seed", 0) is None:
            current["seed"] = stored.get("seed")
        if current != stored:
            return name
    return None


def read_chunks(
    job: Job, inputs: Sequence[Source], sizes: Sequence[int], completed: set[int]
) -> Iterator[Chunk]:
    """Read the chunks that are not complete."""
    rows = chain.from_iterable(read_values(job, source.path) for source in inputs)
    first_row = 0
    for number, size in enumerate(sizes):
        values = list(islice(rows, size))
        if number not in completed:
            yield Chunk(
                number, first_row, [text for text, _ in values], [extra for _, extra in values]
            )
        first_row += size


def scan(job: Job, path: Path) -> sources.Source:
    """Read and validate an input file. ValueError: as `sources.scan`."""
    task = TASKS[job.task]
    named = [("column", job.column), *((task.extra, name) for name in job.extra_columns)]
    named = [(task.options.get(option, option), name) for option, name in named]
    return sources.scan(path, named, texts=2 if task.extra == "target" else 1, na=job.na)


def read_values(job: Job, path: Path) -> Iterator[tuple[str | None, str | None]]:
    """Read the text and the value of the task's additional column for each row."""
    texts = sources.read_texts(path, job.column, na=job.na)
    option = TASKS[job.task].extra
    extras: Iterator[str | None] = repeat(None)
    if option == "by":
        extras = sources.read_group_keys(path, job.extra_columns, job.na)
    elif option:
        extras = sources.read_texts(path, job.extra_columns[0], option, job.na)
    return zip(texts, extras, strict=False)  # `join` detects a file that changes while it is read


def execute(job: Job, worker: Worker, chunks: Iterator[Chunk]) -> Iterator[tuple[int, bytes]]:
    """Compute chunks with the executor that the job selects."""
    if job.ray is not None:
        from minhub_py.jobs.ray_executor import run_on_ray

        return run_on_ray(worker, chunks, job.ray, job.workers)
    if job.workers in (None, 1):
        return run_in_process(worker, chunks)
    return run_in_processes(replace(worker, threads=threads_per_process(job)), chunks, job.workers)


def threads_per_process(job: Job) -> int:
    """The number of PyTorch threads per process, so that all processes together use each core once."""
    import torch

    return max(1, torch.get_num_threads() // (job.workers or 1))


def join(
    job: Job, parts: Parts, inputs: Sequence[Source], columns: Sequence[Column], count: int
) -> JobSummary:
    """Merge the input rows and all parts into the output files. ValueError: the input has changed."""
    notes: dict[str, None] = {}  # an ordered set
    computed: list[JsonObject] = []
    written = without_result = 0

    def read_results() -> Iterator[list[JsonObject]]:
        for number in range(count):
            part = parts.read(number)
            notes.update(dict.fromkeys(part["notes"]))
            computed[:] = different([*computed, *filter(None, [part.get("computed")])])
            yield from part["rows"]

    merged, results = is_merged(job, inputs), read_results()
    columns = [replace(column, width=vector_width(column, job, parts, count)) for column in columns]
    for group, writer in open_writers(job, parts, inputs, columns):
        for source in group:
            for batch in read_batches(source.path, na=source.na):
                indices, rows = [], []
                for index in range(len(batch)):
                    for result in next(results, ()):  # empty if the input has grown
                        without_result += all(value is None for value in result.values())
                        row = {job.prefix + name: value for name, value in result.items()}
                        rows.append({"file": str(source.path), **row} if merged else row)
                        indices.append(index)
                written += len(rows)
                with parts.os_errors():
                    writer.write(batch, indices, rows)
            if sha256(source.path) != source.digest:
                raise ValueError(
                    f"{source.path} has changed since the job started: restore it, or start again"
                )
        with parts.os_errors():
            writer.close()
    return JobSummary(
        sum(source.rows for source in inputs), written, without_result, list(notes), computed
    )


def vector_width(column: Column, job: Job, parts: Parts, count: int) -> int:
    """The number of components of a vector column, from the first part that contains one; 0 for
    other columns.
    """
    if column.type == "vector":
        for number in range(count):
            for row in chain.from_iterable(parts.read(number)["rows"]):
                if (vector := row[column.name.removeprefix(job.prefix)]) is not None:
                    return len(vector)
    return 0


def open_writers(
    job: Job, parts: Parts, inputs: Sequence[Source], columns: Sequence[Column]
) -> Iterator[tuple[Sequence[Source], TextWriter | ParquetWriter | NpyWriter]]:
    """Each output file's inputs, with its writer."""
    for path in (parts.joined, parts.joined_files):
        if path.exists():
            remove(path)
    with parts.os_errors():
        if file_format := output_format_of(job.out, TASKS[job.task]):
            yield (
                inputs,
                open_writer(
                    parts.joined, file_format, sources.merge_columns(inputs), columns, job.na
                ),
            )
            return
        parts.joined_files.mkdir()
        for source in inputs:
            output = parts.joined_files / source.path.name
            yield (
                [source],
                open_writer(output, str(format_of(output)), source.columns, columns, job.na),
            )
