"""Invalid fields, bodies and paths are client errors with a message; access is limited."""

import copy
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from pairs import with_variants
from pipelined import post_all
from served_models import WRONG, user, wait
from starlette.datastructures import Headers

from minhub_py.serve.app import OLLAMA_POSTS, POSTS
from minhub_py.serve.catalog import Models
from minhub_py.serve.models import ServedModel
from minhub_py.serve.server import TEI_ROUTES, Server
from minhub_py.serve.settings import parse_variables
from minhub_py.serve.validation import Fields, RequestError

FIELDS = {
    "/v1/chat/completions": ["model", "messages", "temperature", "top_p", "top_k", "seed", "stop", "n", "max_tokens",
                             "max_completion_tokens", "logprobs", "top_logprobs", "stream", "stream_options", "tools",
                             "response_format", "repetition_penalty", "presence_penalty", "logit_bias",
                             "frequency_penalty", "min_p",
                             "chat_template_kwargs", "reasoning_effort", "continue_final_message", "tool_choice",
                             "parallel_tool_calls"],
    "/v1/completions": ["prompt", "echo", "logprobs", "n", "best_of", "max_tokens", "suffix", "stop", "stream", "seed"],
    "/v1/responses": ["input", "instructions", "text", "max_output_tokens", "stream", "tools",
                      "tool_choice", "reasoning"],
    "/api/chat": ["model", "messages", "options", "stream", "format", "tools"],
    "/api/generate": ["model", "prompt", "system", "raw", "options", "images", "context", "stream"],
    "/api/show": ["model", "name"],
    "/tokenize": ["content", "with_pieces"],
    "/detokenize": ["tokens"],
    "/apply-template": ["messages"],
}  # fmt: skip


SHORT: dict[str, dict[str, object]] = {
    "/chat/completions": {
        "messages": user("Hi"),
        "max_tokens": 2,
        "max_completion_tokens": 2,
        "n": 1,
    },
    "/completions": {"prompt": "Hi", "max_tokens": 2, "n": 1},
    "/messages": {"messages": user("Hi"), "max_tokens": 2},
    "/messages/count_tokens": {"messages": user("Hi")},
    "/responses": {"input": user("Hi"), "max_output_tokens": 2},
    "/responses/input_tokens": {"input": user("Hi")},
    "/embeddings": {"input": "Hi"},
    "/systemone": {
        "state": "Hi",
        "questions": {"q": {"type": "choice", "criteria": {"a": "b", "c": None}}},
    },
    "/models/load": {},
    "/tokenize": {"content": "Hi"},
    "/detokenize": {"tokens": [1]},
    "/apply-template": {"messages": user("Hi")},
    "/api/chat": {"messages": user("Hi"), "options": {"num_predict": 2}},
    "/api/generate": {"prompt": "Hi", "options": {"num_predict": 2}},
    "/api/embed": {"input": "Hi"},
    "/api/embeddings": {"prompt": "Hi"},
    "/api/show": {},
}


def short(path: str) -> dict[str, object]:
    """A valid body for a path, with a short reply."""
    return {"model": "tiny", **SHORT[path.removeprefix("/v1")]}


@pytest.mark.parametrize("path", FIELDS)
def test_wrong_types_of_every_field_are_client_errors(http, path: str) -> None:
    good = short(path)
    assert http.post(path, json=good).status_code == 200
    bodies = [{**good, name: value} for name in FIELDS[path] for value in WRONG]
    bodies += [
        {**good, name: [message]}
        for name in ("messages", "input")
        if name in good
        for message in (
            *WRONG,
            {"role": "nobody", "content": ""},
            {"role": 1},
            {"role": "user", "content": 3},
            {"role": "user", "content": [{"type": "image_url"}]},
            {"role": "user", "content": [3]},
            {"role": "assistant", "tool_calls": [{}]},
        )
    ]
    bodies += [
        {**good, "options": {"num_predict": 2, name: value}}
        for value in WRONG
        for name in ("temperature", "num_predict", "stop")
        if "options" in good
    ]
    rejected = 0
    replies = post_all(http, path, [json.dumps(body).encode() for body in bodies])
    for body, (status, content) in zip(bodies, replies, strict=True):
        assert status in (200, 400, 404), (body, content)
        if status != 200:
            rejected += 1
            error = json.loads(content)["error"]
            message = error if path.startswith("/api/") else error["message"]
            assert message
            assert "Traceback" not in message
    assert rejected >= len(FIELDS[path])


SCHEMA = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}
NESTED: dict[str, object] = {
    "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
    "stream_options": {},
    "chat_template_kwargs": {"mood": "glad"},
    "format": SCHEMA,
    "text": {"format": {"type": "json_object"}},
    "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
}


def changed(body: dict, field_path: str, name: str, value: object) -> dict:
    """A body with another value of a field. Its path has the notation of errors:
    `messages[0].content[0]`.
    """
    result = inner = copy.deepcopy(body)
    for key, index in re.findall(r"(\w+)|\[(\d+)\]", field_path):
        if not index and not isinstance(inner.get(key), dict | list):
            inner[key] = {}
        inner = inner[int(index) if index else key]
    inner[name] = value
    return result


# test_embedding_routes.py does the same for reranking, test_encoder_routes.py for the heads of
# encoders, test_models_on_demand.py for routes that change the server.
@pytest.mark.parametrize(
    "path",
    with_variants(
        [
            *sorted({*POSTS} - {"/rerank", "/models/unload"} - {f"/{name}" for name in TEI_ROUTES}),
            *(f"/api{path}" for path in sorted({*OLLAMA_POSTS} - {"/pull"})),
        ],
        ["/completions", "/embeddings", "/messages"],
    ),
)
def test_wrong_types_of_every_field_that_the_server_reads_are_client_errors(
    http, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fields, including nested ones, are recorded while the server reads them, so that the list
    is complete.
    """
    read: dict[tuple[str, str], None] = {}
    get = Fields.get

    def recorded(self: Fields, name: str, *shape: Any) -> Any:
        read.setdefault((self.path, name))
        return get(self, name, *shape)

    monkeypatch.setattr(Fields, "get", recorded)
    listed = {("", name) for name in FIELDS.get(path, FIELDS.get(f"/v1{path}", ()))}
    tried: set[tuple[str, str]] = set()
    for with_nested in (False, True):
        nested = {
            name: value for name, value in NESTED.items() if with_nested and ("", name) in read
        }
        good = short(path) | nested
        assert http.post(path, json=good).status_code == 200
        while untried := [field for field in read if field not in tried | listed]:
            for field_path, name in untried:
                tried.add((field_path, name))
                bodies = [changed(good, field_path, name, value) for value in WRONG]
                replies = post_all(http, path, [json.dumps(body).encode() for body in bodies])
                for body, (status, content) in zip(bodies, replies, strict=True):
                    assert status in (200, 400, 404), (body, content)
                    if status != 200:
                        assert "Traceback" not in json.dumps(json.loads(content)["error"])
    assert http.get("/health").status_code == 200


def check_error(response: httpx2.Response, status: int, message: str) -> None:
    error = response.json()["error"]
    assert (response.status_code, message in error["message"]) == (status, True), error
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "not JSON"),
        (b"{", 400, "not JSON"),
        (b"\xff{}", 400, "not UTF-8"),
        (b"[]", 400, "must be a JSON object"),
        (b"[" * 90_000, 400, "not JSON"),
        (b'{"messages": [{"role": "user", "content": NaN}]}', 400, "NaN"),
        (b'{"seed": 1' + b"0" * 5000 + b"}", 400, "not JSON"),
        (b'{"messages": "' + b"x" * 100_000 + b'"}', 413, "more than 100,000 bytes"),
        (
            b'{"chat_template_kwargs": {"a": ' + b"[" * 900 + b"]" * 900 + b"}}",
            400,
            "nested too deeply",
        ),
    ],
)
def test_an_invalid_body_is_an_error_with_a_message(
    http, body: bytes, status: int, message: str
) -> None:
    check_error(http.post("/v1/chat/completions", content=body), status, message)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": user("word " * 15_000)}, "shorten"),
        ({"messages": user("refuse me")}, "no thanks"),
        ({"tools": [{"type": "function"}]}, "needs a name"),
        ({"model": "none"}, "tiny, other"),
        ({"chat_template_kwargs": {"tools": []}}, "must not contain tools"),
        ({"frequency_penalty": 3}, "frequency_penalty must be"),
        ({"logit_bias": {"a": 1}}, "has the key 'a'"),
        ({"logit_bias": {"999999": 1}}, "token 999999, but"),
        ({"min_p": 1.5}, "min_p must be between 0"),
        (
            {"repetition_penalty": 1e-300},
            "repetition_penalty must be between 0.01 and 100 (1 has no effect), not 1e-300",
        ),
        ({"temperature": -1}, "temperature must be 0 (greedy)"),
        ({"top_p": 1.5}, "top_p must be above 0 and at most"),
        ({"stop": "x" * 1001}, "a stop string can have at most 1,000 characters, not 1,001"),
        ({"stop": ["x"] * 65}, "stop must be a string or a list of at most 64 strings"),
    ],
)
def test_an_invalid_field_is_an_error_with_a_message(http, fields: dict, message: str) -> None:
    response = http.post("/v1/chat/completions", json={"messages": user("Hi"), **fields})
    check_error(response, 404 if "model" in fields else 400, message)


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
        (
            "/tokenize",
            {"content": WORDS},
            "content has 75,000 characters, but the context of 256 tokens holds",
        ),
        ("/v1/completions", {"prompt": WORDS}, "prompt has 75,000 characters"),
        (
            "/v1/completions",
            {"prompt": [1] * 257},
            "the prompt has 257 tokens, but the context has 256 tokens",
        ),
        (
            "/v1/completions",
            {"prompt": ["x"] * 23},
            "23 prompts with n=1 are too many: at most 22 in total",
        ),
        (
            "/v1/completions",
            {"prompt": ["x"] * 2, "n": 12},
            "2 prompts with n=12 are too many: at most 22",
        ),
        ("/v1/completions", {"prompt": ["x"] * 2, "max_tokens": 0}, "max_tokens must be 1 or more"),
        ("/v1/chat/completions", {"messages": user(WORDS)}, "messages has 75,000 characters"),
        ("/v1/chat/completions", {"messages": user("Hi") * 257}, "messages has 257 elements"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": ["x"] * 257}]},
            "has 257 elements",
        ),
        ("/v1/responses", {"input": WORDS}, "messages has 75,000 characters"),
        ("/api/chat", {"model": "tiny", "messages": user(WORDS)}, "messages has 75,000 characters"),
        (
            "/api/generate",
            {"model": "tiny", "prompt": WORDS, "raw": True},
            "prompt has 75,000 characters",
        ),
        ("/detokenize", {"tokens": [1] * 257}, "the prompt has 257 tokens"),
        ("/apply-template", {"messages": user(WORDS)}, "messages has 75,000 characters"),
    ],
)
def test_inputs_that_exceed_the_context_are_rejected_before_tokenization(
    http, closed_gate: threading.Event, path: str, body: dict, message: str
) -> None:
    """While the gate is closed, tokenization does not return."""
    response = http.post(path, json=body, timeout=20)
    assert response.status_code == 400
    error = response.json()["error"]
    assert message in (error if path.startswith("/api/") else error["message"])


def test_tokenization_does_not_delay_other_clients(
    http, main_model: ServedModel, closed_gate
) -> None:
    with ThreadPoolExecutor(4) as pool:
        bodies = {
            "/tokenize": {"content": "Hi"},
            "/v1/completions": {"prompt": "Hi", "max_tokens": 2},
            "/v1/chat/completions": {"messages": user("Hi"), "max_tokens": 2},
        }
        pending = [pool.submit(http.post, path, json=body) for path, body in bodies.items()]
        wait(lambda: main_model.texts._pool._work_queue.qsize() == 3)
        assert http.get("/health", timeout=20).status_code == 200
        assert (
            http.post(
                "/v1/completions", json={"prompt": [1, 2], "max_tokens": 2}, timeout=20
            ).status_code
            == 200
        )
        assert not any(future.done() for future in pending)
        closed_gate.set()
        assert [future.result().status_code for future in pending] == [200] * 3


def test_a_full_tokenization_queue_is_status_429(
    http, main_model: ServedModel, closed_gate, monkeypatch
) -> None:
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
    for method, path, allowed in (
        ("GET", "/v1/chat/completions", "POST"),
        ("POST", "/health", "GET, HEAD"),
    ):
        response = http.request(method, path)
        assert (response.status_code, response.json()["error"]["code"]) == (
            405,
            "method_not_allowed",
        )
        assert (
            response.json()["error"]["message"]
            == f"{path} does not support {method}: use {allowed}"
        )
    assert http.get("/api/chat").json()["error"] == "/api/chat does not support GET: use POST"
    # as tidyllm
    body = {"messages": user("Hi"), "max_tokens": 2, "tools": [], "stream.1": True, "user": "me"}
    response = http.post(
        "/chat/completions", content=json.dumps(body), headers={"Authorization": "Bearer"}
    )
    assert response.status_code == 200


def test_access_requires_the_key_a_local_host_and_an_allowed_origin(
    main_model: ServedModel,
) -> None:
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
    for invalid in (
        "",
        "Bearer",
        "bearer",
        "Bearersecret",
        "Bearer other",
        "Basic secret",
        "Bearer sécret",
    ):
        assert status(authorization=invalid) == 401
    assert status("/health") == status("/") == 200
    for host in ("localhost", "[::1]:80", "127.9.9.9:1", "a.localhost"):
        assert status(**key, host=host) == 200
    for host in (
        *(
            "evil.example",
            "127.0.0.1.evil.example",
            "",
            "[",
            "10.0.0.1",
            "localhost#.evil.com",
            "localhost?.evil.com",
        ),
        *(
            "localhost/.evil.com",
            "evil.com@localhost",
            "localhost\\.evil.com",
            "localhost .evil.com",
            "localhost:x",
        ),
        *("localhost\t", "[::1].evil.com", "[::1]evil", "localhost:80:80", "localhost%2eevil.com"),
    ):
        assert status(**key, host=host) == 403
        assert status(**key, host=host, origin=f"http://{host}") == 403
    for site in ("cross-site", "same-site"):
        assert status("/props", **key, **{"sec-fetch-site": site}) == 403
        assert (
            status("/props", **key, **{"sec-fetch-site": site}, origin="https://good.example")
            == 200
        )
        assert status("/", **{"sec-fetch-site": site}) == 200  # a link to the page
    for site in ("same-origin", "none"):
        assert status("/props", **key, **{"sec-fetch-site": site}) == 200
    assert (
        status(**key, origin="http://127.0.0.1:1")
        == status(**key, origin="https://good.example")
        == 200
    )
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


def test_responses_have_an_identifier(http) -> None:
    """Clients show it in errors."""
    valid = {"messages": user("Hi"), "max_tokens": 1}
    answers = [
        http.post("/v1/chat/completions", json=body)
        for body in (valid, valid, {}, {**valid, "stream": True})
    ]
    answers += [http.get("/v1/models"), http.get("/nowhere")]
    names = [answer.headers["x-request-id"] for answer in answers]
    assert all(name.startswith("req_") for name in names)
    assert len(set(names)) == len(names)


def test_an_integer_can_have_a_decimal_point() -> None:
    assert Fields({"a": 3.0}).integer("a", 0, 5) == 3


def test_variables_of_a_chat_template_are_limited() -> None:
    for value, message in (
        ("x" * 100_000, "has 100,00. characters: at most 100,000"),
        ("\ud800", "lone surrogate"),
    ):
        with pytest.raises(RequestError) as raised:
            parse_variables(Fields({"chat_template_kwargs": {"a": value}}))
        assert re.search(message, raised.value.message)


def test_a_body_of_many_values_is_rejected_before_it_is_parsed() -> None:
    for value in ([[1]] * 600_000, {str(number): 1 for number in range(300_000)}):
        with pytest.raises(RequestError, match="too many values: at most 500,000") as raised:
            next(Fields.parse(json.dumps({"a": value}).encode()))
        assert raised.value.status == 413
