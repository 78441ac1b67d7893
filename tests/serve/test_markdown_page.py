"""Markdown on the web page of `minhub serve`."""

import random
import re
import time

from needs import needs
from pages import MARKDOWN, messages, say, show

pytestmark = needs("Chromium")


def test_markdown_is_shown_as_nodes_and_html_as_text(markdown_page) -> None:
    page = markdown_page
    say(page, "Show everything")
    messages(page)
    show(page, "markdown")
    reply = page.locator("article.assistant .text")
    assert reply.locator("h2").inner_text() == "A plan for the day"
    assert reply.locator("h2 em").inner_text() == "plan"
    assert [
        reply.locator(tag).first.inner_text() for tag in ("strong", "em", "del", "p > code")
    ] == ["bold", "plan", "struck", "inline code"]
    first = reply.locator("p").first.inner_text()
    assert (
        "a_snake_case, 2 * 3 * 4 and *no emphasis*.\nA second line: safe,"
        " [unsafe](javascript:alert(1)), <b" in first
    )
    assert '<b onclick="x()">no HTML</b>' in first
    assert reply.locator(".code .bar span").inner_text() == "python"
    code = 'def greet(name: str) -> str:\n    return f"Hello, {name}!  # **not bold**"\n'
    assert reply.locator("pre code").text_content() == code
    assert reply.locator("ol > li").count() == 2
    assert reply.locator("ol > li").first.locator("ul > li strong").inner_text() == "item"
    assert reply.locator("blockquote").inner_text() == "A quote\nof two lines"
    assert reply.locator("th").all_inner_texts() == ["name", "count"]
    assert reply.locator("td").all_inner_texts() == ["one | two", "12", "three", "3"]
    assert (
        reply.locator("td").nth(1).evaluate("cell => getComputedStyle(cell).textAlign") == "right"
    )
    assert reply.locator("hr").count() == 1
    assert reply.locator("script, img, b").count() == 0
    assert page.title() == "minhub"
    links = reply.locator("a")
    assert [link.get_attribute("href") for link in links.all()] == [
        "https://example.org/a_(b)",
        "https://example.org/x.png",
        "https://example.org/y.png",
        "https://example.org/z",
    ]
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
    signs = [
        "*",
        "**",
        "_",
        "`",
        "``",
        "~~",
        "[",
        "](https://x.y)",
        "\\",
        " ",
        "a",
        "b c",
        "|",
        "\n",
        "\n\n",
        "\n- ",
        "\n1. ",
        "\n  - ",
        "\n> ",
        "\n# ",
        "\n```\n",
        "\n---\n",
        "\n|-|-|\n",
        "\na|b",
        "<b>",
        "https://x.y/z_",
        "!",
        "é🙂",
    ]
    generator = random.Random(0)
    texts = ["".join(generator.choices(signs, k=40)) for _ in range(200)] + [MARKDOWN]
    for size in (1, 3):
        assert markdown_page.evaluate(GROW, [texts, size]) == []


def test_hostile_markdown_is_shown_with_limited_nesting(markdown_page) -> None:
    """Deep nesting and unmatched delimiters, 50,000 characters each."""
    units = [
        "*a ",
        "**",
        "***a",
        "[",
        "[a](",
        "](",
        "`a``",
        "> ",
        "- ",
        "  - a\n",
        "*_",
        "|",
        "|a\n|-\n",
        "<http://",
        "# ",
        "```\n",
        "\\",
        "*a_b~~c[",
        '[x](https://a.b "',
        " ",
        "_a*",
    ]
    deepest = markdown_page.evaluate(
        """async units => {
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
    }""",
        units,
    )
    assert 12 <= deepest <= 60


def test_code_and_replies_are_copied_as_text(markdown_page) -> None:
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


def test_streaming_keeps_finished_blocks_and_selections(
    markdown_page, reciting, monkeypatch
) -> None:
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
    assert (
        page.evaluate("window.heading.isConnected && getSelection().toString()")
        == "A plan for the day"
    )
    assert re.fullmatch(
        r"\d+ tokens · [\d.,]+ tokens/s", page.locator(".busy .status").inner_text()
    )
    # The state at the end of the stream, before the conversation is rendered again.
    page.evaluate("""() => {
        const text = document.querySelector('.busy .markdown');
        new MutationObserver(() => { window.grown = text.innerHTML }).observe(text, {subtree: true, childList: true});
    }""")
    messages(page)
    assert page.evaluate("window.grown") in page.locator("article.assistant .text").inner_html()


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
    page.evaluate(
        """() => new MutationObserver(() => { window.opened ||= !document.getElementById('hint').hidden })
        .observe(document.getElementById('hint'), {attributes: true, childList: true})"""
    )
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
