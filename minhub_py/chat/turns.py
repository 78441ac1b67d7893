"""Settings, replies and messages of conversations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from reprlib import repr as brief
from typing import Literal, TypedDict

from minhub_py.chat.functions import ToolCall
from minhub_py.chat.reply_parser import ReplyEvent
from minhub_py.chat.tools import parse_arguments
from minhub_py.inference.arguments import check_integer, is_text, is_whole
from minhub_py.inference.limits import stop_strings
from minhub_py.inference.sampling import Sampling, generators
from minhub_py.system import html
from minhub_py.system.json_text import JsonMapping, JsonObject
from minhub_py.system.spelling import unknown
from minhub_py.system.tables import Columns, Result

SHOWN_FIELDS = ("temperature", "top_k", "top_p", "repetition_penalty")
SAMPLING_FIELDS = Sampling.names()


class SamplingSettings(TypedDict, total=False):
    """The keywords of `complete`: the sampling settings of `ReplySettings`."""

    temperature: float
    top_k: int | None
    top_p: float | None
    repetition_penalty: float
    min_p: float | None
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float] | None


class ChatSettings(TypedDict, total=False):
    """The keywords of `Chat`: `ReplySettings`, with "auto" for the model's defaults."""

    max_new_tokens: int
    temperature: float | Literal["auto"]
    top_k: int | Literal["auto"] | None
    top_p: float | Literal["auto"] | None
    repetition_penalty: float | Literal["auto"]
    min_p: float | Literal["auto"] | None
    presence_penalty: float | Literal["auto"]
    frequency_penalty: float | Literal["auto"]
    logit_bias: Mapping[int, float] | Literal["auto"] | None
    seed: int | None
    stop: str | Sequence[str]
    top: int


@dataclass(frozen=True)
class ReplySettings:
    """Settings of replies.

    Attributes:
        max_new_tokens: Maximum number of tokens in a reply.
        temperature: Sampling temperature; 0 is greedy. `Chat` replaces "auto" in a sampling setting
            by the default of the model (chat/defaults.py).
        top_k: Number of most likely tokens to sample from.
        top_p: Cumulative probability of the most likely tokens to sample from.
        repetition_penalty: Penalty of tokens that the text already contains; 1 has no effect.
        min_p: Minimum probability of tokens, as a fraction of the most likely token's.
        presence_penalty: Penalty of tokens that the reply already contains; 0 has no effect.
        frequency_penalty: Penalty for each time that the reply contains a token; 0 has no effect.
        logit_bias: Numbers that are added to the logits of token IDs.
        seed: Seed of the first reply, increased by 1 for each further reply. None draws a seed for
            each reply from PyTorch's default generator.
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

    def updated(self, changes: JsonMapping, defaults: Mapping[str, object]) -> "ReplySettings":
        """A copy with `changes`; "auto" selects the value in `defaults`. ValueError: an unknown or
        invalid setting.
        """
        names = [field.name for field in fields(self)]
        if invalid := [name for name in changes if name not in names]:
            raise ValueError(unknown(invalid, names, "the settings of a chat"))
        changes = {
            name: defaults.get(name, value) if is_text(value) and value == "auto" else value
            for name, value in changes.items()
        }
        if "stop" in changes:
            changes = {**changes, "stop": stop_strings(changes["stop"])}
        settings = replace(self, **changes)
        check_integer("max_new_tokens", settings.max_new_tokens, 1)
        check_integer("top", settings.top, 0)
        if not is_whole(settings.seed) and settings.seed is not None:
            raise ValueError(f"seed must be a whole number, not {brief(settings.seed)}")
        generators(1, settings.seed)
        _ = settings.sampling
        return settings

    @property
    def sampling(self) -> Sampling:
        """The sampling settings. ValueError: a setting is out of range."""
        return Sampling(**{name: getattr(self, name) for name in SAMPLING_FIELDS})


@dataclass(frozen=True)
class Reply(Result):
    """A reply of the model. `str(reply)` is its text.

    Attributes:
        text: Text without the stop string or the end token.
        ids: Token IDs, including the end token.
        logprobs: Log-probability of each token in nats, before temperature and other sampling
            settings.
        top: For each token the `ReplySettings.top` most likely tokens as (ID, log-probability) in
            descending order.
        end: Reason of the end: "stop" (end token or stop string), "length" (max_new_tokens or the
            context) or "interrupted".
        read: Number of prompt tokens that were computed.
        kept: Number of prompt tokens copied from the prefix cache.
        dropped: Number of the oldest messages removed from the prompt to fit the context.
        seconds: Duration, including the prefill.
        seed: Seed that reproduces the reply.
        reasoning: Text of the reasoning before the reply.
        calls: Calls of tools that the reply requests.
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
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        numbers = f"{len(self.ids)} tokens in {self.seconds:.2f} s, end={self.end!r}"
        return f"<Reply {shorten(self.text)}: {numbers}>"

    def table(self) -> Columns:
        """The token IDs of the reply and their log-probabilities."""
        return Columns(id=self.ids, logprob=self.logprobs)

    def _repr_html_(self) -> str:
        numbers = [
            f"{len(self.ids)} tokens in {self.seconds:.2f} s",
            f"end: {self.end}",
            f"seed {self.seed}",
        ]
        return html.text(self.text) + html.note(numbers)

    @property
    def speed(self) -> float:
        """Generated tokens per second, including the prefill."""
        return len(self.ids) / max(self.seconds, 1e-9)


@dataclass(frozen=True)
class Turn:
    """A message of a conversation.

    Attributes:
        role: "user" or "assistant".
        text: Text of the message.
        reply: Details of an assistant message.
        steps: Previous calls of the same reply and their results, as messages of chat templates.
    """

    role: str
    text: str
    reply: Reply | None = None
    steps: tuple[JsonObject, ...] = ()

    @property
    def message(self) -> JsonObject:
        """The message in the format of chat templates."""
        message: JsonObject = {"role": self.role, "content": self.text}
        if self.reply is not None and self.reply.reasoning:
            message["reasoning_content"] = self.reply.reasoning
        if self.reply is not None and self.reply.calls:
            message["tool_calls"] = [call.message for call in self.reply.calls]
        return message


def shorten(text: str, limit: int = 60) -> str:
    """The beginning of a text on one line, in quotes."""
    return repr(text if len(text) <= limit else text[: limit - 1] + "…")


def steps_of(turn: Turn, results: Sequence[str]) -> tuple[JsonObject, ...]:
    """The messages of a reply with calls and of their results, after the messages of previous
    calls.
    """
    calls = turn.reply.calls if turn.reply is not None else ()
    answers = (
        {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": result}
        for call, result in zip(calls, results, strict=True)
    )
    return (*turn.steps, turn.message, *answers)


def reasoning_and_calls(
    parts: Sequence[ReplyEvent], number: int
) -> tuple[str, tuple[ToolCall, ...]]:
    """The reasoning and the calls of a reply. number: of the reply in its chat, for the IDs of
    calls.
    """
    calls = [part for part in parts if part.kind == "call"]
    return "".join(part.text for part in parts if part.kind == "reasoning"), tuple(
        ToolCall(f"c{number:05d}{index:03d}", call.text, parse_arguments(call.arguments))
        for index, call in enumerate(calls)
    )
