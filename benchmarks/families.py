"""Decoding of each architecture at a small published size, compared with transformers and
llama.cpp.

    python benchmarks/families.py [--prompt 256 --new 1] [--kinds float32,int8] [SIZE...]

Random weights, two threads: they take as long as trained ones. A size of more than two billion
weights is cut to a few layers, as wide as published. Greedy: 32 new tokens after a prompt of 16,
interleaved, one process for each side. Prints new tokens per second of the fastest of six rounds,
as machines are noisy, and our ratio to transformers in float32 and to llama.cpp at equal bits. With
one new token, the prompt's tokens per second.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import gguf
import torch
from machine import announce
from peers.worker import Worker
from transformers import AutoConfig, AutoModelForCausalLM

from minhub_py.models.registry import preset

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from gguf_files import write

ROUNDS, THREADS = 6, 2
# Our weights -> loading options, and llama.cpp's type with as many bits.
KINDS: dict[str, tuple[dict[str, str], str]] = {
    "float32": ({}, "F32"),
    "bfloat16": ({"dtype": "bfloat16"}, "BF16"),
    "int8": ({"quantize": "int8"}, "Q8_0"),
    "int8-bfloat16": ({"quantize": "int8", "dtype": "bfloat16"}, "Q8_0"),
    "nf4": ({"quantize": "nf4"}, "Q4_0"),
    "nf4-bfloat16": ({"quantize": "nf4", "dtype": "bfloat16"}, "Q4_0"),
}
# A published size of each architecture -> reduced settings; model types that gguf_files.py and
# llama.cpp support.
SIZES: dict[str, dict[str, int]] = {
    "gpt2": {},
    "gpt-neo-125m": {},
    "starcoderbase-1b": {"n_layer": 6},
    "pythia-70m": {},
    "gpt-j-6b": {"n_layer": 2},
    "phi-1": {"num_hidden_layers": 6},
    "opt-125m": {},
    "SmolLM2-135M": {},
    "TinyLlama-1.1B-Chat-v1.0": {},
    "Mistral-7B-v0.1": {"num_hidden_layers": 2},
    "Qwen2.5-0.5B": {},
    "Qwen3-0.6B-Base": {},
    "gemma-2b": {"num_hidden_layers": 4},
    "gemma-2-2b": {"num_hidden_layers": 4},
    "gemma-3-270m": {},
    "OLMo-2-0425-1B": {"num_hidden_layers": 4},
    "Qwen3.5-0.8B": {},
    "mamba-130m-hf": {},
    "mamba2-130m-hf": {},
    "rwkv-4-169m-pile": {},
}
GGUF = ("gpt2", "gpt_neox", "llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text")


def header(writer: gguf.GGUFWriter, kind: str, vocabulary: int) -> None:
    """A file without a tokenizer."""
    writer.add_tokenizer_model("none")
    if kind in ("gpt2", "gpt_neox"):  # gguf_files.write checks the others
        writer.add_vocab_size(vocabulary)


def sides(size: str, kinds: list[str], scratch: Path) -> dict[str, Worker]:
    """A size's workers, with its files in `scratch`."""
    published = preset(size)
    assert published is not None, f"{size} is no published size"
    settings: dict[str, Any] = {**published[1].to_hub(), **SIZES.get(size, {})}
    if isinstance(types := settings.get("layer_types"), list):
        settings["layer_types"] = types[: settings["num_hidden_layers"]]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**settings), dtype=torch.float32
    ).eval()
    folder = str(scratch / "model")
    model.save_pretrained(folder)
    created = {
        kind: Worker("Minhub", {"folder": folder, **KINDS[kind][0]}, THREADS) for kind in kinds
    }
    created["transformers float32"] = Worker(
        "Transformers", {"folder": folder, "dtype": "float32"}, THREADS
    )
    if (model_type := settings["model_type"]) in GGUF:
        for weights in dict.fromkeys(KINDS[kind][1] for kind in kinds):
            file = write(
                scratch / f"{weights}.gguf",
                model,
                weights,
                tokenizer=lambda writer: header(writer, model_type, model.config.vocab_size),
            )
            options = {"folder": str(file)} | ({"cache": "float32"} if weights == "F32" else {})
            created[f"llama.cpp {weights}"] = Worker("LlamaCpp", options, THREADS)
    return created


def race(
    workers: dict[str, Worker], prompt: int, new: int
) -> tuple[dict[str, float], dict[str, list[int]]]:
    """Tokens per second of each side in its fastest round, and the new tokens."""
    prompts = [torch.randint(100, 10_000, (prompt,)).tolist()]
    times: dict[str, list[float]] = {name: [] for name in workers}
    results = {}
    for _ in range(ROUNDS):
        for name, worker in workers.items():
            result = worker.ask("timed", prompts=prompts, new=new)
            times[name].append(result["seconds"])
            [results[name]] = result["ids"]
    count = new if new > 1 else prompt
    return {name: count / min(seconds) for name, seconds in times.items()}, results


def measure(size: str, kinds: list[str], prompt: int, new: int) -> None:
    """Print a size's lines."""
    with tempfile.TemporaryDirectory() as scratch:
        workers = sides(size, kinds, Path(scratch))
        try:
            for name, worker in list(workers.items()):
                try:
                    worker.ready()
                    worker.ask("timed", prompts=[[1, 2, 3]], new=8)
                except RuntimeError as error:
                    print(f"{size}: {name} is left out: {error}")
                    workers.pop(name).close()
            speed, results = race(workers, prompt, new)
        finally:
            for worker in workers.values():
                worker.close()
    cut = "".join(f", {count} layers" for count in SIZES.get(size, {}).values())
    for ours in kinds:
        peers = [
            peer
            for peer in ("transformers float32", f"llama.cpp {KINDS[ours][1]}")
            if peer in speed
        ]
        ratios = [f"{speed[ours] / speed[peer]:.2f} x {peer} ({speed[peer]:.1f})" for peer in peers]
        alike = sum(
            a == b for a, b in zip(results[ours], results["transformers float32"], strict=True)
        )
        print(
            f"{size}{cut}, {ours}: {speed[ours]:.1f} ids/s, {', '.join(ratios)}; {alike} of {new}"
            " ids alike"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sizes", nargs="*", metavar="SIZE")
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--kinds", default="float32,int8,nf4", help=f"of {', '.join(KINDS)}")
    args = parser.parse_args()
    kinds = args.kinds.split(",")
    if unknown := set(kinds) - KINDS.keys():
        parser.error(f"--kinds: {', '.join(sorted(unknown))}; give some of {', '.join(KINDS)}")
    announce()
    for chosen in args.sizes or SIZES:
        measure(chosen, kinds, args.prompt, args.new)
