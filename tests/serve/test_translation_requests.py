"""Languages of translations in completions and chats, with models of each style."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import torch
from served_models import connected, served, user
from translation_models import save_languages, save_t5

STYLES: dict[str, dict[str, Any]] = {
    "nllb": {"codes": ["eng_Latn", "deu_Latn"]},
    "m2m100": {"codes": ["__en__", "__de__"], "tokenizer_class": "M2M100Tokenizer"},
    "mbart": {
        "codes": ["en_XX", "de_DE"],
        "tokenizer_class": "MBartTokenizer",
        "model_type": "mbart",
    },
}
TEXT, NEW = "the cat sat on the mat .", 8
LANGUAGES = {"source_language": "English", "target_language": "de"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Any]]:
    """transformers' model and the served one, by style."""
    made = {}
    for name, style in STYLES.items():
        folder = tmp_path_factory.mktemp(name)
        reference = save_languages(folder, **style)
        made[name] = (reference, served(name, folder, max_length=64))
    return made


@pytest.fixture(scope="module")
def http(
    models: dict[str, tuple[Any, Any]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx2.Client]:
    save_t5(folder := tmp_path_factory.mktemp("t5"))
    everything = [model for _, model in models.values()]
    with connected(*everything, served("t5", folder, max_length=64)) as client:
        yield client


def translated(reference: Any, model: Any, style: str, beams: int = 1) -> str:
    """transformers' translation of the text."""
    tokenizer, codes = model.tokenizer, STYLES[style]["codes"]
    source, target = map(tokenizer.token_to_id, codes)
    ids = tokenizer.encode(TEXT, add_special_tokens=False).ids
    ids = [*ids, 2, source] if style == "mbart" else [source, *ids, 2]
    name = "decoder_start_token_id" if style == "mbart" else "forced_bos_token_id"
    output = reference.generate(
        torch.tensor([ids]), num_beams=beams, do_sample=False, max_new_tokens=NEW, **{name: target}
    )
    return tokenizer.decode(output[0, 1:].tolist())


def completion(http: httpx2.Client, model: str, **fields: Any) -> str:
    fields = {"model": model, "prompt": TEXT, "max_tokens": NEW, **fields}
    response = http.post("/v1/completions", json=fields)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["text"]


def error(http: httpx2.Client, model: str, path: str = "/v1/completions", **fields: Any) -> Any:
    if path == "/v1/completions":
        fields = {"prompt": TEXT, **fields}
    response = http.post(path, json={"model": model, **fields})
    assert response.status_code == 400, response.text
    return response.json()["error"]


@pytest.mark.parametrize("style", STYLES)
def test_requests_name_the_languages(style: str, models: dict, http: httpx2.Client) -> None:
    for beams in (1, 3):
        expected = translated(*models[style], style, beams)
        fields = {**LANGUAGES, **({} if beams == 1 else {"beams": beams})}
        assert completion(http, style, **fields) == expected
        chat = [*user("Hello"), {"role": "assistant", "content": "Hallo"}, *user(TEXT)]
        body = {"model": style, "messages": chat, "max_tokens": NEW, **fields}
        reply = http.post("/v1/chat/completions", json=body).json()
        assert reply["choices"][0]["message"]["content"] == expected


def test_other_apis_have_the_same_languages(models: dict, http: httpx2.Client) -> None:
    expected = translated(*models["nllb"], "nllb")
    for path, body, reply in (
        (
            "/v1/messages",
            {"messages": user(TEXT), "max_tokens": NEW},
            lambda found: found["content"][0]["text"],
        ),
        (
            "/v1/responses",
            {"input": TEXT, "max_output_tokens": NEW},
            lambda found: found["output"][0]["content"][0]["text"],
        ),
        ("/api/chat", {"messages": user(TEXT)}, lambda found: found["message"]["content"]),
        ("/api/generate", {"prompt": TEXT}, lambda found: found["response"]),
    ):
        if path.startswith("/api"):
            body |= {"stream": False, "options": {"num_predict": NEW}}
        body |= {"model": "nllb"}
        found = http.post(path, json=body | LANGUAGES)
        assert found.status_code == 200, found.text
        assert reply(found.json()) == expected, path
        found = http.post(path, json=body)
        assert found.status_code == 400
        assert "target_language" in found.text, path
    system = {"model": "nllb", "prompt": TEXT, "system": "Translate", **LANGUAGES}
    assert "no system message" in http.post("/api/generate", json=system).text
    counted = {"model": "nllb", "messages": user(TEXT), **LANGUAGES}
    count = http.post("/v1/messages/count_tokens", json=counted).json()["input_tokens"]
    assert count == len(models["nllb"][1].tokenizer.encode(TEXT).ids)


def test_a_reply_without_max_tokens_fills_the_context(http: httpx2.Client) -> None:
    body = {"model": "t5", "messages": user(TEXT), "ignore_eos": True}
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["completion_tokens"] == 63  # after the decoder's first token


def test_tasks_of_t5_have_their_prefix(http: httpx2.Client) -> None:
    prompts = [(TEXT, LANGUAGES), (f"the dog ran {TEXT}", {}), (TEXT, {})]
    counts = []
    for prompt, fields in prompts:
        body = {"model": "t5", "prompt": prompt, "max_tokens": 1, **fields}
        counts.append(http.post("/v1/completions", json=body).json()["usage"]["prompt_tokens"])
    assert counts == [counts[2] + 3, counts[2] + 3, counts[2]]
    message = error(http, "t5", source_language="de", target_language="en")["message"]
    assert "source_language: the model has no language" in message


def test_languages_that_are_missing_or_unknown(http: httpx2.Client) -> None:
    for path, fields in (
        ("/v1/completions", {}),
        ("/v1/chat/completions", {"messages": user(TEXT)}),
    ):
        found = error(http, "nllb", path, **fields)
        assert "the model needs target_language: a name, such as English" in found["message"]
        assert found["param"] == "target_language"
        found = error(http, "nllb", path, **fields, target_language="de")
        assert "the model needs source_language" in found["message"]
        found = error(http, "nllb", path, **fields, source_language="en", target_language="xx")
        assert "target_language: the model has no language 'xx'" in found["message"]
    assert (
        "add_special_tokens"
        in error(http, "nllb", **LANGUAGES, add_special_tokens=False)["message"]
    )
    found = error(http, "nllb", **LANGUAGES, truncate_prompt_tokens=3)
    assert "truncate_prompt_tokens is not supported" in found["message"]
    assert "must not be empty" in error(http, "nllb", prompt=" ", **LANGUAGES)["message"]
    messages = [{"role": "system", "content": "Translate"}, *user(TEXT)]
    found = error(http, "nllb", "/v1/chat/completions", messages=messages, **LANGUAGES)
    assert "no system message" in found["message"]


def test_a_decoder_rejects_languages(http: httpx2.Client, main_model: Any) -> None:
    with connected(main_model) as other:
        assert "not supported" in error(other, main_model.name, **LANGUAGES)["message"]
