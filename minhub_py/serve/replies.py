"""Complete replies with their reasoning and tool calls."""

import secrets
import string
from dataclasses import dataclass, field

from minhub_py.serve.engine import Delta, GeneratedToken
from minhub_py.serve.generation import Generation

ID_CHARACTERS = string.ascii_letters + string.digits
ID_LENGTH = 9  # as Mistral's templates require


@dataclass(frozen=True)
class ReplyCall:
    """A tool call. arguments: JSON text."""

    id: str
    name: str
    arguments: str


@dataclass
class ParsedReply:
    """A reply.    end: "stop" or "length"."""

    text: str = ""
    reasoning: str = ""
    calls: list[ReplyCall] = field(default_factory=list)
    tokens: list[GeneratedToken] = field(default_factory=list)
    end: str = "length"

    def add(self, delta: Delta) -> None:
        """Append a delta."""
        self.tokens += delta.tokens
        for event in delta.events:
            if event.kind == "call":
                self.calls.append(ReplyCall(new_call_id(), event.text, event.arguments))
            elif event.kind == "reasoning":
                self.reasoning += event.text
            else:
                self.text += event.text
        self.end = delta.end or self.end


async def collect_replies(generation: Generation) -> list[ParsedReply]:
    """The replies of all requests."""
    replies = [ParsedReply() for _ in generation.requests]
    async for index, delta in generation.deltas():
        replies[index].add(delta)
    return replies


def new_call_id() -> str:
    """An ID of a call."""
    return "".join(secrets.choice(ID_CHARACTERS) for _ in range(ID_LENGTH))
