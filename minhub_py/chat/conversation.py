"""Conversations with a model.

    from minhub_py import Chat

    chat = Chat("owner/name", system="Be brief.", seed=1)
    print(chat.say("Good morning!").text)
    for delta in chat.stream("How do you feel today?"):
        print(delta, end="", flush=True)

The model's chat template renders the complete conversation for each reply. The prompt's longest prefix in the prefix
cache is not computed again. This does not change the reply (see Determinism in inference/batch.py): a seed gives the
same reply whether the previous turns are cached or recomputed.
"""

import copy
import json
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from itertools import chain
from os import PathLike
from pathlib import Path
from reprlib import repr as brief
from typing import TYPE_CHECKING, Any

from minhub_py.chat.defaults import default_sampling
from minhub_py.chat.functions import Tool, ToolCall, parse_tools
from minhub_py.chat.reply_parser import ReplyEvent, ReplyParser, begins_reasoning
from minhub_py.chat.templates import ChatTemplate, chat_template_of
from minhub_py.chat.tool_grammar import LazyGrammar, ToolChoice, reasoning_budget, tool_grammar
from minhub_py.chat.tools import parse_arguments, schemas_of
from minhub_py.chat.turns import SHOWN_FIELDS, Reply, ReplySettings, Turn, parse_turn, shorten
from minhub_py.checkpoints.tokenizers.tokenizer import decode_stream, tokenizer_from_pretrained, until
from minhub_py.inference.arguments import check_tokenizer, decoder_of, is_text, whole
from minhub_py.inference.batch import Batch, Event
from minhub_py.inference.disk_cache import DiskCache
from minhub_py.inference.grammar import Grammar, Vocabulary
from minhub_py.inference.prefixes import CachedPrefix, identity_of_weights
from minhub_py.inference.sampling import Sampling, StopCriteria, generators
from minhub_py.pretrained import from_pretrained

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from minhub_py.entry_points import ChatSettings

TextStream = Generator[str, None, None]
Schema = Mapping[str, Any] | None
MAX_DEFAULT_CONTEXT = 8192  # the KV cache of a longer default could exceed the memory
PREFIX_CACHE_BYTES = 2**29
MAX_ROUNDS = 10  # of calls in one reply


class Chat:
    """A conversation with a model.

    Args:
        model: Decoder-only language model of this package, or a name that `from_pretrained` loads: "owner/name",
            a folder, or a GGUF file.
        tokenizer: The model's `tokenizers.Tokenizer`. By default, the tokenizer of the name.
        system: System prompt.
        template: Chat template; the default is loaded from the tokenizer's folder or GGUF file.
        context: Maximum number of tokens of a prompt and its reply; by default the model's, at most 8192.
        cache_dir: Folder in which the prefix cache is also stored, so that it survives the program; replies do not
            change. Created if it is missing. The first reply hashes the weights.
        cache_size: Maximum size of `cache_dir` in bytes. The least recently used prefixes are deleted.
        tools: Functions that the model can call, with type hints and docstrings; the chat calls them. A definition,
            `{"name": …, "description": …, "parameters": …}`, is a tool that the caller runs (see `answer`).
        thinking: Whether the model reasons before replies, or an effort such as "low". None is the template's default.
        settings: Fields of `ReplySettings`. Sampling settings default to the model's generation_config.json, and
            without one to temperature 0.7 and top_p 0.95.

    Attributes:
        turns: Messages, without the system prompt.
        events: Events of the latest reply, also while it is generated.
        reply_count: Number of replies generated so far, including replaced ones. It determines the next reply's seed.
        listener: Function that receives the events of reasoning and calls (`ReplyEvent`) during a reply.

    Raises:
        ValueError: The model or tokenizer has the wrong type, the model is an encoder-decoder, a setting is invalid,
            or `cache_dir` cannot be written.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        system: str | None = None,
        *,
        template: ChatTemplate | None = None,
        context: int | None = None,
        cache_dir: str | Path | None = None,
        cache_size: int = 10**10,
        tools: Sequence[Any] | None = None,
        thinking: bool | str | None = None,
        **settings: "Unpack[ChatSettings]",
    ) -> None:
        if isinstance(model, str | PathLike):
            tokenizer = tokenizer or tokenizer_from_pretrained(str(model))
            model = from_pretrained(model)
        self.model = decoder_of(model, "Chat()")
        if tokenizer is None:
            raise ValueError("Chat(model, tokenizer) requires a tokenizer; Chat(name) loads both")
        check_tokenizer(tokenizer, "decode")
        if self.model.encoder_decoder:
            raise ValueError("Chat() does not support encoder-decoder models: use generate()")
        self.tokenizer, self.system = tokenizer, check_system(system)
        self.template = template or chat_template_of(None, tokenizer)
        maximum: int = self.model.config.context_length or MAX_DEFAULT_CONTEXT
        self.context = min(maximum, MAX_DEFAULT_CONTEXT if context is None else whole("context", context, 2))
        self.defaults = default_sampling(self.model)
        self.settings = ReplySettings(**self.defaults).updated(settings, self.defaults)
        self.turns: list[Turn] = []
        self.events: list[Event] = []
        self.reply_count = 0
        self.tools, self.thinking = parse_tools(tools), thinking
        self.listener: Callable[[ReplyEvent], object] | None = None
        self._prefixes: list[CachedPrefix] = []
        self._disk = None if cache_dir is None else DiskCache(cache_dir, whole("cache_size", cache_size, 1))
        self._weights: Any = None  # identifies the weights that computed the prefixes
        self._vocabulary: Vocabulary | None = None

    def __repr__(self) -> str:
        count = len(self.turns) // 2
        model = f"{type(self.model).__name__}, {count} message{'' if count == 1 else 's'} with replies"
        system = f", system prompt {shorten(self.system)}" if self.system else ""
        neutral = Sampling()
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self.settings.sampling).items()
                           if name in SHOWN_FIELDS or value != getattr(neutral, name))  # fmt: skip
        return f"<Chat with {model}{system}, {values}>"

    @property
    def last(self) -> Reply | None:
        """The latest reply."""
        return next((turn.reply for turn in reversed(self.turns) if turn.reply), None)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages in the format of chat templates, including the system prompt."""
        return self._messages(self.turns)

    def _messages(self, turns: list[Turn]) -> list[dict[str, Any]]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *(message for turn in turns for message in (*turn.steps, turn.message))]

    def set(self, **settings: "Unpack[ChatSettings]") -> None:
        """Change settings.

        Raises:
            ValueError: A setting is unknown or out of range. No setting changes.
        """
        self.settings = self.settings.updated(settings, self.defaults)

    def say(
        self, text: str, *, schema: Schema = None, tool_choice: str = "auto", **settings: "Unpack[ChatSettings]"
    ) -> Reply:
        """Send a message and return the complete reply. For arguments and errors see `stream`."""
        return self._complete(self.stream(text, schema=schema, tool_choice=tool_choice, **settings))

    def stream(
        self, text: str, *, schema: Schema = None, tool_choice: str = "auto", **settings: "Unpack[ChatSettings]"
    ) -> TextStream:
        """Send a message and stream the reply. Afterwards `last` is the reply.

        Args:
            text: The user message.
            schema: JSON schema of the reply. The reply is valid JSON unless its `end` is "length".
            tool_choice: "auto", "none", "required" (the reply begins with a call) or the name of a tool.
            settings: Fields of `ReplySettings`, for this reply only.

        Returns:
            A generator of text deltas. Closing it early or interrupting it by Ctrl-C keeps the generated text as the
            reply.

        Raises:
            ValueError: The text is empty or exceeds the context, a setting or the schema is invalid, or the chat
                template rejects the conversation (`TemplateRejectionError`). Raised by the call, before the
                conversation changes.
        """
        if not is_text(text) or not text.strip():
            raise ValueError(f"the message must be a string that is not blank, not {brief(text)}")
        return self._stream(Turn("user", text), self.settings.updated(settings, self.defaults), schema, tool_choice)

    def answer(self, results: Sequence[str], *, schema: Schema = None, **settings: "Unpack[ChatSettings]") -> Reply:
        """Send the results of the latest reply's calls and return the complete reply.

        Args:
            results: The result of each call in `last.calls`, as text.
            schema: As in `stream`.
            settings: Fields of `ReplySettings`, for this reply only.

        Raises:
            ValueError: The number of results differs from the number of calls; otherwise as in `stream`.
        """
        return self._complete(self.stream_answer(results, schema=schema, **settings))

    def stream_answer(
        self, results: Sequence[str], *, schema: Schema = None, **settings: "Unpack[ChatSettings]"
    ) -> TextStream:
        """Send the results of the latest reply's calls and stream the reply. For arguments and errors see `answer`."""
        reply = self.last
        if reply is None or not reply.calls or len(results) != len(reply.calls) or not all(map(is_text, results)):
            count = 0 if reply is None else len(reply.calls)
            raise ValueError(f"the latest reply has {count} calls: answer() requires one text for each")
        updated, turns = self.settings.updated(settings, self.defaults), list(self.turns)
        question, last = self.turns[-2:]
        self.turns = self.turns[:-2]
        try:
            return self._stream(question, updated, schema, "auto", steps_of(last, results))
        except ValueError:
            self.turns = turns
            raise

    def regenerate(self, *, schema: Schema = None, **settings: "Unpack[ChatSettings]") -> Reply:
        """Replace the latest reply. For arguments and errors see `stream`.

        Raises:
            ValueError: The conversation is empty.
        """
        return self._complete(self.stream_again(schema=schema, **settings))

    def stream_again(self, *, schema: Schema = None, **settings: "Unpack[ChatSettings]") -> TextStream:
        """Replace the latest reply and stream the new one. For arguments and errors see `stream`.

        Raises:
            ValueError: The conversation is empty.
        """
        if not self.turns:
            raise ValueError("there is no reply to regenerate: send a message first")
        updated, turns = self.settings.updated(settings, self.defaults), list(self.turns)
        question = self.turns[-2:][0]
        self.undo()
        try:
            return self._stream(question, updated, schema)
        except ValueError:
            self.turns = turns
            raise

    def undo(self) -> str:
        """Remove the latest message and its reply.

        Returns:
            The text of the message.

        Raises:
            ValueError: The conversation is empty.
        """
        if not self.turns:
            raise ValueError("there is no message to undo: the conversation is empty")
        question = self.turns[-2:][0]
        del self.turns[-2:]
        return question.text

    def clear(self) -> None:
        """Remove all messages. The system prompt and the settings remain."""
        self.turns = []

    def fork(self, exchanges: int | None = None) -> "Chat":
        """Copy the conversation.

        Args:
            exchanges: Number of messages with replies to copy from the start; None copies all.

        Returns:
            A new conversation with the same model, settings and prefix cache.

        Raises:
            ValueError: The conversation has fewer messages.
        """
        if exchanges is not None and whole("exchanges", exchanges, 0) > len(self.turns) // 2:
            raise ValueError(f"exchanges must be at most {len(self.turns) // 2}, the length of the conversation")
        fork = copy.copy(self)
        fork.turns = self.turns[: None if exchanges is None else 2 * exchanges]
        fork.events, fork._prefixes = [], list(self._prefixes)
        return fork

    # Replies

    def _complete(self, deltas: TextStream) -> Reply:
        with closing(deltas):
            for _ in deltas:
                pass
        reply = self.last
        assert reply is not None
        return reply

    def _stream(
        self, question: Turn, settings: ReplySettings, schema: Schema, tool_choice: str = "auto",
        steps: tuple[dict[str, Any], ...] = (),
    ) -> TextStream:  # fmt: skip
        """Check everything that can fail, then return the generator of the reply."""
        stop = StopCriteria.of(self.model, "auto", (*settings.stop, *self.template.stops), self.tokenizer)
        stop = replace(stop, ids=stop.ids | self.template.end_ids)
        tools = self._chosen(tool_choice)
        if tools:
            stop = replace(stop, ids=stop.ids | self.template.markup.end_ids)
        prompt = self._prompt(question, settings.max_new_tokens, steps, tools)
        grammar = self._grammar(tools, tool_choice, schema, prompt[0], stop.ids, settings.max_new_tokens)

        def run() -> TextStream:
            nonlocal prompt, grammar, steps
            for remaining in range(MAX_ROUNDS, -1, -1):
                yield from self._generate(question, settings, stop, prompt, steps, tools, grammar)
                turn = self.turns[-1]
                functions = {tool.name: tool for tool in tools if tool.function is not None}
                calls = () if turn.reply is None else turn.reply.calls
                if not calls or remaining == 0 or any(call.name not in functions for call in calls):
                    return
                steps = steps_of(turn, [functions[call.name].run(call) for call in calls])
                previous, self.turns = self.turns, self.turns[:-2]
                try:
                    prompt = self._prompt(question, settings.max_new_tokens, steps, tools)
                    grammar = self._grammar(tools, "auto", schema, prompt[0], stop.ids, settings.max_new_tokens)
                except ValueError:  # the results exceed the context: the reply remains as it is
                    self.turns = previous
                    raise

        return run()

    def _chosen(self, choice: str) -> tuple[Tool, ...]:
        """The tools that a reply can call. ValueError: there is no such tool."""
        if choice == "none":
            return ()
        chosen = tuple(tool for tool in self.tools if choice in ("auto", "required", tool.name))
        if not chosen and choice != "auto":
            names = ", ".join(tool.name for tool in self.tools) or "none"
            raise ValueError(f"tool_choice must be auto, none, required or a tool ({names}), not {choice!r}")
        return chosen

    def _grammar(
        self, tools: tuple[Tool, ...], choice: str, schema: Schema, ids: list[int], ends: frozenset[int],
        max_new_tokens: int,
    ) -> Grammar | LazyGrammar | None:  # fmt: skip
        """The grammar of a reply, if it has one. ValueError: it is invalid."""
        markup = self.template.markup
        if schema is None and not tools:
            return None
        try:
            if self._vocabulary is None:
                self._vocabulary = Vocabulary(self.tokenizer, self.model.config.vocab_size, ends)
        except ValueError:
            if schema is not None or choice != "auto":
                raise
            return None  # the tokenizer does not support grammars: calls are not constrained
        if not tools and not markup.reasons:
            return self._vocabulary.grammar(schema)
        schemas = schemas_of([tool.definition for tool in tools])
        required = bool(tools) and choice != "auto"
        budget = reasoning_budget(min(max_new_tokens, self.context - len(ids)))
        requirements = ToolChoice(required, True, begins_reasoning(markup, self._tail(ids)), budget, schema)
        return tool_grammar(self._vocabulary, markup, schemas, requirements)

    def _tail(self, ids: list[int]) -> str:
        """The end of a prompt, which can begin the reasoning."""
        tail: str = self.tokenizer.decode(ids[-64:], skip_special_tokens=False)
        return tail

    def _generate(
        self, question: Turn, settings: ReplySettings, stop: StopCriteria, prompt: tuple[list[int], int],
        steps: tuple[dict[str, Any], ...], tools: tuple[Tool, ...], grammar: Grammar | LazyGrammar | None,
    ) -> TextStream:  # fmt: skip
        """Generate one reply, and store it as the last turn."""
        ids, dropped = prompt
        [generator] = generators(1, None if settings.seed is None else (settings.seed + self.reply_count) % 2**63)
        self.reply_count += 1
        batch = self._batch()
        row = batch.admit(
            ids, min(settings.max_new_tokens, self.context - len(ids)), sampling=settings.sampling,
            generator=generator, stop=stop, logprobs=True, top=settings.top,
            matcher=None if grammar is None else grammar.matcher(),
        )  # fmt: skip
        seed = generator.initial_seed()
        index, events, deltas, parts = len(self.turns), list[Event](), list[str](), list[ReplyEvent]()
        self.events = events
        start = time.perf_counter()

        def new_ids() -> Iterator[int]:
            while len(batch):
                for event in batch.step():
                    events.append(event)
                    yield event.id

        self.turns.append(question)
        interrupted_step = True
        try:
            text = until(self._decoded(new_ids(), ids, tools, parts), stop.strings)
            for delta in without_leading_space(text) if self.template.kind == "plain" else text:
                deltas.append(delta)
                yield delta
            interrupted_step = False
        except GeneratorExit:  # raised between two steps
            interrupted_step = False
            raise
        finally:
            cached = batch.cached_tokens.get(row, 0)
            reply = Reply(
                "".join(deltas), [event.id for event in events], [event.logprob or 0.0 for event in events],
                [list(event.top) for event in events] if settings.top else [],
                (events[-1].end if events else None) or "interrupted", len(ids) - cached, cached, dropped,
                time.perf_counter() - start, seed, *reasoning_and_calls(parts, self.reply_count),
            )  # fmt: skip
            self.turns[index:] = [question, Turn("assistant", reply.text, reply, steps)]
            if interrupted_step:  # the batch's cache may be inconsistent
                self._prefixes = []
            else:
                batch.retire(row)
                self._prefixes = batch.prefixes

    def _decoded(
        self, new_ids: Iterator[int], prompt: list[int], tools: tuple[Tool, ...], parts: list[ReplyEvent]
    ) -> Iterator[str]:
        """The text of a reply. Its reasoning and calls are added to `parts`."""
        markup = self.template.markup
        if not tools and not markup.reasons:
            yield from decode_stream(self.tokenizer, new_ids, prompt)
            return
        schemas = schemas_of([tool.definition for tool in tools]) if tools else None
        parser = ReplyParser(markup, schemas, self._tail(prompt), prompt)
        for id in chain(new_ids, (None,)):
            for event in parser.close(cut=self._is_cut()) if id is None else parser.add(id):
                if event.kind == "content":
                    yield event.text
                    continue
                parts.append(event)
                if self.listener is not None:
                    self.listener(event)

    def _is_cut(self) -> bool:
        """Whether the reply ended by its maximum number of tokens."""
        return bool(self.events) and self.events[-1].end == "length"

    def _prompt(
        self, question: Turn, max_new_tokens: int, steps: tuple[dict[str, Any], ...] = (), tools: tuple[Tool, ...] = ()
    ) -> tuple[list[int], int]:
        """The prompt's token IDs, and the number of the oldest messages removed to fit the context.

        ValueError: the last message alone exceeds the context.
        """
        turns = [*self.turns, question]
        variables = self._variables() | ({"tools": [tool.definition for tool in tools]} if tools else {})
        # At most half of the context is reserved for the reply, so that a short context still includes previous turns.
        room = self.context - min(max_new_tokens, self.context // 2)
        for dropped in range(0, len(turns), 2):
            ids = self.template.encode([*self._messages(turns[dropped:]), *steps], **variables)
            if len(ids) <= room:
                return ids, dropped
        if len(ids) < self.context:
            return ids, len(turns) - 1
        raise ValueError(
            f"the message with the system prompt has {len(ids)} tokens, but the context has room for "
            f"{self.context - 1}: shorten it"
        )

    def _variables(self) -> dict[str, Any]:
        """Variables of the template for reasoning."""
        if self.thinking is None:
            return {}
        effort = {} if isinstance(self.thinking, bool) else {"reasoning_effort": self.thinking}
        switch = self.template.markup.switch
        return {**effort, **({switch: bool(self.thinking)} if switch else {})}

    def _batch(self) -> Batch:
        """A batch for one reply, with the prefix cache unless the weights have changed, for example by training."""
        weights = identity_of_weights(self.model)
        if weights != self._weights and self._disk is not None:
            self._disk.weights_changed()
        batch = Batch(self.model, 1, self.context, prefix_bytes=PREFIX_CACHE_BYTES, disk=self._disk)
        if weights == self._weights:
            batch.prefixes = self._prefixes
        self._weights = weights
        return batch

    # Files

    def to_json(self) -> dict[str, Any]:
        """The conversation as JSON data for `from_json`."""
        turns = [{"role": turn.role, "text": turn.text, "reply": turn.reply and asdict(turn.reply),
                  **({"steps": list(turn.steps)} if turn.steps else {})} for turn in self.turns]  # fmt: skip
        settings = {**asdict(self.settings), "stop": list(self.settings.stop)}
        return {"minhub_chat": 1, "system": self.system, "settings": settings, "made": self.reply_count, "turns": turns}

    def from_json(self, data: Any) -> None:
        """Replace the conversation, its system prompt and its settings by those in `data`.

        Args:
            data: Result of `to_json`.

        Raises:
            ValueError: The data is not a saved chat. The conversation does not change.
        """
        try:
            if data["minhub_chat"] != 1:
                raise ValueError("another version of this package wrote it")
            system, reply_count = check_system(data["system"]), whole("made", data["made"], 0)
            saved = dict(data["settings"])
            if saved.get("logit_bias"):  # JSON's keys are strings
                saved["logit_bias"] = {int(id): bias for id, bias in saved["logit_bias"].items()}
            settings = ReplySettings(**self.defaults).updated(saved, self.defaults)
            turns = [parse_turn(turn) for turn in data["turns"]]
            if [turn.role for turn in turns] != ["user", "assistant"] * (len(turns) // 2):
                raise ValueError("user and assistant messages do not alternate")
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"not a saved chat: {error}") from error
        self.system, self.settings, self.reply_count, self.turns = system, settings, reply_count, turns

    def save(self, path: str | Path) -> None:
        """Write the conversation to a JSON file.

        Raises:
            OSError: The file cannot be written.
        """
        text = json.dumps(self.to_json(), ensure_ascii=False, indent=1)
        Path(path).write_text(text + "\n", encoding="utf-8", errors="backslashreplace")

    def load(self, path: str | Path) -> None:
        """Replace the conversation by the one in a file that `save` wrote.

        Raises:
            ValueError: The file is not a saved chat. The conversation does not change.
            OSError: The file cannot be read.
        """
        try:
            self.from_json(json.loads(Path(path).read_text(encoding="utf-8")))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: not a saved chat: invalid JSON") from error
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def steps_of(turn: Turn, results: Sequence[str]) -> tuple[dict[str, Any], ...]:
    """The messages of a reply with calls and of their results, after those of previous calls."""
    calls = turn.reply.calls if turn.reply is not None else ()
    answers = ({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": result}
               for call, result in zip(calls, results, strict=True))  # fmt: skip
    return (*turn.steps, turn.message, *answers)


def reasoning_and_calls(parts: Sequence[ReplyEvent], number: int) -> tuple[str, tuple[ToolCall, ...]]:
    """The reasoning and the calls of a reply. number: of the reply in its chat, for the IDs of calls."""
    calls = [part for part in parts if part.kind == "call"]
    return "".join(part.text for part in parts if part.kind == "reasoning"), tuple(
        ToolCall(f"c{number:05d}{index:03d}", call.text, parse_arguments(call.arguments))
        for index, call in enumerate(calls)
    )


def without_leading_space(deltas: Iterator[str]) -> Iterator[str]:
    """Text deltas without the space that follows `Assistant:` in a plain dialogue."""
    for delta in deltas:
        if stripped := delta.lstrip():
            yield stripped
            break
    yield from deltas


def check_system(system: Any) -> str | None:
    """A system prompt; None if it is empty. ValueError: it is not a string."""
    if system is not None and not is_text(system):
        raise ValueError(f"system must be a string, not {brief(system)}")
    return system or None
