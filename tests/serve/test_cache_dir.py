"""`--cache-dir`: prefixes survive a restart of the server, and a killed server leaves no wrong
reply.
"""

import json
import os
import random
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from commands import failed
from fast_python import python
from needs import need, needs
from served_models import connected, in_chat, large, served, serving, user, write_checkpoint

from minhub_py import Chat, gpt2, llama
from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer
from minhub_py.inference.disk_cache import DiskCache
from minhub_py.loading.pretrained import from_pretrained

pytestmark = needs("decoder")  # without it, nothing is stored

SYSTEM = {"role": "system", "content": "A long introduction of many words. " * 8}


@contextmanager
def server(folder: Path, *options: object) -> Iterator[tuple[subprocess.Popen, httpx2.Client]]:
    """A server in another process, which is killed at the end."""
    command = [python(), "-m", "minhub_py", "serve", str(folder), "--port", "0", *map(str, options)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            address = process.stdout.readline().strip().rpartition(" ")[2]
            with httpx2.Client(base_url=address, timeout=60) as http:
                yield process, http
        finally:
            process.kill()


def complete(http: httpx2.Client, prompt: object, seed: int = 1) -> tuple[str, int]:
    """A completion's text, and the number of cached tokens."""
    body = {"prompt": prompt, "seed": seed, "max_tokens": 12}
    result = http.post("/v1/completions", json=body).raise_for_status().json()
    return result["choices"][0]["text"], result["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_prefixes_survive_a_restart_of_the_command(folder: Path, tmp_path: Path) -> None:
    prompt = [id % 250 for id in range(3, 150)]
    results = []
    for _ in range(2):
        with server(folder, "--cache-dir", tmp_path / "cache") as (process, http):
            results.append(complete(http, prompt))
            process.terminate()
            assert process.communicate(timeout=60)[1] == ""
    [(text, first), (again, second)] = results
    assert text == again
    assert (first, second) == (0, 128)
    message = failed(
        "serve", str(folder), "--cache-dir", str(folder / "config.json"), "--port", "0", status=2
    )
    assert "--cache-dir" in message


def test_engines_with_the_same_folder_send_the_replies_of_single_runs(
    folder: Path, tmp_path: Path
) -> None:
    for number in range(3):  # the first alone, then two at the same time
        models = [
            served(f"model-{i}", folder, disk=DiskCache(tmp_path, 10**8))
            for i in range(1 if number == 0 else 2)
        ]
        with connected(*models, grace=5) as http:

            def ask(name: str, question: int, http: httpx2.Client = http) -> tuple[str, int]:
                messages = [SYSTEM, *user(f"Question {question}")]
                body = {"model": name, "messages": messages, "seed": question, "max_tokens": 10}
                result = http.post("/v1/chat/completions", json=body).raise_for_status().json()
                cached = result["usage"]["prompt_tokens_details"]["cached_tokens"]
                return result["choices"][0]["message"]["content"], cached

            for question in range(3):
                for model in models:
                    text, cached = ask(model.name, question)
                    assert text == in_chat(
                        model, [SYSTEM, *user(f"Question {question}")], 10, question
                    )
                    assert cached > 0 or (number, question) == (0, 0)


def test_a_chat_continues_from_its_folder(folder: Path, tmp_path: Path) -> None:
    def chat(**settings) -> Chat:
        model, tokenizer = from_pretrained(folder), read_tokenizer(folder)
        return Chat(model, tokenizer, SYSTEM["content"], seed=1, max_new_tokens=8, **settings)

    expected = chat().say("Hello")
    first = chat(cache_dir=tmp_path)
    assert (first.say("Hello").ids, first.last.kept) == (expected.ids, 0)
    first._generator.disk.flush()
    second = chat(cache_dir=tmp_path)
    reply = second.say("Hello")
    assert (reply.ids, reply.logprobs) == (expected.ids, expected.logprobs)
    assert reply.kept >= 64
    with torch.no_grad():
        next(second.model.parameters()).mul_(1.5)  # trained meanwhile
    second.clear()
    assert second.say("Hello").kept == 0


KILLS = 50


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(4))
def test_a_server_that_is_killed_while_it_writes_never_leaves_a_wrong_reply(
    bpe_folder: Path, tmp_path: Path, part: int
) -> None:
    """Large keys and values, so that a kill interrupts a write."""
    torch.manual_seed(part)
    model = llama(
        vocab_size=read_tokenizer(bpe_folder).get_vocab_size(),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=16,
        num_attention_heads=16,
        num_key_value_heads=16,
        head_dim=64,
        max_position_embeddings=512,
    )
    path, cache = write_checkpoint(tmp_path / "model", bpe_folder, large(model)), tmp_path / "cache"
    chance = random.Random(part)
    prompts = [[chance.randrange(250) for _ in range(330)] for _ in range(5)]
    for prompt in prompts[1:]:
        prompt[:140] = prompts[0][:140]
    with server(path) as (_, http):
        expected = [complete(http, prompt)[0] for prompt in prompts]
    interrupted = cached = 0
    for _ in range(KILLS):
        for file in cache.rglob("*-*-*"):  # to be written again
            if chance.random() < 0.5:
                file.unlink()
        with server(path, "--cache-dir", cache, "--cache-size", "100MB") as (process, http):
            for number in chance.choices(range(len(prompts)), k=2):
                text, count = complete(http, prompts[number])
                assert text == expected[number]
                cached += count > 0
            timer = threading.Event()
            timer.wait(chance.random() * 0.15)
            process.kill()
        partial = list(cache.rglob("*.partial"))
        interrupted += bool(partial)
        for file in partial:
            os.utime(file, (0, 0))
    with server(path, "--cache-dir", cache) as (_, http):
        assert [complete(http, prompt)[0] for prompt in prompts] == expected
    print(
        f"{KILLS} kills, {interrupted} of them during a write; {cached} of {2 * KILLS} replies from"
        " the disk"
    )
    assert interrupted > 0
    assert cached > 0


CLOSED = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["n"],
    "additionalProperties": False,
}
CALLABLE = [
    {"type": "function", "function": {"name": name, "parameters": CLOSED}}
    for name in ("first", "second")
]
Answer = tuple[str, str, list[tuple[str, str]]]


def request_body(number: int) -> dict[str, Any]:
    """One of 32 requests: text, a schema, optional calls and required calls."""
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": CLOSED}}
    kinds: list[dict[str, Any]] = [
        {"max_tokens": 5 + number},
        {"max_tokens": 5 + number, "response_format": form},
        {"max_tokens": 5 + number, "tools": CALLABLE},
        {
            "max_tokens": 200 - 5 * number,
            "tools": CALLABLE,
            "tool_choice": "required",
            "parallel_tool_calls": number % 8 > 3,
        },
    ]
    system = {
        "role": "system",
        "content": ("A long introduction" if number % 2 else "Another text") * 8,
    }
    messages = [system, *user(f"Question {number % 8}")]
    return {"messages": messages, "seed": number, "temperature": 1.2, **kinds[number % 4]}


def answer(http: httpx2.Client, number: int, stream: bool) -> Answer:
    """The finish reason, text and complete calls of a reply."""
    body = request_body(number)
    if not stream:
        choice = (
            http.post("/v1/chat/completions", json=body).raise_for_status().json()["choices"][0]
        )
        message = choice["message"]
        calls = [
            (call["function"]["name"], call["function"]["arguments"])
            for call in message.get("tool_calls") or []
        ]
        return choice["finish_reason"], message["content"] or "", calls
    lines = (
        http.post("/v1/chat/completions", json={**body, "stream": True})
        .raise_for_status()
        .text.split("\n\n")
    )
    choices = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
    text, names, arguments = "", list[str](), list[str]()
    for delta in (choice["delta"] for choice in choices):
        text += delta.get("content") or ""
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                names.append(call["function"]["name"])
                arguments.append("")
            arguments[call["index"]] += call["function"]["arguments"]
    # it was cut
    if choices[-1]["finish_reason"] == "length" and arguments and not arguments[-1].endswith("}"):
        del names[-1], arguments[-1]
    return choices[-1]["finish_reason"], text, list(zip(names, arguments, strict=True))


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_many_clients_with_schemas_and_tools_get_the_replies_of_single_runs(
    bpe_folder: Path, tmp_path: Path
) -> None:
    """64 clients and streams, with a prefix cache in memory that is too small and one on disk."""
    need("llguidance")
    torch.manual_seed(0)
    size = read_tokenizer(bpe_folder).get_vocab_size()
    model = gpt2(
        vocab_size=size, n_embd=32, n_layer=2, n_head=4, n_positions=1024, eos_token_id=size - 1
    )
    folder = write_checkpoint(tmp_path / "model", bpe_folder, large(model))
    alone = served("alone", folder, batch_size=1, prefix_bytes=1, max_length=1024)
    with connected(alone, grace=1) as http:
        expected = [answer(http, number, False) for number in range(32)]
    calls = [call for _, _, calls in expected[3::4] for call in calls]
    assert {name for name, _ in calls} == {"first", "second"}
    assert all(0 <= json.loads(arguments)["n"] <= 99 for _, arguments in calls)
    replies = 0
    for _ in range(3):  # each a restart
        disk = DiskCache(tmp_path / "cache", 20_000_000)
        many = served(
            "many", folder, queue_size=100, prefix_bytes=1_000_000, disk=disk, max_length=1024
        )
        with serving(many, grace=5) as address, ThreadPoolExecutor(64) as pool:

            def client(seed: int, address: str = address) -> int:
                chance = random.Random(seed)
                with httpx2.Client(base_url=address, timeout=300) as http:
                    for _ in range(15):
                        number = chance.randrange(32)
                        assert answer(http, number, chance.random() < 0.5) == expected[number], (
                            number
                        )
                return 15

            replies += sum(pool.map(client, range(64)))
        assert many.engine.counts["failed"] == 0
        assert many.engine.counts["cached"] > 0
    print(
        f"{replies} replies equal those of single runs, with {len(calls)} calls in the 8 requests"
        " that require one"
    )
