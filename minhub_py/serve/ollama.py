"""Ollama's face: tags, show, ps, version, chat and generate.

Source: Ollama's API reference. Replies stream unless a client says otherwise, one JSON object a line.
"""

import time
from collections.abc import AsyncIterator
from datetime import datetime, timedelta, timezone
from typing import Any

from starlette.requests import Request as Call
from starlette.responses import JSONResponse, Response

from minhub_py import __version__
from minhub_py.inference.quantize import kind_of
from minhub_py.serve.models import Replies, Served, messages_of, sampling_of, seed_of, stops_of
from minhub_py.serve.streaming import answer, line, server_of
from minhub_py.serve.validation import Fields, RefusedError, bad

# Clients know these names of bits; a type of GGUF has its own.
LEVELS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int8": "Q8_0", "nf4": "Q4_0"}


async def version(_: Call) -> Response:
    """GET /api/version."""
    return JSONResponse({"version": __version__})


async def tags(call: Call) -> Response:
    """GET /api/tags."""
    return JSONResponse({"models": [about(served) for served in server_of(call).models.all]})


async def running(call: Call) -> Response:
    """GET /api/ps: all models, as all are loaded."""
    never = moment(datetime.now(timezone.utc) + timedelta(days=36500))
    return JSONResponse({
        "models": [{**about(served), "expires_at": never, "size_vram": 0, "context_length": served.engine.max_length}
                   for served in server_of(call).models.all]
    })  # fmt: skip


async def show(call: Call) -> Response:
    """POST /api/show; the model is its `model` or its `name`."""
    server = server_of(call)
    fields = await server.read(call)
    name = fields.text("model") or fields.text("name")
    if not name:
        raise bad("model is missing", "model")
    served = server.models.find(name)
    kind = family(served)
    return JSONResponse({
        "modelfile": "", "parameters": parameters(served), "template": served.template.templates.get("default", ""),
        "details": details(served), "modified_at": modified(served), "capabilities": ["completion"],
        "model_info": {"general.architecture": kind, "general.parameter_count": served.parameters,
                       f"{kind}.context_length": served.engine.max_length},
    })  # fmt: skip


def about(served: Served) -> dict[str, Any]:
    """A model as lists show it."""
    name = served.name if ":" in served.name else f"{served.name}:latest"
    return {"name": name, "model": name, "modified_at": modified(served), "size": served.bytes,
            "digest": "", "details": details(served)}  # fmt: skip


def details(served: Served) -> dict[str, Any]:
    count = served.parameters
    size = f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.1f}M"
    kind = kind_of(served.model) or str(next(served.model.parameters()).dtype).removeprefix("torch.")
    return {"parent_model": "", "format": "minhub", "family": family(served), "families": [family(served)],
            "parameter_size": size, "quantization_level": LEVELS.get(kind, kind)}  # fmt: skip


def parameters(served: Served) -> str:
    """Default sampling settings, one a line, by Ollama's names."""
    names = {"repetition_penalty": "repeat_penalty"}
    return "\n".join(f"{names.get(name, name)} {value}" for name, value in served.sampling.items() if value is not None)


def family(served: Served) -> str:
    return str(served.model.config.to_hub()["model_type"])


def modified(served: Served) -> str:
    return moment(datetime.fromtimestamp(served.created, timezone.utc))


def moment(time: datetime) -> str:
    """A time as Ollama writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


async def chat(call: Call) -> Response:
    """POST /api/chat."""
    server = server_of(call)
    fields = await server.read(call)
    served = named(call, fields)
    fields.refuse("tools")
    if fields.get("messages") in (None, []):  # a way to load a model
        return JSONResponse({**loaded(served), "message": {"role": "assistant", "content": ""}})
    ids = await served.chat(messages_of(fields.get("messages"), served.engine.max_length))
    replies = await begin(served, fields, ids, served.template.stops, served.template.end_ids)
    return await told(call, fields, replies, ids, lambda text: {"message": {"role": "assistant", "content": text}})


async def generate(call: Call) -> Response:
    """POST /api/generate: the prompt is a user's message, or with `raw` a text to go on with."""
    server = server_of(call)
    fields = await server.read(call)
    served = named(call, fields)
    fields.refuse("suffix", "images", "template", "context")
    prompt, system = fields.text("prompt", "") or "", fields.text("system", "") or ""
    if not prompt:
        return JSONResponse({**loaded(served), "response": ""})
    if fields.flag("raw") or served.template.kind == "plain":  # what is no chat model goes on with the text
        ids = await served.encode(f"{system}\n{prompt}" if system else prompt)
        replies = await begin(served, fields, ids, (), frozenset())
    else:
        messages = [{"role": "system", "content": system}] if system else []
        ids = await served.chat([*messages, {"role": "user", "content": prompt}])
        replies = await begin(served, fields, ids, served.template.stops, served.template.end_ids)
    return await told(call, fields, replies, ids, lambda text: {"response": text})


def named(call: Call, fields: Fields) -> Served:
    """The model that a call is for, which it has to name."""
    name = fields.text("model") or fields.text("name")
    if not name:
        raise bad("model is missing", "model")
    return server_of(call).models.find(name)


def loaded(served: Served) -> dict[str, Any]:
    """The answer to a request for nothing: the model is there."""
    return {"model": served.name, "created_at": moment(datetime.now(timezone.utc)), "done": True, "done_reason": "load"}


async def begin(
    served: Served, fields: Fields, ids: list[int], stops: tuple[str, ...], end_ids: frozenset[int]
) -> Replies:
    """A reply with the format and the options of a call."""
    options, schema = fields.object("options"), fields.get("format") or None  # some clients send "", [] or {} for none
    grammar = schema and await served.grammar(None if schema == "json" else schema, "format")
    wanted = options.whole("num_predict", -2, 2**31)
    replies = Replies(served)
    replies.add(
        ids,
        served.room(ids, wanted if wanted is not None and wanted > 0 else None),
        sampling=sampling_of(options, served.sampling, "repeat_penalty"),
        seed=seed_of(options),
        stops=stops_of(options) + stops,
        stop_ids=served.end_ids | end_ids,
        grammar=grammar,
    )
    return replies


async def told(call: Call, fields: Fields, replies: Replies, ids: list[int], shape: Any) -> Response:
    """The reply, with its text in the place that `shape` gives it."""
    [request] = replies.requests
    began = time.monotonic()

    def head() -> dict[str, Any]:
        return {"model": replies.served.name, "created_at": moment(datetime.now(timezone.utc))}

    def last(text: str, end: str) -> dict[str, Any]:
        now, first = time.monotonic(), request.first or began
        return {**head(), **shape(text), "done": True, "done_reason": end,
                "total_duration": nanoseconds(now - began), "load_duration": 0,
                "prompt_eval_count": len(ids), "prompt_eval_duration": nanoseconds(first - began),
                "eval_count": request.made, "eval_duration": nanoseconds(now - first)}  # fmt: skip

    async def whole() -> dict[str, Any]:
        text, end = "", "stop"
        async for _, piece in replies.pieces():
            text, end = text + piece.text, piece.end or end
        return last(text, end)

    async def lines() -> AsyncIterator[bytes]:
        async for _, piece in replies.pieces():
            if piece.text:
                yield line({**head(), **shape(piece.text), "done": False})
            if piece.end:
                yield line(last("", piece.end))

    return await answer(call, replies, whole, lines if fields.flag("stream", True) else None, "application/x-ndjson")


def nanoseconds(seconds: float) -> int:
    return int(max(seconds, 0) * 1e9)


def error(refused: RefusedError) -> dict[str, Any]:
    """An error in this face's shape."""
    return {"error": refused.message}
