"""The web page of `minhub serve` in a real browser: Debian's Chromium, driven by Playwright.

MINHUB_SCREENSHOTS=FOLDER writes what it looks like.
"""

import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_chat import bot, tokenizer  # noqa: F401  # fixtures
from test_serve import alone, folder, main_model, recurrent, served, wait  # noqa: F401  # fixtures

from minhub_py.serve.app import Server
from minhub_py.serve.models import Models
from minhub_py.serve.run import Background

CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: chromium-headless-shell)")


@pytest.fixture(scope="module")
def address(main_model, recurrent: Path) -> Iterator[str]:  # noqa: F811
    models = Models([main_model, served("other", recurrent)])
    with Background(Server(models), grace=0.2) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser, address: str) -> Iterator[Any]:
    """A tab of a fresh profile. Nothing may go wrong in it, and nothing be asked of another server."""
    context = browser.new_context(viewport={"width": 900, "height": 700})
    page, problems = context.new_page(), []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: request.url.startswith((address, "data:")) or problems.append(request.url))
    open_page(page, address)
    page.locator("#more").click()
    page.locator("#max_tokens").fill("12")
    page.locator("#seed").fill("5")
    page.locator("#more").click()
    yield page
    context.close()
    assert problems == []


def open_page(page: Any, address: str) -> None:
    page.goto(address)
    page.wait_for_selector("#model option:nth-child(2)", state="attached")


def say(page: Any, text: str) -> None:
    page.locator("#prompt").fill(text)
    page.keyboard.press("Enter")


def ended(page: Any) -> list[str]:
    """The texts of the conversation, when the reply has ended."""
    page.wait_for_selector("#stop", state="hidden")
    return page.locator("article .text").all_inner_texts()


def show(page: Any, name: str) -> None:
    if where := os.environ.get("MINHUB_SCREENSHOTS"):
        page.screenshot(path=f"{where}/{name}.png")


def test_a_conversation(page, address: str) -> None:
    say(page, "Good morning, how are you?")
    first = ended(page)
    assert len(first) == 2
    assert first[0] == "Good morning, how are you?"
    assert page.locator("article.assistant .word").count() > 3
    assert "cut at the longest reply" in page.locator("article.assistant .tools").inner_text()
    say(page, "And then?")
    both = ended(page)
    assert (both[:2], both[2]) == (first, "And then?")
    page.reload()
    page.wait_for_selector("article.assistant")
    assert ended(page) == both
    show(page, "conversation")


def test_hover_and_keyboard_tell_how_likely_a_word_was(page) -> None:
    say(page, "Tell me a story")
    ended(page)
    page.locator("article.assistant .word").nth(2).hover()
    table = page.locator("#hint tr")
    assert table.count() >= 5
    assert page.locator("#hint tr.it").count() >= 1  # a word may be of several tokens
    assert re.search(r"[\d.]+ %", page.locator("#hint").inner_text())
    show(page, "hover")
    page.mouse.move(1, 1)
    assert page.locator("#hint").is_hidden()
    page.locator("article.assistant .text").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.locator(".word.at").count() == 1
    assert page.locator("#hint").is_visible()
    page.locator("#more").click()
    page.locator("#shade").check()
    show(page, "shaded")


def test_again_and_edit_make_branches(page) -> None:
    say(page, "First question")
    first = ended(page)
    page.locator("#more").click()
    page.locator("#seed").fill("6")
    page.get_by_role("button", name="Make this reply again").click()
    page.wait_for_selector("text=2 of 2")
    again = ended(page)
    assert again[0] == first[0]
    assert again[1] != first[1]
    page.get_by_role("button", name="The version before").click()
    assert ended(page) == first
    page.get_by_role("button", name="Edit this message").click()
    page.get_by_label("Edit the message").fill("Another question")
    page.keyboard.press("Enter")
    page.wait_for_selector("article.user >> text=2 of 2")
    assert ended(page)[0] == "Another question"
    page.locator("article.user").get_by_role("button", name="The version before").click()
    assert ended(page)[0] == "First question"


def test_stop_keeps_the_beginning(page, main_model, monkeypatch) -> None:  # noqa: F811
    engine = main_model.engine
    step = engine._step
    monkeypatch.setattr(engine, "_step", lambda batch: time.sleep(0.05) or step(batch))
    page.locator("#more").click()
    page.locator("#max_tokens").fill("200")
    say(page, "Go on and on")
    page.wait_for_selector(".busy .word:nth-child(4)")
    show(page, "busy")
    page.keyboard.press("Escape")
    texts = ended(page)
    assert texts[1]
    assert "stopped" in page.locator("article.assistant .tools").inner_text()
    wait(lambda: engine.open == 0)
    assert ended(page) == texts


def test_two_tabs_and_two_models(page, address: str) -> None:
    say(page, "I am the first tab")
    first = ended(page)
    other = page.context.new_page()
    open_page(other, address)
    assert other.locator("article").count() == 0
    other.locator("#model").select_option("other")
    say(other, "I am the second tab")
    second = ended(other)
    assert other.locator("article.assistant h2").inner_text() == "other"
    say(page, "Still the first")
    assert ended(page)[:2] == first
    other.reload()
    other.wait_for_selector("article.assistant")
    assert ended(other) == second
    titles = other.locator("#chats option").all_inner_texts()
    assert sorted(titles) == ["I am the first tab", "I am the second tab"]
    other.locator("#chats").select_option(label="I am the first tab")
    assert ended(other)[:2] == first
    other.locator("#delete").click()
    assert other.locator("article").count() == 0


def test_an_error_is_told_and_can_be_mended(page) -> None:
    page.locator("#more").click()
    say(page, "refuse me")
    page.wait_for_selector("#error")
    assert "no thanks" in page.get_by_role("alert").inner_text()
    assert ended(page) == ["refuse me"]
    show(page, "error")
    page.get_by_role("button", name="Edit this message").click()
    page.get_by_label("Edit the message").fill("<b>be kind</b>")
    page.get_by_role("button", name="Send the edited message").click()
    page.wait_for_selector("article.assistant")
    assert ended(page)[0] == "<b>be kind</b>"
    assert page.locator("#error").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_small_screens(browser, address: str, scheme: str) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 640}, color_scheme=scheme)
    page = context.new_page()
    open_page(page, address)
    page.locator("#more").click()
    page.locator("#max_tokens").fill("40")
    show(page, f"settings-{scheme}")
    page.locator("#more").click()
    say(page, "A long message " * 10)
    ended(page)
    show(page, f"small-{scheme}")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")
    controls = "[...document.querySelectorAll('button, input, select, textarea')]"
    assert page.evaluate(f"{controls}.every(each => each.textContent || each.labels?.length)")
    context.close()


def test_a_key_is_asked_for(browser, main_model) -> None:  # noqa: F811
    server = Server(Models([main_model]), key="secret")
    with Background(server, grace=0.2) as address:
        page = browser.new_context().new_page()
        page.goto(address)
        page.wait_for_selector("#error")
        assert "API key" in page.get_by_role("alert").inner_text()
        page.locator("#key").fill("secret")
        page.keyboard.press("Tab")
        page.wait_for_selector("#model option", state="attached")
        assert page.locator("#error").count() == 0
        page.context.close()


def test_dialogpts_bot(browser, bot: Path) -> None:  # noqa: F811
    """The tutorial's: turns are separated by the end-of-text token, 50 tokens at most, temperature 0.8; and Reset."""
    found = served("bot", bot, max_length=128)
    with Background(Server(Models([found])), grace=0.2) as address:
        page = browser.new_context().new_page()
        page.goto(address)
        page.wait_for_selector("#model option", state="attached")
        assert "as DialoGPT's are" in page.locator("body").inner_text()
        page.locator("#more").click()
        for name, value in (("max_tokens", 20), ("temperature", 0.8), ("seed", 5)):
            page.locator(f"#{name}").fill(str(value))
        page.locator("#more").click()
        page.keyboard.press("Enter")  # an empty prompt is ignored
        messages = []
        for text in ("Good morning!", "How do you feel today?"):
            messages.append({"role": "user", "content": text})
            ids = found.template.encode(messages)
            assert ids.count(0) == len(messages)
            say(page, text)
            reply = alone(found, ids, 20, 5, temperature=0.8)
            assert ended(page)[-1].split() == reply.split()
            messages.append({"role": "assistant", "content": reply})
        show(page, "dialogpt")
        page.context.close()
    found.engine.close()
