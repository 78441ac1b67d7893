"""Generation of one reply: from a prompt to text, reasoning and calls, with a prefix cache."""

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from minhub_py.chat.functions import Tool
from minhub_py.chat.reply_form import ReplyForm, end_of_prompt
from minhub_py.chat.reply_parser import ReplyEvent
from minhub_py.chat.templates import ChatTemplate
from minhub_py.chat.tool_grammar import LazyGrammar
from minhub_py.chat.tools import schemas_of, strict_names
from minhub_py.chat.turns import Reply, ReplySettings, reasoning_and_calls
from minhub_py.checkpoints.tokenizers.tokenizer import decode_stream, until
from minhub_py.inference.batch import Batch, Event
from minhub_py.inference.disk_cache import DiskCache
from minhub_py.inference.grammar import Grammar, Pattern, Vocabulary
from minhub_py.inference.prefixes import PrefixCache, identity_of_weights
from minhub_py.inference.sampling import StopCriteria, generators
from minhub_py.models.base import LanguageModel

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PREFIX_CACHE_BYTES = 2**29


@dataclass(frozen=True)
class ChatPrompt:
    """A prompt and the form of its reply. dropped: number of messages removed to fit the context."""

    ids: list[int]
    dropped: int
    settings: ReplySettings
    max_new_tokens: int
    form: ReplyForm
    stop: StopCriteria
    grammar: Grammar | LazyGrammar | None


class ReplyGenerator:
    """A chat model with its prefix cache.

    context: maximum number of tokens of a prompt and its reply.    disk: also stores the prefixes.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: "Tokenizer",
        template: ChatTemplate,
        context: int,
        disk: DiskCache | None,
    ) -> None:
        self.model, self.tokenizer, self.template = model, tokenizer, template
        self.context, self.disk = context, disk
        self.prefixes = PrefixCache(PREFIX_CACHE_BYTES)
        self._weights: list[object] | None = None  # identity of those that computed the prefixes
        self._vocabulary: Vocabulary | None = None

    def copy(self) -> "ReplyGenerator":
        """A generator with the same prefixes."""
        result = copy.copy(self)
        result.prefixes = self.prefixes.copy()
        return result

    def prompt(
        self,
        ids: list[int],
        dropped: int,
        settings: ReplySettings,
        tools: Sequence[Tool],
        *,
        required: bool,
        parallel: bool,
        schema: Mapping[str, object] | Pattern | None,
    ) -> ChatPrompt:
        """A prompt with the form of its reply. ValueError: a stop string, the schema or a tool is
        invalid.
        """
        definitions = [tool.definition for tool in tools]
        form = ReplyForm(
            self.template.markup,
            end_of_prompt(self.tokenizer, ids),
            schemas_of(definitions),
            required and bool(tools),
            parallel,
            schema,
            strict=strict_names(definitions),
        )
        stop = StopCriteria.of(
            self.model, "auto", (*settings.stop, *self.template.stops), self.tokenizer
        )
        stop = replace(stop, ids=stop.ids | self.template.end_ids | form.end_ids)

        def vocabulary() -> Vocabulary:
            if self._vocabulary is None:
                self._vocabulary = Vocabulary(
                    self.tokenizer, self.model.config.vocab_size, stop.ids
                )
            return self._vocabulary

        max_new_tokens = min(settings.max_new_tokens, self.context - len(ids))
        grammar = form.grammar(vocabulary, max_new_tokens)
        return ChatPrompt(ids, dropped, settings, max_new_tokens, form, stop, grammar)

    def batch(self) -> Batch:
        """A batch for one reply, with the prefixes unless the weights have changed, for example by
        training.
        """
        weights = identity_of_weights(self.model)
        if weights != self._weights and self.disk is not None:
            self.disk.weights_changed()
        if weights != self._weights:
            self.forget()
        self._weights = weights
        return Batch(self.model, 1, self.context, prefixes=self.prefixes, disk=self.disk)

    def forget(self) -> None:
        """Start with an empty prefix cache."""
        self.prefixes = PrefixCache(PREFIX_CACHE_BYTES)


class ReplyGeneration:
    """The generation of one reply, which `deltas` runs. `reply` is its result so far.

    number: of the reply in its chat, which determines its seed.
    listener: receives reasoning and calls.
    """

    def __init__(
        self,
        generator: ReplyGenerator,
        prompt: ChatPrompt,
        number: int,
        listener: Callable[[ReplyEvent], object],
    ) -> None:
        settings = prompt.settings
        self.generator, self.prompt, self.number, self.listener = (
            generator,
            prompt,
            number,
            listener,
        )
        self.events: list[Event] = []
        self.parts: list[ReplyEvent] = []  # reasoning and calls
        self.text: list[str] = []
        [random] = generators(
            1, None if settings.seed is None else (settings.seed + number) % 2**63
        )
        self.batch = generator.batch()
        self.row = self.batch.admit(
            prompt.ids,
            prompt.max_new_tokens,
            sampling=settings.sampling,
            generator=random,
            stop=prompt.stop,
            logprobs=True,
            top=settings.top,
            matcher=None if prompt.grammar is None else prompt.grammar.matcher(),
        )
        self.seed, self.cached = random.initial_seed(), 0
        self.start = time.perf_counter()

    def deltas(self) -> Iterator[str]:
        """Generate the reply. Closing the iterator ends it."""
        text, interrupted_step = until(self._decoded(), self.prompt.stop.strings), True
        try:
            for delta in (
                without_leading_space(text) if self.generator.template.kind == "plain" else text
            ):
                self.text.append(delta)
                yield delta
            interrupted_step = False
        except GeneratorExit:  # raised between two steps
            interrupted_step = False
            raise
        finally:
            self.cached = self.batch.cached_tokens.get(self.row, 0)
            if interrupted_step:  # the batch's cache may be inconsistent
                self.generator.forget()
            else:
                self.batch.retire(self.row)

    def reply(self) -> Reply:
        """The reply so far."""
        events, ids = self.events, self.prompt.ids
        return Reply(
            "".join(self.text),
            [event.id for event in events],
            [event.logprob or 0.0 for event in events],
            [list(event.top) for event in events] if self.prompt.settings.top else [],
            (events[-1].end if events else None) or "interrupted",
            len(ids) - self.cached,
            self.cached,
            self.prompt.dropped,
            time.perf_counter() - self.start,
            self.seed,
            *reasoning_and_calls(self.parts, self.number + 1),
        )

    def _new_ids(self) -> Iterator[int]:
        while len(self.batch):
            for event in self.batch.step():
                self.events.append(event)
                yield event.id

    def _decoded(self) -> Iterator[str]:
        """The text of the reply, without its reasoning and calls."""
        events = reply_events(
            self.generator.tokenizer,
            self.prompt.form,
            self.prompt.ids,
            self._new_ids(),
            lambda: bool(self.events) and self.events[-1].end == "length",
        )
        for event in events:
            if event.kind == "content":
                yield event.text
            else:
                self.parts.append(event)
                self.listener(event)


def reply_events(
    tokenizer: "Tokenizer",
    form: ReplyForm,
    prompt_ids: list[int],
    new_ids: Iterator[int],
    is_cut: Callable[[], bool],
) -> Iterator[ReplyEvent]:
    """The text, reasoning and calls of a reply.

    is_cut: called after the last token; whether the maximum length ended the reply.
    """
    if not form.is_parsed:
        for text in decode_stream(tokenizer, new_ids, prompt_ids):
            yield ReplyEvent("content", text)
        return
    parser = form.parser(prompt_ids)
    for id in new_ids:
        yield from parser.add(id)
    yield from parser.close(cut=is_cut())


def without_leading_space(deltas: Iterator[str]) -> Iterator[str]:
    """Text deltas without the space that follows `Assistant:` in a plain dialogue."""
    for delta in deltas:
        if stripped := delta.lstrip():
            yield stripped
            break
    yield from deltas
