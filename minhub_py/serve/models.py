"""The models of a server, generation for an HTTP request, and the request fields that the APIs share."""

import asyncio
import json
import random
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from reprlib import repr as brief
from typing import Any, Literal

from tokenizers import Tokenizer

from minhub_py.chat.defaults import default_sampling
from minhub_py.chat.reply_parser import ReplyParser
from minhub_py.chat.templates import ChatTemplate
from minhub_py.chat.tool_grammar import LazyGrammar, ToolChoice, tool_grammar
from minhub_py.checkpoints.tokenizers.tokenizer import encode
from minhub_py.inference.grammar import Grammar, Vocabulary
from minhub_py.inference.limits import MAX_STOPS, check_sampling, stop_strings
from minhub_py.inference.quantize import count
from minhub_py.inference.sampling import Sampling, StopCriteria
from minhub_py.models.base import Encoder
from minhub_py.serve.engine import Delta, Request
from minhub_py.serve.engine_thread import BusyError, EngineThread, Failure
from minhub_py.serve.validation import Fields, RequestError, invalid
from minhub_py.serve.workers import RETRY_AFTER, Workers

FAILURE_STATUS = {"model": 500, "schema": 400, "time": 503, "shutdown": 503}
Task = Literal["completion", "embedding", "rerank"]
# Maximum number of characters of a text, per token of its maximum length: WordPiece has one token for an unknown word
# of any length, and white space has none.
CHARACTERS_PER_TOKEN = 100
MAX_TOOL_GRAMMARS = 16  # compiled grammars of a model's recent sets of tools
MAX_VARIABLES_LENGTH = 100_000  # characters of chat_template_kwargs


@dataclass(eq=False)
class ServedModel:
    """A model with its name, tokenizer, chat template and engine. timeout: maximum duration of a request in seconds.

    parent: the name of the model without the adapter, for a model with an adapter.

    The engine of a text encoder is an `EncoderEngine`; of other models, an `Engine`.

    ValueError: the model's generation_config.json has a value outside its range.
    """

    name: str
    model: Any
    tokenizer: Tokenizer
    template: ChatTemplate
    engine: EngineThread[Any]
    timeout: float
    created: int = field(default_factory=lambda: int(time.time()))
    parent: str | None = None

    def __post_init__(self) -> None:
        self.template = replace(self.template, origin="the model's chat template")  # clients must not see local paths
        self.sampling = default_sampling(self.model)
        _ = self.template.end_ids, self.template.markup  # cached: rendering may take long
        # Two threads for tokenization, so that a long text does not delay all others. One for schemas, which may take
        # much memory.
        self.texts, self.schemas = Workers(2), Workers(1)
        self.embeddings = Workers(1)  # of a decoder
        self.tool_grammars: dict[str, Grammar | LazyGrammar] = {}
        longest = max(map(len, self.tokenizer.get_vocab()), default=1)
        if self.is_encoder:
            longest = max(longest, CHARACTERS_PER_TOKEN)
        self.max_characters = self.engine.max_length * longest

    def close(self) -> None:
        """Stop the engine and the threads. Unfinished requests receive an error."""
        self.engine.close()
        for workers in (self.texts, self.schemas, self.embeddings):
            workers.close()

    @property
    def names(self) -> tuple[str, ...]:
        """The names that requests may use: Ollama adds ":latest"; an adapter is also MODEL+NAME."""
        adapter = () if self.parent is None else (f"{self.parent}+{self.name}",)
        return (self.name, f"{self.name}:latest", *adapter)

    @property
    def is_encoder(self) -> bool:
        """Whether the model is a text encoder."""
        return isinstance(self.model, Encoder)

    @property
    def task(self) -> Task:
        """The purpose of the model. All models also compute embeddings, and some decoders rerank."""
        if not self.is_encoder:
            return "embedding" if self.model.without_head else "completion"
        return "rerank" if self.model.config.head == "sequence" and len(self.model.config.labels) == 1 else "embedding"

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """The model's end tokens."""
        return StopCriteria.of(self.model, "auto", (), None).ids

    @cached_property
    def parameters(self) -> int:
        """The number of parameters, including quantized ones."""
        return count(self.model)

    @cached_property
    def bytes(self) -> int:
        """The size of the weights, with shared ones counted once."""
        tensors = {tensor.data_ptr(): tensor for tensor in self.model.state_dict().values()}
        return sum(tensor.nbytes for tensor in tensors.values())

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary for grammars. ValueError: the tokenizer does not support them."""
        return Vocabulary(self.tokenizer, self.model.config.vocab_size, self.end_ids | self.template.end_ids)

    # Methods that raise RequestError if an input is invalid. `name` is the field of the request.

    def check_characters(self, length: int, name: str) -> None:
        """Reject texts that exceed the context even with the longest tokens, before they are tokenized."""
        if length > self.max_characters:
            raise invalid(
                f"{name} has {length:,} characters, but {self.engine.max_length:,} tokens have at most "
                f"{self.max_characters:,}: shorten it", name, "context_length_exceeded",
            )  # fmt: skip

    def _too_long(self, ids: Sequence[Any]) -> RequestError:
        return invalid(
            f"the prompt has {len(ids):,} tokens, but the context has {self.engine.max_length:,} tokens for the prompt "
            "and the reply: shorten the prompt", "messages", "context_length_exceeded",
        )  # fmt: skip

    def check_length(self, ids: Sequence[Any]) -> None:
        """Reject prompts that exceed the context."""
        if len(ids) > self.engine.max_length:
            raise self._too_long(ids)

    def max_new_tokens(self, ids: Sequence[int], requested: int | None) -> int:
        """The requested number of new tokens, or less if the context is full before."""
        room = self.engine.max_length - (0 if self.model.encoder_decoder else len(ids))
        if room < 1:
            raise self._too_long(ids)
        return room if requested is None else min(requested, room)

    def check_ids(self, ids: Sequence[Any]) -> list[int]:
        """Token IDs of a prompt."""
        self.check_length(ids)
        size = self.model.config.vocab_size
        if not all(type(id) is int and 0 <= id < size for id in ids):
            raise invalid(f"token IDs must be integers from 0 to {size - 1}", "prompt")
        return list(ids)

    async def tokenize(self, text: str, name: str, **options: Any) -> list[int]:
        """The token IDs of a text."""
        self.check_characters(len(text), name)
        try:
            return await self.texts.run(lambda: encode(self.tokenizer, text, release_gil=True, **options))
        except ValueError as error:
            raise invalid(str(error), name) from error

    async def encode(self, text: str) -> list[int]:
        """The token IDs of a prompt. An empty one is the BOS token or the end token."""
        ids = await self.tokenize(text, "prompt")
        if not ids:
            candidates = [getattr(self.model.config, "bos_token_id", None), *sorted(self.end_ids)]
            ids = [id for id in candidates if id is not None and 0 <= id < self.model.config.vocab_size][:1]
        if not ids:
            raise invalid("prompt must not be empty: this model has no BOS token", "prompt")
        self.check_length(ids)
        return ids

    async def encode_chat(
        self, messages: list[dict[str, Any]], variables: Mapping[str, Any] | None = None
    ) -> list[int]:
        """The token IDs of a conversation. variables: further variables of the chat template."""
        self.check_characters(sum(len(message["content"]) for message in messages), "messages")

        def prompt() -> list[int]:
            text = self.template.render(messages, **(variables or {}))
            self.check_characters(len(text), "messages")
            return self.template.tokenize(text, release_gil=True)

        try:
            ids = await self.texts.run(prompt)
        except ValueError as error:
            raise invalid(str(error), "messages", "template") from error
        self.check_length(ids)
        return ids

    async def tool_grammar(
        self, tools: Mapping[str, Mapping[str, Any]], choice: ToolChoice, name: str
    ) -> Grammar | LazyGrammar:
        """The grammar of replies that can call tools. tools: JSON schemas of the arguments by name."""

        def compiled() -> Grammar | LazyGrammar:
            key = json.dumps([list(tools.items()), asdict(choice)])
            grammar = self.tool_grammars.pop(key, None) or tool_grammar(
                self.vocabulary, self.template.markup, tools, choice
            )
            self.tool_grammars[key] = grammar  # the most recent last
            while len(self.tool_grammars) > MAX_TOOL_GRAMMARS:
                del self.tool_grammars[next(iter(self.tool_grammars))]
            return grammar

        try:
            return await self.schemas.run(compiled)
        except ValueError as error:
            raise invalid(str(error), name, "schema") from error

    async def grammar(self, schema: Any, name: str) -> Grammar:
        """The grammar of a JSON schema; None allows any object."""
        if schema is not None and not isinstance(schema, dict):
            raise invalid(f"{name} must be a JSON schema, not {brief(schema)}", name)
        try:
            return await self.schemas.run(lambda: self.vocabulary.grammar(schema))
        except ValueError as error:
            raise invalid(str(error), name, "schema") from error


class Generation:
    """The engine requests of one HTTP request. Transfers their deltas from the engine's thread to the event loop."""

    def __init__(self, served: ServedModel) -> None:
        self.served = served
        self.requests: list[Request] = []
        self.queue: asyncio.Queue[tuple[int, Delta | Failure]] = asyncio.Queue()
        self.loop = asyncio.get_running_loop()
        self.first: tuple[int, Delta] | None = None  # the first delta, if it was awaited before the response

    def add(
        self, ids: Sequence[int], max_new_tokens: int, *, new_parser: Callable[[], ReplyParser] | None = None,
        **settings: Any,
    ) -> None:  # fmt: skip
        """Add a request with settings of `engine.Request`. new_parser: returns its parser."""
        index = len(self.requests)
        parser = None if new_parser is None else new_parser()

        def send(item: Delta | Failure) -> None:
            with suppress(RuntimeError):  # the event loop is closed
                self.loop.call_soon_threadsafe(self.queue.put_nowait, (index, item))

        deadline = time.monotonic() + self.served.timeout
        self.requests.append(Request(ids, max_new_tokens, send, deadline=deadline, parser=parser, **settings))

    def start(self) -> None:
        """Submit the requests. RequestError: the engine is busy."""
        try:
            self.served.engine.submit(*self.requests)
        except BusyError as error:
            status = 429 if self.served.engine.accepting else 503
            raise RequestError(status, f"{error}: try again later", "busy", retry_after=RETRY_AFTER) from error

    async def deltas(self) -> AsyncIterator[tuple[int, Delta]]:
        """(index of the request, delta) until all requests have ended. RequestError: one fails."""
        unfinished = len(self.requests)
        while unfinished:
            index, delta = self.first or await self.next_delta()
            self.first = None
            yield index, delta
            unfinished -= delta.end is not None

    async def next_delta(self) -> tuple[int, Delta]:
        """The next delta of any request."""
        index, item = await self.queue.get()
        if isinstance(item, Failure):
            status = FAILURE_STATUS[item.kind]
            raise RequestError(status, item.message, item.kind, retry_after=RETRY_AFTER if status == 503 else None)
        return index, item

    def cancel(self) -> None:
        """Cancel the unfinished requests."""
        for request in self.requests:
            request.cancelled = True

    @property
    def reasoning_tokens(self) -> int:
        """The number of generated tokens of reasoning so far."""
        return sum(request.parser.reasoning_tokens for request in self.requests if request.parser is not None)

    @property
    def generated_tokens(self) -> int:
        """The number of generated tokens so far, without scored ones."""
        return sum(len(request.new_ids) for request in self.requests if not request.targets)

    @property
    def cached_tokens(self) -> int:
        """The number of prompt tokens copied from the prefix cache."""
        return max((request.cached_tokens for request in self.requests), default=0)


def parse_sampling(
    fields: Fields, defaults: Mapping[str, Any], vocab_size: int, penalty: str = "repetition_penalty"
) -> Sampling:
    """Sampling settings with `defaults` for missing ones. `penalty` is the API's name of the repetition penalty."""
    fields.reject("mirostat")
    fields.reject("typical_p", "tfs_z", harmless=(1,))
    settings = dict(defaults)
    top_k = fields.integer("top_k", -1, 2**31)
    if top_k is not None:
        settings["top_k"] = top_k if top_k > 0 else None
    top_p = fields.number("top_p")
    if top_p is not None:
        settings["top_p"] = top_p or 1e-9  # 0: only the most likely token
    names = {**{name: name for name in Sampling.names()}, "repetition_penalty": penalty}
    settings["logit_bias"] = parse_bias(fields) or settings["logit_bias"]
    for name in ("temperature", "repetition_penalty", "min_p", "presence_penalty", "frequency_penalty"):
        if (value := fields.number(names[name])) is not None:
            settings[name] = value
    settings["repetition_penalty"] = settings["repetition_penalty"] or 1.0  # 0 disables it in some clients
    for name, value in settings.items():
        try:
            check_sampling(name, value)
        except ValueError as error:
            raise invalid(str(error).replace(name, names[name]), names[name]) from error
    sampling = Sampling(**settings)
    try:
        sampling.check_vocabulary(vocab_size)
    except ValueError as error:
        raise invalid(str(error), "logit_bias") from error
    return sampling


def parse_bias(fields: Fields) -> dict[int, float]:
    """The logit_bias by token ID. As in the OpenAI API, IDs are the keys of a JSON object."""
    biases = fields.object("logit_bias")
    if unreadable := [key for key in biases.values if not re.fullmatch("[0-9]{1,9}", key)]:
        raise invalid(f"logit_bias must map token IDs to numbers, but has the key {brief(unreadable[0])}", "logit_bias")
    return {int(key): value for key in biases.values if (value := biases.number(key)) is not None}


def parse_stops(fields: Fields) -> tuple[str, ...]:
    """Stop strings; empty ones are ignored."""
    try:
        return stop_strings(fields.strings("stop", MAX_STOPS))
    except ValueError as error:
        raise invalid(str(error), "stop") from error


def parse_seed(fields: Fields) -> int:
    """The seed; a random one if it is missing or, as in Ollama, -1."""
    seed = fields.integer("seed", -(2**63), 2**63 - 1)
    return random.getrandbits(62) if seed in (None, -1) else int(seed or 0)


def parse_variables(fields: Fields) -> dict[str, Any]:
    """Further variables of the chat template, such as enable_thinking."""
    name = "chat_template_kwargs"
    variables = dict(fields.object(name).values)
    try:
        size = len(json.dumps(variables))
    except RecursionError as error:
        raise invalid(f"{name} is nested too deeply", name) from error
    if size > MAX_VARIABLES_LENGTH:
        raise invalid(f"{name} has {size:,} characters: at most {MAX_VARIABLES_LENGTH:,}", name)
    for reserved in ("messages", "tools", "add_generation_prompt", "continue_final_message", "self"):
        if reserved in variables:
            raise invalid(f"{name} must not contain {reserved}: remove it", name)
    return variables
