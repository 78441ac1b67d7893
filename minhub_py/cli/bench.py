"""`minhub bench`: the speed of this package on this machine.

Each case measures every kind of weights in turn, for several rounds after one uncounted round, and
reports medians; a profile is of the fastest round. Without a model the weights are random, with the
sizes of GPT-2 124M.
benchmarks/compare.py compares the package with other libraries.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from minhub_py.cli.output import progress_bar, table
from minhub_py.system.console import note
from minhub_py.system.json_text import JsonMapping, JsonObject
from minhub_py.system.quantization import KINDS as QUANTIZED
from minhub_py.system.version import __version__

if TYPE_CHECKING:
    from minhub_py.inference.profile import OperationTime, Profiler
    from minhub_py.models.base import LanguageModel

# Kind of weights -> arguments of from_pretrained.
K = TypeVar("K", bound=Hashable)
KINDS: dict[str, JsonObject] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    **{kind: {"dtype": "float32", "quantize": kind} for kind in QUANTIZED},
}
STORED = "stored"  # the weights of --model as from_pretrained loads them by default
# Case -> description.
CASES = {
    "decode": "decoding one sequence after a prompt of 32 tokens",
    "prefill": "time to the first new token, by prompt length",
    "batch": "decoding several sequences at once",
    "load": "loading the model in a new process, up to its first logits",
}
# Cases of --profile.
PROFILES = {
    "prompt": "time of each operation for a prompt of 256 tokens",
    "tokens": "time of each operation, decoding one token after another",
}
DESCRIPTIONS = CASES | PROFILES
PROMPT_LENGTHS = (32, 256, 1024)
BATCH_SIZES = (1, 8, 32)
PROFILED, LONGEST = 256, 2**20  # tokens of a profiled prompt; of a context without a limit
BUFFER = 2**28  # bytes; larger than any cache
LOAD = """
import json, sys, time
start = time.perf_counter()
import torch, minhub_py
imported = time.perf_counter()
model = minhub_py.from_pretrained(sys.argv[1], device="cpu", **json.loads(sys.argv[2]))
loaded = time.perf_counter()
model(torch.zeros(1, 1, dtype=torch.int64))
print(json.dumps([imported - start, loaded - imported, time.perf_counter() - loaded]))
"""

Row = JsonObject


@dataclass(frozen=True)
class BenchSettings:
    """Settings of a run. model: None measures random weights with the sizes of GPT-2 124M."""

    model: str | None
    kinds: Sequence[str]
    threads: int
    repeats: int
    new_tokens: int


def measure(
    settings: BenchSettings, cases: Sequence[str], show: Callable[[Row, str], object] | None = None
) -> Row:
    """Run the requested cases. Returns a JSON object with the machine, the settings and the rows of
    each case.

    show: called with the result so far and the name of a case, after each case.

    OSError, ValueError: the model cannot be loaded, or the decoder is missing, before anything is
    measured.
    """
    import torch

    from minhub_py.inference.native.library import measured
    from minhub_py.system.processor import name

    engine, threads = measured(), torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        models = {}
        for kind in settings.kinds:
            note(f"Preparing {kind} weights …")
            models[kind] = build(settings.model, kind)
        result: Row = {
            "machine": {
                "processor": name(),
                "engine": engine,
                "threads": settings.threads,
                "torch": torch.__version__,
                "minhub_py": __version__,
            },
            "model": settings.model or "random weights, GPT-2 124M",
            "repeats": settings.repeats,
            "cases": {},
        }
        for case in cases:
            note(f"Measuring {case}: {DESCRIPTIONS[case]} …")
            result["cases"][case] = FUNCTIONS[case](settings, models)
            if show is not None:
                show(result, case)
    finally:
        torch.set_num_threads(threads)
    return result


def build(model: str | None, kind: str) -> "LanguageModel":
    """The model with this kind of weights; without a model, random weights."""
    from minhub_py.loading.pretrained import from_pretrained

    if model is not None:
        options = {} if kind == STORED else KINDS[kind]
        return from_pretrained(model, device="cpu", **options)

    import torch

    from minhub_py.inference.quantize import quantize
    from minhub_py.loading.entry_points import gpt2

    torch.manual_seed(0)
    random = gpt2().eval()
    if "quantize" in KINDS[kind]:
        quantize(random, KINDS[kind]["quantize"])
        return random
    return random.to(getattr(torch, KINDS[kind]["dtype"]))


def interleave(
    what: str, steps: Mapping[K, Callable[[], float]], repeats: int
) -> dict[K, list[float]]:
    """Run all steps in turn, `repeats` rounds after a warm-up round. Returns the values of each
    step.
    """
    values: dict[K, list[float]] = {key: [] for key in steps}
    with progress_bar(what, "steps") as update:
        for number in range(repeats + 1):
            for index, (key, step) in enumerate(steps.items()):
                update(number * len(steps) + index, (repeats + 1) * len(steps))
                value = step()
                if number:
                    values[key].append(value)
    return values


def prompt(model: "LanguageModel", length: int, seed: int = 0) -> list[int]:
    """Random token IDs, the same for the same length and seed."""
    import torch

    generator = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(model.config.vocab_size, (length,), generator=generator).tolist()


def seconds_of(model: "LanguageModel", prompts: list[list[int]], new_tokens: int) -> float:
    """Seconds of one greedy generation."""
    from minhub_py.inference.generate import generate

    start = time.perf_counter()
    generate(model, prompts, new_tokens, temperature=0, eos_id=None)
    return time.perf_counter() - start


def fits(model: "LanguageModel", length: int) -> bool:
    """Whether the model's context has room for `length` tokens."""
    return model.config.context_length is None or length <= model.config.context_length


def bytes_per_token(model: "LanguageModel") -> int:
    """Bytes of the weights that decoding one token reads: all except embeddings, which are lookups."""
    from torch import nn

    from minhub_py.inference.quantize import QuantizedEmbedding

    def size(module: nn.Module) -> int:
        return sum(tensor.nbytes for tensor in module.state_dict().values())

    embeddings = [
        child for child in model.children() if isinstance(child, nn.Embedding | QuantizedEmbedding)
    ]
    # The first one is the token embedding, which is also the head of a tied model.
    lookups = embeddings[1:] if model.config.tie_word_embeddings else embeddings
    return size(model) - sum(map(size, lookups))


def decode(settings: BenchSettings, models: "Mapping[str, LanguageModel]") -> list[Row]:
    """Tokens per second after a prompt of 32 tokens, and the fraction of the memory bandwidth that
    decoding uses.
    """
    import torch

    buffer = torch.ones(BUFFER // 4)
    new = settings.new_tokens

    def read_memory() -> float:
        start = time.perf_counter()
        buffer.sum()
        return time.perf_counter() - start

    steps: dict[object, Callable[[], float]] = {"memory": read_memory}
    for kind, model in models.items():
        tokens = [prompt(model, 32)]
        steps[kind, "all"] = lambda model=model, tokens=tokens: seconds_of(model, tokens, new)  # type: ignore[misc]
        steps[kind, "first"] = lambda model=model, tokens=tokens: seconds_of(model, tokens, 1)  # type: ignore[misc]
    seconds = interleave("Decoding", steps, settings.repeats)
    bandwidth = BUFFER / statistics.median(seconds["memory"])
    rows = []
    for kind, model in models.items():
        total, first = (
            statistics.median(seconds[kind, "all"]),
            statistics.median(seconds[kind, "first"]),
        )
        per_token = (total - first) / (new - 1)
        rows.append(
            {
                "weights": kind,
                "tokens/s": new / total,
                "ms/token": 1000 * per_token,
                "MB/token": bytes_per_token(model) / 1e6,
                "% of bandwidth": 100 * bytes_per_token(model) / per_token / bandwidth,
            }
        )
    return rows


def prefill(settings: BenchSettings, models: "Mapping[str, LanguageModel]") -> list[Row]:
    """Milliseconds from a prompt to its first new token."""
    steps = {
        (kind, length): lambda model=model, length=length: seconds_of(
            model, [prompt(model, length)], 1
        )  # type: ignore[misc]
        for kind, model in models.items()
        for length in PROMPT_LENGTHS
        if fits(model, length)
    }
    seconds = interleave("Prompts", steps, settings.repeats)
    return [
        {"weights": kind}
        | {
            f"ms at {n:,}": 1000 * statistics.median(seconds[kind, n])
            for n in PROMPT_LENGTHS
            if (kind, n) in seconds
        }
        for kind in models
    ]


def batch(settings: BenchSettings, models: "Mapping[str, LanguageModel]") -> list[Row]:
    """Tokens per second of several sequences with prompts of 32 tokens."""
    new = settings.new_tokens
    prompts = {
        (kind, size): [prompt(model, 32, seed) for seed in range(size)]
        for kind, model in models.items()
        for size in BATCH_SIZES
    }
    steps = {key: lambda key=key: seconds_of(models[key[0]], prompts[key], new) for key in prompts}  # type: ignore[misc]
    seconds = interleave("Batches", steps, settings.repeats)
    return [
        {"weights": kind}
        | {f"tokens/s of {n}": n * new / statistics.median(seconds[kind, n]) for n in BATCH_SIZES}
        for kind in models
    ]


def load(settings: BenchSettings, models: Mapping[str, object]) -> list[Row]:
    """Seconds for the import, loading the model, and its first logits, each time in a new process."""
    import json
    import os
    import tempfile

    from minhub_py.loading.pretrained import save_pretrained

    environment = {**os.environ, "OMP_NUM_THREADS": str(settings.threads), "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory(prefix="minhub-bench-") as folder:
        if settings.model is None:
            save_pretrained(build(None, "float32"), folder)
        parts: dict[str, list[list[float]]] = {kind: [] for kind in models}

        def run(kind: str) -> float:
            command = [
                sys.executable,
                "-c",
                LOAD,
                settings.model or folder,
                json.dumps(KINDS[kind]),
            ]
            process = subprocess.run(
                command, capture_output=True, text=True, check=False, env=environment
            )
            if process.returncode:
                raise ValueError(
                    f"loading in a new process failed: {process.stderr.strip()[-300:]}"
                )
            parts[kind].append(json.loads(process.stdout.splitlines()[-1]))
            return sum(parts[kind][-1])

        interleave("Loading", {kind: partial(run, kind) for kind in models}, settings.repeats)
    rows = []
    for kind in models:
        names = ("import s", "load s", "forward s")
        columns = [statistics.median(values) for values in zip(*parts[kind][1:], strict=True)]
        rows.append(
            {"weights": kind, **dict(zip(names, columns, strict=True)), "total s": sum(columns)}
        )
    return rows


def profile(
    settings: BenchSettings,
    models: "Mapping[str, LanguageModel]",
    run: "Callable[[Profiler, list[int], int], list[OperationTime]]",
) -> list[Row]:
    """The operations of each model, in the fastest round. run: called with a prompt and the number
    of new tokens, which together fit the context.
    """
    from minhub_py.inference.native.library import UnsupportedError
    from minhub_py.inference.profile import Profiler

    try:
        profilers = {kind: Profiler(model) for kind, model in models.items()}
    except UnsupportedError as error:
        raise ValueError(
            f"--profile measures the decoder in C, which does not run this model: {error}"
        ) from error
    rounds: dict[str, list[list[OperationTime]]] = {kind: [] for kind in models}
    for _ in range(settings.repeats + 1):
        for kind, model in models.items():
            context = model.config.context_length or LONGEST
            new = min(settings.new_tokens, context // 2)
            ids = prompt(model, min(PROFILED, context - new))
            rounds[kind].append(run(profilers[kind], ids, new))
    rows = []
    for kind, results in rounds.items():
        fastest = min(results[1:], key=lambda result: sum(row.seconds for row in result))
        total = sum(row.seconds for row in fastest)
        for row in fastest:
            rate = row.products / row.seconds if row.products and row.seconds else None
            peak = profilers[kind].peaks.get(row.factors, 0) * settings.threads
            rows.append(
                {
                    "weights": kind,
                    "operation": row.name,
                    "format": row.weights,
                    "factors": row.factors,
                    "ms": 1000 * row.seconds,
                    "% of time": 100 * row.seconds / total,
                    "GMAC/s": rate and rate / 1e9,
                    "% of peak": 100 * rate / peak if rate and peak else None,
                    "GB/s": row.bytes / row.seconds / 1e9 if row.bytes and row.seconds else None,
                }
            )
    return rows


def prompt_profile(settings: BenchSettings, models: "Mapping[str, LanguageModel]") -> list[Row]:
    """The operations of a prompt."""
    return profile(settings, models, lambda profiler, ids, _: profiler.prompt(ids))


def token_profile(settings: BenchSettings, models: "Mapping[str, LanguageModel]") -> list[Row]:
    """The operations of new tokens after a prompt."""
    return profile(settings, models, lambda profiler, ids, new: profiler.decode(ids, new))


FUNCTIONS: dict[str, Callable[[BenchSettings, JsonMapping], list[Row]]] = {
    "decode": decode,
    "prefill": prefill,
    "batch": batch,
    "load": load,
    "prompt": prompt_profile,
    "tokens": token_profile,
}


def lines(rows: Sequence[Row]) -> Iterator[list[str]]:
    """The rows as text, numbers with two decimals."""
    for row in rows:
        yield [
            "" if value is None else value if isinstance(value, str) else f"{value:,.2f}"
            for value in row.values()
        ]


def show(result: Row, case: str) -> None:
    """Print the table of a case, after the machine if it is the first one."""
    import click

    machine, rows = result["machine"], result["cases"][case]
    if len(result["cases"]) == 1:
        click.echo(
            f"{machine['processor']}, {machine['engine']}, {machine['threads']} threads; "
            f"minhub_py {machine['minhub_py']}, torch {machine['torch']}; {result['model']}; "
            f"medians of {result['repeats']}."
        )
    click.echo(f"\n{case}: {DESCRIPTIONS[case]}")
    table(list(rows[0]), lines(rows))
