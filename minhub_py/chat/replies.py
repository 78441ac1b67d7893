"""The positions of replies in a rendered conversation, for training on them only.

A template with the tag {% generation %} marks its replies. For other templates, a reply is the
difference between the conversation up to its prompt and the conversation that includes it. This is
exact only if the template writes the same text before and after a reply is added; otherwise the
conversation is rejected.

The end token of a reply belongs to it. The template writes it within the reply, or as the marker of
the next message; after the last reply, `encode_replies` appends it if necessary.
"""

import secrets
from collections.abc import Mapping, Sequence

from minhub_py.chat.templates import ChatTemplate, Message, check_messages, normalized
from minhub_py.checkpoints.tokenizers.tokenizer import working
from minhub_py.system.json_text import JsonMapping, JsonObject

Span = tuple[int, int]


def reply_spans(
    template: ChatTemplate, messages: Sequence[Message], variables: JsonMapping | None = None
) -> tuple[str, list[Span]]:
    """The rendered conversation and the character positions of its replies, except those with
    weight 0.

    variables: of `ChatTemplate.render`, such as tools.

    ValueError: there is no reply, or the template does not determine its position.
    """
    variables = variables or {}
    plain = [normalized(message) for message in check_messages(messages)]
    trained = [weight_of(message) for message in plain if message["role"] == "assistant"]
    if not any(trained):
        without = "with weight 1 " if trained else ""
        raise ValueError(
            f"the conversation has no assistant message {without}to train on: remove the row"
        )
    plain = [
        {name: value for name, value in message.items() if name != "weight"} for message in plain
    ]
    source = template.templates.get("default", "")
    if template.kind == "template" and "generation %}" in source.replace("-%}", "%}").replace(
        "endgeneration", ""
    ):
        return marked_spans(template, plain, trained, variables)
    text = template.render(plain, add_generation_prompt=False, **variables)
    return text, difference_spans(template, plain, text, trained, variables)


def weight_of(message: Message) -> bool:
    """Whether a message is trained on, by its `weight`, as in the OpenAI API. ValueError: another
    value.
    """
    weight = message.get("weight")
    if weight not in (None, 0, 1):
        raise ValueError(f"the weight of a message must be 0 or 1, not {weight!r}")
    return weight != 0


def marked_spans(
    template: ChatTemplate,
    plain: list[JsonObject],
    trained: Sequence[bool],
    variables: JsonMapping,
) -> tuple[str, list[Span]]:
    """The spans that the template marks. ValueError: it marks none."""
    marks = [f"<{secrets.token_hex(12)}>", f"<{secrets.token_hex(12)}>"]
    parts = template.render(plain, add_generation_prompt=False, marks=marks, **variables).split(
        marks[0]
    )
    text, spans = parts[0], []
    for part in parts[1:]:
        reply, _, remaining = part.partition(marks[1])
        spans.append((len(text), len(text) + len(reply)))
        text += reply + remaining
    if not spans:
        raise ValueError(
            "the chat template marks no reply of the conversation: put the replies of the template"
            " between {% generation %} and {% endgeneration %}"
        )
    if all(trained):
        return text, spans
    if len(spans) != len(trained):
        raise ValueError(
            f"the chat template marks {len(spans)} parts for {len(trained)} replies, so"
            " that their weights cannot be assigned: remove the replies with weight 0"
        )
    return text, [span for span, is_trained in zip(spans, trained, strict=True) if is_trained]


def difference_spans(
    template: ChatTemplate,
    plain: list[JsonObject],
    complete: str,
    trained: Sequence[bool],
    variables: JsonMapping,
) -> list[Span]:
    """The differences between the conversation with and without each reply. ValueError: a prefix is
    not equal.
    """
    spans = []
    replies = [index for index, message in enumerate(plain) if message["role"] == "assistant"]
    for index, is_trained in zip(replies, trained, strict=True):
        if not is_trained:
            continue
        before = (
            template.render(plain[:index], add_generation_prompt=True, **variables) if index else ""
        )
        after = template.render(plain[: index + 1], add_generation_prompt=False, **variables)
        if not (after.startswith(before) and complete.startswith(after)):
            raise ValueError(
                "the chat template does not determine the position of the reply in message"
                f" {index + 1}: it writes earlier messages differently after a reply. Use {{%"
                " generation %} in the template, or conversations with one reply"
            )
        stop = next((stop for stop in template.stops if complete.startswith(stop, len(after))), "")
        spans.append((len(before), len(after) + len(stop)))
    return spans


def encode_replies(
    template: ChatTemplate,
    messages: Sequence[Message],
    variables: Mapping[str, object] | None = None,
) -> tuple[list[int], list[bool]]:
    """The token IDs of a conversation, and whether each token belongs to a reply.

    The end token of a reply is included, white space after it is not. For the arguments see
    `reply_spans`.
    ValueError: as for `reply_spans`, or a token belongs to a reply and to the text before it.
    """
    text, spans = reply_spans(template, messages, variables)
    tokenizer = template.tokenizer
    with working(tokenizer):
        encoding = tokenizer.encode(text, add_special_tokens=False)
    ids, offsets = list(encoding.ids), list(encoding.offsets)
    mask = [any(first < end and begin < last for begin, end in spans) for first, last in offsets]
    for begin, _ in spans:
        if any(first < begin < last for first, last in offsets):
            raise ValueError(
                "a token contains the end of a prompt and the beginning of its reply: use another"
                " template"
            )
    remove_trailing_space(ids, mask, template.end_ids)
    space = [text[first:last].isspace() for first, last in offsets]
    include_end_tokens(ids, mask, space, template)
    last = max((index for index, is_target in enumerate(mask) if is_target), default=-1)
    if last >= 0 and all(space[last + 1 :]) and not template.is_special(ids[last]):
        end = end_tokens(template, messages)
        ids, mask = [*ids[: last + 1], *end], [*mask[: last + 1], *[True] * len(end)]
    count = template.bos_length(ids)
    return [*template.bos, *ids[count:]], [*[False] * len(template.bos), *mask[count:]]


def end_tokens(template: ChatTemplate, messages: Sequence[Message] = ()) -> list[int]:
    """The tokens to append to a last reply without end token; an empty list if they are unknown."""
    ends = template.end_ids
    if messages and messages[-1].get("tool_calls"):
        ends = template.markup.end_ids or ends
    if ends:
        return sorted(ends)[:1]
    if template.eos is not None:
        return [template.eos]
    with working(template.tokenizer):
        return list(
            template.tokenizer.encode("".join(template.stops[:1]), add_special_tokens=False).ids
        )


def include_end_tokens(
    ids: Sequence[int], mask: list[bool], space: Sequence[bool], template: ChatTemplate
) -> None:
    """Include the special token that ends a reply if the template writes it after the reply, as the
    next marker.

    space: whether each token is white space, which may precede the marker.
    """
    for index in range(1, len(ids)):
        if mask[index - 1] and not mask[index] and not template.is_special(ids[index - 1]):
            end = next((i for i in range(index, len(ids)) if not space[i]), index)
            if template.ends_reply(ids[end]):
                mask[index : end + 1] = [True] * (end + 1 - index)


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
