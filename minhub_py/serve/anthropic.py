"""Anthropic API: messages and count_tokens.

Source: Anthropic's API reference and the types of its client. A reply is a list of blocks:
thinking, text, tool_use. `Blocks` writes complete and streamed messages.
"""

import secrets
from collections.abc import AsyncIterator
from dataclasses import replace

from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response

from minhub_py.chat.reply_parser import ReplyEvent
from minhub_py.serve import known_fields
from minhub_py.serve.engine import Delta
from minhub_py.serve.known_fields import OUTPUT, reject_unsupported
from minhub_py.serve.languages import parse_translation
from minhub_py.serve.messages import (
    OMITTED,
    ChatInput,
    choose_tools,
    encode_input,
    make_call,
    parse_content,
    parse_messages,
    parse_tools,
    set_effort,
    set_thinking,
    start_reply,
)
from minhub_py.serve.models import ServedModel
from minhub_py.serve.replies import new_call_id
from minhub_py.serve.server import server_of
from minhub_py.serve.settings import parse_schema, parse_settings
from minhub_py.serve.streaming import respond, sse
from minhub_py.serve.validation import Fields, RequestError, invalid
from minhub_py.system.json_text import JsonObject, JSONText, object_text

SIGNATURE = "minhub"  # pydantic-ai treats thinking without a signature as user text
MAX_STOP_SEQUENCES = 64
CHOICES = {"any": "required", "auto": "auto", "none": "none"}


async def messages(request: HTTPRequest) -> Response:
    """POST /v1/messages."""
    served, fields = await server_of(request).read_with_model(request, "completion")
    # the client sends the whole conversation again after this error
    if fields.get("thread") is not None:
        raise RequestError(
            400,
            "thread is not supported: send all messages",
            "thread_unsupported_request",
            "thread",
        )
    chat = parse_input(fields, served)
    requested = fields.integer("max_tokens", 1, 2**31)
    if requested is None:
        raise invalid("max_tokens is missing: add the maximum number of tokens", "max_tokens")
    stops, settings = (
        fields.strings("stop_sequences", MAX_STOP_SEQUENCES),
        parse_settings(fields, served, defaults=chat.defaults),
    )
    rules = settings["stop_rules"]
    settings["stop_rules"] = replace(rules, stops=(*stops, *rules.stops))
    stream = fields.boolean("stream")
    reject_unsupported(fields, OUTPUT)
    fields.finish(known_fields.MESSAGES)
    generation, ids = await start_reply(
        served, chat, requested, settings, name="output_config.format"
    )
    message_id = f"msg_{secrets.token_hex(12)}"

    def usage(output_tokens: int) -> dict[str, object]:
        cached = generation.cached_tokens
        return {
            "input_tokens": len(ids) - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": output_tokens,
        }

    def message(content: list[JsonObject], ending: JsonObject) -> JsonObject:
        return {
            "id": message_id,
            "type": "message",
            "role": "assistant",
            "model": served.name,
            "content": content,
            **ending,
            "usage": usage(generation.generated_tokens),
        }

    def ending(blocks: "ContentBlocks") -> dict[str, object]:
        detokenizer = generation.requests[0].detokenizer
        sequence = None if detokenizer is None else detokenizer.stops.found
        if sequence in stops:
            return {"stop_reason": "stop_sequence", "stop_sequence": sequence}
        reason = (
            "max_tokens"
            if blocks.end == "length"
            else "tool_use"
            if blocks.has_calls
            else "end_turn"
        )
        return {"stop_reason": reason, "stop_sequence": None}

    async def complete() -> dict[str, object]:
        blocks = ContentBlocks()
        async for _, delta in generation.deltas():
            blocks.add(delta)
        return message(blocks.content, ending(blocks))

    async def events() -> AsyncIterator[bytes]:
        def event(kind: str, **data: object) -> bytes:
            return sse({"type": kind, **data}, kind)

        blocks, started = ContentBlocks(), False
        async for _, delta in generation.deltas():
            if not started:
                started = True
                start = message([], {"stop_reason": None, "stop_sequence": None}) | {
                    "usage": usage(0)
                }
                yield event("message_start", message=start)
            for kind, data in blocks.add(delta):
                yield event(kind, **data)
        yield event("message_delta", delta=ending(blocks), usage=usage(generation.generated_tokens))
        yield event("message_stop")

    return await respond(request, generation, complete, events if stream else None)


async def count_tokens(request: HTTPRequest) -> Response:
    """POST /v1/messages/count_tokens."""
    served, fields = await server_of(request).read_with_model(request, "completion")
    chat = parse_input(fields, served)
    reject_unsupported(fields, OUTPUT)
    fields.finish(known_fields.PROMPT)
    ids = await encode_input(served, chat)
    return JSONResponse({"input_tokens": len(ids)})


def parse_input(fields: Fields, served: ServedModel) -> ChatInput:
    """A request's conversation."""
    limit = served.engine.max_length
    values = fields.get("messages")
    if not isinstance(values, list):
        raise invalid("messages must be a list of at least one message", "messages")
    turns: list[dict[str, object]] = []
    for index, value in enumerate(values):
        turns += parse_turn(Fields(value, f"messages[{index}]"), limit)
    parsed = parse_messages(turns, limit)
    system = parse_content(fields.get("system"), limit, "system")
    if system:
        parsed.insert(0, {"role": "system", "content": system})
    chat = ChatInput(parsed, parse_tools(fields.get("tools")))
    choice = fields.object("tool_choice")
    kind = choice.string("type")
    if kind not in (None, "tool", *CHOICES):
        raise invalid(
            f"tool_choice.type must be auto, any, tool or none, not {kind!r}", "tool_choice"
        )
    value = None if kind is None else choice.values if kind == "tool" else CHOICES[kind]
    choose_tools(chat, value, not choice.boolean("disable_parallel_tool_use"))
    output = fields.object("output_config")
    current, previous = parse_schema(output, "format"), parse_schema(fields, "output_format")
    chat.schema = current or previous
    set_effort(chat, served, output.get("effort"), "output_config.effort")
    thinking = fields.object("thinking").string("type")
    if thinking is not None:
        set_thinking(chat, served, thinking != "disabled")
    final = chat.messages[-1]
    # a prefill
    if final["role"] == "assistant" and not final.get("tool_calls") and len(chat.messages) > 1:
        chat.messages[-1] = {"role": "assistant", "content": final["content"]}
        chat.variables["continue_final_message"] = True
    chat.translation = parse_translation(fields, served)
    return chat


def parse_turn(message: Fields, limit: int) -> list[dict[str, object]]:
    """A message as messages of the OpenAI API: results of calls precede the text of their turn."""
    role, content = message.get("role"), message.get("content")
    if not isinstance(content, list):
        return [{"role": role, "content": content}]
    texts: list[object] = []
    results: list[dict[str, object]] = []
    calls, reasoning = [], ""
    for index, part in enumerate(content):
        block = Fields(
            {"type": "text", "text": part} if isinstance(part, str) else part,
            f"{message.path}.content[{index}]",
        )
        kind = block.get("type")
        if kind == "tool_use":
            calls.append(make_call(block.get("id"), block.string("name") or "", block.get("input")))
        elif kind == "tool_result":
            text = parse_content(block.get("content"), limit, f"{block.path}.content", omit=True)
            results.append(
                {
                    "role": "tool",
                    "tool_call_id": block.get("tool_use_id"),
                    "content": f"Error: {text}" if block.get("is_error") is True else text,
                }
            )
        elif kind == "thinking":
            reasoning += block.string("thinking") or ""
        elif kind in ("image", "document") and role == "user":
            raise invalid(
                f"{block.path} has type {kind}: only text is supported", block.path, "unsupported"
            )
        elif kind != "redacted_thinking":
            texts.append(part if kind in (None, "text") else OMITTED.format("content"))
    if not texts and not calls and results:
        return results
    turn: dict[str, object] = {"role": role, "content": texts}
    if role == "assistant":
        turn |= {"tool_calls": calls, "reasoning_content": reasoning}
    return [*results, turn]


class ContentBlocks:
    """The blocks of a reply. `add` returns a stream's events."""

    def __init__(self) -> None:
        self.content: list[JsonObject] = []
        self.kind = ""  # of the current block of text or reasoning
        self.has_calls, self.end = False, "length"
        self.events: list[tuple[str, JsonObject]] = []

    def add(self, delta: Delta) -> list[tuple[str, JsonObject]]:
        """Add a delta."""
        self.events = []
        for event in delta.events:
            if event.kind == "call" or event.kind != self.kind:
                self._close()
            if event.kind == "call":
                self._add_call(event)
            else:
                self._add_text(event)
        if delta.end is not None:
            self._close()
            self.end = delta.end
        return self.events

    def _add_call(self, event: ReplyEvent) -> None:
        self.has_calls = True
        arguments = object_text(event.arguments)
        block = {"type": "tool_use", "id": f"toolu_{new_call_id()}", "name": event.text}
        self._start({**block, "input": {}})
        self._delta({"type": "input_json_delta", "partial_json": arguments})
        self.content[-1]["input"] = JSONText(arguments)
        self._stop()

    def _add_text(self, event: ReplyEvent) -> None:
        kind = "thinking" if event.kind == "reasoning" else "text"
        if not self.kind:
            self.kind = event.kind
            self._start(
                {"type": kind, kind: "", **({"signature": ""} if kind == "thinking" else {})}
            )
        self.content[-1][kind] += event.text
        self._delta({"type": f"{kind}_delta", kind: event.text})

    def _close(self) -> None:
        """End the block of text or reasoning, if there is one."""
        kind, self.kind = self.kind, ""
        if kind == "reasoning":
            self.content[-1]["signature"] = SIGNATURE
            self._delta({"type": "signature_delta", "signature": SIGNATURE})
        if kind:
            self._stop()

    def _start(self, block: JsonObject) -> None:
        self.content.append(block)
        self.events.append(
            ("content_block_start", {"index": len(self.content) - 1, "content_block": {**block}})
        )

    def _delta(self, delta: dict[str, object]) -> None:
        self.events.append(
            ("content_block_delta", {"index": len(self.content) - 1, "delta": delta})
        )

    def _stop(self) -> None:
        self.events.append(("content_block_stop", {"index": len(self.content) - 1}))
