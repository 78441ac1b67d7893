"""The models of a server, and replies on their way from an engine's thread to a coroutine."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from reprlib import repr as brief
from typing import Any

from tokenizers import Tokenizer

from minhub_py.chat.defaults import default_sampling
from minhub_py.chat.templates import ChatTemplate
from minhub_py.checkpoints.tokenizers.tokenizer import encode
from minhub_py.inference.grammar import Grammar, Vocabulary
from minhub_py.inference.limits import MAX_STOPS, check_sampling, stop_strings
from minhub_py.inference.quantize import count
from minhub_py.inference.sampling import Sampling, StopCriteria
from minhub_py.serve.engine import BusyError, Engine, Failure, Piece, Request
from minhub_py.serve.validation import Fields, RefusedError, bad, checked_text
from minhub_py.serve.workers import RETRY, Workers

# HTTP's status for each kind of failure.
STATUS = {"model": 500, "schema": 400, "time": 503, "shutdown": 503}
MAX_VARIABLES = 100_000  # characters of a chat template's variables


@dataclass(eq=False)
class Served:
    """A model with its name, tokenizer, chat template and engine. seconds: that a reply may take.

    ValueError: the model's generation_config.json has a value outside its range.
    """

    name: str
    model: Any
    tokenizer: Tokenizer
    template: ChatTemplate
    engine: Engine
    seconds: float
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        # Clients are told no path of this machine.
        self.template = replace(self.template, origin="the model's chat template")
        self.sampling = default_sampling(self.model)
        _ = self.template.end_ids  # renders the template, which may take long
        # Two threads: a long text does not delay all others. One: a schema may take much memory.
        self.texts, self.schemas = Workers(2), Workers(1)
        longest = max(map(len, self.tokenizer.get_vocab()), default=1)
        self.most_characters = self.engine.max_length * longest

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """Ids that end a text: those of the model."""
        return StopCriteria.of(self.model, "auto", (), None).ids

    @cached_property
    def parameters(self) -> int:
        """The number of weights, those of quantized layers included."""
        return count(self.model)

    @cached_property
    def bytes(self) -> int:
        """Bytes of the weights."""
        kept = {tensor.data_ptr(): tensor for tensor in self.model.state_dict().values()}
        return sum(tensor.nbytes for tensor in kept.values())

    def check_text(self, characters: int, name: str) -> None:
        """RefusedError: a text has more characters than the longest tokens of a context. It is not encoded."""
        if characters > self.most_characters:
            raise bad(
                f"{name} has {characters:,} characters, and {self.engine.max_length:,} tokens have at most "
                f"{self.most_characters:,}: shorten it", name, "context_length_exceeded",
            )  # fmt: skip

    async def tokens(self, text: str, name: str, **options: Any) -> list[int]:
        """The token IDs of a text. RefusedError: it is too long, or the tokenizer does not take it."""
        self.check_text(len(text), name)
        try:
            return await self.texts.run(lambda: encode(self.tokenizer, text, release_gil=True, **options))
        except ValueError as error:
            raise bad(str(error), name) from error

    async def encode(self, text: str) -> list[int]:
        """The token IDs of a prompt. RefusedError: it is too long, or empty for a model without a first token."""
        ids = await self.tokens(text, "prompt")
        if not ids:
            bos = getattr(self.model.config, "bos_token_id", None)
            firsts = [bos, *sorted(self.end_ids)]
            ids = [id for id in firsts if id is not None and 0 <= id < self.model.config.vocab_size][:1]
        if not ids:
            raise bad("the prompt is empty: give some text", "prompt")
        self.check_length(ids)
        return ids

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The ids as grammars know them. ValueError: there are none for this tokenizer."""
        return Vocabulary(self.tokenizer, self.model.config.vocab_size, self.end_ids | self.template.end_ids)

    async def grammar(self, schema: Any, name: str) -> Grammar:
        """JSON of a schema; None: any object. name: the field that it is from. RefusedError: it cannot be followed."""
        if schema is not None and not isinstance(schema, dict):
            raise bad(f"{name} must be a JSON schema, not {brief(schema)}", name)
        try:
            return await self.schemas.run(lambda: self.vocabulary.grammar(schema))
        except ValueError as error:
            raise bad(str(error), name, "schema") from error

    async def chat(self, messages: list[dict[str, Any]], variables: Mapping[str, Any] | None = None) -> list[int]:
        """The ids of a conversation. variables: what else its template knows. RefusedError: it does not take them."""
        self.check_text(sum(len(message["content"]) for message in messages), "messages")

        def prompt() -> list[int]:
            text = self.template.render(messages, **(variables or {}))
            self.check_text(len(text), "messages")
            return self.template.tokenize(text, release_gil=True)

        try:
            ids = await self.texts.run(prompt)
        except ValueError as error:
            raise bad(str(error), "messages", "template") from error
        self.check_length(ids)
        return ids

    def check_length(self, ids: Sequence[Any]) -> None:
        """RefusedError: a prompt has more tokens than the context."""
        if len(ids) > (most := self.engine.max_length):
            raise bad(
                f"the prompt has {len(ids):,} tokens, and prompt and reply together may have {most:,}: shorten it",
                "messages", "context_length_exceeded",
            )  # fmt: skip

    def room(self, ids: Sequence[int], wanted: int | None) -> int:
        """New ids that a prompt leaves room for, at most `wanted`. RefusedError: none."""
        most = self.engine.max_length
        left = most if self.model.encoder_decoder else most - len(ids)
        if left < 1:
            raise bad(
                f"the prompt has {len(ids):,} tokens, and prompt and reply together may have {most:,}: shorten it",
                "messages", "context_length_exceeded",
            )  # fmt: skip
        return left if wanted is None else min(wanted, left)

    def check_ids(self, ids: Sequence[Any]) -> list[int]:
        """Ids of the vocabulary, of one prompt. RefusedError: something else, or too many."""
        self.check_length(ids)
        size = self.model.config.vocab_size
        if not all(type(id) is int and 0 <= id < size for id in ids):
            raise bad(f"token ids are whole numbers from 0 to {size - 1}", "prompt")
        return list(ids)


class Models:
    """The models of a server by name; the first is that of requests which name none."""

    def __init__(self, models: Sequence[Served]) -> None:
        self.all = list(models)

    def find(self, name: str | None) -> Served:
        """A model by its name, also with Ollama's ":latest". RefusedError: there is none."""
        if not name:
            return self.all[0]
        for served in self.all:
            if name in (served.name, f"{served.name}:latest"):
                return served
        known = ", ".join(served.name for served in self.all)
        raise RefusedError(404, f"there is no model {name[:200]!r} here, but {known}", "model_not_found", "model")


class Replies:
    """Texts that are made for one call, and told in the order in which they come."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.requests: list[Request] = []
        self.queue: asyncio.Queue[tuple[int, Piece | Failure]] = asyncio.Queue()
        self.loop = asyncio.get_running_loop()
        self.first: tuple[int, Piece] | None = None

    def add(self, ids: Sequence[int], max_new_tokens: int, **settings: Any) -> Request:
        """One more text; the settings are those of `engine.Request`."""
        number = len(self.requests)

        def send(item: Piece | Failure) -> None:
            with suppress(RuntimeError):  # the loop has ended, and nobody listens
                self.loop.call_soon_threadsafe(self.queue.put_nowait, (number, item))

        request = Request(ids, max_new_tokens, send, deadline=time.monotonic() + self.served.seconds, **settings)
        self.requests.append(request)
        return request

    def start(self) -> None:
        """Hand the texts to the engine. RefusedError: it is busy."""
        try:
            self.served.engine.submit(*self.requests)
        except BusyError as error:
            full = self.served.engine.accepts
            raise RefusedError(429 if full else 503, f"{error}: try again", "busy", retry=RETRY) from error

    async def pieces(self) -> AsyncIterator[tuple[int, Piece]]:
        """(number of the text, piece) until all have ended. RefusedError: one has failed."""
        if self.first is not None:
            yield self.first
        left = sum(1 for _ in self.requests) - (self.first is not None and self.first[1].end is not None)
        while left:
            number, piece = await self.next()
            yield number, piece
            left -= piece.end is not None

    async def next(self) -> tuple[int, Piece]:
        """The next piece of any text."""
        number, item = await self.queue.get()
        if isinstance(item, Failure):
            retry = RETRY if STATUS[item.kind] == 503 else None
            raise RefusedError(STATUS[item.kind], item.message, item.kind, retry=retry)
        return number, item

    def cancel(self) -> None:
        """Let the rows be free."""
        for request in self.requests:
            request.cancelled = True

    @property
    def generated(self) -> int:
        """New ids so far, but for those that were only scored."""
        return sum(request.made for request in self.requests if not request.given)

    @property
    def cached(self) -> int:
        """Ids of the prompts that were not read again."""
        return max((request.cached for request in self.requests), default=0)


def sampling_of(fields: Fields, defaults: Mapping[str, Any], penalty: str = "repetition_penalty") -> Sampling:
    """Sampling settings of a request, with `defaults` for those that it leaves out.

    `penalty` is the API's name of the repetition penalty. RefusedError: a value outside its range.
    """
    fields.refuse("presence_penalty", "frequency_penalty", "logit_bias", "min_p", "mirostat")
    fields.refuse("typical_p", "tfs_z", harmless=(1,))
    settings = dict(defaults)
    top_k = fields.whole("top_k", -1, 2**31)
    if top_k is not None:
        settings["top_k"] = top_k if top_k > 0 else None
    top_p = fields.number("top_p")
    if top_p is not None:
        settings["top_p"] = top_p or 1e-9  # 0: only the most likely token
    names = {"top_k": "top_k", "top_p": "top_p", "temperature": "temperature", "repetition_penalty": penalty}
    for name in ("temperature", "repetition_penalty"):
        if (value := fields.number(names[name])) is not None:
            settings[name] = value
    settings["repetition_penalty"] = settings["repetition_penalty"] or 1.0  # 0: off, as some clients send it
    for name, value in settings.items():
        try:
            check_sampling(name, value)
        except ValueError as error:
            raise bad(str(error).replace(name, names[name]), names[name]) from error
    return Sampling(**settings)


def stops_of(fields: Fields) -> tuple[str, ...]:
    """Stop strings of a request. Empty ones are ignored."""
    try:
        return stop_strings(fields.texts("stop", MAX_STOPS))
    except ValueError as error:
        raise bad(str(error), "stop") from error


def seed_of(fields: Fields) -> int:
    """The seed that a client names; a fresh one where it names none. Ollama's -1 is none."""
    seed = fields.whole("seed", -(2**63), 2**63 - 1)
    return random.getrandbits(62) if seed in (None, -1) else int(seed or 0)


def variables_of(fields: Fields) -> dict[str, Any]:
    """What a chat template is told besides the messages, such as enable_thinking. RefusedError: what it may not be."""
    found = dict(fields.object("chat_template_kwargs").values)
    try:
        size = len(json.dumps(found))
    except RecursionError as error:
        raise bad("chat_template_kwargs is nested too deeply", "chat_template_kwargs") from error
    if size > MAX_VARIABLES:
        raise bad(f"chat_template_kwargs has {size:,} characters: at most {MAX_VARIABLES:,}", "chat_template_kwargs")
    for name in ("messages", "tools", "add_generation_prompt", "continue_final_message", "self"):
        if name in found:
            raise bad(f"chat_template_kwargs cannot have {name}", "chat_template_kwargs")
    effort = fields.text("reasoning_effort")
    return found if effort is None else {"reasoning_effort": effort, **found}


def messages_of(values: Any, most: int, name: str = "messages") -> list[dict[str, Any]]:
    """A conversation as templates take it: role and text of each message. RefusedError: it is none.

    most: messages, and parts of each, as each of them is a token or more.
    """
    if not isinstance(values, list) or not values:
        raise bad(f"{name} must be a list of messages, at least one", name)
    check_count(values, most, name)
    found = []
    for number, value in enumerate(values):
        message = Fields(value, f"{name}[{number}]")
        role = message.text("role")
        if role not in ("system", "developer", "user", "assistant"):
            raise bad(
                f"{name}[{number}].role must be system, user or assistant, not {role!r}", f"{name}[{number}].role"
            )
        message.refuse("tool_calls", "images")
        found.append({
            "role": "system" if role == "developer" else role,
            "content": content_of(message.get("content"), most, f"{name}[{number}].content"),
        })  # fmt: skip
    return found


def check_count(values: list[Any], most: int, name: str) -> None:
    """RefusedError: a list has more elements than the context has tokens."""
    if len(values) > most:
        raise bad(
            f"{name} has {len(values):,} elements, and prompt and reply together may have {most:,} tokens: shorten it",
            name, "context_length_exceeded",
        )  # fmt: skip


def content_of(value: Any, most: int, name: str) -> str:
    """The text of a message, which is a string or a list of parts."""
    if value is None:
        return ""
    if not isinstance(value, list):
        return checked_text(value, name)
    check_count(value, most, name)
    texts = []
    for number, part in enumerate(value):
        if isinstance(part, str):
            texts.append(checked_text(part, f"{name}[{number}]"))
            continue
        fields = Fields(part, f"{name}[{number}]")
        if fields.get("type") not in (None, "text", "input_text", "output_text"):
            raise bad(f"{name}[{number}] is of type {fields.get('type')!r}: models here read text only", name)
        texts.append(fields.text("text", "") or "")
    return "\n".join(texts)
