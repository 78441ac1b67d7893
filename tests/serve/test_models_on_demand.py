"""Models that are loaded by requests, unloaded by limits, downloaded and deleted."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx2
import pytest
from hub_server import HubServer
from needs import needs
from pages import messages, open_page, say, show
from served_models import WRONG, alone, connected, served, serving, wait

from minhub_py.serve.catalog import Models, ModelSource
from minhub_py.serve.loading import sources_in_cache
from minhub_py.system.duration import parse_duration

PROMPT = {"prompt": "Once upon", "max_tokens": 8, "seed": 3, "temperature": 1}
REQUEST = {"prompt": "Once upon", "stream": False, "options": {"num_predict": 2, "seed": 3}}


class Folder:
    """Three models of one checkpoint; counts their loads and can delay or prevent them."""

    def __init__(self, folder: Path, names: tuple[str, ...] = ("a", "b", "c")) -> None:
        self.folder, self.names = folder, names
        self.loads: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None

    def load(self, name: str):
        self.loads.append(name)
        self.gate.wait(30)
        if self.error is not None:
            raise self.error
        return served(name, self.folder)

    def sources(self) -> dict[str, ModelSource]:
        return {name: ModelSource(partial(self.load, name), 1000) for name in self.names}


@pytest.fixture
def models_folder(folder: Path) -> Folder:
    return Folder(folder)


@contextmanager
def on_demand(models_folder: Folder, allow_pull: bool = False, **limits):
    models = Models(cached=models_folder.sources, **limits)
    with connected(models, allow_pull=allow_pull) as http:
        http.models = models
        yield http


def complete(http, name: str) -> str:
    response = http.post("/v1/completions", json={"model": name, **PROMPT})
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["text"]


def loaded(http) -> list[str]:
    return [entry["name"].removesuffix(":latest") for entry in http.get("/api/ps").json()["models"]]


def states(http) -> dict[str, str]:
    return {
        entry["id"]: entry["status"]["value"] for entry in http.get("/v1/models").json()["data"]
    }


def test_a_request_loads_its_model_and_replies_as_generate(
    models_folder: Folder, folder: Path
) -> None:
    with on_demand(models_folder) as http:
        assert states(http) == {"a": "unloaded", "b": "unloaded", "c": "unloaded"}
        text = complete(http, "b")
        assert loaded(http) == ["b"]
        assert models_folder.loads == ["b"]
        [model] = http.models.all
        assert text == alone(model, model.tokenizer.encode("Once upon").ids, 8, 3)
        assert complete(http, "b:latest") == text
        assert models_folder.loads == ["b"]
        response = http.post("/v1/completions", json={"model": "d", **PROMPT})
        assert response.status_code == 404
        assert "available are a, b, c" in response.json()["error"]["message"]


def test_simultaneous_requests_share_one_load(models_folder: Folder) -> None:
    with on_demand(models_folder) as http, ThreadPoolExecutor(8) as pool:
        models_folder.gate.clear()
        replies = [pool.submit(complete, http, "a") for _ in range(8)]
        wait(lambda: states(http)["a"] == "loading")
        models_folder.gate.set()
        assert len({reply.result() for reply in replies}) == 1
        assert models_folder.loads == ["a"]


def test_the_least_recently_used_model_is_unloaded_first(models_folder: Folder) -> None:
    with on_demand(models_folder, max_models=2) as http:
        for name in ("a", "b", "a", "c"):
            complete(http, name)
        assert sorted(loaded(http)) == ["a", "c"]
        model = http.models.all[0]
        one = http.models.entries[model.name].size
        kv = model.model.new_cache(model.engine.batch_size, model.engine.max_length).size
        assert one == sum(weight.nbytes for weight in model.model.parameters()) + kv
    with on_demand(models_folder, max_memory=one * 3 // 2) as http:
        for name in ("a", "b"):
            complete(http, name)
            assert loaded(http) == [name]
    with on_demand(models_folder, max_memory=900) as http:
        response = http.post("/v1/completions", json={"model": "a", **PROMPT})
        assert response.status_code == 503
        assert "--max-memory" in response.json()["error"]["message"]


def test_an_alias_is_another_name(models_folder: Folder) -> None:
    with on_demand(models_folder, aliases={"claude-*": "b"}) as http:
        assert complete(http, "claude-sonnet-4-5") == complete(http, "b")
        assert loaded(http) == ["b"]
        properties = http.get("/props", params={"model": "claude-x"}).json()  # it is loaded
        [model] = http.models.all
        assert (properties["model_alias"], properties["total_slots"]) == (
            "b",
            model.engine.batch_size,
        )
        assert properties["default_generation_settings"]["n_ctx"] == model.engine.max_length
        slots = http.get("/v1/slots").json()
        assert [slot["is_processing"] for slot in slots] == [False] * model.engine.batch_size


def test_get_requests_do_not_load_a_model(models_folder: Folder) -> None:
    """A web page can send them, for example as an image."""
    with on_demand(models_folder) as http:
        properties = http.get("/props").json()
        assert properties["role"] == "router"
        assert properties["default_generation_settings"] == {"n_ctx": 0, "params": {}}
        assert http.get("/slots").json() == []
        assert "POST /models/load" in http.get("/tokenizer_info").json()["error"]["message"]
        for path in ("/props", "/slots", "/tokenizer_info"):
            for query in ({"model": "b"}, {"model": "b", "autoload": "true"}):
                response = http.get(path, params=query)
                assert response.status_code == 400
                assert (
                    response.json()["error"]["message"]
                    == "b is not loaded: load it with POST /models/load"
                )
            assert http.head(path, params={"model": "b"}).status_code == 400
        for path in ("/v1/models/b", "/v1/models", "/api/tags", "/api/ps", "/metrics", "/health"):
            assert http.get(path, params={"model": "b"}).status_code == 200
        assert models_folder.loads == []
        assert http.get("/props", params={"model": "d"}).status_code == 404
        assert http.post("/models/load", json={"model": "b"}).status_code == 200
        assert http.get("/props", params={"model": "b"}).json()["model_alias"] == "b"
        assert http.get("/props").json()["model_alias"] == "b"  # the first loaded model
        assert http.get("/tokenizer_info", params={"model": "b"}).json()["vocab_size"] > 0
        assert http.get("/tokenizer_info").json()["vocab_size"] > 0
        assert models_folder.loads == ["b"]


def test_a_model_in_use_is_not_unloaded(models_folder: Folder) -> None:
    long = {
        "model": "a",
        "prompt": "Once",
        "max_tokens": 200,
        "ignore_eos": True,
        "stream": True,
        "seed": 1,
    }
    with on_demand(models_folder, max_models=1, timeout=0.1) as http:
        with http.stream("POST", "/v1/completions", json=long) as response:
            lines = response.iter_lines()
            next(lines)
            assert http.post("/models/unload", json={"model": "a"}).status_code in (200, 409)
            other = http.post("/v1/completions", json={"model": "b", **PROMPT})
            text = "".join(lines)
        assert text.endswith("data: [DONE]")
        assert '"error"' not in text
        assert other.status_code in (200, 503)
        complete(http, "b")  # the first reply has ended
        assert loaded(http) == ["b"]


def test_idle_models_are_unloaded_after_keep_alive(models_folder: Folder) -> None:
    with on_demand(models_folder, keep_alive=None) as http:
        http.post("/api/generate", json={"model": "a", **REQUEST}).raise_for_status()
        http.post(
            "/api/generate", json={"model": "b", "keep_alive": "10ms", **REQUEST}
        ).raise_for_status()
        wait(lambda: loaded(http) == ["a"])
        reply = http.post("/api/chat", json={"model": "a", "messages": [], "keep_alive": 0}).json()
        assert reply["done_reason"] == "unload"
        wait(lambda: loaded(http) == [])
        assert (
            http.post("/api/generate", json={"model": "a", "keep_alive": "soon"}).status_code == 400
        )
        assert complete(http, "a")


def test_a_failed_load_is_an_error_and_is_tried_again(
    models_folder: Folder, capfd: pytest.CaptureFixture[str]
) -> None:
    with on_demand(models_folder) as http:
        models_folder.error = ValueError("/secret/path is corrupt")
        response = http.post("/v1/completions", json={"model": "a", **PROMPT})
        assert response.status_code == 500
        assert "a cannot be loaded" in response.json()["error"]["message"]
        assert "secret" not in response.text
        assert "/secret/path is corrupt" in capfd.readouterr().err
        assert states(http)["a"] == "failed"
        models_folder.error = None
        assert complete(http, "a")
        assert states(http)["a"] == "loaded"


def test_load_and_unload_on_request(models_folder: Folder) -> None:
    with on_demand(models_folder) as http:
        assert http.post("/models/load", json={"model": "c"}).json() == {"success": True}
        assert loaded(http) == ["c"]
        assert http.post("/models/unload", json={"model": "c"}).json() == {"success": True}
        assert loaded(http) == []
        assert states(http)["c"] == "unloaded"
        for path in ("/models/load", "/models/unload"):
            assert http.post(path, json={}).status_code == 400
            assert http.post(path, json={"model": "d"}).status_code == 404
            assert all(
                http.post(path, json={"model": value}).status_code in (400, 404)
                for value in WRONG[:6]
            )


def test_a_server_that_stops_during_a_load_ends(models_folder: Folder) -> None:
    models = Models(cached=models_folder.sources)
    models_folder.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        with serving(models, grace=0.0) as address:
            reply = pool.submit(
                httpx2.post, f"{address}/v1/completions", json={"model": "a", **PROMPT}, timeout=30
            )
            wait(lambda: models_folder.loads)
        models_folder.gate.set()
    assert isinstance(reply.exception(), httpx2.TransportError) or reply.result().status_code >= 500


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_pull_downloads_with_progress_and_delete_removes(hub: HubServer, folder: Path) -> None:
    hub.add("owner/tiny", files_of(folder))
    load = partial(served, folder=folder)
    models = Models(cached=lambda: sources_in_cache(load))
    with connected(models, allow_pull=True) as http:
        lines = [
            json.loads(line)
            for line in http.post("/api/pull", json={"model": "owner/tiny"}).text.splitlines()
        ]
        assert lines[0] == {"status": "pulling manifest"}
        assert lines[-1] == {"status": "success"}
        done = {line["digest"]: line for line in lines if "digest" in line}
        assert done["model.safetensors"]["completed"] == done["model.safetensors"]["total"] > 0
        assert states(http)["owner/tiny"] == "unloaded"
        assert complete(http, "owner/tiny")
        assert (
            http.request("DELETE", "/api/delete", json={"model": "owner/tiny"}).status_code == 200
        )
        assert "owner/tiny" not in states(http)
        assert (
            http.request("DELETE", "/api/delete", json={"model": "owner/tiny"}).status_code == 404
        )
        assert all(
            http.post("/api/pull", json={"model": value}).status_code == 400
            for value in (None, 1, [], {})
        )
        assert (
            http.post("/api/pull", json={"model": "owner/tiny", "stream": "yes"}).status_code == 400
        )
        failed = http.post("/api/pull", json={"model": "owner/missing"})
        assert failed.status_code == 200
        assert "no repository" in json.loads(failed.text.splitlines()[-1])["error"]
        failed = http.post("/api/pull", json={"model": "owner/missing", "stream": False})
        assert failed.status_code == 500
        assert "no repository" in failed.json()["error"]


def test_a_server_without_allow_pull_changes_no_files(models_folder: Folder) -> None:
    with on_demand(models_folder) as http:
        assert http.post("/api/pull", json={"model": "owner/tiny"}).status_code == 403
        assert (
            http.request("DELETE", "/api/delete", json={"model": "owner/tiny"}).status_code == 403
        )


def test_an_interrupted_pull_is_continued(hub: HubServer, folder: Path) -> None:
    weights = 3_000_000 * b"x"
    hub.add("owner/large", {**files_of(folder), "model.safetensors": weights})
    hub.drip("body", where="model.safetensors")
    with connected(Models(), allow_pull=True) as http:
        with http.stream("POST", "/api/pull", json={"model": "owner/large"}) as response:
            for line in response.iter_lines():
                if "model.safetensors" in line:
                    break
        hub.heal()
        lines = http.post("/api/pull", json={"model": "owner/large"}).text.splitlines()
        assert json.loads(lines[-1]) == {"status": "success"}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5m", 300), ("1h30m", 5400), (10, 10), ("10", 10), ("-1", None), (-1, None), ("500ms", 0.5)],
)
def test_durations(text: object, seconds: float | None) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "5 minutes", True, [], float("nan"), "1m-"])
def test_other_durations_are_rejected(text: object) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@needs("Chromium")
def test_the_page_loads_and_downloads_models(
    browser, hub: HubServer, folder: Path, models_folder: Folder
) -> None:
    hub.add("owner/tiny", files_of(folder))
    cached = partial(sources_in_cache, partial(served, folder=folder))
    models = Models(cached=lambda: models_folder.sources() | cached())
    with serving(models, allow_pull=True) as address:
        page = browser.new_context(viewport={"width": 900, "height": 700}).new_page()
        open_page(page, address)
        assert page.locator("#model option").first.inner_text() == "a (not loaded)"
        page.locator("#more").click()
        page.locator("#max_tokens").fill("12")
        models_folder.gate.clear()
        page.locator("#more").click()
        say(page, "Hello")
        page.get_by_text("Loading a …").wait_for()
        show(page, "loading")
        models_folder.gate.set()
        assert len(messages(page)) == 2
        page.get_by_text("a (not loaded)").wait_for(state="detached")
        page.locator("#more").click()
        page.locator("#pull").fill("owner/missing")
        page.locator("#download").click()
        page.get_by_text("no repository owner/missing").wait_for()
        page.locator("#pull").fill("owner/tiny")
        page.keyboard.press("Enter")
        page.get_by_text("owner/tiny is ready.").wait_for()
        show(page, "download")
        assert page.locator("#model").input_value() == "owner/tiny"
        page.context.close()


@needs("Chromium")
def test_an_image_of_another_web_page_is_rejected(browser, models_folder: Folder) -> None:
    with serving(Models(cached=models_folder.sources)) as address, serving(Models()) as other:
        page = browser.new_context().new_page()
        page.goto(f"{other}/health")  # without a policy about images
        for path in ("/props?model=a", "/v1/models"):
            with page.expect_event("requestfailed"):  # the browser hides the response
                page.evaluate("address => { new Image().src = address }", f"{address}{path}")
        counts = httpx2.get(f"{address}/metrics").text
        assert 'minhub_requests_total{path="other",status="403"} 2' in counts
        assert models_folder.loads == []
        page.goto(address)  # a link
        page.wait_for_selector("#model option", state="attached")
        page.context.close()
