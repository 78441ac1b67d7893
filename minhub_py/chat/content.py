"""The content of messages: a string or a list of text parts, `{"type": "text", "text": …}`."""

import re
from collections.abc import Callable, Mapping
from reprlib import repr as brief
from typing import NamedTuple

from minhub_py.system.json_text import JsonObject

MARKS = ("QZPARTONE", "QZPARTTWO")
TYPE = re.compile("""["']type["']""")  # a template that does not read parts writes them as data


class ContentForms(NamedTuple):
    """The forms of content that a template reads in messages of a role."""

    text: bool
    parts: bool

    def convert(self, content: str | list[dict[str, str]]) -> str | list[dict[str, str]]:
        """Normalized content in a form that the template reads. By default, parts are joined by
        line ends.
        """
        if isinstance(content, str):
            return [text_part(content)] if self.parts and not self.text else content
        return content if self.parts else text_of(content)


def text_part(text: str) -> dict[str, str]:
    """A part of a message's content."""
    return {"type": "text", "text": text}


def normalized_content(content: object) -> str | list[dict[str, str]]:
    """The content as a string or a list of text parts. ValueError: it contains something else."""
    if isinstance(content, str):
        return str(content)
    if not isinstance(content, list | tuple):
        raise ValueError(
            f"the content of a message must be a string or a list of parts, not {brief(content)}"
        )
    parts = []
    for part in content:
        text = part.get("text") if isinstance(part, Mapping) else part
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, Mapping) else part
            raise ValueError(f"a message has a part of type {brief(kind)}: only text is supported")
        parts.append(text_part(text))
    return parts or ""


def text_of(content: object) -> str:
    """The text of a message's content, with its parts joined by line ends. ValueError: as
    `normalized_content`.
    """
    content = normalized_content(content)
    return (
        content
        if isinstance(content, str)
        else "\n".join(filter(None, (part["text"] for part in content)))
    )


def content_forms(render: Callable[[list[JsonObject]], str], role: str) -> ContentForms:
    """The forms of content that a template reads, by rendering both.

    render: renders messages as they are. ValueError: the template rejects them.
    """
    before = [{"role": "user", "content": "qzuser"}] if role == "assistant" else []
    after = [{"role": "user", "content": "qzuser"}] if role == "system" else []

    def rendered(content: object) -> str:
        user = [
            {**message, "content": [text_part("qzuser")]} if isinstance(content, list) else message
            for message in (*before, *after)
        ]
        message = {"role": role, "content": content}
        for siblings in (user, [*before, *after]):
            try:
                return render([*siblings[: len(before)], message, *siblings[len(before) :]])
            except ValueError:
                continue
        return ""

    text, parts = rendered(MARKS[0]), rendered([text_part(mark) for mark in MARKS])
    reads_parts = all(mark in parts for mark in MARKS) and len(TYPE.findall(parts)) <= len(
        TYPE.findall(text)
    )
    return ContentForms(MARKS[0] in text, reads_parts)
