"""Conversations with a model.

    from minhub_py import Chat

    chat = Chat("owner/name", system="Be brief.", seed=1)
    print(chat.say("Good morning!").text)
    for delta in chat.stream("How do you feel today?"):
        print(delta, end="", flush=True)

The model's chat template renders the complete conversation for each reply. The prompt's longest
prefix in the prefix cache is not computed again. This does not change the reply (see Determinism in
inference/batch.py): a seed gives the same reply whether the previous turns are cached or
recomputed.
"""

import copy
import json
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from reprlib import repr as brief
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from minhub_py.chat.defaults import default_sampling
from minhub_py.chat.functions import Tool, parse_tools
from minhub_py.chat.generation import ChatPrompt, ReplyGeneration, ReplyGenerator
from minhub_py.chat.reply_parser import ReplyEvent
from minhub_py.chat.templates import ChatTemplate, chat_template_of
from minhub_py.chat.turns import (
    SHOWN_FIELDS,
    ChatSettings,
    Reply,
    ReplySettings,
    Turn,
    shorten,
    steps_of,
)
from minhub_py.checkpoints.tokenizers.tokenizer import tokenizer_from_pretrained
from minhub_py.inference.arguments import check_integer, check_tokenizer, decoder_of, is_text
from minhub_py.inference.batch import Event
from minhub_py.inference.disk_cache import DiskCache
from minhub_py.inference.sampling import Sampling
from minhub_py.loading.pretrained import from_pretrained
from minhub_py.system.json_text import JsonMapping, JsonObject
from minhub_py.system.shapes import Within, convert, read_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from typing_extensions import Unpack

    from minhub_py.models.base import LanguageModel

TextStream = Generator[str, None, None]
Schema = JsonMapping | None
MAX_DEFAULT_CONTEXT = 8192  # the KV cache of a longer default could exceed the memory
EXCHANGE = [("user", True), ("assistant", False)]  # roles, and whether the turn has no reply
MAX_ROUNDS = 10  # of calls in one reply


class Chat:
    """A conversation with a model.

    Args:
        model: Decoder-only language model of this package, or a name that `from_pretrained` loads:
            "owner/name", a folder, or a GGUF file.
        tokenizer: The model's `tokenizers.Tokenizer`. By default, the tokenizer of the name.
        system: System prompt.
        template: Chat template; the default is loaded from the tokenizer's folder or GGUF file.
        context: Maximum number of tokens of a prompt and its reply; by default the model's, at most
            8192.
        cache_dir: Folder in which the prefix cache is also stored, so that it survives the program;
            replies do not change. Created if it is missing. The first reply hashes the weights.
        cache_size: Maximum size of `cache_dir` in bytes. The least recently used prefixes are
            deleted.
        tools: Functions that the model can call, with type hints and docstrings; the chat calls
            them. A definition, `{"name": …, "description": …, "parameters": …}`, is a tool that the
            caller runs (see `answer`).
        thinking: Whether the model reasons before replies, or an effort such as "low". None is the
            template's default.
        settings: Fields of `ReplySettings`. Sampling settings default to the model's
            generation_config.json, and without one to temperature 0.7 and top_p 0.95.

    Attributes:
        turns: Messages, without the system prompt.
        events: Events of the latest reply, also while it is generated.
        reply_count: Number of replies generated so far, including replaced ones. It determines the
            next reply's seed.
        listener: Function that receives the events of reasoning and calls (`ReplyEvent`) during a
            reply.

    Raises:
        ValueError: The model or tokenizer has the wrong type, the model is an encoder-decoder, a
            setting is invalid, or `cache_dir` cannot be written.
    """

    def __init__(
        self,
        model: "LanguageModel | str | PathLike[str]",
        tokenizer: "Tokenizer | None" = None,
        system: str | None = None,
        *,
        template: ChatTemplate | None = None,
        context: int | None = None,
        cache_dir: str | Path | None = None,
        cache_size: int = 10**10,
        tools: Sequence[object] | None = None,
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
        self.context = min(
            maximum,
            MAX_DEFAULT_CONTEXT if context is None else check_integer("context", context, 2),
        )
        self.defaults = default_sampling(self.model)
        self.settings = ReplySettings(**self.defaults).updated(settings, self.defaults)
        self.turns: list[Turn] = []
        self.events: list[Event] = []
        self.reply_count = 0
        self.tools, self.thinking = parse_tools(tools), thinking
        self.listener: Callable[[ReplyEvent], object] | None = None
        disk = (
            None
            if cache_dir is None
            else DiskCache(cache_dir, check_integer("cache_size", cache_size, 1))
        )
        self._generator = ReplyGenerator(
            self.model, self.tokenizer, self.template, self.context, disk
        )

    def __repr__(self) -> str:
        count = len(self.turns) // 2
        model = (
            f"{type(self.model).__name__}, {count} message{'' if count == 1 else 's'} with replies"
        )
        system = f", system prompt {shorten(self.system)}" if self.system else ""
        neutral = Sampling()
        values = ", ".join(
            f"{name}={value!r}"
            for name, value in vars(self.settings.sampling).items()
            if name in SHOWN_FIELDS or value != getattr(neutral, name)
        )
        return f"<Chat with {model}{system}, {values}>"

    @property
    def last(self) -> Reply | None:
        """The latest reply."""
        return next((turn.reply for turn in reversed(self.turns) if turn.reply), None)

    @property
    def messages(self) -> list[JsonObject]:
        """The messages in the format of chat templates, including the system prompt."""
        return self._messages(self.turns)

    def _messages(self, turns: list[Turn]) -> list[JsonObject]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *(message for turn in turns for message in (*turn.steps, turn.message))]

    def set(self, **settings: "Unpack[ChatSettings]") -> None:
        """Change settings.

        Raises:
            ValueError: A setting is unknown or out of range. No setting changes.
        """
        self.settings = self.settings.updated(settings, self.defaults)

    def say(
        self,
        text: str,
        *,
        schema: Schema = None,
        tool_choice: str = "auto",
        **settings: "Unpack[ChatSettings]",
    ) -> Reply:
        """Send a message and return the complete reply. For arguments and errors see `stream`."""
        return self._complete(self.stream(text, schema=schema, tool_choice=tool_choice, **settings))

    def stream(
        self,
        text: str,
        *,
        schema: Schema = None,
        tool_choice: str = "auto",
        **settings: "Unpack[ChatSettings]",
    ) -> TextStream:
        """Send a message and stream the reply. Afterwards `last` is the reply.

        Args:
            text: The user message.
            schema: JSON schema of the reply. The reply is valid JSON unless its `end` is "length".
                Objects that list `properties` have no others, unless the schema has
                `"additionalProperties": True`.
            tool_choice: "auto", "none", "required" (the reply begins with a call) or the name of a
                tool (the reply is one call of it).
            settings: Fields of `ReplySettings`, for this reply only.

        Returns:
            A generator of text deltas. Closing it early or interrupting it by Ctrl-C keeps the
            generated text as the reply.

        Raises:
            ValueError: The text is empty or exceeds the context, a setting or the schema is
                invalid, or the chat template rejects the conversation (`TemplateRejectionError`).
                Raised by the call, before the conversation changes.
        """
        if not is_text(text) or not text.strip():
            raise ValueError(f"the message must be a string that is not blank, not {brief(text)}")
        return self._stream(
            Turn("user", text), self.settings.updated(settings, self.defaults), schema, tool_choice
        )

    def answer(
        self, results: Sequence[str], *, schema: Schema = None, **settings: "Unpack[ChatSettings]"
    ) -> Reply:
        """Send the results of the latest reply's calls and return the complete reply.

        Args:
            results: The result of each call in `last.calls`, as text.
            schema: As in `stream`.
            settings: Fields of `ReplySettings`, for this reply only.

        Raises:
            ValueError: The number of results differs from the number of calls; otherwise as in
                `stream`.
        """
        return self._complete(self.stream_answer(results, schema=schema, **settings))

    def stream_answer(
        self, results: Sequence[str], *, schema: Schema = None, **settings: "Unpack[ChatSettings]"
    ) -> TextStream:
        """Send the results of the latest reply's calls and stream the reply. For arguments and
        errors see `answer`.
        """
        reply = self.last
        if (
            reply is None
            or not reply.calls
            or len(results) != len(reply.calls)
            or not all(map(is_text, results))
        ):
            count = 0 if reply is None else len(reply.calls)
            raise ValueError(
                f"the latest reply has {count} calls: answer() requires one text for each"
            )
        return self._stream_last(
            self.settings.updated(settings, self.defaults),
            schema,
            steps_of(self.turns[-1], results),
        )

    def regenerate(self, *, schema: Schema = None, **settings: "Unpack[ChatSettings]") -> Reply:
        """Replace the latest reply. For arguments and errors see `stream`.

        Raises:
            ValueError: The conversation is empty.
        """
        return self._complete(self.stream_again(schema=schema, **settings))

    def stream_again(
        self, *, schema: Schema = None, **settings: "Unpack[ChatSettings]"
    ) -> TextStream:
        """Replace the latest reply and stream the new one. For arguments and errors see `stream`.

        Raises:
            ValueError: The conversation is empty.
        """
        if not self.turns:
            raise ValueError("there is no reply to regenerate: send a message first")
        return self._stream_last(self.settings.updated(settings, self.defaults), schema)

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
        if (
            exchanges is not None
            and check_integer("exchanges", exchanges, 0) > len(self.turns) // 2
        ):
            raise ValueError(
                f"exchanges must be at most {len(self.turns) // 2}, the length of the conversation"
            )
        fork = copy.copy(self)
        fork.turns = self.turns[: None if exchanges is None else 2 * exchanges]
        fork.events, fork._generator = [], self._generator.copy()
        return fork

    # Replies

    def _complete(self, deltas: TextStream) -> Reply:
        with closing(deltas):
            for _ in deltas:
                pass
        reply = self.last
        assert reply is not None
        return reply

    def _stream_last(
        self, settings: ReplySettings, schema: Schema, steps: tuple[JsonObject, ...] = ()
    ) -> TextStream:
        """Stream a reply in place of the latest one, or after `steps`. ValueError: the conversation
        does not change.
        """
        turns = list(self.turns)
        question = self.turns[-2:][0]
        del self.turns[-2:]
        try:
            return self._stream(question, settings, schema, steps=steps)
        except ValueError:
            self.turns = turns
            raise

    def _stream(
        self,
        question: Turn,
        settings: ReplySettings,
        schema: Schema,
        tool_choice: str = "auto",
        steps: tuple[JsonObject, ...] = (),
    ) -> TextStream:
        """Check everything that can fail, then return the generator of the reply."""
        tools = self._chosen(tool_choice)
        functions = {tool.name: tool for tool in tools if tool.function is not None}

        def prompt(required: bool) -> ChatPrompt:
            ids, dropped = self._prompt(question, settings.max_new_tokens, steps, tools)
            # the name of a tool requests one call
            parallel = not required or tool_choice == "required"
            return self._generator.prompt(
                ids, dropped, settings, tools, required=required, parallel=parallel, schema=schema
            )

        prepared = prompt(tool_choice != "auto")

        def run() -> TextStream:
            nonlocal prepared, steps
            for remaining in range(MAX_ROUNDS, -1, -1):
                yield from self._generate(question, prepared, steps)
                turn = self.turns[-1]
                calls = () if turn.reply is None else turn.reply.calls
                if not calls or remaining == 0 or any(call.name not in functions for call in calls):
                    return
                steps = steps_of(turn, [functions[call.name].run(call) for call in calls])
                previous, self.turns = self.turns, self.turns[:-2]
                try:
                    prepared = prompt(required=False)
                except ValueError:  # the results exceed the context: the reply remains as it is
                    self.turns = previous
                    raise

        return run()

    def _chosen(self, choice: str) -> tuple[Tool, ...]:
        """The tools that a reply can call. ValueError: the tool is unknown."""
        if choice == "none":
            return ()
        chosen = tuple(tool for tool in self.tools if choice in ("auto", "required", tool.name))
        if not chosen and choice != "auto":
            names = ", ".join(tool.name for tool in self.tools) or "none"
            raise ValueError(
                f"tool_choice must be auto, none, required or a tool ({names}), not {choice!r}"
            )
        return chosen

    def _generate(
        self, question: Turn, prompt: ChatPrompt, steps: tuple[JsonObject, ...]
    ) -> TextStream:
        """Generate one reply, and store it as the last turn."""
        generation = ReplyGeneration(self._generator, prompt, self.reply_count, self._notify)
        self.reply_count += 1
        self.events, index = generation.events, len(self.turns)
        self.turns.append(question)
        try:
            yield from generation.deltas()
        finally:
            reply = generation.reply()
            self.turns[index:] = [question, Turn("assistant", reply.text, reply, steps)]

    def _notify(self, event: ReplyEvent) -> None:
        if self.listener is not None:
            self.listener(event)

    def _prompt(
        self,
        question: Turn,
        max_new_tokens: int,
        steps: tuple[JsonObject, ...] = (),
        tools: tuple[Tool, ...] = (),
    ) -> tuple[list[int], int]:
        """The prompt's token IDs, and the number of the oldest messages removed to fit the context.

        ValueError: the last message alone exceeds the context.
        """
        turns = [*self.turns, question]
        variables = self._variables() | (
            {"tools": [tool.definition for tool in tools]} if tools else {}
        )
        # At most half of the context is reserved for the reply, so that a short context still
        # includes previous turns.
        room = self.context - min(max_new_tokens, self.context // 2)
        for dropped in range(0, len(turns), 2):
            ids = self.template.encode([*self._messages(turns[dropped:]), *steps], **variables)
            if len(ids) <= room:
                return ids, dropped
        if len(ids) < self.context:
            return ids, len(turns) - 1
        raise ValueError(
            f"the message with the system prompt has {len(ids)} tokens, but the context has room"
            f" for {self.context - 1}: shorten it"
        )

    def _variables(self) -> JsonObject:
        """Variables of the template for reasoning."""
        if self.thinking is None:
            return {}
        effort = {} if isinstance(self.thinking, bool) else {"reasoning_effort": self.thinking}
        switch = self.template.markup.switch
        return {**effort, **({switch: bool(self.thinking)} if switch else {})}

    # Files

    def to_json(self) -> JsonObject:
        """The conversation as JSON data for `from_json`."""
        turns = [
            {
                "role": turn.role,
                "text": turn.text,
                "reply": turn.reply and asdict(turn.reply),
                **({"steps": list(turn.steps)} if turn.steps else {}),
            }
            for turn in self.turns
        ]
        settings = {**asdict(self.settings), "stop": list(self.settings.stop)}
        return {
            "minhub_chat": 1,
            "system": self.system,
            "settings": settings,
            "made": self.reply_count,
            "turns": turns,
        }

    def from_json(self, data: object) -> None:
        """Replace the conversation, its system prompt and its settings by those in `data`.

        Args:
            data: Result of `to_json`.

        Raises:
            ValueError: The data is not a saved chat. The conversation does not change.
        """
        self.system, self.settings, self.reply_count, self.turns = parse_saved(data, self.defaults)

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
        data = read_json(Path(path), Any, advice="load a file that `save` wrote")
        try:
            self.from_json(data)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


class SavedSettings(TypedDict, total=False):
    """The settings whose form in JSON differs; `ReplySettings.updated` checks the others."""

    logit_bias: dict[str, float]


class SavedChat(TypedDict):
    """A saved chat. made: number of replies."""

    minhub_chat: int
    system: str | None
    settings: SavedSettings
    made: Annotated[int, Within(0)]
    turns: list[Turn]


def parse_saved(
    data: object, defaults: JsonMapping
) -> tuple[str | None, ReplySettings, int, list[Turn]]:
    """System prompt, settings, number of replies and turns of a saved chat. ValueError: it is
    invalid.
    """
    try:
        chat: SavedChat = convert(data, SavedChat)
        if chat["minhub_chat"] != 1:
            raise ValueError("another version of this package wrote it")
        saved: JsonObject = {**chat["settings"]}
        if saved.get("logit_bias"):  # JSON's keys are strings
            saved["logit_bias"] = {int(id): bias for id, bias in saved["logit_bias"].items()}
        settings = ReplySettings(**defaults).updated(saved, defaults)
        if [(turn.role, turn.reply is None) for turn in chat["turns"]] != EXCHANGE * (
            len(chat["turns"]) // 2
        ):
            raise ValueError("user and assistant messages do not alternate")
    except ValueError as error:
        raise ValueError(f"not a saved chat: {error}") from error
    return check_system(chat["system"]), settings, chat["made"], chat["turns"]


def check_system(system: object) -> str | None:
    """A system prompt; None if it is empty. ValueError: it is not a string."""
    if not isinstance(system, str | None):
        raise ValueError(f"system must be a string, not {brief(system)}")
    return system or None
