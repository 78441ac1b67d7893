"""Fixtures of the tests of servers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from needs import CHROMIUM, need
from pages import MARKDOWN, open_page, reciter
from scripted import Script, scripted_model
from served_models import CONTEXT, RECOMMENDED, large, served, serving, write_checkpoint

from minhub_py import gpt2, lstm
from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer
from minhub_py.serve.models import ServedModel


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, bpe_folder: Path) -> Path:
    torch.manual_seed(0)
    vocab_size = read_tokenizer(bpe_folder).get_vocab_size()
    model = gpt2(
        vocab_size=vocab_size,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=CONTEXT,
        eos_token_id=vocab_size - 1,
    )
    path = write_checkpoint(tmp_path_factory.mktemp("serve"), bpe_folder, large(model))
    (path / "generation_config.json").write_text(json.dumps(RECOMMENDED), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory: pytest.TempPathFactory, bpe_folder: Path) -> Path:
    torch.manual_seed(1)
    vocab_size = read_tokenizer(bpe_folder).get_vocab_size()
    return write_checkpoint(
        tmp_path_factory.mktemp("serve"),
        bpe_folder,
        lstm(vocab_size=vocab_size, hidden_size=16, embedding_size=16),
    )


@pytest.fixture(scope="module")
def main_model(folder: Path):
    model = served("tiny", folder)
    yield model
    model.engine.close()


@pytest.fixture(scope="module")
def address(main_model: ServedModel, recurrent: Path):
    """A server with two models, in a thread."""
    with serving(
        main_model, served("other", recurrent), max_body=100_000, read_timeout=0.3
    ) as address:
        yield address


@pytest.fixture(scope="module")
def hermes() -> Iterator[tuple[str, Script]]:
    """The address of a server whose model writes a script's replies."""
    model, script = scripted_model("hermes")
    with serving(model) as address:
        yield address, script
    model.engine.close()


@pytest.fixture
def script(hermes: tuple[str, Script]) -> Script:
    hermes[1].replies = []
    return hermes[1]


@pytest.fixture(scope="module")
def client(address: str):
    import openai  # takes a second to import

    with openai.OpenAI(base_url=f"{address}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def http(address: str):
    with httpx2.Client(base_url=address, timeout=60) as http:
        yield http


@pytest.fixture(scope="module")
def page_address(main_model, recurrent: Path) -> Iterator[str]:
    with serving(main_model, served("other", recurrent)) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    need("Chromium")

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser, page_address: str) -> Iterator[Any]:
    """A tab of a new profile, which must not raise errors or send requests to another server."""
    context = browser.new_context(viewport={"width": 900, "height": 700})
    page, problems = context.new_page(), []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "request",
        lambda request: (
            request.url.startswith((page_address, "data:")) or problems.append(request.url)
        ),
    )
    open_page(page, page_address)
    page.locator("#more").click()
    page.locator("#max_tokens").fill("12")
    page.locator("#seed").fill("5")
    page.locator("#more").click()
    yield page
    context.close()
    assert problems == []


@pytest.fixture(scope="module")
def reciting(tmp_path_factory: pytest.TempPathFactory, bpe_folder: Path) -> Iterator[Any]:
    """A model that generates MARKDOWN."""
    path = reciter(tmp_path_factory.mktemp("serve") / "reciter", bpe_folder, MARKDOWN)
    name = "example-organization/a-model-with-a-long-name-135M-Instruct-Q4_K_M"
    model = served(name, path, max_length=2048)
    yield model
    model.engine.close()


@pytest.fixture(scope="module")
def reciting_address(reciting) -> Iterator[str]:
    with serving(reciting) as address:
        yield address


@pytest.fixture
def markdown_page(browser, reciting_address: str) -> Iterator[Any]:
    """A tab with a server of `reciting`."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page, problems = context.new_page(), []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: message.type == "error" and problems.append(message.text))
    page.on(
        "request",
        lambda request: (
            request.url.startswith((reciting_address, "data:")) or problems.append(request.url)
        ),
    )
    page.goto(reciting_address)
    page.wait_for_selector("#model option", state="attached")
    yield page
    context.close()
    assert problems == []
