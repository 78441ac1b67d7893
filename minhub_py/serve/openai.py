"""OpenAI API: models and chat completions.

Source: OpenAI's API reference. Comments explain adaptations to clients that deviate from it.
"""

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timezone

from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response
from tokenizers import Tokenizer

from minhub_py.chat.reply_parser import ReplyEvent
from minhub_py.checkpoints.tokenizers.token_bytes import token_bytes, token_label
from minhub_py.serve import known_fields
from minhub_py.serve.catalog import CatalogEntry
from minhub_py.serve.engine import Delta, GeneratedToken
from minhub_py.serve.forms import parse_form
from minhub_py.serve.generation import Generation
from minhub_py.serve.known_fields import OUTPUT, reject_unsupported
from minhub_py.serve.languages import parse_translation
from minhub_py.serve.messages import ChatInput, choose_tools, parse_chat, parse_tools, start_reply
from minhub_py.serve.models import ServedModel
from minhub_py.serve.replies import ParsedReply, collect_replies, new_call_id
from minhub_py.serve.server import server_of
from minhub_py.serve.settings import parse_max_tokens, parse_search_or_sampling, parse_stream
from minhub_py.serve.streaming import respond, sse
from minhub_py.serve.validation import Fields, finite, invalid
from minhub_py.system.json_text import JsonObject
from minhub_py.system.version import __version__

MAX_CHOICES = 16
MAX_TOP_LOGPROBS = 20
FINGERPRINT = f"minhub-{__version__}"
DONE = b"data: [DONE]\n\n"


async def models(request: HTTPRequest) -> Response:
    """GET /v1/models."""
    server = server_of(request)
    data = [describe(entry, name) for name, entry in await server.models.available()]
    # The keys of IDs follow the Anthropic API, whose client uses the same path.
    return JSONResponse(
        {
            "object": "list",
            "data": data,
            "has_more": False,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "allow_pull": server.allow_pull,
        }
    )


async def model(request: HTTPRequest) -> Response:
    """GET /v1/models/NAME."""
    models, name = server_of(request).models, request.path_params["name"]
    entry = await models.find(name)
    return JSONResponse(describe(entry, name if models.target(name) != name else entry.name))


def describe(entry: CatalogEntry, name: str) -> dict[str, object]:
    """The entry of a model, or of its alias `name`, in lists.

    `status` and the first three fields of `meta` follow llama.cpp; `root`, the model of an alias,
    and `parent` vLLM.
    """
    status = {"value": entry.state, **({"failed": True} if entry.failed else {})}
    meta: dict[str, object] = {"size": entry.size, "capabilities": [entry.task]}
    if (served := entry.served) is not None:
        meta |= {"n_ctx_train": served.model.config.context_length, "n_params": served.parameters}
        if entry.task == "completion":
            meta |= {"default_sampling": served.sampling, "note": served.template.note}
    parent = {"parent": served.parent} if served is not None and served.parent is not None else {}
    root = {} if name == entry.name else {"root": entry.name}
    created = served.created if served else 0
    created_at = datetime.fromtimestamp(created, timezone.utc).isoformat().replace("+00:00", "Z")
    return {
        "id": name,
        "type": "model",
        "display_name": name,
        "created_at": created_at,
        "object": "model",
        "created": created,
        "owned_by": "minhub",
        **root,
        **parent,
        "status": status,
        "meta": meta,
    }


# Chat completions


async def chat_completions(request: HTTPRequest) -> Response:
    """POST /v1/chat/completions."""
    served, fields = await server_of(request).read_with_model(request, "completion")
    chat = parse_chat(fields, served)
    legacy = choose(chat, fields)
    count = fields.integer("n", 1, MAX_CHOICES, 1) or 1
    stream, usage_chunk = parse_stream(fields)
    chat.translation = parse_translation(fields, served)
    settings = parse_search_or_sampling(fields, served, count, stream, defaults=chat.defaults)
    chat.schema, name = parse_form(fields)
    chat.separate_reasoning = separates_reasoning(fields)
    logprobs = fields.boolean("logprobs")
    top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS, 0)
    if top and not logprobs:
        raise invalid("top_logprobs requires logprobs: set it to true", "top_logprobs")
    settings |= {"logprobs": logprobs, "top": top}
    fields.reject("best_of", harmless=(count,))
    requested = parse_max_tokens(fields, "max_completion_tokens", "max_tokens")
    reject_unsupported(fields, OUTPUT)
    fields.finish(known_fields.CHAT)
    generation, ids = await start_reply(served, chat, requested, settings, count, name)
    stop_ids, head = generation.requests[0].stop_ids, head_of("chatcmpl", served)

    def logprobs_of(tokens: Sequence[GeneratedToken]) -> dict[str, object] | None:
        return (
            {"content": chat_logprobs(served.tokenizer, tokens, stop_ids), "refusal": None}
            if logprobs
            else None
        )

    async def complete() -> dict[str, object]:
        replies = await collect_replies(generation)
        choices = [
            {
                "index": index,
                "message": message_of(reply, legacy),
                "logprobs": logprobs_of(reply.tokens),
                "finish_reason": finish_reason(reply.end, bool(reply.calls), legacy),
            }
            for index, reply in enumerate(replies)
        ]
        return {
            **head,
            "object": "chat.completion",
            "choices": choices,
            "usage": usage(generation, len(ids)),
        }

    async def events() -> AsyncIterator[bytes]:
        def chunk(choices: list[dict[str, object]], **fields: object) -> bytes:
            return sse({**head, "object": "chat.completion.chunk", "choices": choices, **fields})

        def part(
            index: int,
            delta: JsonObject,
            tokens: Sequence[GeneratedToken] = (),
            end: str | None = None,
        ) -> dict[str, object]:
            logprobs = logprobs_of(tokens) if tokens or end else None
            return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": end}

        writers = [DeltaWriter(legacy) for _ in range(count)]
        unfinished = count
        async for index, delta in generation.deltas():
            for fields, tokens in writers[index].add(delta):
                yield chunk([part(index, fields, tokens)])
            if delta.end:
                unfinished -= 1
                # tidyllm expects the usage in the last chunk, even if it does not request a usage
                # chunk.
                final = (
                    {"usage": usage(generation, len(ids))}
                    if unfinished == 0 and not usage_chunk
                    else {}
                )
                writer = writers[index]
                yield chunk(
                    [part(index, {}, writer.tokens, writer.finish_reason(delta.end))], **final
                )
        if usage_chunk:
            yield chunk([], usage=usage(generation, len(ids)))
        yield DONE

    return await respond(request, generation, complete, events if stream else None)


def choose(chat: ChatInput, fields: Fields) -> bool:
    """Apply a request's tool choice. Returns whether it has `functions`, the previous form of
    `tools`.
    """
    if chat.tools or fields.get("functions") is None:
        choose_tools(chat, fields.get("tool_choice"), fields.boolean("parallel_tool_calls", True))
        fields.read |= {"functions", "function_call"}
        return False
    chat.tools = parse_tools(fields.get("functions"), "functions")
    choice = fields.get("function_call")
    choice = {"type": "function", **choice} if isinstance(choice, dict) else choice
    choose_tools(chat, choice, parallel=False, name="function_call")
    fields.read |= {"tool_choice", "parallel_tool_calls"}
    return True


def separates_reasoning(fields: Fields) -> bool:
    """Whether reasoning is separated from the text. The field and its values are llama.cpp's."""
    value = fields.string("reasoning_format", "auto")
    if value not in ("none", "auto", "deepseek"):
        raise invalid(
            f"reasoning_format must be none, auto or deepseek, not {value!r}", "reasoning_format"
        )
    return value != "none"


def finish_reason(end: str, calls: bool, legacy: bool) -> str:
    """The finish reason of a reply. legacy: the request has `functions` instead of `tools`."""
    if end != "stop" or not calls:
        return end
    return "function_call" if legacy else "tool_calls"


def message_of(reply: ParsedReply, legacy: bool) -> dict[str, object]:
    """A reply as a message. The names of reasoning follow llama.cpp and vLLM."""
    message: dict[str, object] = {"role": "assistant", "content": reply.text, "refusal": None}
    if reply.reasoning:
        message |= {"reasoning_content": reply.reasoning, "reasoning": reply.reasoning}
    if reply.calls:
        message["content"] = reply.text or None
    if reply.calls and legacy:
        message["function_call"] = {
            "name": reply.calls[0].name,
            "arguments": reply.calls[0].arguments,
        }
    elif reply.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in reply.calls
        ]
    return message


class DeltaWriter:
    """Writes the parts of a streamed reply as deltas of a message.

    Reasoning, text and calls are in separate deltas: ellmer ignores text in a delta with reasoning.
    legacy: the request has `functions` instead of `tools`, so that only the first call is sent.
    """

    def __init__(self, legacy: bool = False) -> None:
        self.legacy = legacy
        self.splitters = {"content": DeltaSplitter(), "reasoning": DeltaSplitter()}
        self.calls = 0
        self.begun = False
        self.tokens: tuple[GeneratedToken, ...] = ()  # not sent yet

    def add(self, delta: Delta) -> list[tuple[JsonObject, tuple[GeneratedToken, ...]]]:
        """The deltas to send with their tokens."""
        self.tokens += delta.tokens
        parts = []
        for event in delta.events:
            if event.kind == "call":
                parts += [*self._remaining_text(), *self._call(event)]
            else:
                parts += [
                    text_delta(event.kind, text)
                    for text in self.splitters[event.kind].add(event.text)
                ]
        if delta.end is not None:
            parts += self._remaining_text()
        first = None
        if not self.begun and (parts or delta.end is not None):
            self.begun = True
            is_call = bool(parts) and not parts[0].keys() & {"content", "reasoning"}
            first = {"role": "assistant", "content": None if is_call else ""}
        sent = [(part, self.tokens if number == 0 else ()) for number, part in enumerate(parts)]
        self.tokens = () if parts else self.tokens
        return sent if first is None else [(first, ()), *sent]

    def _remaining_text(self) -> list[dict[str, object]]:
        return [
            text_delta(kind, text)
            for kind, splitter in self.splitters.items()
            for text in splitter.add("", last=True)
        ]

    def _call(self, event: ReplyEvent) -> list[dict[str, object]]:
        index, self.calls = self.calls, self.calls + 1
        if self.legacy:
            return (
                []
                if index
                else [{"function_call": {"name": event.text, "arguments": event.arguments}}]
            )
        # As in the OpenAI API, the first delta of a call has empty arguments.
        call = {
            "id": new_call_id(),
            "type": "function",
            "function": {"name": event.text, "arguments": ""},
        }
        deltas = (call, {"function": {"arguments": event.arguments}})
        return [{"tool_calls": [{"index": index, **delta}]} for delta in deltas]

    def finish_reason(self, end: str) -> str:
        """The finish reason of the message."""
        return finish_reason(end, self.calls > 0, self.legacy)


def text_delta(kind: str, text: str) -> dict[str, object]:
    """The delta of text or reasoning."""
    return (
        {"content": text} if kind == "content" else {"reasoning_content": text, "reasoning": text}
    )


class DeltaSplitter:
    """Splits text for ellmer, which ignores a delta that equals all previous text.

    A first delta of one character is held back until the next one, and a delta that equals the
    previous text is split.
    """

    def __init__(self) -> None:
        self.held = self.sent = ""

    def add(self, text: str, *, last: bool = False) -> list[str]:
        """The texts to send after new text. last: also those that are held back."""
        self.held += text
        if not self.held or (len(self.held) == 1 and not self.sent and not last):
            return []
        text, self.held = self.held, ""
        parts = [text[:1], text[1:]] if text == self.sent and len(text) > 1 else [text]
        self.sent += text
        return parts


def chat_logprobs(
    tokenizer: Tokenizer, tokens: Sequence[GeneratedToken], stop_ids: frozenset[int]
) -> list[dict[str, object]]:
    """Log-probabilities in the format of chat completions, without the end token."""

    def entry(id: int, text: str, logprob: float | None) -> JsonObject:
        data = token_bytes(tokenizer, id, text)
        return {"token": token_label(data), "logprob": finite(logprob), "bytes": list(data)}

    return [
        {
            **entry(token.id, token.text, token.logprob),
            "top_logprobs": [entry(*most_likely) for most_likely in token.top],
        }
        for token in tokens
        if token.id not in stop_ids
    ]


def head_of(prefix: str, served: ServedModel) -> JsonObject:
    """A response's first fields. prefix: of its ID."""
    return {
        "id": f"{prefix}-{secrets.token_hex(12)}",
        "created": int(time.time()),
        "model": served.name,
        "system_fingerprint": FINGERPRINT,
    }


def usage(generation: Generation, prompt_tokens: int) -> dict[str, object]:
    """The numbers of tokens of a response."""
    generated = generation.generated_tokens
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": generated,
        "total_tokens": prompt_tokens + generated,
        "prompt_tokens_details": {"cached_tokens": generation.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": generation.reasoning_tokens},
    }
