"""Jobs with a manifest, and their replay."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from r_bridge.arguments import character, frame, vector_values
from r_bridge.objects import Session

# Settings that are lists, also with one value.
LISTS = ("renyi", "labels", "definitions", "example_texts", "example_labels")


def replay(session: Session, manifest: str, rows: int | None) -> dict[str, object]:
    """The result of minhub_py.replay. A difference that is not a number is infinite."""
    from minhub_py.jobs.replay import replay as repeat

    result = repeat(Path(manifest), rows, progress=session.progress)
    firsts = [run.first for run in result.runs]
    return {
        "task": result.task,
        "guarantee": result.guarantee,
        "same_class": result.same_class,
        "identical": result.identical,
        "broken": result.broken,
        "changes": character(result.changes),
        "text": str(result),
        "runs": frame(
            {
                **{
                    name: [getattr(run, name) for run in result.runs]
                    for name in ("chunk", "threads", "rows", "differing", "largest")
                },
                **{
                    name: [None if first is None else str(getattr(first, name)) for first in firsts]
                    for name in ("file", "row", "column", "stored", "replayed")
                },
            }
        ),
    }


def run_job(
    session: Session,
    identifier: str,
    loading: Mapping[str, object],
    task: str,
    column: str,
    extra_columns: Mapping[str, object],
    data: Mapping[str, object],
    settings: Mapping[str, object],
    manifest: str,
) -> dict[str, object]:
    """Run a job on columns, and write its manifest. Returns the columns of the results.

    The input and the output are files in the manifest's folder. The same call continues an
    interrupted job.
    """
    import json

    import click

    from minhub_py.jobs import job
    from minhub_py.jobs.arguments import Job
    from minhub_py.jobs.tasks import TASKS
    from minhub_py.system.formats import read_jsonl

    path = Path(manifest)
    source, out = (path.with_name(f"{path.stem}-{name}.jsonl") for name in ("input", "output"))
    columns = {name: vector_values(values) for name, values in dict(data).items()}
    rows = [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if not source.exists() or source.read_text(encoding="utf-8") != text:
        source.write_text(text, encoding="utf-8")
    values = {name: setting_of(name, value) for name, value in dict(settings or {}).items()}
    if task == "annotate":
        values["codebook"] = codebook(values)
    call = Job(
        task,
        identifier,
        [str(source)],
        out,
        column=column,
        extra_columns=list(extra_columns or []),
        settings=values,
        loading={name: setting_of(name, value) for name, value in dict(loading).items()},
        overwrite=True,
        manifest=path,
    )
    try:
        job.run(call, session.progress, lambda *_: None)
    except click.ClickException as error:
        raise ValueError(error.message.replace("--", "")) from error
    results = [row for _, row in read_jsonl(out)]
    return {
        result.name: results_column([row[result.name] for row in results], result.type)
        for result in TASKS[task].all_columns(values)
    }


def codebook(values: dict[str, Any]) -> dict[str, object]:
    """The codebook of R's arguments, which are removed from `values`."""
    from minhub_py.analysis.codebook import codebook_of

    labels, definitions = values.pop("labels"), values.pop("definitions")
    source = values.pop("codebook") or labels
    if definitions is not None:
        source = dict(zip(labels, definitions, strict=True))
    examples = list(
        zip(values.pop("example_texts") or [], values.pop("example_labels") or [], strict=True)
    )
    return dict(codebook_of(source, values.pop("instruction"), examples).to_dict())


def setting_of(name: str, value: object) -> object:
    """A setting from R: a scalar, or a list for settings with several values."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    values = value if isinstance(value, list) else np.ma.asarray(value).reshape(-1).tolist()
    return values if name in LISTS or len(values) != 1 else values[0]


def results_column(values: list[Any], kind: str) -> object:
    """A column of results for R."""
    if kind == "string":
        return character(values)
    if kind == "vector":
        width = next((len(vector) for vector in values if vector is not None), 0)
        empty = [np.nan] * width
        matrix = np.array(
            [empty if vector is None else vector for vector in values], float
        ).reshape(-1, width)
        return np.ma.MaskedArray(matrix, np.isnan(matrix))
    numbers = np.array([np.nan if value is None else value for value in values], float)
    if kind == "int64" and not np.isnan(numbers).any():
        return numbers.astype(np.int32)
    return np.ma.MaskedArray(numbers, np.isnan(numbers))
