"""OpenAI API: responses, without stored ones.

A reply is a list of items: reasoning, a message, function calls. `OutputItems` writes complete and
streamed responses.
"""

import json
import secrets
import time
from collections.abc import AsyncIterator
from reprlib import repr as brief
from typing import TypedDict

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
    parse_messages,
    parse_tools,
    set_effort,
    start_reply,
)
from minhub_py.serve.models import ServedModel
from minhub_py.serve.openai import usage
from minhub_py.serve.replies import new_call_id
from minhub_py.serve.server import server_of
from minhub_py.serve.settings import parse_schema, parse_settings, parse_stream
from minhub_py.serve.streaming import respond, sse
from minhub_py.serve.validation import Fields, invalid
from minhub_py.system.json_text import JsonObject, encodable

Event = tuple[str, JsonObject]


class TextPart(TypedDict, total=False):
    """A part of reasoning."""

    text: str


async def input_tokens(request: HTTPRequest) -> Response:
    """POST /v1/responses/input_tokens: the number of tokens of the prompt."""
    served, fields = await server_of(request).read_with_model(request, "completion")
    chat = parse_input(fields, served)
    reject_unsupported(fields, OUTPUT)
    fields.finish(known_fields.PROMPT)
    ids = await encode_input(served, chat)
    return JSONResponse({"object": "response.input_tokens", "input_tokens": len(ids)})


async def responses(request: HTTPRequest) -> Response:
    """POST /v1/responses."""
    served, fields = await server_of(request).read_with_model(request, "completion")
    chat = parse_input(fields, served)
    settings = parse_settings(fields, served, defaults=chat.defaults)
    requested = fields.integer("max_output_tokens", 1, 2**31)
    stream, _ = parse_stream(fields)
    if "message.output_text.logprobs" in fields.strings("include", 20):
        raise invalid(
            "include has message.output_text.logprobs, which is not supported: remove it", "include"
        )
    reject_unsupported(fields, OUTPUT)
    fields.finish(known_fields.RESPONSES)
    generation, ids = await start_reply(served, chat, requested, settings, name="text.format")
    response_id, created = f"resp_{secrets.token_hex(12)}", int(time.time())

    def response(output: list[JsonObject], end: str | None = None) -> JsonObject:
        status = {None: "in_progress", "stop": "completed", "length": "incomplete"}[end]
        counts = usage(generation, len(ids))
        return {
            "id": response_id,
            "object": "response",
            "created_at": created,
            "status": status,
            "model": served.name,
            "output": output,
            "error": None,
            "instructions": fields.get("instructions"),
            "incomplete_details": {"reason": "max_output_tokens"} if end == "length" else None,
            "parallel_tool_calls": chat.parallel,
            "tool_choice": encodable(fields.get("tool_choice") or "auto"),
            "tools": encodable(fields.get("tools") or []),
            "metadata": {},
            "temperature": settings["sampling"].temperature,
            "top_p": settings["sampling"].top_p or 1.0,
            "usage": (
                None
                if end is None
                else {
                    "input_tokens": counts["prompt_tokens"],
                    "output_tokens": counts["completion_tokens"],
                    "total_tokens": counts["total_tokens"],
                    "input_tokens_details": counts["prompt_tokens_details"],
                    "output_tokens_details": counts["completion_tokens_details"],
                }
            ),
        }

    async def complete() -> dict[str, object]:
        items = OutputItems()
        async for _, delta in generation.deltas():
            items.add(delta)
        return response(items.output, items.end)

    async def events() -> AsyncIterator[bytes]:
        number = 0

        def event(kind: str, **data: object) -> bytes:
            nonlocal number
            number += 1
            return sse(
                {"type": f"response.{kind}", "sequence_number": number - 1, **data},
                f"response.{kind}",
            )

        yield event("created", response=response([]))
        yield event("in_progress", response=response([]))
        items = OutputItems()
        async for _, delta in generation.deltas():
            for kind, data in items.add(delta):
                yield event(kind, **data)
        yield event(
            "completed" if items.end == "stop" else "incomplete",
            response=response(items.output, items.end),
        )

    return await respond(request, generation, complete, events if stream else None)


def parse_input(fields: Fields, served: ServedModel) -> ChatInput:
    """A request's conversation."""
    fields.reject("previous_response_id", "conversation", "prompt", "context_management")
    value = fields.get("input")
    values = [{"role": "user", "content": value}] if isinstance(value, str) else value
    if isinstance(values, list):
        values = messages_of(values)
    messages = parse_messages(values, served.engine.max_length, "input")
    if instructions := fields.string("instructions"):
        messages.insert(0, {"role": "system", "content": instructions})
    chat = ChatInput(messages, parse_tools(fields.get("tools")))
    choose_tools(chat, fields.get("tool_choice"), fields.boolean("parallel_tool_calls", True))
    text, reasoning = fields.object("text"), fields.object("reasoning")
    chat.schema = parse_schema(text, "format")
    reject_unsupported(text, OUTPUT)
    set_effort(chat, served, reasoning.get("effort"), "reasoning.effort")
    chat.translation = parse_translation(fields, served)
    return chat


def messages_of(items: list[object]) -> list[JsonObject]:
    """Input items as messages: calls belong to the assistant message before them, reasoning to the
    one after it.
    """
    messages: list[JsonObject] = []
    reasoning = ""
    for index, item in enumerate(items):
        fields = Fields(item, f"input[{index}]")
        kind = fields.get("type") or "message"
        if kind == "reasoning":
            parts = (
                fields.get("content", list[TextPart]) or fields.get("summary", list[TextPart]) or []
            )
            reasoning = "\n".join(part.get("text") or "" for part in parts)
        elif kind == "function_call":
            call = make_call(
                fields.get("call_id") or fields.get("id"),
                fields.string("name") or "",
                fields.get("arguments"),
            )
            if not messages or messages[-1].get("role") != "assistant":
                messages.append(
                    {"role": "assistant", "content": "", "reasoning_content": reasoning}
                )
                reasoning = ""
            messages[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            output = fields.get("output")
            content = output if isinstance(output, str | list) else json.dumps(output)
            messages.append(
                {"role": "tool", "tool_call_id": fields.get("call_id"), "content": content}
            )
        elif kind == "message":
            message = dict(fields.values)
            if message.get("role") == "assistant":
                message["reasoning_content"], reasoning = reasoning, ""
            messages.append(message)
        elif kind in ("input_image", "input_file"):
            messages.append({"role": "user", "content": OMITTED.format("content")})
        else:
            raise invalid(f"input[{index}] has type {brief(kind)}: it is not supported", "input")
    return messages


class OutputItems:
    """The items of a reply. `add` returns a stream's events."""

    def __init__(self) -> None:
        self.output: list[JsonObject] = []
        self.kind = ""  # of the current item of text or reasoning
        self.end = "length"
        self.events: list[Event] = []

    def add(self, delta: Delta) -> list[Event]:
        """Add a delta."""
        self.events = []
        for event in delta.events:
            if event.kind == "call" or event.kind != self.kind:
                self._close("completed")
            if event.kind == "call":
                self._add_call(event)
            else:
                self._add_text(event)
        if delta.end is not None:
            if not self.output:
                self._open("content")
            self._close("completed" if delta.end == "stop" else "incomplete")
            self.end = delta.end
        return self.events

    def _add_call(self, event: ReplyEvent) -> None:
        id = new_call_id()  # ellmer uses the item's ID as the call's
        item = {
            "id": id,
            "type": "function_call",
            "call_id": id,
            "name": event.text,
            "arguments": "",
        }
        self._start(item)
        item["arguments"] = event.arguments
        self._send("function_call_arguments.delta", delta=event.arguments)
        self._send("function_call_arguments.done", name=event.text, arguments=event.arguments)
        self._stop("completed")

    def _add_text(self, event: ReplyEvent) -> None:
        if not self.kind:
            self._open(event.kind)
        item = self.output[-1]
        if event.kind == "reasoning":
            item["summary"][0]["text"] += event.text
            self._send("reasoning_summary_text.delta", summary_index=0, delta=event.text)
        else:
            item["content"][0]["text"] += event.text
            self._send("output_text.delta", content_index=0, delta=event.text, logprobs=[])

    def _open(self, kind: str) -> None:
        """Begin an item of text or reasoning."""
        self.kind, token = kind, secrets.token_hex(12)
        if kind == "reasoning":
            item: JsonObject = {
                "id": f"rs_{token}",
                "type": "reasoning",
                "summary": [],
                "content": [],
            }
            self._start(item)
            item["summary"] = [{"type": "summary_text", "text": ""}]
            self._send("reasoning_summary_part.added", summary_index=0, part={**item["summary"][0]})
        else:
            item = {"id": f"msg_{token}", "type": "message", "role": "assistant", "content": []}
            self._start(item)
            item["content"] = [
                {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            ]
            self._send("content_part.added", content_index=0, part={**item["content"][0]})

    def _close(self, status: str) -> None:
        """End the item of text or reasoning, if there is one."""
        kind, self.kind = self.kind, ""
        if kind == "reasoning":
            part = self.output[-1]["summary"][0]
            self.output[-1]["content"] = [{"type": "reasoning_text", "text": part["text"]}]
            self._send("reasoning_summary_text.done", summary_index=0, text=part["text"])
            self._send("reasoning_summary_part.done", summary_index=0, part={**part})
        elif kind:
            part = self.output[-1]["content"][0]
            self._send("output_text.done", content_index=0, text=part["text"], logprobs=[])
            self._send("content_part.done", content_index=0, part={**part})
        if kind:
            self._stop(status)

    def _start(self, item: JsonObject) -> None:
        item["status"] = "in_progress"
        self.output.append(item)
        self.events.append(
            ("output_item.added", {"output_index": len(self.output) - 1, "item": {**item}})
        )

    def _send(self, kind: str, **data: object) -> None:
        """Add an event of the current item."""
        self.events.append(
            (kind, {"item_id": self.output[-1]["id"], "output_index": len(self.output) - 1, **data})
        )

    def _stop(self, status: str) -> None:
        self.output[-1]["status"] = status
        self.events.append(
            ("output_item.done", {"output_index": len(self.output) - 1, "item": self.output[-1]})
        )
