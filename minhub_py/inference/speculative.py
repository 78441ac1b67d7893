"""Speculative decoding by prompt lookup: draft tokens for several positions are checked in one step.

Sources: Leviathan et al. (2023), "Fast Inference from Transformers via Speculative Decoding"; Saxena (2023), "Prompt
Lookup Decoding", for draft tokens that come from the sequence itself.

A step's time is mostly the time to read the weights, so that draft tokens cost little. The output is unchanged:
`generate` accepts only the draft tokens that it would have chosen.
"""

from collections.abc import Sequence


class PromptLookup:
    """Drafts the tokens that followed the previous occurrence of a sequence's last tokens.

    The number of draft tokens adapts to the number of accepted ones, up to `most`. 0 disables drafts.
    """

    SIZES = (3, 2)  # n-gram sizes, in order of preference

    def __init__(self, most: int) -> None:
        self.most, self.length = most, min(most, 2)
        self.indexed = 0  # the number of tokens whose n-grams are in `after`
        self.after: dict[tuple[int, ...], int] = {}  # n-gram -> the position after its last occurrence

    def __call__(self, tokens: Sequence[int], room: int) -> list[int]:
        """At most `room` draft tokens for `tokens`, which must extend the tokens of the previous call."""
        if not self.most:
            return []
        # Without the n-gram at the end, whose previous occurrence is looked up.
        for end in range(self.indexed, len(tokens)):
            for size in self.SIZES:
                if end >= size:
                    self.after[tuple(tokens[end - size : end])] = end
        self.indexed = len(tokens)
        starts = [self.after[tuple(tokens[-size:])] for size in self.SIZES if tuple(tokens[-size:]) in self.after]
        draft: list[int] = []
        for i in range(min(self.length, room) if starts else 0):  # a short period continues within the draft
            position = starts[0] + i
            draft.append(tokens[position] if position < len(tokens) else draft[position - len(tokens)])
        return draft

    def update(self, accepted: int, proposed: int) -> None:
        """Adapt the number of draft tokens to the result of the previous draft."""
        self.length = min(self.most, 2 * self.length) if accepted == proposed else max(1, accepted)
