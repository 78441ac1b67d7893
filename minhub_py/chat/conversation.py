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
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, fields, replace
from os import PathLike
from pathlib import Path
from reprlib import repr as brief
from typing import TYPE_CHECKING, Any, Literal

from minhub_py.chat.defaults import default_sampling
from minhub_py.chat.templates import ChatTemplate, chat_template_of
from minhub_py.checkpoints.tokenizers.tokenizer import decode_stream, tokenizer_from_pretrained, until
from minhub_py.inference.arguments import check_tokenizer, decoder_of, is_text, is_whole, whole
from minhub_py.inference.batch import Batch, Event
from minhub_py.inference.disk_cache import DiskCache
from minhub_py.inference.grammar import Vocabulary
from minhub_py.inference.limits import stop_strings
from minhub_py.inference.prefixes import CachedPrefix, identity_of_weights
from minhub_py.inference.sampling import Sampling, StopCriteria, generators
from minhub_py.pretrained import from_pretrained
from minhub_py.system import html

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from minhub_py.entry_points import ChatSettings

TextStream = Generator[str, None, None]
Schema = Mapping[str, Any] | None
MAX_DEFAULT_CONTEXT = 8192  # the KV cache of a longer default could exceed the memory
PREFIX_CACHE_BYTES = 2**29
SHOWN_FIELDS = ("temperature", "top_k", "top_p", "repetition_penalty")
SAMPLING_FIELDS = Sampling.names()


@dataclass(frozen=True)
class ReplySettings:
    """ReplySettings of replies.

    Attributes:
        max_new_tokens: Maximum number of tokens in a reply.
        temperature: Sampling temperature; 0 is greedy. `Chat` replaces "auto" in a sampling setting by the default of
            the model (chat/defaults.py).
        top_k: Number of most likely tokens to sample from.
        top_p: Cumulative probability of the most likely tokens to sample from.
        repetition_penalty: Penalty of tokens that the text already contains; 1 has no effect.
        min_p: Minimum probability of tokens, as a fraction of the most likely token's.
        presence_penalty: Penalty of tokens that the reply already contains; 0 has no effect.
        frequency_penalty: Penalty for each time that the reply contains a token; 0 has no effect.
        logit_bias: Numbers that are added to the logits of token IDs.
        seed: Seed of the first reply, increased by 1 for each further reply. None draws a seed for each reply from
            PyTorch's default generator.
        stop: Strings that end a reply.
        top: Number of most likely tokens to record at each position.
    """

    max_new_tokens: int = 512
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0
    min_p: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    top: int = 0

    def updated(self, changes: Mapping[str, Any], defaults: Mapping[str, Any]) -> "ReplySettings":
        """A copy with `changes`; "auto" selects the value in `defaults`. ValueError: an unknown or invalid setting."""
        names = [field.name for field in fields(self)]
        if unknown := [name for name in changes if name not in names]:
            raise ValueError(f"unknown setting {unknown[0]}; the settings of a chat are {', '.join(names)}")
        changes = {name: defaults.get(name, value) if is_text(value) and value == "auto" else value
                   for name, value in changes.items()}  # fmt: skip
        if "stop" in changes:
            changes = {**changes, "stop": stop_strings(changes["stop"])}
        settings = replace(self, **changes)
        whole("max_new_tokens", settings.max_new_tokens, 1)
        whole("top", settings.top, 0)
        if not is_whole(settings.seed) and settings.seed is not None:
            raise ValueError(f"seed must be a whole number or None, not {brief(settings.seed)}")
        generators(1, settings.seed)
        _ = settings.sampling
        return settings

    @property
    def sampling(self) -> Sampling:
        """The sampling settings. ValueError: a setting is out of range."""
        return Sampling(**{name: getattr(self, name) for name in SAMPLING_FIELDS})


@dataclass(frozen=True)
class Reply:
    """A reply of the model. `str(reply)` is its text.

    Attributes:
        text: Text without the stop string or the end token.
        ids: Token IDs, including the end token.
        logprobs: Log-probability of each token in nats, before temperature and other sampling settings.
        top: For each token the `ReplySettings.top` most likely tokens as (ID, log-probability) in descending order.
        end: Reason of the end: "stop" (end token or stop string), "length" (max_new_tokens or the context) or
            "interrupted".
        read: Number of prompt tokens that were computed.
        kept: Number of prompt tokens copied from the prefix cache.
        dropped: Number of the oldest messages removed from the prompt to fit the context.
        seconds: Duration, including the prefill.
        seed: Seed that reproduces the reply.
    """

    text: str
    ids: list[int]
    logprobs: list[float]
    top: list[list[tuple[int, float]]]
    end: Literal["stop", "length", "interrupted"]
    read: int
    kept: int
    dropped: int
    seconds: float
    seed: int

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        numbers = f"{len(self.ids)} tokens in {self.seconds:.2f} s, end={self.end!r}"
        return f"<Reply {shorten(self.text)}: {numbers}>"

    def _repr_html_(self) -> str:
        numbers = [f"{len(self.ids)} tokens in {self.seconds:.2f} s", f"end: {self.end}", f"seed {self.seed}"]
        return html.text(self.text) + html.note(numbers)

    @property
    def speed(self) -> float:
        """Generated tokens per second, including the prefill."""
        return len(self.ids) / max(self.seconds, 1e-9)


@dataclass(frozen=True)
class Turn:
    """A message of a conversation. `reply` has the details of an assistant message."""

    role: str
    text: str
    reply: Reply | None = None

    @property
    def message(self) -> dict[str, str]:
        """The message in the format of chat templates."""
        return {"role": self.role, "content": self.text}


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
        settings: Fields of `ReplySettings`. Sampling settings default to the model's generation_config.json, and
            without one to temperature 0.7 and top_p 0.95.

    Attributes:
        turns: Messages, without the system prompt.
        events: Events of the latest reply, also while it is generated.
        reply_count: Number of replies generated so far, including replaced ones. It determines the next reply's seed.

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
    def messages(self) -> list[dict[str, str]]:
        """The messages in the format of chat templates, including the system prompt."""
        return self._messages(self.turns)

    def _messages(self, turns: list[Turn]) -> list[dict[str, str]]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *(turn.message for turn in turns)]

    def set(self, **settings: "Unpack[ChatSettings]") -> None:
        """Change settings.

        Raises:
            ValueError: A setting is unknown or out of range. No setting changes.
        """
        self.settings = self.settings.updated(settings, self.defaults)

    def say(self, text: str, *, schema: Schema = None, **settings: "Unpack[ChatSettings]") -> Reply:
        """Send a message and return the complete reply. For arguments and errors see `stream`."""
        return self._complete(self.stream(text, schema=schema, **settings))

    def stream(self, text: str, *, schema: Schema = None, **settings: "Unpack[ChatSettings]") -> TextStream:
        """Send a message and stream the reply. Afterwards `last` is the reply.

        Args:
            text: The user message.
            schema: JSON schema of the reply. The reply is valid JSON unless its `end` is "length".
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
        return self._stream(Turn("user", text), self.settings.updated(settings, self.defaults), schema)

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

    def _stream(self, question: Turn, settings: ReplySettings, schema: Schema) -> TextStream:
        """Check everything that can fail, then return the generator of the reply."""
        stop = StopCriteria.of(self.model, "auto", (*settings.stop, *self.template.stops), self.tokenizer)
        stop = replace(stop, ids=stop.ids | self.template.end_ids)
        matcher = None
        if schema is not None:
            if self._vocabulary is None:
                self._vocabulary = Vocabulary(self.tokenizer, self.model.config.vocab_size, stop.ids)
            matcher = self._vocabulary.grammar(schema).matcher()
        ids, dropped = self._prompt(question, settings.max_new_tokens)
        [generator] = generators(1, None if settings.seed is None else (settings.seed + self.reply_count) % 2**63)

        def run() -> TextStream:
            self.reply_count += 1
            batch = self._batch()
            row = batch.admit(
                ids, min(settings.max_new_tokens, self.context - len(ids)), sampling=settings.sampling,
                generator=generator, stop=stop, logprobs=True, top=settings.top, matcher=matcher,
            )  # fmt: skip
            seed = generator.initial_seed()
            index, events, deltas = len(self.turns), list[Event](), list[str]()
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
                text = until(decode_stream(self.tokenizer, new_ids(), ids), stop.strings)
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
                    time.perf_counter() - start, seed,
                )  # fmt: skip
                self.turns[index:] = [question, Turn("assistant", reply.text, reply)]
                if interrupted_step:  # the batch's cache may be inconsistent
                    self._prefixes = []
                else:
                    batch.retire(row)
                    self._prefixes = batch.prefixes

        return run()

    def _prompt(self, question: Turn, max_new_tokens: int) -> tuple[list[int], int]:
        """The prompt's token IDs, and the number of the oldest messages removed to fit the context.

        ValueError: the last message alone exceeds the context.
        """
        turns = [*self.turns, question]
        # At most half of the context is reserved for the reply, so that a short context still includes previous turns.
        room = self.context - min(max_new_tokens, self.context // 2)
        for dropped in range(0, len(turns), 2):
            ids = self.template.encode(self._messages(turns[dropped:]))
            if len(ids) <= room:
                return ids, dropped
        if len(ids) < self.context:
            return ids, len(turns) - 1
        raise ValueError(
            f"the message with the system prompt has {len(ids)} tokens, but the context has room for "
            f"{self.context - 1}: shorten it"
        )

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
        turns = [{"role": turn.role, "text": turn.text, "reply": turn.reply and asdict(turn.reply)}
                 for turn in self.turns]  # fmt: skip
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


def without_leading_space(deltas: Iterator[str]) -> Iterator[str]:
    """Text deltas without the space that follows `Assistant:` in a plain dialogue."""
    for delta in deltas:
        if stripped := delta.lstrip():
            yield stripped
            break
    yield from deltas


def shorten(text: str, limit: int = 60) -> str:
    """The beginning of a text on one line, in quotes."""
    return repr(text if len(text) <= limit else text[: limit - 1] + "…")


def check_system(system: Any) -> str | None:
    """A system prompt; None if it is empty. ValueError: it is not a string."""
    if system is not None and not is_text(system):
        raise ValueError(f"system must be a string, not {brief(system)}")
    return system or None


def parse_turn(data: Any) -> Turn:
    """A turn of a saved chat. KeyError, TypeError, ValueError: it is invalid."""
    reply = data["reply"]
    if not is_text(data["text"]) or (reply is None) != (data["role"] == "user"):
        raise ValueError(f"invalid turn {brief(data)}")
    if reply is not None:
        top = [[(int(id), float(logprob)) for id, logprob in tokens] for tokens in reply["top"]]
        reply = Reply(**{**reply, "top": top})
    return Turn(data["role"], data["text"], reply)
