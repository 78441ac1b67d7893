"""Repeat a job from its manifest with other batch sizes and numbers of threads, and compare the
results.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import numpy as np

from minhub_py.checkpoints.fingerprint import fingerprint, sha256
from minhub_py.inference.arguments import check_path
from minhub_py.jobs import sources
from minhub_py.jobs.arguments import Job
from minhub_py.jobs.executors import Chunk, Worker
from minhub_py.jobs.job import output_format_of, output_paths, read_values, result_columns, scan
from minhub_py.jobs.manifest import (
    GUARANTEES,
    Definition,
    Details,
    Environment,
    Manifest,
    ManifestLoading,
    processor_class,
    read_manifest,
    versions,
)
from minhub_py.jobs.settings import check_settings
from minhub_py.jobs.sources import Source
from minhub_py.jobs.tasks import TASKS
from minhub_py.system.csv_values import NA
from minhub_py.system.formats import format_of, read_batches
from minhub_py.system.json_text import JsonObject
from minhub_py.system.shapes import convert
from minhub_py.system.table_writers import Column, escape_line_breaks, format_cell
from minhub_py.system.tables import Columns, Result

# texts that are computed together and threads, in addition to those of the job
VARIANTS = ((1, 1), (7, 2))


@dataclass(frozen=True)
class Difference:
    """The first row that differs. row: of the output, from 1, without a header."""

    file: str
    row: int
    column: str
    stored: str
    replayed: str


@dataclass(frozen=True)
class ReplayRun:
    """One repetition. rows: compared rows of the output.    differing: their number.

    largest: the largest difference of two numbers; infinite if a value is text or missing on one
    side.
    """

    chunk: int
    threads: int
    rows: int
    differing: int
    largest: float
    first: Difference | None


@dataclass(frozen=True)
class Replay(Result):
    """The result of `replay`.

    guarantee: "bitwise" or "close", as in the manifest.    changes: what differs from the manifest:
    the output file, a version, or the processor class.    same_class: processor class and versions
    equal the manifest's.
    """

    task: str
    guarantee: str
    same_class: bool
    changes: list[str]
    runs: list[ReplayRun]

    def table(self) -> Columns:
        """A row for each repetition: chunk, threads, rows, differing and largest."""
        names = ("chunk", "threads", "rows", "differing", "largest")
        return Columns({name: [getattr(run, name) for run in self.runs] for name in names})

    def heading(self) -> list[str]:
        """The summary, line by line."""
        return str(self).splitlines()

    @property
    def identical(self) -> bool:
        """Whether all rows of all repetitions are bitwise identical to the output."""
        return all(run.differing == 0 for run in self.runs)

    @property
    def broken(self) -> bool:
        """Whether a guarantee of the manifest is broken: rows differ although nothing else does."""
        return self.guarantee == "bitwise" and self.same_class and not self.identical

    def __str__(self) -> str:
        rows, largest = max(run.rows for run in self.runs), max(run.largest for run in self.runs)
        lines = [f"{len(self.runs)} repetitions of {rows:,} row{'' if rows == 1 else 's'}"]
        if self.identical:
            lines[0] += ": 0 rows differ, results are bitwise identical"
        else:
            first = next(run.first for run in self.runs if run.first)
            most = max(run.differing for run in self.runs)
            lines[0] += (
                f": {most:,} row{'s differ' if most > 1 else ' differs'}, by at most {largest:.3g}"
            )
            lines.append(
                f"First difference: {first.file}, row {first.row}, {first.column}: {first.stored}"
                f" in the output, {first.replayed} now"
            )
        text = GUARANTEES[self.guarantee]
        if not self.same_class:
            text = (
                "Between processor classes or versions, no equality is guaranteed; the difference"
                " above is observed."
            )
        return "\n".join(
            [*lines, *(f"Changed: {change}" for change in self.changes), f"Guarantee: {text}"]
        )

    def to_dict(self) -> JsonObject:
        """The result as values of JSON. An infinite difference is None."""
        result = {**asdict(self), "identical": self.identical, "broken": self.broken}
        for run in result["runs"]:
            run["largest"] = run["largest"] if math.isfinite(run["largest"]) else None
        return result


def replay(
    manifest: str | Path,
    rows: int | None = None,
    *,
    variants: Sequence[tuple[int, int]] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Replay:
    """Repeat a job from its manifest, and compare the results with its output.

        print(replay("job.json", rows=100))

    The job runs in this process with the batch size and number of threads of the manifest, and with
    chunks of 1 text and 1 thread and of 7 texts and 2 threads.

    Args:
        manifest: The file that `minhub … --manifest` or R's `manifest` has written.
        rows: The number of rows of the input, from the first; rows that are words are completed to
            texts. Default: all.
        variants: Pairs (texts that are computed together, threads), instead of these three.
        progress: Called with the number of computed rows and the total.

    Returns:
        Each repetition's comparison. `str()` describes it.

    Raises:
        ValueError: The manifest is corrupt, or the model or an input file has changed.
        FileNotFoundError: The model, an input or the output is missing.
    """
    import torch

    check_path("manifest", manifest)
    path = Path(manifest)
    statement = read_manifest(path)
    definition = statement["predicate"]["buildDefinition"]
    job = job_of(definition, path.absolute().parent)
    check_settings(
        job.task,
        job.settings or {},
        str(path),
        "predicate.buildDefinition.externalParameters.settings",
    )
    inputs = check_inputs(job, definition, path.absolute().parent)
    model = check_model(job, definition)
    outputs = output_paths(job, [source.path for source in inputs])
    changes = changed_outputs(statement, outputs)
    environment = changed_environment(statement["predicate"]["runDetails"])
    columns = result_columns(job, inputs)
    columns = [column for column in columns if column.name != "file"]
    threads = next((part["threads"] for part in definition["internalParameters"]["computed"]), 1)
    loading = {name: value for name, value in (job.loading or {}).items() if name != "revision"}
    compute = Worker(job.task, job.settings or {}, str(model), loading).load()
    variants = variants or [(definition["internalParameters"]["chunk"], threads), *VARIANTS]
    total = complete_rows(job, inputs, rows)
    before, runs = torch.get_num_threads(), []
    try:
        for number, (chunk, count) in enumerate(dict.fromkeys(variants)):
            torch.set_num_threads(count)

            def update(completed: int, run: int = number) -> None:
                if progress is not None:
                    progress(run * total + min(completed, total), total * len(variants))

            replayed = computed_rows(job, inputs, compute, chunk, total, update)
            stored = stored_rows(job, outputs, columns)
            runs.append(
                compare(replayed, stored, columns, job, chunk, count, complete=rows is None)
            )
    finally:
        torch.set_num_threads(before)
    guarantee = definition["internalParameters"]["guarantee"]
    return Replay(job.task, guarantee, not environment, changes + environment, runs)


def job_of(definition: Definition, folder: Path) -> Job:
    """A manifest's job in a folder."""
    parameters = definition["externalParameters"]
    model, loading = (
        parameters["model"],
        {
            name: value
            for name, value in parameters["loading"].items()
            if name in ManifestLoading.__annotations__
        },
    )
    if model.startswith("."):
        model = str(folder / model)
    elif commit := definition["resolvedDependencies"][0]["digest"].get("gitCommit"):
        loading["revision"] = commit
    return Job(
        parameters["task"],
        model,
        [str(folder / file) for file in parameters["files"]],
        folder / parameters["out"],
        column=parameters["column"],
        extra_columns=parameters["extra_columns"],
        prefix=parameters["prefix"],
        settings=parameters["settings"],
        loading=loading,
        na=parameters.get("na", NA),
    )


def check_inputs(job: Job, definition: Definition, folder: Path) -> list[Source]:
    """The input files. ValueError: a file is not the one of the manifest."""
    paths = [Path(file) for file in job.files]
    expected = definition["resolvedDependencies"][1:]
    for path, entry in zip(paths, expected, strict=True):
        if not path.is_file():
            raise FileNotFoundError(
                f"the input file {path} is missing: put it where it was, relative to the manifest"
            )
        if sha256(path) != entry["digest"]["sha256"]:
            raise ValueError(
                f"{path} has changed since the job: restore the file whose SHA-256 the manifest"
                " contains"
            )
    return [scan(job, path) for path in paths]


def check_model(job: Job, definition: Definition) -> Path:
    """The folder or GGUF file of the model. ValueError: it is not the model of the manifest."""
    from minhub_py.loading.files import open_files

    path = open_files(job.model, (job.loading or {}).get("revision", "main")).path
    if fingerprint(path) != definition["resolvedDependencies"][0]["digest"]["sha256"]:
        raise ValueError(
            f"the files of {job.model} have changed since the job: use the files that the manifest"
            " lists"
        )
    return Path(path).absolute()


def changed_outputs(statement: Manifest, outputs: Sequence[Path]) -> list[str]:
    """The outputs whose digest differs from the manifest."""
    digests = [entry["digest"]["sha256"] for entry in statement["subject"]]
    for path in outputs:
        if not path.is_file():
            raise FileNotFoundError(
                f"the output {path} is missing: put it where it was, relative to the manifest"
            )
    return [
        f"the output file {path}"
        for path, sha in zip(outputs, digests, strict=True)
        if sha256(path) != sha
    ]


def changed_environment(details: Details) -> list[str]:
    """The versions and the properties of the processor that differ from the manifest."""
    records = [
        entry.get("annotations")
        for entry in details["byproducts"]
        if entry.get("name") == "environment"
    ]
    environment: Environment = convert(
        records[0] if records else {},
        Environment,
        "the manifest's environment",
        "restore the manifest",
    )
    pairs = [(details["builder"]["version"], versions()), (environment["class"], processor_class())]
    return [
        f"{name}: {old.get(name, 'nothing')[:16]} in the manifest, {value[:16]} now"
        for old, new in pairs
        for name, value in new.items()
        if old.get(name) != value and name != "python"
    ]


def complete_rows(job: Job, inputs: Sequence[Source], limit: int | None) -> int:
    """The number of rows to compute: `limit`, or more up to the end of a text."""
    total = sum(source.rows for source in inputs)
    if limit is None or limit >= total:
        return total
    by = job.extra_columns if TASKS[job.task].extra == "by" else ()
    return next(rows for rows in accumulate(sources.chunk_sizes(inputs, by, 1)) if rows >= limit)


def computed_rows(
    job: Job,
    inputs: Sequence[Source],
    compute: Callable[[Chunk], bytes],
    size: int,
    limit: int,
    update: Callable[[int], object],
) -> Iterator[Mapping[str, object]]:
    """The rows of results for the first `limit` rows of the input, computed in chunks of `size`."""
    import json

    by = job.extra_columns if TASKS[job.task].extra == "by" else ()
    values = (value for source in inputs for value in read_values(job, source.path))
    first = 0
    for number, count in enumerate(sources.chunk_sizes(inputs, by, size)):
        if first >= limit:
            return
        chunk = list(islice(values, min(count, limit - first)))
        part = json.loads(
            compute(
                Chunk(number, first, [text for text, _ in chunk], [extra for _, extra in chunk])
            )
        )
        for row in part["rows"]:
            yield from row
        first += len(chunk)
        update(first)


def stored_rows(
    job: Job, outputs: Sequence[Path], columns: Sequence[Column]
) -> Iterator[tuple[Path, int, dict[str, str | bytes | None]]]:
    """The file, the number from 1, and the results of each row of the outputs, in the form of
    `canonical`.
    """
    for path in outputs:
        kind = output_format_of(path, TASKS[job.task])
        if kind == "npy":
            name = next(column.name for column in columns if column.type == "vector")
            for number, vector in enumerate(np.load(path, mmap_mode="r"), 1):
                yield path, number, {name: None if np.isnan(vector).all() else vector.tobytes()}
        elif kind == "txt":
            with path.open(encoding="utf-8", newline="") as lines:
                for number, line in enumerate(lines, 1):
                    cells = line.removesuffix("\n").split("\t")
                    yield (
                        path,
                        number,
                        dict(zip((column.name for column in columns), cells, strict=True)),
                    )
        else:
            rows = (row for batch in read_batches(path) for row in batch.rows)
            for number, row in enumerate(rows, 1):
                yield path, number, {column.name: stored_value(row, column) for column in columns}


def stored_value(row: Mapping[str, object], column: Column) -> str | bytes | None:
    """A result of a row of a table: a cell's text, the bytes of a vector, or None."""
    if column.type != "vector":
        return format_cell(row.get(column.name))
    vector = row.get(column.name)
    if column.name not in row:  # in .csv and .tsv files, one column per component
        names = [
            name
            for name in row
            if name.startswith(f"{column.name}_") and name[len(column.name) + 1 :].isdigit()
        ]
        vector = [row[name] for name in names]
        vector = None if not all(vector) else vector
    return canonical(vector, column)


def canonical(value: object, column: Column, *, escape: bool = False) -> str | bytes | None:
    """A computed result in the form of stored results."""
    if column.type == "vector":
        return None if value is None else np.array(value, np.float32).tobytes()
    return escape_line_breaks(format_cell(value)) if escape else format_cell(value)


def compare(
    replayed: Iterable[Mapping[str, object]],
    stored: Iterator[tuple[Path, int, dict[str, str | bytes | None]]],
    columns: Sequence[Column],
    job: Job,
    chunk: int,
    threads: int,
    *,
    complete: bool,
) -> ReplayRun:
    """Compare rows of results. complete: the outputs have no further rows."""
    rows = differing = 0
    largest, first = 0.0, None
    for result in replayed:
        entry = next(stored, None)
        if entry is None:
            raise ValueError(f"{job.out} has fewer rows than the replayed job: restore the output")
        path, number, expected = entry
        escape = format_of(path) == "txt"
        rows += 1
        differs = False
        for column in columns:
            value = canonical(result[column.name.removeprefix(job.prefix)], column, escape=escape)
            # .npy files have one column
            if column.name not in expected or value == expected[column.name]:
                continue
            differs = True
            largest = max(largest, difference(expected[column.name], value))
            if first is None:
                texts = (shown(expected[column.name]), shown(value))
                first = Difference(str(path), number, column.name, *texts)
        differing += differs
    if complete and next(stored, None) is not None:
        raise ValueError(f"{job.out} has more rows than the replayed job: restore the output")
    return ReplayRun(chunk, threads, rows, differing, largest, first)


def difference(stored: Any, replayed: Any) -> float:
    """The largest difference of two numbers or vectors; infinite for texts and missing values."""
    if isinstance(stored, bytes) and isinstance(replayed, bytes) and len(stored) == len(replayed):
        pair = (np.frombuffer(value, np.float32).astype(float) for value in (stored, replayed))
        return float(np.abs(next(pair) - next(pair)).max())
    try:
        return abs(float(stored) - float(replayed))
    except (TypeError, ValueError):
        return math.inf


def shown(value: object) -> str:
    """A value in a message."""
    if isinstance(value, bytes):
        vector = np.frombuffer(value, np.float32)
        return f"[{', '.join(map(str, vector[:3]))}, …]"
    return str(replace_missing(value))


def replace_missing(value: object) -> object:
    """A value, or "missing"."""
    return "missing" if value in (None, "") else value
