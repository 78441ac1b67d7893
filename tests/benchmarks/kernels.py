"""Milliseconds that the decoder in C takes to read ids, by the weights' kind, its kernels and the number of ids.

    .venv/bin/python tests/benchmarks/kernels.py [--kinds float32,int8,nf4] [--kernels amx,bf16,avx2] [--ids 1,32,256]

A published size with random weights, GPT-2 124M or another (--size SmolLM2-135M), mapped from a file as users have
them. int8+bfloat16: inputs in 8 bits, too. All take turns, and the shortest of the rounds counts. Kernels that the
processor lacks are left out.
"""

import argparse
import itertools
import tempfile
import time

import torch

from minhub_py import from_pretrained, save_pretrained
from minhub_py.inference.compiled import CompiledReader, library
from minhub_py.registry import preset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="gpt2")
    parser.add_argument("--kinds", default="float32,int8,nf4")
    parser.add_argument("--kernels", default="amx,bf16,vnni,avx512,avx2,dotprod,neon")
    parser.add_argument("--ids", default="1,8,32,256")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    found = preset(args.size)
    if found is None:
        parser.error(f"{args.size} is no published size")
    family, config = found
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(family.Model(config), folder)
        readers = {kind: reader(folder, kind) for kind in args.kinds.split(",")}
    kernels = [name for name in args.kernels.split(",") if library().choose(name.encode())]
    counts = [int(count) for count in args.ids.split(",")]
    cases = list(itertools.product(readers, kernels, counts))
    best = dict.fromkeys(cases, float("inf"))
    for _ in range(args.rounds):
        for kind, kernel, count in cases:
            library().choose(kernel.encode())
            best[kind, kernel, count] = min(best[kind, kernel, count], milliseconds(readers[kind], count))
    print(f"{'':24}" + "".join(f"{count:>10}" for count in counts))
    for kind, kernel in itertools.product(readers, kernels):
        times = "".join(f"{best[kind, kernel, count]:10.1f}" for count in counts)
        print(f"{kind:16}{kernel:8}{times}")


def reader(folder: str, kind: str) -> CompiledReader:
    options = {"dtype" if "float" in word else "quantize": word for word in kind.split("+")}
    return CompiledReader(from_pretrained(folder, device="cpu", **options))


def milliseconds(reader: CompiledReader, count: int) -> float:
    cache = reader.new_cache(1, count)
    began = time.perf_counter()
    reader.read({0: range(count)}, cache)
    return 1000 * (time.perf_counter() - began)


if __name__ == "__main__":
    main()
