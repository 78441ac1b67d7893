"""The web page shows reasoning and calls of tools."""

from typing import Any

from pages import messages, say, show
from scripted import Script


def test_reasoning_is_collapsed_and_restored_by_a_reload(
    browser: Any, hermes: tuple[str, Script]
) -> None:
    address, script = hermes
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
