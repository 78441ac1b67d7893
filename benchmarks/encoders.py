"""Text embeddings compared with other libraries: MiniLM-L6's, bert-base's and DeBERTa-v3-base's
sizes, long and short texts, interleaved.

    python benchmarks/encoders.py CHECKPOINT [--threads 2] [--rounds 3] [--texts 1000] [--size minilm]

CHECKPOINT is the folder of all-MiniLM-L6-v2, whose tokenizer and pooling all libraries use.
The other sizes have random weights. A library that is not installed is left out. Each library has its own
process; a round measures each of them once, in another order, and they are stopped meanwhile.
Reported are tokens per CPU second, with the threads' waiting, because other programs change the
elapsed time more than the CPU time: the median of the rounds. Tokens are counted once, with the
special tokens, and without padding.
"""

import argparse
import json
import random
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from machine import announce
from peers.worker import Worker
from tokenizers import Tokenizer

from minhub_py import from_config, save_pretrained, tokenizer_from_pretrained

FLOAT, INT8 = "float32", "int8"


def texts_of(tokenizer: Tokenizer, lengths: list[int], seed: int) -> list[str]:
    """Texts of whole words with these numbers of tokens, including two special tokens."""
    draw = random.Random(seed)
    words = sorted(
        word
        for word in tokenizer.get_vocab()
        if word.isascii() and word.isalpha() and len(word) > 2
    )
    texts = [" ".join(draw.choices(words, k=length - 2)) for length in lengths]
    counts = [len(encoding.ids) for encoding in tokenizer.encode_batch(texts)]
    if counts != lengths:
        raise SystemExit("a word of the vocabulary is not one token")
    return texts


def folder_of(size: str, checkpoint: Path, parent: Path) -> Path:
    """A checkpoint of this size with the files of `checkpoint`."""
    if size == "minilm":
        return checkpoint
    folder = parent / size
    torch.manual_seed(0)
    # bert-base's settings are the defaults
    name = {"bert-base": "bert", "deberta-base": "microsoft/deberta-v3-base"}[size]
    save_pretrained(from_config(name), folder)
    for file in checkpoint.iterdir():
        if file.is_dir():
            shutil.copytree(file, folder / file.name)
        elif file.name not in ("config.json", "model.safetensors", "README.md"):
            shutil.copy(file, folder / file.name)
    return folder


def engines(folder: Path, parent: Path, size: str) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """(engine, weights, options) of each library that is installed, by name."""
    result: dict[str, tuple[str, str, dict[str, Any]]] = {
        "minhub_py float32": ("Minhub", FLOAT, {}),
        "minhub_py int8": ("Minhub", INT8, {"quantize": "int8"}),
        "minhub_py int8, 8-bit activations": (
            "Minhub",
            INT8,
            {"quantize": "int8", "dtype": "bfloat16"},
        ),
        "sentence-transformers": ("SentenceTransformers", FLOAT, {}),
    }
    export = Worker("embedders:Export", {}, 2)
    try:
        export.ready()
        files = {}
        for name, method, arguments in (
            ("onnx", "onnx", {"folder": str(folder), "file": str(parent / f"{size}.onnx")}),
            (
                "int8",
                "onnx_int8",
                {"file": str(parent / f"{size}.onnx"), "result": str(parent / f"{size}-int8.onnx")},
            ),
            ("ct2", "ctranslate2", {"folder": str(folder), "result": str(parent / f"{size}-ct2")}),
        ):
            try:
                files[name] = export.ask(method, **arguments)
            except RuntimeError as error:
                print(f"{name} is left out: {error}")
    finally:
        export.close()
    if "onnx" in files:
        result["ONNX Runtime float32"] = ("ONNXRuntime", FLOAT, {"file": files["onnx"]})
        result["OpenVINO float32"] = ("OpenVINO", FLOAT, {"file": files["onnx"]})
    if "int8" in files:
        result["ONNX Runtime int8"] = ("ONNXRuntime", INT8, {"file": files["int8"]})
    if "ct2" in files:
        result["CTranslate2 float32"] = (
            "CTranslate2",
            FLOAT,
            {"file": files["ct2"], "compute_type": "float32"},
        )
        result["CTranslate2 int8"] = (
            "CTranslate2",
            INT8,
            {"file": files["ct2"], "compute_type": "int8"},
        )
    return result


def measure(
    size: str,
    name: str,
    texts: list[str],
    batch: int,
    args: argparse.Namespace,
    folder: Path,
    libraries: dict[str, tuple[str, str, dict[str, Any]]],
) -> dict[str, Any]:
    """Tokens per CPU second of each library, and the cosine with the first one."""
    tokens = sum(
        len(e.ids) for e in tokenizer_from_pretrained(str(args.checkpoint)).encode_batch(texts)
    )
    workers: dict[str, Worker] = {}
    times: dict[str, list[dict[str, float]]] = {}
    cosines: dict[str, float] = {}
    try:
        first = None
        for library, (engine, _, options) in libraries.items():
            batches = {} if engine in ("Minhub", "SentenceTransformers") else {"batch": batch}
            worker = Worker(
                f"embedders:{engine}", {"folder": str(folder), **options, **batches}, args.threads
            )
            try:
                worker.ready()
                vectors = torch.tensor(worker.ask("sample", texts=texts[:16]))
                worker.ask("timed", texts=texts[:64])
            except RuntimeError as error:
                print(f"{library} is left out: {error}")
                worker.close()
                continue
            workers[library], times[library] = worker, []
            first = vectors if first is None else first
            cosines[library] = float(torch.cosine_similarity(vectors, first).min())
        for number in range(args.rounds):
            order = list(workers)
            random.Random(number).shuffle(order)
            for library in order:
                times[library].append(workers[library].ask("timed", texts=texts))
    finally:
        for worker in workers.values():
            worker.close()
    rates = {
        library: statistics.median(tokens / row["cpu"] for row in rows)
        for library, rows in times.items()
    }
    elapsed = {
        library: tokens / min(row["elapsed"] for row in rows) for library, rows in times.items()
    }
    print(
        f"\n{size}, {name}: {len(texts)} texts, {tokens} tokens, {args.threads} threads,"
        f" {args.rounds} rounds\n"
    )
    print(
        "| library | tokens per CPU second | × sentence-transformers | × best other | best tokens/s"
        " | min. cosine |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for library, rate in rates.items():
        weights = libraries[library][1]
        peer_rates = [
            r
            for o, r in rates.items()
            if libraries[o][1] == weights and not o.startswith("minhub_py")
        ]
        base = rates.get("sentence-transformers")
        ratios = [
            f"{rate / base:.2f}" if base else "-",
            f"{rate / max(peer_rates):.2f}" if peer_rates else "-",
        ]
        print(
            f"| {library} | {rate:,.0f} | {ratios[0]} | {ratios[1]} | {elapsed[library]:,.0f} "
            f"| {cosines[library]:.6f} |",
            flush=True,
        )
    return {
        "size": size,
        "texts": name,
        "tokens": tokens,
        "rates": rates,
        "elapsed": elapsed,
        "times": times,
    }


def main() -> None:
    """Print a table for each size and set of texts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--size", choices=["minilm", "bert-base", "deberta-base"], action="append")
    parser.add_argument("--only", choices=["5 to 200 tokens", "20 tokens"], help="one set of texts")
    parser.add_argument("--json", type=Path, help="also write all times to this file")
    args = parser.parse_args()
    tokenizer, results = tokenizer_from_pretrained(str(args.checkpoint)), []
    draw = random.Random(1)
    sets = {
        "5 to 200 tokens": ([draw.randint(5, 200) for _ in range(args.texts)], 8),
        "20 tokens": ([20] * 32, 32),
    }
    with tempfile.TemporaryDirectory() as parent:
        for size in args.size or ["minilm", "bert-base"]:
            folder = folder_of(size, args.checkpoint, Path(parent))
            libraries = engines(folder, Path(parent), size)
            for name, (lengths, batch) in sets.items():
                if args.only not in (None, name):
                    continue
                texts = texts_of(tokenizer, lengths, len(lengths))
                repeated = argparse.Namespace(
                    **{**vars(args), "rounds": args.rounds * (5 if batch == 32 else 1)}
                )
                results.append(measure(size, name, texts, batch, repeated, folder, libraries))
                if args.json:
                    args.json.write_text(json.dumps(results))


if __name__ == "__main__":
    announce()
    main()
