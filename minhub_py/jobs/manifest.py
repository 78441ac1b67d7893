"""A job's manifest: one file that states the job's arguments, files, software and machine.

A manifest is an in-toto Statement v1 in JSON, whose predicate follows SLSA provenance v1:

    subject                                 the output files, with SHA-256
    predicate.buildDefinition
        externalParameters                  all arguments of the job, after defaults
        internalParameters                  chunk size, threads, runner, dtype, canonical form, guarantee
        resolvedDependencies                the model, with its commit and files, and the input files, with SHA-256
    predicate.runDetails
        builder                             versions of minhub_py, PyTorch and Python, and the build of the decoder
        metadata                            identifier and times of the job
        byproducts                          processor, operating system, C library, environment variables

Local paths are relative to the folder of the manifest, so that the folder can be moved.
`minhub_py.jobs.replay` repeats a job. Sources: https://in-toto.io/Statement/v1,
https://slsa.dev/provenance/v1.
"""

import json
import os
import platform
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from reprlib import repr as brief
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict

from minhub_py.checkpoints.fingerprint import file_digest, model_files, sha256
from minhub_py.jobs.tasks import TASKS
from minhub_py.system import processor
from minhub_py.system.json_text import JsonMapping, JsonObject
from minhub_py.system.shapes import ShapeError, Within, read_json
from minhub_py.system.version import __version__

if TYPE_CHECKING:
    from minhub_py.jobs.arguments import Job
    from minhub_py.jobs.sources import Source
    from minhub_py.models.base import LanguageModel

STATEMENT, PREDICATE, JOB = (
    "https://in-toto.io/Statement/v1",
    "https://slsa.dev/provenance/v1",
    "urn:minhub:job:v1",
)
# Environment variables that change the sums of PyTorch's products.
VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "MKL_CBWR",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "ONEDNN_MAX_CPU_ISA",
)
FORM = (
    "The files are UTF-8 with LF line ends, and rows in the order of the input. Numbers have the"
    " fewest digits that identify a float64 value; embeddings and classifier scores, a float32"
    " value. The digest is that of the file."
)
GUARANTEES = {
    "bitwise": (
        "On the same processor class, with the same versions and decoder, results are bitwise"
        " identical for any batch size, number of threads and number of processes."
    ),
    "close": (
        "Results depend on the batch size and the number of threads through the order of sums:"
        " differences of float32 rounding, or of bfloat16 and float16 rounding for these dtypes."
    ),
}
Threads = Annotated[int, Within(1, 2**16)]


class Digest(TypedDict):
    """A resource's digest."""

    sha256: str


class Digests(Digest, total=False):
    """Digests of a resource. gitCommit: of a model on the Hub."""

    gitCommit: str


class Resource(TypedDict):
    """A file, or the model."""

    digest: Digests


class ManifestLoading(TypedDict, total=False):
    """The arguments of the model."""

    revision: str
    device: str
    dtype: str
    quantize: str


class RequiredArguments(TypedDict):
    """A job's arguments in all versions."""

    task: str
    model: str
    files: list[str]
    out: str
    column: str
    extra_columns: list[str]
    prefix: str
    settings: JsonObject
    loading: ManifestLoading


class Arguments(RequiredArguments, total=False):
    """A job's arguments."""

    na: list[str]


class Computed(TypedDict):
    """How a process computed chunks; see `computation`."""

    threads: Threads


class Internal(TypedDict):
    """Parameters that the job chooses."""

    chunk: Threads
    computed: list[Computed]
    guarantee: Literal["bitwise", "close"]


class Definition(TypedDict):
    """What the job computes."""

    buildType: str
    externalParameters: Arguments
    internalParameters: Internal
    resolvedDependencies: Annotated[list[Resource], Within(1)]


class Builder(TypedDict):
    """The software."""

    version: dict[str, str]


Environment = TypedDict("Environment", {"class": dict[str, str]})  # see `environment`


class Byproduct(TypedDict, total=False):
    """A record of the job; the one named "environment" describes the machine."""

    name: str
    annotations: JsonObject


class Details(TypedDict):
    """How the job ran."""

    builder: Builder
    byproducts: list[Byproduct]


class Predicate(TypedDict):
    """The predicate of SLSA provenance."""

    buildDefinition: Definition
    runDetails: Details


class Manifest(TypedDict):
    """The members of a manifest that `replay` reads."""

    _type: str
    subject: list[Resource]
    predicate: Predicate


def computation(model: "LanguageModel", task: str) -> JsonObject:
    """How this process computes a task: runner, dtype, quantization, device, and whether results
    are bitwise stable.
    """
    import torch

    from minhub_py.inference.encoder_runner import NativeEncoder, encoder_runner
    from minhub_py.inference.native_runner import NativeRunner, runner_of
    from minhub_py.inference.quantize import kind_of
    from minhub_py.models.encoder import Encoder

    runner = encoder_runner(model) if isinstance(model, Encoder) else runner_of(model)
    native = isinstance(runner, NativeRunner | NativeEncoder)
    parameter = next(model.parameters())
    return {
        "runner": "decoder in C" if native else "PyTorch",
        "dtype": str(parameter.dtype).removeprefix("torch."),
        "quantize": kind_of(model),
        "device": str(parameter.device),
        "threads": torch.get_num_threads(),
        "bitwise": bool(
            native and TASKS[task].exact and getattr(runner, "long_prompt", None) is None
        ),
    }


def processor_class() -> dict[str, str]:
    """What results depend on, except versions: instruction set, kernels, and the C library with its
    exp and log.
    """
    import torch

    from minhub_py.inference.native import library

    kernels = library.kernels().split()[0] if library.library() else "none"
    return {
        "machine": platform.machine(),
        "kernels": kernels,
        "torch": torch.backends.cpu.get_cpu_capability(),
        "libc": " ".join(platform.libc_ver()) or platform.system(),
    }


def versions() -> dict[str, str]:
    """The versions of the software, and the hash of the compiled decoder."""
    import torch

    from minhub_py.inference.native import library

    decoder = sha256(library.PATH) if library.library() else "none"
    return {
        "minhub_py": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "decoder": decoder,
    }


def write_manifest(
    path: Path,
    job: "Job",
    record: Mapping[str, object],
    inputs: Sequence["Source"],
    outputs: Mapping[Path, Path],
    computed: Sequence[Mapping[str, object]],
    started: datetime,
) -> None:
    """Write a job's manifest.

    outputs: the file with each output's content.    computed: the different results of
    `computation`.
    """
    folder = path.absolute().parent
    bitwise = bool(computed) and all(part["bitwise"] for part in computed)
    guarantee = "bitwise" if bitwise else "close"
    statement = {
        "_type": STATEMENT,
        "subject": [
            digest_of(relative(name, folder), sha256(content)) for name, content in outputs.items()
        ],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": JOB,
                "externalParameters": {
                    "task": job.task,
                    "model": relative_model(job.model, folder),
                    "files": [relative(source.path, folder) for source in inputs],
                    "out": relative(job.out, folder),
                    "column": job.column,
                    "extra_columns": list(job.extra_columns),
                    "prefix": job.prefix,
                    "na": list(job.na),
                    "settings": record["settings"],
                    "loading": dict(job.loading or {}),
                    "workers": job.workers,
                    "ray": job.ray is not None,
                },
                "internalParameters": {
                    "chunk": TASKS[job.task].chunk,
                    "computed": list(computed),
                    "rows": sum(source.rows for source in inputs),
                    "form": FORM,
                    "guarantee": guarantee,
                    "guarantee_text": GUARANTEES[guarantee],
                    "replay": f"minhub replay {path.name}",
                },
                "resolvedDependencies": [
                    model_dependency(job, record, folder),
                    *(
                        {
                            **digest_of(relative(source.path, folder), source.digest),
                            "annotations": {"rows": source.rows},
                        }
                        for source in inputs
                    ),
                ],
            },
            "runDetails": {
                "builder": {"id": "urn:minhub:minhub_py", "version": versions()},
                "metadata": {
                    "invocationId": str(uuid.uuid4()),
                    "startedOn": timestamp(started),
                    "finishedOn": timestamp(datetime.now(timezone.utc)),
                },
                "byproducts": [{"name": "environment", "annotations": environment()}],
            },
        },
    }
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        draft.write_text(
            json.dumps(statement, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def model_dependency(job: "Job", record: JsonMapping, folder: Path) -> JsonObject:
    """The model: fingerprint, commit, and the SHA-256 of each file."""
    from minhub_py.checkpoints.local import commit_of, locate

    path = locate(job.model, str((job.loading or {}).get("revision", "main")))
    files = model_files(path) if path is not None else []
    entry = digest_of(relative_model(job.model, folder), record["model"])
    if path is not None and (commit := commit_of(path)):
        entry["digest"]["gitCommit"] = commit
    entry["annotations"] = {"files": {file.name: file_digest(file) for file in files}}
    return entry


def environment() -> JsonObject:
    """Processor, operating system and environment variables."""
    return {
        "processor": processor.name(),
        "cores": processor.cores(),
        "flags": processor.described("flags"),
        "system": platform.platform(),
        "class": processor_class(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def digest_of(name: str, sha: str) -> JsonObject:
    """A resource with its digest."""
    return {"name": name, "digest": {"sha256": sha}}


def relative(path: Path, folder: Path) -> str:
    """A path relative to a folder, with slashes; absolute if it is on another drive."""
    try:
        return Path(os.path.relpath(path.absolute(), folder)).as_posix()
    except ValueError:
        return path.absolute().as_posix()


def relative_model(model: str, folder: Path) -> str:
    """A model's identifier. A local path is relative to the folder and begins with a dot."""
    if not Path(model).exists():
        return model
    path = relative(Path(model), folder)
    return path if path.startswith(".") or os.path.isabs(path) else f"./{path}"


def timestamp(time: datetime) -> str:
    """A time in UTC, as in RFC 3339."""
    return time.astimezone(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


def different(values: Iterable[Mapping[str, object]]) -> list[JsonObject]:
    """The different mappings, in order of appearance."""
    unique = {json.dumps(value, sort_keys=True): dict(value) for value in values}
    return list(unique.values())


def read_manifest(path: Path) -> Manifest:
    """Read a manifest; unknown fields are ignored. ValueError: the file is not a manifest of a job."""
    try:
        manifest = read_json(path, Manifest, advice="restore the file that the job wrote")
    except ShapeError as error:
        raise ValueError(f"{path} is not the manifest of a job ({error.reason})") from error
    definition = manifest["predicate"]["buildDefinition"]
    if manifest["_type"] != STATEMENT or definition["buildType"] != JOB:
        raise ValueError(f"{path} is an in-toto statement, but not of a minhub job")
    if (task := definition["externalParameters"]["task"]) not in TASKS:
        raise ValueError(f"{path}: the task {brief(task)} is not one of {', '.join(TASKS)}")
    files, resources = definition["externalParameters"]["files"], definition["resolvedDependencies"]
    if len(resources) != len(files) + 1:
        raise ValueError(
            f"{path} is corrupt: it has {len(files)} files, but {len(resources)}"
            " resolvedDependencies"
        )
    return manifest
