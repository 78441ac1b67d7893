"""Beam search in completions and chats: the results of `beam_search`, also beside other requests."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from served_models import user

from minhub_py import beam_search, decode_stream
from minhub_py.serve.models import ServedModel

PROMPT = {"prompt": "Once upon", "max_tokens": 16}


def error(http, path: str = "/v1/completions", **fields) -> str:
    response = http.post(path, json={**PROMPT, **fields})
    assert response.status_code == 400, response.text
    return response.json()["error"]["message"]


def expected(served: ServedModel, **settings) -> list[str]:
    ids = served.tokenizer.encode(PROMPT["prompt"]).ids
    found = beam_search(served.model, [ids], 16, **settings)[0]
    return ["".join(decode_stream(served.tokenizer, each.ids, ids)) for each in found]


SEARCHES = [
    ({"beams": 4, "n": 3}, {"beams": 4}),
    ({"use_beam_search": True, "n": 3, "length_penalty": 2.0}, {"beams": 3, "length_penalty": 2.0}),
    (
        {"beams": 2, "no_repeat_ngram_size": 2, "early_stopping": "never", "temperature": 0},
        {"beams": 2, "no_repeat_ngram_size": 2, "early_stopping": "never"},
    ),
]


@pytest.mark.parametrize(("fields", "settings"), SEARCHES)
def test_choices_are_the_best_sequences(
    http, main_model: ServedModel, fields: dict, settings: dict
) -> None:
    reply = http.post("/v1/completions", json={**PROMPT, **fields})
    assert reply.status_code == 200, reply.text
    texts = [choice["text"] for choice in reply.json()["choices"]]
    assert texts == expected(main_model, **settings)[: fields.get("n", 1)]


def test_searches_beside_other_requests_have_the_same_results(http, main_model) -> None:
    bodies = [{**PROMPT, **fields} for fields, _ in SEARCHES]
    others = [{**PROMPT, "seed": seed} for seed in range(6)]

    def texts(body: dict) -> list[str]:
        response = http.post("/v1/completions", json=body)
        return [choice["text"] for choice in response.json()["choices"]]

    alone = [texts(body) for body in (*bodies, *others)]
    with ThreadPoolExecutor(9) as pool:
        assert list(pool.map(texts, (*bodies, *others))) == alone


def test_chats_and_their_limits_of_tokens(http) -> None:
    body = {"messages": user("Hi"), "max_tokens": 8, "beams": 3, "n": 2, "min_tokens": 8}
    reply = http.post("/v1/chat/completions", json=body).json()
    assert [choice["finish_reason"] for choice in reply["choices"]] == ["length"] * 2
    assert reply["usage"]["completion_tokens"] == 16
    assert len({choice["message"]["content"] for choice in reply["choices"]}) == 2


def test_streams_and_settings_without_effect_are_rejected(http) -> None:
    for path in ("/v1/completions", "/v1/chat/completions"):
        further = {} if path == "/v1/completions" else {"messages": user("Hi"), "prompt": None}
        assert "no text before its end" in error(http, path, beams=2, stream=True, **further)
    assert "set beams too" in error(http, length_penalty=2.0)
    assert "temperature has no effect" in error(http, beams=2, temperature=0.5)
    assert "top_k has no effect" in error(http, beams=2, top_k=5)
    assert "n must be at most the number of beams, 2" in error(http, beams=2, n=3)
    assert "logprobs are not available" in error(http, beams=2, logprobs=1)
    assert "logprobs are not available" in error(http, beams=2, logprobs=0)
    assert "early_stopping must be" in error(http, beams=2, early_stopping="always")
    assert "at most" in error(http, beams=64)
    form = {"response_format": {"type": "json_object"}}
    assert "cannot be combined" in error(http, beams=2, **form)
