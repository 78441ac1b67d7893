"""Regular expressions in the settings of adapters, which are untrusted: matched without
backtracking.

`re` needs exponential time for patterns such as `([a-z]+)+!`. Here each part of a pattern maps the
set of positions where it may start to the set of positions where it may end, as in Thompson (1968),
"Regular expression search algorithm". A set is an integer with one bit per position. The number of
steps is limited, for nested repetitions and look-around. Python's own parser reads the patterns.
They have Python's syntax, except for backreferences, conditions, and groups that discard
alternatives (atomic groups, possessive quantifiers).
"""

import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

try:
    from re import _parser as parser  # type: ignore[attr-defined]  # public until Python 3.10
except ImportError:
    import sre_parse as parser

MAX_LENGTH = 20_000  # characters of a pattern
MAX_STEPS = 50_000  # of a match; patterns of published adapters need less than a thousand
Positions = int  # bit i: position i of the name
CATEGORIES: dict[str, Callable[[str], bool]] = {
    "CATEGORY_DIGIT": str.isdecimal,
    "CATEGORY_SPACE": str.isspace,
    "CATEGORY_WORD": lambda character: character.isalnum() or character == "_",
}


def full_match(pattern: str, name: str) -> bool:
    """Whether a regular expression matches a complete name, as `re.fullmatch`.

    ValueError: the pattern is invalid, too long, takes too many steps, or has an operation that is
    not supported.
    """
    tree = parse(pattern)
    return bool(Match(name, tree.state.flags).after(tree, 1) >> len(name))


@cache
def parse(pattern: str) -> Any:
    """A pattern's syntax tree. ValueError: see `full_match`."""
    if len(pattern) > MAX_LENGTH:
        raise ValueError(
            f"a regular expression has {len(pattern)} characters: the maximum is {MAX_LENGTH}"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of possible changes of the syntax in later versions
            tree = parser.parse(pattern)
        unsupported = sorted({str(operation) for operation in operations(tree)} - HANDLERS.keys())
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{pattern[:200]!r} is not a valid regular expression: {error}") from error
    if unsupported or tree.state.flags & (re.LOCALE | re.ASCII):
        names = ", ".join(unsupported).lower() or "flags"
        raise ValueError(
            f"the regular expression {pattern[:200]!r} is not supported ({names}): use groups, "
            "alternatives, classes, repetitions and look-around"
        )
    return tree


def operations(tree: Any) -> Iterator[object]:
    """The operations of a syntax tree and its subtrees."""
    for operation, argument in tree:
        yield operation
        for subtree in subtrees(argument):
            yield from operations(subtree)


def subtrees(argument: object) -> Iterator[object]:
    """The syntax trees in an operation's argument."""
    if isinstance(argument, parser.SubPattern):
        yield argument
    elif isinstance(argument, list | tuple):
        for item in argument:
            yield from subtrees(item)


class Match:
    """The positions of a name that parts of a pattern reach. flags: of `re`, at the current part."""

    def __init__(self, name: str, flags: int) -> None:
        self.name, self.all = name, (1 << (len(name) + 1)) - 1
        self.flags, self.steps = flags, 0

    def after(self, tree: Any, starts: Positions) -> Positions:
        """The positions after a sequence of operations from each of `starts`."""
        for operation, argument in tree:
            if not starts:
                return 0
            self.steps += 1
            if self.steps > MAX_STEPS:
                raise ValueError(
                    "a regular expression takes too many steps: write it without nested repetitions"
                )
            starts = HANDLERS[str(operation)](self, argument, starts)
        return starts

    def characters(self, fits: Callable[[str], bool], starts: Positions) -> Positions:
        """The positions after one character that fits."""
        positions = 0
        for position, character in enumerate(self.name):
            if starts >> position & 1 and self.fits(fits, character):
                positions |= 2 << position
        return positions

    def fits(self, fits: Callable[[str], bool], character: str) -> bool:
        """Whether a character fits, in any case if case is ignored."""
        return fits(character) or (
            self.flags & re.IGNORECASE > 0 and (fits(character.lower()) or fits(character.upper()))
        )

    def literal(self, code: int, starts: Positions) -> Positions:
        return self.characters(lambda character: ord(character) == code, starts)

    def not_literal(self, code: int, starts: Positions) -> Positions:
        same = self.literal(code, starts)
        return (starts << 1) & self.all & ~same

    def any(self, _: None, starts: Positions) -> Positions:
        return self.characters(
            lambda character: character != "\n" or self.flags & re.DOTALL > 0, starts
        )

    def among(self, items: list[tuple[object, object]], starts: Positions) -> Positions:
        """One character of a class."""
        negated = bool(items) and str(items[0][0]) == "NEGATE"
        included = self.characters(
            lambda character: any(contains(item, character) for item in items), starts
        )
        return (starts << 1) & self.all & ~included if negated else included

    def branch(self, argument: tuple[None, list[object]], starts: Positions) -> Positions:
        ends = 0
        for alternative in argument[1]:
            ends |= self.after(alternative, starts)
        return ends

    def group(self, argument: tuple[object, int, int, object], starts: Positions) -> Positions:
        _, added, removed, tree = argument
        before = self.flags
        self.flags = (before | added) & ~removed
        ends = self.after(tree, starts)
        self.flags = before
        return ends

    def repeat(self, argument: tuple[int, int, object], starts: Positions) -> Positions:
        """Repetitions, greedy or not. After len(name) + 1 repetitions, the positions do not change
        any more.
        """
        least, most, tree = argument
        for _ in range(min(least, len(self.name) + 1)):
            before, starts = starts, self.after(tree, starts)
            if starts == before:
                break
        ends = new = starts
        for _ in range(min(int(most) - least, len(self.name) + 1)):
            new = self.after(tree, new) & ~ends
            if not new:
                break
            ends |= new
        return ends

    def at(self, where: object, starts: Positions) -> Positions:
        name, size = self.name, len(self.name)
        word = CATEGORIES["CATEGORY_WORD"]
        inside = [False, *map(word, name), False]
        boundaries = sum(
            1 << position
            for position in range(size + 1)
            if inside[position] != inside[position + 1]
        )
        last = 1 << size | (1 << size - 1 if name.endswith("\n") else 0)
        sets = {
            "AT_BEGINNING": 1,
            "AT_BEGINNING_STRING": 1,
            "AT_END": last,
            "AT_END_STRING": 1 << size,
            "AT_BOUNDARY": boundaries,
            "AT_NON_BOUNDARY": self.all & ~boundaries,
        }
        return starts & sets[str(where)]

    def ahead(self, argument: tuple[int, object], starts: Positions) -> Positions:
        """The positions where a look-around succeeds."""
        direction, tree = argument
        if direction < 0:
            return starts & self.after(tree, self.all)
        return sum(start for start in bits(starts) if self.after(tree, start))

    def not_ahead(self, argument: tuple[int, object], starts: Positions) -> Positions:
        return starts & ~self.ahead(argument, starts)


def bits(positions: Positions) -> Iterable[Positions]:
    """The sets with one of the positions."""
    return (
        1 << position for position in range(positions.bit_length()) if positions >> position & 1
    )


def contains(item: tuple[Any, Any], character: str) -> bool:
    """Whether an item of a class contains a character."""
    operation, argument = str(item[0]), item[1]
    if operation == "LITERAL":
        return ord(character) == argument
    if operation == "RANGE":
        return bool(argument[0] <= ord(character) <= argument[1])
    if operation == "CATEGORY":
        name = str(argument)
        return CATEGORIES[name.replace("_NOT_", "_")](character) != ("_NOT_" in name)
    return False  # NEGATE


HANDLERS: dict[str, Callable[[Match, Any, Positions], Positions]] = {
    "LITERAL": Match.literal,
    "NOT_LITERAL": Match.not_literal,
    "ANY": Match.any,
    "IN": Match.among,
    "BRANCH": Match.branch,
    "SUBPATTERN": Match.group,
    "MAX_REPEAT": Match.repeat,
    "MIN_REPEAT": Match.repeat,
    "AT": Match.at,
    "ASSERT": Match.ahead,
    "ASSERT_NOT": Match.not_ahead,
}
