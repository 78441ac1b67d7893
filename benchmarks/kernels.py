"""Milliseconds of the C decoder for a call, by the kind of weights, the kernels and the number of
tokens.

    .venv/bin/python benchmarks/kernels.py [--kinds float32,int8,nf4] [--kernels amx,bf16,avx2] [--ids 1,32,256]

A published size with random weights, GPT-2 124M or another (--size SmolLM2-135M, cut to --layers),
mapped from a file as users have them. int8+bfloat16: inputs in 8 bits, too. All are interleaved,
and the fastest round counts. Without --kernels, all kernels of the processor are measured. --before
takes the compiled decoder of another commit or compiler, a copy of its _decoder.so: it takes turns,
too, and a line has the ratio of the medians. --pause: seconds before each call, in which the
decoder's threads fall asleep.
"""

import argparse
import dataclasses
import itertools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from machine import announce

from minhub_py import from_pretrained, save_pretrained
from minhub_py.inference.native.library import UnsupportedError, library, load
from minhub_py.inference.native_runner import NativeRunner
from minhub_py.models.registry import preset

# without "plain", which is slow
KERNELS = ("amx", "bf16", "vnni", "avx512", "avx2", "dotprod", "neon")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="gpt2")
    parser.add_argument("--kinds", default="float32,int8,nf4")
    parser.add_argument("--kernels", type=names, help=f"of plain, {', '.join(KERNELS)}")
    parser.add_argument("--ids", type=counts, default="1,8,32,256")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--before", type=Path, metavar="DECODER")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    published = preset(args.size)
    if published is None:
        parser.error(f"{args.size} is no published size")
    family, config = published
    if args.layers:
        if not family.trainable:
            parser.error(f"the layers of {args.size} cannot be cut here")
        config = dataclasses.replace(
            config, **dict.fromkeys(family.training.names["layers"], args.layers)
        )
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(family.Model(config), folder)
        try:
            runners = {kind: runner(folder, kind) for kind in args.kinds.split(",")}
        except ValueError as error:
            parser.error(f"--kinds: {error}")
    libraries = {"now": library()}
    if args.before is not None:
        try:
            libraries = {"before": load(args.before.resolve()), **libraries}
        except UnsupportedError as error:
            parser.error(f"--before: {args.before} {error}")
    here = [
        name
        for name in args.kernels or KERNELS
        if all(library.choose(name.encode()) for library in libraries.values())
    ]
    if args.kernels and (lacking := set(args.kernels) - set(here)):
        parser.error(
            f"--kernels: {', '.join(sorted(lacking))} cannot run here, of plain,"
            f" {', '.join(KERNELS)}"
        )
    cases = list(itertools.product(runners, here, args.ids))
    times: dict[Any, list[float]] = {(*case, name): [] for case in cases for name in libraries}
    for turn in range(args.rounds):
        for kind, kernel, count in cases:
            # the second finds the page tables warm
            for name in list(libraries) if turn % 2 else reversed(libraries):
                libraries[name].choose(kernel.encode())
                runners[kind].library = libraries[name]
                time.sleep(args.pause)
                times[kind, kernel, count, name].append(milliseconds(runners[kind], count))
    print(f"{'':24}" + "".join(f"{count:>10}" for count in args.ids))
    for kind, kernel in itertools.product(runners, here):
        for name in libraries:
            best = "".join(f"{min(times[kind, kernel, count, name]):10.1f}" for count in args.ids)
            print(f"{kind:16}{kernel:8}{best}" + ("" if args.before is None else f"  {name}"))
        if args.before is not None:
            measured = [
                [times[kind, kernel, count, name] for name in libraries] for count in args.ids
            ]
            medians = [map(statistics.median, pair) for pair in measured]
            print(f"{'':24}" + "".join(f"{before / now:9.2f}x" for before, now in medians))


def names(text: str) -> list[str]:
    return text.split(",")


def counts(text: str) -> list[int]:
    if not all(count.isdecimal() and int(count) for count in text.split(",")):
        raise argparse.ArgumentTypeError("give whole numbers from 1 on, with commas between them")
    return [int(count) for count in text.split(",")]


def runner(folder: str, kind: str) -> NativeRunner:
    options = {"dtype" if "float" in word else "quantize": word for word in kind.split("+")}
    return NativeRunner(from_pretrained(folder, device="cpu", **options))


def milliseconds(runner: NativeRunner, count: int) -> float:
    cache = runner.new_cache(1, count)
    began = time.perf_counter()
    runner.forward({0: range(count)}, cache)
    return 1000 * (time.perf_counter() - began)


if __name__ == "__main__":
    announce()
    main()
