"""A request with one wrong value is answered with a result, or an error in the form of its API."""

import json
import random

import pytest
from fuzz_targets import answer
from mutations import mutants, places
from request_cases import REQUESTS

from minhub_py.serve.app import OLLAMA_POSTS, POSTS

LABELS = [f"{number}{path}" for number, (path, _) in enumerate(REQUESTS)]
MUTANTS = 12  # of each request; `make fuzz` runs others


def test_every_route_has_a_request() -> None:
    routes = {f"/v1{path}" for path in POSTS} | {f"/api{path}" for path in OLLAMA_POSTS}
    tested = {path for path, _ in REQUESTS}
    assert {
        path for path in routes if path not in tested and path.removeprefix("/v1") not in tested
    } == {
        "/v1/models/load",
        "/v1/systemone",  # needs a chat template: tests/serve/test_invalid_requests.py
        "/api/pull",  # which only read a name
    }


@pytest.mark.parametrize(("path", "body"), REQUESTS, ids=LABELS)
def test_requests_without_changes_are_valid(path: str, body: dict) -> None:
    response = answer(path, json.dumps(body).encode())
    heads = ("/predict", "/embed_sparse", "/fill-mask")
    unsupported = "rerank" in path or "documents" in body or path in heads  # by this model
    expected = 400 if unsupported else 404 if path == "/models/unload" else 200
    assert response.status_code == expected, response.text


@pytest.mark.parametrize(("path", "body"), REQUESTS, ids=LABELS)
def test_one_wrong_value_is_an_error_in_the_form_of_the_api(path: str, body: dict) -> None:
    for text, _ in mutants(body, random.Random(path + str(len([*places(body)]))), MUTANTS):
        answer(path, text.encode())
