"""Ollama API: tags, show, ps, version, chat, generate and embed.

Source: Ollama's API reference. Responses stream by default, as newline-delimited JSON.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta, timezone
from reprlib import repr as brief

from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response

from minhub_py.inference.limits import PUBLISHED_FIELDS
from minhub_py.inference.quantize import kind_of
from minhub_py.serve import known_fields
from minhub_py.serve.catalog import CatalogEntry
from minhub_py.serve.embeddings import (
    check_count,
    embed_inputs,
    encode_texts,
    numbers,
    respond_json,
    unless_disconnected,
)
from minhub_py.serve.engine import Delta
from minhub_py.serve.generation import Generation
from minhub_py.serve.known_fields import OUTPUT, reject_unsupported
from minhub_py.serve.languages import parse_translation
from minhub_py.serve.management import name_in
from minhub_py.serve.messages import (
    ChatInput,
    choose_tools,
    parse_messages,
    parse_tools,
    set_effort,
    start_reply,
)
from minhub_py.serve.models import ServedModel, Task
from minhub_py.serve.replies import ParsedReply, collect_replies
from minhub_py.serve.server import server_of
from minhub_py.serve.settings import limited, parse_settings
from minhub_py.serve.streaming import json_line, respond, respond_with_lists
from minhub_py.serve.validation import Fields, invalid, shaped
from minhub_py.system.duration import parse_duration
from minhub_py.system.json_text import JsonObject, JSONText, object_text
from minhub_py.system.version import __version__

NEVER = timedelta(days=36500)
UNKNOWN = {
    "parent_model": "",
    "format": "minhub",
    "family": "",
    "families": [],
    "parameter_size": "",
    "quantization_level": "",
}
# Quantization levels that clients know. GGUF types keep their names.
LEVELS_OF_THINKING = ("low", "medium", "high", "max")
LEVELS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int8": "Q8_0", "nf4": "Q4_0"}


async def version(_: HTTPRequest) -> Response:
    """GET /api/version."""
    return JSONResponse({"version": __version__})


async def tags(request: HTTPRequest) -> Response:
    """GET /api/tags."""
    available = await server_of(request).models.available()
    return JSONResponse({"models": [describe(entry, name) for name, entry in available]})


async def running(request: HTTPRequest) -> Response:
    """GET /api/ps: the loaded models."""
    now, clock = datetime.now(timezone.utc), asyncio.get_running_loop().time()

    def expires(entry: CatalogEntry) -> str:
        seconds = entry.keep_alive if entry.expires is None else entry.expires - clock
        return timestamp(
            now + (NEVER if seconds is None or entry.source is None else timedelta(seconds=seconds))
        )

    return JSONResponse(
        {
            "models": [
                {
                    **describe(entry, entry.name),
                    "expires_at": expires(entry),
                    "size_vram": 0,
                    "context_length": entry.served.engine.max_length,
                }
                for entry in server_of(request).models.entries.values()
                if entry.served is not None
            ]
        }
    )


async def show(request: HTTPRequest) -> Response:
    """POST /api/show."""
    served, fields = await read(request)
    fields.finish(("options", "system", "template", "verbose"))
    architecture = architecture_of(served)
    names = {"repetition_penalty": "repeat_penalty"}
    sampling = {} if served.task != "completion" else served.sampling
    parameters = [
        f"{names.get(name, name)} {value}"
        for name, value in sampling.items()
        if name in PUBLISHED_FIELDS and value is not None
    ]
    return JSONResponse(
        {
            "modelfile": "",
            "parameters": "\n".join(parameters),
            "template": served.template.templates.get("default", ""),
            "details": details(served),
            "modified_at": modified(served),
            "capabilities": capabilities(served),
            "model_info": {
                "general.architecture": architecture,
                "general.parameter_count": served.parameters,
                f"{architecture}.context_length": served.engine.max_length,
            },
        }
    )


def capabilities(served: ServedModel) -> list[str]:
    """A model's abilities in Ollama's terms."""
    if served.task != "completion":
        return [served.task]
    return ["completion", "tools", *(["thinking"] if served.template.markup.reasons else [])]


def describe(entry: CatalogEntry, name: str) -> dict[str, object]:
    """The entry of a model, or of its alias `name`, in lists. Details are known if the model is
    loaded.
    """
    name = name if ":" in name else f"{name}:latest"
    served = entry.served
    return {
        "name": name,
        "model": name,
        "size": entry.size,
        "digest": "",
        "modified_at": (
            timestamp(datetime.fromtimestamp(0, timezone.utc))
            if served is None
            else modified(served)
        ),
        "details": UNKNOWN if served is None else details(served),
    }


def details(served: ServedModel) -> dict[str, object]:
    count, family = served.parameters, architecture_of(served)
    size = f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.1f}M"
    kind = kind_of(served.model) or str(next(served.model.parameters()).dtype).removeprefix(
        "torch."
    )
    return {
        "parent_model": served.parent or "",
        "format": "minhub",
        "family": family,
        "families": [family],
        "parameter_size": size,
        "quantization_level": LEVELS.get(kind, kind),
    }


def architecture_of(served: ServedModel) -> str:
    return str(served.model.config.to_hub()["model_type"])


def modified(served: ServedModel) -> str:
    return timestamp(datetime.fromtimestamp(served.created, timezone.utc))


def timestamp(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


async def chat(request: HTTPRequest) -> Response:
    """POST /api/chat."""
    served, fields = await read(request, "completion")
    reject_unsupported(fields, OUTPUT)
    if fields.get("messages") in (None, []):  # requests that load or unload a model
        return JSONResponse(
            {**loaded(served, fields), "message": {"role": "assistant", "content": ""}}
        )
    chat = ChatInput(
        parse_messages(fields.get("messages"), served.engine.max_length),
        parse_tools(fields.get("tools")),
        translation=parse_translation(fields, served),
    )
    choose_tools(chat, None)
    generation, ids = await start(served, fields, chat)

    def shape(part: ParsedReply) -> JsonObject:
        message: JsonObject = {"role": "assistant", "content": part.text}
        if part.reasoning:
            message["thinking"] = part.reasoning
        if part.calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "function": {
                        "index": index,
                        "name": call.name,
                        "arguments": JSONText(object_text(call.arguments)),
                    },
                }
                for index, call in enumerate(part.calls)
            ]
        return {"message": message}

    return await reply(request, fields, generation, ids, shape)


async def generate(request: HTTPRequest) -> Response:
    """POST /api/generate. The prompt is a user message; with `raw`, or without a chat template, a
    text to continue.
    """
    served, fields = await read(request, "completion")
    fields.reject("context", "height", "steps", "width")
    reject_unsupported(fields, OUTPUT)
    prompt, system = fields.string("prompt") or "", fields.string("system") or ""
    if not prompt:
        return JSONResponse({**loaded(served, fields), "response": ""})
    raw, translation = fields.boolean("raw"), parse_translation(fields, served)
    if translation is None and (raw or served.template.kind == "plain"):
        generation, ids = await start(served, fields, f"{system}\n{prompt}" if system else prompt)
    else:
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": prompt})
        generation, ids = await start(served, fields, ChatInput(messages, translation=translation))

    def shape(part: ParsedReply) -> JsonObject:
        return {"response": part.text, **({"thinking": part.reasoning} if part.reasoning else {})}

    return await reply(request, fields, generation, ids, shape)


async def embed(request: HTTPRequest) -> Response:
    """POST /api/embed. Embeddings have length 1; without `truncate`, texts that are too long are
    rejected.
    """
    started = time.monotonic()
    served, fields = await read(request, "embedding")
    texts = parse_texts(fields.get("input"))
    truncate, dimensions = (
        fields.boolean("truncate", True),
        fields.integer("dimensions", 0, 2**31) or None,
    )
    finish_embedding(fields)

    async def work() -> Response:
        inputs = await encode_texts(served, texts, truncate=truncate)
        vectors = await embed_inputs(served, inputs, dimensions, normalize=True) if inputs else []
        fields = {
            "model": served.name,
            "total_duration": nanoseconds(time.monotonic() - started),
            "load_duration": 0,
            "prompt_eval_count": sum(len(row.ids) for row in inputs),
        }
        cost = len(vectors[0]) if vectors else 1
        return await respond_with_lists(
            request, {"embeddings": map(numbers, vectors)}, fields, cost
        )

    return await unless_disconnected(request, work())


async def embeddings(request: HTTPRequest) -> Response:
    """POST /api/embeddings, the previous form: one text, without normalization."""
    served, fields = await read(request, "embedding")
    prompt = fields.string("prompt") or ""
    finish_embedding(fields)

    async def work() -> Response:
        inputs = await encode_texts(served, [prompt] if prompt else [], truncate=True)
        vectors = await embed_inputs(served, inputs, None, normalize=False) if inputs else []
        return await respond_json(
            served, lambda: {"embedding": numbers(vectors[0]) if vectors else []}
        )

    return await unless_disconnected(request, work())


def finish_embedding(fields: Fields) -> None:
    """Reject unknown fields of a request for embeddings."""
    fields.object("options").finish(known_fields.OLLAMA_OPTIONS)
    fields.finish(known_fields.OLLAMA)


def parse_texts(value: object) -> list[str]:
    """The texts of `input`: a string or a list of strings. An empty input has no texts."""
    values = value if isinstance(value, list) else [] if value in (None, "") else [value]
    if not all(isinstance(text, str) for text in values):
        raise invalid("invalid input type: input must be a string or a list of strings", "input")
    check_count(values, "input")
    texts: list[str] = shaped(values, list[str], "input")
    return texts


async def read(request: HTTPRequest, task: Task | None = None) -> tuple[ServedModel, Fields]:
    """The model and the body of a request, whose `keep_alive` it sets. task: as in `Models.find`."""
    server = server_of(request)
    fields = await server.read(request)
    name = name_in(fields)
    keep_alive = fields.get("keep_alive")
    try:
        seconds = None if keep_alive is None else parse_duration(keep_alive)
    except ValueError as error:
        raise invalid(f"keep_alive: {error}", "keep_alive") from error
    served = await server.model_for(request, name, task)
    if keep_alive is not None:
        server.models.entries[served.name].keep_alive = seconds
    return served, fields


def loaded(served: ServedModel, fields: Fields) -> dict[str, object]:
    """The response to a request that loads a model, or unloads it with a `keep_alive` of 0."""
    created = timestamp(datetime.now(timezone.utc))
    reason = "unload" if fields.get("keep_alive") in (0, "0", "0s") else "load"
    return {"model": served.name, "created_at": created, "done": True, "done_reason": reason}


async def start(
    served: ServedModel, fields: Fields, chat: ChatInput | str
) -> tuple[Generation, list[int]]:
    """A generation with the format and options of a request, and its prompt. chat: a conversation,
    or a text.
    """
    # some clients send "", [] or {}
    options, schema = fields.object("options"), fields.get("format") or None
    if schema not in (None, "json") and not isinstance(schema, dict):
        raise invalid(f"format must be a JSON schema, not {brief(schema)}", "format")
    schema = {"type": "object"} if schema == "json" else schema
    # as in Ollama, -1 and -2: no limit
    requested = max(options.integer("num_predict", -2, 2**31) or 0, 0) or None
    settings = parse_settings(
        options,
        served,
        chat=not isinstance(chat, str),
        defaults=None if isinstance(chat, str) else chat.defaults,
        penalty="repeat_penalty",
    )
    think = fields.get("think")
    fields.boolean("stream")
    fields.finish(known_fields.OLLAMA, options)
    options.finish(known_fields.OLLAMA_OPTIONS)
    if isinstance(chat, ChatInput):
        chat.schema = schema
        apply_think(chat, served, think)
        return await start_reply(served, chat, requested, settings, name="format")
    ids = await served.encode(chat)
    grammar = None if schema is None else await served.grammar(schema, "format")
    generation, max_new_tokens = Generation(served), served.max_new_tokens(ids, requested)
    generation.add(ids, max_new_tokens, **limited(settings, grammar, max_new_tokens))
    return generation, ids


def apply_think(chat: ChatInput, served: ServedModel, value: object) -> None:
    """Apply the field `think`: true, false or a level."""
    if value is None:
        return
    if value not in (True, False, *LEVELS_OF_THINKING) or isinstance(value, int) is not isinstance(
        value, bool
    ):
        raise invalid(
            f"think must be true, false, {', '.join(LEVELS_OF_THINKING)}, not {brief(value)}",
            "think",
        )
    if value and not served.template.markup.reasons:
        raise invalid(f'"{served.name}" does not support thinking', "think", "unsupported")
    set_effort(chat, served, value, "think")


async def reply(
    request: HTTPRequest,
    fields: Fields,
    generation: Generation,
    ids: list[int],
    shape: Callable[[ParsedReply], JsonObject],
) -> Response:
    """The response; `shape` returns the fields of a part of the reply."""
    [sequence] = generation.requests
    started = time.monotonic()

    def head() -> JsonObject:
        return {
            "model": generation.served.name,
            "created_at": timestamp(datetime.now(timezone.utc)),
        }

    def last(part: ParsedReply) -> JsonObject:
        now, first = time.monotonic(), sequence.first_token_at or started
        return {
            **head(),
            **shape(part),
            "done": True,
            "done_reason": part.end,
            "total_duration": nanoseconds(now - started),
            "load_duration": 0,
            "prompt_eval_count": len(ids),
            "prompt_eval_duration": nanoseconds(first - started),
            "eval_count": len(sequence.new_ids),
            "eval_duration": nanoseconds(now - first),
        }

    async def complete() -> dict[str, object]:
        [complete] = await collect_replies(generation)
        return last(complete)

    async def lines() -> AsyncIterator[bytes]:
        def line(part: ParsedReply) -> bytes:
            return json_line({**head(), **shape(part), "done": False})

        calls = ParsedReply()  # in one line: litellm joins the calls of several lines
        async for _, delta in generation.deltas():
            for event in delta.events:
                part = ParsedReply()
                part.add(Delta((event,), ()))
                if event.kind == "call":
                    calls.calls += part.calls
                    continue
                if calls.calls:
                    yield line(calls)
                    calls = ParsedReply()
                yield line(part)
            if delta.end:
                if calls.calls:
                    yield line(calls)
                yield json_line(last(ParsedReply(end=delta.end)))

    stream = lines if fields.boolean("stream", True) else None
    return await respond(request, generation, complete, stream, "application/x-ndjson")


def nanoseconds(seconds: float) -> int:
    return int(max(seconds, 0) * 1e9)
