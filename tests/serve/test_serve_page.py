"""The web page of `minhub serve` in Debian's Chromium, with Playwright.

MINHUB_SCREENSHOTS=FOLDER saves screenshots.
"""

import os
import random
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from chat_models import chat_tokenizer, write_dialogpt
from served_models import alone, served, wait

from minhub_py import gpt2, save_pretrained
from minhub_py.chat.defaults import default_sampling
from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer
from minhub_py.serve.app import PAGE_POLICY
from minhub_py.serve.models import Models
from minhub_py.serve.run import BackgroundServer
from minhub_py.serve.server import Server

CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: chromium-headless-shell)")

MARKDOWN = """\
## A *plan* for the day

Some **bold**, *italic*, ~~struck~~ and `inline code`; a_snake_case, 2 * 3 * 4 and \\*no emphasis\\*.
A second line: [safe](https://example.org/a_(b) "title"), [unsafe](javascript:alert(1)), <b onclick="x()">no HTML</b>.

```python
def greet(name: str) -> str:
    return f"Hello, {name}!  # **not bold**"
```

1. First
   - nested **item**
   - another
2. Second

> A quote
> of two lines

| name | count |
| :--- | ----: |
| one \\| two | 12 |
| `three` | 3 |

---
<script>document.title = "taken"</script><img src="https://example.org/x.png">
![picture](https://example.org/y.png) See https://example.org/z.
"""


@pytest.fixture(scope="module")
def address(main_model, recurrent: Path) -> Iterator[str]:
    models = Models([main_model, served("other", recurrent)])
    with BackgroundServer(Server(models), grace=0.2) as address:
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
    """A tab of a new profile, which must not raise errors or send requests to another server."""
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


def reciter(path: Path, bpe_folder: Path, text: str) -> Path:
    """A model whose next token depends only on the position: after a prompt of one token it generates `text`."""
    bpe = read_tokenizer(bpe_folder)
    ids, size = bpe.encode(text).ids, bpe.get_vocab_size()
    end = size - 1
    torch.manual_seed(0)
    model = gpt2(vocab_size=size, n_embd=256, n_layer=1, n_head=4, n_positions=2048, eos_token_id=end)
    with torch.no_grad():
        embeddings = torch.nn.functional.normalize(torch.randn(size, 256), dim=1)
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if name.endswith("ln_f.weight") else 0.0)
        model.wte.weight.copy_(embeddings)
        model.wpe.weight[: len(ids) + 1] = 100 * embeddings[[*ids, end]]
    save_pretrained(model, path, bpe)
    (path / "chat_template.jinja").write_text("{% if add_generation_prompt %}>{% endif %}", encoding="utf-8")
    return path


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
    with BackgroundServer(Server(Models([reciting])), grace=0.2) as address:
        yield address


@pytest.fixture
def markdown_page(browser, reciting_address: str) -> Iterator[Any]:
    """A tab with a server of `reciting`."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page, problems = context.new_page(), []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: message.type == "error" and problems.append(message.text))
    page.on(
        "request", lambda request: request.url.startswith((reciting_address, "data:")) or problems.append(request.url)
    )
    page.goto(reciting_address)
    page.wait_for_selector("#model option", state="attached")
    yield page
    context.close()
    assert problems == []


def open_page(page: Any, address: str) -> None:
    page.goto(address)
    page.wait_for_selector("#model option:nth-child(2)", state="attached")


def say(page: Any, text: str) -> None:
    page.locator("#prompt").fill(text)
    page.keyboard.press("Enter")


def messages(page: Any) -> list[str]:
    """The texts of the conversation after the end of the reply."""
    page.wait_for_selector("#stop", state="hidden")
    return page.locator("article .text").all_inner_texts()


def show(page: Any, name: str) -> None:
    if target := os.environ.get("MINHUB_SCREENSHOTS"):
        page.screenshot(path=f"{target}/{name}.png")


def test_a_conversation_is_restored_by_a_reload(page, address: str) -> None:
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


def test_two_tabs_have_separate_conversations_and_models(page, address: str) -> None:
    say(page, "I am the first tab")
    first = messages(page)
    other = page.context.new_page()
    open_page(other, address)
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
    assert page.evaluate("Object.keys(localStorage).filter(key => key.startsWith('minhub.chat'))") == []


def test_markdown_is_shown_as_nodes_and_html_as_text(markdown_page) -> None:
    page = markdown_page
    say(page, "Show everything")
    messages(page)
    show(page, "markdown")
    reply = page.locator("article.assistant .text")
    assert reply.locator("h2").inner_text() == "A plan for the day"
    assert reply.locator("h2 em").inner_text() == "plan"
    assert [reply.locator(tag).first.inner_text() for tag in ("strong", "em", "del", "p > code")] == [
        "bold", "plan", "struck", "inline code"
    ]  # fmt: skip
    first = reply.locator("p").first.inner_text()
    assert "a_snake_case, 2 * 3 * 4 and *no emphasis*.\nA second line: safe, [unsafe](javascript:alert(1)), <b" in first
    assert '<b onclick="x()">no HTML</b>' in first
    assert reply.locator(".code .bar span").inner_text() == "python"
    code = 'def greet(name: str) -> str:\n    return f"Hello, {name}!  # **not bold**"\n'
    assert reply.locator("pre code").text_content() == code
    assert reply.locator("ol > li").count() == 2
    assert reply.locator("ol > li").first.locator("ul > li strong").inner_text() == "item"
    assert reply.locator("blockquote").inner_text() == "A quote\nof two lines"
    assert reply.locator("th").all_inner_texts() == ["name", "count"]
    assert reply.locator("td").all_inner_texts() == ["one | two", "12", "three", "3"]
    assert reply.locator("td").nth(1).evaluate("cell => getComputedStyle(cell).textAlign") == "right"
    assert reply.locator("hr").count() == 1
    assert reply.locator("script, img, b").count() == 0
    assert page.title() == "minhub"
    links = reply.locator("a")
    assert [link.get_attribute("href") for link in links.all()] == [
        "https://example.org/a_(b)", "https://example.org/x.png", "https://example.org/y.png", "https://example.org/z"
    ]  # fmt: skip
    assert {link.get_attribute("rel") for link in links.all()} == {"noopener noreferrer"}
    # Without formatting, the page shows the complete source.
    page.locator("#more").click()
    page.locator("#markdown").uncheck()
    assert page.locator("article.assistant .text").text_content() == MARKDOWN
    assert page.locator("article.assistant h2").count() == 1


GROW = """async ([texts, size]) => {
    const { Reply } = await import('./page/reply.js'), problems = [];
    for (const text of texts) {
        const words = [], grown = new Reply(words, true);
        for (let at = 0; at < text.length; at += size) {
            words.push({t: text.slice(at, at + size), k: []});
            grown.update();
        }
        if (grown.dom.innerHTML !== new Reply(words, true).dom.innerHTML) problems.push(text);
    }
    return problems;
}"""


def test_growing_replies_equal_complete_ones(markdown_page) -> None:
    """Random Markdown in deltas of one and of three characters."""
    signs = ["*", "**", "_", "`", "``", "~~", "[", "](https://x.y)", "\\", " ", "a", "b c", "|", "\n", "\n\n", "\n- ",
             "\n1. ", "\n  - ", "\n> ", "\n# ", "\n```\n", "\n---\n", "\n|-|-|\n", "\na|b", "<b>", "https://x.y/z_",
             "!", "é🙂"]  # fmt: skip
    generator = random.Random(0)
    texts = ["".join(generator.choices(signs, k=40)) for _ in range(200)] + [MARKDOWN]
    for size in (1, 3):
        assert markdown_page.evaluate(GROW, [texts, size]) == []


def test_hostile_markdown_is_shown_with_limited_nesting(markdown_page) -> None:
    """Deep nesting and unmatched delimiters, 50,000 characters each."""
    units = ["*a ", "**", "***a", "[", "[a](", "](", "`a``", "> ", "- ", "  - a\n", "*_", "|", "|a\n|-\n", "<http://",
             "# ", "```\n", "\\", "*a_b~~c[", '[x](https://a.b "', " ", "_a*"]  # fmt: skip
    deepest = markdown_page.evaluate("""async units => {
        const { Reply } = await import('./page/reply.js');
        return Math.max(...units.map(unit => {
            const reply = new Reply([{t: unit.repeat(50000 / unit.length), k: []}], true);
            let depth = 0;
            for (const word of reply.dom.querySelectorAll('.word')) {
                let level = 0;
                for (let at = word; at !== reply.dom; at = at.parentNode) level++;
                depth = Math.max(depth, level);
            }
            return depth;
        }));
    }""", units)  # fmt: skip
    assert 12 <= deepest <= 60


def test_copying_code_and_replies(markdown_page) -> None:
    page = markdown_page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    say(page, "Show everything")
    messages(page)
    page.get_by_role("button", name="Copy this code").click()
    page.wait_for_selector(".bar >> text=Copied")
    code = 'def greet(name: str) -> str:\n    return f"Hello, {name}!  # **not bold**"\n'
    assert page.evaluate("navigator.clipboard.readText()") == code
    page.get_by_role("button", name="Copy this reply").click()
    page.wait_for_selector(".tools >> text=Copied")
    assert page.evaluate("navigator.clipboard.readText()") == MARKDOWN


def test_streaming_keeps_finished_blocks_and_selections(markdown_page, reciting, monkeypatch) -> None:
    """Finished blocks keep their nodes, and the result equals a reply that is rendered at once."""
    page, engine = markdown_page, reciting.engine
    step = engine._step
    monkeypatch.setattr(engine, "_step", lambda batch: time.sleep(0.01) or step(batch))
    say(page, "Show everything")
    page.wait_for_selector(".busy p .word")
    page.evaluate("""() => {
        window.heading = document.querySelector('.busy .markdown h2');
        getSelection().selectAllChildren(window.heading);
    }""")
    page.wait_for_selector(".busy pre .word")
    assert page.evaluate("window.heading.isConnected && getSelection().toString()") == "A plan for the day"
    assert re.fullmatch(r"\d+ tokens · [\d.,]+ tokens/s", page.locator(".busy .status").inner_text())
    # The state at the end of the stream, before the conversation is rendered again.
    page.evaluate("""() => {
        const text = document.querySelector('.busy .markdown');
        new MutationObserver(() => { window.grown = text.innerHTML }).observe(text, {subtree: true, childList: true});
    }""")
    messages(page)
    assert page.evaluate("window.grown") in page.locator("article.assistant .text").inner_html()


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
        "document.getElementById('prompt').scrollHeight <= document.getElementById('prompt').clientHeight"
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


def test_touch_screens_show_actions_and_probabilities(browser, address: str) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = context.new_page()
    open_page(page, address)
    say(page, "Hello")
    messages(page)
    for name in ("Edit this message", "Copy this reply", "Generate this reply again"):
        assert page.get_by_role("button", name=name).evaluate("button => getComputedStyle(button).opacity") == "1"
    page.locator("article.assistant .word").nth(2).tap()
    assert page.locator("#hint tr").count() >= 5
    show(page, "touch")
    # The list overlaps the page, and a tap outside closes it. A long title does not increase the notice's height.
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


def test_a_resting_mouse_does_not_open_the_table(markdown_page, reciting, monkeypatch) -> None:
    """New text appears under a mouse that does not move."""
    page, engine = markdown_page, reciting.engine
    say(page, "Show everything")
    messages(page)
    box = page.locator("article.assistant .text pre .word").nth(3).bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.locator("#new").click()
    page.mouse.move(x, y)
    step = engine._step
    monkeypatch.setattr(engine, "_step", lambda batch: time.sleep(0.01) or step(batch))
    page.evaluate("""() => new MutationObserver(() => { window.opened ||= !document.getElementById('hint').hidden })
        .observe(document.getElementById('hint'), {attributes: true, childList: true})""")
    say(page, "Show everything")
    messages(page)
    assert page.evaluate("([x, y]) => !!document.elementFromPoint(x, y).closest('.word')", [x, y])
    assert not page.evaluate("!!window.opened")
    page.mouse.move(x + 1, y)
    page.wait_for_selector("#hint", state="visible")
    page.keyboard.press("Escape")
    assert page.locator("#hint").is_hidden()
    page.mouse.click(x + 1, y)
    assert page.locator("#hint").is_visible()


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844), (320, 640)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_header_is_one_row_with_the_full_model_name(
    browser, reciting, reciting_address: str, width: int, height: int, scheme: str
) -> None:
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = context.new_page()
    page.goto(reciting_address)
    page.wait_for_selector("#model option", state="attached")
    say(page, "Show everything")
    messages(page)
    show(page, f"page-{width}-{scheme}")
    tops = page.locator("header button, header .pick").evaluate_all(
        "all => all.map(each => (each.getBoundingClientRect().top + each.getBoundingClientRect().bottom) / 2)"
    )
    assert max(tops) - min(tops) < 2
    name = page.locator("#model-name")
    assert name.inner_text() == reciting.name
    assert name.evaluate("name => name.scrollWidth <= name.clientWidth && name.scrollHeight <= name.clientHeight")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    context.close()


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
    page.evaluate("""chats => {
        for (const [id, chat] of Object.entries(chats)) localStorage.setItem(`minhub.chat.${id}`, JSON.stringify(chat));
        localStorage.setItem('minhub.chat.unreadable', '{"nodes": ');
        localStorage.setItem('minhub.settings', '[1, {"temperature": "hot"}]');
    }""", chats)  # fmt: skip
    for id in [*chats, "unreadable"]:
        page.evaluate("id => sessionStorage.setItem('minhub.chat', JSON.stringify(id))", id)
        page.reload()
        page.wait_for_selector("#model option", state="attached")
        assert page.locator("article .text").all_inner_texts() == (["sound", "other"] if id == "partly" else [])
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
    page.on("request", lambda request: request.method == "POST" and bodies.append(request.post_data_json))
    names = ("temperature", "top_p", "repetition_penalty")
    defaults = default_sampling(main_model.model)
    for name in names:
        assert float(page.locator(f"#{name}").get_attribute("placeholder")) == (defaults[name] or 1)
    assert [page.locator(f"#{name}").input_value() for name in names] == ["", "", ""]
    say(page, "Hello")
    messages(page)
    assert not set(names) & set(bodies[0])
    page.locator("#more").click()
    page.locator("#temperature").fill("0.4")
    say(page, "Hello")
    messages(page)
    assert (bodies[1]["temperature"], "top_p" in bodies[1]) == (0.4, False)
    page.reload()
    page.locator("#more").click()
    assert page.locator("#temperature").input_value() == "0.4"
    page.locator("#reset").click()
    assert page.locator("#temperature").input_value() == ""
    # Older versions of the page stored default values, which are dropped.
    page.evaluate(
        "localStorage.setItem('minhub.settings', JSON.stringify({temperature: 0.8, top_p: 1, max_tokens: 9}))"
    )
    page.reload()
    assert [page.locator(f"#{name}").input_value() for name in (*names, "max_tokens")] == ["", "", "", "9"]


def test_the_policy_allows_only_files_of_the_page(page, address: str) -> None:
    response = page.goto(address)
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
        assert page.request.get(f"{address}/page/{name}").headers["content-security-policy"] == PAGE_POLICY
    for name in ("../app.py", "%2e%2e/app.py", "nothing.js", ""):
        assert page.request.get(f"{address}/page/{name}").status == 404


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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_small_screens(browser, address: str, scheme: str) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 640}, color_scheme=scheme)
    page = context.new_page()
    open_page(page, address)
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


def test_the_page_requests_the_api_key(browser, main_model) -> None:
    server = Server(Models([main_model]), key="secret")
    with BackgroundServer(server, grace=0.2) as address:
        page = browser.new_context().new_page()
        page.goto(address)
        page.wait_for_selector("#error")
        assert "API key" in page.get_by_role("alert").inner_text()
        page.locator("#key").fill("secret")
        page.keyboard.press("Tab")
        page.wait_for_selector("#model option", state="attached")
        assert page.locator("#error").count() == 0
        page.context.close()


def test_dialogpt_on_the_page(browser, tmp_path: Path) -> None:
    """As in its tutorial: the end-of-text token separates turns, temperature 0.8."""
    bot = write_dialogpt(tmp_path / "bot", chat_tokenizer())
    dialogpt = served("bot", bot, max_length=128)
    with BackgroundServer(Server(Models([dialogpt])), grace=0.2) as address:
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
