"""The positions of replies in a rendered conversation, for training on them only.

A template with the tag {% generation %} marks its replies. For other templates, a reply is the difference between the
conversation up to its prompt and the conversation that includes it. This is exact only if the template writes the same
text before and after a reply is added; otherwise the conversation is rejected.
"""

import secrets
from collections.abc import Sequence
from typing import Any

from minhub_py.chat.templates import ChatTemplate, Message, check_messages, normalized
from minhub_py.checkpoints.tokenizers.tokenizer import working

Span = tuple[int, int]


def reply_spans(template: ChatTemplate, messages: Sequence[Message]) -> tuple[str, list[Span]]:
    """The rendered conversation and the character positions of its replies.

    ValueError: there is no reply, or the template does not determine its position.
    """
    plain = [normalized(message) for message in check_messages(messages)]
    if not any(message["role"] == "assistant" for message in plain):
        raise ValueError("the conversation has no assistant message to train on")
    source = template.templates.get("default", "")
    if template.kind == "template" and "generation %}" in source.replace("-%}", "%}").replace("endgeneration", ""):
        return marked_spans(template, plain)
    return template.render(plain, add_generation_prompt=False), difference_spans(template, plain)


def marked_spans(template: ChatTemplate, plain: list[dict[str, Any]]) -> tuple[str, list[Span]]:
    """The spans that the template marks. ValueError: it marks none."""
    marks = [f"<{secrets.token_hex(12)}>", f"<{secrets.token_hex(12)}>"]
    parts = template.render_messages(plain, add_generation_prompt=False, marks=marks).split(marks[0])
    text, spans = parts[0], []
    for part in parts[1:]:
        reply, _, rest = part.partition(marks[1])
        spans.append((len(text), len(text) + len(reply)))
        text += reply + rest
    if not spans:
        raise ValueError("the chat template marks no reply of the conversation")
    return text, spans


def difference_spans(template: ChatTemplate, plain: list[dict[str, Any]]) -> list[Span]:
    """The differences between the conversation with and without each reply. ValueError: a prefix is not equal."""
    complete = template.render(plain, add_generation_prompt=False)
    spans = []
    for index, message in enumerate(plain):
        if message["role"] != "assistant":
            continue
        before = template.render(plain[:index], add_generation_prompt=True) if index else ""
        after = template.render(plain[: index + 1], add_generation_prompt=False)
        if not (after.startswith(before) and complete.startswith(after)):
            raise ValueError(
                f"the chat template does not determine the position of the reply in message {index + 1}: it writes "
                "earlier messages differently after a reply. Use {% generation %} in the template, or conversations "
                "with one reply"
            )
        spans.append((len(before), len(after)))
    return spans


def encode_replies(template: ChatTemplate, messages: Sequence[Message]) -> tuple[list[int], list[bool]]:
    """The token IDs of a conversation, and whether each token belongs to a reply.

    The end token of a reply is included, white space after it is not.
    ValueError: as for `reply_spans`, or a token belongs to a reply and to the text before it.
    """
    text, spans = reply_spans(template, messages)
    tokenizer = template.tokenizer
    with working(tokenizer):
        encoding = tokenizer.encode(text, add_special_tokens=False)
    ids, offsets = list(encoding.ids), list(encoding.offsets)
    mask = [any(first < end and begin < last for begin, end in spans) for first, last in offsets]
    for begin, _ in spans:
        if any(first < begin < last for first, last in offsets):
            raise ValueError(
                "a token contains the end of a prompt and the beginning of its reply: use another template"
            )
    remove_trailing_space(ids, mask, template.end_ids)
    if (bos := template._bos) is not None:
        count = next((i for i, id in enumerate(ids) if id != bos), len(ids))
        ids, mask = [bos, *ids[count:]], [False, *mask[count:]]
    return ids, mask


def remove_trailing_space(ids: list[int], mask: list[bool], end_ids: frozenset[int]) -> None:
    """Exclude the tokens between the end token of a reply and the end of its span."""
    ended = False
    for index, id in enumerate(ids):
        if not mask[index]:
            ended = False
        elif ended:
            mask[index] = False
        elif id in end_ids:
            ended = True
