"""Schemas constrain replies in all APIs."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from served_models import (
    CONTEXT,
    FORMAT,
    PERSON,
    BrokenError,
    connected,
    in_chat,
    is_person,
    user,
    wait,
)

from minhub_py.chat.templates import chat_template_of
from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer
from minhub_py.loading.pretrained import from_pretrained
from minhub_py.serve.engine import Engine
from minhub_py.serve.models import ServedModel


def test_a_schema_constrains_the_reply_in_all_apis(client, http, main_model: ServedModel) -> None:
    """Even with random weights, streamed and complete. Other requests in the batch do not change."""
    ask = {"model": "tiny", "messages": user("Who?"), "max_tokens": 200, "temperature": 1.3}

    def plain(seed: int) -> bool:
        text = (
            client.chat.completions.create(**{**ask, "max_tokens": 60}, seed=seed)
            .choices[0]
            .message.content
        )
        return text == in_chat(main_model, ask["messages"], 60, seed, temperature=1.3)

    def formed(seed: int) -> str:
        reply = client.chat.completions.create(
            **ask, seed=seed, response_format=FORMAT, logprobs=True, n=2
        )
        for choice in reply.choices:
            assert choice.finish_reason == "stop", choice
            assert is_person(choice.message.content)
            assert all(-100 < token.logprob < 0 for token in choice.logprobs.content)
        stream = client.chat.completions.create(
            **ask, seed=seed + 1, response_format=FORMAT, stream=True
        )
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
    response = client.responses.create(
        model="tiny", input="Who?", max_output_tokens=200, text={"format": form}
    )
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
        text = (
            client.chat.completions.create(**ask, seed=3, response_format=form)
            .choices[0]
            .message.content
        )
        assert text.startswith("{")
    body = {
        "model": "tiny",
        "messages": user("Who?"),
        "format": "json",
        "stream": False,
        "options": {"num_predict": 9},
    }
    assert http.post("/api/chat", json=body).json()["message"]["content"].startswith("{")
    text = (
        client.chat.completions.create(**ask, response_format={"type": "text"}, seed=1)
        .choices[0]
        .message.content
    )
    assert not text.startswith("{")


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"type": "sound"}, "must be text, json_object or json_schema"),
        ({"type": "json_schema"}, "has no schema"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, "has no schema"),
        ({"type": "json_object", "schema": 123}, "response_format.schema must be an object"),
        ({"type": "json_object", "schema": {"type": 123}}, "type must be a string"),
        ({"type": "json_object", "schema": {"type": "hiccup"}}, "hiccup"),
        ({"type": "json_object", "schema": {"not": {"type": "string"}}}, "not"),
        ({"type": "json_object", "schema": {"$ref": "http://127.0.0.1:9/person"}}, "not fetch"),
        ({"type": "json_object", "schema": {"type": "string", "pattern": "("}}, "regex"),
        ({"type": "json_object", "schema": {"const": "x" * 20_000_000}}, "bytes"),
    ],
)
def test_invalid_formats_are_client_errors(http, form: dict, message: str) -> None:
    response = http.post(
        "/v1/chat/completions", json={"messages": user("Hi"), "response_format": form}
    )
    assert response.status_code in (400, 413)
    assert message in response.json()["error"]["message"]


def test_a_request_continues_within_its_schema_after_a_recovery(folder: Path) -> None:
    model = from_pretrained(folder)
    poison = 7

    def fail(_module, arguments, output):
        if (arguments[0] == poison).any():
            raise BrokenError
        return output

    next(
        module for module in model.modules() if isinstance(module, torch.nn.Embedding)
    ).register_forward_hook(fail)
    tokenizer = read_tokenizer(folder)
    engine = Engine(model, tokenizer, batch_size=4, max_length=CONTEXT)
    fragile = ServedModel(
        "fragile", model, tokenizer, chat_template_of(folder, tokenizer), engine, 60
    )
    with connected(fragile) as http:
        body = {"prompt": "Who?", "max_tokens": 200, "seed": 1, "response_format": FORMAT}
        expected = http.post("/v1/completions", json=body).json()["choices"][0]["text"]
        with ThreadPoolExecutor(2) as pool:
            pending = pool.submit(http.post, "/v1/completions", json=body)
            wait(
                lambda: (
                    any(len(request.new_ids) > 3 for request in list(engine.running.values()))
                    or pending.done()
                )
            )
            assert http.post("/v1/completions", json={"prompt": [1, poison]}).status_code == 500
            text = pending.result().json()["choices"][0]["text"]
    assert text == expected
    assert is_person(text)
