"""Disconnects, slow clients, full queues, models that fail, and the end of a server."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest
import torch
from commands import failed
from guarantees import assert_same
from served_models import (
    CONTEXT,
    LONG,
    BrokenError,
    alone,
    connected,
    post,
    raw,
    served,
    user,
    wait,
)

from minhub_py import generate, score
from minhub_py.chat.templates import chat_template_of
from minhub_py.checkpoints.tokenizers.token_bytes import token_bytes, token_label
from minhub_py.checkpoints.tokenizers.tokenizer import decode_stream, read_tokenizer
from minhub_py.inference.native import library
from minhub_py.loading.pretrained import from_pretrained
from minhub_py.serve.catalog import Models
from minhub_py.serve.engine import Engine, token_text
from minhub_py.serve.models import ServedModel
from minhub_py.serve.run import BackgroundServer
from minhub_py.serve.server import Server


def test_a_disconnect_cancels_the_request(
    address: str, main_model: ServedModel, monkeypatch
) -> None:
    engine = main_model.engine
    wait(lambda: engine.unfinished == 0)
    step = engine._step
    monkeypatch.setattr(engine, "_step", lambda batch: time.sleep(0.01) or step(batch))
    for streams in (False, True):
        body = json.dumps({**json.loads(LONG), "stream": streams}).encode()
        connection = raw(address)
        connection.sendall(post(body))
        wait(lambda: engine.running)
        before = engine.counts["cancelled"]
        [request] = engine.running.values()
        connection.close()
        wait(lambda: engine.unfinished == 0 and not engine.running)
        assert engine.counts["cancelled"] == before + 1
        assert len(request.new_ids) < 240


def test_incomplete_requests_and_slow_readers_do_not_block_the_server(
    address: str, client, main_model: ServedModel
) -> None:
    half_head, half_body, slow, malformed, idle = (raw(address) for _ in range(5))
    half_head.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: local")
    half_body.sendall(post(b'{"prompt": "a', 500))
    slow.sendall(post(json.dumps({**json.loads(LONG), "stream": True, "logprobs": 20}).encode()))
    malformed.sendall(b"\x00\xff\r\n\r\n")
    idle.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = b""
    while b'"ok"}' not in answer:
        answer += idle.recv(1000)
    idle.sendall(b"GET /health HTTP/1.1\r\nHo")
    reply = client.completions.create(model="tiny", prompt="Hello", max_tokens=5, seed=1)
    assert reply.choices[0].text == alone(
        main_model, main_model.tokenizer.encode("Hello").ids, 5, 1
    )
    assert b" 400 " in malformed.recv(1000)
    assert b" 408 " in half_body.recv(1000)  # after read_timeout
    assert half_head.recv(1000) == idle.recv(1000) == b""  # closed
    wait(lambda: main_model.engine.unfinished == 0)  # a slow reader does not occupy the batch
    for connection in (half_head, half_body, slow, malformed, idle):
        connection.close()


def test_a_body_of_many_megabytes_is_status_413(address: str) -> None:
    connection = raw(address)
    connection.sendall(post(b"", 100 * 2**20))
    try:
        for _ in range(100):
            connection.sendall(b"x" * 2**20)
    except OSError:  # the server has closed the connection
        pass
    else:
        assert connection.recv(100).startswith(b"HTTP/1.1 413")
    connection.close()


def test_a_model_that_raises_fails_only_the_request_that_causes_it(folder: Path) -> None:
    """In the prefill and in a decoding step, and with NaN logits."""
    poison, nan = 7, 8

    def fail(_module, arguments, output):
        if (arguments[0] == poison).any():
            raise BrokenError
        return torch.where((arguments[0] == nan).unsqueeze(-1), torch.nan, output)

    tokenizer, model = read_tokenizer(folder), from_pretrained(folder)
    embedding = next(module for module in model.modules() if isinstance(module, torch.nn.Embedding))
    embedding.register_forward_hook(fail)
    engine = Engine(model, tokenizer, batch_size=6, max_length=CONTEXT)
    fragile = ServedModel(
        "fragile", model, tokenizer, chat_template_of(folder, tokenizer), engine, 60
    )
    ids = {name: tokenizer.encode(name).ids for name in ("one day", "a second text", "the third")}
    expected = {
        name: generate(model, [text], 60, temperature=0, eos_id=None)[0]
        for name, text in ids.items()
    }
    with connected(fragile) as http:

        def ask(prompt: list[int]):
            return http.post(
                "/v1/completions",
                json={"prompt": prompt, "max_tokens": 60, "temperature": 0, "ignore_eos": True},
            )

        with ThreadPoolExecutor(6) as pool:
            good = {name: pool.submit(ask, text) for name, text in ids.items()}
            bad = [pool.submit(ask, prompt) for prompt in ([1, 2, poison, 3], [5, nan], [poison])]
            for name, future in good.items():
                assert future.result().json()["choices"][0]["text"] == "".join(
                    decode_stream(tokenizer, expected[name], ids[name])
                )
            for future in bad:
                assert future.result().status_code == 500
            assert "BrokenError" in bad[0].result().json()["error"]["message"]
            assert "NaN" in bad[1].result().json()["error"]["message"]
        assert engine.counts["failed"] == 3
        assert http.get("/health").status_code == 200


def test_drafts_change_the_number_of_steps_and_not_the_replies(folder: Path) -> None:
    """Concurrent requests with seeds, logprobs, a beam search and a stop string."""
    prompt = [5, 6, 7, 8] * 6
    bodies: list[dict[str, object]] = [
        {"prompt": prompt, "max_tokens": 60, "temperature": 0, "ignore_eos": True},
        {"prompt": prompt, "max_tokens": 50, "seed": 3, "top_k": 2, "logprobs": 2},
        {"prompt": [9, 5, 6, 7], "max_tokens": 60, "temperature": 0, "stop": "e"},
        {"prompt": prompt[1:], "max_tokens": 20, "use_beam_search": True, "n": 2},
        {"prompt": prompt[2:], "max_tokens": 70, "temperature": 0.1, "seed": 1},
    ]

    def replies(speculate: int) -> tuple[list[object], int]:
        model, steps = served("drafts", folder, speculate=speculate), []
        step = model.engine._step
        model.engine._step = lambda batch: steps.append(1) or step(batch)
        with connected(model) as http, ThreadPoolExecutor(5) as pool:
            texts = pool.map(
                lambda body: http.post("/v1/completions", json=body).raise_for_status().json(),
                bodies,
            )
            return [text["choices"] for text in texts], len(steps)

    expected, most = replies(0)
    texts, steps = replies(16)
    assert texts == expected
    if library.library() is not None:
        assert steps < most, (steps, most)


def test_changed_weights_are_used_without_the_cached_prefixes(folder: Path) -> None:
    """R's load_state_dict() replaces a served model's weights, and PyTorch changes weights in
    place.
    """
    one = served("one", folder)
    ids = list(range(5, 45))
    with connected(one) as http:

        def text() -> str:
            body = {"prompt": ids, "max_tokens": 12, "temperature": 0}
            return (
                http.post("/v1/completions", json=body)
                .raise_for_status()
                .json()["choices"][0]["text"]
            )

        texts = [text()]
        assert text() == texts[0] == alone(one, ids, 12, 0, temperature=0)
        for change in (
            lambda weight: setattr(weight, "data", weight.data.flip(0)),
            lambda weight: weight.data.copy_(weight.data.flip(-1)),
        ):
            with torch.no_grad():
                for weight in one.model.parameters():
                    change(weight)
                    weight.add_(0)  # raises the version: `data` has its own
            texts.append(text())
            assert texts[-1] == alone(one, ids, 12, 0, temperature=0)
    assert len(set(texts)) == 3


def test_a_full_queue_is_status_429_and_a_timeout_503(folder: Path) -> None:
    busy = served("busy", folder, batch_size=1, queue_size=1)
    step = busy.engine._step
    busy.engine._step = lambda batch: time.sleep(0.01) or step(batch)
    with connected(busy) as http:
        with ThreadPoolExecutor(8) as pool:
            replies = list(pool.map(lambda _: http.post("/v1/completions", content=LONG), range(8)))
        statuses = sorted(reply.status_code for reply in replies)
        assert statuses == [200, 200, *[429] * 6]
        assert all(reply.headers["Retry-After"] for reply in replies if reply.status_code == 429)
        busy.timeout = 0.05
        late = http.post("/v1/completions", content=LONG)
        assert (late.status_code, late.json()["error"]["code"]) == (503, "time")


def test_the_command_serves_until_sigterm(folder: Path, tmp_path: Path) -> None:
    """An unfinished reply completes within the grace period, and nothing is printed on standard
    error.
    """
    import openai

    command = [
        sys.executable,
        "-m",
        "minhub_py",
        "serve",
        str(folder),
        "--port",
        "0",
        "--api-key",
        "secret",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as server:
        address = server.stdout.readline().strip().rpartition(" ")[2]
        with openai.OpenAI(base_url=f"{address}/v1", api_key="secret", max_retries=0) as client:
            [model] = client.models.list()
            assert model.id == folder.name
            assert client.chat.completions.create(
                model=model.id, messages=user("Hi"), max_tokens=3
            ).choices
            with pytest.raises(openai.AuthenticationError):
                client.with_options(api_key="wrong").models.list()
            stream = client.completions.create(
                model=model.id, prompt="Hi", max_tokens=200, stream=True
            )
            next(stream)
            server.send_signal(signal.SIGTERM)
            for _ in stream:  # short enough for the grace period
                pass
        _, errors = server.communicate(timeout=60)
    assert server.returncode in (-signal.SIGTERM, 128 + signal.SIGTERM)
    assert errors == ""


def test_a_reply_that_exceeds_the_grace_period_ends_with_an_error(folder: Path) -> None:
    slow = served("long", folder)
    step = slow.engine._step
    slow.engine._step = lambda batch: time.sleep(0.02) or step(batch)
    background = BackgroundServer(Server(Models([slow])), grace=0.0)
    with background as address, httpx2.Client(base_url=address, timeout=60) as http:
        body = {**json.loads(LONG), "stream": True}
        with http.stream("POST", "/v1/completions", json=body) as reply:
            lines = reply.iter_lines()
            next(lines)
            background.uvicorn.should_exit = True
            remaining = [line for line in lines if line]
    assert "shutting down" in json.loads(remaining[-2][6:])["error"]["message"]
    assert remaining[-1] == "data: [DONE]"


def test_invalid_options_of_the_command_are_rejected(tmp_path: Path, folder: Path) -> None:
    assert "--api-key" in failed("serve", str(folder), "--host", "0.0.0.0", status=2)
    assert "empty" in failed("serve", str(folder), "--api-key", "", status=2)
    message = failed("serve", str(folder), "--context", "300", "--port", "0")
    assert "--context 300 exceeds the context length of" in message
    assert "at most 256" in message
    assert "same name" in failed("serve", str(folder), str(folder), "--port", "0")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        assert "--port" in failed("serve", str(folder), "--port", port)
    assert "--host" in failed("serve", str(folder), "--host", "999.1.1.1", "--api-key", "x")


def wide(count: int) -> dict:
    """A schema that exceeds a grammar's limits after the first token."""
    return {"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(count)}}


def test_errors_of_requests_do_not_disturb_a_stream(
    address: str, http, main_model: ServedModel, capfd, monkeypatch
) -> None:
    """A reply that streams is that of its single run, and the engine's batch is never rebuilt."""
    engine = main_model.engine
    wait(lambda: engine.unfinished == 0)
    step = engine._step
    monkeypatch.setattr(engine, "_step", lambda batch: time.sleep(0.01) or step(batch))
    failed_before, streaming = engine.counts["failed"], []
    prompts = ["Once upon a time", "In the beginning", "A third text"]
    ids = [main_model.tokenizer.encode(prompt).ids for prompt in prompts]

    def stream(n: int) -> list[tuple[str, float]]:
        body = {
            "model": "tiny",
            "prompt": prompts[n],
            "max_tokens": 200,
            "ignore_eos": True,
            "seed": n,
            "stream": True,
            "logprobs": 1,
        }
        tokens: list[tuple[str, float]] = []
        with http.stream("POST", "/v1/completions", json=body) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    logprobs = json.loads(line[6:])["choices"][0]["logprobs"]
                    tokens += zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True)
                    streaming.append(n)
        return tokens

    def ask(fields: dict) -> None:
        response = http.post(
            "/v1/chat/completions", json={"messages": user("Hi"), "max_tokens": 50, **fields}
        )
        assert (response.status_code, len(response.json()["error"]["message"]) < 300) == (
            400,
            True,
        ), response.text[:500]

    schemas = [{"$ref": "#"}, {"anyOf": [{"$ref": "#"}]}, {"enum": []}, wide(700), wide(3000)]
    bad = [{"response_format": {"type": "json_object", "schema": schema}} for schema in schemas]
    bad += [
        {"repetition_penalty": 1e-300},
        {"temperature": -1},
        {"stop": "x" * 50_000},
        {"stop": ["a"] * 1000},
    ]
    expected = [generate(main_model.model, [ids[n]], 200, seed=n, eos_id=None)[0] for n in range(3)]
    with ThreadPoolExecutor(7) as pool:
        streams = [pool.submit(stream, n) for n in range(3)]
        wait(lambda: len(set(streaming)) == 3)
        for _ in range(2):
            list(pool.map(ask, bad))
        for n, future in enumerate(streams):
            scores = score(main_model.model, [[*ids[n], *expected[n]]])[0][len(ids[n]) - 1 :]
            texts, logprobs = zip(*future.result(), strict=True)
            assert_same(torch.tensor(logprobs), scores)
            labels = [
                token_bytes(main_model.tokenizer, id, token_text(main_model.tokenizer, id))
                for id in expected[n]
            ]
            assert list(texts) == [token_label(data) for data in labels]
    assert engine.counts["failed"] == failed_before + 4  # in the batch: the two wide schemas, twice
    assert "one by one" not in capfd.readouterr().err


@pytest.mark.parametrize("write_timeout", [60, 0.3])
def test_a_client_that_does_not_read_frees_the_model_and_is_disconnected(
    folder: Path, write_timeout: float
) -> None:
    """The model is free when its rows are; the connection is closed after the time limit."""
    model = served("tiny", folder, batch_size=8)
    catalog = Models([model])
    body = {**json.loads(LONG), "stream": True, "logprobs": 20, "n": 8}
    server = BackgroundServer(Server(catalog, write_timeout=write_timeout), grace=0.2)
    # the system does not buffer the response
    server.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with server as address, httpx2.Client(base_url=address, timeout=60) as http:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = address.removeprefix("http://").split(":")
        connection.connect((host, int(port)))
        connection.sendall(post(json.dumps(body).encode()))
        [entry] = catalog.entries.values()
        wait(lambda: entry.users == 1)
        wait(lambda: model.engine.unfinished == 0 and entry.users == 0)
        label = 'minhub_requests_total{path="/completions",status="200"}'
        if write_timeout == 60:
            assert label not in http.get("/metrics").text, "the response is still being sent"
        else:
            wait(lambda: label in http.get("/metrics").text)  # the response has ended
            received = b""
            with suppress(ConnectionResetError):
                while part := connection.recv(10**6):
                    received += part
            assert b"[DONE]" not in received
        connection.close()
    model.engine.close()
