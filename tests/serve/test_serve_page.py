"""The web page of `minhub serve` in Debian's Chromium, with Playwright.

MINHUB_SCREENSHOTS=FOLDER saves screenshots.
"""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_models import chat_tokenizer, write_dialogpt
from needs import needs
from pages import MARKDOWN, messages, open_page, say, show
from served_models import alone, served, serving, wait

from minhub_py.chat.defaults import default_sampling
from minhub_py.serve.app import PAGE_POLICY

pytestmark = needs("Chromium")


def test_a_conversation_is_restored_by_a_reload(page, page_address: str) -> None:
    say(page, "Good morning, how are you?")
    first = messages(page)
    assert len(first) == 2
    assert first[0] == "Good morning, how are you?"
    assert page.locator("article.assistant .word").count() > 3
    assert "Token limit reached" in page.locator("article.assistant .tools").inner_text()
    say(page, "And then?")
    both = messages(page)
    assert (both[:2], both[2]) == (first, "And then?")
    page.reload()
    page.wait_for_selector("article.assistant")
    assert messages(page) == both
    show(page, "conversation")


def test_hover_and_keyboard_show_token_probabilities(page) -> None:
    say(page, "Tell me a story")
    messages(page)
    page.locator("article.assistant .word").nth(2).hover()
    page.wait_for_selector("#hint", state="visible")
    table = page.locator("#hint tr")
    assert table.count() >= 5
    assert page.locator("#hint tr.it").count() >= 1  # a word can have several tokens
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


def test_regenerating_and_editing_create_versions(page) -> None:
    say(page, "First question")
    first = messages(page)
    page.locator("#more").click()
    page.locator("#seed").fill("6")
    page.get_by_role("button", name="Generate this reply again").click()
    page.wait_for_selector("text=2 of 2")
    again = messages(page)
    assert again[0] == first[0]
    assert again[1] != first[1]
    page.get_by_role("button", name="Previous version").click()
    assert messages(page) == first
    page.get_by_role("button", name="Edit this message").click()
    page.get_by_label("Edit the message").fill("Another question")
    page.keyboard.press("Enter")
    page.wait_for_selector("article.user >> text=2 of 2")
    assert messages(page)[0] == "Another question"
    page.locator("article.user").get_by_role("button", name="Previous version").click()
    assert messages(page)[0] == "First question"


def test_stop_keeps_the_generated_text(page, main_model, monkeypatch) -> None:
    engine = main_model.engine
    step = engine._step
    monkeypatch.setattr(engine, "_step", lambda batch: time.sleep(0.05) or step(batch))
    page.locator("#more").click()
    page.locator("#max_tokens").fill("200")
    say(page, "Go on and on")
    page.wait_for_selector(".busy .word:nth-child(4)")
    show(page, "busy")
    page.keyboard.press("Escape")
    texts = messages(page)
    assert texts[1]
    assert "Stopped" in page.locator("article.assistant .tools").inner_text()
    wait(lambda: engine.unfinished == 0)
    assert messages(page) == texts


def test_two_tabs_have_separate_conversations_and_models(page, page_address: str) -> None:
    say(page, "I am the first tab")
    first = messages(page)
    other = page.context.new_page()
    open_page(other, page_address)
    assert other.locator("article").count() == 0
    other.locator("#model").select_option("other")
    say(other, "I am the second tab")
    second = messages(other)
    assert other.locator("article.assistant h2").inner_text() == "other"
    say(page, "Still the first")
    assert messages(page)[:2] == first
    other.reload()
    other.wait_for_selector("article.assistant")
    assert messages(other) == second
    assert other.locator("#chats").is_hidden()  # the window is narrow
    other.locator("#list").click()
    titles = other.locator("#chats .title").all_inner_texts()
    assert sorted(titles) == ["I am the first tab", "I am the second tab"]
    other.get_by_role("button", name="I am the first tab", exact=True).click()
    assert messages(other)[:2] == first
    assert other.locator("#chats").is_hidden()


def test_a_deleted_conversation_can_be_restored(page) -> None:
    say(page, "Keep me")
    texts = messages(page)
    page.locator("#list").click()
    page.get_by_role("button", name="Delete “Keep me”").click()
    assert page.locator("article").count() == 0
    assert page.locator("#chats .title").count() == 0
    show(page, "deleted")
    page.get_by_role("button", name="Undo").click()
    assert messages(page) == texts
    assert page.locator("#chats .title").all_inner_texts() == ["Keep me"]
    assert page.locator("#toast").is_hidden()
    page.get_by_role("button", name="Delete “Keep me”").click()
    page.reload()
    page.wait_for_selector("#log .note")
    assert page.locator("article").count() == 0
    assert (
        page.evaluate("Object.keys(localStorage).filter(key => key.startsWith('minhub.chat'))")
        == []
    )


def test_a_reply_that_reaches_the_token_limit_can_be_continued(markdown_page, reciting) -> None:
    page = markdown_page
    page.locator("#more").click()
    page.locator("#max_tokens").fill("15")
    page.locator("#more").click()
    say(page, "Show everything")
    messages(page)
    assert page.locator("article.assistant .status").inner_text().startswith("15 tokens · ")
    show(page, "continue")
    page.get_by_role("button", name="Continue this reply").click()
    page.wait_for_selector("text=30 tokens · ")
    ids = reciting.tokenizer.encode(MARKDOWN).ids[:30]
    page.locator("#more").click()
    page.locator("#markdown").uncheck()
    assert page.locator("article.assistant .text").text_content() == reciting.tokenizer.decode(ids)
    page.locator("#max_tokens").fill("")
    page.get_by_role("button", name="Continue this reply").click()
    messages(page)
    assert page.locator("article.assistant .text").text_content() == MARKDOWN
    assert page.get_by_role("button", name="Continue this reply").count() == 0
    assert page.locator("article.assistant").count() == 1


def test_the_prompt_box_grows_with_wrapped_lines(page) -> None:
    height = "document.getElementById('prompt').offsetHeight"
    one = page.evaluate(height)
    page.locator("#prompt").fill("a long sentence without a line end " * 12)
    wrapped = page.evaluate(height)
    assert wrapped > 2 * one
    assert page.evaluate(
        "document.getElementById('prompt').scrollHeight <="
        " document.getElementById('prompt').clientHeight"
    )
    page.locator("#prompt").fill("line\n" * 100)
    assert page.evaluate(height) <= 0.4 * 700 + 1
    page.locator("#prompt").fill("short")
    assert page.evaluate(height) == one
    page.locator("#prompt").fill("a long sentence without a line end " * 12)
    page.keyboard.press("Enter")
    assert page.evaluate(height) == one
    messages(page)
    page.get_by_role("button", name="Edit this message").click()
    area = page.get_by_label("Edit the message")
    page.wait_for_selector("article textarea:focus")
    assert area.evaluate("area => area.scrollHeight <= area.clientHeight && area.clientHeight > 60")


def test_actions_show_on_hover_and_focus(page) -> None:
    say(page, "Hello")
    messages(page)
    opacity = "button => getComputedStyle(button).opacity"
    edit = page.get_by_role("button", name="Edit this message")
    page.mouse.move(1, 1)
    assert edit.evaluate(opacity) == "0"
    page.locator("article.user").hover()
    assert edit.evaluate(opacity) == "1"
    assert page.get_by_role("button", name="Copy this reply").evaluate(opacity) == "0"
    page.mouse.move(1, 1)
    page.locator("article.assistant .text").focus()
    assert page.get_by_role("button", name="Copy this reply").evaluate(opacity) == "1"


def test_touch_screens_show_actions_and_probabilities(browser, page_address: str) -> None:
    context = browser.new_context(
        viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True
    )
    page = context.new_page()
    open_page(page, page_address)
    say(page, "Hello")
    messages(page)
    for name in ("Edit this message", "Copy this reply", "Generate this reply again"):
        assert (
            page.get_by_role("button", name=name).evaluate(
                "button => getComputedStyle(button).opacity"
            )
            == "1"
        )
    page.locator("article.assistant .word").nth(2).tap()
    assert page.locator("#hint tr").count() >= 5
    show(page, "touch")
    # The list overlaps the page, and a tap outside closes it. A long title does not increase the
    # notice's height.
    page.locator("#new").tap()
    say(page, "A long title of a conversation " * 4)
    messages(page)
    page.locator("#list").tap()
    page.touchscreen.tap(380, 400)
    assert page.locator("#chats").is_hidden()
    page.locator("#list").tap()
    page.get_by_role("button", name="Delete “A long").tap()
    assert page.locator("#toast").bounding_box()["height"] < 70
    show(page, "touch-deleted")
    context.close()


@pytest.fixture(scope="module")
def recited(browser, reciting_address: str) -> Iterator[Any]:
    """A tab with a complete conversation, which a reload restores."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(reciting_address)
    page.wait_for_selector("#model option", state="attached")
    say(page, "Show everything")
    messages(page)
    yield page
    context.close()


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844), (320, 640)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_header_is_one_row_with_the_full_model_name(
    recited, reciting, width: int, height: int, scheme: str
) -> None:
    page = recited
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme=scheme)
    page.reload()
    page.wait_for_selector("#model option", state="attached")
    page.wait_for_selector("article.assistant")
    assert len(messages(page)) == 2
    show(page, f"page-{width}-{scheme}")
    tops = page.locator("header button, header .pick").evaluate_all(
        "all => all.map(each => (each.getBoundingClientRect().top +"
        " each.getBoundingClientRect().bottom) / 2)"
    )
    assert max(tops) - min(tops) < 2
    name = page.locator("#model-name")
    assert name.inner_text() == reciting.name
    assert name.evaluate(
        "name => name.scrollWidth <= name.clientWidth && name.scrollHeight <= name.clientHeight"
    )
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


BROKEN = {
    "a circle": {"nodes": {"n1": {"role": "user", "parent": "n2", "text": "a"},
                           "n2": {"role": "assistant", "parent": "n1", "text": "b"}}, "leaf": "n2", "count": 2},
    "its own parent": {"nodes": {"n1": {"role": "user", "parent": "n1", "text": "a"}}, "leaf": "n1", "count": 1},
    "a list": [1, 2], "no nodes": {"id": 1}, "nodes of text": {"nodes": "abc"}, "a text": "abc", "null": None,
    "names of objects": {"nodes": {"constructor": {"role": "user", "parent": None, "text": "x"}}, "leaf": "x"},
}  # fmt: skip


def test_corrupt_conversations_in_the_storage_are_ignored(page) -> None:
    chats = {f"broken{number}": value for number, value in enumerate(BROKEN.values())}
    word = {"t": "reply", "k": []}
    chats["partly"] = {"leaf": "n7", "count": "x", "time": "y", "nodes": {
        "n1": {"role": "user", "parent": None, "text": "sound"},
        "n2": {"role": "assistant", "parent": "n1", "text": "reply", "words": [word], "end": {}, "model": ["x"]},
        "n3": {"role": "assistant", "parent": "n1", "text": "other", "words": [{"t": 5}]},
        "n4": {"role": "user", "parent": "n5", "text": "in a circle"},
        "n5": {"role": "assistant", "parent": "n4", "text": "in a circle"},
        "n6": {"role": "robot", "parent": "n1", "text": "x"}, "n7": {"role": "user", "parent": "n1", "text": 7},
        "__proto__": {"role": "user", "parent": None, "text": "x"},
    }}  # fmt: skip
    page.evaluate(
        """chats => {
        for (const [id, chat] of Object.entries(chats)) localStorage.setItem(`minhub.chat.${id}`, JSON.stringify(chat));
        localStorage.setItem('minhub.chat.unreadable', '{"nodes": ');
        localStorage.setItem('minhub.settings', '[1, {"temperature": "hot"}]');
    }""",
        chats,
    )
    for id in [*chats, "unreadable"]:
        page.evaluate("id => sessionStorage.setItem('minhub.chat', JSON.stringify(id))", id)
        page.reload()
        page.wait_for_selector("#model option", state="attached")
        assert page.locator("article .text").all_inner_texts() == (
            ["sound", "other"] if id == "partly" else []
        )
    page.locator("#list").click()
    assert page.locator("#chats .title").all_inner_texts() == ["sound"]
    page.get_by_role("button", name="sound", exact=True).click()
    page.get_by_role("button", name="Previous version").click()
    assert page.locator("article .text").all_inner_texts() == ["sound", "reply"]
    say(page, "and a new message")
    assert messages(page)[:3] == ["sound", "reply", "and a new message"]


def test_sampling_defaults_come_from_the_model(page, main_model) -> None:
    """The page shows them and sends only values that a user has set."""
    bodies: list[dict[str, Any]] = []
    page.on(
        "request",
        lambda request: request.method == "POST" and bodies.append(request.post_data_json),
    )
    neutral = {
        "temperature": 1,
        "top_p": 1,
        "top_k": 0,
        "min_p": 0,
        "repetition_penalty": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0,
    }
    names = tuple(neutral)
    defaults = default_sampling(main_model.model)
    for name in names:
        assert float(page.locator(f"#{name}").get_attribute("placeholder")) == (
            defaults.get(name) or neutral[name]
        )
    assert [page.locator(f"#{name}").input_value() for name in names] == [""] * len(names)
    say(page, "Hello")
    messages(page)
    assert not set(names) & set(bodies[0])
    page.locator("#more").click()
    changed = {
        "temperature": 0.4,
        "top_k": 20,
        "min_p": 0.05,
        "presence_penalty": -0.5,
        "frequency_penalty": 0.5,
    }
    for name, value in changed.items():
        page.locator(f"#{name}").fill(str(value))
    say(page, "Hello")
    messages(page)
    assert {name: bodies[1][name] for name in names if name in bodies[1]} == changed
    page.reload()
    page.locator("#more").click()
    assert page.locator("#temperature").input_value() == "0.4"
    page.locator("#reset").click()
    assert page.locator("#temperature").input_value() == ""
    # Older versions of the page stored default values, which are dropped.
    page.evaluate(
        "localStorage.setItem('minhub.settings', JSON.stringify({temperature: 0.8, top_p: 1,"
        " max_tokens: 9}))"
    )
    page.reload()
    assert [page.locator(f"#{name}").input_value() for name in (*names, "max_tokens")] == [
        ""
    ] * len(names) + ["9"]


def test_the_policy_allows_only_files_of_the_page(page, page_address: str) -> None:
    response = page.goto(page_address)
    policy = response.headers["content-security-policy"]
    assert policy == PAGE_POLICY
    assert "unsafe" not in policy
    assert (
        page.evaluate("""() => {
        try { document.body.innerHTML = '<b>x</b>'; return 'assigned' } catch (error) { return error.name }
    }""")
        == "TypeError"
    )
    for name in ("app.js", "style.css", "markdown.js"):
        assert (
            page.request.get(f"{page_address}/page/{name}").headers["content-security-policy"]
            == PAGE_POLICY
        )
    for name in ("../app.py", "%2e%2e/app.py", "nothing.js", ""):
        assert page.request.get(f"{page_address}/page/{name}").status == 404


def test_an_error_is_shown_and_the_message_can_be_edited(page) -> None:
    page.locator("#more").click()
    say(page, "refuse me")
    page.wait_for_selector("#error")
    assert "no thanks" in page.get_by_role("alert").inner_text()
    assert messages(page) == ["refuse me"]
    show(page, "error")
    page.get_by_role("button", name="Edit this message").click()
    page.get_by_label("Edit the message").fill("<b>be kind</b>")
    page.get_by_role("button", name="Send the edited message").click()
    page.wait_for_selector("article.assistant")
    assert messages(page)[0] == "<b>be kind</b>"
    assert page.locator("#error").count() == 0


def test_a_conversation_beyond_the_context_is_explained(page) -> None:
    say(page, "A long message " * 400)
    page.wait_for_selector("#error")
    alert = page.get_by_role("alert")
    assert "longer than the model's context" in alert.inner_text()
    assert alert.get_by_role("button").count() == 0  # another try would fail, too
    page.get_by_role("button", name="Edit this message").click()
    page.get_by_label("Edit the message").fill("Short")
    page.keyboard.press("Enter")
    assert messages(page)[0] == "Short"
    assert page.locator("#error").count() == 0


def test_an_invalid_setting_is_explained_and_does_not_apply(page) -> None:
    page.locator("#more").click()
    page.locator("#temperature").fill("0.5")
    page.locator("#temperature").fill("9")
    assert re.search(
        "Temperature: .* 2.* The last valid value applies", page.get_by_role("alert").inner_text()
    )
    show(page, "invalid")
    with page.expect_request("**/chat/completions") as waiting:
        say(page, "Hello")
    assert waiting.value.post_data_json["temperature"] == 0.5
    messages(page)
    page.locator("#reset").click()
    assert page.get_by_role("alert").count() == 0
    page.locator("#schema").fill("{bad")
    assert "JSON schema of the replies: This is not JSON" in page.get_by_role("alert").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_small_screens(browser, page_address: str, scheme: str) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 640}, color_scheme=scheme)
    page = context.new_page()
    open_page(page, page_address)
    page.locator("#more").click()
    page.locator("#max_tokens").fill("40")
    show(page, f"settings-{scheme}")
    page.locator("#more").click()
    say(page, "A long message " * 10)
    messages(page)
    show(page, f"small-{scheme}")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")
    controls = "[...document.querySelectorAll('button, input, select, textarea')]"
    assert page.evaluate(f"{controls}.every(each => each.textContent || each.labels?.length)")
    context.close()


def test_replies_follow_a_schema_and_a_conversation_is_exported(page, tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"loud": {"type": "boolean"}},
        "required": ["loud"],
        "additionalProperties": False,
    }
    page.locator("#more").click()
    page.locator("#schema").fill('{"type": ')
    assert page.locator("#schema").evaluate("each => !each.checkValidity()")
    page.locator("#schema").fill(json.dumps(schema))
    page.locator("#max_tokens").fill("200")
    page.locator("#system").fill("Be brief.")
    page.locator("#more").click()
    say(page, "Hello")
    texts = messages(page)
    assert len(texts) == 2, page.locator("#error").all_inner_texts()
    reply = json.loads(texts[1])
    assert list(reply) == ["loud"]
    page.locator("#more").click()
    show(page, "schema")
    with page.expect_download() as waiting:
        page.locator("#export").click()
    waiting.value.save_as(tmp_path / "chat.json")
    exported = json.loads((tmp_path / "chat.json").read_text(encoding="utf-8"))["messages"]
    assert [(message["role"], message["content"]) for message in exported[:2]] == [
        ("system", "Be brief."),
        ("user", "Hello"),
    ]
    assert json.loads(exported[2]["content"]) == reply
    assert exported[2]["model"] == "tiny"
    assert waiting.value.suggested_filename == "Hello.json"


def test_the_page_requests_the_api_key(browser, main_model) -> None:
    with serving(main_model, key="secret") as address:
        page = browser.new_context().new_page()
        page.goto(address)
        page.wait_for_selector("#error")
        assert "API key" in page.get_by_role("alert").inner_text()
        page.locator("#key").fill("secret")
        page.keyboard.press("Tab")
        page.wait_for_selector("#model option", state="attached")
        assert page.locator("#error").count() == 0
        page.context.close()


@pytest.mark.slow
def test_dialogpt_generates_the_same_replies_on_the_page(browser, tmp_path: Path) -> None:
    """As in its tutorial: the end-of-text token separates turns, temperature 0.8."""
    bot = write_dialogpt(tmp_path / "bot", chat_tokenizer())
    dialogpt = served("bot", bot, max_length=128)
    with serving(dialogpt) as address:
        page = browser.new_context().new_page()
        page.goto(address)
        page.wait_for_selector("#model option", state="attached")
        assert "as in DialoGPT" in page.locator("body").inner_text()
        page.locator("#more").click()
        for name, value in (("max_tokens", 20), ("temperature", 0.8), ("top_p", 1), ("seed", 5)):
            page.locator(f"#{name}").fill(str(value))
        page.locator("#markdown").uncheck()
        page.locator("#more").click()
        page.keyboard.press("Enter")  # an empty prompt is ignored
        turns = []
        for text in ("Good morning!", "How do you feel today?"):
            turns.append({"role": "user", "content": text})
            ids = dialogpt.template.encode(turns)
            assert ids.count(0) == len(turns)
            say(page, text)
            reply = alone(dialogpt, ids, 20, 5, temperature=0.8)
            assert messages(page)[-1].split() == reply.split()
            turns.append({"role": "assistant", "content": reply})
        show(page, "dialogpt")
        page.context.close()
    dialogpt.engine.close()
