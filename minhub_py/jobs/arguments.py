"""A job's arguments."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minhub_py.system.csv_values import NA
from minhub_py.system.json_text import JsonMapping


@dataclass(frozen=True)
class Job:
    """A job's arguments.

    out: a file, or a folder that receives one file per input.
    column: the column of the texts.
    extra_columns: the columns for the task's additional option.
    prefix: the prefix for the names of the result columns.
    na: the values of .csv and .tsv files that are missing if they have no quotes.
    settings: for the task.
    loading: for the model: revision, device, dtype, quantize.
    workers: the number of processes; None means this process, or one process per node of the Ray
    cluster.
    ray: the address of a Ray cluster.
    manifest: a file to write that describes the job; see jobs/manifest.py.
    """

    task: str
    model: str
    files: Sequence[str]
    out: Path
    column: str = "text"
    extra_columns: Sequence[str] = ()
    prefix: str = ""
    settings: JsonMapping | None = None
    loading: JsonMapping | None = None
    workers: int | None = None
    ray: str | None = None
    overwrite: bool = False
    manifest: Path | None = None
    na: Sequence[str] = NA
