"""Prediction formulas of SyntaxGym, such as "(2;%match%) < (2;%mismatch%)".

    (N;%condition%)   the surprisal of region N; * is the sum of all regions
    + -               sums, evaluated first
    < > =             comparisons; numbers are equal within 1e-3 + 1e-5 · |right|
    & |               of two truth values, evaluated last, from left to right
    ( ) [ ]           groups; the published suites use brackets, which the package syntaxgym rejects

Source: Gauthier, Hu, Wilcox, Qian & Levy (2020), "SyntaxGym", and the grammar of the package
syntaxgym.
"""

import math
import re
from collections.abc import Callable, Mapping

Surprisals = Mapping[tuple[str, int], float]  # by condition and region number
Formula = Callable[[Surprisals], float | bool]
TOKEN = re.compile(
    r"\s*(?:\((\d+|\*);%([\w-]+)%\)|(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)|([][()<>=&|+-]))"
)


def parse(text: str) -> Formula:
    """The function that evaluates a formula. ValueError: the formula is not valid."""
    parser = Parser(text)
    formula = parser.truth()
    if parser.tokens:
        raise parser.error()
    return formula


def tokens_of(text: str) -> list[tuple[str, ...]]:
    """A formula's tokens: (region, condition), (number,) or (operator,)."""
    tokens: list[tuple[str, ...]] = []
    position, text = 0, text.rstrip()
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None:
            raise ValueError(
                f"the formula {text!r} has an error at {text[position:]!r}: see"
                " minhub_py.analysis.formulas"
            )
        tokens.append(tuple(group for group in match.groups() if group is not None))
        position = match.end()
    return tokens


class Parser:
    """A recursive descent parser. Each method consumes the tokens of an expression and returns its
    function.
    """

    def __init__(self, text: str) -> None:
        self.text, self.tokens = text, tokens_of(text)

    def error(self) -> ValueError:
        position = "its end" if not self.tokens else repr(";".join(self.tokens[0]))
        return ValueError(
            f"the formula {self.text!r} has an error at {position}: see minhub_py.analysis.formulas"
        )

    def take(self, *operators: str) -> str | None:
        """Consume one of `operators`, if it is next."""
        if self.tokens and len(self.tokens[0]) == 1 and self.tokens[0][0] in operators:
            return self.tokens.pop(0)[0]
        return None

    def truth(self) -> Formula:
        result = self.comparison()
        while operator := self.take("&", "|"):
            result = combined(operator, result, self.comparison())
        return result

    def comparison(self) -> Formula:
        result = self.sum()
        if operator := self.take("<", ">", "="):
            result = combined(operator, result, self.sum())
        return result

    def sum(self) -> Formula:
        result = self.atom()
        while operator := self.take("+", "-"):
            result = combined(operator, result, self.atom())
        return result

    def atom(self) -> Formula:
        if bracket := self.take("(", "["):
            result = self.truth()
            if not self.take(")" if bracket == "(" else "]"):
                raise self.error()
            return result
        sign = -1.0 if self.take("-") else 1.0
        if not self.tokens or self.tokens[0][0] in "()[]<>=&|+-":
            raise self.error()
        token = self.tokens.pop(0)
        return (
            number(sign * float(token[0])) if len(token) == 1 else region(token[0], token[1], sign)
        )


def number(value: float) -> Formula:
    """A constant."""
    return lambda _: value


def region(name: str, condition: str, sign: float) -> Formula:
    """The surprisal of a region, or of all regions of a condition."""

    def value(surprisals: Surprisals) -> float:
        numbers = [
            number for of, number in surprisals if of == condition and name in ("*", str(number))
        ]
        if not numbers:
            raise ValueError(
                f"a formula refers to region {name} of condition {condition!r}, which an item does"
                " not have"
            )
        return sign * sum(surprisals[condition, number] for number in numbers)

    return value


OPERATORS: Mapping[str, Callable[[float, float], float | bool]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "<": lambda left, right: left < right,
    ">": lambda left, right: left > right,
    "=": lambda left, right: math.isclose(left, right, rel_tol=0, abs_tol=1e-3 + 1e-5 * abs(right)),
    "&": lambda left, right: bool(left and right),
    "|": lambda left, right: bool(left or right),
}


def combined(operator: str, left: Formula, right: Formula) -> Formula:
    """The operation on the values of two expressions."""
    return lambda surprisals: OPERATORS[operator](left(surprisals), right(surprisals))
