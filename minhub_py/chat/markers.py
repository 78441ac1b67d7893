"""Text in which tokens such as <tool_call> are single characters, so that they differ from the same
text in content.

A marker is an added token of a tokenizer. `MarkerAlphabet` represents it by a lone surrogate, which
decoded text cannot contain. Formats of replies are strings of this alphabet: their markers are
recognized by token ID, and the markers of models that write them as ordinary text are ordinary
characters.
"""

import json
import re
from functools import cached_property

from tokenizers import Tokenizer

from minhub_py.checkpoints.tokenizers.tokenizer import TextStream

FIRST = 0xD800
COUNT = 0x800


class MarkerAlphabet:
    """A tokenizer's markers. Characters are assigned to the tokens that `internal` finds."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._ids = {token.content: id for id, token in added.items() if token.content.strip()}
        self._chars: dict[int, str] = {}
        self._tokens: dict[str, tuple[int, str]] = {}  # character -> (ID, text)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        texts = sorted(self._ids, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, texts)) or r"(?!)")

    def internal(self, text: str) -> str:
        """A rendered text with a character for each marker."""

        def replacement(match: re.Match[str]) -> str:
            id = self._ids[match.group()]
            if id not in self._chars and len(self._chars) < COUNT:
                char = chr(FIRST + len(self._chars))
                self._chars[id], self._tokens[char] = char, (id, match.group())
            return self._chars.get(id, match.group())

        return self._pattern.sub(replacement, text)

    def char(self, id: int) -> str | None:
        """A token ID's character; None if it is not a marker."""
        return self._chars.get(id)

    def id(self, char: str) -> int | None:
        """The token ID of a marker's character; None for other characters."""
        token = self._tokens.get(char)
        return None if token is None else token[0]

    def text(self, internal: str) -> str:
        """Internal text as the text of its tokens."""
        if not any(is_marker(char) for char in internal):
            return internal
        return "".join(self._tokens[char][1] if char in self._tokens else char for char in internal)

    def shown(self, internal: str) -> str:
        """Internal text for users: without special tokens, as decoded text."""
        if not has_marker(internal):
            return internal
        added = self.tokenizer.get_added_tokens_decoder()
        return "".join(
            char if (id := self.id(char)) is None else "" if added[id].special else self.text(char)
            for char in internal
        )

    def lark(self, internal: str) -> str:
        """Internal text as literals of a Lark grammar, with markers by token ID."""
        parts, plain = [], ""
        for char in internal:
            id = self.id(char)
            if id is None:
                plain += char
                continue
            if plain:
                parts.append(json.dumps(plain))
            parts.append(f"<[{id}]>")
            plain = ""
        if plain:
            parts.append(json.dumps(plain))
        return " ".join(parts)


def is_marker(char: str) -> bool:
    """Whether a character represents a marker."""
    return len(char) == 1 and FIRST <= ord(char) < FIRST + COUNT


def has_marker(internal: str) -> bool:
    """Whether internal text contains a marker."""
    return any(map(is_marker, internal))


class MarkedStream:
    """Incremental decoding of tokens to internal text, without special tokens that are not markers."""

    def __init__(self, alphabet: MarkerAlphabet, prompt: list[int] | None = None) -> None:
        self.alphabet = alphabet
        self.stream = TextStream(alphabet.tokenizer, prompt or [])

    def step(self, id: int) -> str:
        """The new internal text after a token; "" within a character of several tokens."""
        char = self.alphabet.char(id)
        return self.stream.add(id) if char is None else char
