"""Limits of tokens: allowed and banned tokens, banned sequences, and a minimum number of tokens."""

import pytest
import torch

from minhub_py.inference.grammar import GrammarError
from minhub_py.inference.token_limits import TokenLimits


class Only:
    """A grammar that allows some tokens, and is complete after a number of them."""

    restricts = True

    def __init__(self, ids: set[int], count: int = 99) -> None:
        self.ids, self.count = ids, count

    def matcher(self, prefix=()) -> "Only":
        return Only(self.ids, self.count)

    def allowed(self) -> torch.Tensor:
        return torch.tensor([id in self.ids for id in range(8)])

    def accept(self, id: int) -> bool:
        self.count -= 1
        return self.count == 0


def allowed(limits: TokenLimits, *ids: int) -> list[int]:
    """The token IDs that can follow some tokens."""
    mask = limits.matcher(ids).allowed()
    return [*range(limits.size)] if mask is None else mask.nonzero().flatten().tolist()


def test_only_allowed_tokens_that_are_not_banned_can_occur() -> None:
    limits = TokenLimits(8, allowed=frozenset((1, 2, 5)), banned=((2,), (6,)))
    assert allowed(limits) == allowed(limits, 1, 5) == [1, 5]
    assert allowed(TokenLimits(8, banned=((0,),))) == [1, 2, 3, 4, 5, 6, 7]
    with pytest.raises(GrammarError, match="allow more tokens"):
        allowed(TokenLimits(8, allowed=frozenset((1,)), banned=((1,),)))


def test_the_last_token_of_a_banned_sequence_cannot_follow_the_others() -> None:
    limits = TokenLimits(8, banned=((1, 2, 3), (2, 4), (5, 5)))
    everything = [*range(8)]
    assert allowed(limits) == allowed(limits, 1) == allowed(limits, 2, 1) == everything
    assert allowed(limits, 1, 2) == [0, 1, 2, 5, 6, 7]
    assert allowed(limits, 0, 1, 2) == [0, 1, 2, 5, 6, 7]
    assert allowed(limits, 2) == [0, 1, 2, 3, 5, 6, 7]
    assert allowed(limits, 5) == [0, 1, 2, 3, 4, 6, 7]
    assert allowed(limits, 1, 2, 0) == everything


def test_end_tokens_follow_the_minimum_number_of_tokens() -> None:
    limits = TokenLimits(8, minimum=2, ends=frozenset((6, 7)))
    assert allowed(limits) == allowed(limits, 1) == [0, 1, 2, 3, 4, 5]
    assert allowed(limits, 1, 1) == [*range(8)]


def test_a_grammar_takes_precedence() -> None:
    """Where it allows only excluded tokens, such as the end after a complete text."""
    limits = TokenLimits(
        8, banned=((1,),), minimum=9, ends=frozenset((7,)), grammar=Only({1, 2, 7})
    )
    assert allowed(limits) == [2]
    limits = TokenLimits(
        8, banned=((1,),), minimum=9, ends=frozenset((7,)), grammar=Only({1, 7}, 2)
    )
    matcher = limits.matcher()
    assert matcher.allowed().nonzero().flatten().tolist() == [1, 7]
    assert [matcher.accept(1), matcher.accept(1)] == [False, True]
