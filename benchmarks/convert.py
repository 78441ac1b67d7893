"""Speed and memory of converting a large checkpoint.

    .venv/bin/python benchmarks/convert.py [--layers 65] [--folder FOLDER]

Writes a GPT-2 of 65 layers (2.0 GB of float32, in shards of 450 MB) to a temporary folder, and
converts it to native layout, back to Hub layout, and to bfloat16, each in a new process. The time
includes reading (from the page cache, as the files are new), writing and fsync. Memory is the peak
of resident memory minus that after the imports. Needs 6 GB of disk space.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

import weights_map
from minhub_py.checkpoints.writing import write_checkpoint
from minhub_py.models.registry import ARCHITECTURES
from minhub_py.models.skeleton import skeleton

SHARD = 450 * 10**6
RUN = """
import json, sys, time
from pathlib import Path
import torch
import minhub_py.models.gpt2
from minhub_py.export.convert import convert
from minhub_py.checkpoints.storage import Checkpoint

def peak():
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) / 1000

source, out, to, dtype, shard = sys.argv[1:]
before, start = peak(), time.perf_counter()
convert(open_files(Path(source)), Path(out), to=to, dtype=getattr(torch, dtype, None), max_shard_size=int(shard))
print(json.dumps([time.perf_counter() - start, peak() - before]))
"""


class Drawn(Mapping[str, Tensor]):
    """Random tensors of given shapes, each created on access."""

    def __init__(self, shapes: Mapping[str, Tensor]) -> None:
        self.shapes = shapes
        self.block = torch.rand(2**20) - 0.5

    def __getitem__(self, name: str) -> Tensor:
        shape = self.shapes[name].shape
        return self.block.repeat(-(-shape.numel() // self.block.numel()))[: shape.numel()].view(
            shape
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=65)
    parser.add_argument(
        "--folder",
        type=Path,
        help="where to put the files (default: the system's temporary folder)",
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as scratch:
        hub, native, back, half = (
            Path(scratch) / name for name in ("hub", "native", "back", "half")
        )
        family = ARCHITECTURES["gpt2"]
        config = family.Config(n_layer=arguments.layers)
        shapes = weights_map.to_hub("gpt2", skeleton(family.Model, config).state_dict())
        write_checkpoint(hub, Drawn(shapes), config.to_hub(), meta=shapes, max_shard_size=SHARD)
        print(f"{'':22}{'read':>10}{'written':>11}{'time':>9}{'read per s':>13}{'peak memory':>14}")
        report("hub -> native", hub, native, "native", "as stored")
        report("native -> hub", native, back, "hub", "as stored")
        report("hub -> hub, bfloat16", hub, half, "hub", "bfloat16")


def report(what: str, source: Path, out: Path, to: str, dtype: str) -> None:
    command = [sys.executable, "-c", RUN, str(source), str(out), to, dtype, str(SHARD)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    seconds, memory = json.loads(output.splitlines()[-1])
    read, written = (
        sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        for folder in (source, out)
    )
    print(
        f"{what:22}{read / 1e9:>7.2f} GB{written / 1e9:>8.2f} GB{seconds:>7.1f}"
        f" s{read / 1e9 / seconds:>8.2f} GB/s{memory:>11.0f} MB"
    )


if __name__ == "__main__":
    main()
