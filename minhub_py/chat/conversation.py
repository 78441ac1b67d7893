"""A conversation with a model: turns, replies, and what the model has read of them.

    from minhub_py import Chat, from_pretrained, tokenizer_from_pretrained

    chat = Chat(from_pretrained(name), tokenizer_from_pretrained(name), system="Be brief.", seed=1)
    print(chat.say("Good morning!").text)
    for piece in chat.stream("How do you feel today?"):
        print(piece, end="", flush=True)

Each turn is rendered as a whole by the model's chat template, and only the ids after the longest beginning that the
model has read already are computed. That changes no bit of a reply (inference/batch.py says where it is so): the same
seed gives the same reply, whether the turns before it were computed now or kept.
"""

import json
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from reprlib import repr as brief
from typing import Any, Literal

from minhub_py.chat.defaults import default_sampling
from minhub_py.chat.templates import ChatTemplate, chat_template_of
from minhub_py.checkpoints.tokenizers.tokenizer import decode_stream, until
from minhub_py.inference.arguments import check_tokenizer, is_text, is_whole, model_of, whole
from minhub_py.inference.batch import Batch, CachedPrefix, Event
from minhub_py.inference.grammar import Grammar, Vocabulary
from minhub_py.inference.limits import stop_strings
from minhub_py.inference.sampling import Sampling, StopCriteria, generators

End = Literal["stop", "length", "interrupted"]
Pieces = Generator[str, None, None]
Schema = Mapping[str, Any] | None
# Positions of a conversation, unless asked for others: of a model with a long context the keys would fill the memory.
POSITIONS = 8192
KEEP = 2**29  # bytes of keys and values of earlier turns
SAMPLING = ("temperature", "top_k", "top_p", "repetition_penalty")


@dataclass(frozen=True)
class Settings:
    """How replies are made; `stream` in inference/generate.py says what each setting does.

    temperature, top_k, top_p, repetition_penalty: "auto", a chat's default, takes the value in generation_config.json;
    without such values, temperature is 0.7 and top_p 0.95 (chat/defaults.py).
    seed: of all replies, the n-th of which has a number of its own; None draws one for each from PyTorch's generator.
    top: how many of the likeliest ids are kept for each id of a reply.
    """

    max_new_tokens: int = 512
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    top: int = 0

    @classmethod
    def of(cls, changes: dict[str, Any], before: "Settings", defaults: Mapping[str, Any]) -> "Settings":
        """Settings with some changed, "auto" to their values in `defaults`.

        ValueError: one is unknown, or out of its range.
        """
        known = [each.name for each in fields(cls)]
        if unknown := [name for name in changes if name not in known]:
            raise ValueError(f"a chat has no setting {unknown[0]}; it has {', '.join(known)}")
        changes = {name: defaults.get(name, value) if is_auto(value) else value for name, value in changes.items()}
        if "stop" in changes:
            changes["stop"] = stop_strings(changes["stop"])
        found = replace(before, **changes)
        whole("max_new_tokens", found.max_new_tokens, 1)
        whole("top", found.top, 0)
        generators(1, found.seed)
        if not is_whole(found.seed) and found.seed is not None:
            raise ValueError(f"a chat has one seed, not {brief(found.seed)}")
        _ = found.sampling
        return found

    @property
    def sampling(self) -> Sampling:
        """How an id is chosen. ValueError: a setting is out of its range."""
        return Sampling(**{name: getattr(self, name) for name in SAMPLING})


@dataclass(frozen=True)
class Reply:
    """The answer of a model. `str` is its text.

    ids: with the one that ended it.    logprobs: of each id, in nats, before temperature and the like.
    top: for each id the likeliest ones in its place with their log-probabilities, where they were asked for.
    end: "stop" by the model itself or a stop string, "length" by max_new_tokens or the context, or "interrupted".
    read: ids of the prompt that were computed; `kept` were not, as the model had read them before.
    dropped: messages that no longer fit the context, and that the model has not seen.
    """

    text: str
    ids: list[int]
    logprobs: list[float]
    top: list[list[tuple[int, float]]]
    end: End
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

    @property
    def speed(self) -> float:
        """New ids a second, the reading of the prompt included."""
        return len(self.ids) / max(self.seconds, 1e-9)


@dataclass(frozen=True)
class Turn:
    """One message of a conversation; of the model's own, how it was made, too."""

    role: str
    text: str
    reply: Reply | None = None

    @property
    def message(self) -> dict[str, str]:
        """As chat templates have it."""
        return {"role": self.role, "content": self.text}


class Chat:
    """A conversation with a model.

    system: what the model is told before it begins.    template: as `chat_template_of` gives; None finds the model's.
    context: the most ids of a prompt and its reply; None: the model's own, and at most 8192.
    Further arguments: fields of `Settings`; `set` changes them later, `say` and `stream` for one reply. By default the
    sampling settings are the model's own (generation_config.json), else temperature 0.7 and top_p 0.95.

    turns: what was said, without the system prompt.    last: the newest reply, or None.

    ValueError: no model of this package or no tokenizer, a setting out of its range, an encoder-decoder.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        system: str | None = None,
        *,
        template: ChatTemplate | None = None,
        context: int | None = None,
        **settings: Any,
    ) -> None:
        self.model = model_of(model, "Chat()")
        check_tokenizer(tokenizer, "decode")
        if self.model.encoder_decoder:
            raise ValueError("this model answers single texts and keeps no conversation: generate() is for it")
        self.tokenizer, self.system = tokenizer, checked_system(system)
        self.template = template or chat_template_of(None, tokenizer)
        most: int = self.model.config.context_length or POSITIONS
        self.context = min(most, POSITIONS) if context is None else min(whole("context", context, 2), most)
        self.defaults = default_sampling(self.model)
        self.settings = Settings.of(settings, Settings(**self.defaults), self.defaults)
        self.turns: list[Turn] = []
        self.events: list[Event] = []  # of the newest reply, as far as it is made
        self.made = 0  # replies so far, those of other tries too: the n-th has the seed's n-th number
        self._kept: list[CachedPrefix] = []
        self._read_by: Any = None
        self._vocabulary: Vocabulary | None = None

    def __repr__(self) -> str:
        model = f"{type(self.model).__name__}, {len(self.turns) // 2} messages with replies"
        system = f", system prompt {shorten(self.system)}" if self.system else ""
        values = ", ".join(f"{name}={getattr(self.settings, name)!r}" for name in SAMPLING)
        return f"<Chat with {model}{system}, {values}>"

    @property
    def last(self) -> Reply | None:
        """The newest reply."""
        return next((turn.reply for turn in reversed(self.turns) if turn.reply), None)

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation as chat templates have it, with the system prompt."""
        return [*self._system, *(turn.message for turn in self.turns)]

    @property
    def _system(self) -> list[dict[str, str]]:
        return [{"role": "system", "content": self.system}] if self.system else []

    def set(self, **settings: Any) -> None:
        """Change settings. ValueError: one is unknown or out of its range; none is changed then."""
        self.settings = Settings.of(settings, self.settings, self.defaults)

    def say(self, text: str, *, schema: Schema = None, **settings: Any) -> Reply:
        """The reply to a text. Arguments and errors: those of `stream`."""
        return self._result(self.stream(text, schema=schema, **settings))

    def stream(self, text: str, *, schema: Schema = None, **settings: Any) -> Pieces:
        """The pieces of the reply to a text, as they are made; then `last` is the reply.

        schema: a JSON schema; the reply is JSON of it, unless max_new_tokens cuts it short (its `end` is "length").

        An iterator that is closed early, or stopped by Ctrl-C, leaves the beginning of the reply in the conversation.

        ValueError, at the call: no text, one longer than the context, a setting out of its range. TemplateRefusedError,
        a ValueError: the chat template does not take the conversation. Nothing has changed then.
        """
        if not is_text(text) or not text.strip():
            raise ValueError(f"say a text, not {brief(text)}")
        return self._stream(Turn("user", text), Settings.of(settings, self.settings, self.defaults), schema)

    def regenerate(self, *, schema: Schema = None, **settings: Any) -> Reply:
        """Another reply in place of the last one. ValueError: there is none."""
        return self._result(self.stream_again(schema=schema, **settings))

    def stream_again(self, *, schema: Schema = None, **settings: Any) -> Pieces:
        """As `regenerate`, but the pieces of the reply. ValueError: there is none to replace."""
        if not self.turns:
            raise ValueError("there is no reply yet to make again: say something first")
        found = Settings.of(settings, self.settings, self.defaults)
        before = list(self.turns)
        question = self.turns[-2:][0]
        self.undo()
        try:
            return self._stream(question, found, schema)
        except ValueError:
            self.turns = before
            raise

    def undo(self) -> str:
        """Take back the last text and its reply; the text. ValueError: there is none."""
        if not self.turns:
            raise ValueError("there is nothing to take back")
        question = self.turns[-2:][0]
        del self.turns[-2:]
        return question.text

    def clear(self) -> None:
        """Forget what was said. The system prompt and the settings stay."""
        self.turns = []

    def fork(self, exchanges: int | None = None) -> "Chat":
        """Another conversation that begins like this one, with its first `exchanges` texts and replies; None: all.

        ValueError: there are not so many.
        """
        if exchanges is not None and not 0 <= whole("exchanges", exchanges, 0) <= len(self.turns) // 2:
            raise ValueError(f"the conversation has {len(self.turns) // 2} texts with replies, not {exchanges}")
        other = Chat(self.model, self.tokenizer, self.system, template=self.template, context=self.context)
        other.settings, other.made = self.settings, self.made
        other.turns = self.turns[: None if exchanges is None else 2 * exchanges]
        other._kept, other._read_by = list(self._kept), self._read_by
        other._vocabulary = self._vocabulary
        return other

    # Replies

    def _result(self, pieces: Pieces) -> Reply:
        with closing(pieces):
            for _ in pieces:
                pass
        reply = self.last
        assert reply is not None
        return reply

    def _stream(self, question: Turn, settings: Settings, schema: Schema) -> Pieces:
        """Check all that can be wrong, then the pieces of a reply."""
        stop = StopCriteria.of(self.model, "auto", (*settings.stop, *self.template.stops), self.tokenizer)
        stop = replace(stop, ids=stop.ids | self.template.end_ids)
        matcher = None if schema is None else self._grammar(schema, stop.ids).matcher()
        ids, dropped = self._prompt(question, settings.max_new_tokens)
        [random] = generators(1, settings.seed)
        seed = random.initial_seed() if settings.seed is None else (settings.seed + self.made) % 2**63
        random.manual_seed(seed)

        def run() -> Pieces:
            self.made += 1
            batch = self._batch()
            row = batch.admit(
                ids, min(settings.max_new_tokens, self.context - len(ids)), sampling=settings.sampling,
                generator=random, stop=stop, logprobs=True, top=settings.top, matcher=matcher,
            )  # fmt: skip
            place, events, pieces = len(self.turns), list[Event](), list[str]()
            self.events = events
            kept, begun = 0, time.perf_counter()

            def new_ids() -> Iterator[int]:
                nonlocal kept
                while len(batch):
                    found = batch.step()
                    if not events:
                        kept = batch.cached_tokens.get(row, 0)
                    for event in found:
                        events.append(event)
                        yield event.id

            def result() -> Turn:
                reply = Reply(
                    "".join(pieces), [event.id for event in events], [event.logprob or 0.0 for event in events],
                    [list(event.top) for event in events] if settings.top else [],
                    (events[-1].end if events else None) or "interrupted", len(ids) - kept, kept, dropped,
                    time.perf_counter() - begun, seed,
                )  # fmt: skip
                return Turn("assistant", reply.text, reply)

            self.turns.append(question)
            whole_step = False
            try:
                for piece in trimmed(until(decode_stream(self.tokenizer, new_ids(), ids), stop.strings), self.template):
                    pieces.append(piece)
                    yield piece
                whole_step = True
            except GeneratorExit:  # closed between two steps
                whole_step = True
                raise
            finally:
                self.turns[place:] = [question, result()]
                if whole_step:
                    batch.retire(row)
                    self._kept = batch.prefixes
                else:  # what a step has half done is not known
                    self._kept = []

        return run()

    def _prompt(self, question: Turn, new: int) -> tuple[list[int], int]:
        """The ids of the prompt, and the number of oldest messages that had to go.

        ValueError: the question alone does not fit the context.
        """
        turns = [*self.turns, question]
        # Half of the context at most is kept free for the reply, so that a short context still has turns.
        most = self.context - min(new, self.context // 2)
        for dropped in range(0, len(turns), 2):
            ids = self.template.encode([*self._system, *(turn.message for turn in turns[dropped:])])
            if len(ids) <= most:
                return ids, dropped
        if len(ids) < self.context:
            return ids, len(turns) - 1
        raise ValueError(
            f"the text, with the system prompt, is {len(ids)} tokens long, and there is room for {self.context - 1}: "
            "say it shorter"
        )

    def _grammar(self, schema: Any, ends: frozenset[int]) -> Grammar:
        """JSON of a schema. ValueError: it is none, or cannot be followed."""
        if self._vocabulary is None:
            self._vocabulary = Vocabulary(self.tokenizer, self.model.config.vocab_size, ends)
        return self._vocabulary.grammar(schema)

    def _batch(self) -> Batch:
        """A batch for one reply, with what was read before: unless the model has changed since, as by training."""
        from torch.multiprocessing.reductions import StorageWeakRef

        batch = Batch(self.model, 1, self.context, prefix_bytes=KEEP)
        tensors = [*self.model.parameters(), *self.model.buffers()]
        # New weights may have the address of freed ones; a weak reference tells the two storages apart.
        now = [(StorageWeakRef(each.untyped_storage()), each.data_ptr(), 0 if each.is_inference() else each._version,
                each.dtype) for each in tensors]  # fmt: skip
        if now == self._read_by:
            batch.prefixes = self._kept
        self._read_by = now
        return batch

    # Files

    def to_json(self) -> dict[str, Any]:
        """The conversation as plain data, which `from_json` takes."""
        turns = [{"role": turn.role, "text": turn.text, "reply": turn.reply and asdict(turn.reply)}
                 for turn in self.turns]  # fmt: skip
        settings = {**asdict(self.settings), "stop": list(self.settings.stop)}
        return {"minhub_chat": 1, "system": self.system, "settings": settings, "made": self.made, "turns": turns}

    def from_json(self, data: Any) -> None:
        """Take over a conversation. ValueError: it is none; nothing has changed then."""
        try:
            if data["minhub_chat"] != 1:
                raise ValueError("it is of another version of this package")
            system, made = checked_system(data["system"]), whole("made", data["made"], 0)
            settings = Settings.of(dict(data["settings"]), Settings(**self.defaults), self.defaults)
            turns = [turn_of(each) for each in data["turns"]]
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"this is no saved chat: {error}") from error
        if [turn.role for turn in turns] != ["user", "assistant"] * (len(turns) // 2):
            raise ValueError("this is no saved chat: user and assistant do not take turns")
        self.system, self.settings, self.made, self.turns = system, settings, made, turns

    def save(self, path: str | Path) -> None:
        """Write the conversation as a JSON file. OSError: it cannot be written."""
        text = json.dumps(self.to_json(), ensure_ascii=False, indent=1)
        Path(path).write_text(text + "\n", encoding="utf-8", errors="backslashreplace")

    def load(self, path: str | Path) -> None:
        """Read a conversation that `save` has written. ValueError: the file is none. OSError: it cannot be read."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is no saved chat: it is no JSON") from error
        try:
            self.from_json(data)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def trimmed(pieces: Iterator[str], template: ChatTemplate) -> Iterator[str]:
    """Pieces of a reply; in a plain dialogue without the space that follows `Assistant:`."""
    begun = template.kind != "plain"
    for piece in pieces:
        shown = piece if begun else piece.lstrip()
        begun = begun or bool(shown)
        if shown:
            yield shown


def shorten(text: str, most: int = 60) -> str:
    """The beginning of a text on one line, in quotes."""
    return repr(text if len(text) <= most else text[: most - 1] + "…")


def is_auto(value: Any) -> bool:
    """Whether a setting asks for the model's default."""
    return is_text(value) and value == "auto"


def checked_system(system: Any) -> str | None:
    """A system prompt. ValueError: it is no text."""
    if system is not None and not is_text(system):
        raise ValueError(f"system must be a text, not {brief(system)}")
    return system or None


def turn_of(data: Any) -> Turn:
    """A turn of plain data. KeyError, TypeError, ValueError: it is none."""
    reply = data["reply"]
    if not is_text(data["text"]) or (reply is None) != (data["role"] == "user"):
        raise ValueError(f"{brief(data)} is no turn")
    if reply is not None:
        tops = [[(int(id), float(logprob)) for id, logprob in each] for each in reply["top"]]
        reply = Reply(**{**reply, "top": tops})
    return Turn(data["role"], data["text"], reply)
