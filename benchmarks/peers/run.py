"""A run of the benchmark: settings, models, workers that take turns, and the result.

A case in `cases.py` is a function from a `Bench` to a `Case`, whose rows are dicts: medians, and
all raw times under "seconds".
"""

import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from importlib import metadata, util
from pathlib import Path
from typing import Any, TypeVar

from minhub_py import __version__
from minhub_py.checkpoints import hub
from minhub_py.cli.output import progress_bar
from minhub_py.inference.native.library import measured
from minhub_py.models.registry import ARCHITECTURES
from minhub_py.system import processor
from minhub_py.system.console import note
from peers import CASES, Result, Row
from peers.worker import Worker, environment

# From The Taming of the Shrew, act 2 scene 1: the built-in models have not been trained on it.
TEXT = Path(__file__).parents[2] / "tests" / "support" / "text.txt"
# Scale of random matrices, relative to initialization. A new GPT-2 repeats one token forever in any
# dtype; with large matrices the text never repeats, and differences between libraries are visible
# immediately.
TAME, WILD = 1, 5
SIZES: dict[str, Mapping[str, object]] = {
    "gpt2": {},
    "gptneo": {"num_layers": 12, "num_heads": 12, "hidden_size": 768},
    "llama": ARCHITECTURES["llama"].presets["HuggingFaceTB/SmolLM2-135M"],
    "lstm": {"num_layers": 2, "hidden_size": 512, "embedding_size": 512},
}

T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """Settings of a run. model: None for random weights of published sizes."""

    model: str | None = None
    threads: int = 2
    repeats: int = 5
    quick: bool = False
    text: str = ""
    files: Sequence[str] = ()


@dataclass(frozen=True)
class Runner:
    """One side of a comparison: an engine from `engines.py` with its options for loading a model.

    converter: method of `engines.Converter` that writes the library's file.    python: a Python
    with the library.
    """

    library: str
    weights: str
    engine: str
    options: Mapping[str, str] = field(default_factory=dict, compare=False)
    converter: str | None = None
    python: str = sys.executable

    @property
    def name(self) -> str:
        return f"{self.library} {self.weights}"


@dataclass(frozen=True)
class Peer:
    """A library that is compared with this package.

    weights: ours -> the peer's with as many bits, and the options of its engine; a suffix after a
    hyphen names another way to compute with them.    families: None for all.
    variable: environment variable that names a Python with the library, if it is incompatible with
    ours.
    """

    library: str
    engine: str
    package: str  # pip's name, for its version
    install: str  # the command that installs it
    weights: Mapping[str, tuple[str, Mapping[str, str]]]
    modules: tuple[str, ...] = ()  # the module that this Python must have
    converter: str | None = None
    families: tuple[str, ...] | None = None
    variable: str | None = None

    @property
    def python(self) -> str | None:
        """The Python with the library, or None."""
        if self.variable:
            return shutil.which(os.environ.get(self.variable, ""))
        return sys.executable if all(util.find_spec(module) for module in self.modules) else None

    def version(self) -> str | None:
        """The installed version, or None."""
        if self.python is None:
            return None
        code = "import sys; from importlib import metadata; print(metadata.version(sys.argv[1]))"
        result = subprocess.run(
            [self.python, "-c", code, self.package], capture_output=True, text=True, check=False
        )
        return result.stdout.strip() or None

    def runner(self, kind: str) -> Runner:
        """The runner with as many bits as our `kind` of weights."""
        name, options = self.weights[kind]
        return Runner(
            self.library, name, self.engine, options, self.converter, self.python or sys.executable
        )


PEERS = (
    Peer(
        library="transformers",
        engine="Transformers",
        package="transformers",
        modules=("transformers",),
        install="pip install transformers",
        weights={dtype: (dtype, {"dtype": dtype}) for dtype in ("float32", "bfloat16")},
    ),
    Peer(
        library="CTranslate2",
        engine="CTranslate2",
        package="ctranslate2",
        modules=("ctranslate2", "transformers"),
        install="pip install ctranslate2 transformers",
        weights={dtype: (dtype, {"dtype": dtype}) for dtype in ("float32", "int8")},
        converter="ctranslate2",
        families=("gpt2",),
    ),
    Peer(
        library="llama.cpp",
        engine="LlamaCpp",
        package="llama-cpp-python",
        modules=("llama_cpp", "gguf"),
        install="pip install llama-cpp-python gguf",
        # Keys and values in float32, too, so that F32 generates the same tokens as the others.
        weights={
            "float32": ("F32", {"cache": "float32"}),
            "bfloat16": ("BF16", {}),
            "int8": ("Q8_0", {}),
            "nf4": ("Q4_0", {}),
        },
        converter="gguf",
        families=("gpt2", "llama"),
    ),
    # In a separate Python: optimum-intel 2.2 needs huggingface_hub before 1.22, and this package a
    # later one.
    Peer(
        library="OpenVINO",
        engine="OpenVINO",
        package="openvino",
        install=(
            "python3 -m venv ov; ov/bin/pip install optimum-intel; export"
            " MINHUB_BENCH_OPENVINO=ov/bin/python"
        ),
        weights={
            "float32": ("float32", {"precision": "f32"}),
            "bfloat16": ("bfloat16", {"precision": "bf16"}),
            # By default, it rounds the inputs of products to 8 bits or bfloat16.
            "int8": ("int8", {}),
            "int8-f32": ("int8-f32", {"precision": "f32"}),
            "nf4": ("int4", {}),
            "nf4-f32": ("int4-f32", {"precision": "f32"}),
        },
        converter="openvino",
        variable="MINHUB_BENCH_OPENVINO",
    ),
)


@dataclass
class Case:
    """The result of a case. values: further numbers.    notes: text below the table."""

    title: str
    rows: list[Row]
    values: Row = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class LeftOutError(Exception):
    """A case cannot run with this model or on this machine; the message says why."""


@dataclass(frozen=True)
class Subject:
    """A model to measure. read: number of weights that are read for each new token."""

    name: str
    family: str
    folder: Path
    vocabulary: int
    context: int | None
    read: int

    def needs_tokenizer(self) -> None:
        """LeftOutError: the model has no tokenizer."""
        from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer

        try:
            read_tokenizer(self.folder)
        except FileNotFoundError as error:
            raise LeftOutError(str(error)) from error

    def fits(self, lengths: Sequence[int], further: int = 0) -> list[int]:
        """The lengths that fit into the context, with `further` tokens after them. LeftOutError:
        none fits.
        """
        fitting = [
            length for length in lengths if self.context is None or length + further <= self.context
        ]
        if not fitting:
            raise LeftOutError(f"the context of {self.name} holds {self.context} ids")
        return fitting

    def room(self, used: int, new: int) -> int:
        """The number of tokens, at most `new`, that fit the context after `used`. LeftOutError:
        fewer than two.
        """
        self.fits([used + 2])
        return new if self.context is None else min(new, self.context - used)

    def prompt(self, length: int, seed: int = 0) -> list[int]:
        """Random token IDs, always the same for the same length and seed."""
        draw = random.Random(1000 * seed + length)
        return [draw.randrange(self.vocabulary) for _ in range(length)]


class Bench:
    """A run of the benchmark: its settings, the models that it created, and the omitted cases and
    libraries.
    """

    def __init__(self, settings: Settings, scratch: Path) -> None:
        self.settings = settings
        self.scratch = scratch
        self.left_out: list[str] = []
        self._subjects: dict[str, Subject] = {}

    @property
    def text(self) -> str:
        """The text for the cases quality and tokenize."""
        return self.settings.text or TEXT.read_text(encoding="utf-8")

    def pick(self, full: T, quick: T) -> T:
        """`full`, or `quick` with --quick."""
        return quick if self.settings.quick else full

    def leave_out(self, line: str) -> None:
        """Print and record an omission once."""
        if line not in self.left_out:
            self.left_out.append(line)
            note(f"Note: {line}")

    def subject(self, family: str, scale: float = WILD) -> Subject:
        """The model for a case about `family`: --model, or random weights. LeftOutError: --model
        has another family.
        """
        requested = self.settings.model
        key = requested or f"{family}-{scale:g}"
        if key not in self._subjects:
            folder = (
                hub.fetch(requested)
                if requested
                else self._random(family, scale, self.scratch / key)
            )
            self._subjects[key] = look(requested or f"random {family}", folder)
        results = self._subjects[key]
        if requested and results.family != family:
            raise LeftOutError(f"it measures {family}, but {requested} is {results.family}")
        return results

    def text_model(self, scale: float = WILD) -> Subject:
        """The model for a case about any family: --model, or random weights of GPT-2's size."""
        requested = self.settings.model
        return self.subject(
            look(requested, hub.fetch(requested)).family if requested else "gpt2", scale
        )

    def _random(self, family: str, scale: float, folder: Path) -> Path:
        with self.worker("Converter") as writer:
            writer.ask(
                "random",
                family=family,
                config=SIZES[family],
                scale=scale,
                folder=str(folder),
                text=self.text,
            )
        return folder

    def _place(self, subject: Subject, runner: Runner) -> Path:
        """The model in the format of the runner's library, converted once."""
        if runner.converter is None:
            return subject.folder
        path = self.scratch / f"{subject.folder.name}-{runner.weights}.{runner.converter}"
        if not path.exists():
            # an incomplete file does not have the final name
            part = path.with_name(f"part-{path.name}")
            with self.worker("Converter", runner.python) as writer:
                writer.ask(
                    runner.converter,
                    folder=str(subject.folder),
                    out=str(part),
                    weights=runner.weights,
                )
            part.rename(path)
        return path

    @contextmanager
    def worker(
        self, engine: str, python: str = sys.executable, **options: object
    ) -> Iterator[Worker]:
        """Start a worker and wait until it is ready. RuntimeError: it does not start."""
        worker = Worker(engine, options, self.settings.threads, python)
        try:
            worker.ready()
            yield worker
        finally:
            worker.close()

    @contextmanager
    def team(self, subject: Subject, runners: Sequence[Runner]) -> Iterator[dict[Runner, Worker]]:
        """Start a worker for each runner. Runners that cannot load the model are left out, with the
        reason.
        """
        with ExitStack() as started:
            workers: dict[Runner, Worker] = {}
            for runner in runners:  # start all, then wait for each
                with self._unless_broken(subject, runner):
                    options = {"folder": str(self._place(subject, runner)), **runner.options}
                    worker = Worker(runner.engine, options, self.settings.threads, runner.python)
                    workers[runner] = worker
                    started.callback(worker.close)
            team: dict[Runner, Worker] = {}
            for runner, worker in workers.items():
                with self._unless_broken(subject, runner):
                    worker.ready()
                    team[runner] = worker
            if not team:
                raise LeftOutError(f"no library loads {subject.name}")
            yield team

    @contextmanager
    def _unless_broken(self, subject: Subject, runner: Runner) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            self.leave_out(
                f"{runner.name} is left out because it does not load {subject.name}: {error}"
            )

    def ours(self, *weights: str) -> list[Runner]:
        """Runners of this package for these kinds of weights, in each way to compute with them, or
        for all kinds.
        """
        results = {
            name: options
            for name, options in variants().items()
            if not weights or name.partition("-")[0] in weights
        }
        return [Runner("minhub_py", name, "Minhub", options) for name, options in results.items()]

    def peers(self, subject: Subject, *weights: str, only: Sequence[str] = ()) -> list[Runner]:
        """Runners of the peers, or of `only` these, with as many bits as these kinds of our
        weights.

        Libraries that are not installed are omitted, with a line that names the command to install
        them. A peer without the architecture, or without weights of as many bits, is omitted
        silently.
        """
        runners = []
        for peer in PEERS:
            if only and peer.library not in only:
                continue
            if subject.family == "lstm" or (peer.families and subject.family not in peer.families):
                continue
            if peer.python is None:
                path = os.environ.get(peer.variable) if peer.variable else None
                reason = (
                    f"{peer.variable} names no program: {path}"
                    if path
                    else f"it is not installed: {peer.install}"
                )
                self.leave_out(f"{peer.library} is left out because {reason}")
                continue
            runners += [
                peer.runner(kind) for kind in peer.weights if kind.partition("-")[0] in weights
            ]
        return runners

    def transformers(self, subject: Subject, *weights: str) -> list[Runner]:
        """Runners of transformers for these dtypes, if it is installed and supports the family."""
        return self.peers(subject, *weights, only=["transformers"])

    def ours_on_files(self, peers: Sequence[Runner]) -> list[Runner]:
        """Runners of this package on the files of llama.cpp in 8 and 4 bits, with their blocks."""
        results = [
            peer for peer in peers if peer.converter == "gguf" and peer.weights.startswith("Q")
        ]
        return [
            Runner("minhub_py", peer.weights, "Minhub", {"quantize": "auto"}, "gguf")
            for peer in results
        ]

    def interleave(self, what: str, steps: Mapping[Any, Callable[[], Any]]) -> dict[Any, list[Any]]:
        """Run all steps in turn, for several rounds. Returns the results of each, without the
        warm-up round.
        """
        results: dict[Any, list[Any]] = {name: [] for name in steps}
        rounds = self.settings.repeats + 1
        with progress_bar(what, "steps") as update:
            for count in range(rounds):
                for position, (name, step) in enumerate(steps.items()):
                    update(count * len(steps) + position, rounds * len(steps))
                    results[name].append(step())
        return {name: result[1:] for name, result in results.items()}

    def fresh(self, code: str, *arguments: str) -> dict[str, float]:
        """Run code in a new process, and return the JSON in its last line of output."""
        command = [sys.executable, "-c", code, *arguments]
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env=environment(self.settings.threads),
        )
        if result.returncode:
            raise RuntimeError(
                f"a process ended with status {result.returncode}: {result.stderr.strip()[-300:]}"
            )
        results: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
        return results


def variants() -> dict[str, dict[str, str]]:
    """The kinds of weights of this package, with the options of from_pretrained for each.

    A hyphen, as in `Peer`: inputs in fewer bits.
    """
    from minhub_py.inference.quantize import KINDS

    results = {name: {"dtype": name} for name in ("float32", "bfloat16", "float16")}
    for kind in KINDS:
        results[kind] = {"dtype": "float32", "quantize": kind}
        results[f"{kind}-bfloat16"] = {"dtype": "bfloat16", "quantize": kind}
    return results


def look(name: str | None, folder: Path) -> Subject:
    """Describe the model in `folder` for the cases. ValueError: it is not supported."""
    from torch import nn

    from minhub_py.loading.files import open_files
    from minhub_py.models.skeleton import skeleton

    files = open_files(folder)
    family, config = files.architecture, files.config
    model = skeleton(family.Model, config)
    # Only one row of an embedding is read, but a tied head reads all of the first one, the token
    # embedding.
    embeddings = [
        module.weight.numel() for module in model.modules() if isinstance(module, nn.Embedding)
    ]
    rows_only = sum(embeddings[1:] if config.tie_word_embeddings else embeddings)
    read = sum(parameter.numel() for parameter in model.parameters()) - rows_only
    return Subject(str(name), family.name, folder, config.vocab_size, config.context_length, read)


def measure(
    settings: Settings,
    functions: Mapping[str, Callable[[Bench], Case]],
    names: Sequence[str],
    report: Callable[[Result, str], object],
) -> Result:
    """Run the cases `names`, or all, in the order of CASES. Returns the result as a JSON object.

    `report(result, name)` is called after each case. A case that fails is recorded under "failed"
    with its reason, and the others continue.    OSError, ValueError: as for `from_pretrained`, or
    the decoder is missing, before anything is measured.
    """
    result: Result = {
        "minhub_bench": 1,
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(settings.threads),
        "settings": {
            **asdict(settings),
            "text": f"{len(settings.text)} characters" if settings.text else None,
        },
        "cases": {},
        "left_out": [],
        "failed": {},
    }
    with tempfile.TemporaryDirectory(prefix="minhub-bench-") as scratch:
        bench = Bench(settings, Path(scratch))
        result["left_out"] = bench.left_out
        if settings.model:
            bench.text_model()
        for name in [name for name in CASES if not names or name in names]:
            note(f"Measuring {name}: {CASES[name]} …")
            try:
                result["cases"][name] = asdict(functions[name](bench))
            except LeftOutError as reason:
                bench.leave_out(f"{name} is left out: {reason}")
            except RuntimeError as error:
                result["failed"][name] = str(error)
                note(f"FAILED: {name}: {error}")
            else:
                report(result, name)
    return result


def machine(threads: int) -> Row:
    """The machine: processor, cores, threads, system and versions."""
    versions: dict[str, str | None] = {
        name: metadata.version(name) for name in ("torch", "tokenizers")
    }
    versions |= {peer.package: peer.version() for peer in PEERS}
    return {
        "processor": processor.name(),
        "engine": measured(),
        "cores": processor.cores(),
        "threads": threads,
        # before the first case
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "minhub_py": __version__,
        **versions,
    }
