"""Embeddings and reranking over HTTP: equal to `embed` and `rerank`, with many clients, and invalid
requests.
"""

import base64
import contextlib
import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from threading import Event

import httpx2
import numpy as np
import ollama
import pytest
import torch
from encoders import WORDS, write_cross_encoder, write_sentence_encoder
from guarantees import ENCODER_RUNNER, assert_same
from pipelined import post_all
from served_models import WRONG, connected, serving
from served_models import served as served_decoder

from minhub_py import embed, from_pretrained, rerank, tokenizer_from_pretrained
from minhub_py.analysis.encoders import Input
from minhub_py.chat.templates import chat_template_of
from minhub_py.inference.encoder_runner import encoder_runner
from minhub_py.serve.encoder_engine import EncoderEngine, EncoderRequest
from minhub_py.serve.engine_thread import Failure
from minhub_py.serve.loading import engine_for
from minhub_py.serve.models import ServedModel
from minhub_py.serve.validation import Fields

MAX_LENGTH = 32
QUEUE = 60
TEXTS = ["The cat sat on the mat", "a dog ran", "The weather is lovely today."]


def serve_encoder(
    name: str, folder: Path, quantize: str | None = None, timeout: float = 60
) -> ServedModel:
    model, tokenizer = from_pretrained(folder, quantize=quantize), tokenizer_from_pretrained(folder)
    engine = engine_for(model, tokenizer, name, max_requests=0, context=None, waiting=QUEUE)
    return ServedModel(name, model, tokenizer, chat_template_of(None, tokenizer), engine, timeout)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    model = serve_encoder(
        "mini", write_sentence_encoder(tmp_path_factory.mktemp("mini"), MAX_LENGTH)
    )
    yield model
    model.engine.close()


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    model = serve_encoder("ranker", write_cross_encoder(tmp_path_factory.mktemp("ranker")))
    yield model
    model.engine.close()


@pytest.fixture(scope="module")
def decoder(folder: Path) -> Iterator[ServedModel]:
    model = served_decoder("tiny", folder)
    yield model
    model.engine.close()


@pytest.fixture(scope="module")
def address(
    decoder: ServedModel, cross_encoder: ServedModel, encoder: ServedModel
) -> Iterator[str]:
    """A server with a decoder, a cross-encoder and a text encoder."""
    with serving(decoder, cross_encoder, encoder, max_body=400_000, read_timeout=5) as address:
        yield address


@pytest.fixture(scope="module")
def http(address: str) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=address, timeout=60) as http:
        yield http


def alone(model: ServedModel, text: str, **settings: object) -> list[float]:
    """The embedding that `embed` returns for one text."""
    return embed(model.model, model.tokenizer, [text], **settings)[0].tolist()


def vectors(answer: httpx2.Response) -> list[list[float]]:
    """A response's embeddings, rounded to float32 as clients do."""
    assert answer.status_code == 200, answer.text
    data = answer.json()["data"]
    assert [entry["index"] for entry in data] == list(range(len(data)))
    return [np.array(entry["embedding"], np.float32).tolist() for entry in data]


def message(answer: httpx2.Response, status: int = 400) -> str:
    """A response's error message: one line."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    error = (
        body["error"]["message"]
        if isinstance(body.get("error"), dict)
        else body.get("error", body.get("message"))
    )
    assert "\n" not in error
    return error


# OpenAI


def test_embeddings_are_those_of_embed(http, encoder: ServedModel) -> None:
    assert type(encoder_runner(encoder.model)) is ENCODER_RUNNER
    answer = http.post("/v1/embeddings", json={"model": "mini", "input": TEXTS})
    assert_same(vectors(answer), [alone(encoder, text) for text in TEXTS])
    body = answer.json()
    tokens = sum(len(encoder.tokenizer.encode(text).ids) for text in TEXTS)
    assert body["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert (body["object"], body["model"], body["data"][0]["object"]) == (
        "list",
        "mini",
        "embedding",
    )
    assert np.linalg.norm(vectors(answer)[0]) == pytest.approx(1, abs=1e-6)


def test_input_can_be_one_text_token_ids_or_a_list_of_either(http, encoder: ServedModel) -> None:
    expected = [alone(encoder, text) for text in TEXTS]
    ids = [encoder.tokenizer.encode(text).ids for text in TEXTS]
    for value, result in (
        (TEXTS[0], expected[:1]),
        (ids[0], expected[:1]),
        (ids, expected),
        ([ids[0], TEXTS[1]], expected[:2]),
    ):
        assert_same(
            vectors(http.post("/v1/embeddings", json={"model": "mini", "input": value})), result
        )
    # the encoder is the default
    assert vectors(http.post("/embeddings", json={"input": TEXTS[0]})) == expected[:1]


def test_dimensions_cut_and_normalize_again(http, encoder: ServedModel) -> None:
    answer = http.post(
        "/v1/embeddings", json={"model": "mini", "input": TEXTS[0], "dimensions": 16}
    )
    assert vectors(answer) == [alone(encoder, TEXTS[0], dimensions=16, normalize=True)]
    answer = http.post(
        "/v1/embeddings",
        json={"model": "mini", "input": TEXTS[0], "dimensions": 16, "normalize": False},
    )
    assert vectors(answer) == [alone(encoder, TEXTS[0], dimensions=16)]
    assert "at most 48" in message(
        http.post("/v1/embeddings", json={"input": "a", "dimensions": 49})
    )


def test_prompts_of_the_repository_are_used_by_name(http, encoder: ServedModel) -> None:
    answer = http.post("/v1/embeddings", json={"input": TEXTS[0], "prompt_name": "query"})
    assert (
        vectors(answer) == [alone(encoder, TEXTS[0], prompt="query")] != [alone(encoder, TEXTS[0])]
    )
    assert "query" in message(
        http.post("/v1/embeddings", json={"input": "a", "prompt_name": "passage"})
    )


def test_openai_decodes_base64_and_floats(address: str, encoder: ServedModel) -> None:
    """The client requests base64 unless the caller names a format."""
    import openai  # takes a second to import

    with openai.OpenAI(base_url=f"{address}/v1", api_key="unused", max_retries=0) as client:
        expected = [alone(encoder, text) for text in TEXTS]
        for settings in ({}, {"encoding_format": "float"}):
            answer = client.embeddings.create(model="mini", input=TEXTS, **settings)
            assert_same([np.float32(entry.embedding).tolist() for entry in answer.data], expected)
        data = (
            client.embeddings.create(model="mini", input=TEXTS[0], encoding_format="base64")
            .data[0]
            .embedding
        )
        assert np.frombuffer(base64.b64decode(data), "<f4").tolist() == expected[0]
        assert (
            len(client.embeddings.create(model="mini", input="a", dimensions=8).data[0].embedding)
            == 8
        )
        with pytest.raises(openai.BadRequestError, match="text encoder"):
            client.chat.completions.create(
                model="mini", messages=[{"role": "user", "content": "Hi"}]
            )


def test_decoders_embed_too(http, decoder: ServedModel) -> None:
    answer = http.post("/v1/embeddings", json={"model": "tiny", "input": TEXTS})
    assert vectors(answer) == [alone(decoder, text, normalize=True) for text in TEXTS]
    answer = http.post(
        "/v1/embeddings", json={"model": "tiny", "input": TEXTS[0], "normalize": False}
    )
    assert vectors(answer) == [alone(decoder, TEXTS[0])]
    long = {"model": "tiny", "input": ["a", "abc " * 2000]}
    assert "input[1]" in message(http.post("/v1/embeddings", json=long))


def test_quantized_encoders_embed_as_alone(encoder: ServedModel, tmp_path: Path) -> None:
    model = serve_encoder("int8", write_sentence_encoder(tmp_path / "m"), quantize="int8")
    with serving(model) as address:
        answer = httpx2.post(f"{address}/v1/embeddings", json={"input": TEXTS}, timeout=60)
        assert_same(vectors(answer), [alone(model, text) for text in TEXTS])
        assert vectors(answer) != [alone(encoder, text) for text in TEXTS]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, "input must be"),
        ({"input": []}, "input must be"),
        ({"input": 7}, "input must be"),
        ({"input": {"text": "a"}}, "input must be"),
        ({"input": ["a", []]}, "input[1] must have at least one token ID"),
        ({"input": {"prompt_string": 3}}, "input.prompt_string must be a string"),
        (
            {"input": {"prompt_string": "a", "multimodal_data": ["x"]}},
            "input.multimodal_data is unknown",
        ),
        ({"input": [1, "a", None]}, "token IDs"),
        ({"model": "tiny", "input": ""}, "input has no tokens"),
        ({"input": ["a", None]}, "input[1] must be a string"),
        ({"input": [1, 2, 10**6]}, "token IDs"),
        ({"input": [1, -2]}, "token IDs"),
        ({"input": [1, True]}, "token IDs"),
        ({"input": [[1, "a", 10**6]]}, "token IDs"),
        ({"input": ["a"] * 2049}, "at most 2,048"),
        ({"input": ["a", "cat " * 40]}, "input[1] has 42 tokens, but mini reads at most 32"),
        ({"input": [7] * 33}, "input has 33 tokens"),
        ({"input": "a " * 60_000}, "characters"),
        ({"input": "a", "encoding_format": "int8"}, "float or base64"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"input": "\ud800"}, "surrogate"),
    ],
)
def test_invalid_requests_are_rejected_by_name(
    http, body: dict[str, object], expected: str
) -> None:
    data = json.dumps({"model": "mini", **body})  # httpx cannot encode a surrogate
    assert expected in message(http.post("/v1/embeddings", content=data))


def test_inputs_have_the_forms_of_llama_cpp(http, encoder: ServedModel) -> None:
    """Objects with a text, and sequences of token IDs and texts, whose texts have no special
    tokens.
    """
    encode = encoder.tokenizer.encode
    mixed = [101, "cat", 7, "dog"]
    ids = [
        101,
        *encode("cat", add_special_tokens=False).ids,
        7,
        *encode("dog", add_special_tokens=False).ids,
    ]
    inputs = [{"prompt_string": "cat"}, mixed, "", ids]
    answer = vectors(http.post("/v1/embeddings", json={"model": "mini", "input": inputs}))
    assert answer[:3] == [alone(encoder, "cat"), answer[3], alone(encoder, "")]
    for value, expected in zip(inputs, answer, strict=True):
        assert vectors(http.post("/v1/embeddings", json={"model": "mini", "input": value})) == [
            expected
        ]


def test_unknown_models_and_large_bodies_are_rejected(http) -> None:
    assert "unknown model" in message(
        http.post("/v1/embeddings", json={"model": "x", "input": "a"}), 404
    )
    assert "bytes" in message(http.post("/v1/embeddings", json={"input": "a" * 500_000}), 413)


# Ollama


def test_ollama_embeds_and_normalizes(
    address: str, encoder: ServedModel, decoder: ServedModel
) -> None:
    with contextlib.closing(ollama.Client(host=address)) as client:
        assert client.show("mini").capabilities == ["embedding"]
        answer = client.embed("mini", TEXTS)
        expected = [alone(encoder, text) for text in TEXTS]
        assert_same([np.float32(vector).tolist() for vector in answer.embeddings], expected)
        assert answer.prompt_eval_count == sum(
            len(encoder.tokenizer.encode(text).ids) for text in TEXTS
        )
        assert answer.total_duration > 0
        assert (
            np.float32(client.embed("mini:latest", TEXTS[0]).embeddings[0]).tolist() == expected[0]
        )
        short = client.embed("mini", TEXTS[0], dimensions=16).embeddings[0]
        assert np.float32(short).tolist() == alone(encoder, TEXTS[0], dimensions=16, normalize=True)
        assert len(client.embed("mini", "a", dimensions=1000).embeddings[0]) == 48
        long = "cat " * 40
        assert np.float32(client.embed("mini", long).embeddings[0]).tolist() == alone(encoder, long)
        with pytest.raises(ollama.ResponseError, match="42 tokens"):
            client.embed("mini", long, truncate=False)
        raw = client.embeddings("tiny", TEXTS[0]).embedding
        assert np.float32(raw).tolist() == alone(decoder, TEXTS[0])
        with pytest.raises(ollama.ResponseError, match="unknown model"):
            client.embed("x", "a")
        with pytest.raises(ollama.ResponseError, match="text encoder"):
            client.chat("mini", [{"role": "user", "content": "Hi"}])


def test_ollama_accepts_empty_inputs(http) -> None:
    for value in ("", [], None):
        answer = http.post("/api/embed", json={"model": "mini", "input": value})
        assert (answer.status_code, answer.json()["embeddings"]) == (200, [])
    assert http.post("/api/embeddings", json={"model": "mini", "prompt": ""}).json() == {
        "embedding": []
    }
    assert "invalid input type" in message(
        http.post("/api/embed", json={"model": "mini", "input": [1, 2]})
    )
    assert "model is missing" in message(http.post("/api/embed", json={"input": "a"}))


# Reranking


def test_rerank_equals_the_function(http, cross_encoder: ServedModel) -> None:
    documents = [*TEXTS, "cat " * 100]
    model, tokenizer = cross_encoder.model, cross_encoder.tokenizer
    expected = {
        i: float(rerank(model, tokenizer, "cat", [text])["score"][0])
        for i, text in enumerate(documents)
    }
    body = {"model": "ranker", "query": "cat", "documents": documents}
    answer = http.post("/v1/rerank", json=body).json()
    assert_same(
        {row["index"]: np.float32(row["relevance_score"]) for row in answer["results"]}, expected
    )
    scores = [row["relevance_score"] for row in answer["results"]]
    assert scores == sorted(scores, reverse=True)
    assert all(row["document"] == {"text": documents[row["index"]]} for row in answer["results"])
    assert answer["usage"]["total_tokens"] > 0
    order = rerank(model, tokenizer, "cat", documents)["text"].tolist()
    short = {**body, "model": None, "top_n": 2, "return_documents": False, "raw_scores": True}
    answer = http.post("/rerank", json=short).json()["results"]
    assert [row["index"] for row in answer] == order[:2]
    raw = rerank(model, tokenizer, "cat", [documents[order[0]]], raw_scores=True)["score"]
    assert (np.float32(answer[0]["relevance_score"]), len(answer[0])) == (raw[0], 2)


def test_rerank_in_the_forms_of_tei_and_cohere(http, cross_encoder: ServedModel) -> None:
    order = rerank(cross_encoder.model, cross_encoder.tokenizer, "cat", TEXTS)["text"].tolist()
    answer = http.post("/rerank", json={"query": "cat", "texts": TEXTS, "return_text": True}).json()
    assert [(row["index"], row["text"]) for row in answer] == [(i, TEXTS[i]) for i in order]
    answer = http.post(
        "/v2/rerank", json={"model": "ranker", "query": "cat", "documents": TEXTS, "top_n": 2}
    ).json()
    assert [row["index"] for row in answer["results"]] == order[:2]
    assert set(answer) == {"id", "results", "meta"}
    assert set(answer["results"][0]) == {"index", "relevance_score"}
    invalid = {"model": "ranker", "query": "cat", "documents": TEXTS, "max_tokens_per_doc": 5}
    assert "max_tokens_per_doc" in message(http.post("/v2/rerank", json=invalid))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"documents": ["a"]}, "query must be"),
        ({"query": "a"}, "documents must be"),
        ({"query": "a", "documents": []}, "documents must be"),
        ({"query": "a", "documents": "b"}, "documents must be"),
        ({"query": "a", "documents": ["b", 1]}, "documents[1]"),
        ({"query": "a", "documents": [{}]}, "documents[0]"),
        ({"query": "a", "documents": ["b"], "top_n": 0}, "top_n"),
        ({"query": "a", "documents": ["b"] * 2049}, "at most 2,048"),
        ({"model": "mini", "query": "a", "documents": ["b"]}, "mini is not a cross-encoder"),
        (
            {"model": "tiny", "query": "a", "documents": ["b"]},
            "needs a cross-encoder, or a decoder",
        ),
    ],
)
def test_invalid_rerank_requests_are_rejected(http, body: dict[str, object], expected: str) -> None:
    for path in ("/v1/rerank", "/v2/rerank"):
        assert expected in message(http.post(path, json=body))


RERANKING = {"query": "cat", "documents": ["Hi", {"text": "Ho"}]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": ["Hi"]}),
        ("/v1/rerank", RERANKING),
        ("/v2/rerank", RERANKING),
        ("/api/embed", {"input": ["Hi"]}),
        ("/api/embeddings", {"prompt": "Hi"}),
    ],
)
def test_wrong_types_of_every_field_are_client_errors(
    http, path: str, body: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fields are recorded while the server reads them, so that the list is complete."""
    read: dict[str, None] = {}
    get = Fields.get
    monkeypatch.setattr(
        Fields,
        "get",
        lambda self, name, *shape: (read.setdefault(name), get(self, name, *shape))[1],
    )
    good = {"model": "ranker", **body}
    assert http.post(path, json={**good, "imaginary": 1}).status_code == 400
    assert http.post(path, json=good).status_code == 200
    rejected = 0
    for name in list(read):
        bodies = [json.dumps({**good, name: value}).encode() for value in WRONG]
        for value, (status, content) in zip(WRONG, post_all(http, path, bodies), strict=True):
            assert status in (200, 400, 404), (name, value, content)
            rejected += status != 200
    assert rejected > len(read)


# A server with encoders


def test_routes_that_generate_name_the_routes_of_an_encoder(http) -> None:
    chat = {
        "model": "mini",
        "messages": [{"role": "user", "content": "Hi"}],
        "prompt": "Hi",
        "input": "Hi",
    }
    for path in (
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/apply-template",
        "/api/chat",
        "/api/generate",
    ):
        assert message(http.post(path, json=chat)).endswith(
            "text encoder, which does not generate text: use /v1/embeddings"
        )
    assert "/v1/rerank" in message(
        http.post("/v1/completions", json={"model": "ranker", "prompt": "Hi"})
    )
    assert (
        http.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 1}).json()["model"]
        == "tiny"
    )


def test_an_encoder_has_the_common_routes(http, encoder: ServedModel) -> None:
    assert http.get("/health").json() == {"status": "ok"}
    models = {
        entry["id"]: entry["meta"]["capabilities"]
        for entry in http.get("/v1/models").json()["data"]
    }
    assert models == {"tiny": ["completion"], "ranker": ["rerank"], "mini": ["embedding"]}
    assert http.post("/tokenize", json={"model": "mini", "content": "the cat"}).json()[
        "tokens"
    ] == (encoder.tokenizer.encode("the cat", add_special_tokens=False).ids)
    before = encoder.engine.counts["prompt"]
    http.post("/v1/embeddings", json={"model": "mini", "input": "the cat"})
    metrics = http.get("/metrics").text
    assert f'minhub_prompt_tokens_total{{model="mini"}} {before + 4}' in metrics
    assert 'minhub_requests_total{path="/embeddings",status="200"}' in metrics
    assert 'minhub_rows{model="tiny"}' in metrics
    assert 'minhub_rows{model="mini"}' not in metrics
    assert [entry["name"] for entry in http.get("/api/ps").json()["models"]] == [
        "tiny:latest",
        "ranker:latest",
        "mini:latest",
    ]


def test_an_api_key_protects_embeddings(encoder: ServedModel) -> None:
    model = replace(encoder, engine=EncoderEngine(encoder.model, MAX_LENGTH))
    listed = ("/v1/embeddings", "/v1/rerank", "/v2/rerank", "/api/embed", "/api/embeddings")
    with connected(model, key="secret", grace=0) as http:
        assert [http.post(path, json={"input": "a"}).status_code for path in listed] == [401] * 5
        headers = {"Authorization": "Bearer secret"}
        assert http.post("/v1/embeddings", json={"input": "a"}, headers=headers).status_code == 200


@pytest.mark.parametrize("seconds", [3, pytest.param(60, marks=pytest.mark.soak)])
def test_50_clients_get_the_embeddings_of_single_texts(
    address: str, encoder: ServedModel, seconds: float
) -> None:
    """Texts of all clients share batches; each vector is the same as alone."""
    generator = random.Random(1)
    texts = [" ".join(generator.choices(WORDS, k=generator.randint(1, 25))) for _ in range(40)]
    expected = {text: alone(encoder, text) for text in texts}
    end = time.monotonic() + seconds

    limits = httpx2.Limits(max_connections=50)

    def client(seed: int) -> tuple[int, int]:
        chosen, requests, count = random.Random(seed), 0, 0
        while time.monotonic() < end or not count:
            sent = chosen.sample(texts, chosen.randint(1, 8))
            answer = http.post("/v1/embeddings", json={"model": "mini", "input": sent})
            assert_same(vectors(answer), [expected[text] for text in sent])
            requests, count = requests + 1, count + len(sent)
        return requests, count

    with (
        httpx2.Client(base_url=address, timeout=60, limits=limits) as http,
        ThreadPoolExecutor(50) as pool,
    ):
        requests, counts = zip(*pool.map(client, range(50)), strict=True)
    assert min(counts) > 0
    print(
        f"{sum(requests) / seconds:.0f} requests/s, {sum(counts) / seconds:.0f} texts/s of 50"
        " clients"
    )


def test_waiting_requests_share_a_batch(encoder: ServedModel) -> None:
    engine, blocked, finished = EncoderEngine(encoder.model, MAX_LENGTH), Event(), Event()
    sizes: list[int] = []

    def wait(x: torch.Tensor, _: Input) -> int:
        return blocked.wait(30)

    def finish(x: torch.Tensor, _: Input) -> None:
        sizes.append(len(engine.active))

    text = Input([2, 40, 3], [0] * 3)
    engine.submit(EncoderRequest([text], wait, lambda result: None))
    engine.submit(*[EncoderRequest([text], finish, lambda result: None) for _ in range(5)])
    engine.submit(EncoderRequest([text], finish, lambda result: finished.set()))
    blocked.set()
    assert finished.wait(30)
    assert max(sizes) >= 5
    engine.close()


def test_a_request_with_many_texts_does_not_delay_others(encoder: ServedModel) -> None:
    engine, ended = EncoderEngine(encoder.model, MAX_LENGTH), list[str]()
    finished = Event()

    def request(name: str, count: int) -> EncoderRequest:
        def send(result: object) -> None:
            assert len(result) == count  # type: ignore[arg-type]
            ended.append(name)
            if len(ended) == 2:
                finished.set()

        return EncoderRequest(
            [Input([2, 40, 41, 3], [0] * 4)] * count, lambda x, _: x.sum().item(), send
        )

    engine.submit(request("many", 5000), request("one", 1))
    assert finished.wait(60)
    assert ended == ["one", "many"]
    engine.close()


def test_a_failing_text_ends_its_own_request_only(encoder: ServedModel) -> None:
    engine, results = EncoderEngine(encoder.model, MAX_LENGTH), dict[str, object]()
    finished = Event()

    def request(name: str, ids: list[int], **settings: float) -> EncoderRequest:
        def send(result: object) -> None:
            results[name] = result
            if len(results) == 4:
                finished.set()

        return EncoderRequest([Input(ids, [0] * len(ids))], lambda x, _: len(x), send, **settings)

    engine.submit(
        request("a", [2, 3]),
        request("bad", [2, 10**6, 3]),
        request("late", [2, 3], deadline=0),
        request("b", [2, 40, 3]),
    )
    assert finished.wait(60)
    assert (results["a"], results["b"]) == ([2], [3])
    assert results["bad"].kind == "model"  # type: ignore[attr-defined]
    assert isinstance(results["late"], Failure)
    assert results["late"].kind == "time"
    assert engine.unfinished == 0
    assert (engine.counts["finished"], engine.counts["failed"]) == (2, 2)
    engine.close()
    assert not engine.thread.is_alive()


def test_changed_weights_are_used(tmp_path: Path) -> None:
    """R's load_state_dict() replaces a served model's weights."""
    model = from_pretrained(write_sentence_encoder(tmp_path / "mini", MAX_LENGTH))
    engine, results = EncoderEngine(model, MAX_LENGTH), SimpleQueue[list[torch.Tensor]]()

    def states() -> torch.Tensor:
        engine.submit(
            EncoderRequest([Input([2, 40, 3], [0] * 3)], lambda x, _: x.clone(), results.put)
        )
        return results.get(timeout=60)[0]

    before = states()
    for weight in model.parameters():
        weight.data = weight.data * 0.5
    after = states()
    engine.close()
    engine = EncoderEngine(model, MAX_LENGTH)
    assert torch.equal(after, states())
    assert not torch.equal(after, before)
    engine.close()


def test_a_full_queue_is_refused_with_429(encoder: ServedModel) -> None:
    blocked, started = Event(), Event()

    def finish(x: torch.Tensor, _: Input) -> int:
        started.set()
        blocked.wait(30)
        return len(x)

    engine = EncoderEngine(encoder.model, MAX_LENGTH, queue_size=1)
    model = replace(encoder, engine=engine)
    with serving(model) as address:
        engine.submit(EncoderRequest([Input([2, 3], [0, 0])], finish, lambda result: None))
        assert started.wait(30)
        answer = httpx2.post(f"{address}/v1/embeddings", json={"input": "a"})
        assert "queue is full" in message(answer, 429)
        assert answer.headers["Retry-After"]
        blocked.set()
        deadline = time.monotonic() + 30
        while engine.unfinished and time.monotonic() < deadline:
            time.sleep(0.01)
        assert httpx2.post(f"{address}/v1/embeddings", json={"input": "a"}).status_code == 200
