"""Chat replies. R stores the conversation; Python stores the model's KV cache for it."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from minhub_py.system.shapes import convert
from r_bridge.arguments import character, json_data, json_schema, scalar
from r_bridge.convert import Numeric
from r_bridge.methods.text import biases, token_texts
from r_bridge.objects import Model, Session, Tokenizer

if TYPE_CHECKING:
    from minhub_py.chat.conversation import Chat


def chat_template(session: Session, model: Model, tokenizer: Tokenizer | None) -> dict[str, object]:
    """The kind of a model's chat template, a note about it for the user, and the model's sampling
    settings.
    """
    chat = model.conversation(tokenizer)
    return {"kind": chat.template.kind, "note": chat.template.note, "sampling": chat.defaults}


def has_chat_template(session: Session, model: Model) -> bool:
    """Whether a model has a chat template. False for a model without a tokenizer."""
    from minhub_py.chat.templates import read_chat_template

    tok = model.optional_tokenizer()
    if tok is None:
        return False
    try:
        return read_chat_template(None, tok).kind == "template"
    except ValueError:  # a corrupt template only concerns chats
        return False


def apply_chat_template(
    session: Session,
    tokenizer: Tokenizer,
    conversations: Iterable[Iterable[Mapping[str, object]]],
    add_generation_prompt: bool,
    tokenize: bool,
) -> object:
    """Each conversation's text, or its token IDs. conversations: lists of messages, whose
    fields are strings.
    """
    from minhub_py.chat.templates import chat_template_of

    template = chat_template_of(None, tokenizer.tokenizer)
    if template.kind != "template":
        raise ValueError(
            "the tokenizer has no chat template: load the tokenizer of a chat model, with"
            " tokenizer_from_pretrained()"
        )
    texts = [
        template.render(
            [{name: scalar(value, str) for name, value in message.items()} for message in messages],
            add_generation_prompt=add_generation_prompt,
        )
        for messages in conversations
    ]
    if tokenize:
        return [np.array(template.tokenize(text), np.int32) for text in texts]
    return character(texts)


def reply(
    session: Session,
    model: Model,
    tokenizer: Tokenizer | None,
    system: str | None,
    said: Sequence[str] | None,
    text: str,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    repetition_penalty: float,
    seed: float,
    stop: list[str],
    top: int,
    schema: object,
    min_p: float | None = None,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    logit_bias: Mapping[str, Numeric] | None = None,
    tools: Iterable[object] | None = None,
    steps: Iterable[object] | None = None,
    called: str | None = None,
    results: Iterable[object] | None = None,
    tool_choice: str = "auto",
) -> dict[str, object]:
    """Generate the reply to a text. It is streamed with its tokens, so R keeps the partial reply if
    it cancels.

    said: the previous texts of user and assistant, alternating.
    schema: a JSON Schema as text or as a list. `data` is then the parsed reply, if it is complete.
    tools: definitions of R functions, which R calls.
    steps: for each previous reply, its calls and their results, as the result `steps` of this
    function.
    called, results: the result `called` of the previous call of this function, and the results of
    its calls.
    """
    from minhub_py.chat.functions import parse_tools
    from minhub_py.chat.turns import Turn

    chat = restored_chat(model.conversation(tokenizer), system, said, steps)
    chat.tools = parse_tools([json_schema(tool) for tool in tools or ()])
    if called is None:
        send = partial(chat.stream, text, tool_choice=tool_choice)
    else:
        chat.turns += [Turn("user", text), convert(json.loads(called), Turn)]
        send = partial(chat.stream_answer, strings(results))
    pieces = send(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        repetition_penalty=repetition_penalty,
        min_p=min_p,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=biases(logit_bias),
        seed=int(seed),
        stop=tuple(stop or ()),
        top=top,
        schema=None if schema is None else json_schema(schema),
    )
    sent = 0
    with closing(pieces):
        for piece in pieces:
            session.check_cancelled()
            session.emit(part(chat, piece, sent))
            sent = len(chat.events)
    if sent < len(chat.events):
        session.emit(part(chat, "", sent))
    turn = chat.turns[-1]
    result = turn.reply
    assert result is not None
    calls = [{"name": call.name, "arguments": json_data(call.arguments)} for call in result.calls]
    called = json.dumps(
        {"role": turn.role, "text": turn.text, "reply": asdict(result), "steps": turn.steps}
    )
    data = (
        None
        if schema is None or result.end != "stop" or calls
        else json_data(json.loads(result.text))
    )
    return {
        "calls": calls,
        "called": called if calls else None,
        "steps": json.dumps(turn.steps),
        "reasoning": character([result.reasoning]) if result.reasoning else None,
        "text": character([result.text]),
        "end": result.end,
        "seconds": result.seconds,
        "read": result.read,
        "kept": result.kept,
        "dropped": result.dropped,
        "context": chat.context,
        "data": data,
    }


def restored_chat(
    chat: "Chat", system: str | None, said: Sequence[str] | None, steps: Iterable[object] | None
) -> "Chat":
    """The chat with R's conversation. For arguments see `reply`."""
    from minhub_py.chat.turns import Turn

    chat.system, chat.reply_count = system, 0  # R draws the seed of each reply
    chat.turns = [
        Turn(("user", "assistant")[index % 2], text) for index, text in enumerate(said or ())
    ]
    for number, messages in enumerate(strings(steps)):
        turn = chat.turns[2 * number + 1]
        previous = convert(json.loads(messages or "[]"), tuple[dict[str, Any], ...])
        chat.turns[2 * number + 1] = Turn(turn.role, turn.text, None, previous)
    return chat


def part(chat: "Chat", piece: str, first: int) -> dict[str, object]:
    """New text of a reply with its tokens, which begin with the token number `first`, from 0."""
    events = chat.events[first:]
    top = [
        (position, *candidate)
        for position, event in enumerate(events, first + 1)
        for candidate in event.top
    ]
    positions, ids, logprobs = zip(*top, strict=True) if top else ((), (), ())
    return {
        "piece": piece,
        **columns_of(chat, [event.id for event in events], [event.logprob for event in events]),
        "top": {"position": np.array(positions, np.int32), **columns_of(chat, ids, logprobs)},
    }


def columns_of(
    chat: "Chat", ids: Sequence[int], logprobs: Sequence[float | None]
) -> dict[str, object]:
    """Columns of tokens."""
    return {
        "token": token_texts(chat.tokenizer, list(ids)),
        "id": np.array(ids, np.int32),
        "logprob": np.array(logprobs, np.float64),
    }


def strings(value: object) -> list[str]:
    """The strings of a character vector or of a list of them."""
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    assert isinstance(value, Iterable)
    return [text for item in value for text in strings(item)]
