"""`minhub serve`: a real server on loopback with real clients, and invalid requests."""

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
from minhub_py.serve.app import OLLAMA_POSTS, POSTS
from minhub_py.serve.engine import Delta, Engine, Token, token_text
from minhub_py.serve.models import Models, ServedModel, parse_variables
from minhub_py.serve.openai import DeltaSplitter
from minhub_py.serve.run import BackgroundServer
from minhub_py.serve.server import Server
from minhub_py.serve.validation import Fields, RequestError

CONTEXT, BATCH_SIZE, QUEUE_SIZE = 256, 4, 40
RECOMMENDED = {"temperature": 0.9, "top_k": 200, "top_p": 0.97, "repetition_penalty": 1.1}
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if messages[-1].content == 'refuse me' %}{{ raise_exception('no thanks') }}{% endif %}"
    "{% if mood %}<{{ mood }}{{ reasoning_effort }}>{% endif %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def large(model):
    """The model with weights so large that a wrong key or position changes the tokens."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * (0.3 if parameter.dim() == 1 else parameter.shape[1] ** -0.5))
    return model


def write_checkpoint(folder: Path, bpe_folder: Path, model) -> Path:
    save_pretrained(model, folder, read_tokenizer(bpe_folder))
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder


def served(name: str, folder: Path, **settings) -> ServedModel:
    model, tokenizer = from_pretrained(folder), read_tokenizer(folder)
    engine = Engine(
        model, tokenizer, **{"batch_size": BATCH_SIZE, "max_length": CONTEXT, "queue_size": QUEUE_SIZE, **settings}
    )
    return ServedModel(name, model, tokenizer, chat_template_of(folder, tokenizer), engine, 60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, bpe_folder: Path) -> Path:
    torch.manual_seed(0)
    vocab_size = read_tokenizer(bpe_folder).get_vocab_size()
    model = gpt2(
        vocab_size=vocab_size, n_embd=32, n_layer=2, n_head=4, n_positions=CONTEXT, eos_token_id=vocab_size - 1
    )
    path = write_checkpoint(tmp_path_factory.mktemp("serve"), bpe_folder, large(model))
    (path / "generation_config.json").write_text(json.dumps(RECOMMENDED), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory: pytest.TempPathFactory, bpe_folder: Path) -> Path:
    torch.manual_seed(1)
    vocab_size = read_tokenizer(bpe_folder).get_vocab_size()
    return write_checkpoint(
        tmp_path_factory.mktemp("serve"), bpe_folder, lstm(vocab_size=vocab_size, hidden_size=16, embedding_size=16)
    )


@pytest.fixture(scope="module")
def main_model(folder: Path):
    model = served("tiny", folder)
    yield model
    model.engine.close()


@pytest.fixture(scope="module")
def address(main_model: ServedModel, recurrent: Path):
    """A server with two models, in a thread."""
    models = Models([main_model, served("other", recurrent)])
    with BackgroundServer(Server(models, max_body=100_000, read_timeout=0.3), grace=0.2) as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str):
    import openai  # takes a second to import

    with openai.OpenAI(base_url=f"{address}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def http(address: str):
    with httpx2.Client(base_url=address, timeout=60) as http:
        yield http


def alone(served: ServedModel, ids: list[int], count: int, seed: int, **settings) -> str:
    """The text that `generate` returns for a prompt."""
    [new] = generate(served.model, [ids], count, seed=seed, **settings)
    if new[-1] in served.end_ids:
        new.pop()
    return "".join(decode_stream(served.tokenizer, new, ids))  # without an incomplete character at the end


def in_chat(served: ServedModel, messages: list[dict[str, str]], count: int, seed: int, **settings) -> str:
    """The reply that `generate` returns for a conversation, with the model's default sampling settings."""
    return alone(served, served.template.encode(messages), count, seed, **{**served.sampling, **settings})


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_models_are_listed_at_all_paths(http, client) -> None:
    for path in ("/models", "/v1/models", "/v1/v1/models"):
        assert [entry["id"] for entry in http.get(path).json()["data"]] == ["tiny", "other"]
    assert [model.id for model in client.models.list()] == ["tiny", "other"]
    assert client.models.retrieve("other").id == "other"
    assert http.get("/v1/models/other").json()["meta"]["default_sampling"] == {
        "temperature": 0.7, "top_p": 0.95, "top_k": None, "repetition_penalty": 1.0
    }  # fmt: skip


def test_continue_final_message_generates_the_rest_of_a_reply(http, main_model: ServedModel) -> None:
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


def test_a_chat_completion_equals_generate(client, main_model: ServedModel) -> None:
    assert isinstance(runner_of(main_model.model), NativeRunner)
    messages = [{"role": "system", "content": "Be short."}, *user("Hello there")]
    ids = main_model.template.encode(messages)
    for parts in (False, True):
        sent = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages] if parts else messages
        reply = client.chat.completions.create(model="tiny", messages=sent, seed=3, temperature=0.8, max_tokens=20)
        assert reply.choices[0].message.content == in_chat(main_model, messages, 20, 3, temperature=0.8)
        assert reply.choices[0].finish_reason == "length"
        assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (len(ids), 20)


def test_concurrent_requests_match_single_runs(client, main_model: ServedModel) -> None:
    """Long and short, streamed and complete, with common prefixes; more than the batch size."""
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
        for _ in range(2):  # the second time from the prefix cache
            texts = list(pool.map(ask, range(16)))
            for n, text in enumerate(texts):
                settings = {"temperature": 0.8 + 0.02 * n, "top_p": 0.95}
                assert text == in_chat(main_model, user(prompts[n]), 5 + 3 * n, n, **settings)
    assert main_model.engine.counts["cached"] > main_model.engine.counts["prompt"] / 2


def test_a_stream_equals_the_complete_response(client, http, main_model: ServedModel) -> None:
    settings = {"model": "tiny", "messages": user("One two three"), "seed": 5, "max_tokens": 30}
    complete = client.chat.completions.create(**settings, logprobs=True, top_logprobs=3)
    parts = list(client.chat.completions.create(**settings, logprobs=True, top_logprobs=3, stream=True,
                                                stream_options={"include_usage": True}))  # fmt: skip
    assert parts[-1].choices == []
    assert parts[-1].usage.completion_tokens == complete.usage.completion_tokens == 30
    chunks = [part.choices[0] for part in parts[:-1]]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == complete.choices[0].message.content
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    streamed = [token for chunk in chunks if chunk.logprobs for token in chunk.logprobs.content]
    assert streamed == complete.choices[0].logprobs.content
    ids = main_model.template.encode(settings["messages"])
    [new] = generate(main_model.model, [ids], 30, seed=5, **main_model.sampling)
    scores = score(main_model.model, [[*ids, *new]])[0][len(ids) - 1 :]
    assert torch.equal(torch.tensor([token.logprob for token in streamed]), scores)
    for token in streamed:
        values = [top.logprob for top in token.top_logprobs]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
    # Without include_usage, the last chunk contains the usage.
    lines = http.post("/v1/chat/completions", json={**settings, "stream": True}).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    assert json.loads(lines[-3][6:])["usage"]["completion_tokens"] == 30


def test_deltas_never_equal_the_previous_text() -> None:
    """ellmer ignores such deltas."""
    for texts in (["ha", "ha", "haha"], ["a", "a", "aa"], ["a"], ["", "x", ""], ["ab", "c", "abc", "abcabc"]):
        splitter, sent, tokens = DeltaSplitter(), [], []
        for number, text in enumerate(texts):
            end = "stop" if number == len(texts) - 1 else None
            for part, part_tokens in splitter.add(Delta(text, (Token(number, text, None, ()),), end)):
                sent.append(part)
                tokens += part_tokens
        assert "".join(sent) == "".join(texts)
        assert [token.id for token in (*tokens, *splitter.tokens)] == list(range(len(texts)))
        for number, part in enumerate(sent):
            assert number == 0 or part != "".join(sent[:number])


def test_stop_strings_and_several_choices(client, main_model: ServedModel) -> None:
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
    assert [choice.message.content for choice in several.choices] == expected
    assert several.usage.completion_tokens == 120


def test_completions_echo_the_prompt_with_its_scores(client, main_model: ServedModel) -> None:
    """lm-eval requests the log-probability of each prompt token."""
    text = "To be or not to be, that is the question."
    ids = main_model.tokenizer.encode(text).ids
    scores = score(main_model.model, [ids])[0]
    for prompt in (text, ids):
        for count in (0, 1):
            response = client.completions.create(
                model="tiny", prompt=prompt, echo=True, logprobs=1, max_tokens=count, seed=1
            )
            logprobs = response.choices[0].logprobs
            assert logprobs.token_logprobs[0] is None
            assert torch.equal(torch.tensor(logprobs.token_logprobs[1 : len(ids)]), scores)
            assert len(logprobs.tokens) == len(ids) + count
            assert "".join(logprobs.tokens).startswith(text)
            assert response.choices[0].text.startswith(text)
            assert all(len(top) == 1 for top in logprobs.top_logprobs[1:])
    both = client.completions.create(model="tiny", prompt=[text, "Another"], max_tokens=6, seed=2, n=2)
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    assert both.choices[3].text == alone(main_model, main_model.tokenizer.encode("Another").ids, 6, 3)
    parts = list(client.completions.create(model="tiny", prompt=text, max_tokens=6, seed=2, stream=True))
    assert "".join(part.choices[0].text for part in parts) == both.choices[0].text
    assert parts[-1].choices[0].finish_reason == "length"


def test_chats_use_the_models_default_sampling(client, http, main_model: ServedModel) -> None:
    """In all APIs. Completions sample from the model's distribution, and settings of a request take precedence."""
    ask = {"model": "tiny", "seed": 6, "messages": user("Hi")}
    expected = in_chat(main_model, user("Hi"), 30, 6)
    ids = main_model.template.encode(user("Hi"))
    assert expected == alone(main_model, ids, 30, 6, **RECOMMENDED) != alone(main_model, ids, 30, 6)
    assert client.chat.completions.create(**ask, max_tokens=30).choices[0].message.content == expected
    neutral = {"temperature": 1, "top_p": 1, "extra_body": {"top_k": 0, "repetition_penalty": 1}}
    response = client.chat.completions.create(**ask, max_tokens=30, **neutral)
    assert response.choices[0].message.content == alone(main_model, ids, 30, 6)
    body = {"model": "tiny", "input": "Hi", "seed": 6, "max_output_tokens": 30}
    response = http.post("/v1/responses", json=body).json()
    assert response["output"][0]["content"][0]["text"] == expected
    assert (response["temperature"], response["top_p"]) == (0.9, 0.97)
    body = {**ask, "stream": False, "options": {"num_predict": 30, "seed": 6}}
    assert http.post("/api/chat", json=body).json()["message"]["content"] == expected
    response = client.completions.create(model="tiny", prompt="Once", seed=6, max_tokens=30)
    assert response.choices[0].text == alone(main_model, main_model.tokenizer.encode("Once").ids, 30, 6)
    assert http.get("/v1/models/tiny").json()["meta"]["default_sampling"] == main_model.sampling
    assert "repeat_penalty 1.1" in http.post("/api/show", json={"model": "tiny"}).json()["parameters"]
    defaults = http.get("/v1/models/other").json()["meta"]["default_sampling"]
    assert (defaults["temperature"], defaults["top_p"]) == (0.7, 0.95)


def test_responses_stream_the_complete_text(client, main_model: ServedModel) -> None:
    settings = {"model": "tiny", "input": user("Good morning"), "instructions": "Be kind.", "max_output_tokens": 12,
                "temperature": 0}  # fmt: skip
    complete = client.responses.create(**settings)
    ids = main_model.template.encode([{"role": "system", "content": "Be kind."}, *user("Good morning")])
    assert complete.output_text == alone(main_model, ids, 12, 0, temperature=0)
    events = list(client.responses.create(**settings, stream=True))
    assert (
        "".join(event.delta for event in events if event.type == "response.output_text.delta") == complete.output_text
    )
    assert events[0].type == "response.created"
    assert events[-1].response.output_text == complete.output_text
    assert events[-1].response.usage.input_tokens == len(ids)


def test_ollama_api(http, main_model: ServedModel) -> None:
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
    expected = in_chat(main_model, user("Hi"), 9, 4, temperature=0.7)
    assert plain.json()["message"]["content"] == expected
    streamed = http.post("/api/chat", json=ask)
    assert streamed.headers["transfer-encoding"] == "chunked"
    lines = [json.loads(line) for line in streamed.text.splitlines()]
    assert "".join(line["message"]["content"] for line in lines) == expected
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert (lines[-1]["eval_count"], lines[-1]["done_reason"]) == (9, "length")
    # ollamar sends empty values for unused fields.
    response = http.post("/api/generate", json={
        "model": "tiny", "prompt": "Once", "suffix": "", "images": "", "system": "", "template": "", "context": [],
        "format": [], "raw": True, "keep_alive": "5m", "stream": False, "options": {"seed": 4, "num_predict": 9},
    }).json()  # fmt: skip
    ids = main_model.tokenizer.encode("Once").ids
    assert response["response"] == alone(main_model, ids, 9, 4, **RECOMMENDED)
    assert http.post("/api/generate", json={"model": "tiny"}).json()["done_reason"] == "load"
    response = http.post("/api/chat", json={"model": "nobody", "messages": user("Hi")})
    assert (response.status_code, list(response.json())) == (404, ["error"])


def test_a_quantized_model_counts_all_parameters(main_model: ServedModel, folder: Path) -> None:
    plain = ollama.details(main_model)
    for kind, level in (("int8", "Q8_0"), ("nf4", "Q4_0")):
        quantized = replace(main_model, model=from_pretrained(folder, quantize=kind))
        assert quantized.parameters == main_model.parameters == sum(p.numel() for p in main_model.model.parameters())
        assert ollama.details(quantized) == {**plain, "quantization_level": level}


def test_tokenize_apply_template_and_metrics(http, main_model: ServedModel) -> None:
    text = "Hello, wörld"
    tokens = http.post("/tokenize", json={"content": text}).json()["tokens"]
    assert tokens == main_model.tokenizer.encode(text).ids
    assert http.post("/detokenize", json={"tokens": tokens}).json()["content"] == text
    pieces = http.post("/tokenize", json={"content": "Hello you", "with_pieces": True}).json()["tokens"]
    assert "".join(piece["piece"] for piece in pieces) == "Hello you"
    prompt = http.post("/apply-template", json={"messages": user("Hi")}).json()["prompt"]
    assert prompt == "<user>Hi\n<assistant>"
    body = {"messages": user("Hi"), "chat_template_kwargs": {"mood": "glad"}, "reasoning_effort": "low"}
    assert http.post("/apply-template", json=body).json()["prompt"] == "<user>Hi\n<gladlow><assistant>"
    body |= {"max_tokens": 2, "stream": False}
    count = http.post("/v1/chat/completions", json=body).json()["usage"]["prompt_tokens"]
    assert count == len(main_model.template.encode(user("Hi"), mood="glad", reasoning_effort="low"))
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
    """A valid body for a path, with a short reply."""
    body = {"model": "tiny", "messages": user("Hi"), "prompt": "Hi", "input": user("Hi"), "content": "Hi",
            "tokens": [1], "max_tokens": 2, "max_completion_tokens": 2, "max_output_tokens": 2,
            "options": {"num_predict": 2}, "n": 1}  # fmt: skip
    if path.endswith("/responses"):
        del body["prompt"]  # the ID of a stored prompt
    if "/embed" in path:
        body["input"] = "Hi"
    return body


@pytest.mark.parametrize("path", FIELDS)
def test_wrong_types_of_every_field_are_client_errors(http, path: str) -> None:
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
    rejected = 0
    for body in bodies:
        response = http.post(path, content=json.dumps(body).encode())
        assert response.status_code in (200, 400, 404), (body, response.text)
        if response.status_code != 200:
            rejected += 1
            error = response.json()["error"]
            message = error if path.startswith("/api/") else error["message"]
            assert message
            assert "Traceback" not in message
    assert rejected >= len(FIELDS[path])


SCHEMA = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}
NESTED: dict[str, object] = {
    "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "stream_options": {},
    "chat_template_kwargs": {"mood": "glad"}, "format": SCHEMA, "text": {"format": {"type": "json_object"}},
    "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
}  # fmt: skip


def changed(body: dict, field_path: str, name: str, value: object) -> dict:
    """A body with another value of a field. Its path has the notation of errors: `messages[0].content[0]`."""
    result = inner = copy.deepcopy(body)
    for key, index in re.findall(r"(\w+)|\[(\d+)\]", field_path):
        inner = inner[int(index)] if index else inner.setdefault(key, {})
    inner[name] = value
    return result


# test_embeddings.py does the same for reranking.
@pytest.mark.parametrize("path", [*sorted({*POSTS} - {"/rerank"}), *(f"/api{path}" for path in OLLAMA_POSTS)])
def test_wrong_types_of_every_field_that_the_server_reads_are_client_errors(
    http, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fields, including nested ones, are recorded while the server reads them, so that the list is complete."""
    read: dict[tuple[str, str], None] = {}
    get = Fields.get
    monkeypatch.setattr(Fields, "get", lambda self, name: (read.setdefault((self.path, name)), get(self, name))[1])
    listed = {("", name) for name in FIELDS.get(path, FIELDS.get(f"/v1{path}", ()))}
    tried: set[tuple[str, str]] = set()
    for good in (short(path), short(path) | NESTED):
        assert http.post(path, json=good).status_code == 200
        while untried := [field for field in read if field not in tried | listed]:
            for field_path, name in untried:
                tried.add((field_path, name))
                for value in WRONG:
                    body = changed(good, field_path, name, value)
                    response = http.post(path, content=json.dumps(body).encode())
                    assert response.status_code in (200, 400, 404), (body, response.text)
                    if response.status_code != 200:
                        assert "Traceback" not in json.dumps(response.json()["error"])
    assert http.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "message"),
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
            "must not contain tools",
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
def test_an_invalid_body_is_an_error_with_a_message(http, body: bytes, status: int, message: str) -> None:
    response = http.post("/v1/chat/completions", content=body)
    assert response.status_code == status
    assert message in response.json()["error"]["message"]
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@pytest.fixture
def closed_gate(main_model: ServedModel):
    """An event that all tokenization threads wait for."""
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
        ("/tokenize", {"content": WORDS}, "content has 75,000 characters, but 256 tokens have at most"),
        ("/v1/completions", {"prompt": WORDS}, "prompt has 75,000 characters"),
        ("/v1/completions", {"prompt": [1] * 257}, "the prompt has 257 tokens, but the context has 256 tokens"),
        ("/v1/completions", {"prompt": ["x"] * 23}, "23 prompts with n=1 are too many: at most 22 in total"),
        ("/v1/completions", {"prompt": ["x"] * 2, "n": 12}, "2 prompts with n=12 are too many: at most 22"),
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
def test_inputs_that_exceed_the_context_are_rejected_before_tokenization(
    http, closed_gate: threading.Event, path: str, body: dict, message: str
) -> None:
    """While the gate is closed, tokenization does not return."""
    response = http.post(path, json=body, timeout=20)
    assert response.status_code == 400
    error = response.json()["error"]
    assert message in (error if path.startswith("/api/") else error["message"])


def test_tokenization_does_not_delay_other_clients(http, main_model: ServedModel, closed_gate) -> None:
    with ThreadPoolExecutor(4) as pool:
        bodies = {"/tokenize": {"content": "Hi"}, "/v1/completions": {"prompt": "Hi", "max_tokens": 2},
                  "/v1/chat/completions": {"messages": user("Hi"), "max_tokens": 2}}  # fmt: skip
        pending = [pool.submit(http.post, path, json=body) for path, body in bodies.items()]
        wait(lambda: main_model.texts._pool._work_queue.qsize() == 3)
        assert http.get("/health", timeout=20).status_code == 200
        assert http.post("/v1/completions", json={"prompt": [1, 2], "max_tokens": 2}, timeout=20).status_code == 200
        assert not any(future.done() for future in pending)
        closed_gate.set()
        assert [future.result().status_code for future in pending] == [200] * 3


def test_a_full_tokenization_queue_is_status_429(http, main_model: ServedModel, closed_gate, monkeypatch) -> None:
    monkeypatch.setattr(main_model.texts, "_free", 1)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(http.post, "/tokenize", json={"content": "Hi"})
        wait(lambda: main_model.texts._free == 0)
        response = http.post("/tokenize", json={"content": "Hi"}, timeout=20)
        assert (response.status_code, response.headers["Retry-After"]) == (429, "2")
        closed_gate.set()
        assert first.result().status_code == 200
    assert http.post("/tokenize", json={"content": "Hi"}).status_code == 200


def test_unknown_paths_and_methods_list_the_available_ones(http) -> None:
    for path in ("/nowhere", "/v1/chat/completion", "/v1/%1b%5b2J" + "x" * 3000):
        for method in ("GET", "POST"):
            response = http.request(method, path)
            assert response.status_code == 404
            error = response.json()["error"]
            assert (error["type"], error["code"]) == ("not_found_error", "unknown_url")
            assert "GET /v1/models, " in error["message"]
            assert "POST /v1/chat/completions, " in error["message"]
            assert error["message"].isprintable()
            assert len(error["message"]) < 800
    message = http.post("/api/nothing").json()["error"]
    assert message.startswith("unknown path /api/nothing; available: GET /api/tags, ")
    assert "POST /api/chat, " in message
    for method, path, allowed in (("GET", "/v1/chat/completions", "POST"), ("POST", "/health", "GET, HEAD")):
        response = http.request(method, path)
        assert (response.status_code, response.json()["error"]["code"]) == (405, "method_not_allowed")
        assert response.json()["error"]["message"] == f"{path} does not support {method}: use {allowed}"
    assert http.get("/api/chat").json()["error"] == "/api/chat does not support GET: use POST"
    lenient = {
        "messages": user("Hi"),
        "max_tokens": 2,
        "tools": [],
        "stream.1": True,
        "user": "me",
        "anything": {"a": []},
    }
    response = http.post("/chat/completions", content=json.dumps(lenient), headers={"Authorization": "Bearer"})
    assert response.status_code == 200


def test_access_requires_the_key_a_local_host_and_an_allowed_origin(main_model: ServedModel) -> None:
    server = Server(Models([main_model]), key="secret", origins=["https://good.example"])

    def status(path: str = "/v1/models", **headers: str) -> int:
        try:
            server.check_access(path, Headers({"host": "127.0.0.1:1", **headers}))
        except RequestError as error:
            return error.status
        return 200

    key = {"authorization": "Bearer secret"}
    assert status(**key) == status(**{"x-api-key": "secret"}) == 200
    for valid in ("bearer secret", "BEARER secret", "Bearer  secret"):
        assert status(authorization=valid) == 200
    for invalid in ("", "Bearer", "bearer", "Bearersecret", "Bearer other", "Basic secret", "Bearer sécret"):
        assert status(authorization=invalid) == 401
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


def test_requests_of_other_web_pages_are_rejected(address: str, http) -> None:
    for headers in (
        {"Origin": "http://evil.example"},
        {"Host": "evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
    ):
        response = http.post("/v1/chat/completions", json={"messages": user("Hi")}, headers=headers)
        assert response.status_code == 403
        assert "access-control-allow-origin" not in response.headers
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
    """Wait until the condition holds."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_disconnect_cancels_the_request(address: str, main_model: ServedModel, monkeypatch) -> None:
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
    assert reply.choices[0].text == alone(main_model, main_model.tokenizer.encode("Hello").ids, 5, 1)
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


def test_a_common_prefix_is_cached(client, main_model: ServedModel) -> None:
    system = [{"role": "system", "content": "A long introduction of many words. " * 6}]
    for n in range(3):
        messages = [*system, *user(f"Question {n}")]
        reply = client.chat.completions.create(model="tiny", messages=messages, seed=1, max_tokens=8)
        assert reply.choices[0].message.content == in_chat(main_model, messages, 8, 1)
        shared = len(main_model.template.encode(system)) - 10
        assert (reply.usage.prompt_tokens_details.cached_tokens > shared) == (n > 0)


class BrokenError(Exception):
    pass


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
    fragile = ServedModel("fragile", model, tokenizer, chat_template_of(folder, tokenizer), engine, 60)
    ids = {name: tokenizer.encode(name).ids for name in ("one day", "a second text", "the third")}
    expected = {name: generate(model, [text], 60, temperature=0, eos_id=None)[0] for name, text in ids.items()}
    with (
        BackgroundServer(Server(Models([fragile])), grace=0.1) as address,
        httpx2.Client(base_url=address, timeout=60) as http,
    ):

        def ask(prompt: list[int]):
            return http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 60, "temperature": 0,
                                                      "ignore_eos": True})  # fmt: skip

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


def test_a_full_queue_is_status_429_and_a_timeout_503(folder: Path) -> None:
    busy = served("busy", folder, batch_size=1, queue_size=1)
    step = busy.engine._step
    busy.engine._step = lambda batch: time.sleep(0.01) or step(batch)
    with (
        BackgroundServer(Server(Models([busy])), grace=0.1) as address,
        httpx2.Client(base_url=address, timeout=60) as http,
    ):
        with ThreadPoolExecutor(8) as pool:
            replies = list(pool.map(lambda _: http.post("/v1/completions", content=LONG), range(8)))
        statuses = sorted(reply.status_code for reply in replies)
        assert statuses == [200, 200, *[429] * 6]
        assert all(reply.headers["Retry-After"] for reply in replies if reply.status_code == 429)
        busy.timeout = 0.05
        late = http.post("/v1/completions", content=LONG)
        assert (late.status_code, late.json()["error"]["code"]) == (503, "time")


def test_the_command_serves_until_sigterm(folder: Path, tmp_path: Path) -> None:
    """An unfinished reply completes within the grace period, and nothing is printed on standard error."""
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


def test_invalid_options_of_the_command(tmp_path: Path, folder: Path) -> None:
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


def test_an_integer_can_have_a_decimal_point() -> None:
    assert Fields({"a": 3.0}).integer("a", 0, 5) == 3


def test_variables_of_a_chat_template_are_limited() -> None:
    deep: list = []
    for _ in range(50_000):
        deep = [deep]
    for value, message in (("x" * 100_000, "has 100,00. characters: at most 100,000"), (deep, "nested too deeply")):
        with pytest.raises(RequestError) as raised:
            parse_variables(Fields({"chat_template_kwargs": {"a": value}}))
        assert re.search(message, raised.value.message)


def test_a_body_of_many_values_is_rejected_before_it_is_parsed() -> None:
    for value in ([[1]] * 600_000, {str(number): 1 for number in range(300_000)}):
        with pytest.raises(RequestError, match="too many values: at most 500,000") as raised:
            Fields.parse(json.dumps({"a": value}).encode())
        assert raised.value.status == 413


PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"},
                                           "kind": {"enum": ["cat", "dög"]}, "loud": {"type": "boolean"}},
          "required": ["name", "age", "kind", "loud"], "additionalProperties": False}  # fmt: skip
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}


def is_person(text: str) -> bool:
    person = json.loads(text)
    return (
        list(person) == ["name", "age", "kind", "loud"]
        and isinstance(person["name"], str)
        and type(person["age"]) is int
        and person["kind"] in ("cat", "dög")
        and type(person["loud"]) is bool
    )


def test_a_schema_constrains_the_reply_in_all_apis(client, http, main_model: ServedModel) -> None:
    """Even with random weights, streamed and complete. Other requests in the batch do not change."""
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
        unconstrained = [pool.submit(plain, seed) for seed in range(4)]
        texts = list(pool.map(formed, range(4)))
        assert all(future.result() for future in unconstrained)
    assert len(set(texts)) == 4
    assert texts == [formed(seed) for seed in range(4)]

    options = {"seed": 2, "num_predict": 200, "temperature": 1.3}
    for path, fields in (("chat", {"messages": user("Who?")}), ("generate", {"prompt": "Who?"})):
        body = {"model": "tiny", "stream": False, "options": options, "format": PERSON, **fields}
        response = http.post(f"/api/{path}", json=body).json()
        assert is_person(response["message"]["content"] if path == "chat" else response["response"])
    form = {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}
    response = client.responses.create(model="tiny", input="Who?", max_output_tokens=200, text={"format": form})
    assert is_person(response.output_text)
    response = client.completions.create(
        model="tiny", prompt="Who?", max_tokens=200, extra_body={"response_format": FORMAT}
    )
    assert is_person(response.choices[0].text)
    cut = client.chat.completions.create(**{**ask, "max_tokens": 5}, response_format=FORMAT)
    assert cut.choices[0].finish_reason == "length"


def test_json_object_without_a_schema_constrains_the_reply(client, http) -> None:
    ask = {"model": "tiny", "messages": user("Who?"), "max_tokens": 60}
    for form in ({"type": "json_object"}, {"type": "json_object", "schema": {"type": "object"}}):
        text = client.chat.completions.create(**ask, seed=3, response_format=form).choices[0].message.content
        assert text.startswith("{")
    body = {"model": "tiny", "messages": user("Who?"), "format": "json", "stream": False, "options": {"num_predict": 9}}
    assert http.post("/api/chat", json=body).json()["message"]["content"].startswith("{")
    text = client.chat.completions.create(**ask, response_format={"type": "text"}, seed=1).choices[0].message.content
    assert not text.startswith("{")


@pytest.mark.parametrize(
    ("form", "message"),
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
def test_invalid_formats_are_client_errors(http, form: dict, message: str) -> None:
    response = http.post("/v1/chat/completions", json={"messages": user("Hi"), "response_format": form})
    assert response.status_code in (400, 413)
    assert message in response.json()["error"]["message"]


def wide(count: int) -> dict:
    """A schema that exceeds the limits of a grammar after the first token."""
    return {"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(count)}}


def test_errors_of_requests_do_not_disturb_a_stream(
    address: str, http, main_model: ServedModel, capfd, monkeypatch
) -> None:
    """A reply that streams is bitwise identical to its single run, and the engine's batch is never rebuilt."""
    engine = main_model.engine
    wait(lambda: engine.unfinished == 0)
    step = engine._step
    monkeypatch.setattr(engine, "_step", lambda batch: time.sleep(0.01) or step(batch))
    failed_before, streaming = engine.counts["failed"], []
    prompts = ["Once upon a time", "In the beginning", "A third text"]
    ids = [main_model.tokenizer.encode(prompt).ids for prompt in prompts]

    def stream(n: int) -> list[tuple[str, float]]:
        body = {"model": "tiny", "prompt": prompts[n], "max_tokens": 200, "ignore_eos": True, "seed": n,
                "stream": True, "logprobs": 1}  # fmt: skip
        tokens: list[tuple[str, float]] = []
        with http.stream("POST", "/v1/completions", json=body) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    logprobs = json.loads(line[6:])["choices"][0]["logprobs"]
                    tokens += zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True)
                    streaming.append(n)
        return tokens

    def ask(fields: dict) -> None:
        response = http.post("/v1/chat/completions", json={"messages": user("Hi"), "max_tokens": 50, **fields})
        assert (response.status_code, len(response.json()["error"]["message"]) < 300) == (400, True), response.text[
            :500
        ]

    schemas = [{"$ref": "#"}, {"anyOf": [{"$ref": "#"}]}, {"enum": []}, wide(700), wide(3000)]
    bad = [{"response_format": {"type": "json_object", "schema": schema}} for schema in schemas]
    bad += [{"repetition_penalty": 1e-300}, {"temperature": -1}, {"stop": "x" * 50_000}, {"stop": ["a"] * 1000}]
    expected = [generate(main_model.model, [ids[n]], 200, seed=n, eos_id=None)[0] for n in range(3)]
    with ThreadPoolExecutor(7) as pool:
        streams = [pool.submit(stream, n) for n in range(3)]
        wait(lambda: len(set(streaming)) == 3)
        for _ in range(2):
            list(pool.map(ask, bad))
        for n, future in enumerate(streams):
            scores = score(main_model.model, [[*ids[n], *expected[n]]])[0][len(ids[n]) - 1 :]
            texts, logprobs = zip(*future.result(), strict=True)
            assert torch.equal(torch.tensor(logprobs), scores)
            assert list(texts) == [token_text(main_model.tokenizer, id) for id in expected[n]]
    assert engine.counts["failed"] == failed_before + 4  # in the batch: the two wide schemas, twice
    assert "one by one" not in capfd.readouterr().err


def test_a_request_continues_within_its_schema_after_a_recovery(folder: Path) -> None:
    model = from_pretrained(folder)
    poison = 7

    def fail(_module, arguments, output):
        if (arguments[0] == poison).any():
            raise BrokenError
        return output

    next(module for module in model.modules() if isinstance(module, torch.nn.Embedding)).register_forward_hook(fail)
    tokenizer = read_tokenizer(folder)
    engine = Engine(model, tokenizer, batch_size=4, max_length=CONTEXT)
    fragile = ServedModel("fragile", model, tokenizer, chat_template_of(folder, tokenizer), engine, 60)
    with (
        BackgroundServer(Server(Models([fragile])), grace=0.1) as address,
        httpx2.Client(base_url=address, timeout=60) as http,
    ):
        body = {"prompt": "Who?", "max_tokens": 200, "seed": 1, "response_format": FORMAT}
        expected = http.post("/v1/completions", json=body).json()["choices"][0]["text"]
        with ThreadPoolExecutor(2) as pool:
            pending = pool.submit(http.post, "/v1/completions", json=body)
            wait(lambda: any(len(request.new_ids) > 3 for request in list(engine.running.values())) or pending.done())
            assert http.post("/v1/completions", json={"prompt": [1, poison]}).status_code == 500
            text = pending.result().json()["choices"][0]["text"]
    assert text == expected
    assert is_person(text)
