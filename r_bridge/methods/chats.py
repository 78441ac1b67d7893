"""Chat replies. R stores the conversation; Python stores the model's KV cache for it."""

import json
from contextlib import closing
from typing import Any

import numpy as np

from r_bridge.convert import character, json_data, json_schema
from r_bridge.methods.text import biases, token_texts
from r_bridge.objects import Model, Session, Tokenizer


def chat_template(session: Session, model: Model, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """The kind of a model's chat template, a note about it for the user, and the model's sampling settings."""
    chat = _chat(model, tokenizer)
    return {"kind": chat.template.kind, "note": chat.template.note, "sampling": chat.defaults}


def reply(
    session: Session, model: Model, tokenizer: Tokenizer | None, system: str | None, said: Any, text: str,
    max_new_tokens: int, temperature: float, top_k: int | None, top_p: float | None, repetition_penalty: float,
    seed: float, stop: Any, top: int, schema: Any, min_p: float | None = None, presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0, logit_bias: Any = None,
) -> dict[str, Any]:  # fmt: skip
    """Generate the reply to a text. It is streamed with its tokens, so R keeps the partial reply if it cancels.

    said: the previous texts of user and assistant, alternating.
    schema: a JSON Schema as text or as a list. `data` is then the parsed reply, if it is complete.
    """
    from minhub_py.chat.turns import Turn

    chat = _chat(model, tokenizer)
    chat.system, chat.reply_count = system, 0  # R draws the seed of each reply
    chat.turns = [Turn(("user", "assistant")[index % 2], text) for index, text in enumerate(said or ())]
    pieces = chat.stream(
        text, max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p,
        repetition_penalty=repetition_penalty, min_p=min_p, presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty, logit_bias=biases(logit_bias), seed=int(seed),
        stop=tuple(stop or ()), top=top,
        schema=None if schema is None else json_schema(schema),
    )  # fmt: skip
    sent = 0

    def emit(piece: str) -> None:
        nonlocal sent
        events, sent = chat.events[sent:], len(chat.events)
        top = [
            (position, *candidate)
            for position, event in enumerate(events, sent - len(events) + 1) for candidate in event.top
        ]  # fmt: skip
        session.emit({
            "piece": piece,
            "token": token_texts(chat.tokenizer, [event.id for event in events]),
            "id": np.array([event.id for event in events], np.int32),
            "logprob": np.array([event.logprob for event in events], np.float64),
            "top": {
                "position": np.array([position for position, _, _ in top], np.int32),
                "token": token_texts(chat.tokenizer, [id for _, id, _ in top]),
                "id": np.array([id for _, id, _ in top], np.int32),
                "logprob": np.array([logprob for _, _, logprob in top], np.float64),
            },
        })  # fmt: skip

    with closing(pieces):
        for piece in pieces:
            session.check_cancelled()
            emit(piece)
    if sent < len(chat.events):
        emit("")
    result = chat.last
    assert result is not None
    return {"text": character([result.text]), "end": result.end, "seconds": result.seconds, "read": result.read,
            "kept": result.kept, "dropped": result.dropped, "context": chat.context,
            "data": None if schema is None or result.end != "stop" else json_data(json.loads(result.text))}  # fmt: skip


def _chat(model: Model, tokenizer: Tokenizer | None) -> Any:
    """The model's conversation, whose KV cache all chats of the model share.

    ValueError: the model has no tokenizer, or does not support chats.
    """
    from minhub_py.chat.conversation import Chat

    tok = tokenizer.tokenizer if tokenizer is not None else model.tokenizer
    if model.chat is None or model.chat.tokenizer is not tok:
        model.chat = Chat(model.module, tok)
    return model.chat
