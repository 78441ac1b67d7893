"""Limits on a vocabulary's tokens, and the merges that follow from them.

SentencePiece and tiktoken files have tokens without merges: each cut of a token into two other
tokens is a merge. Time and memory for them grow with the square of a token's length, so both the
length and the total are limited.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import TypeVar

# Characters of a token. Published vocabularies have at most a few hundred; time and stack grow with
# longer ones.
MAX_TOKEN = 1_000
# Characters of all merges. Published vocabularies have up to ten million.
MAX_MERGED = 100_000_000
Token = TypeVar("Token", str, bytes)


def check_lengths(tokens: Iterable[object]) -> None:
    """ValueError: a token is longer than MAX_TOKEN."""
    longest = max((len(token) for token in tokens if isinstance(token, str | bytes)), default=0)
    if longest > MAX_TOKEN:
        raise ValueError(
            f"it has a token of {longest:,} characters; a vocabulary has at most {MAX_TOKEN:,}"
        )


def cuts(tokens: Collection[Token]) -> Iterator[tuple[Token, Token, Token]]:
    """Each cut of a token into two tokens, as (token, left, right), in the order of the tokens.

    ValueError: the tokens have more cuts than a vocabulary needs.
    """
    check_lengths(tokens)
    token_set = frozenset(tokens)
    lengths = {len(token) for token in token_set}
    merged = 0
    for token in tokens:
        size = len(token)
        for cut in range(1, size):
            if (
                cut in lengths
                and size - cut in lengths
                and token[:cut] in token_set
                and token[cut:] in token_set
            ):
                merged += size
                if merged > MAX_MERGED:
                    raise ValueError(
                        f"the merges of its tokens have more than {MAX_MERGED:,} characters"
                    )
                yield token, token[:cut], token[cut:]
