"""How long it takes, and how much memory, from a folder to the first logits: minhub_py against transformers.

    .venv/bin/python tests/benchmarks/load.py [--repeats 5] [--threads 2] [--folder FOLDER]

Both load the same float32 checkpoint of GPT-2 124M's size (random weights, 498 MB, written to a temporary folder) and
run one forward of 8 ids. Each run is a process of its own, and the two take turns, so that whatever else the machine
does falls on both. The file is in the page cache: what is measured is the software, not the disk. Medians are printed.

    import     importing the package and what its loader needs    load     from_pretrained
    forward    the first forward: pages that only now are read    memory   growth of resident memory since the imports
    private    the part of it that is no file's: copies of weights, buffers, code
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RUN = """
import json, sys, time
from pathlib import Path

def memory():
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return [int(fields[name].split()[0]) / 1000 for name in ("VmRSS", "RssAnon")]

start = time.perf_counter()
import torch
if sys.argv[1] == "minhub_py":
    from minhub_py import gpt2_from_pretrained as load
else:
    from transformers import AutoModelForCausalLM
    load = AutoModelForCausalLM.from_pretrained
imported = time.perf_counter()
torch.set_num_threads(int(sys.argv[3]))
before = memory()
begin = time.perf_counter()
model = load(sys.argv[2])
loaded = time.perf_counter()
with torch.inference_mode():
    model(torch.arange(8).unsqueeze(0))
done = time.perf_counter()
resident, private = (after - at_first for after, at_first in zip(memory(), before, strict=True))
print(json.dumps({"import": imported - start, "load": loaded - begin, "forward": done - loaded,
                  "total": done - start, "memory": resident, "private": private}))
"""
COLUMNS = ("import", "load", "forward", "total", "memory", "private")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", help="a GPT-2 checkpoint to load instead of random weights")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.folder or write_checkpoint(scratch)
        medians = measure(folder, arguments.repeats, arguments.threads)
    show(medians)


def write_checkpoint(folder: str) -> str:
    import minhub_py

    minhub_py.save_pretrained(minhub_py.gpt2(), folder)
    return folder


def measure(folder: str, repeats: int, threads: int) -> dict[str, dict[str, float]]:
    """The medians of each library; the first run of each warms the caches and is not counted."""
    runs: dict[str, list[dict[str, float]]] = {"minhub_py": [], "transformers": []}
    for _ in range(repeats + 1):
        for library, results in runs.items():
            command = [sys.executable, "-c", RUN, library, str(Path(folder).resolve()), str(threads)]
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            results.append(json.loads(output.splitlines()[-1]))
    return {
        library: {name: statistics.median(run[name] for run in results[1:]) for name in COLUMNS}
        for library, results in runs.items()
    }


def show(medians: dict[str, dict[str, float]]) -> None:
    print(f"{'':14}" + "".join(f"{name:>11}" for name in COLUMNS))
    for library, values in medians.items():
        times = "".join(f"{values[name]:>9.3f} s" for name in COLUMNS[:4])
        print(f"{library:14}{times}" + "".join(f"{values[name]:>8.0f} MB" for name in COLUMNS[4:]))
    ours, theirs = medians.values()
    print(f"{'ratio':14}" + "".join(f"{theirs[name] / ours[name]:>10.2f}x" for name in COLUMNS))


if __name__ == "__main__":
    main()
