"""Compare the decoding speed of two checkouts of this package.

    python benchmarks/trees.py OTHER_CHECKOUT [THREADS]

Each has its own .venv (created by `make demo`). GPT-2 124M with random weights, greedy: a prompt of
32 tokens and 16 new ones, 8 prompts of different lengths and 8 new tokens each, and the first token
after 256, interleaved. Prints the minimum of each in milliseconds, and the speed of this checkout
relative to the other.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
ROUNDS = 12
KINDS = ("float32", "bfloat16", "int8", "nf4")
# Lengths of the prompts, and new tokens of each.
CASES = {"one": ([32], 16), "eight": ([5, 12, 20, 28, 36, 44, 52, 60], 8), "prompt": ([256], 1)}


def measure(threads: int, folder: str) -> None:
    """In a checkout's environment: seconds for each line `case kind` of standard input."""
    import torch

    from minhub_py import from_pretrained, generate

    torch.set_num_threads(threads)
    plain = {kind: {"dtype": kind} for kind in KINDS[:2]}
    options = plain | {kind: {"quantize": kind} for kind in KINDS[2:]}
    models = {
        kind: from_pretrained(folder, device="cpu", **settings)
        for kind, settings in options.items()
    }
    torch.manual_seed(0)
    prompts = {
        case: [torch.randint(50257, (n,)).tolist() for n in lengths]
        for case, (lengths, _) in CASES.items()
    }
    print("ready", flush=True)
    for line in sys.stdin:
        case, kind = line.split()
        start = time.perf_counter()
        generate(models[kind], prompts[case], CASES[case][1], temperature=0, eos_id=None)
        print(time.perf_counter() - start, flush=True)


def main(checkout: Path, threads: str) -> None:
    """Compare this checkout with another one."""
    with tempfile.TemporaryDirectory() as folder:
        python = {
            "other": str(checkout / ".venv/bin/python"),
            "this": str(HERE / ".venv/bin/python"),
        }
        make = f"import minhub_py; minhub_py.save_pretrained(minhub_py.gpt2(), {folder!r})"
        subprocess.run([python["this"], "-c", make], check=True)
        command = [__file__, "--measure", threads, folder]
        workers = {
            name: subprocess.Popen(
                [path, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for name, path in python.items()
        }

        def ask(name: str, line: str) -> str:
            worker = workers[name]
            assert worker.stdin is not None
            assert worker.stdout is not None
            print(line, file=worker.stdin, flush=True)
            return worker.stdout.readline()

        for worker in workers.values():
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n", (
                "a checkout cannot be measured: see its error above"
            )
        for case in CASES:
            for kind in KINDS:
                times: dict[str, list[float]] = {name: [] for name in workers}
                for turn in range(ROUNDS + 1):
                    for name in sorted(workers, reverse=turn % 2 == 1):
                        times[name].append(float(ask(name, f"{case} {kind}")))
                # the first round warms up
                best = {name: 1000 * min(seconds[1:]) for name, seconds in times.items()}
                ratio = best["other"] / best["this"]
                print(
                    f"{case:8}{kind:10}{best['other']:8.1f} {best['this']:8.1f} ms   {ratio:.2f}",
                    flush=True,
                )
        for worker in workers.values():
            assert worker.stdin is not None
            worker.stdin.close()
            worker.wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(int(sys.argv[2]), sys.argv[3])
    elif sys.argv[1:]:
        main(Path(sys.argv[1]).resolve(), (sys.argv[2:] or ["2"])[0])
    else:
        sys.exit(__doc__)
