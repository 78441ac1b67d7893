"""OpenAI API: models, chat completions, completions, and the part of responses that ellmer uses.

Source: OpenAI's API reference. Comments explain adaptations to clients that deviate from it.
"""

import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response

from minhub_py import __version__
from minhub_py.inference.grammar import Grammar
from minhub_py.inference.sampling import Sampling
from minhub_py.serve.catalog import Entry
from minhub_py.serve.engine import Delta, Token, token_text
from minhub_py.serve.models import (
    Generation,
    ServedModel,
    parse_messages,
    parse_sampling,
    parse_seed,
    parse_stops,
    parse_variables,
)
from minhub_py.serve.server import server_of
from minhub_py.serve.streaming import respond, sse
from minhub_py.serve.validation import Fields, check_string, finite, invalid

MAX_CHOICES = 16
MAX_TOP_LOGPROBS = 20
FINGERPRINT = f"minhub-{__version__}"
DONE = b"data: [DONE]\n\n"


async def models(request: HTTPRequest) -> Response:
    """GET /v1/models."""
    server = server_of(request)
    entries = await server.models.available()
    return JSONResponse({"object": "list", "data": [describe(entry) for entry in entries],
                         "allow_pull": server.allow_pull})  # fmt: skip


async def model(request: HTTPRequest) -> Response:
    """GET /v1/models/NAME."""
    return JSONResponse(describe(await server_of(request).models.find(request.path_params["name"])))


def describe(entry: Entry) -> dict[str, Any]:
    """The entry of a model in lists. `status` and the first three fields of `meta` follow llama.cpp."""
    status = {"value": entry.state, **({"failed": True} if entry.failed else {})}
    meta: dict[str, Any] = {"size": entry.size, "capabilities": [entry.task]}
    if (served := entry.served) is not None:
        meta |= {"n_ctx_train": served.model.config.context_length, "n_params": served.parameters}
        if entry.task == "completion":
            meta |= {"default_sampling": served.sampling, "note": served.template.note}
    parent = {"parent": served.parent} if served is not None and served.parent is not None else {}  # as in vLLM
    return {"id": entry.name, "object": "model", "created": served.created if served else 0, "owned_by": "minhub",
            **parent, "status": status, "meta": meta}  # fmt: skip


# Chat completions


async def chat_completions(request: HTTPRequest) -> Response:
    """POST /v1/chat/completions."""
    served, fields = await server_of(request).read_with_model(request, "completion")
    fields.reject("tools", "functions", "audio")
    fields.reject("tool_choice", "function_call", harmless=("auto", "none"))
    messages = parse_messages(fields.get("messages"), served.engine.max_length)
    settings = await parse_settings(fields, served, chat=True)
    logprobs = fields.boolean("logprobs")
    top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS, 0)
    if top and not logprobs:
        raise invalid("top_logprobs requires logprobs: set it to true", "top_logprobs")
    settings |= {"logprobs": logprobs, "top": top}
    count = fields.integer("n", 1, MAX_CHOICES, 1) or 1
    requested = fields.integer("max_completion_tokens", 1, 2**31, fields.integer("max_tokens", 1, 2**31))
    stream, usage_chunk = parse_stream(fields)
    variables = parse_variables(fields) | {"continue_final_message": fields.boolean("continue_final_message")}
    ids = await served.encode_chat(messages, variables)
    generation = Generation(served)
    add_choices(generation, ids, served.max_new_tokens(ids, requested), count, settings)
    head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": served.name,
            "system_fingerprint": FINGERPRINT}  # fmt: skip

    def logprobs_of(tokens: Sequence[Token]) -> dict[str, Any] | None:
        return {"content": chat_logprobs(tokens, settings["stop_ids"]), "refusal": None} if logprobs else None

    async def complete() -> dict[str, Any]:
        texts, ends, tokens = await collect(generation)
        choices = [
            {"index": index, "message": {"role": "assistant", "content": text, "refusal": None},
             "logprobs": logprobs_of(tokens[index]), "finish_reason": ends[index]}
            for index, text in enumerate(texts)
        ]  # fmt: skip
        return {**head, "object": "chat.completion", "choices": choices, "usage": usage(generation, len(ids))}

    async def events() -> AsyncIterator[bytes]:
        def chunk(choices: list[dict[str, Any]], **fields: Any) -> bytes:
            return sse({**head, "object": "chat.completion.chunk", "choices": choices, **fields})

        for index in range(count):
            delta = {"role": "assistant", "content": ""}
            yield chunk([{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}])
        splitters = [DeltaSplitter() for _ in range(count)]
        unfinished = count
        async for index, part in generation.deltas():
            for text, tokens in splitters[index].add(part):
                yield chunk([{"index": index, "delta": {"content": text}, "logprobs": logprobs_of(tokens),
                              "finish_reason": None}])  # fmt: skip
            if part.end:
                unfinished -= 1
                # tidyllm expects the usage in the last chunk, even if it does not request a usage chunk.
                final = {"usage": usage(generation, len(ids))} if unfinished == 0 and not usage_chunk else {}
                yield chunk([{"index": index, "delta": {}, "logprobs": logprobs_of(splitters[index].tokens),
                              "finish_reason": part.end}], **final)  # fmt: skip
        if usage_chunk:
            yield chunk([], usage=usage(generation, len(ids)))
        yield DONE

    return await respond(request, generation, complete, events if stream else None)


class DeltaSplitter:
    """Splits deltas for ellmer, which ignores a delta that equals all previous text.

    A first delta of one character is held back until the next one, and a delta that equals the previous text is split.
    """

    def __init__(self) -> None:
        self.held = self.sent = ""
        self.tokens: tuple[Token, ...] = ()  # not sent yet

    def add(self, delta: Delta) -> list[tuple[str, tuple[Token, ...]]]:
        """The texts to send with their tokens."""
        self.held += delta.text
        self.tokens += delta.tokens
        if not self.held or (len(self.held) == 1 and not self.sent and delta.end is None):
            return []
        text, tokens = self.held, self.tokens
        parts = [(text[:1], tokens), (text[1:], ())] if text == self.sent and len(text) > 1 else [(text, tokens)]
        self.held, self.sent, self.tokens = "", self.sent + text, ()
        return parts


def chat_logprobs(tokens: Sequence[Token], stop_ids: frozenset[int]) -> list[dict[str, Any]]:
    """Log-probabilities in the format of chat completions, without the end token."""

    def entry(text: str, logprob: float | None) -> dict[str, Any]:
        # The bytes of an incomplete character are unknown.
        return {"token": text, "logprob": finite(logprob), "bytes": None if "\ufffd" in text else list(text.encode())}

    return [
        {**entry(token.text, token.logprob), "top_logprobs": [entry(text, logprob) for _, text, logprob in token.top]}
        for token in tokens
        if token.id not in stop_ids
    ]


# Completions


async def completions(request: HTTPRequest) -> Response:  # noqa: PLR0915
    """POST /v1/completions."""
    served, fields = await server_of(request).read_with_model(request, "completion")
    fields.reject("suffix")
    inputs = parse_prompts(served, fields.get("prompt"))
    settings = await parse_settings(fields, served, chat=False)
    top = fields.integer("logprobs", 0, MAX_TOP_LOGPROBS)
    settings |= {"logprobs": top is not None, "top": top or 0}
    count = fields.integer("n", 1, MAX_CHOICES, 1) or 1
    fields.reject("best_of", harmless=(count,))
    check_prompts(served, len(inputs), count)
    echo = fields.boolean("echo")
    requested = fields.integer("max_tokens", 0, 2**31, 16)
    stream, usage_chunk = parse_stream(fields)
    if requested == 0 and not echo:
        raise invalid("max_tokens must be 1 or more, unless echo is true", "max_tokens")
    if echo and served.model.encoder_decoder:
        raise invalid("echo is not supported for encoder-decoder models: remove it", "echo")
    prompts = [await served.encode(prompt) if isinstance(prompt, str) else prompt for prompt in inputs]
    generation = Generation(served)
    for ids in prompts if requested else ():
        add_choices(generation, ids, served.max_new_tokens(ids, requested), count, settings)
    generating = len(generation.requests)  # one request per choice; scoring requests follow
    scores: dict[int, int] = {}  # prompt -> request that scores it
    for number, ids in enumerate(prompts):
        if echo and top is not None and len(ids) > 1:
            served.max_new_tokens(ids[:-1], 1)
            scores[number] = len(generation.requests)
            generation.add(ids[:1], 0, targets=ids[1:], logprobs=True, top=max(top, 1))
    head = {"id": f"cmpl-{secrets.token_hex(12)}", "object": "text_completion", "created": int(time.time()),
            "model": served.name, "system_fingerprint": FINGERPRINT}  # fmt: skip
    echoed = [served.tokenizer.decode(ids) if echo else "" for ids in prompts]
    prompt_tokens = sum(map(len, prompts))

    def generated(tokens: Sequence[Token]) -> list[Token]:
        if echo:  # with the end token, which has no text: lm-eval expects max_tokens tokens after the prompt's
            return [replace(token, text="") if token.id in settings["stop_ids"] else token for token in tokens]
        return [token for token in tokens if token.id not in settings["stop_ids"]]

    def choice(index: int, text: str, tokens: Sequence[Token], end: str | None) -> dict[str, Any]:
        logprobs = None if top is None else completion_logprobs(tokens, top)
        return {"index": index, "text": text, "finish_reason": end, "logprobs": logprobs}

    def prompt_tokens_of(number: int, scored: Sequence[Token]) -> list[Token]:
        first_id = prompts[number][0]
        return [Token(first_id, token_text(served.tokenizer, first_id), None, ()), *scored]

    async def complete() -> dict[str, Any]:
        texts, ends, tokens = await collect(generation)
        choices = []
        for index in range(len(prompts) * count):
            number = index // count
            text, end, shown = echoed[number], "length", list[Token]()
            if echo and top is not None:
                shown = prompt_tokens_of(number, tokens[scores[number]] if number in scores else [])
            if index < generating:
                text, end = text + texts[index], ends[index]
                shown += generated(tokens[index])
            choices.append(choice(index, text, shown, end))
        return {**head, "choices": choices, "usage": usage(generation, prompt_tokens)}

    async def events() -> AsyncIterator[bytes]:
        unfinished = len(prompts) * count

        def chunk(data: dict[str, Any]) -> bytes:
            nonlocal unfinished
            unfinished -= data["finish_reason"] is not None
            final = {"usage": usage(generation, prompt_tokens)} if unfinished == 0 and not usage_chunk else {}
            return sse({**head, "choices": [data], **final})

        def echo_chunks(number: int, scored: Sequence[Token]) -> Iterator[bytes]:
            shown = [] if top is None else prompt_tokens_of(number, scored)
            for index in range(number * count, number * count + count):
                if echo or not requested:
                    yield chunk(choice(index, echoed[number], shown, None if requested else "length"))

        for number in range(len(prompts)):
            if number not in scores:
                for data in echo_chunks(number, ()):
                    yield data
        # The chunks of a prompt's choices follow the echoed prompt, which follows its scores.
        scored: dict[int, list[Token]] = {number: [] for number in scores}
        held: dict[int, list[dict[str, Any]]] = {number: [] for number in scores}
        async for index, delta in generation.deltas():
            if index < generating:
                choice_data = choice(index, delta.text, generated(delta.tokens), delta.end)
                if index // count in held:
                    held[index // count].append(choice_data)
                else:
                    yield chunk(choice_data)
                continue
            number = next(number for number, request in scores.items() if request == index)
            scored[number] += delta.tokens
            if delta.end is not None:
                for data in (*echo_chunks(number, scored[number]), *map(chunk, held.pop(number))):
                    yield data
        if usage_chunk:
            yield sse({**head, "choices": [], "usage": usage(generation, prompt_tokens)})
        yield DONE

    return await respond(request, generation, complete, events if stream else None)


def parse_prompts(served: ServedModel, value: Any) -> list[str | list[int]]:
    """Prompts: a string, a list of token IDs, or a list of either."""
    if value is None:
        value = ""
    values = value if isinstance(value, list) else [value]
    if not values:
        raise invalid("prompt must be a string, a list of token IDs, or a list of either, not empty", "prompt")
    if type(values[0]) is int:
        return [served.check_ids(values)]
    check_prompts(served, len(values), 1)
    if any(value == [] for value in values):
        raise invalid("a prompt must have at least one token ID", "prompt")
    return [served.check_ids(value) if isinstance(value, list) else check_string(value, "prompt") for value in values]


def check_prompts(served: ServedModel, prompts: int, choices: int) -> None:
    """Reject more requests than half of the queue."""
    maximum = (served.engine.batch_size + served.engine.queue_size) // 2
    if prompts * choices > maximum:
        raise invalid(f"{prompts:,} prompts with n={choices} are too many: at most {maximum} in total", "prompt")


def completion_logprobs(tokens: Sequence[Token], top: int) -> dict[str, Any]:
    """Log-probabilities in the format of completions. The first token of an echoed prompt has none."""
    offsets, offset = [], 0
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
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


async def responses(request: HTTPRequest) -> Response:
    """POST /v1/responses: text only, without stored responses."""
    served, fields = await server_of(request).read_with_model(request, "completion")
    fields.reject("tools", "previous_response_id", "conversation", "prompt")
    fields.reject("tool_choice", harmless=("auto", "none"))
    value = fields.get("input")
    values = [{"role": "user", "content": value}] if isinstance(value, str) else value
    messages = parse_messages(values, served.engine.max_length, "input")
    instructions = fields.string("instructions")
    if instructions:
        messages.insert(0, {"role": "system", "content": instructions})
    settings = await parse_settings(fields, served, chat=True)
    settings["grammar"] = await parse_format(fields.object("text"), "format", served)
    requested = fields.integer("max_output_tokens", 1, 2**31)
    stream, _ = parse_stream(fields)
    ids = await served.encode_chat(messages)
    generation = Generation(served)
    generation.add(ids, served.max_new_tokens(ids, requested), **settings)
    response_id, item_id = f"resp_{secrets.token_hex(12)}", f"msg_{secrets.token_hex(12)}"
    created = int(time.time())

    def item(text: str, status: str) -> dict[str, Any]:
        return {"id": item_id, "type": "message", "role": "assistant", "status": status,
                "content": [part(text)] if status != "in_progress" else []}  # fmt: skip

    def part(text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def response(text: str = "", end: str | None = None) -> dict[str, Any]:
        status = {None: "in_progress", "stop": "completed", "length": "incomplete"}[end]
        counts = usage(generation, len(ids))
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

    async def complete() -> dict[str, Any]:
        texts, ends, _ = await collect(generation)
        return response(texts[0], ends[0])

    async def events() -> AsyncIterator[bytes]:
        number = 0

        def event(kind: str, **data: Any) -> bytes:
            nonlocal number
            number += 1
            return sse({"type": f"response.{kind}", "sequence_number": number - 1, **data}, f"response.{kind}")

        location = {"item_id": item_id, "output_index": 0, "content_index": 0}
        yield event("created", response=response())
        yield event("in_progress", response=response())
        yield event("output_item.added", output_index=0, item=item("", "in_progress"))
        yield event("content_part.added", **location, part=part(""))
        text, end = "", "stop"
        async for _, delta in generation.deltas():
            if delta.text:
                text += delta.text
                yield event("output_text.delta", **location, delta=delta.text, logprobs=[])
            end = delta.end or end
        status = "completed" if end == "stop" else "incomplete"
        yield event("output_text.done", **location, text=text, logprobs=[])
        yield event("content_part.done", **location, part=part(text))
        yield event("output_item.done", output_index=0, item=item(text, status))
        yield event(status, response=response(text, end))

    return await respond(request, generation, complete, events if stream else None)


# Shared by all endpoints


async def parse_settings(fields: Fields, served: ServedModel, chat: bool) -> dict[str, Any]:
    """Settings of `engine.Request`. chat: the model's default sampling and the chat template's stop criteria.

    Completions sample from the model's distribution by default, as the OpenAI API specifies.
    """
    fields.reject("grammar", "json_schema", "structured_outputs", "guided_json")  # response formats of other servers
    template, ignore_eos = served.template, fields.boolean("ignore_eos")
    return {
        "sampling": parse_sampling(
            fields, served.sampling if chat else asdict(Sampling()), served.model.config.vocab_size
        ),
        "seed": parse_seed(fields),
        "stops": parse_stops(fields) + (template.stops if chat else ()),
        "stop_ids": (frozenset() if ignore_eos else served.end_ids) | (template.end_ids if chat else frozenset()),
        "grammar": await parse_format(fields, "response_format", served),
    }


def parse_stream(fields: Fields) -> tuple[bool, bool]:
    """Whether to stream, and whether to send the usage in a separate chunk."""
    return fields.boolean("stream"), fields.object("stream_options").boolean("include_usage")


async def parse_format(fields: Fields, name: str, served: ServedModel) -> Grammar | None:
    """The grammar of a response format. Its schema is in `schema`, or nested in `json_schema`."""
    form = fields.object(name)
    kind = form.string("type")
    if kind in (None, "text"):
        return None
    if kind not in ("json_object", "json_schema"):
        raise invalid(f"{name}.type must be text, json_object or json_schema, not {kind!r}", name, "unsupported")
    nested = kind == "json_schema" and form.get("json_schema") is not None
    schema = (form.object("json_schema") if nested else form).get("schema")
    if schema is None and kind == "json_schema":
        raise invalid(f"{name} has no schema: add it as json_schema.schema", name)
    return await served.grammar(schema, f"{name}.schema")


def add_choices(
    generation: Generation, ids: list[int], max_new_tokens: int, count: int, settings: dict[str, Any]
) -> None:
    """Add `count` requests with consecutive seeds."""
    for number in range(count):
        generation.add(ids, max_new_tokens, **{**settings, "seed": settings["seed"] + number})


async def collect(generation: Generation) -> tuple[list[str], list[str], list[list[Token]]]:
    """The text, finish reason and tokens of each request."""
    count = len(generation.requests)
    texts, ends, tokens = [""] * count, ["length"] * count, [list[Token]() for _ in range(count)]
    async for index, delta in generation.deltas():
        texts[index] += delta.text
        tokens[index] += delta.tokens
        ends[index] = delta.end or ends[index]
    return texts, ends, tokens


def usage(generation: Generation, prompt_tokens: int) -> dict[str, Any]:
    """The numbers of tokens."""
    generated = generation.generated_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": generated, "total_tokens": prompt_tokens + generated,
            "prompt_tokens_details": {"cached_tokens": generation.cached_tokens}}  # fmt: skip
