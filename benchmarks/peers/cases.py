"""The cases of the benchmark: the libraries, their tasks, and the results computed from the times.

`tables.COLUMNS` selects the values that are shown.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from minhub_py.checkpoints import hub, local
from minhub_py.system.processor import cores
from peers import BITS, Row
from peers.files import files
from peers.run import TAME, WILD, Bench, Case, Runner, Subject, variants
from peers.worker import Worker, environment

# Our kinds of weights that peers also have.
KINDS = ("float32", "bfloat16", "int8", "nf4")
# Engines that can count the bytes of weights for a token.
WEIGHED = {"Minhub", "LlamaCpp", "OpenVINO"}
# Key of a step -> the step.
Steps = dict[Any, Callable[[], Any]]


def median(values: Sequence[float]) -> float:
    return float(statistics.median(values))


def same_start(a: Sequence[int], b: Sequence[int]) -> int:
    """The number of equal tokens before the first difference."""
    return next(
        (position for position, (x, y) in enumerate(zip(a, b, strict=False)) if x != y),
        min(len(a), len(b)),
    )


def named(rows: Sequence[Row], name: str) -> Row | None:
    """A runner's row, or None."""
    return next((row for row in rows if row["runner"] == name), None)


def compare(rows: Sequence[Row], key: str, baseline: str, into: str = "ratio") -> None:
    """Set `into` of each row to its speed relative to `baseline`, computed from the times `key`."""
    base = named(rows, baseline)
    for row in rows:
        row[into] = base[key] / row[key] if base else None


def bandwidth_rows(measured: Sequence[Mapping[str, list[float]]], size: int) -> list[Row]:
    """A row for each method of reading memory, fastest first, in gigabytes (10^9 bytes) per second."""
    rows = []
    for name in measured[0]:
        seconds = [value for passes in measured for value in passes[name]]
        rows.append(
            {
                "reader": name,
                "gigabytes_per_second": size / 1e9 / median(seconds),
                "best": size / 1e9 / min(seconds),
                "seconds": seconds,
            }
        )
    return sorted(rows, key=lambda row: -row["gigabytes_per_second"])


def bandwidth(bench: Bench) -> Case:
    """Memory bandwidth for reading."""
    size = bench.pick(512, 128) * 2**20
    with bench.worker("Memory", size=size) as memory:
        measured = bench.interleave("Reading memory", {"": partial(memory.ask, "read", passes=3)})[
            ""
        ]
    return Case(
        f"Reading {size // 2**20} MiB of memory, with --threads {bench.settings.threads}",
        bandwidth_rows(measured, size),
    )


def decode(bench: Bench) -> Case:
    """Decoding with GPT-2, or --model."""
    subject = bench.text_model()
    runners = [
        *bench.ours(*bench.pick((), ("float32", "bfloat16", "int8"))),
        *bench.peers(subject, *bench.pick(KINDS, ("float32", "int8"))),
    ]
    return decoding(bench, subject, runners)


def llama(bench: Bench) -> Case:
    """Decoding with a Llama of SmolLM2-135M's sizes, or --model; also with llama.cpp's own files."""
    subject = bench.subject("llama")
    peers = bench.peers(subject, *KINDS)
    return decoding(bench, subject, [*bench.ours(*KINDS), *bench.ours_on_files(peers), *peers])


def decoding(bench: Bench, subject: Subject, runners: Sequence[Runner]) -> Case:
    """Greedy decoding of one prompt: total time, and time per token from the difference to
    generating one token.
    """
    new = subject.room(32, bench.pick(128, 16))
    prompts = [subject.prompt(32)]
    size = bench.pick(512, 128) * 2**20
    with bench.team(subject, runners) as team, bench.worker("Memory", size=size) as memory:
        steps: Steps = {}
        for runner, worker in team.items():
            steps[runner, "whole"] = partial(worker.ask, "timed", prompts=prompts, new=new)
            steps[runner, "first"] = partial(worker.ask, "timed", prompts=prompts, new=1)
            steps["memory", runner] = partial(memory.ask, "read", passes=2)
        held = {
            runner: worker.ask("bytes_per_token")
            for runner, worker in team.items()
            if runner.engine in WEIGHED
        }
        measured = bench.interleave("Decoding", steps)
    readers = bandwidth_rows(
        [reply for runner in team for reply in measured["memory", runner]], size
    )
    limit = readers[0]["gigabytes_per_second"]
    rows = []
    for runner in team:
        complete, first = (
            [reply["seconds"] for reply in measured[runner, part]] for part in ("whole", "first")
        )
        per_token = (median(complete) - median(first)) / (new - 1)
        read = held[runner] if runner in held else subject.read * BITS[runner.weights] / 8
        rows.append(
            {
                "runner": runner.name,
                "library": runner.library,
                "weights": runner.weights,
                "tokens_per_second": new / median(complete),
                "ms_per_token": 1000 * median(complete) / new,
                "decode_ms_per_token": 1000 * per_token,
                "bytes_per_token": read,
                "bandwidth_percent": (
                    100 * read / per_token / (1e9 * limit) if per_token > 0 else None
                ),
                "limit_tokens_per_second": 1e9 * limit / read,
                "seconds": complete,
                "seconds_to_first": first,
                "ids": measured[runner, "whole"][0]["ids"][0],
            }
        )
    compare(rows, "ms_per_token", "transformers float32")
    case = Case(f"Decoding {subject.name}: a prompt of 32 ids, {new} new ones, greedy", rows)
    case.values = {"new": new, "bandwidth": readers, "limit_gigabytes_per_second": limit}
    case.notes.append(
        f"Memory was read at {limit:.1f} GB/s in the same rounds ({readers[0]['reader']})."
    )
    count_same_ids(case, rows, new)
    if bench.settings.model is None:
        case.notes.append(
            "The weights are random, so with fewer bits the ids soon differ; see the case quality"
            " for accuracy."
        )
    return case


def count_same_ids(case: Case, rows: list[Row], new: int) -> None:
    """Count the leading ids that each row shares with transformers in float32, or with the first
    row.
    """
    reference = named(rows, "transformers float32") or rows[0]
    for row in rows:
        row["same_ids"] = same_start(row["ids"], reference["ids"])
    ours = named(rows, "minhub_py float32")
    if ours and ours["same_ids"] < new:
        case.notes.append(
            f"NOT THE SAME: minhub_py float32 and {reference['runner']} agree in the first"
            f" {ours['same_ids']} ids only."
        )


def curve(
    rows: list[Row], points: Sequence[int], baseline: str = "transformers float32"
) -> list[str]:
    """Set the "ratios" of each row to `baseline` at each point, from "values" (lower is better);
    notes for our rows.
    """
    base = named(rows, baseline)
    for row in rows:
        row["ratios"] = (
            [b / a for a, b in zip(row["values"], base["values"], strict=True)] if base else None
        )
    notes = []
    for row in rows if base else []:
        if row["runner"].startswith("minhub_py "):
            shown = ", ".join(
                f"{ratio:.2f} at {point:,}"
                for ratio, point in zip(row["ratios"], points, strict=True)
            )
            notes.append(f"× {baseline}, {row['runner']}: {shown}.")
    return notes


def by_position(
    bench: Bench, subject: Subject, positions: Sequence[int], runners: Sequence[Runner], title: str
) -> Case:
    """Time per token at several positions of a text: the median over the tokens around each
    position.
    """
    span = bench.pick(32, 8)
    with bench.team(subject, runners) as team:
        steps = {
            (runner, position): partial(
                worker.ask, "steps", prompt=subject.prompt(position - span // 2), new=span
            )
            for runner, worker in team.items()
            for position in positions
        }
        measured = bench.interleave(title.split(":", maxsplit=1)[0], steps)
    rows = []
    for runner in team:
        seconds = [
            [median(times) for times in measured[runner, position]] for position in positions
        ]
        values = [1000 * median(times) for times in seconds]
        rows.append(
            {
                "runner": runner.name,
                "values": values,
                "seconds": seconds,
                "last_to_first": values[-1] / values[0],
            }
        )
    notes = curve(rows, positions)
    return Case(title, rows, {"points": list(positions), "unit": "ms"}, notes)


def positions(bench: Bench) -> Case:
    """Whether a token takes longer late in the text."""
    subject = bench.text_model()
    indices = subject.fits(bench.pick((50, 200, 500, 1000), (50, 200)), 16)
    runners = [*bench.ours("float32", "bfloat16", "int8"), *bench.transformers(subject, "float32")]
    return by_position(
        bench,
        subject,
        indices,
        runners,
        f"Milliseconds per token at positions of a text: {subject.name}",
    )


def gptneo(bench: Bench) -> Case:
    """Positions of GPT-Neo, whose local layers attend to 256 positions and need not be slower late
    in the text.
    """
    subject = bench.subject("gptneo")
    indices = subject.fits((50, bench.pick(2000, 300)), 16)
    runners = [*bench.ours("float32", "bfloat16", "int8"), *bench.transformers(subject, "float32")]
    return by_position(
        bench,
        subject,
        indices,
        runners,
        f"Milliseconds per token at positions of a text: {subject.name}",
    )


def batch(bench: Bench) -> Case:
    """Batches of prompts of 5 to 60 tokens, padded on the left for transformers; a batch of one has
    32 tokens.
    """
    subject = bench.text_model()
    new, counts = subject.room(60, bench.pick(64, 8)), bench.pick((1, 2, 4, 8, 16, 32), (1, 2, 8))
    lengths = {
        count: [32] if count == 1 else [5 + 55 * row // (count - 1) for row in range(count)]
        for count in counts
    }
    prompts = {
        count: [subject.prompt(length, row) for row, length in enumerate(lengths[count])]
        for count in counts
    }
    kinds = bench.pick(KINDS, ("float32", "int8"))
    runners = [*bench.ours(*kinds), *bench.peers(subject, *kinds)]
    with bench.team(subject, runners) as team:
        steps = {
            (runner, count): partial(worker.ask, "timed", prompts=prompts[count], new=new)
            for runner, worker in team.items()
            for count in counts
        }
        measured = bench.interleave("Batches", steps)
    rows = []
    for runner in team:
        seconds = [[reply["seconds"] for reply in measured[runner, count]] for count in counts]
        speeds = [count * new / median(times) for count, times in zip(counts, seconds, strict=True)]
        rows.append(
            {
                "runner": runner.name,
                "tokens_per_second": speeds,
                "seconds": seconds,
                "values": [1 / speed for speed in speeds],
                "eight_to_one": speeds[counts.index(8)] / speeds[0],
            }
        )
    notes = curve(rows, counts)
    title = (
        f"Tokens/s of several prompts of 5 to 60 tokens (one: 32), {new} new tokens each:"
        f" {subject.name}"
    )
    return Case(title, rows, {"points": list(counts), "unit": "tokens/s"}, notes)


def prefill(bench: Bench) -> Case:
    """Time from a prompt to its first new token."""
    subject = bench.text_model()
    lengths = subject.fits(bench.pick((32, 256, 1024), (32, 128)))
    kinds = bench.pick(KINDS, ("float32", "int8"))
    runners = [*bench.ours(*kinds), *bench.peers(subject, *kinds)]
    with bench.team(subject, runners) as team:
        steps = {
            (runner, length): partial(worker.ask, "timed", prompts=[subject.prompt(length)], new=1)
            for runner, worker in team.items()
            for length in lengths
        }
        measured = bench.interleave("Prompts", steps)
    rows = []
    for runner in team:
        seconds = [[reply["seconds"] for reply in measured[runner, length]] for length in lengths]
        rows.append(
            {
                "runner": runner.name,
                "values": [1000 * median(times) for times in seconds],
                "seconds": seconds,
            }
        )
    notes = curve(rows, lengths)
    title = f"Milliseconds to the first new token, by prompt length: {subject.name}"
    return Case(title, rows, {"points": lengths, "unit": "ms"}, notes)


def speculation(bench: Bench) -> Case:
    """Speculative decoding by n-gram lookup, in both libraries, for text that repeats and text that
    does not.
    """
    rows = []
    for text, scale in (("repeats", TAME), ("does not", WILD)):
        subject = bench.text_model(scale)
        length = 16 * bench.pick(8, 4)
        new = subject.room(length, bench.pick(128, 32))
        prompts = [
            subject.prompt(length) if text == "does not" else subject.prompt(16) * (length // 16)
        ]
        runners = [*bench.ours("float32", "int8"), *bench.transformers(subject, "float32")]
        with bench.team(subject, runners) as team:
            steps = {
                (runner, guessed): partial(
                    worker.ask,
                    "timed",
                    prompts=prompts,
                    new=new,
                    **({"speculate": guessed} if guessed else {}),
                )
                for runner, worker in team.items()
                for guessed in (0, 8)
            }
            measured = bench.interleave("Speculation", steps)
        for runner in team:
            replies = {guessed: measured[runner, guessed] for guessed in (0, 8)}
            plain, guessing = (
                [reply["seconds"] for reply in replies[guessed]] for guessed in (0, 8)
            )
            rows.append(
                {
                    "text": text,
                    "runner": runner.name,
                    "tokens_per_second": new / median(plain),
                    "speculating": new / median(guessing),
                    "ratio": median(plain) / median(guessing),
                    "seconds": plain,
                    "seconds_speculating": guessing,
                    "same_ids": same_start(replies[0][0]["ids"][0], replies[8][0]["ids"][0]),
                }
            )
    return Case(
        f"Up to 8 tokens guessed at a time, {new} new tokens: {subject.name}", rows, {"new": new}
    )


def quality(bench: Bench) -> Case:
    """Effect of fewer bits on a text's perplexity, the most likely token at each position, and
    greedy text.
    """
    models = [f"minhub/{path.name}" for path in built_ins()]
    if bench.settings.model:
        models = [bench.settings.model]
        bench.text_model().needs_tokenizer()
    prompts, new = bench.pick((8, 100), (2, 20))
    rows = []
    for model in models:
        with bench.worker("Quality", folder=str(hub.fetch(model)), text=bench.text) as worker:
            reference: Row = {}
            for weights, options in variants().items():
                measured = worker.ask("measure", options=options, prompts=prompts, new=new)
                reference = reference or measured  # float32 comes first
                pairs = list(zip(measured["likeliest"], reference["likeliest"], strict=True))
                starts = [
                    same_start(*pair)
                    for pair in zip(measured["written"], reference["written"], strict=True)
                ]
                rows.append(
                    {
                        "model": model,
                        "weights": weights,
                        "perplexity": measured["perplexity"],
                        "ratio": measured["perplexity"] / reference["perplexity"],
                        "tokens": len(pairs),
                        "same_percent": 100 * sum(a == b for a, b in pairs) / len(pairs),
                        "same_starts": starts,
                        "same_start": statistics.mean(starts),
                    }
                )
    title = (
        f"Compared with float32: a text of {len(bench.text):,} characters, and {new} greedy tokens"
        f" from each of {prompts} places in it"
    )
    return Case(title, rows, {"new": new, "prompts": prompts})


def built_ins() -> list[Path]:
    """The folders of the built-in models."""
    return sorted(path.parent for path in local.BUILTIN.glob("*/config.json"))


LOAD = """
import json, sys, time
from pathlib import Path

MEMORY = {"memory": "VmRSS", "private": "RssAnon"}

def memory():
    if not Path("/proc/self/status").exists():
        return {}
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(fields[field].split()[0]) / 1000 for name, field in MEMORY.items()}

start = time.perf_counter()
import torch
if sys.argv[1] == "minhub_py":
    from minhub_py import from_pretrained
    options = {"device": "cpu"}
else:
    from transformers import AutoModelForCausalLM
    from_pretrained, options = AutoModelForCausalLM.from_pretrained, {}
imported = time.perf_counter()
torch.set_num_threads(int(sys.argv[3]))
before = memory()
begin = time.perf_counter()
model = from_pretrained(sys.argv[2], **options)
loaded = time.perf_counter()
with torch.inference_mode():
    model(torch.arange(8).unsqueeze(0))
done = time.perf_counter()
grown = {name: after - before[name] for name, after in memory().items()}
print(json.dumps({"import": imported - start, "load": loaded - begin, "forward": done - loaded,
                  "all": done - start, **grown}))
"""


def load(bench: Bench) -> Case:
    """Time from a folder to the first logits. The file is in the page cache: this measures
    software, not the disk.

    import: the package with its loader.    load: from_pretrained.    forward: the first one, of 8
    tokens, which reads the mapped pages.    memory: growth of resident memory (MB) after the
    imports; private: without pages of files.
    """
    subject = bench.text_model()
    arguments = (str(subject.folder.resolve()), str(bench.settings.threads))
    libraries = ["minhub_py"] + (["transformers"] if bench.transformers(subject, "float32") else [])
    measured = bench.interleave(
        "Loading", {name: partial(bench.fresh, LOAD, name, *arguments) for name in libraries}
    )
    rows = []
    for name, runs in measured.items():
        rows.append(
            {
                "runner": name,
                "runs": runs,
                **{key: median([run[key] for run in runs]) for key in runs[0]},
            }
        )
    title = f"From a folder to the first logits, in a new process: {subject.name}"
    case = Case(
        title,
        rows,
        {"bytes": sum(file.stat().st_size for file in subject.folder.glob("*.safetensors"))},
    )
    if len(rows) > 1:
        ours, reference = rows
        case.values["ratios"] = {
            key: reference[key] / ours[key] for key in ours if key not in {"runner", "runs"}
        }
        shown = ", ".join(f"{key} {ratio:.2f}" for key, ratio in case.values["ratios"].items())
        case.notes.append(f"transformers relative to minhub_py: {shown}.")
    return case


PROMPT = "ROMEO:"
FIRST = """
import sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

torch.set_num_threads(int(sys.argv[3]))
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
ids = tokenizer(sys.argv[2], return_tensors="pt")
made = model.generate(**ids, max_new_tokens=1, do_sample=False, pad_token_id=0)
print(sys.argv[2] + tokenizer.decode(made[0, -1:]), flush=True)
"""
IMPORT = """
import json, time
start = time.perf_counter()
import minhub_py
print(json.dumps({"seconds": time.perf_counter() - start}))
"""


def start(bench: Bench) -> Case:
    """Time from the start of a process to the first text that it prints."""
    subject = bench.text_model()
    subject.needs_tokenizer()
    folder = str(subject.folder.resolve())
    command = [sys.executable, "-m", "minhub_py.cli.main"]
    generate = [*command, "generate", folder, PROMPT, "-n", "1", "--temperature", "0"]
    steps: dict[str, Callable[[], float]] = {
        "minhub generate": partial(first_text, bench, generate)
    }
    if bench.transformers(subject, "float32"):
        command = [sys.executable, "-c", FIRST, folder, PROMPT, str(bench.settings.threads)]
        steps["transformers generate()"] = partial(first_text, bench, command)
    steps["minhub --help"] = partial(first_text, bench, [*command, "--help"], after="")
    steps["import minhub_py"] = lambda: bench.fresh(IMPORT)["seconds"]
    steps["Python by itself"] = partial(
        first_text, bench, [sys.executable, "-c", "print(1)"], after=""
    )
    measured = bench.interleave("Starting", steps)
    rows = [
        {"what": name, "ms": 1000 * median(seconds), "seconds": seconds}
        for name, seconds in measured.items()
    ]
    case = Case(f"Milliseconds from the start of a process to its first text: {subject.name}", rows)
    if "transformers generate()" in measured:
        ours, reference = (
            median(measured[name]) for name in ("minhub generate", "transformers generate()")
        )
        case.values["ratio"] = reference / ours
        case.notes.append(
            f"minhub generate is {reference / ours:.2f} times as fast as transformers to the first"
            " token."
        )
    return case


def first_text(bench: Bench, command: list[str], after: str = PROMPT) -> float:
    """Seconds until a process has printed more than `after`."""
    begin = time.perf_counter()
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env=environment(bench.settings.threads)
        ) as process,
    ):
        assert process.stdout is not None
        output = process.stdout.read(len(after.encode()) + 1)
        seconds = time.perf_counter() - begin
        process.stdout.read()
        if process.wait() or len(output) <= len(after.encode()):
            errors.seek(0)
            raise RuntimeError(
                "a process printed nothing:"
                f" {errors.read().decode(errors='replace').strip()[-300:]}"
            )
    return seconds


def lstm(bench: Bench) -> Case:
    """generate() compared with a hand-written loop, with the same weights."""
    subject = bench.subject("lstm")
    new = bench.pick(256, 32)
    prompts = [subject.prompt(32)]
    runners = [
        *bench.ours(*bench.pick((), ("float32", "int8"))),
        Runner("a plain loop,", "float32", "PlainLSTM"),
    ]
    with bench.team(subject, runners) as team:
        steps = {
            runner: partial(worker.ask, "timed", prompts=prompts, new=new)
            for runner, worker in team.items()
        }
        measured = bench.interleave("LSTM", steps)
    rows = []
    for runner, replies in measured.items():
        seconds = [reply["seconds"] for reply in replies]
        rows.append(
            {
                "runner": runner.name,
                "ms_per_token": 1000 * median(seconds) / new,
                "seconds": seconds,
                "tokens_per_second": new / median(seconds),
                "ids": replies[0]["ids"][0],
            }
        )
    compare(rows, "ms_per_token", "a plain loop, float32")
    reference = named(rows, "a plain loop, float32") or rows[0]
    for row in rows:
        row["same_ids"] = same_start(row["ids"], reference["ids"])
    return Case(
        f"Decoding {subject.name}: a prompt of 32 ids, {new} new ones, greedy", rows, {"new": new}
    )


BUSY = "print(flush=True)\nwhile True: pass"


def busy(bench: Bench) -> Case:
    """Decoding alone, and while other processes keep enough cores busy that one is shared."""
    subject = bench.text_model()
    new = subject.room(32, bench.pick(16, 4))
    processes = max(cores() - bench.settings.threads, 0) + 1
    prompts = [subject.prompt(32)]
    runners = [*bench.ours("float32", "int8"), *bench.peers(subject, "float32", "int8")]
    with bench.team(subject, runners) as team:

        def disturbed(worker: Worker) -> Any:
            with ExitStack() as running:
                for _ in range(processes):
                    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
                    running.callback(process.communicate)
                    running.callback(process.kill)
                    assert process.stdout is not None
                    process.stdout.readline()
                return worker.ask("timed", prompts=prompts, new=new)

        steps: Steps = {}
        for runner, worker in team.items():
            steps[runner, "alone"] = partial(worker.ask, "timed", prompts=prompts, new=new)
            steps[runner, "busy"] = partial(disturbed, worker)
        measured = bench.interleave("Busy", steps)
    rows = []
    for runner in team:
        alone, beside = (
            [reply["seconds"] for reply in measured[runner, part]] for part in ("alone", "busy")
        )
        rows.append(
            {
                "runner": runner.name,
                "tokens_per_second": new / median(alone),
                "busy": new / median(beside),
                "kept_percent": 100 * median(alone) / median(beside),
                "seconds": alone,
                "seconds_busy": beside,
            }
        )
    what = "a busy process" if processes == 1 else f"{processes} busy processes"
    title = f"Decoding while {what} run{'s' * (processes == 1)} on {cores()} cores: {subject.name}"
    return Case(title, rows, {"new": new, "processes": processes})


def tokenize(bench: Bench) -> Case:
    """Loading a tokenizer, and encoding text. Both packages use the library tokenizers."""
    subject = bench.text_model()
    subject.needs_tokenizer()
    text = bench.text[:5000]
    times = bench.pick(2_000_000, 100_000) // len(text) + 1
    libraries = {"minhub_py": "MinhubTokenizer"}
    if bench.transformers(subject, "float32"):
        libraries["transformers"] = "TransformersTokenizer"
    with ExitStack() as opened:
        steps: Steps = {}
        for name, engine in libraries.items():
            worker = opened.enter_context(bench.worker(engine, folder=str(subject.folder)))
            steps[name, "load"] = partial(worker.ask, "load")
            steps[name, "encode"] = partial(worker.ask, "encode", text=text, times=times)
        measured = bench.interleave("Tokenizing", steps)
    size = len(text.encode()) * times
    rows = []
    for name in libraries:
        encoded = measured[name, "encode"]
        seconds = [reply["seconds"] for reply in encoded]
        rows.append(
            {
                "runner": name,
                "load_ms": 1000 * median(measured[name, "load"]),
                "megabytes_per_second": size / 1e6 / median(seconds),
                "ids": encoded[0]["ids"],
                "seconds": seconds,
                "seconds_of_load": measured[name, "load"],
            }
        )
    title = (
        f"Encoding {size / 1e6:.1f} MB of text in {times} pieces, and loading the tokenizer:"
        f" {subject.name}"
    )
    case = Case(title, rows)
    if len(rows) > 1:
        ours, reference = rows
        speed = ours["megabytes_per_second"] / reference["megabytes_per_second"]
        case.values = {"ratio": speed, "load_ratio": reference["load_ms"] / ours["load_ms"]}
        case.notes.append(
            f"minhub_py encodes {speed:.2f} times as fast as transformers, "
            f"and loads {case.values['load_ratio']:.2f} times as fast."
        )
        if ours["ids"] != reference["ids"]:
            case.notes.append("NOT THE SAME: the two give different ids.")
    return case


def convert(bench: Bench) -> Case:
    """Converting a checkpoint that is in the page cache, including fsync; transformers loads and
    saves it.
    """
    subject = bench.text_model()
    size = sum(file.stat().st_size for file in subject.folder.glob("*.safetensors"))
    folders = {"folder": str(subject.folder), "out": str(bench.scratch / "converted")}
    with bench.worker("Converter") as ours, ExitStack() as opened:
        steps: Steps = {
            "minhub_py, hub to native": partial(
                ours.ask, "minhub", **folders, to="native", dtype=None
            ),
            "minhub_py, to bfloat16": partial(
                ours.ask, "minhub", **folders, to="hub", dtype="bfloat16"
            ),
        }
        if bench.transformers(subject, "bfloat16"):
            reference = opened.enter_context(bench.worker("Converter"))
            steps["transformers, to bfloat16"] = partial(
                reference.ask, "transformers", **folders, dtype="bfloat16"
            )
        measured = bench.interleave("Converting", steps)
    rows = [
        {
            "what": name,
            "seconds_median": median(seconds),
            "seconds": seconds,
            "gigabytes_per_second": size / 1e9 / median(seconds),
        }
        for name, seconds in measured.items()
    ]
    return Case(f"Converting {size / 1e6:,.0f} MB: {subject.name}", rows, {"bytes": size})


FUNCTIONS: dict[str, Callable[[Bench], Case]] = {
    function.__name__: function
    for function in (
        bandwidth,
        decode,
        llama,
        positions,
        gptneo,
        files,
        batch,
        prefill,
        speculation,
        quality,
        load,
        start,
        lstm,
        busy,
        tokenize,
        convert,
    )
}
