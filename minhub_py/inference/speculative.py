"""Guesses at the ids to come, for decoding several in one reading of the weights.

Sources: Leviathan et al. (2023), "Fast Inference from Transformers via Speculative Decoding"; the guesses come from the
text itself, as in Saxena (2023), "Prompt Lookup Decoding".

A guess costs little, since a step's time goes into reading the weights once, and changes nothing: `generate` keeps of
what was read only what it would have chosen anyway.
"""

from collections.abc import Sequence


class Guesser:
    """Guesses how a text goes on: as it did where its last ids stood before.

    How many ids it guesses follows how it fares, up to `most`; 0 is none at all.
    """

    SIZES = (3, 2)  # of the last ids that are looked for: the longer ones first

    def __init__(self, most: int) -> None:
        self.most, self.length = most, min(most, 2)
        self.known = 0  # ids of the text that are in `after`
        self.after: dict[tuple[int, ...], int] = {}  # some ids -> the place after where they stood last

    def __call__(self, text: Sequence[int], room: int) -> list[int]:
        """At most `room` ids to come after `text`, which is the text of the last call and more."""
        if not self.most:
            return []
        # The last ids themselves are left out: it is where they stood before that counts.
        for end in range(self.known, len(text)):
            for size in self.SIZES:
                if end >= size:
                    self.after[tuple(text[end - size : end])] = end
        self.known = len(text)
        places = [self.after[tuple(text[-size:])] for size in self.SIZES if tuple(text[-size:]) in self.after]
        guess: list[int] = []
        for i in range(min(self.length, room) if places else 0):  # beyond the end it goes on in the guess, in a circle
            place = places[0] + i
            guess.append(text[place] if place < len(text) else guess[place - len(text)])
        return guess

    def learn(self, right: int, guessed: int) -> None:
        """How many of the last guess's ids were right."""
        self.length = min(self.most, 2 * self.length) if right == guessed else max(1, right)
