"""The web page shows reasoning and calls of tools."""

from collections.abc import Iterator
from typing import Any

import pytest
from pages import messages, say, show
from scripted import Script, scripted_model

from minhub_py.serve.catalog import Models
from minhub_py.serve.run import BackgroundServer
from minhub_py.serve.server import Server


@pytest.fixture
def scripted() -> Iterator[tuple[str, Script]]:
    served, script = scripted_model("hermes")
    with BackgroundServer(Server(Models([served])), grace=0.2) as address:
        yield address, script
    served.engine.close()


def test_reasoning_is_collapsed_and_restored_by_a_reload(browser: Any, scripted: tuple[str, Script]) -> None:
    address, script = scripted
    context = browser.new_context(viewport={"width": 900, "height": 700})
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(address)
    page.wait_for_selector("#model option", state="attached")
    script.replies = ["<think>\nHm, let me see.\n</think>\n\nYes."]
    say(page, "Sure?")
    for _ in range(2):
        page.wait_for_selector("article.assistant")
        assert messages(page) == ["Sure?", "Yes."]
        thoughts = page.locator("details.reasoning")
        assert thoughts.get_attribute("open") is None
        thoughts.locator("summary").click()
        assert thoughts.locator(".thought").inner_text() == "Hm, let me see."
        show(page, "reasoning")
        page.reload()
        page.wait_for_selector("#model option", state="attached")
    assert problems == []
    context.close()
