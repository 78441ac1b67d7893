"""Replies of a chat. R holds the conversation; here is what the model has read of it."""

import json
from contextlib import closing
from typing import Any

import numpy as np

from r_bridge.convert import character, json_data, json_schema
from r_bridge.methods.text import token_texts
from r_bridge.objects import Caller, Model, Tokenizer


def chat_template(caller: Caller, model: Model, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """The format of a model's conversations, a note about it for the user, and the model's sampling settings."""
    chat = _chat(model, tokenizer)
    return {"kind": chat.template.kind, "note": chat.template.note, "sampling": chat.defaults}


def reply(
    caller: Caller, model: Model, tokenizer: Tokenizer | None, system: str | None, said: Any, text: str,
    max_new_tokens: int, temperature: float, top_k: int | None, top_p: float | None, repetition_penalty: float,
    seed: float, stop: Any, top: int, schema: Any,
) -> dict[str, Any]:  # fmt: skip
    """The reply to a text, after what was `said`: texts of user and assistant in turns.

    schema: a JSON schema as text or as a list; `data` is then the parsed reply, unless it was cut short.

    Each piece is sent with its tokens as it comes, so that R has the beginning of a reply that it stops.
    """
    from minhub_py.chat.conversation import Turn

    chat = _chat(model, tokenizer)
    chat.system, chat.reply_count = system, 0  # R has drawn the seed for this reply
    chat.turns = [Turn(("user", "assistant")[i % 2], each) for i, each in enumerate(said or ())]
    pieces = chat.stream(
        text, max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p,
        repetition_penalty=repetition_penalty, seed=int(seed), stop=tuple(stop or ()), top=top,
        schema=None if schema is None else json_schema(schema),
    )  # fmt: skip
    seen = 0

    def tell(piece: str) -> None:
        nonlocal seen
        events, seen = chat.events[seen:], len(chat.events)
        likely = [(place, *each) for place, event in enumerate(events, seen - len(events) + 1) for each in event.top]
        caller.emit({
            "piece": piece,
            "token": token_texts(chat.tokenizer, [event.id for event in events]),
            "id": np.array([event.id for event in events], np.int32),
            "logprob": np.array([event.logprob for event in events], np.float64),
            "top": {
                "position": np.array([place for place, _, _ in likely], np.int32),
                "token": token_texts(chat.tokenizer, [id for _, id, _ in likely]),
                "id": np.array([id for _, id, _ in likely], np.int32),
                "logprob": np.array([logprob for _, _, logprob in likely], np.float64),
            },
        })  # fmt: skip

    with closing(pieces):
        for piece in pieces:
            caller.check()
            tell(piece)
    if seen < len(chat.events):
        tell("")
    made = chat.last
    assert made is not None
    return {"text": character([made.text]), "end": made.end, "seconds": made.seconds, "read": made.read,
            "kept": made.kept, "dropped": made.dropped, "context": chat.context,
            "data": None if schema is None or made.end != "stop" else json_data(json.loads(made.text))}  # fmt: skip


def _chat(model: Model, tokenizer: Tokenizer | None) -> Any:
    """The conversation of a model, of which it remembers what it has read: all chats of the model share it.

    ValueError: the model has no tokenizer, or keeps no conversations.
    """
    from minhub_py.chat.conversation import Chat

    tok = tokenizer.tokenizer if tokenizer is not None else model.tokenizer
    if model.chat is None or model.chat.tokenizer is not tok:
        model.chat = Chat(model.module, tok)
    return model.chat
