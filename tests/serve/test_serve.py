"""`minhub serve`: a real server on loopback, real clients, and what bad ones do to it."""

import copy
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
import torch
from starlette.datastructures import Headers
from test_cli import failed

from minhub_py import generate, gpt2, lstm, save_pretrained, score
from minhub_py.chat.templates import chat_template_of
from minhub_py.checkpoints.tokenizers.tokenizer import decode_stream, read_tokenizer
from minhub_py.inference.native_runner import NativeRunner, runner_of
from minhub_py.pretrained import from_pretrained
from minhub_py.serve import ollama
from minhub_py.serve.app import OLLAMA_POSTS, POSTS, Server
from minhub_py.serve.engine import Engine, token_texts
from minhub_py.serve.models import Models, Served, variables_of
from minhub_py.serve.openai import Deltas
from minhub_py.serve.run import Background
from minhub_py.serve.validation import Fields, RefusedError

CONTEXT, ROWS, WAITING = 256, 4, 40
RECOMMENDED = {"temperature": 0.9, "top_k": 200, "top_p": 0.97, "repetition_penalty": 1.1}
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if messages[-1].content == 'refuse me' %}{{ raise_exception('no thanks') }}{% endif %}"
    "{% if mood %}<{{ mood }}{{ reasoning_effort }}>{% endif %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def large(model):
    """The model with weights so large that another key or position changes ids."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * (0.3 if parameter.dim() == 1 else parameter.shape[1] ** -0.5))
    return model


def make(folder: Path, bpe_folder: Path, model) -> Path:
    save_pretrained(model, folder, read_tokenizer(bpe_folder))
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder


def served(name: str, folder: Path, **settings) -> Served:
    model, tokenizer = from_pretrained(folder), read_tokenizer(folder)
    engine = Engine(model, tokenizer, **{"rows": ROWS, "max_length": CONTEXT, "waiting": WAITING, **settings})
    return Served(name, model, tokenizer, chat_template_of(folder, tokenizer), engine, 60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, bpe_folder: Path) -> Path:
    torch.manual_seed(0)
    vocab_size = read_tokenizer(bpe_folder).get_vocab_size()
    model = gpt2(
        vocab_size=vocab_size, n_embd=32, n_layer=2, n_head=4, n_positions=CONTEXT, eos_token_id=vocab_size - 1
    )
    path = make(tmp_path_factory.mktemp("serve"), bpe_folder, large(model))
    (path / "generation_config.json").write_text(json.dumps(RECOMMENDED), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory: pytest.TempPathFactory, bpe_folder: Path) -> Path:
    torch.manual_seed(1)
    vocab_size = read_tokenizer(bpe_folder).get_vocab_size()
    return make(
        tmp_path_factory.mktemp("serve"), bpe_folder, lstm(vocab_size=vocab_size, hidden_size=16, embedding_size=16)
    )


@pytest.fixture(scope="module")
def main_model(folder: Path):
    found = served("tiny", folder)
    yield found
    found.engine.close()


@pytest.fixture(scope="module")
def address(main_model: Served, recurrent: Path):
    """A server with two models, in a thread."""
    models = Models([main_model, served("other", recurrent)])
    with Background(Server(models, most_body=100_000, patience=0.3), grace=0.2) as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str):
    import openai  # a second, in this file's process alone

    with openai.OpenAI(base_url=f"{address}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def http(address: str):
    with httpx2.Client(base_url=address, timeout=60) as http:
        yield http


def alone(found: Served, ids: list[int], count: int, seed: int, **settings) -> str:
    """What `generate` makes of a prompt by itself."""
    [new] = generate(found.model, [ids], count, seed=seed, **settings)
    if new[-1] in found.end_ids:
        new.pop()
    return "".join(decode_stream(found.tokenizer, new, ids))  # without half a character at its end


def in_chat(found: Served, messages: list[dict[str, str]], count: int, seed: int, **settings) -> str:
    """What `generate` makes of a conversation, with the model's default sampling settings."""
    return alone(found, found.template.encode(messages), count, seed, **{**found.sampling, **settings})


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_models_by_all_paths(http, client) -> None:
    for path in ("/models", "/v1/models", "/v1/v1/models"):
        assert [each["id"] for each in http.get(path).json()["data"]] == ["tiny", "other"]
    assert [model.id for model in client.models.list()] == ["tiny", "other"]
    assert client.models.retrieve("other").id == "other"
    assert http.get("/v1/models/other").json()["meta"]["default_sampling"] == {
        "temperature": 0.7, "top_p": 0.95, "top_k": None, "repetition_penalty": 1.0
    }  # fmt: skip


def test_continue_final_message_generates_the_rest_of_a_reply(http, main_model: Served) -> None:
    messages = [*user("Hello there"), {"role": "assistant", "content": "I am"}]
    body = {"messages": messages, "continue_final_message": True, "seed": 3, "temperature": 0.9, "max_tokens": 20,
            "top_p": 1, "top_k": 0, "repetition_penalty": 1}  # fmt: skip
    answer = http.post("/v1/chat/completions", json=body).json()
    ids = main_model.template.tokenize(main_model.template.render(messages[:1]) + "I am")
    assert answer["choices"][0]["message"]["content"] == alone(main_model, ids, 20, 3, temperature=0.9)
    for wrong in (user("Hello there"), messages[1:]):
        answer = http.post("/v1/chat/completions", json={**body, "messages": wrong})
        assert answer.status_code == 400
        assert "requires an assistant message" in answer.json()["error"]["message"]
    hidden = {**body, "chat_template_kwargs": {"continue_final_message": True}}
    assert http.post("/v1/chat/completions", json=hidden).status_code == 400


def test_a_chat_has_the_text_that_generate_makes(client, main_model: Served) -> None:
    assert isinstance(runner_of(main_model.model), NativeRunner)
    messages = [{"role": "system", "content": "Be short."}, *user("Hello there")]
    ids = main_model.template.encode(messages)
    for parts in (False, True):
        sent = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages] if parts else messages
        reply = client.chat.completions.create(model="tiny", messages=sent, seed=3, temperature=0.8, max_tokens=20)
        assert reply.choices[0].message.content == in_chat(main_model, messages, 20, 3, temperature=0.8)
        assert reply.choices[0].finish_reason == "length"
        assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (len(ids), 20)


def test_many_at_once_each_as_alone(client, main_model: Served) -> None:
    """Long and short, streamed and not, with prefixes in common; more than there are rows."""
    words = "the quick brown fox jumps over the lazy dog and runs away from all of them".split()
    prompts = [" ".join(words[: 3 + n % 12] * (1 + n % 4)) for n in range(16)]

    def ask(n: int) -> str:
        settings = {"model": "tiny", "messages": user(prompts[n]), "seed": n, "temperature": 0.8 + 0.02 * n,
                    "top_p": 0.95, "max_completion_tokens": 5 + 3 * n}  # fmt: skip
        if n % 2:
            return client.chat.completions.create(**settings).choices[0].message.content
        return "".join(
            part.choices[0].delta.content or "" for part in client.chat.completions.create(**settings, stream=True)
        )

    with ThreadPoolExecutor(16) as pool:
        for _ in range(2):  # the second time from kept texts
            found = list(pool.map(ask, range(16)))
            for n, text in enumerate(found):
                settings = {"temperature": 0.8 + 0.02 * n, "top_p": 0.95}
                assert text == in_chat(main_model, user(prompts[n]), 5 + 3 * n, n, **settings)
    assert main_model.engine.counts["cached"] > main_model.engine.counts["prompt"] / 2


def test_streams(client, http, main_model: Served) -> None:
    settings = {"model": "tiny", "messages": user("One two three"), "seed": 5, "max_tokens": 30}
    whole = client.chat.completions.create(**settings, logprobs=True, top_logprobs=3)
    parts = list(client.chat.completions.create(**settings, logprobs=True, top_logprobs=3, stream=True,
                                                stream_options={"include_usage": True}))  # fmt: skip
    assert parts[-1].choices == []
    assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens == 30
    chunks = [part.choices[0] for part in parts[:-1]]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    streamed = [token for chunk in chunks if chunk.logprobs for token in chunk.logprobs.content]
    assert streamed == whole.choices[0].logprobs.content
    ids = main_model.template.encode(settings["messages"])
    [new] = generate(main_model.model, [ids], 30, seed=5, **main_model.sampling)
    scores = score(main_model.model, [[*ids, *new]])[0][len(ids) - 1 :]
    assert torch.equal(torch.tensor([token.logprob for token in streamed]), scores)
    for token in streamed:
        values = [other.logprob for other in token.top_logprobs]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
    # A client that asks for no usage still finds it in the last chunk.
    lines = http.post("/v1/chat/completions", json={**settings, "stream": True}).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    assert json.loads(lines[-3][6:])["usage"]["completion_tokens"] == 30


def test_deltas_that_ellmer_takes() -> None:
    """It drops one that equals all the text so far."""
    for pieces in (["ha", "ha", "haha"], ["a", "a", "aa"], ["a"], ["", "x", ""], ["ab", "c", "abc", "abcabc"]):
        deltas, sent = Deltas(), []
        for number, piece in enumerate(pieces):
            sent += deltas.add(piece, last=number == len(pieces) - 1)
        assert "".join(sent) == "".join(pieces)
        for number, delta in enumerate(sent):
            assert number == 0 or delta != "".join(sent[:number])


def test_stops_and_choices(client, main_model: Served) -> None:
    settings = {"model": "tiny", "messages": user("Tell me"), "seed": 11, "max_tokens": 40}
    text = client.chat.completions.create(**settings).choices[0].message.content
    middle = text[len(text) // 2 :][:4]
    reply = client.chat.completions.create(**settings, stop=[middle, "never there"]).choices[0]
    assert reply.message.content == text[: text.index(middle)]
    assert reply.finish_reason == "stop"
    parts = client.chat.completions.create(**settings, stop=middle, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == reply.message.content
    several = client.chat.completions.create(**settings, n=3)
    expected = [in_chat(main_model, settings["messages"], 40, 11 + n) for n in range(3)]
    assert [each.message.content for each in several.choices] == expected
    assert several.usage.completion_tokens == 120


def test_completions_echo_and_score(client, main_model: Served) -> None:
    """What lm-eval asks for: the log-probability of each token of a prompt."""
    text = "To be or not to be, that is the question."
    ids = main_model.tokenizer.encode(text).ids
    scores = score(main_model.model, [ids])[0]
    for prompt in (text, ids):
        for count in (0, 1):
            found = client.completions.create(
                model="tiny", prompt=prompt, echo=True, logprobs=1, max_tokens=count, seed=1
            )
            told = found.choices[0].logprobs
            assert told.token_logprobs[0] is None
            assert torch.equal(torch.tensor(told.token_logprobs[1 : len(ids)]), scores)
            assert len(told.tokens) == len(ids) + count
            assert "".join(told.tokens).startswith(text)
            assert found.choices[0].text.startswith(text)
            assert all(len(top) == 1 for top in told.top_logprobs[1:])
    both = client.completions.create(model="tiny", prompt=[text, "Another"], max_tokens=6, seed=2, n=2)
    assert [each.index for each in both.choices] == [0, 1, 2, 3]
    assert both.choices[3].text == alone(main_model, main_model.tokenizer.encode("Another").ids, 6, 3)
    parts = list(client.completions.create(model="tiny", prompt=text, max_tokens=6, seed=2, stream=True))
    assert "".join(part.choices[0].text for part in parts) == both.choices[0].text
    assert parts[-1].choices[0].finish_reason == "length"


def test_default_sampling_of_chats_is_the_models_own(client, http, main_model: Served) -> None:
    """In all APIs; text completions sample from the model's distribution, and a request's own settings win."""
    ask = {"model": "tiny", "seed": 6, "messages": user("Hi")}
    expected = in_chat(main_model, user("Hi"), 30, 6)
    ids = main_model.template.encode(user("Hi"))
    assert expected == alone(main_model, ids, 30, 6, **RECOMMENDED) != alone(main_model, ids, 30, 6)
    assert client.chat.completions.create(**ask, max_tokens=30).choices[0].message.content == expected
    neutral = {"temperature": 1, "top_p": 1, "extra_body": {"top_k": 0, "repetition_penalty": 1}}
    found = client.chat.completions.create(**ask, max_tokens=30, **neutral)
    assert found.choices[0].message.content == alone(main_model, ids, 30, 6)
    body = {"model": "tiny", "input": "Hi", "seed": 6, "max_output_tokens": 30}
    told = http.post("/v1/responses", json=body).json()
    assert told["output"][0]["content"][0]["text"] == expected
    assert (told["temperature"], told["top_p"]) == (0.9, 0.97)
    body = {**ask, "stream": False, "options": {"num_predict": 30, "seed": 6}}
    assert http.post("/api/chat", json=body).json()["message"]["content"] == expected
    found = client.completions.create(model="tiny", prompt="Once", seed=6, max_tokens=30)
    assert found.choices[0].text == alone(main_model, main_model.tokenizer.encode("Once").ids, 30, 6)
    assert http.get("/v1/models/tiny").json()["meta"]["default_sampling"] == main_model.sampling
    assert "repeat_penalty 1.1" in http.post("/api/show", json={"model": "tiny"}).json()["parameters"]
    usual = http.get("/v1/models/other").json()["meta"]["default_sampling"]
    assert (usual["temperature"], usual["top_p"]) == (0.7, 0.95)


def test_responses(client, main_model: Served) -> None:
    settings = {"model": "tiny", "input": user("Good morning"), "instructions": "Be kind.", "max_output_tokens": 12,
                "temperature": 0}  # fmt: skip
    whole = client.responses.create(**settings)
    ids = main_model.template.encode([{"role": "system", "content": "Be kind."}, *user("Good morning")])
    assert whole.output_text == alone(main_model, ids, 12, 0, temperature=0)
    events = list(client.responses.create(**settings, stream=True))
    assert "".join(each.delta for each in events if each.type == "response.output_text.delta") == whole.output_text
    assert events[0].type == "response.created"
    assert events[-1].response.output_text == whole.output_text
    assert events[-1].response.usage.input_tokens == len(ids)


def test_ollama(http, main_model: Served) -> None:
    assert http.get("/").text == "minhub is running"
    assert list(http.get("/api/tags").json()) == ["models"]
    [first, _] = http.get("/api/tags").json()["models"]
    assert first["name"] == "tiny:latest"
    assert first["size"] > 0
    assert first["details"]["quantization_level"] == "F32"
    assert http.get("/api/version").json()["version"]
    assert len(http.get("/api/ps").json()["models"]) == 2
    for name in ("name", "model"):
        assert http.post("/api/show", json={name: "tiny:latest"}).json()["template"] == TEMPLATE
    ask = {"model": "tiny", "messages": user("Hi"), "options": {"seed": 4, "num_predict": 9, "temperature": 0.7}}
    plain = http.post("/api/chat", json={**ask, "stream": False})
    assert "content-length" in plain.headers
    wanted = in_chat(main_model, user("Hi"), 9, 4, temperature=0.7)
    assert plain.json()["message"]["content"] == wanted
    streamed = http.post("/api/chat", json=ask)
    assert streamed.headers["transfer-encoding"] == "chunked"
    lines = [json.loads(line) for line in streamed.text.splitlines()]
    assert "".join(line["message"]["content"] for line in lines) == wanted
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert (lines[-1]["eval_count"], lines[-1]["done_reason"]) == (9, "length")
    # As ollamar calls it: what it does not use is empty.
    made = http.post("/api/generate", json={
        "model": "tiny", "prompt": "Once", "suffix": "", "images": "", "system": "", "template": "", "context": [],
        "format": [], "raw": True, "keep_alive": "5m", "stream": False, "options": {"seed": 4, "num_predict": 9},
    }).json()  # fmt: skip
    ids = main_model.tokenizer.encode("Once").ids
    assert made["response"] == alone(main_model, ids, 9, 4, **RECOMMENDED)
    assert http.post("/api/generate", json={"model": "tiny"}).json()["done_reason"] == "load"
    refused = http.post("/api/chat", json={"model": "nobody", "messages": user("Hi")})
    assert (refused.status_code, list(refused.json())) == (404, ["error"])


def test_a_quantized_model_tells_all_its_weights(main_model: Served, folder: Path) -> None:
    plain = ollama.details(main_model)
    for kind, level in (("int8", "Q8_0"), ("nf4", "Q4_0")):
        found = replace(main_model, model=from_pretrained(folder, quantize=kind))
        assert found.parameters == main_model.parameters == sum(p.numel() for p in main_model.model.parameters())
        assert ollama.details(found) == {**plain, "quantization_level": level}


def test_tokens_and_metrics(http, main_model: Served) -> None:
    text = "Hello, wörld"
    tokens = http.post("/tokenize", json={"content": text}).json()["tokens"]
    assert tokens == main_model.tokenizer.encode(text).ids
    assert http.post("/detokenize", json={"tokens": tokens}).json()["content"] == text
    pieces = http.post("/tokenize", json={"content": "Hello you", "with_pieces": True}).json()["tokens"]
    assert "".join(piece["piece"] for piece in pieces) == "Hello you"
    prompt = http.post("/apply-template", json={"messages": user("Hi")}).json()["prompt"]
    assert prompt == "<user>Hi\n<assistant>"
    more = {"messages": user("Hi"), "chat_template_kwargs": {"mood": "glad"}, "reasoning_effort": "low"}
    assert http.post("/apply-template", json=more).json()["prompt"] == "<user>Hi\n<gladlow><assistant>"
    more |= {"max_tokens": 2, "stream": False}
    told = http.post("/v1/chat/completions", json=more).json()["usage"]["prompt_tokens"]
    assert told == len(main_model.template.encode(user("Hi"), mood="glad", reasoning_effort="low"))
    assert http.get("/health").json() == {"status": "ok"}
    text = http.get("/metrics").text
    assert 'minhub_requests_total{path="/health",status="200"}' in text
    assert 'minhub_generated_tokens_total{model="tiny"}' in text


WRONG = [None, True, -1, 2**70, 0.5, "x", "", [], [1], [None], {}, {"a": 1}, "\ud800", [["x"]], [[2**40]]]
FIELDS = {
    "/v1/chat/completions": ["model", "messages", "temperature", "top_p", "top_k", "seed", "stop", "n", "max_tokens",
                             "max_completion_tokens", "logprobs", "top_logprobs", "stream", "stream_options", "tools",
                             "response_format", "repetition_penalty", "presence_penalty", "logit_bias",
                             "chat_template_kwargs", "reasoning_effort", "continue_final_message"],
    "/v1/completions": ["prompt", "echo", "logprobs", "n", "best_of", "max_tokens", "suffix", "stop", "stream", "seed"],
    "/v1/responses": ["input", "instructions", "text", "max_output_tokens", "stream", "tools"],
    "/api/chat": ["model", "messages", "options", "stream", "format", "tools"],
    "/api/generate": ["model", "prompt", "system", "raw", "options", "images", "context", "stream"],
    "/api/show": ["model", "name"],
    "/tokenize": ["content", "with_pieces"],
    "/detokenize": ["tokens"],
    "/apply-template": ["messages"],
}  # fmt: skip


def short(path: str) -> dict[str, object]:
    """A body that is right for a path, and whose reply is short."""
    body = {"model": "tiny", "messages": user("Hi"), "prompt": "Hi", "input": user("Hi"), "content": "Hi",
            "tokens": [1], "max_tokens": 2, "max_completion_tokens": 2, "max_output_tokens": 2,
            "options": {"num_predict": 2}, "n": 1}  # fmt: skip
    if path.endswith("/responses"):
        del body["prompt"]  # there, a stored one
    return body


@pytest.mark.parametrize("path", FIELDS)
def test_wrong_types_for_every_field(http, path: str) -> None:
    good = short(path)
    assert http.post(path, json=good).status_code == 200
    bodies = [{**good, name: value} for name in FIELDS[path] for value in WRONG]
    bodies += [{**good, "messages": [message], "input": [message]} for message in (
        *WRONG, {"role": "nobody", "content": ""}, {"role": 1}, {"role": "user", "content": 3},
        {"role": "user", "content": [{"type": "image_url"}]}, {"role": "user", "content": [3]},
        {"role": "assistant", "tool_calls": [{}]},
    )]  # fmt: skip
    bodies += [{**good, "options": {"num_predict": 2, name: value}}
               for value in WRONG for name in ("temperature", "num_predict", "stop")]  # fmt: skip
    refused = 0
    for body in bodies:
        found = http.post(path, content=json.dumps(body).encode())
        assert found.status_code in (200, 400, 404), (body, found.text)
        if found.status_code != 200:
            refused += 1
            error = found.json()["error"]
            message = error if path.startswith("/api/") else error["message"]
            assert message
            assert "Traceback" not in message
    assert refused >= len(FIELDS[path])


SCHEMA = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}
MORE: dict[str, object] = {
    "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "stream_options": {},
    "chat_template_kwargs": {"mood": "glad"}, "format": SCHEMA, "text": {"format": {"type": "json_object"}},
    "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
}  # fmt: skip


def changed(body: dict, where: str, name: str, value: object) -> dict:
    """A body with another value of a field, whose place is as errors name it: `messages[0].content[0]`."""
    found = inner = copy.deepcopy(body)
    for key, place in re.findall(r"(\w+)|\[(\d+)\]", where):
        inner = inner[int(place)] if place else inner.setdefault(key, {})
    inner[name] = value
    return found


@pytest.mark.parametrize("path", [*POSTS, *(f"/api{path}" for path in OLLAMA_POSTS)])
def test_every_field_that_is_read(http, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server itself tells which they are, also within other fields: so none is forgotten."""
    read: dict[tuple[str, str], None] = {}
    get = Fields.get
    monkeypatch.setattr(Fields, "get", lambda self, name: (read.setdefault((self.where, name)), get(self, name))[1])
    listed = {("", name) for name in FIELDS.get(path, FIELDS.get(f"/v1{path}", ()))}
    tried: set[tuple[str, str]] = set()
    for good in (short(path), short(path) | MORE):
        assert http.post(path, json=good).status_code == 200
        while todo := [field for field in read if field not in tried | listed]:
            for where, name in todo:
                tried.add((where, name))
                for value in WRONG:
                    body = changed(good, where, name, value)
                    found = http.post(path, content=json.dumps(body).encode())
                    assert found.status_code in (200, 400, 404), (body, found.text)
                    if found.status_code != 200:
                        assert "Traceback" not in json.dumps(found.json()["error"])
    assert http.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        (b"", 400, "not JSON"),
        (b"{", 400, "not JSON"),
        (b"\xff{}", 400, "not UTF-8"),
        (b"[]", 400, "must be a JSON object"),
        (b'{"messages": [{"role": "user", "content": NaN}]}', 400, "NaN"),
        (b"[" * 90_000, 400, "not JSON"),
        (b'{"seed": 1' + b"0" * 5000 + b"}", 400, "not JSON"),
        (b'{"messages": "' + b"x" * 100_000 + b'"}', 413, "more than 100,000 bytes"),
        (b'{"chat_template_kwargs": {"a": ' + b"[" * 900 + b"]" * 900 + b"}}", 400, "messages must be a list"),
        (b'{"messages": [{"role": "user", "content": "' + b"word " * 15_000 + b'"}]}', 400, "shorten"),
        (b'{"messages": [{"role": "user", "content": "refuse me"}]}', 400, "no thanks"),
        (
            b'{"messages": [{"role": "user", "content": "Hi"}], "tools": [{"type": "function"}]}',
            400,
            "tools is not supp",
        ),
        (b'{"messages": [{"role": "user", "content": "Hi"}], "model": "none"}', 404, "tiny, other"),
        (
            b'{"messages": [{"role": "user", "content": "Hi"}], "chat_template_kwargs": {"tools": []}}',
            400,
            "have tools",
        ),
        (b'{"messages": [{"role": "user", "content": "Hi"}], "frequency_penalty": 1}', 400, "frequency_penalty"),
        (
            b'{"messages": [{"role": "user", "content": "Hi"}], "repetition_penalty": 1e-300}',
            400,
            "repetition_penalty must be between 0.01 and 100 (1 has no effect), not 1e-300",
        ),
        (
            b'{"messages": [{"role": "user", "content": "Hi"}], "temperature": -1}',
            400,
            "temperature must be 0 (greedy)",
        ),
        (b'{"messages": [{"role": "user", "content": "Hi"}], "top_p": 1.5}', 400, "top_p must be above 0 and at most"),
        (
            b'{"messages": [{"role": "user", "content": "Hi"}], "stop": "' + b"x" * 1001 + b'"}',
            400,
            "a stop string can have at most 1,000 characters, not 1,001",
        ),
        (
            b'{"messages": [{"role": "user", "content": "Hi"}], "stop": ["x"' + b', "x"' * 64 + b"]}",
            400,
            "stop must be a string or a list of at most 64 strings",
        ),
    ],
)
def test_bad_bodies(http, body: bytes, status: int, told: str) -> None:
    found = http.post("/v1/chat/completions", content=body)
    assert found.status_code == status
    assert told in found.json()["error"]["message"]
    assert set(found.json()["error"]) == {"message", "type", "param", "code"}


@pytest.fixture
def closed_gate(main_model: Served):
    """An event that all threads for texts wait for."""
    gate = threading.Event()
    started = threading.Barrier(3)
    for _ in range(2):
        main_model.texts._pool.submit(lambda: (started.wait(), gate.wait()))
    started.wait()
    yield gate
    gate.set()


WORDS = "word " * 15_000


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/tokenize", {"content": WORDS}, "content has 75,000 characters, and 256 tokens have at most"),
        ("/v1/completions", {"prompt": WORDS}, "prompt has 75,000 characters"),
        ("/v1/completions", {"prompt": [1] * 257}, "the prompt has 257 tokens, and prompt and reply together"),
        ("/v1/completions", {"prompt": ["x"] * 23}, "23 prompts, 1 of each, are too many: at most 22 in all"),
        ("/v1/completions", {"prompt": ["x"] * 2, "n": 12}, "2 prompts, 12 of each, are too many: at most 22"),
        ("/v1/completions", {"prompt": ["x"] * 2, "max_tokens": 0}, "max_tokens must be 1 or more"),
        ("/v1/chat/completions", {"messages": user(WORDS)}, "messages has 75,000 characters"),
        ("/v1/chat/completions", {"messages": user("Hi") * 257}, "messages has 257 elements"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": ["x"] * 257}]}, "has 257 elements"),
        ("/v1/responses", {"input": WORDS}, "messages has 75,000 characters"),
        ("/api/chat", {"model": "tiny", "messages": user(WORDS)}, "messages has 75,000 characters"),
        ("/api/generate", {"model": "tiny", "prompt": WORDS, "raw": True}, "prompt has 75,000 characters"),
        ("/detokenize", {"tokens": [1] * 257}, "the prompt has 257 tokens"),
        ("/apply-template", {"messages": user(WORDS)}, "messages has 75,000 characters"),
    ],
)  # fmt: skip
def test_what_cannot_fit_is_refused_before_it_is_encoded(
    http, closed_gate: threading.Event, path: str, body: dict, message: str
) -> None:
    """The gate is closed all the while: a text that is encoded gets no answer."""
    found = http.post(path, json=body, timeout=20)
    assert found.status_code == 400
    error = found.json()["error"]
    assert message in (error if path.startswith("/api/") else error["message"])


def test_other_clients_are_served_while_texts_are_encoded(http, main_model: Served, closed_gate) -> None:
    with ThreadPoolExecutor(4) as pool:
        bodies = {"/tokenize": {"content": "Hi"}, "/v1/completions": {"prompt": "Hi", "max_tokens": 2},
                  "/v1/chat/completions": {"messages": user("Hi"), "max_tokens": 2}}  # fmt: skip
        pending = [pool.submit(http.post, path, json=body) for path, body in bodies.items()]
        wait(lambda: main_model.texts._pool._work_queue.qsize() == 3)
        assert http.get("/health", timeout=20).status_code == 200
        assert http.post("/v1/completions", json={"prompt": [1, 2], "max_tokens": 2}, timeout=20).status_code == 200
        assert not any(each.done() for each in pending)
        closed_gate.set()
        assert [each.result().status_code for each in pending] == [200] * 3


def test_a_full_queue_of_texts(http, main_model: Served, closed_gate, monkeypatch) -> None:
    monkeypatch.setattr(main_model.texts, "_free", 1)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(http.post, "/tokenize", json={"content": "Hi"})
        wait(lambda: main_model.texts._free == 0)
        found = http.post("/tokenize", json={"content": "Hi"}, timeout=20)
        assert (found.status_code, found.headers["Retry-After"]) == (429, "2")
        closed_gate.set()
        assert first.result().status_code == 200
    assert http.post("/tokenize", json={"content": "Hi"}).status_code == 200


def test_other_paths_and_methods(http) -> None:
    for path in ("/nowhere", "/v1/chat/completion", "/v1/%1b%5b2J" + "x" * 3000):
        for method in ("GET", "POST"):
            found = http.request(method, path)
            assert found.status_code == 404
            error = found.json()["error"]
            assert (error["type"], error["code"]) == ("not_found_error", "unknown_url")
            assert "GET /v1/models, " in error["message"]
            assert "POST /v1/chat/completions, " in error["message"]
            assert error["message"].isprintable()
            assert len(error["message"]) < 800
    message = http.post("/api/nothing").json()["error"]
    assert message.startswith("there is no path /api/nothing; available: GET /api/tags, ")
    assert "POST /api/chat, " in message
    for method, path, allowed in (("GET", "/v1/chat/completions", "POST"), ("POST", "/health", "GET, HEAD")):
        found = http.request(method, path)
        assert (found.status_code, found.json()["error"]["code"]) == (405, "method_not_allowed")
        assert found.json()["error"]["message"] == f"{path} does not support {method}: use {allowed}"
    assert http.get("/api/chat").json()["error"] == "/api/chat does not support GET: use POST"
    lenient = {
        "messages": user("Hi"),
        "max_tokens": 2,
        "tools": [],
        "stream.1": True,
        "user": "me",
        "anything": {"a": []},
    }
    found = http.post("/chat/completions", content=json.dumps(lenient), headers={"Authorization": "Bearer"})
    assert found.status_code == 200


def test_who_may_call(main_model: Served) -> None:
    server = Server(Models([main_model]), key="secret", origins=["https://good.example"])

    def status(path: str = "/v1/models", **headers: str) -> int:
        try:
            server.check(path, Headers({"host": "127.0.0.1:1", **headers}))
        except Exception as refused:
            return refused.status
        return 200

    key = {"authorization": "Bearer secret"}
    assert status(**key) == status(**{"x-api-key": "secret"}) == 200
    for right in ("bearer secret", "BEARER secret", "Bearer  secret"):
        assert status(authorization=right) == 200
    for wrong in ("", "Bearer", "bearer", "Bearersecret", "Bearer other", "Basic secret", "Bearer sécret"):
        assert status(authorization=wrong) == 401
    assert status("/health") == status("/") == 200
    for host in ("localhost", "[::1]:80", "127.9.9.9:1", "a.localhost"):
        assert status(**key, host=host) == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "", "[", "10.0.0.1"):
        assert status(**key, host=host) == 403
    assert status(**key, origin="http://127.0.0.1:1") == status(**key, origin="https://good.example") == 200
    for origin in (
        "null",
        "http://evil.example",
        "http://127.0.0.1:2",
        "https://good.example.evil",
        "http://[",
        "http://[::1",
        "//",
        "",
    ):
        assert status(**key, origin=origin) == 403


def test_web_pages_elsewhere(address: str, http) -> None:
    for headers in (
        {"Origin": "http://evil.example"},
        {"Host": "evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
    ):
        found = http.post("/v1/chat/completions", json={"messages": user("Hi")}, headers=headers)
        assert found.status_code == 403
        assert "access-control-allow-origin" not in found.headers
    assert http.options("/v1/models", headers={"Origin": "http://evil.example"}).status_code == 403


def raw(address: str) -> socket.socket:
    host, port = address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def post(body: bytes, length: int | None = None) -> bytes:
    return (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (length or len(body)) + body
    )


LONG = json.dumps({"prompt": "Once upon a time", "max_tokens": 240, "ignore_eos": True}).encode()


def wait(condition) -> None:
    """Until it holds."""
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_a_client_that_goes_away_frees_its_row(address: str, main_model: Served, monkeypatch) -> None:
    engine = main_model.engine
    wait(lambda: engine.open == 0)
    step = engine._step
    made = []

    def slow(batch):
        time.sleep(0.01)
        made.append({row.key for row in batch.rows})
        return step(batch)

    monkeypatch.setattr(engine, "_step", slow)
    for streams in (False, True):
        body = json.dumps({**json.loads(LONG), "stream": streams}).encode()
        connection = raw(address)
        connection.sendall(post(body))
        wait(lambda: engine.running)
        before = engine.counts["cancelled"]
        [request] = engine.running.values()
        connection.close()
        wait(lambda: engine.open == 0 and not engine.running)  # it is told, and then it leaves
        assert engine.counts["cancelled"] == before + 1
        assert request.made < 240


def test_clients_that_send_half_or_do_not_read(address: str, client, main_model: Served) -> None:
    half_head, half_body, slow, silent, kept = (raw(address) for _ in range(5))
    half_head.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: local")
    half_body.sendall(post(b'{"prompt": "a', 500))
    slow.sendall(post(json.dumps({**json.loads(LONG), "stream": True, "logprobs": 20}).encode()))
    silent.sendall(b"\x00\xff\r\n\r\n")
    kept.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = b""
    while b'"ok"}' not in answer:
        answer += kept.recv(1000)
    kept.sendall(b"GET /health HTTP/1.1\r\nHo")
    reply = client.completions.create(model="tiny", prompt="Hello", max_tokens=5, seed=1)
    assert reply.choices[0].text == alone(main_model, main_model.tokenizer.encode("Hello").ids, 5, 1)
    assert b" 400 " in silent.recv(1000)
    assert b" 408 " in half_body.recv(1000)  # after `patience`
    assert half_head.recv(1000) == kept.recv(1000) == b""  # closed, likewise
    wait(lambda: main_model.engine.open == 0)  # who does not read holds no row
    for connection in (half_head, half_body, slow, silent, kept):
        connection.close()


def test_a_body_of_many_megabytes(address: str) -> None:
    connection = raw(address)
    connection.sendall(post(b"", 100 * 2**20))
    try:
        for _ in range(100):
            connection.sendall(b"x" * 2**20)
    except OSError:  # it has heard enough
        pass
    else:
        assert connection.recv(100).startswith(b"HTTP/1.1 413")
    connection.close()


def test_a_prefix_is_read_once(client, main_model: Served) -> None:
    system = [{"role": "system", "content": "A long introduction of many words. " * 6}]
    for n in range(3):
        messages = [*system, *user(f"Question {n}")]
        reply = client.chat.completions.create(model="tiny", messages=messages, seed=1, max_tokens=8)
        assert reply.choices[0].message.content == in_chat(main_model, messages, 8, 1)
        shared = len(main_model.template.encode(system)) - 10
        assert (reply.usage.prompt_tokens_details.cached_tokens > shared) == (n > 0)


class BrokenError(Exception):
    pass


def test_a_model_that_raises_harms_its_own_request_only(folder: Path) -> None:
    """Once while a prompt is read and once in the middle of a text; and logits that are NaN."""
    poison, nan = 7, 8

    def fail(_module, arguments, output):
        if (arguments[0] == poison).any():
            raise BrokenError
        return torch.where((arguments[0] == nan).unsqueeze(-1), torch.nan, output)

    tokenizer, model = read_tokenizer(folder), from_pretrained(folder)
    embedding = next(module for module in model.modules() if isinstance(module, torch.nn.Embedding))
    embedding.register_forward_hook(fail)
    engine = Engine(model, tokenizer, rows=6, max_length=CONTEXT)
    found = Served("fragile", model, tokenizer, chat_template_of(folder, tokenizer), engine, 60)
    ids = {name: tokenizer.encode(name).ids for name in ("one day", "a second text", "the third")}
    wanted = {name: generate(model, [text], 60, temperature=0, eos_id=None)[0] for name, text in ids.items()}
    models = Models([found])
    with Background(Server(models), grace=0.1) as address, httpx2.Client(base_url=address, timeout=60) as http:

        def ask(prompt: list[int]):
            return http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 60, "temperature": 0,
                                                      "ignore_eos": True})  # fmt: skip

        with ThreadPoolExecutor(6) as pool:
            good = {name: pool.submit(ask, text) for name, text in ids.items()}
            bad = [pool.submit(ask, prompt) for prompt in ([1, 2, poison, 3], [5, nan], [poison])]
            for name, future in good.items():
                assert future.result().json()["choices"][0]["text"] == "".join(
                    decode_stream(tokenizer, wanted[name], ids[name])
                )
            for future in bad:
                assert future.result().status_code == 500
            assert "BrokenError" in bad[0].result().json()["error"]["message"]
            assert "NaN" in bad[1].result().json()["error"]["message"]
        assert found.engine.counts["failed"] == 3
        assert http.get("/health").status_code == 200


def test_a_full_queue(folder: Path) -> None:
    found = served("busy", folder, rows=1, waiting=1)
    step = found.engine._step
    found.engine._step = lambda batch: time.sleep(0.01) or step(batch)
    with Background(Server(Models([found])), grace=0.1) as address, httpx2.Client(base_url=address, timeout=60) as http:
        with ThreadPoolExecutor(8) as pool:
            replies = list(pool.map(lambda _: http.post("/v1/completions", content=LONG), range(8)))
        statuses = sorted(reply.status_code for reply in replies)
        assert statuses == [200, 200, *[429] * 6]
        assert all(reply.headers["Retry-After"] for reply in replies if reply.status_code == 429)
        found.seconds = 0.05
        late = http.post("/v1/completions", content=LONG)
        assert (late.status_code, late.json()["error"]["code"]) == (503, "time")


def test_the_command(folder: Path, tmp_path: Path) -> None:
    """From its address to SIGTERM: a reply that is under way is told of the end, and nothing else is printed."""
    import openai

    command = [sys.executable, "-m", "minhub_py", "serve", str(folder), "--port", "0", "--api-key", "secret"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as server:
        address = server.stdout.readline().strip().rpartition(" ")[2]
        with openai.OpenAI(base_url=f"{address}/v1", api_key="secret", max_retries=0) as client:
            [model] = client.models.list()
            assert model.id == folder.name
            assert client.chat.completions.create(model=model.id, messages=user("Hi"), max_tokens=3).choices
            with pytest.raises(openai.AuthenticationError):
                client.with_options(api_key="wrong").models.list()
            stream = client.completions.create(model=model.id, prompt="Hi", max_tokens=200, stream=True)
            next(stream)
            server.send_signal(signal.SIGTERM)
            for _ in stream:  # it ends within the grace, as it is short
                pass
        _, errors = server.communicate(timeout=60)
    assert server.returncode in (-signal.SIGTERM, 128 + signal.SIGTERM)
    assert errors == ""


def test_a_reply_that_cannot_end_is_told_so(folder: Path) -> None:
    found = served("long", folder)
    step = found.engine._step
    found.engine._step = lambda batch: time.sleep(0.02) or step(batch)
    background = Background(Server(Models([found])), grace=0.0)
    with background as address, httpx2.Client(base_url=address, timeout=60) as http:
        body = {**json.loads(LONG), "stream": True}
        with http.stream("POST", "/v1/completions", json=body) as reply:
            lines = reply.iter_lines()
            next(lines)
            background.running.should_exit = True
            rest = [line for line in lines if line]
    assert "shutting down" in json.loads(rest[-2][6:])["error"]["message"]
    assert rest[-1] == "data: [DONE]"


def test_calls_that_are_wrong(tmp_path: Path, folder: Path) -> None:
    assert "--api-key" in failed("serve", str(folder), "--host", "0.0.0.0", status=2)
    assert "empty" in failed("serve", str(folder), "--api-key", "", status=2)
    refused = failed("serve", str(folder), "--context", "300", "--port", "0")
    assert "--context 300 exceeds the context length of" in refused
    assert "at most 256" in refused
    assert "same name" in failed("serve", str(folder), str(folder), "--port", "0")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert "--port" in failed("serve", str(folder), "--port", port)
    assert "--host" in failed("serve", str(folder), "--host", "999.1.1.1", "--api-key", "x")
    assert Fields({"a": 3.0}).whole("a", 0, 5) == 3


def test_variables_of_a_chat_template_are_bounded() -> None:
    deep: list = []
    for _ in range(50_000):
        deep = [deep]
    for value, message in (("x" * 100_000, "has 100,00. characters: at most 100,000"), (deep, "nested too deeply")):
        with pytest.raises(RefusedError) as refused:
            variables_of(Fields({"chat_template_kwargs": {"a": value}}))
        assert re.search(message, refused.value.message)


def test_a_body_of_many_values_is_refused_before_it_is_parsed() -> None:
    for value in ([[1]] * 600_000, {str(number): 1 for number in range(300_000)}):
        with pytest.raises(RefusedError, match="too many elements: at most 500,000") as refused:
            Fields.parse(json.dumps({"a": value}).encode())
        assert refused.value.status == 413


PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"},
                                           "kind": {"enum": ["cat", "dög"]}, "loud": {"type": "boolean"}},
          "required": ["name", "age", "kind", "loud"], "additionalProperties": False}  # fmt: skip
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}


def is_person(text: str) -> bool:
    found = json.loads(text)
    return (
        list(found) == ["name", "age", "kind", "loud"]
        and isinstance(found["name"], str)
        and type(found["age"]) is int
        and found["kind"] in ("cat", "dög")
        and type(found["loud"]) is bool
    )


def test_json_of_a_schema(client, http, main_model: Served) -> None:
    """A model of random weights cannot but write it, in all faces, streamed or not; the rows beside it are as ever."""
    ask = {"model": "tiny", "messages": user("Who?"), "max_tokens": 200, "temperature": 1.3}

    def plain(seed: int) -> bool:
        text = client.chat.completions.create(**{**ask, "max_tokens": 60}, seed=seed).choices[0].message.content
        return text == in_chat(main_model, ask["messages"], 60, seed, temperature=1.3)

    def formed(seed: int) -> str:
        reply = client.chat.completions.create(**ask, seed=seed, response_format=FORMAT, logprobs=True, n=2)
        for choice in reply.choices:
            assert choice.finish_reason == "stop", choice
            assert is_person(choice.message.content)
            assert all(-100 < token.logprob < 0 for token in choice.logprobs.content)
        stream = client.chat.completions.create(**ask, seed=seed + 1, response_format=FORMAT, stream=True)
        text = "".join(part.choices[0].delta.content or "" for part in stream)
        assert text == reply.choices[1].message.content
        return reply.choices[0].message.content

    with ThreadPoolExecutor(8) as pool:
        others = [pool.submit(plain, seed) for seed in range(4)]
        texts = list(pool.map(formed, range(4)))
        assert all(each.result() for each in others)
    assert len(set(texts)) == 4
    assert texts == [formed(seed) for seed in range(4)]

    options = {"seed": 2, "num_predict": 200, "temperature": 1.3}
    for path, more in (("chat", {"messages": user("Who?")}), ("generate", {"prompt": "Who?"})):
        body = {"model": "tiny", "stream": False, "options": options, "format": PERSON, **more}
        found = http.post(f"/api/{path}", json=body).json()
        assert is_person(found["message"]["content"] if path == "chat" else found["response"])
    wanted = {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}
    found = client.responses.create(model="tiny", input="Who?", max_output_tokens=200, text={"format": wanted})
    assert is_person(found.output_text)
    found = client.completions.create(
        model="tiny", prompt="Who?", max_tokens=200, extra_body={"response_format": FORMAT}
    )
    assert is_person(found.choices[0].text)
    cut = client.chat.completions.create(**{**ask, "max_tokens": 5}, response_format=FORMAT)
    assert cut.choices[0].finish_reason == "length"


def test_json_of_any_kind(client, http) -> None:
    ask = {"model": "tiny", "messages": user("Who?"), "max_tokens": 60}
    for form in ({"type": "json_object"}, {"type": "json_object", "schema": {"type": "object"}}):
        text = client.chat.completions.create(**ask, seed=3, response_format=form).choices[0].message.content
        assert text.startswith("{")
    body = {"model": "tiny", "messages": user("Who?"), "format": "json", "stream": False, "options": {"num_predict": 9}}
    assert http.post("/api/chat", json=body).json()["message"]["content"].startswith("{")
    text = client.chat.completions.create(**ask, response_format={"type": "text"}, seed=1).choices[0].message.content
    assert not text.startswith("{")


@pytest.mark.parametrize(
    ("form", "told"),
    [
        ({"type": "sound"}, "must be text, json_object or json_schema"),
        ({"type": "json_schema"}, "has no schema"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, "has no schema"),
        ({"type": "json_object", "schema": 123}, "must be a JSON schema"),
        ({"type": "json_object", "schema": {"type": 123}}, "type must be a string"),
        ({"type": "json_object", "schema": {"type": "hiccup"}}, "hiccup"),
        ({"type": "json_object", "schema": {"not": {"type": "string"}}}, "not"),
        ({"type": "json_object", "schema": {"$ref": "http://127.0.0.1:9/person"}}, "not fetch"),
        ({"type": "json_object", "schema": {"type": "string", "pattern": "("}}, "regex"),
        ({"type": "json_object", "schema": {"const": "x" * 20_000_000}}, "bytes"),
    ],
)
def test_formats_that_are_wrong(http, form: dict, told: str) -> None:
    found = http.post("/v1/chat/completions", json={"messages": user("Hi"), "response_format": form})
    assert found.status_code in (400, 413)
    assert told in found.json()["error"]["message"]


def wide(count: int) -> dict:
    """A schema that is too complex after the first token."""
    return {"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(count)}}


def test_errors_of_requests_do_not_disturb_a_stream(address: str, http, main_model: Served, capfd, monkeypatch) -> None:
    """A reply that streams is bitwise identical to its single run, and the engine's batch is never rebuilt."""
    engine = main_model.engine
    wait(lambda: engine.open == 0)
    step = engine._step
    monkeypatch.setattr(engine, "_step", lambda batch: time.sleep(0.01) or step(batch))
    failed_before, reading = engine.counts["failed"], []
    prompts = ["Once upon a time", "In the beginning", "A third text"]
    ids = [main_model.tokenizer.encode(prompt).ids for prompt in prompts]

    def stream(n: int) -> list[tuple[str, float]]:
        body = {"model": "tiny", "prompt": prompts[n], "max_tokens": 200, "ignore_eos": True, "seed": n,
                "stream": True, "logprobs": 1}  # fmt: skip
        tokens: list[tuple[str, float]] = []
        with http.stream("POST", "/v1/completions", json=body) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    told = json.loads(line[6:])["choices"][0]["logprobs"]
                    tokens += zip(told["tokens"], told["token_logprobs"], strict=True)
                    reading.append(n)
        return tokens

    def ask(more: dict) -> None:
        found = http.post("/v1/chat/completions", json={"messages": user("Hi"), "max_tokens": 50, **more})
        assert (found.status_code, len(found.json()["error"]["message"]) < 300) == (400, True), found.text[:500]

    schemas = [{"$ref": "#"}, {"anyOf": [{"$ref": "#"}]}, {"enum": []}, wide(700), wide(3000)]
    bad = [{"response_format": {"type": "json_object", "schema": schema}} for schema in schemas]
    bad += [{"repetition_penalty": 1e-300}, {"temperature": -1}, {"stop": "x" * 50_000}, {"stop": ["a"] * 1000}]
    expected = [generate(main_model.model, [ids[n]], 200, seed=n, eos_id=None)[0] for n in range(3)]
    with ThreadPoolExecutor(7) as pool:
        streams = [pool.submit(stream, n) for n in range(3)]
        wait(lambda: len(set(reading)) == 3)
        for _ in range(2):
            list(pool.map(ask, bad))
        for n, future in enumerate(streams):
            scores = score(main_model.model, [[*ids[n], *expected[n]]])[0][len(ids[n]) - 1 :]
            texts, logprobs = zip(*future.result(), strict=True)
            assert torch.equal(torch.tensor(logprobs), scores)
            assert list(texts) == list(token_texts(main_model.tokenizer, expected[n]))
    assert engine.counts["failed"] == failed_before + 4  # within the batch: the two wide schemas, twice
    assert "one by one" not in capfd.readouterr().err


def test_a_schema_in_a_batch_that_starts_again(folder: Path) -> None:
    """After another request's failure, a row goes on within its schema."""
    model = from_pretrained(folder)
    poison = 7

    def fail(_module, arguments, output):
        if (arguments[0] == poison).any():
            raise BrokenError
        return output

    next(each for each in model.modules() if isinstance(each, torch.nn.Embedding)).register_forward_hook(fail)
    tokenizer = read_tokenizer(folder)
    engine = Engine(model, tokenizer, rows=4, max_length=CONTEXT)
    found = Served("fragile", model, tokenizer, chat_template_of(folder, tokenizer), engine, 60)
    with Background(Server(Models([found])), grace=0.1) as address, httpx2.Client(base_url=address, timeout=60) as http:
        body = {"prompt": "Who?", "max_tokens": 200, "seed": 1, "response_format": FORMAT}
        alone = http.post("/v1/completions", json=body).json()["choices"][0]["text"]
        with ThreadPoolExecutor(2) as pool:
            whole = pool.submit(http.post, "/v1/completions", json=body)
            wait(lambda: any(request.made > 3 for request in list(engine.running.values())) or whole.done())
            assert http.post("/v1/completions", json={"prompt": [1, poison]}).status_code == 500
            text = whole.result().json()["choices"][0]["text"]
    assert text == alone
    assert is_person(text)
