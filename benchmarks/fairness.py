"""Requests of ordinary clients while one client of 64 is hostile: how many steps of the model they
take.

    python benchmarks/fairness.py [--seconds 120] [--clients 64] [--rows 16] [--requests 7]

The hostile client repeats `--requests` requests at the same time, of one kind after the other: long
prompts, expensive schemas, token texts of a long text, bodies of 490,000 values, names of 7 MB.
Windows with and without it alternate. Prints for each kind the mean number of steps from sending a
request to its complete response, and its ratio to the windows without; in addition the ratio of
seconds, which is meaningful on an idle machine only. The status is 1 if a request of an ordinary
client fails, or if a ratio of steps exceeds 2.

The server, a model of random weights, and the clients run in this process, so that clients can read
the number of steps.
"""

import argparse
import http.client
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from minhub_py import from_pretrained, gpt2, save_pretrained
from minhub_py.chat.templates import chat_template_of
from minhub_py.inference.batch import Batch, Event
from minhub_py.serve.catalog import Models
from minhub_py.serve.engine import Engine
from minhub_py.serve.models import ServedModel
from minhub_py.serve.run import BackgroundServer
from minhub_py.serve.server import Server

VOCABULARY, CONTEXT, NEW = 8_000, 1_024, 8
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer"}},
}
Body = tuple[str, bytes]  # path, content
Windows = Iterator[tuple[str, "Window"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--requests", type=int, default=7)
    args = parser.parse_args()
    model = served_model(args.rows)
    with BackgroundServer(Server(Models([model]))) as address:
        clients = Clients(address.removeprefix("http://"))
        windows = list(measure(clients, args.seconds, args.clients, args.requests))
    model.engine.close()
    sys.exit(not report(windows, clients.failed))


def served_model(rows: int) -> ServedModel:
    """A model with random weights and a byte-level tokenizer."""
    chance = random.Random(0)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: id for id, letter in enumerate(letters)}
    vocabulary["x" * 100] = len(vocabulary)  # the longest token limits the length of texts
    while len(vocabulary) < VOCABULARY:
        token = "".join(chance.choices("abcdefghijklmnopqrstuvwxyzĠ", k=chance.randrange(2, 9)))
        vocabulary.setdefault(token, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    torch.manual_seed(0)
    model = gpt2(
        vocab_size=VOCABULARY, n_embd=192, n_layer=6, n_head=6, n_positions=CONTEXT, eos_token_id=0
    )
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(model, folder, tokenizer)
        loaded, template = from_pretrained(folder), chat_template_of(Path(folder), tokenizer)
    engine = Engine(loaded, tokenizer, batch_size=rows, max_length=CONTEXT, queue_size=256)
    return ServedModel("model", loaded, tokenizer, template, engine, 600)


def hostile_bodies() -> dict[str, Callable[[random.Random], Body]]:
    """The ways of a hostile client: a new request of each."""
    text = "word " * 20_000
    values = json.dumps({"prompt": [7] * 490_000}).encode()
    nested = json.dumps(
        {"prompt": "a", "logit_bias": {str(number): 0 for number in range(45_000)}}
    ).encode()
    name = json.dumps({"model": "x" * 7_000_000, "prompt": "a"}).encode()

    def schema(chance: random.Random) -> Body:
        texts = [f"{'x' * 9_900}{chance.randrange(10**9)}" for _ in range(9)]
        return completion(chance, 8, 400, {"enum": texts})

    return {
        "long prompts": lambda chance: completion(chance, 980, 4),
        "expensive schemas": schema,
        "token texts": lambda _: (
            "/tokenize",
            json.dumps({"content": text, "with_pieces": True}).encode(),
        ),
        "490,000 values": lambda _: ("/v1/completions", values),
        "45,000 fields": lambda _: ("/v1/completions", nested),
        "names of 7 MB": lambda _: ("/v1/completions", name),
    }


def completion(chance: random.Random, length: int, new: int, schema: object = None) -> Body:
    """A request with a random prompt."""
    body = {
        "prompt": chance.choices(range(VOCABULARY), k=length),
        "max_tokens": new,
        "ignore_eos": schema is None,
        "seed": chance.randrange(10**6),
    }
    if schema is not None:
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": schema},
        }
    return "/v1/completions", json.dumps(body).encode()


def ordinary(chance: random.Random) -> Body:
    """A request of an ordinary client: every eighth has a schema."""
    return completion(
        chance, chance.randrange(4, 60), NEW, PERSON if chance.randrange(8) == 0 else None
    )


@dataclass
class Window:
    """The steps and the seconds of the requests that ordinary clients send in a window, and their
    number by status.
    """

    steps: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    hostile: int = 0  # number of completed requests of the hostile client


class Steps:
    """Counts the steps of all batches of this process."""

    def __init__(self) -> None:
        self.count, advance = 0, Batch.advance

        def counting(batch: Batch, *, prefill: bool = True) -> list[Event]:
            self.count += 1
            return advance(batch, prefill=prefill)

        Batch.advance = counting  # type: ignore[method-assign]


class Clients:
    """Clients in threads. failed: responses to ordinary clients with another status than 200."""

    def __init__(self, address: str) -> None:
        self.address, self.steps = address, Steps()
        self.failed: list[bytes] = []
        self.window = Window()

    def run(
        self, until: float, count: int, hostile: int, body: Callable[[random.Random], Body] | None
    ) -> Window:
        """A window with `count` ordinary clients, and `hostile` connections of the hostile one."""
        self.window = Window()
        threads = [
            threading.Thread(target=self._ordinary, args=(number, until)) for number in range(count)
        ]
        if body is not None:
            threads += [
                threading.Thread(target=self._hostile, args=(body, number, until))
                for number in range(hostile)
            ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.window

    def _ordinary(self, number: int, until: float) -> None:
        chance, connection = (
            random.Random(f"{number} {until}"),
            http.client.HTTPConnection(self.address, timeout=600),
        )
        while time.monotonic() < until:
            body, steps, start = ordinary(chance), self.steps.count, time.monotonic()
            status, content = ask(connection, body)
            self.window.steps.append(self.steps.count - steps)
            self.window.seconds.append(time.monotonic() - start)
            if status != 200:
                self.failed.append(content)
        connection.close()

    def _hostile(
        self, new_body: Callable[[random.Random], Body], number: int, until: float
    ) -> None:
        chance, connection = (
            random.Random(f"{number} {until}"),
            http.client.HTTPConnection(self.address, timeout=600),
        )
        while time.monotonic() < until:
            ask(connection, new_body(chance))
            self.window.hostile += 1
        connection.close()


def ask(connection: http.client.HTTPConnection, body: Body) -> tuple[int, bytes]:
    """Send a request. Returns the status and the content of the response."""
    connection.request("POST", body[0], body[1], {"Content-Type": "application/json"})
    response = connection.getresponse()
    return response.status, response.read()


def measure(clients: Clients, seconds: float, count: int, requests: int) -> Windows:
    """Windows without and with the hostile client in each of its ways, of `seconds` together."""
    ways = hostile_bodies()
    duration = seconds / (2 * len(ways))
    clients.run(time.monotonic() + 2, count, 0, None)  # to start
    for name, body in ways.items():
        yield "", clients.run(time.monotonic() + duration, count, 0, None)
        yield name, clients.run(time.monotonic() + duration, count - 1, requests, body)


def report(windows: list[tuple[str, Window]], failed: list[bytes]) -> bool:
    """Print the results. Returns whether all requests succeeded and no ratio of steps exceeds 2."""
    steps = [step for name, window in windows if not name for step in window.steps]
    print(f"without: {len(steps)} requests, {fmean(steps):.1f} steps")
    fair = not failed
    for (_, before), (name, window) in zip(windows[::2], windows[1::2], strict=True):
        ratio = fmean(window.steps) / fmean(before.steps)
        slower = fmean(window.seconds) / fmean(before.seconds)
        fair = fair and ratio <= 2
        print(
            f"{name:18} {len(window.steps):5} requests ({window.hostile:3} hostile),"
            f" {fmean(window.steps):6.1f} steps, before {fmean(before.steps):6.1f}: {ratio:.2f}x;"
            f" seconds {slower:.2f}x"
        )
    print(f"failed: {len(failed)}", *failed[:1])
    return fair


if __name__ == "__main__":
    main()
