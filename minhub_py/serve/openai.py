"""OpenAI's face: models, chat completions, completions, and responses as far as ellmer needs them.

Source: OpenAI's API reference; what clients send beyond it, and stumble over, is said where it is handled.
"""

import secrets
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from starlette.requests import Request as Call
from starlette.responses import JSONResponse, Response

from minhub_py.inference.grammar import Grammar
from minhub_py.inference.sampling import Sampling
from minhub_py.serve.engine import Token, token_text
from minhub_py.serve.models import Replies, Served, messages_of, sampling_of, seed_of, stops_of, variables_of
from minhub_py.serve.streaming import answer, event, server_of
from minhub_py.serve.validation import Fields, RefusedError, bad, checked_text, finite

MOST_CHOICES = 16
MOST_TOP = 20
# Text completions sample from the model's distribution, as the OpenAI API specifies. Chats have the model's defaults.
COMPLETION_SAMPLING = asdict(Sampling())


async def models(call: Call) -> Response:
    """GET /v1/models."""
    return JSONResponse({"object": "list", "data": [about(served) for served in server_of(call).models.all]})


async def model(call: Call) -> Response:
    """GET /v1/models/NAME."""
    return JSONResponse(about(server_of(call).models.find(call.path_params["name"])))


def about(served: Served) -> dict[str, Any]:
    """Entry of a model in lists. meta's first three fields are those of llama.cpp; the others are ours."""
    return {"id": served.name, "object": "model", "created": served.created, "owned_by": "minhub",
            "meta": {"n_ctx_train": served.model.config.context_length, "n_params": served.parameters,
                     "size": served.bytes, "default_sampling": served.sampling,
                     "note": served.template.note}}  # fmt: skip


# Chat completions


async def chat_completions(call: Call) -> Response:
    """POST /v1/chat/completions."""
    server = server_of(call)
    fields = await server.read(call)
    served = server.models.find(fields.text("model"))
    fields.refuse("tools", "functions", "logit_bias", "audio")
    fields.refuse("tool_choice", "function_call", harmless=("auto", "none"))
    messages = messages_of(fields.get("messages"), served.engine.max_length)
    settings = await settings_of(fields, served, served.sampling)
    settings["stops"] += served.template.stops
    settings["stop_ids"] |= served.template.end_ids
    logprobs = fields.flag("logprobs")
    top = fields.whole("top_logprobs", 0, MOST_TOP, 0) or 0
    if top and not logprobs:
        raise bad("top_logprobs needs logprobs: true", "top_logprobs")
    count = fields.whole("n", 1, MOST_CHOICES, 1) or 1
    wanted = fields.whole("max_completion_tokens", 1, 2**31, fields.whole("max_tokens", 1, 2**31))
    stream, usage_chunk = stream_of(fields)
    variables = variables_of(fields) | {"continue_final_message": fields.flag("continue_final_message")}
    ids = await served.chat(messages, variables)
    replies = Replies(served)
    room = served.room(ids, wanted)
    for number in range(count):
        seeded = {**settings, "seed": settings["seed"] + number}
        replies.add(ids, room, logprobs=logprobs, top=top, **seeded)
    head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": served.name,
            "system_fingerprint": server.fingerprint}  # fmt: skip

    def logprobs_of(tokens: Sequence[Token]) -> dict[str, Any] | None:
        return {"content": list(chat_logprobs(tokens, settings["stop_ids"])), "refusal": None} if logprobs else None

    async def whole() -> dict[str, Any]:
        texts, ends, tokens = await collected(replies)
        choices = [
            {"index": number, "message": {"role": "assistant", "content": text, "refusal": None},
             "logprobs": logprobs_of(tokens[number]), "finish_reason": ends[number]}
            for number, text in enumerate(texts)
        ]  # fmt: skip
        return {**head, "object": "chat.completion", "choices": choices, "usage": usage(replies, ids)}

    async def events() -> AsyncIterator[bytes]:
        def chunk(number: int, delta: dict[str, Any], **more: Any) -> bytes:
            choice = {"index": number, "delta": delta, "logprobs": None, "finish_reason": None}
            choice |= {key: more.pop(key) for key in ("logprobs", "finish_reason") if key in more}
            return event({**head, "object": "chat.completion.chunk", "choices": [choice], **more})

        for number in range(count):
            yield chunk(number, {"role": "assistant", "content": ""})
        writers = [Deltas() for _ in range(count)]
        open_texts = count
        async for number, piece in replies.pieces():
            tokens = piece.tokens
            for text in writers[number].add(piece.text, last=piece.end is not None):
                yield chunk(number, {"content": text}, logprobs=logprobs_of((*writers[number].tokens, *tokens)))
                tokens, writers[number].tokens = (), ()
            writers[number].tokens += tokens
            if piece.end:
                open_texts -= 1
                # Clients that ask for no usage, such as tidyllm's, look for it in the last chunk.
                last = {"usage": usage(replies, ids)} if open_texts == 0 and not usage_chunk else {}
                yield chunk(number, {}, logprobs=logprobs_of(writers[number].tokens), finish_reason=piece.end, **last)
        if usage_chunk:
            yield event({**head, "object": "chat.completion.chunk", "choices": [], "usage": usage(replies, ids)})
        yield b"data: [DONE]\n\n"

    return await answer(call, replies, whole, events if stream else None)


class Deltas:
    """Pieces of a reply as ellmer can take them: it drops one that equals all the text so far.

    So the first character waits for company, and a piece like all before it comes in two.
    """

    def __init__(self) -> None:
        self.held = self.sent = ""
        self.tokens: tuple[Token, ...] = ()  # those whose text has not been told

    def add(self, text: str, last: bool) -> Iterator[str]:
        """The deltas for one more piece."""
        self.held += text
        if not self.held or (len(self.held) == 1 and not self.sent and not last):
            return
        text, self.held = self.held, ""
        halves = (text[:1], text[1:]) if text == self.sent and len(text) > 1 else (text,)
        self.sent += text
        yield from halves


def chat_logprobs(tokens: Sequence[Token], stop_ids: frozenset[int]) -> Iterator[dict[str, Any]]:
    """Tokens of a reply, but for one that ends it, as chat completions tell them."""
    for token in tokens:
        if token.id not in stop_ids:
            top = [one_logprob(text, logprob) for _, text, logprob in token.top]
            yield {**one_logprob(token.text, token.logprob), "top_logprobs": top}


def one_logprob(text: str, logprob: float | None) -> dict[str, Any]:
    """A token. Of a part of a character the bytes are not known."""
    return {"token": text, "logprob": finite(logprob), "bytes": None if "\ufffd" in text else list(text.encode())}


# Completions


async def completions(call: Call) -> Response:  # noqa: PLR0915
    """POST /v1/completions."""
    server = server_of(call)
    fields = await server.read(call)
    served = server.models.find(fields.text("model"))
    fields.refuse("suffix")
    given = prompts_of(served, fields.get("prompt"))
    settings = await settings_of(fields, served, COMPLETION_SAMPLING)
    top = fields.whole("logprobs", 0, MOST_TOP)
    count = fields.whole("n", 1, MOST_CHOICES, 1) or 1
    fields.refuse("best_of", harmless=(count,))
    check_prompts(served, len(given), count)
    echo = fields.flag("echo")
    wanted = fields.whole("max_tokens", 0, 2**31, 16)
    stream, usage_chunk = stream_of(fields)
    if wanted == 0 and not echo:
        raise bad("max_tokens must be 1 or more, unless echo is true", "max_tokens")
    if echo and served.model.encoder_decoder:
        raise bad("this model answers a prompt and does not continue it: it cannot echo it", "echo")
    prompts = [await served.encode(prompt) if isinstance(prompt, str) else prompt for prompt in given]
    replies, places, scored = Replies(served), {}, {}
    for place, ids in enumerate(prompts):
        room = served.room(ids, wanted) if wanted else 0
        if echo and top is not None and len(ids) > 1:
            served.room(ids[:-1], 1)
            scored[len(replies.requests)] = place
            replies.add(ids[:1], 0, given=ids[1:], logprobs=True, top=max(top, 1))
        for number in range(count if room else 0):
            places[len(replies.requests)] = place * count + number
            replies.add(ids, room, logprobs=top is not None, top=top or 0,
                        **{**settings, "seed": settings["seed"] + number})  # fmt: skip
    head = {"id": f"cmpl-{secrets.token_hex(12)}", "object": "text_completion", "created": int(time.time()),
            "model": served.name, "system_fingerprint": server.fingerprint}  # fmt: skip
    before = [served.tokenizer.decode(ids) if echo else "" for ids in prompts]

    def usage_now() -> dict[str, Any]:
        return usage(replies, [id for ids in prompts for id in ids])

    async def whole() -> dict[str, Any]:
        texts, ends, tokens = await collected(replies)
        of_prompts = {place: tokens[number] for number, place in scored.items()}
        choices: list[dict[str, Any]] = []
        made = {place: number for number, place in places.items()}
        for place in range(len(prompts) * count):
            prompt, number = place // count, made.get(place)
            text = before[prompt] + ("" if number is None else texts[number])
            shown: list[Token] = []
            if echo and top is not None:
                first = Token(prompts[prompt][0], token_text(served.tokenizer, prompts[prompt][0]), None, ())
                shown = [first, *of_prompts.get(prompt, ())]
            if number is not None:
                shown += [token for token in tokens[number] if token.id not in settings["stop_ids"]]
            choices.append({"index": place, "text": text, "finish_reason": "length" if number is None else ends[number],
                            "logprobs": None if top is None else old_logprobs(shown, top)})  # fmt: skip
        return {**head, "choices": choices, "usage": usage_now()}

    async def events() -> AsyncIterator[bytes]:
        def chunk(place: int, text: str, tokens: Sequence[Token] = (), end: str | None = None, **more: Any) -> bytes:
            shown = [token for token in tokens if token.id not in settings["stop_ids"]]
            choice = {"index": place, "text": text, "finish_reason": end,
                      "logprobs": None if top is None else old_logprobs(shown, top)}  # fmt: skip
            return event({**head, "choices": [choice], **more})

        for place, text in enumerate(before):
            for number in range(count if text else 0):
                yield chunk(place * count + number, text)
        open_texts = len(places)
        async for number, piece in replies.pieces():
            if number in places:
                open_texts -= piece.end is not None
                last = {"usage": usage_now()} if open_texts == 0 and piece.end and not usage_chunk else {}
                yield chunk(places[number], piece.text, piece.tokens, piece.end, **last)
        if usage_chunk:
            yield event({**head, "choices": [], "usage": usage_now()})
        yield b"data: [DONE]\n\n"

    return await answer(call, replies, whole, events if stream else None)


def prompts_of(served: Served, value: Any) -> list[str | list[int]]:
    """Prompts: a text, a list of ids, or a list of either."""
    if value is None:
        value = ""
    values = value if isinstance(value, list) else [value]
    if not values:
        raise bad("prompt must be a text, a list of ids, or a list of either, not empty", "prompt")
    if type(values[0]) is int:
        return [served.check_ids(values)]
    check_prompts(served, len(values), 1)
    if any(isinstance(each, list) and not each for each in values):
        raise bad("a prompt of no ids: give at least one", "prompt")
    return [served.check_ids(each) if isinstance(each, list) else checked_text(each, "prompt") for each in values]


def check_prompts(served: Served, count: int, choices: int) -> None:
    """RefusedError: a request has more prompts than half of the queue."""
    most = (served.engine.rows + served.engine.waiting) // 2
    if count * choices > most:
        raise bad(f"{count:,} prompts, {choices} of each, are too many: at most {most} in all", "prompt")


def old_logprobs(tokens: Sequence[Token], top: int) -> dict[str, Any]:
    """Tokens as completions tell them. Of the first of a text nothing is predicted."""
    offsets, place = [], 0
    for token in tokens:
        offsets.append(place)
        place += len(token.text)
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [None if token.logprob is None else finite(token.logprob) for token in tokens],
        "top_logprobs": [
            None if token.logprob is None else {text: finite(logprob) for _, text, logprob in reversed(token.top[:top])}
            for token in tokens
        ],
        "text_offset": offsets,
    }


# Responses


async def responses(call: Call) -> Response:
    """POST /v1/responses: text in, text out; nothing is stored."""
    server = server_of(call)
    fields = await server.read(call)
    served = server.models.find(fields.text("model"))
    fields.refuse("tools", "previous_response_id", "conversation", "prompt")
    fields.refuse("tool_choice", harmless=("auto", "none"))
    given = fields.get("input")
    values = [{"role": "user", "content": given}] if isinstance(given, str) else given
    messages = messages_of(values, served.engine.max_length, "input")
    instructions = fields.text("instructions")
    if instructions:
        messages.insert(0, {"role": "system", "content": instructions})
    settings = await settings_of(fields, served, served.sampling)
    settings["grammar"] = await grammar_of(fields.object("text"), "format", served)
    settings["stops"] += served.template.stops
    settings["stop_ids"] |= served.template.end_ids
    wanted = fields.whole("max_output_tokens", 1, 2**31)
    stream, _ = stream_of(fields)
    ids = await served.chat(messages)
    replies = Replies(served)
    replies.add(ids, served.room(ids, wanted), **settings)
    response_id, item_id = f"resp_{secrets.token_hex(12)}", f"msg_{secrets.token_hex(12)}"
    created = int(time.time())

    def item(text: str, status: str) -> dict[str, Any]:
        return {"id": item_id, "type": "message", "role": "assistant", "status": status,
                "content": [part(text)] if status != "in_progress" else []}  # fmt: skip

    def part(text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def response(text: str = "", end: str | None = None) -> dict[str, Any]:
        status = {None: "in_progress", "stop": "completed", "length": "incomplete"}[end]
        counts = usage(replies, ids)
        return {
            "id": response_id, "object": "response", "created_at": created, "status": status, "model": served.name,
            "output": [item(text, status)] if end else [], "error": None, "instructions": instructions,
            "incomplete_details": {"reason": "max_output_tokens"} if end == "length" else None,
            "parallel_tool_calls": False, "tool_choice": "none", "tools": [], "metadata": {},
            "temperature": settings["sampling"].temperature, "top_p": settings["sampling"].top_p or 1.0,
            "usage": None if end is None else {
                "input_tokens": counts["prompt_tokens"], "output_tokens": counts["completion_tokens"],
                "total_tokens": counts["total_tokens"], "input_tokens_details": counts["prompt_tokens_details"],
                "output_tokens_details": {"reasoning_tokens": 0},
            },
        }  # fmt: skip

    async def whole() -> dict[str, Any]:
        texts, ends, _ = await collected(replies)
        return response(texts[0], ends[0])

    async def events() -> AsyncIterator[bytes]:
        number = 0

        def named(kind: str, **data: Any) -> bytes:
            nonlocal number
            number += 1
            return event({"type": f"response.{kind}", "sequence_number": number - 1, **data}, f"response.{kind}")

        place = {"item_id": item_id, "output_index": 0, "content_index": 0}
        yield named("created", response=response())
        yield named("in_progress", response=response())
        yield named("output_item.added", output_index=0, item=item("", "in_progress"))
        yield named("content_part.added", **place, part=part(""))
        text, end = "", "stop"
        async for _, piece in replies.pieces():
            if piece.text:
                text += piece.text
                yield named("output_text.delta", **place, delta=piece.text, logprobs=[])
            end = piece.end or end
        status = "completed" if end == "stop" else "incomplete"
        yield named("output_text.done", **place, text=text, logprobs=[])
        yield named("content_part.done", **place, part=part(text))
        yield named("output_item.done", output_index=0, item=item(text, status))
        yield named(status, response=response(text, end))

    return await answer(call, replies, whole, events if stream else None)


# What they share


async def settings_of(fields: Fields, served: Served, sampling: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `engine.Request` that all three have. sampling: defaults."""
    fields.refuse("grammar", "json_schema", "structured_outputs", "guided_json")  # other servers' words for formats
    return {
        "sampling": sampling_of(fields, sampling),
        "seed": seed_of(fields),
        "stops": stops_of(fields),
        "stop_ids": frozenset() if fields.flag("ignore_eos") else served.end_ids,
        "grammar": await grammar_of(fields, "response_format", served),
    }


def stream_of(fields: Fields) -> tuple[bool, bool]:
    """Whether to stream, and whether to tell the usage in a chunk of its own."""
    stream = fields.flag("stream")
    return stream, fields.object("stream_options").flag("include_usage")


async def grammar_of(fields: Fields, name: str, served: Served) -> Grammar | None:
    """The grammar of the format that a client wants. RefusedError: it is not known, or its schema is wrong.

    The schema stands in the format, within its "json_schema" if it has that, and "json_object" needs none.
    """
    found = fields.object(name)
    kind = found.text("type")
    if kind in (None, "text"):
        return None
    if kind not in ("json_object", "json_schema"):
        raise bad(f"{name}.type must be text, json_object or json_schema, not {kind!r}", name, "unsupported")
    within = found.object("json_schema") if kind == "json_schema" and found.get("json_schema") is not None else found
    schema = within.get("schema")
    if schema is None and kind == "json_schema":
        raise bad(f"{name} has no schema", name)
    return await served.grammar(schema, f"{name}.schema")


async def collected(replies: Replies) -> tuple[list[str], list[str], list[list[Token]]]:
    """The text, the end and the tokens of each of the replies."""
    count = len(replies.requests)
    texts, ends, tokens = [""] * count, ["length"] * count, [list[Token]() for _ in range(count)]
    async for number, piece in replies.pieces():
        texts[number] += piece.text
        tokens[number] += piece.tokens
        ends[number] = piece.end or ends[number]
    return texts, ends, tokens


def usage(replies: Replies, ids: Sequence[int]) -> dict[str, Any]:
    """Tokens read and made."""
    made = replies.generated
    return {"prompt_tokens": len(ids), "completion_tokens": made, "total_tokens": len(ids) + made,
            "prompt_tokens_details": {"cached_tokens": replies.cached}}  # fmt: skip


def error(refused: RefusedError) -> dict[str, Any]:
    """An error in this face's shape."""
    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error",
             500: "server_error", 503: "server_error"}  # fmt: skip
    kind = kinds.get(refused.status, "invalid_request_error")
    return {"error": {"message": refused.message, "type": kind, "param": refused.field, "code": refused.code}}
