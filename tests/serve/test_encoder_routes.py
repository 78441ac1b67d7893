"""The routes /predict, /embed_sparse, /similarity and /fill-mask: equal to the functions and to the
pipelines of transformers, with many clients, and invalid requests.
"""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from encoders import (
    write_classifier,
    write_cross_encoder,
    write_masked_lm,
    write_sentence_encoder,
    write_token_classifier,
)
from peers_of_embeddings import write_splade, write_tokenizer_settings
from served_models import serving

from minhub_py import classify, classify_tokens, embed, from_pretrained, tokenizer_from_pretrained
from minhub_py import similarity as similarity_of
from minhub_py.chat.templates import chat_template_of
from minhub_py.checkpoints.sentence_transformers import EmbeddingSettings
from minhub_py.serve.embeddings import run_encoder
from minhub_py.serve.loading import engine_for
from minhub_py.serve.models import ServedModel

TEXTS = ["The cat sat on the mat.", "a dog ran", "The weather is lovely today."]
WRITERS = {
    "embedder": write_sentence_encoder,
    "classifier": write_classifier,
    "ranker": write_cross_encoder,
    "tokens": write_token_classifier,
    "masked": write_masked_lm,
    "splade": write_splade,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {name: write(tmp_path_factory.mktemp(name)) for name, write in WRITERS.items()}
    for folder in folders.values():
        write_tokenizer_settings(folder)
    return folders


@pytest.fixture(scope="module")
def models(folders: dict[str, Path]) -> Iterator[dict[str, ServedModel]]:
    served = {}
    for name, folder in folders.items():
        model, tokenizer = from_pretrained(folder), tokenizer_from_pretrained(str(folder))
        engine = engine_for(model, tokenizer, name, max_requests=0, context=None)
        template = chat_template_of(None, tokenizer)
        served[name] = ServedModel(name, model, tokenizer, template, engine, 60)
    yield served
    for model in served.values():
        model.engine.close()


@pytest.fixture(scope="module")
def http(models: dict[str, ServedModel]) -> Iterator[httpx2.Client]:
    with serving(*models.values()) as address, httpx2.Client(base_url=address, timeout=60) as http:
        yield http


def post(http: httpx2.Client, path: str, **body: object) -> Any:
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def scores(result: list[dict[str, Any]]) -> dict[str, float]:
    return {row["label"]: row["score"] for row in result}


def loaded(model: ServedModel) -> tuple[Any, Any]:
    return model.model, model.tokenizer


# predict


def test_predict_has_the_labels_of_classify(http, models: dict[str, ServedModel]) -> None:
    columns = classify(*loaded(models["classifier"]), TEXTS)
    single = post(http, "/predict", model="classifier", inputs=TEXTS[0])
    batch = post(http, "/predict", model="classifier", inputs=[[text] for text in TEXTS])
    assert batch[0] == single
    for number, rows in enumerate(batch):
        assert rows == sorted(rows, key=lambda row: -row["score"])
        assert rows[0]["label"] == columns["label"][number]
        expected = {
            label: float(str(columns[f"prob_{label}"][number])) for label in ("bad", "fair", "good")
        }
        assert scores(rows) == pytest.approx(expected, abs=1e-6)


def test_predict_takes_pairs_and_returns_raw_scores(http, models: dict[str, ServedModel]) -> None:
    relevance = post(
        http, "/rerank", model="ranker", query=TEXTS[0], texts=TEXTS[1:], raw_scores=True
    )
    expected = [row["score"] for row in sorted(relevance, key=lambda row: row["index"])]
    pairs = [[TEXTS[0], text] for text in TEXTS[1:]]
    raw = post(http, "/predict", model="ranker", inputs=pairs, raw_scores=True)
    assert [rows[0]["score"] for rows in raw] == expected
    pair = post(http, "/predict", model="ranker", inputs=pairs[0])
    assert pair[0]["score"] == pytest.approx(1 / (1 + np.exp(-expected[0])), abs=1e-6)
    mixed = post(http, "/predict", model="ranker", inputs=[[TEXTS[0]], pairs[0]])
    assert mixed[1] == pair


@pytest.mark.parametrize("aggregation", ["simple", "none"])
def test_predict_has_the_entities_of_transformers(
    http, folders: dict[str, Path], models: dict[str, ServedModel], aggregation: str
) -> None:
    from transformers import pipeline

    peer = pipeline(
        "token-classification", str(folders["tokens"]), aggregation_strategy=aggregation
    )
    texts = [TEXTS[0], TEXTS[2]]
    found = post(
        http,
        "/predict",
        model="tokens",
        inputs=[[text] for text in texts],
        aggregation_strategy=aggregation,
    )
    for rows, expected in zip(found, peer(texts), strict=True):
        key = "entity" if aggregation == "none" else "entity_group"
        assert [(row[key], row["start"], row["end"]) for row in rows] == [
            (row[key], row["start"], row["end"]) for row in expected
        ]
        assert [row["score"] for row in rows] == pytest.approx(
            [float(row["score"]) for row in expected], abs=1e-5
        )
    columns = classify_tokens(*loaded(models["tokens"]), TEXTS[:1])
    one = post(http, "/predict", model="tokens", inputs=TEXTS[0])
    assert [row["word"] for row in one] == columns["word"]


def test_entities_of_a_text_beyond_the_maximum_length_come_from_windows(
    http, models: dict[str, ServedModel]
) -> None:
    text = "The cat sat on the mat. " * 40
    columns = classify_tokens(*loaded(models["tokens"]), [text])
    found = post(http, "/predict", model="tokens", inputs=text)
    assert [row["start"] for row in found] == columns["start"].tolist()
    assert [row["score"] for row in found] == pytest.approx(columns["prob"].tolist(), abs=1e-6)


def test_texts_without_tokens_leave_the_engine_running(
    http, models: dict[str, ServedModel]
) -> None:
    model = models["tokens"]
    assert asyncio.run(run_encoder(model, [], lambda x, _: x)) == []
    assert post(http, "/predict", model="tokens", inputs=TEXTS[0])


def test_a_maximum_length_without_room_is_a_client_error(
    http, models: dict[str, ServedModel]
) -> None:
    model = models["tokens"].model
    settings, model.embedding_settings = model.embedding_settings, EmbeddingSettings(max_length=2)
    try:
        response = http.post("/predict", json={"model": "tokens", "inputs": TEXTS[0]})
    finally:
        model.embedding_settings = settings
    assert response.status_code == 400, response.text


def test_a_mask_is_found_in_a_repository_with_lower_case(
    http, models: dict[str, ServedModel]
) -> None:
    model = models["masked"].model
    text = "The [MASK] sat on the mat."
    expected = post(http, "/fill-mask", model="masked", inputs=text)
    settings, model.embedding_settings = (
        model.embedding_settings,
        EmbeddingSettings(lower_case=True),
    )
    try:
        assert post(http, "/fill-mask", model="masked", inputs=text) == expected
    finally:
        model.embedding_settings = settings


# embed_sparse, similarity


def test_embed_sparse_has_the_weights_of_embed(http, models: dict[str, ServedModel]) -> None:
    for name, prompt in (("masked", None), ("splade", None), ("splade", "query")):
        expected = embed(*loaded(models[name]), TEXTS, pool="splade", prompt=prompt).to_dense()
        for inputs, rows in ((TEXTS, expected), (TEXTS[0], expected[:1])):
            found = post(http, "/embed_sparse", model=name, inputs=inputs, prompt_name=prompt)
            for values, row in zip(found, rows, strict=True):
                dense = np.zeros(len(row), np.float32)
                dense[[value["index"] for value in values]] = [value["value"] for value in values]
                assert np.allclose(dense, row.numpy(), atol=1e-6)
                assert all(value["value"] > 0 for value in values)


def test_similarity_is_the_cosine_of_the_embeddings(http, models: dict[str, ServedModel]) -> None:
    inputs = {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}
    for parameters, prompt in ((None, None), ({"prompt_name": "query", "truncate": True}, "query")):
        vectors = embed(*loaded(models["embedder"]), TEXTS, prompt=prompt)
        expected = similarity_of(vectors[:1], vectors[1:])[0].tolist()
        found = post(http, "/similarity", model="embedder", inputs=inputs, parameters=parameters)
        assert found == pytest.approx(expected, abs=1e-6)


# fill-mask


def test_fill_mask_equals_the_pipeline_of_transformers(http, folders: dict[str, Path]) -> None:
    from transformers import pipeline

    peer = pipeline("fill-mask", str(folders["masked"]))

    def same(found: Any, expected: Any) -> None:
        if isinstance(found, list):
            assert len(found) == len(expected)
            for left, right in zip(found, expected, strict=True):
                same(left, right)
            return
        assert found.keys() == expected.keys()
        assert found["score"] == pytest.approx(expected["score"], abs=1e-5)
        assert {**found, "score": 0} == {**expected, "score": 0}

    for inputs in (
        "The [MASK] sat on the mat.",
        "The [MASK] sat on the [MASK].",
        ["A [MASK].", "the [MASK] [MASK]"],
    ):
        same(post(http, "/fill-mask", model="masked", inputs=inputs), peer(inputs))
    parameters = {"targets": ["cat", "dog"], "top_k": 2}
    found = post(http, "/fill-mask", model="masked", inputs="a [MASK]", parameters=parameters)
    same(found, peer("a [MASK]", **parameters))


# All routes


BODIES: dict[str, dict[str, Any]] = {
    "/predict": {"inputs": TEXTS[0]},
    "/embed_sparse": {"inputs": TEXTS[0]},
    "/similarity": {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}},
    "/fill-mask": {"inputs": "The [MASK]."},
}


@pytest.mark.parametrize("path", BODIES)
def test_a_request_without_a_model_uses_the_first_one_with_the_head(http, path: str) -> None:
    for prefix in ("", "/v1"):
        assert http.post(prefix + path, json=BODIES[path]).status_code == 200


@pytest.mark.parametrize("path", BODIES)
def test_many_clients_get_the_results_of_single_requests(http, path: str) -> None:
    expected = http.post(path, json=BODIES[path]).text
    with ThreadPoolExecutor(20) as pool:
        answers = pool.map(lambda _: http.post(path, json=BODIES[path]).text, range(60))
    assert set(answers) == {expected}


LONG = "the cat " * 100
PAIR = {"source_sentence": "a", "sentences": ["b"]}
INVALID: list[tuple[str, dict[str, Any], str]] = [
    ("/predict", {"model": "embedder", "inputs": "a"}, "is not a checkpoint …ForSequenceClassification"),
    ("/predict", {"model": "classifier"}, "inputs must be a string, a pair of strings, or a list"),
    ("/predict", {"model": "classifier", "inputs": ["a"]}, "inputs must be a pair of strings"),
    ("/predict", {"model": "classifier", "inputs": [["a", "b", "c"]]}, "inputs[0] must be a list of one or two"),
    ("/predict", {"model": "classifier", "inputs": [["a", 1]]}, "inputs[0][1] must be"),
    ("/predict", {"model": "classifier", "inputs": LONG}, "tokens, but classifier reads at most"),
    ("/predict", {"model": "classifier", "inputs": "a", "truncation_direction": "Left"}, "truncation_direction"),
    ("/predict", {"model": "classifier", "inputs": "a", "imaginary": 1}, "imaginary is unknown"),
    ("/predict", {"model": "tokens", "inputs": ["a", "b"]}, "not pairs, for token classification"),
    ("/predict", {"model": "tokens", "inputs": "a", "aggregation_strategy": "most"}, "must be one of none, simple"),
    ("/embed_sparse", {"model": "embedder", "inputs": "a"}, "is not a checkpoint …ForMaskedLM"),
    ("/embed_sparse", {"model": "splade", "inputs": "a", "prompt_name": "other"}, "has no prompt 'other'"),
    ("/embed_sparse", {"model": "splade", "inputs": LONG}, "inputs has"),
    ("/embed_sparse", {"model": "splade", "inputs": []}, "inputs must be"),
    ("/similarity", {"model": "embedder", "inputs": {"sentences": ["a"]}}, "must have source_sentence and sentences"),
    ("/similarity", {"model": "embedder", "inputs": {**PAIR, "x": 1}}, "inputs.x is unknown"),
    ("/similarity", {"model": "embedder", "inputs": PAIR, "parameters": {"x": 1}}, "parameters.x is unknown"),
    ("/similarity", {"model": "splade", "inputs": PAIR}, "splade has sparse embeddings: use /embed_sparse"),
    ("/fill-mask", {"model": "masked", "inputs": "no mask"}, "inputs has no mask"),
    ("/fill-mask", {"model": "masked", "inputs": ["a [MASK]", "b"]}, "inputs[1] has no mask"),
    ("/fill-mask", {"model": "masked", "inputs": "[MASK]", "parameters": {"targets": ["cat sat"]}}, "not one"),
    ("/fill-mask", {"model": "masked", "inputs": "[MASK]", "parameters": {"top_k": 0}}, "top_k must be"),
    ("/fill-mask", {"model": "masked", "inputs": 3}, "inputs must be"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "expected"), INVALID)
def test_invalid_requests_have_the_errors_of_tei(
    http, path: str, body: dict[str, Any], expected: str
) -> None:
    answer = http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json().keys() == {"error", "error_type"}
    assert answer.json()["error_type"] == "Validation"
    assert expected in answer.json()["error"]


FULL: list[tuple[str, dict[str, Any]]] = [
    ("/predict", {"model": "classifier", "inputs": [["a"], ["b", "c"]], "raw_scores": True, "truncate": True}),
    ("/predict", {"model": "tokens", "inputs": "a", "aggregation_strategy": "first"}),
    ("/embed_sparse", {"model": "splade", "inputs": ["a", [5, 6]], "prompt_name": "query", "truncate": True}),
    ("/similarity", {"model": "embedder", "inputs": PAIR, "parameters": {"prompt_name": "query", "truncate": True}}),
    ("/fill-mask", {"model": "masked", "inputs": ["a [MASK]"], "parameters": {"top_k": 2, "targets": ["cat"]}}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body"), FULL)
def test_a_wrong_value_of_a_field_is_a_client_error(http, path: str, body: dict[str, Any]) -> None:
    assert http.post(path, json=body).status_code == 200
    places = [(body, name) for name in body]
    places += [(part, name) for part in body.values() if isinstance(part, dict) for name in part]
    for part, name in places:
        right = part[name]
        for wrong in (
            3,
            -1.5,
            True,
            "x",
            "",
            [],
            [[]],
            [3],
            ["x", 3],
            [["x"], 3],
            {},
            {"a": 1},
            "\ud800",
        ):
            part[name] = wrong
            answer = http.post(path, content=json.dumps(body))
            assert answer.status_code < 500, (name, wrong, answer.text)
            if answer.status_code != 200:
                assert answer.json()["error"], (name, wrong)
        part[name] = right


def test_truncate_shortens_long_texts(http, models: dict[str, ServedModel]) -> None:
    long = post(http, "/predict", model="classifier", inputs=LONG, truncate=True)
    columns = classify(*loaded(models["classifier"]), [LONG])
    assert long[0]["score"] == pytest.approx(float(columns["prob"][0]), abs=1e-6)
    assert post(http, "/embed_sparse", model="splade", inputs=LONG, truncate=True)


def test_the_embedding_route_rejects_sparse_models(http) -> None:
    answer = http.post("/v1/embeddings", json={"model": "splade", "input": "a"})
    assert answer.status_code == 400
    assert "use /embed_sparse" in answer.json()["error"]["message"]
