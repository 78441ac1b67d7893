"""Feeds the package with mutations of correct files, requests and frames: `make fuzz`, or python
fuzz.py TARGET...

    python tests/fuzz/fuzz.py --minutes 60 gguf tokenizer

Each target runs in a separate process, which a native library may abort. Hypothesis reduces an
input that fails; it is stored in corpus/TARGET/, which tests/fuzz/test_corpus.py replays with each
run of the suite. Commit it with the fix.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]

from corruption import JUNK, NAMES, to_json
from fuzz_targets import TARGETS, seeds
from mutations import VALUES, places

CORPUS = Path(__file__).parent / "corpus"
MEMORY = 6 * 2**30  # address space beyond the start, in bytes
NUMBERS = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


def mutants(examples: list[bytes]) -> Any:
    """A strategy of hypothesis: examples with one to four changes of bytes or of JSON values."""
    from hypothesis import strategies as st

    @st.composite
    def mutant(draw: Any) -> bytes:
        rng = draw(st.randoms(use_true_random=False))
        data = rng.choice(examples)
        for _ in range(rng.choice((1, 1, 2, 4))):
            data = changed_value(rng, data) if rng.random() < 0.8 else changed_bytes(rng, data)
        return data

    return mutant()


def changed_value(rng: random.Random, data: bytes) -> bytes:
    """One value or key of a JSON text is replaced. Other data, also before the text, has other
    changes.
    """
    start = next((start for start in (0, 1) if data[start : start + 1] in (b"{", b"[")), -1)
    try:
        content = json.loads(data[start:]) if start >= 0 else None
    except (ValueError, RecursionError):
        content = None
    if not content:
        return changed_bytes(rng, data)
    container, key, _ = rng.choice([*places(content)])
    kind = rng.random()
    if kind < 0.6:
        container[key] = "<junk>"
    elif kind < 0.8:
        other, name, _ = rng.choice([*places(content)])
        container[key] = json.loads(json.dumps(other[name]))
    elif isinstance(container, dict):
        container[rng.choice([*NAMES, *container])] = container.pop(key)
    else:
        container.insert(key, container[key])
    return data[:start] + to_json(content, rng.choice((*JUNK, *VALUES))).encode(
        "utf-8", "surrogatepass"
    )


def changed_bytes(rng: random.Random, data: bytes) -> bytes:
    """A number, a few bytes or the end of the data is replaced."""
    start = rng.randrange(min(len(data), rng.choice((32, 500, 5000, 2**20))) + 1)
    kind = rng.choice(("number", "number", "flip", "delete", "insert", "cut"))
    if kind == "number":
        size = rng.choice((1, 4, 8))
        number = rng.choice((*NUMBERS, rng.randrange(100))) % 2 ** (8 * size)
        return (
            data[:start]
            + number.to_bytes(size, rng.choice(("little", "big")))
            + data[start + size :]
        )
    if kind == "flip" and start < len(data):
        return data[:start] + bytes([data[start] ^ 1 << rng.randrange(8)]) + data[start + 1 :]
    if kind == "cut" and rng.random() < 0.3:
        return data[:start]
    if kind == "delete":
        return data[:start] + data[start + rng.randrange(1, 9) :]
    return data[:start] + data[start : start + rng.randrange(1, 40)] + data[start:]


def fuzz(name: str, seconds: float, current: str) -> None:
    """Run a target until the time is over. `current`: the file of the input in progress. Exits with
    1 on a failure.
    """
    from hypothesis import HealthCheck, Phase, given, settings

    soft = resource.getrlimit(resource.RLIMIT_AS)[1]
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, soft))
    sys.setrecursionlimit(1000)
    end, count = time.monotonic() + seconds, 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "seeds").mkdir()
        (folder / "work").mkdir()
        examples = seeds(name, folder / "seeds") + corpus(name)
        for example in examples:
            TARGETS[name](example, folder / "work")

        def run(data: bytes) -> None:
            nonlocal count
            count += 1
            Path(current).write_bytes(data)
            TARGETS[name](data, folder / "work")

        while time.monotonic() < end:
            attempt = settings(
                max_examples=200,
                deadline=None,
                database=None,
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.generate, Phase.shrink],
            )(given(mutants(examples))(run))
            try:
                attempt()
            except BaseException:
                traceback.print_exc()
                os._exit(1)  # without waiting for the server's threads
    print(f"{name}: {count} inputs")
    sys.stdout.flush()
    os._exit(0)


def corpus(name: str) -> list[bytes]:
    """A target's stored inputs."""
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*.bin"))]


def main() -> int:
    """The exit status: 1 if a target fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=2.0, help="time for all targets [default: 2]"
    )
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], help="[default: all]")
    arguments = parser.parse_args()
    names = arguments.targets or [*TARGETS]
    failed = []
    for name in names:
        with tempfile.NamedTemporaryFile() as current:
            seconds = arguments.minutes * 60 / len(names)
            process = multiprocessing.get_context("spawn").Process(
                target=fuzz, args=(name, seconds, current.name)
            )
            process.start()
            process.join()
            if process.exitcode:
                data = Path(current.name).read_bytes()
                path = CORPUS / name / f"{hashlib.sha256(data).hexdigest()[:16]}.bin"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                print(f"{name}: failed with status {process.exitcode}; the input is in {path}")
                failed.append(name)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
