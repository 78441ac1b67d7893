"""Required calls of a trained model that was not trained for tools: make test-real.

PYTHONPATH=tests/support python tests/chat/test_real_tools.py 1000 prints the number of replies with
valid calls.
"""

import asyncio
import json
import sys
import time
from typing import Any

import pytest
from needs import package
from real_models import MODELS, path_of

from minhub_py import from_pretrained, tokenizer_from_pretrained
from minhub_py.chat.templates import chat_template_of
from minhub_py.serve.engine import Engine
from minhub_py.serve.messages import ChatInput, choose_tools, parse_tools, start_reply
from minhub_py.serve.models import ServedModel
from minhub_py.serve.replies import ParsedReply, collect_replies
from minhub_py.serve.settings import parse_settings
from minhub_py.serve.validation import Fields

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

MAX_TOKENS = 512


def closed(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    """The schema of an object without further properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties] if required is None else required,
        "additionalProperties": False,
    }


TEXT = {"type": "string", "minLength": 1, "maxLength": 24}
PLACE = closed(city=TEXT, country={"enum": ["NO", "FR", "JP"]})
SCHEMAS = {
    "get_weather": closed(
        ["place", "days"],
        place=PLACE,
        days={"type": "integer", "minimum": 1, "maximum": 14},
        unit={"enum": ["celsius", "fahrenheit", None]},
    ),
    "book_table": closed(
        guests={
            "type": "array",
            "items": closed(name=TEXT, age={"type": "integer", "minimum": 0, "maximum": 120}),
            "minItems": 1,
            "maxItems": 3,
        },
        time={"type": "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"},
        outside={"type": "boolean"},
    ),
    "search": closed(
        ["filters"],
        filters=closed(
            tags={"type": "array", "items": {"enum": ["food", "music", "art"]}, "maxItems": 3},
            price={"anyOf": [{"type": "integer", "minimum": 0, "maximum": 999}, {"type": "null"}]},
        ),
        query=TEXT,
    ),
}
QUESTIONS = (
    "What is the weather in Oslo?",
    "Book a table for Ann (34) and Bo at eight.",
    "Find concerts below 50.",
)


async def replies_of(served: ServedModel, seeds: range) -> list[ParsedReply]:
    """The replies to requests like the server's, at temperature 1."""
    running = asyncio.Semaphore(2 * served.engine.batch_size)

    async def reply(seed: int) -> ParsedReply:
        async with running:
            return await single(seed)

    async def single(seed: int) -> ParsedReply:
        definitions = [
            {
                "type": "function",
                "function": {
                    "name": name,
                    "description": name.replace("_", " "),
                    "parameters": schema,
                },
            }
            for name, schema in SCHEMAS.items()
        ]
        messages = [{"role": "user", "content": QUESTIONS[seed % len(QUESTIONS)]}]
        chat = ChatInput(messages, parse_tools(definitions))
        choose_tools(chat, "required", seed % 2 == 0)  # half of them with parallel calls
        settings = parse_settings(Fields({"temperature": 1.0, "seed": seed}), served)
        generation, _ = await start_reply(served, chat, MAX_TOKENS, settings)
        generation.start()
        [complete] = await collect_replies(generation)
        return complete

    return list(await asyncio.gather(*map(reply, seeds)))


def problem(reply: ParsedReply) -> str:
    """The first violation of a reply; "" if all calls are valid."""
    jsonschema = package("jsonschema")
    if not reply.calls:
        return f"no call: {reply.end}, {reply.text[:100]!r}"
    if reply.text.strip():
        return f"text: {reply.text[:100]!r}"
    for call in reply.calls:
        try:
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
        except (ValueError, KeyError, jsonschema.ValidationError) as error:
            return f"{call.name} {call.arguments[:100]}: {str(error)[:100]}"
    return ""


def run(count: int) -> tuple[list[ParsedReply], list[str]]:
    """Replies, and the violations of those that are not valid."""
    path = path_of(MODELS["smollm2"])
    model, tokenizer = from_pretrained(path, device="cpu"), tokenizer_from_pretrained(str(path))
    engine = Engine(model, tokenizer, batch_size=16, max_length=2048, queue_size=count)
    served = ServedModel(
        "smollm2", model, tokenizer, chat_template_of(path, tokenizer), engine, 3600
    )
    try:
        replies = asyncio.run(replies_of(served, range(count)))
    finally:
        served.close()
    return replies, [text for text in map(problem, replies) if text]


def test_each_required_call_is_valid() -> None:
    replies, problems = run(50)
    assert problems == []
    assert {call.name for reply in replies for call in reply.calls} == SCHEMAS.keys()


if __name__ == "__main__":
    start = time.perf_counter()
    replies, problems = run(int(sys.argv[1]))
    print("\n".join(problems[:20]))
    calls = sum(len(reply.calls) for reply in replies)
    cut = sum(reply.end == "length" for reply in replies)
    tokens = sum(len(reply.tokens) for reply in replies)
    print(
        f"{len(replies) - len(problems)} of {len(replies)} replies are valid: {calls} calls, {cut}"
        f" replies cut, {tokens} tokens, {time.perf_counter() - start:.0f} s"
    )
