"""`minhub serve` under load, at SmolLM2-135M's shape with random weights: they take as long as
trained ones.

    python benchmarks/serve.py [--seconds 120] [--clients 64] [--rows 16] [--dtype bfloat16]
    python benchmarks/serve.py --model FILE.gguf [--llama-server PATH]    # and llama.cpp's server
    python benchmarks/serve.py --cache                # the prefix cache on disk: writing, and after a restart

Prints the tokens per second of one client and of many, the number of replies that failed or differ
from the single request, the server's memory, and the time to the first token of a new prompt of
1,000 tokens, and of its repetition.
"""

import argparse
import json
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import httpx2
import psutil
import torch
from machine import announce
from tokenizers import Tokenizer, decoders, models

from minhub_py import llama, save_pretrained
from minhub_py.models.registry import preset

SHAPE, NEW, DISTINCT, LENGTH = "HuggingFaceTB/SmolLM2-135M", 32, 8, 2048


def client_of(address: str) -> httpx2.Client:
    """A client with a connection for each request: llama.cpp's server closes persistent
    connections.
    """
    return httpx2.Client(
        base_url=address, timeout=600, limits=httpx2.Limits(max_keepalive_connections=0)
    )


def ask(http: httpx2.Client, prompt: list[int], new: int = NEW, seed: int = 0) -> str:
    """The text of a reply. RuntimeError: the server rejects the request."""
    body = {"prompt": prompt, "max_tokens": new, "seed": seed, "ignore_eos": True}
    response = http.post("/v1/completions", json=body)
    if response.status_code != 200:
        raise RuntimeError(response.text)
    text: str = response.json()["choices"][0]["text"]
    return text


def first_id(http: httpx2.Client, prompt: list[int]) -> float:
    """Seconds to a stream's first text."""
    started = time.perf_counter()
    body = {"prompt": prompt, "max_tokens": 4, "seed": 1, "ignore_eos": True, "stream": True}
    seconds = None
    with http.stream("POST", "/v1/completions", json=body) as stream:
        for line in stream.iter_lines():
            if (
                seconds is None
                and line.startswith("data: {")
                and json.loads(line[6:])["choices"][0]["text"]
            ):
                seconds = time.perf_counter() - started
    assert seconds is not None
    return seconds


def load(
    address: str, clients: int, seconds: float, expected: list[tuple[list[int], str]]
) -> tuple[float, int, int]:
    """Tokens per second of many clients, and the numbers of failed requests and of texts that are
    not as `expected`.
    """
    completed, failed, differing = [0], [0], [0]
    lock, until = threading.Lock(), time.perf_counter() + seconds

    def client(number: int) -> None:
        chance = random.Random(number)
        with client_of(address) as http:
            while time.perf_counter() < until:
                seed = chance.randrange(len(expected))
                prompt, text = expected[seed]
                try:
                    same, ok = ask(http, prompt, seed=seed) == text, True
                except (RuntimeError, httpx2.HTTPError):
                    same, ok = True, False
                with lock:
                    completed[0] += NEW * ok
                    failed[0] += not ok
                    differing[0] += not same

    started = time.perf_counter()
    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return completed[0] / (time.perf_counter() - started), failed[0], differing[0]


@contextmanager
def running(command: list[str], port: int) -> Iterator[tuple[httpx2.Client, psutil.Process]]:
    """Start a server, and wait until it responds."""
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with client_of(f"http://127.0.0.1:{port}") as http:
            while True:
                try:
                    if http.get("/health").status_code == 200:
                        break
                except httpx2.HTTPError:
                    pass
                if server.poll() is not None:
                    raise RuntimeError(f"{command[0]} has ended with {server.returncode}")
                time.sleep(0.1)
            yield http, psutil.Process(server.pid)
    finally:
        server.terminate()
        server.wait()


def measure(name: str, command: list[str], port: int, size: int, args: argparse.Namespace) -> float:
    """Measure a server and print the results. Returns the tokens per second of many clients."""
    chance = random.Random(0)
    with running(command, port) as (http, process):
        first, again = [], []
        for _ in range(args.rounds):
            prefix = chance.choices(range(size), k=1000)
            first.append(first_id(http, [*prefix, 1, 2, 3]))
            again.append(first_id(http, [*prefix, 4, 5, 6]))
        prompts = [chance.choices(range(size), k=chance.randrange(4, 60)) for _ in range(DISTINCT)]
        started = time.perf_counter()
        expected = [(prompt, ask(http, prompt, seed=seed)) for seed, prompt in enumerate(prompts)]
        alone = DISTINCT * NEW / (time.perf_counter() - started)
        before = process.memory_info().rss
        speed, failed, differing = load(str(http.base_url), args.clients, args.seconds, expected)
        after = process.memory_info().rss
    print(f"{name}, {args.rows} rows, {args.threads} threads")
    print(
        f"one client: {alone:.1f} ids/s; {args.clients} for {args.seconds:g} s: {speed:.1f}:"
        f" {speed / alone:.2f}x"
    )
    print(
        f"failed: {failed}; not as alone: {differing}; memory {before / 1e6:.0f} MB before,"
        f" {after / 1e6:.0f} after"
    )
    print(
        f"first id of 1,003: {median(first):.3f} s; with 1,000 of them known: {median(again):.3f}"
        f" s: {100 * median(again) / median(first):.1f} %",
        flush=True,
    )
    return speed


def measure_cache(command: list[str], port: int, size: int, scratch: str, rounds: int) -> None:
    """Print the duration of a reply while prefixes of other requests are written, and the effect of
    a restart.
    """
    chance = random.Random(1)
    prompts = [chance.choices(range(size), k=500) for _ in range(8 * rounds)]
    durations: dict[str, list[float]] = {"without": [], "with": [], "alone": []}
    for number in range(2 * rounds):
        name = ("without", "with")[number % 2]
        options = ["--cache-dir", f"{scratch}/cache-{number}"] if name == "with" else []
        with running([*command, *options], port) as (http, _):
            first_id(http, prompts[0][:100])
            started = time.perf_counter()
            ask(http, chance.choices(range(size), k=8), 128)
            durations["alone"].append(time.perf_counter() - started)
            threads = [
                threading.Thread(target=lambda part=part: [ask(http, prompt, 1) for prompt in part])
                for part in (prompts[:4], prompts[4:8])
            ]
            for thread in threads:
                thread.start()
            started = time.perf_counter()
            ask(http, chance.choices(range(size), k=8), 128)
            durations[name].append(time.perf_counter() - started)
            for thread in threads:
                thread.join()
    seconds = {name: median(values) for name, values in durations.items()}
    print(
        f"128 ids alone: {seconds['alone']:.3f} s; with 8 prompts of 500: {seconds['without']:.3f}"
        f" s without --cache-dir, {seconds['with']:.3f} s with:"
        f" {seconds['with'] / seconds['without']:.2f}x"
    )
    prefix, times = chance.choices(range(size), k=1000), []
    for _ in range(2):
        with running([*command, "--cache-dir", f"{scratch}/restart"], port) as (http, _):
            first_id(http, prompts[0][:10])
            times.append(first_id(http, [*prefix, 1, 2, 3]))
    print(f"first id of 1,003: {times[0]:.3f} s; after a restart: {times[1]:.3f} s", flush=True)
    with running(
        [*command, "--cache-dir", f"{scratch}/restart", "--prefix-cache", "1MB"], port
    ) as (http, _):
        stop, restored = threading.Event(), [0]

        def restore() -> None:
            while not stop.is_set():
                ask(http, [*prefix, 7], 1)
                restored[0] += 1

        thread = threading.Thread(target=restore)
        times = []
        for beside in (False, True):
            if beside:
                thread.start()
            started = time.perf_counter()
            ask(http, chance.choices(range(size), k=8), 128)
            times.append(time.perf_counter() - started)
        stop.set()
        thread.join()
    print(
        f"128 ids alone: {times[0]:.3f} s; with {restored[0]} restored prompts of 1,000:"
        f" {times[1]:.3f} s"
    )


def free_port() -> int:
    """An unused port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--model", help="a GGUF file of that shape, instead of random weights")
    parser.add_argument("--cache", action="store_true", help="measure --cache-dir only")
    parser.add_argument("--llama-server", help="llama.cpp's server, for the same GGUF file")
    args = parser.parse_args()
    published = preset(SHAPE)
    assert published is not None
    config = published[1].to_hub()
    size = config["vocab_size"]
    with tempfile.TemporaryDirectory() as scratch:
        model = args.model or f"{scratch}/model"
        if not args.model:
            tokenizer = Tokenizer(models.WordLevel({str(id): id for id in range(size)}, "0"))
            tokenizer.decoder = decoders.WordPiece()
            torch.manual_seed(0)
            settings = {
                name: value
                for name, value in config.items()
                if name not in ("model_type", "architectures")
            }
            save_pretrained(
                llama(**settings).to(getattr(torch, args.dtype)), Path(model), tokenizer
            )
        port = str(free_port())
        command = [
            sys.executable,
            "-m",
            "minhub_py",
            "serve",
            model,
            "--port",
            port,
            "--device",
            "cpu",
            "--max-requests",
            str(args.rows),
            "--context",
            str(LENGTH),
        ]
        if args.cache:
            measure_cache(command, int(port), size, scratch, args.rounds)
            return
        ours = measure(f"minhub serve {SHAPE} in {args.dtype}", command, int(port), size, args)
    if args.llama_server:
        port = str(free_port())
        threads = str(args.threads)
        command = [
            args.llama_server,
            "-m",
            model,
            "--port",
            port,
            "-np",
            str(args.rows),
            "-c",
            str(args.rows * LENGTH),
            "-t",
            threads,
            "-tb",
            threads,
            "-fa",
            "off",
            "-ctk",
            "f32",
            "-ctv",
            "f32",
            "--no-webui",
        ]
        reference = measure(
            "llama-server, keys and values in float32", command, int(port), size, args
        )
        print(f"ours / theirs: {ours / reference:.2f}x")


if __name__ == "__main__":
    announce()
    main()
