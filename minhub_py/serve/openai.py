"""OpenAI API: models, chat completions and completions.

Source: OpenAI's API reference. Comments explain adaptations to clients that deviate from it.
"""

import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from reprlib import repr as brief
from typing import Any

from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response

from minhub_py.chat.reply_parser import ReplyEvent
from minhub_py.inference.grammar import Grammar
from minhub_py.inference.sampling import Sampling
from minhub_py.serve.catalog import Entry
from minhub_py.serve.engine import Delta, Token, token_text
from minhub_py.serve.messages import (
    ChatInput,
    choose_tools,
    encode_input,
    parse_messages,
    parse_tools,
    reply_settings,
    set_effort,
)
from minhub_py.serve.models import (
    Generation,
    ServedModel,
    parse_sampling,
    parse_seed,
    parse_stops,
    parse_variables,
)
from minhub_py.serve.replies import ParsedReply, collect_replies, new_call_id
from minhub_py.serve.server import server_of
from minhub_py.serve.streaming import respond, sse
from minhub_py.serve.validation import Fields, check_string, finite, invalid
from minhub_py.system.version import __version__

MAX_CHOICES = 16
MAX_TOP_LOGPROBS = 20
FINGERPRINT = f"minhub-{__version__}"
DONE = b"data: [DONE]\n\n"


async def models(request: HTTPRequest) -> Response:
    """GET /v1/models."""
    server = server_of(request)
    data = [describe(entry) for entry in await server.models.available()]
    # The keys of IDs are those of the Anthropic API, whose client uses the same path.
    return JSONResponse({"object": "list", "data": data, "has_more": False, "first_id": data[0]["id"] if data else None,
                         "last_id": data[-1]["id"] if data else None, "allow_pull": server.allow_pull})  # fmt: skip


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
    created = served.created if served else 0
    created_at = datetime.fromtimestamp(created, timezone.utc).isoformat().replace("+00:00", "Z")
    return {"id": entry.name, "type": "model", "display_name": entry.name, "created_at": created_at,
            "object": "model", "created": created, "owned_by": "minhub",
            **parent, "status": status, "meta": meta}  # fmt: skip


# Chat completions


async def chat_completions(request: HTTPRequest) -> Response:
    """POST /v1/chat/completions."""
    served, fields = await server_of(request).read_with_model(request, "completion")
    fields.reject("audio")
    chat = ChatInput(parse_messages(fields.get("messages"), served.engine.max_length), parse_tools(fields.get("tools")))
    legacy = choose(chat, fields)
    settings = parse_settings(fields, served, chat=True)
    chat.schema = parse_schema(fields, "response_format")
    chat.variables = parse_variables(fields) | {"continue_final_message": fields.boolean("continue_final_message")}
    set_effort(chat, served, fields.get("reasoning_effort"))
    chat.separate_reasoning = fields.get("reasoning_format") != "none"
    logprobs = fields.boolean("logprobs")
    top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS, 0)
    if top and not logprobs:
        raise invalid("top_logprobs requires logprobs: set it to true", "top_logprobs")
    settings |= {"logprobs": logprobs, "top": top}
    count = fields.integer("n", 1, MAX_CHOICES, 1) or 1
    requested = fields.integer("max_completion_tokens", 1, 2**31, fields.integer("max_tokens", 1, 2**31))
    stream, usage_chunk = parse_stream(fields)
    ids = await encode_input(served, chat)
    max_new_tokens = served.max_new_tokens(ids, requested)
    settings |= await reply_settings(served, chat, ids, settings["stop_ids"], max_new_tokens)
    generation = Generation(served)
    add_choices(generation, ids, max_new_tokens, count, settings)
    head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": served.name,
            "system_fingerprint": FINGERPRINT}  # fmt: skip

    def logprobs_of(tokens: Sequence[Token]) -> dict[str, Any] | None:
        return {"content": chat_logprobs(tokens, settings["stop_ids"]), "refusal": None} if logprobs else None

    async def complete() -> dict[str, Any]:
        replies = await collect_replies(generation)
        choices = [
            {"index": index, "message": message_of(reply, legacy), "logprobs": logprobs_of(reply.tokens),
             "finish_reason": finish_reason(reply.end, bool(reply.calls), legacy)}
            for index, reply in enumerate(replies)
        ]  # fmt: skip
        return {**head, "object": "chat.completion", "choices": choices, "usage": usage(generation, len(ids))}

    async def events() -> AsyncIterator[bytes]:
        def chunk(choices: list[dict[str, Any]], **fields: Any) -> bytes:
            return sse({**head, "object": "chat.completion.chunk", "choices": choices, **fields})

        def part(index: int, delta: dict[str, Any], tokens: Sequence[Token] = (), end: str | None = None) -> Any:
            logprobs = logprobs_of(tokens) if tokens or end else None
            return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": end}

        for index in range(count):
            yield chunk([part(index, {"role": "assistant", "content": ""})])
        writers = [DeltaWriter(legacy) for _ in range(count)]
        unfinished = count
        async for index, delta in generation.deltas():
            for fields, tokens in writers[index].add(delta):
                yield chunk([part(index, fields, tokens)])
            if delta.end:
                unfinished -= 1
                # tidyllm expects the usage in the last chunk, even if it does not request a usage chunk.
                final = {"usage": usage(generation, len(ids))} if unfinished == 0 and not usage_chunk else {}
                writer = writers[index]
                yield chunk([part(index, {}, writer.tokens, writer.finish_reason(delta.end))], **final)
        if usage_chunk:
            yield chunk([], usage=usage(generation, len(ids)))
        yield DONE

    return await respond(request, generation, complete, events if stream else None)


def choose(chat: ChatInput, fields: Fields) -> bool:
    """Apply the tool choice of a request. Returns whether it has `functions`, the previous form of `tools`."""
    if chat.tools or fields.get("functions") is None:
        choose_tools(chat, fields.get("tool_choice"), fields.boolean("parallel_tool_calls", True))
        return False
    chat.tools = parse_tools(fields.get("functions"), "functions")
    choice = fields.get("function_call")
    choice = {"type": "function", **choice} if isinstance(choice, dict) else choice
    choose_tools(chat, choice, parallel=False, name="function_call")
    return True


def finish_reason(end: str, calls: bool, legacy: bool) -> str:
    """The finish reason of a reply. legacy: the request has `functions` instead of `tools`."""
    if end != "stop" or not calls:
        return end
    return "function_call" if legacy else "tool_calls"


def message_of(reply: ParsedReply, legacy: bool) -> dict[str, Any]:
    """A reply as a message. The names of reasoning are those of llama.cpp and of vLLM."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text, "refusal": None}
    if reply.reasoning:
        message |= {"reasoning_content": reply.reasoning, "reasoning": reply.reasoning}
    if reply.calls:
        message["content"] = reply.text or None
    if reply.calls and legacy:
        message["function_call"] = {"name": reply.calls[0].name, "arguments": reply.calls[0].arguments}
    elif reply.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.calls
        ]
    return message


class DeltaWriter:
    """Writes the parts of a streamed reply as deltas of a message.

    Reasoning, text and calls are in separate deltas: ellmer ignores text beside reasoning.
    legacy: the request has `functions` instead of `tools`, so that only the first call is sent.
    """

    def __init__(self, legacy: bool = False) -> None:
        self.legacy = legacy
        self.splitters: dict[str, DeltaSplitter] = {}
        self.calls = 0
        self.tokens: tuple[Token, ...] = ()  # not sent yet

    def add(self, delta: Delta) -> list[tuple[dict[str, Any], tuple[Token, ...]]]:
        """The deltas to send with their tokens."""
        self.tokens += delta.tokens
        parts = []
        for event in delta.events or ((ReplyEvent("content", delta.text),) if delta.text else ()):
            if self.legacy and event.index > 0:
                continue
            if event.kind == "call":
                parts += self._end_text()
                self.calls += 1
                function = {"name": event.text, "arguments": ""}
                call = {"index": event.index, "id": new_call_id(), "type": "function", "function": function}
                parts.append({"function_call": function} if self.legacy else {"tool_calls": [call]})
            else:
                parts += self._text(event)
        if delta.end is not None:
            parts += self._end_text()
        sent = [(part, self.tokens if number == 0 else ()) for number, part in enumerate(parts)]
        self.tokens = () if parts else self.tokens
        return sent

    def _text(self, event: ReplyEvent) -> list[dict[str, Any]]:
        key = f"{event.kind} {event.index}"
        splitter = self.splitters.setdefault(key, DeltaSplitter(lambda text: text_delta(event, text, self.legacy)))
        return splitter.add(event.text)

    def _end_text(self) -> list[dict[str, Any]]:
        return [part for splitter in self.splitters.values() for part in splitter.end()]

    def finish_reason(self, end: str) -> str:
        """The finish reason of the message."""
        return finish_reason(end, self.calls > 0, self.legacy)


def text_delta(event: ReplyEvent, text: str, legacy: bool) -> dict[str, Any]:
    """The delta of a part of a reply."""
    if event.kind == "content":
        return {"content": text}
    if event.kind == "reasoning":
        return {"reasoning_content": text, "reasoning": text}
    function = {"arguments": text}
    return {"function_call": function} if legacy else {"tool_calls": [{"index": event.index, "function": function}]}


class DeltaSplitter:
    """Splits text for ellmer, which ignores a delta that equals all previous text.

    A first delta of one character is held back until the next one, and a delta that equals the previous text is split.
    """

    def __init__(self, shape: Callable[[str], dict[str, Any]]) -> None:
        self.shape = shape
        self.held = self.sent = ""

    def add(self, text: str, *, last: bool = False) -> list[dict[str, Any]]:
        """The deltas to send after new text."""
        self.held += text
        if not self.held or (len(self.held) == 1 and not self.sent and not last):
            return []
        text = self.held
        parts = [text[:1], text[1:]] if text == self.sent and len(text) > 1 else [text]
        self.held, self.sent = "", self.sent + text
        return [self.shape(part) for part in parts]

    def end(self) -> list[dict[str, Any]]:
        """The remaining text."""
        return self.add("", last=True)


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
    settings = parse_settings(fields, served, chat=False)
    settings["grammar"] = await parse_format(fields, "response_format", served)
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
        replies = await collect_replies(generation)
        choices = []
        for index in range(len(prompts) * count):
            number = index // count
            text, end, shown = echoed[number], "length", list[Token]()
            if echo and top is not None:
                shown = prompt_tokens_of(number, replies[scores[number]].tokens if number in scores else [])
            if index < generating:
                text, end = text + replies[index].text, replies[index].end
                shown += generated(replies[index].tokens)
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


# Shared by all endpoints


def parse_settings(fields: Fields, served: ServedModel, chat: bool) -> dict[str, Any]:
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
    }


def parse_stream(fields: Fields) -> tuple[bool, bool]:
    """Whether to stream, and whether to send the usage in a separate chunk."""
    return fields.boolean("stream"), fields.object("stream_options").boolean("include_usage")


async def parse_format(fields: Fields, name: str, served: ServedModel) -> Grammar | None:
    """The grammar of a response format."""
    schema = parse_schema(fields, name)
    return None if schema is None else await served.grammar(schema or None, f"{name}.schema")


def parse_schema(fields: Fields, name: str) -> dict[str, Any] | None:
    """The schema of a response format, in `schema` or nested in `json_schema`; {} is any object."""
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
    if not isinstance(schema, dict | None):
        raise invalid(f"{name}.schema must be a JSON schema, not {brief(schema)}", name)
    return schema or {}


def add_choices(
    generation: Generation, ids: list[int], max_new_tokens: int, count: int, settings: dict[str, Any]
) -> None:
    """Add `count` requests with consecutive seeds."""
    for number in range(count):
        generation.add(ids, max_new_tokens, **{**settings, "seed": settings["seed"] + number})


def usage(generation: Generation, prompt_tokens: int) -> dict[str, Any]:
    """The numbers of tokens."""
    generated = generation.generated_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": generated, "total_tokens": prompt_tokens + generated,
            "prompt_tokens_details": {"cached_tokens": generation.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": generation.reasoning_tokens}}  # fmt: skip
