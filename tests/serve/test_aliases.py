"""Aliases of models, and names of models in requests that change the cache."""

import json
from functools import partial
from pathlib import Path

import pytest
from commands import failed
from hub_server import HubServer
from served_models import connected, served, user

from minhub_py.cli.serving import parse_aliases
from minhub_py.serve.catalog import Models
from minhub_py.serve.loading import sources_in_cache
from minhub_py.serve.models import ServedModel


@pytest.fixture(scope="module")
def other_model(recurrent: Path):
    model = served("other", recurrent)
    yield model
    model.engine.close()


def model_of(http, name: str) -> str:
    response = http.post("/v1/completions", json={"model": name, "prompt": "Hi", "max_tokens": 1})
    return response.json()["model"] if response.status_code == 200 else str(response.status_code)


@pytest.fixture(scope="module")
def http(main_model: ServedModel, other_model: ServedModel):
    aliases = {"*": "tiny", "gpt-4": "other", "gpt-*": "tiny", "gone": "missing"}
    with connected(Models((main_model, other_model), aliases=aliases)) as http:
        yield http


def test_names_of_models_precede_patterns(http) -> None:
    expected = {
        "tiny": "tiny",
        "other": "other",
        "other:latest": "other",
        "gpt-4": "other",
        "gpt-4:latest": "other",
        "gpt-5": "tiny",
        "anything": "tiny",
    }
    assert {name: model_of(http, name) for name in expected} == expected


def test_a_model_of_the_cache_precedes_patterns(folder: Path, hub: HubServer) -> None:
    """Also before any request has listed the cache."""
    load = partial(served, folder=folder)
    models = Models(
        cached=lambda: sources_in_cache(load),
        aliases={"*": "minhub/shakespeare-gpt2"},
        max_models=1,
    )
    with connected(models) as http:
        assert model_of(http, "minhub/shakespeare-lstm") == "minhub/shakespeare-lstm"
        assert model_of(http, "x") == "minhub/shakespeare-gpt2"
        for served_model in models.all:
            served_model.close()


def test_aliases_without_patterns_are_listed(http) -> None:
    listed = {entry["id"]: entry.get("root") for entry in http.get("/v1/models").json()["data"]}
    assert listed == {"tiny": None, "other": None, "gpt-4": "other"}
    [_, other, alias] = http.get("/api/tags").json()["models"]
    assert (other["name"], alias["name"]) == ("other:latest", "gpt-4:latest")
    assert (other["size"], other["details"]) == (alias["size"], alias["details"])
    assert http.get("/v1/models/gpt-4").json()["id"] == "gpt-4"
    assert http.get("/v1/models/other").json()["id"] == "other"
    assert http.post("/api/show", json={"model": "gpt-4:latest"}).status_code == 200
    body = {
        "model": "gpt-4",
        "messages": user("Hi"),
        "stream": False,
        "options": {"num_predict": 1},
    }
    assert http.post("/api/chat", json=body).status_code == 200


def test_an_alias_of_a_path_is_one_of_its_model(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    parse = partial(parse_aliases, models=[str(folder), "owner/name"], adapters={"calm": "x"})
    texts = [
        f"a={folder}",
        f"b={folder}/",
        "c=model",
        "d=owner/name",
        "e=calm",
        "f=owner/name+calm",
        "g*=model",
    ]
    assert parse(texts) == {
        "a": "model",
        "b": "model",
        "c": "model",
        "d": "owner/name",
        "e": "calm",
        "f": "calm",
        "g*": "model",
    }


@pytest.mark.parametrize(
    ("alias", "reason"),
    [
        ("x=unknown", "there is no model unknown; available are NAME."),
        ("x=/no/folder", "there is no model /no/folder"),
        ("NAME=NAME", "another model has the name NAME"),
        ("x=", "such as 'claude-*=qwen'"),
        ("*=unknown", "there is no model unknown"),
    ],
)
def test_an_alias_of_an_unknown_model_is_an_error_at_the_start(
    folder: Path, alias: str, reason: str
) -> None:
    alias, reason = (text.replace("NAME", folder.name) for text in (alias, reason))
    assert reason in failed("serve", str(folder), "--alias", alias, "--port", "0", status=2)


# Names in requests that change the cache


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "PATH/config.json",
        "./PATH",
        "~/models",
        "a/b/c",
        "../x",
        "x y",
        "a--b",
        "",
        "owner/name:../x.gguf",
        "owner/name:/etc/x.gguf",
        "C:\\models",
    ],
)
def test_invalid_names_are_client_errors_that_do_not_depend_on_files(
    folder: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(folder)
    existing, missing = name.replace("PATH", str(folder)), name.replace("PATH", f"{folder}-missing")
    with connected(Models(), allow_pull=True) as http:
        for method, path in (("POST", "/api/pull"), ("DELETE", "/api/delete")):
            answers = [
                http.request(method, path, json={"model": each}) for each in (existing, missing)
            ]
            assert [answer.status_code for answer in answers] == [400, 400]
            texts = [answer.text.replace(f"{folder}-missing", str(folder)) for answer in answers]
            if len(existing) < 30:  # longer names are shortened
                assert texts[0] == texts[1]
            assert "Did you mean" not in texts[0]
            assert "local file" not in texts[0]


def test_errors_do_not_suggest_or_name_local_folders(
    folder: Path,
    hub: HubServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "owner" / "secret").mkdir(parents=True)
    (tmp_path / "owner" / "secret" / "config.json").write_text("{}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with connected(Models(), allow_pull=True) as http:
        text = http.post("/api/pull", json={"model": "owner/secre"}).text
        assert "no repository owner/secre" in text
        assert "no folder" not in text
        assert "Did you mean" not in text
        text = http.request("DELETE", "/api/delete", json={"model": "owner/secre"}).text
        assert "owner/secre is not in the local cache" in text
        assert "Did you mean" not in text
        # The cache is a file.
        hub.add("owner/tiny", {path.name: path.read_bytes() for path in folder.iterdir()})
        from huggingface_hub import constants

        blocked = tmp_path / "blocked"
        blocked.write_text("", encoding="utf-8")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(blocked))
        last = json.loads(
            http.post("/api/pull", json={"model": "owner/tiny"}).text.splitlines()[-1]
        )
        assert "the server's output has the reason" in last["error"]
        assert str(tmp_path) not in last["error"]
        assert str(blocked) in capfd.readouterr().err


def test_an_alias_is_pulled_and_deleted_as_its_model(folder: Path, hub: HubServer) -> None:
    hub.add("owner/tiny", {path.name: path.read_bytes() for path in folder.iterdir()})
    with connected(Models(aliases={"small": "owner/tiny"}), allow_pull=True) as http:
        assert http.post("/api/pull", json={"model": "small:latest", "stream": False}).json() == {
            "status": "success"
        }
        assert http.request("DELETE", "/api/delete", json={"model": "small"}).status_code == 200
        assert http.request("DELETE", "/api/delete", json={"model": "small"}).status_code == 404
