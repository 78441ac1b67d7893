"""A server's models."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from tokenizers import Tokenizer

from minhub_py.chat.content import text_of
from minhub_py.chat.defaults import default_sampling
from minhub_py.chat.reply_form import ReplyForm
from minhub_py.chat.templates import ChatTemplate
from minhub_py.chat.tool_grammar import LazyGrammar, ToolError
from minhub_py.checkpoints.tokenizers.paired import target_tokenizer
from minhub_py.checkpoints.tokenizers.surroundings import bos_token_id
from minhub_py.checkpoints.tokenizers.tokenizer import encode, without_end
from minhub_py.inference.grammar import Grammar, Pattern, Vocabulary
from minhub_py.inference.quantize import count
from minhub_py.inference.sampling import StopCriteria
from minhub_py.models.base import LanguageModel
from minhub_py.models.encoder import Encoder
from minhub_py.serve.engine_thread import EngineBusyError, EngineThread, Failure
from minhub_py.serve.validation import RequestError, invalid
from minhub_py.serve.workers import RETRY_AFTER, Workers
from minhub_py.system.console import note
from minhub_py.system.json_text import JsonMapping, JsonObject

FAILURE_STATUS = {"model": 500, "schema": 400, "time": 503, "shutdown": 503}
Task = Literal["completion", "embedding", "rerank", "decision"]
# Maximum number of characters of a text, per token of its maximum length: WordPiece has one token
# for an unknown word of any length, and white space has none.
CHARACTERS_PER_TOKEN = 100
MAX_GRAMMARS = 16  # compiled grammars of a model's recent sets of tools and schemas


def task_of(model: type[LanguageModel], config: Any, *, without_head: bool = False) -> Task:
    """The purpose of a model of this class with this config. without_head: an embedding model
    without output head.
    """
    if not issubclass(model, Encoder):
        return "embedding" if without_head else "completion"
    if config.head == "decision":
        return "decision"
    return "rerank" if config.head == "sequence" and len(config.labels) == 1 else "embedding"


@dataclass(eq=False)
class ServedModel:
    """A model with its name, tokenizer, chat template and engine. timeout: maximum duration of a
    request in seconds.

    parent: the name of the model without the adapter, for a model with an adapter.

    A text encoder's engine is an `EncoderEngine`; of other models, an `Engine`.

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
        # clients must not see local paths
        self.template = replace(self.template, origin="the model's chat template")
        self.sampling = default_sampling(self.model)
        _ = self.template.end_ids, self.template.markup  # cached: rendering may take long
        # Two threads for tokenization, so that a long text does not delay all others. One for
        # schemas, which may take much memory.
        self.texts, self.schemas = Workers(2), Workers(1)
        self.embeddings = Workers(1)  # of a decoder
        self.grammars: dict[str, Grammar | LazyGrammar | None] = {}
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
        return task_of(type(self.model), self.model.config, without_head=self.model.without_head)

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """The model's end tokens."""
        return StopCriteria.of(self.model, "auto", (), None).ids

    @cached_property
    def parameters(self) -> int:
        """The number of parameters, including quantized ones."""
        return count(self.model)

    @cached_property
    def memory(self) -> int:
        """Bytes of the weights, with shared ones counted once, and of the KV cache. Of an adapter:
        without its base.
        """
        tensors = {tensor.data_ptr(): tensor for tensor in self.model.state_dict().values()}
        if self.parent is not None and self.model.base is not None:
            for tensor in self.model.base.state_dict().values():
                tensors.pop(tensor.data_ptr(), None)
        return sum(tensor.nbytes for tensor in tensors.values()) + self.engine.cache_bytes

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary for grammars. ValueError: the tokenizer does not support them."""
        return Vocabulary(
            target_tokenizer(self.tokenizer),
            self.model.output_size,
            self.end_ids | self.template.end_ids,
        )

    def submit(self, *requests: object) -> None:
        """Queue requests, all or none. RequestError: the engine is busy."""
        try:
            self.engine.submit(*requests)
        except EngineBusyError as error:
            status = 429 if self.engine.accepting else 503
            raise RequestError(
                status, f"{error}: try again later", "busy", retry_after=RETRY_AFTER
            ) from error

    # Methods that raise RequestError if an input is invalid. `name` is the field of the request.

    def check_characters(self, length: int, name: str) -> None:
        """Reject texts that exceed the context even with the longest tokens, before they are
        tokenized.
        """
        if length > self.max_characters:
            raise invalid(
                f"{name} has {length:,} characters, but the context of {self.engine.max_length:,}"
                f" tokens holds at most {self.max_characters:,}: shorten it",
                name,
                "context_length_exceeded",
            )

    def _too_long(self, ids: Sequence[object], name: str) -> RequestError:
        return invalid(
            f"the prompt has {len(ids):,} tokens, but the context has {self.engine.max_length:,}"
            " tokens for the prompt and the reply: shorten the prompt",
            name,
            "context_length_exceeded",
        )

    def check_length(self, ids: Sequence[object], name: str = "prompt") -> None:
        """Reject prompts that exceed the context."""
        if len(ids) > self.engine.max_length:
            raise self._too_long(ids, name)

    def max_new_tokens(
        self, ids: Sequence[int], requested: int | None, name: str = "prompt"
    ) -> int:
        """The requested number of new tokens, or less if the context is full before.

        An encoder-decoder's reply follows one token in the decoder.
        """
        room = self.engine.max_length - (1 if self.model.encoder_decoder else len(ids))
        if room < 1:
            raise self._too_long(ids, name)
        return room if requested is None else min(requested, room)

    def check_ids(self, ids: Sequence[Any]) -> list[int]:
        """Token IDs of a text of the model."""
        self.check_length(ids)
        size = self.model.output_size
        if not all(type(id) is int and 0 <= id < size for id in ids):
            raise invalid(f"token IDs must be integers from 0 to {size - 1}", "prompt")
        return list(ids)

    async def tokenize(self, text: str, name: str, **options: bool) -> list[int]:
        """The token IDs of a text."""
        self.check_characters(len(text), name)
        try:
            return await self.texts.run(
                lambda: encode(self.tokenizer, text, release_gil=True, **options)
            )
        except ValueError as error:
            raise invalid(str(error), name) from error

    def truncated(self, ids: list[int], count: int | None, reply: int | None) -> list[int]:
        """The last token IDs of a prompt. count: result of `parse_truncation`.    reply: requested
        number of tokens.
        """
        if count == 0:
            count = max(self.engine.max_length - (reply or 1), 1)
        return ids if count is None else ids[-count:]

    async def encode(
        self,
        text: str,
        *,
        special: bool = True,
        truncation: int | None = None,
        reply: int | None = None,
    ) -> list[int]:
        """The token IDs of a prompt. An empty one is the BOS token or the end token.

        special: add special tokens, such as BOS.    truncation, reply: as in `truncated`.
        """
        ids = await self.tokenize(text, "prompt", add_special_tokens=special)
        if special and not self.model.encoder_decoder:
            ids = without_end(self.tokenizer, ids)
        ids = self.truncated(ids, truncation, reply)
        if not ids:
            candidates = [bos_token_id(self.tokenizer, self.model.config), *sorted(self.end_ids)]
            ids = [
                id for id in candidates if id is not None and 0 <= id < self.model.config.vocab_size
            ][:1]
        if not ids:
            raise invalid("prompt must not be empty: this model has no BOS token", "prompt")
        self.check_length(ids)
        return ids

    async def encode_chat(
        self,
        messages: list[JsonObject],
        variables: JsonMapping | None = None,
        truncation: int | None = None,
        reply: int | None = None,
    ) -> list[int]:
        """The token IDs of a conversation.

        variables: further variables of the chat template.    truncation, reply: as in `truncated`.
        """
        self.check_characters(
            sum(len(text_of(message["content"])) for message in messages), "messages"
        )

        def prompt() -> list[int]:
            text = self.template.render(messages, **(variables or {}))
            self.check_characters(len(text), "messages")
            return self.template.tokenize(text, release_gil=True)

        try:
            ids = self.truncated(await self.texts.run(prompt), truncation, reply)
        except ValueError as error:
            raise invalid(str(error), "messages", "template") from error
        self.check_length(ids, "messages")
        return ids

    async def reply_grammar(
        self, form: ReplyForm, max_new_tokens: int, name: str
    ) -> Grammar | LazyGrammar | None:
        """The grammar of a reply's form. Grammars of recent forms are reused. name: the field of
        the form's schema.
        """
        if not form.tools and form.schema is None:
            return None

        def vocabulary() -> Vocabulary:
            try:
                return self.vocabulary
            except ValueError as error:
                note(f"Note: replies are not constrained: {error}")
                raise

        def compiled() -> Grammar | LazyGrammar | None:
            choice = asdict(form.choice(max_new_tokens))
            key = json.dumps(
                [list(form.tools.items()), choice, form.is_parsed, sorted(form.strict)]
            )
            grammar = self.grammars.pop(key, None) or form.grammar(vocabulary, max_new_tokens)
            self.grammars[key] = grammar  # the most recent last
            while len(self.grammars) > MAX_GRAMMARS:
                del self.grammars[next(iter(self.grammars))]
            return grammar

        try:
            return await self.schemas.run(compiled)
        except ValueError as error:
            field = "tools" if form.schema is None or isinstance(error, ToolError) else name
            raise invalid(str(error), field, "schema") from error

    async def grammar(self, schema: Mapping[str, object] | Pattern, name: str) -> Grammar:
        """The grammar of a JSON schema or a pattern."""
        try:
            return await self.schemas.run(lambda: self.vocabulary.grammar(schema))
        except ValueError as error:
            raise invalid(str(error), name, "schema") from error


def failed(failure: Failure) -> RequestError:
    """The response to a failure."""
    status = FAILURE_STATUS[failure.kind]
    return RequestError(
        status, failure.message, failure.kind, retry_after=RETRY_AFTER if status == 503 else None
    )
