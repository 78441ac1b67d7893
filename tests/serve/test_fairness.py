"""A client does not delay the requests of others: the queue, names of models, and token texts."""

import json
from pathlib import Path
from threading import Event

from served_models import CONTEXT, served

from minhub_py.serve.engine import Delta, Request
from minhub_py.serve.engine_thread import Failure


def test_a_short_prompt_in_the_queue_does_not_wait_for_all_long_ones(folder: Path) -> None:
    """Rows are given in turn to the oldest request and to the shortest prompt; the order of long
    ones is kept.
    """
    model = served("tiny", folder, batch_size=1)
    queued, ended, order = Event(), Event(), []

    def request(name: str, length: int) -> Request:
        def send(item: Delta | Failure) -> None:
            queued.wait(30)  # until all requests are in the queue
            assert isinstance(item, Delta)
            if item.end is not None:
                order.append(name)
                if len(order) == 12:
                    ended.set()

        return Request([5] * length, 2, send)

    model.submit(request("first", 3))
    model.submit(
        *[request(f"long {number}", CONTEXT - 50) for number in range(10)], request("short", 4)
    )
    queued.set()
    assert ended.wait(60)
    assert order[0] == "first"
    assert "short" in order[1:3]
    assert [name for name in order if name.startswith("long")] == [
        f"long {number}" for number in range(10)
    ]
    model.close()


def test_a_name_longer_than_a_path_is_unknown_without_a_search(http) -> None:
    for route, path in (
        ("/v1/completions", "model"),
        ("/api/generate", "model"),
        ("/tokenize", "model"),
    ):
        response = http.post(route, json={path: "x" * 5_000, "prompt": "Hi"})
        assert response.status_code == 404
        assert "a name has at most 4,096 characters" in response.text


def test_token_texts_of_a_long_text_join_to_the_text(http, monkeypatch) -> None:
    monkeypatch.setattr("minhub_py.serve.tokenization.SLICE", 100)
    text = "the cat sat on the mat, é and 日本. " * 90
    plain = http.post("/tokenize", json={"content": text}).json()
    pieces = http.post("/tokenize", json={"content": text, "with_pieces": True}).json()
    texts = http.post("/tokenize", json={"prompt": text, "return_token_strs": True}).json()
    assert plain["count"] == len(plain["tokens"]) > 500
    assert [piece["id"] for piece in pieces["tokens"]] == plain["tokens"]
    assert [piece["piece"] for piece in pieces["tokens"]] == texts["token_strs"]
    joined = "".join(piece["piece"] for piece in pieces["tokens"])
    assert joined.replace("\ufffd", "").startswith("the cat sat on the mat")
    again = http.post(
        "/detokenize", content=json.dumps({"tokens": plain["tokens"][:CONTEXT]})
    ).json()
    assert text.startswith(again["content"].rstrip("\ufffd"))
