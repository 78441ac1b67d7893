"""OpenAI API: responses, without stored ones.

A reply is a list of items: reasoning, a message, function calls. `OutputItems` writes complete and streamed responses.
"""

import json
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response

from minhub_py.chat.reply_parser import ReplyEvent
from minhub_py.chat.tools import is_complete
from minhub_py.serve.engine import Delta
from minhub_py.serve.messages import (
    OMITTED,
    ChatInput,
    choose_tools,
    encode_input,
    make_call,
    parse_messages,
    parse_tools,
    reply_settings,
    set_effort,
)
from minhub_py.serve.models import Generation, ServedModel
from minhub_py.serve.openai import parse_schema, parse_settings, parse_stream, usage
from minhub_py.serve.replies import new_call_id
from minhub_py.serve.server import server_of
from minhub_py.serve.streaming import respond, sse
from minhub_py.serve.validation import Fields, check_string, invalid

Event = tuple[str, dict[str, Any]]


async def input_tokens(request: HTTPRequest) -> Response:
    """POST /v1/responses/input_tokens: the number of tokens of the prompt."""
    served, fields = await server_of(request).read_with_model(request, "completion")
    ids = await encode_input(served, parse_input(fields, served))
    return JSONResponse({"object": "response.input_tokens", "input_tokens": len(ids)})


async def responses(request: HTTPRequest) -> Response:
    """POST /v1/responses."""
    served, fields = await server_of(request).read_with_model(request, "completion")
    chat = parse_input(fields, served)
    settings = parse_settings(fields, served, chat=True)
    requested = fields.integer("max_output_tokens", 1, 2**31)
    stream, _ = parse_stream(fields)
    ids = await encode_input(served, chat)
    max_new_tokens = served.max_new_tokens(ids, requested)
    settings |= await reply_settings(served, chat, ids, settings["stop_ids"], max_new_tokens)
    generation = Generation(served)
    generation.add(ids, max_new_tokens, **settings)
    response_id, created = f"resp_{secrets.token_hex(12)}", int(time.time())

    def response(output: list[dict[str, Any]], end: str | None = None) -> dict[str, Any]:
        status = {None: "in_progress", "stop": "completed", "length": "incomplete"}[end]
        counts = usage(generation, len(ids))
        return {
            "id": response_id, "object": "response", "created_at": created, "status": status, "model": served.name,
            "output": output, "error": None, "instructions": fields.get("instructions"),
            "incomplete_details": {"reason": "max_output_tokens"} if end == "length" else None,
            "parallel_tool_calls": chat.parallel, "tool_choice": fields.get("tool_choice") or "auto",
            "tools": fields.get("tools") or [], "metadata": {}, "temperature": settings["sampling"].temperature,
            "top_p": settings["sampling"].top_p or 1.0,
            "usage": None if end is None else {
                "input_tokens": counts["prompt_tokens"], "output_tokens": counts["completion_tokens"],
                "total_tokens": counts["total_tokens"], "input_tokens_details": counts["prompt_tokens_details"],
                "output_tokens_details": counts["completion_tokens_details"],
            },
        }  # fmt: skip

    async def complete() -> dict[str, Any]:
        items, end = OutputItems(), "length"
        async for _, delta in generation.deltas():
            for _ in items.add(delta):
                pass
            end = delta.end or end
        return response([item for item in items.output if not is_cut(item)], end)

    async def events() -> AsyncIterator[bytes]:
        number = 0

        def event(kind: str, **data: Any) -> bytes:
            nonlocal number
            number += 1
            return sse({"type": f"response.{kind}", "sequence_number": number - 1, **data}, f"response.{kind}")

        yield event("created", response=response([]))
        yield event("in_progress", response=response([]))
        items, end = OutputItems(), "length"
        async for _, delta in generation.deltas():
            for kind, data in items.add(delta):
                yield event(kind, **data)
            end = delta.end or end
        yield event("completed" if end == "stop" else "incomplete", response=response(items.output, end))

    return await respond(request, generation, complete, events if stream else None)


def parse_input(fields: Fields, served: ServedModel) -> ChatInput:
    """The conversation of a request."""
    fields.reject("previous_response_id", "conversation", "prompt")
    value = fields.get("input")
    values = [{"role": "user", "content": value}] if isinstance(value, str) else value
    if isinstance(values, list):
        values = messages_of(values)
    messages = parse_messages(values, served.engine.max_length, "input")
    if instructions := fields.string("instructions"):
        messages.insert(0, {"role": "system", "content": instructions})
    chat = ChatInput(messages, parse_tools(fields.get("tools")))
    choose_tools(chat, fields.get("tool_choice"), fields.boolean("parallel_tool_calls", True))
    chat.schema = parse_schema(fields.object("text"), "format")
    set_effort(chat, served, fields.object("reasoning").get("effort"), "reasoning.effort")
    return chat


def messages_of(items: list[Any]) -> list[Any]:
    """Input items as messages: calls belong to the assistant message before them, reasoning to the one after it."""
    messages: list[Any] = []
    reasoning = ""
    for index, item in enumerate(items):
        fields = Fields(item, f"input[{index}]")
        kind = fields.get("type") or "message"
        if kind == "reasoning":
            parts = fields.get("content") or fields.get("summary") or []
            reasoning = "\n".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))
        elif kind == "function_call":
            call = make_call(fields.get("call_id") or fields.get("id"), fields.string("name") or "",
                             fields.get("arguments"))  # fmt: skip
            if not messages or messages[-1].get("role") != "assistant":
                messages.append({"role": "assistant", "content": "", "reasoning_content": reasoning})
                reasoning = ""
            messages[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            output = fields.get("output")
            content = output if isinstance(output, str | list) else json.dumps(output)
            messages.append({"role": "tool", "tool_call_id": fields.get("call_id"), "content": content})
        elif kind == "message":
            message = dict(fields.values)
            if message.get("role") == "assistant":
                message["reasoning_content"], reasoning = reasoning, ""
            messages.append(message)
        elif kind in ("input_image", "input_file"):
            messages.append({"role": "user", "content": OMITTED.format("content")})
        else:
            raise invalid(f"input[{index}] has type {check_string(kind, 'input')!r}: it is not supported", "input")
    return messages


def is_cut(item: dict[str, Any]) -> bool:
    """Whether an item is a call whose arguments are incomplete, because the reply was cut."""
    return item["type"] == "function_call" and item["status"] == "incomplete"


class OutputItems:
    """The items of a reply. `add` returns the events of a stream."""

    def __init__(self) -> None:
        self.output: list[dict[str, Any]] = []  # complete items, and the current one
        self.kind = ""  # of the current item
        self.call = -1  # number of its call

    def add(self, delta: Delta) -> Iterator[Event]:
        """Add a delta."""
        for event in delta.events or ((ReplyEvent("content", delta.text),) if delta.text else ()):
            kind = "call" if event.kind == "arguments" else event.kind
            if (kind, event.index if kind == "call" else -1) != (self.kind, self.call):
                yield from self._close("completed")
                yield from self._open(kind, event)
            if event.kind != "call":
                yield from self._append(event.text)
        if delta.end is not None:
            if not self.output:
                yield from self._open("content", ReplyEvent("content", ""))
            yield from self._close("completed" if delta.end == "stop" else "incomplete")

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self.output[-1]["id"], "output_index": len(self.output) - 1}

    def _open(self, kind: str, event: ReplyEvent) -> Iterator[Event]:
        self.kind, self.call = kind, event.index if kind == "call" else -1
        token = secrets.token_hex(12)
        item: dict[str, Any]
        if kind == "call":  # ellmer uses the item's ID as the call's
            id = new_call_id()
            item = {"id": id, "type": "function_call", "call_id": id, "name": event.text, "arguments": ""}
        elif kind == "reasoning":
            item = {"id": f"rs_{token}", "type": "reasoning", "summary": [], "content": []}
        else:
            item = {"id": f"msg_{token}", "type": "message", "role": "assistant", "content": []}
        self.output.append({**item, "status": "in_progress"})
        yield "output_item.added", {"output_index": len(self.output) - 1, "item": {**self.output[-1]}}
        if kind == "reasoning":
            item["summary"] = [{"type": "summary_text", "text": ""}]
            yield "reasoning_summary_part.added", {**self._place, "summary_index": 0, "part": item["summary"][0].copy()}
        elif kind == "content":
            item["content"] = [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]
            yield "content_part.added", {**self._place, "content_index": 0, "part": item["content"][0].copy()}
        self.output[-1] = {**item, "status": "in_progress"}

    def _append(self, text: str) -> Iterator[Event]:
        item = self.output[-1]
        if self.kind == "call":
            item["arguments"] += text
            yield "function_call_arguments.delta", {**self._place, "delta": text}
        elif self.kind == "reasoning":
            item["summary"][0]["text"] += text
            yield "reasoning_summary_text.delta", {**self._place, "summary_index": 0, "delta": text}
        else:
            item["content"][0]["text"] += text
            yield "output_text.delta", {**self._place, "content_index": 0, "delta": text, "logprobs": []}

    def _close(self, status: str) -> Iterator[Event]:
        if not self.kind:
            return
        item, place = self.output[-1], self._place
        item["status"] = "completed" if self.kind == "call" and is_complete(item["arguments"]) else status
        if self.kind == "call":
            yield "function_call_arguments.done", {**place, "name": item["name"], "arguments": item["arguments"]}
        elif self.kind == "reasoning":
            text = item["summary"][0]["text"]
            item["content"] = [{"type": "reasoning_text", "text": text}]
            yield "reasoning_summary_text.done", {**place, "summary_index": 0, "text": text}
            yield "reasoning_summary_part.done", {**place, "summary_index": 0, "part": {**item["summary"][0]}}
        else:
            part = item["content"][0]
            yield "output_text.done", {**place, "content_index": 0, "text": part["text"], "logprobs": []}
            yield "content_part.done", {**place, "content_index": 0, "part": {**part}}
        yield "output_item.done", {"output_index": len(self.output) - 1, "item": item}
        self.kind, self.call = "", -1
