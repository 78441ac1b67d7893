"""Calibration of typed decisions by hand-coded answers.

A calibrated probability of 0.8 is right in 80 % of cases. Two methods:

    temperature  one number T per type of question: probabilities are a softmax of scores / T. T has
                 the largest likelihood of the hand-coded answers. It changes no answer of a single
                 order of the options, and `decision.json` stores it.
    isotonic     for each option of a question, an increasing step function of its probability, then
                 divided by the sum over the options. It needs more hand-coded answers.

By cross-fitting, no text's probabilities depend on its own hand-coded answer: texts are divided into
folds, and the answers of the other folds calibrate a fold. Errors before and after are therefore
comparable, and `estimate` remains valid.

Expected calibration error: the coded answers are divided into bins by the probability p of the
model's answer; Σ n_b / n |share of right answers - mean p|. Brier score: half the squared distance
between the probabilities and the hand-coded answer, which for two options is (p - y)².

Sources
    Guo et al. (2017), "On Calibration of Modern Neural Networks": temperature, calibration error.
    Zadrozny & Elkan (2002), "Transforming Classifier Scores into Accurate Multiclass Probability
        Estimates": isotonic regression.
    Brier (1950), "Verification of Forecasts Expressed in Terms of Probability".
"""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from minhub_py.analysis import plots
from minhub_py.analysis.coded import Indices, Table, Truth, coded_answers, decisions_of, truth_of
from minhub_py.analysis.cross_fit import divided
from minhub_py.analysis.decisions import Decisions, Floats, probabilities_of
from minhub_py.analysis.questions import SETTINGS, TYPES, DecisionSettings, Question, Type
from minhub_py.inference.arguments import check_integer
from minhub_py.system.json_text import JsonObject
from minhub_py.system.shapes import read_json
from minhub_py.system.spelling import call_name, setting
from minhub_py.system.tables import Columns, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 100.0
GRID, ROUNDS = 41, 40  # temperatures to compare, and divisions of the interval around the best


@dataclass(frozen=True)
class Calibration(Result):
    """Calibrated decisions, and the errors before and after.

    Attributes:
        decisions: The decisions with cross-fitted probabilities; decisions of questions without
            hand-coded answers are unchanged.
        method: The method.
        temperature: The temperature of each type, from all hand-coded answers. Empty for
            "isotonic".
        columns: See `table`.
        curve: The reliability diagram: columns type, when ("before" or "after"), lower and upper
            (of the bin), n, prob (mean probability of the answer) and correct (share of right
            answers).
    """

    decisions: Decisions
    method: str
    temperature: Mapping[Type, float]
    columns: Columns = field(repr=False)
    curve: Columns = field(repr=False)

    def table(self) -> Columns:
        """One row per type of question: type, n (hand-coded answers), temperature, ece_before,
        ece_after, brier_before, brier_after, and spread (mean over the orders of the options).
        """
        return self.columns

    def __str__(self) -> str:
        return f"Calibration by {self.method}, cross-fitted\n{self.columns}"

    def heading(self) -> list[str]:
        """The method."""
        return ["Calibration", f"method {self.method}", "cross-fitted"]

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Draw the reliability diagram of each type. Requires matplotlib."""
        return plots.plot_reliability(self.curve, path)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Store the temperatures in the `decision.json` of a model's folder, which `decide`, the
        server and transformers read. Its other settings remain.

        ValueError: the method is "isotonic", which decision.json cannot store, or the folder does
        not exist.
        """
        if self.method != "temperature":
            raise ValueError(
                f"{SETTINGS} stores temperatures only: calibrate with"
                f" {setting('method', 'temperature')}"
            )
        path = Path(folder) / SETTINGS
        if not path.parent.is_dir():
            raise ValueError(f"{path.parent} is not a folder: save the model there first")
        values: JsonObject = {}
        if path.exists():
            DecisionSettings.read(path.parent)
            values = read_json(path, JsonObject)
        values["temperature"] = {**(values.get("temperature") or {}), **self.temperature}
        path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def calibrate(
    decisions: Decisions | Table,
    truth: Truth,
    *,
    method: Literal["temperature", "isotonic"] = "temperature",
    folds: int = 5,
    bins: int = 10,
    seed: int = 0,
) -> Calibration:
    """Calibrate the probabilities of typed decisions by hand-coded answers.

        calibration = calibrate(decisions, {"tone": ["calm", None, "angry", ...]})
        calibration.save("model")  # temperatures, in decision.json

    Args:
        decisions: The result of `decide`, or its table with a column for each option. "temperature"
            needs a table of one order of the options.
        truth: Hand-coded answers by question, one per text and None for texts without one; or rows
            or a data frame with text (from 0), question and answer, which may be empty; or the name
            of a column of the table. Answers are the names of options, numbers of levels from 0, or
            True and False.
        method: "temperature" (one per type of question) or "isotonic".
        folds: Number of folds of cross-fitting.
        bins: Number of bins of the expected calibration error and the reliability diagram.
        seed: Seed of the division into folds.

    Raises:
        ValueError: An invalid table or hand-coded answer, too few hand-coded answers, or decisions
            that are already calibrated.
    """
    if method not in ("temperature", "isotonic"):
        raise ValueError(f"method must be 'temperature' or 'isotonic', not {method!r}")
    folds, bins = check_integer("folds", folds, 2), check_integer("bins", bins, 1)
    result = decisions_of(decisions)
    check_uncalibrated(result, method, from_table=not isinstance(decisions, Decisions))
    coded = coded_answers(result, truth_of(decisions, truth))
    used = np.any([indices >= 0 for indices in coded], axis=0)
    fold = divided(used, folds, None, np.random.default_rng(seed))
    check_folds(result, coded, fold, folds, method)
    values = [np.array(p) for p in result.probabilities]
    spreads = [np.array(s) for s in result.spreads]
    fit = fit_temperatures if method == "temperature" else fit_isotonic
    for number in range(folds):
        train = [np.where(fold == number, -1, indices) for indices in coded]
        for index, function in enumerate(fit(result, train)):
            if function is None:
                continue
            part = function(result.scores[index][:, fold == number])
            values[index][fold == number] = part[0]
            # A table has no scores of single orders.
            has_spread = isinstance(decisions, Decisions) | (spreads[index][fold == number] == 0)
            spreads[index][fold == number] = np.where(has_spread, part[1], np.nan)
    temperature = temperatures(result, coded) if method == "temperature" else {}
    unknown: dict[Type, float] = dict.fromkeys(TYPES, math.nan)
    calibrated = Decisions(
        result.questions, tuple(values), tuple(spreads), result.scores, unknown, result.tokens
    )
    columns, curve = errors(result, calibrated, coded, temperature, bins)
    return Calibration(calibrated, method, temperature, columns, curve)


def check_uncalibrated(decisions: Decisions, method: str, from_table: bool) -> None:
    """ValueError: the decisions are calibrated, or a table has only means over orders."""
    if any(math.isnan(decisions.temperature[question.type]) for question in decisions.questions):
        raise ValueError(
            "the column temperature of the decision table is empty, as in the table of calibrated"
            f" decisions: pass the table of {call_name('decide')}"
            if from_table
            else f"the decisions are calibrated already: pass the result of {call_name('decide')}"
        )
    if method == "temperature" and from_table and any((s > 0).any() for s in decisions.spreads):
        raise ValueError(
            "the table has means over several orders of the options, which have no single"
            f" temperature: use {setting('method', 'isotonic')}, {setting('orders', 1)} in"
            f" {call_name('decide')}, or the result of decide() in Python"
        )


def check_folds(
    decisions: Decisions, coded: Sequence[Indices], fold: Indices, folds: int, method: str
) -> None:
    """ValueError: a fold has no hand-coded answers in the others."""
    groups: dict[str, Indices] = {}
    for question, indices in zip(decisions.questions, coded, strict=True):
        name = f"type {question.type}" if method == "temperature" else f"question {question.name!r}"
        counts = np.bincount(fold[indices >= 0], minlength=folds)
        groups[name] = groups[name] + counts if name in groups else counts
    for name, counts in groups.items():
        if counts.sum() and counts.max() == counts.sum():
            raise ValueError(
                f"{counts.sum()} hand-coded answers of {name} are too few for {folds} folds: code"
                " more texts"
            )


# Probabilities and their standard deviations over orders, from scores (orders, texts, options).
Function = Callable[[Floats], tuple[Floats, Floats]]


def fit_temperatures(decisions: Decisions, coded: Sequence[Indices]) -> list[Function | None]:
    """Each question's function, None without hand-coded answers."""
    by_type = temperatures(decisions, coded)

    def function_of(temperature: float) -> Function:
        def apply(scores: Floats) -> tuple[Floats, Floats]:
            values = probabilities_of(scores, temperature)
            return values.mean(axis=0), values.std(axis=0)

        return apply

    return [
        function_of(by_type[question.type]) if question.type in by_type else None
        for question in decisions.questions
    ]


def temperatures(decisions: Decisions, coded: Sequence[Indices]) -> dict[Type, float]:
    """The temperature of each type of question with hand-coded answers."""
    result: dict[Type, float] = {}
    for kind in TYPES:
        parts = [
            (scores[:, usable], indices[usable])
            for question, scores, indices in zip(
                decisions.questions, decisions.scores, coded, strict=True
            )
            if question.type == kind
            and (usable := (indices >= 0) & ~np.isnan(scores).any(axis=(0, 2))).any()
        ]
        if parts:
            result[kind] = best_temperature(parts)
    return result


def best_temperature(parts: Sequence[tuple[Floats, Indices]]) -> float:
    """The temperature with the largest likelihood of the answers, for the scores (orders, texts,
    options) and the answers (texts,) of each question.
    """

    def loss(log: float) -> float:
        total = 0.0
        for scores, answers in parts:
            mean = probabilities_of(scores, math.exp(log)).mean(axis=0)
            chosen = np.take_along_axis(mean, answers[:, None], 1)
            total -= float(np.log(np.maximum(chosen, 1e-300)).sum())
        return total

    grid = np.linspace(math.log(MIN_TEMPERATURE), math.log(MAX_TEMPERATURE), GRID)
    best = int(np.argmin([loss(value) for value in grid]))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, GRID - 1)]
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(ROUNDS):  # golden section
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if loss(left) <= loss(right) else (left, high)
    return math.exp((low + high) / 2)


def fit_isotonic(decisions: Decisions, coded: Sequence[Indices]) -> list[Function | None]:
    """Each question's function, None without hand-coded answers."""
    results = list[Function | None]()
    for question, scores, indices in zip(decisions.questions, decisions.scores, coded, strict=True):
        temperature = decisions.temperature[question.type]
        mean = probabilities_of(scores, temperature).mean(axis=0)
        usable = (indices >= 0) & ~np.isnan(mean).any(axis=1)
        results.append(
            isotonic_function(mean[usable], indices[usable], temperature) if usable.any() else None
        )
    return results


def isotonic_function(mean: Floats, answers: Indices, temperature: float) -> Function:
    """The function of a question with probabilities (texts, options) and answers (texts,)."""
    steps = [isotonic(mean[:, k], answers == k) for k in range(mean.shape[1])]

    def calibrated(values: Floats) -> Floats:
        result = np.stack(
            [np.interp(values[..., k], *step) for k, step in enumerate(steps)], axis=-1
        )
        total = result.sum(axis=-1, keepdims=True)  # NaN for a missing text
        return np.where(total == 0, 1 / len(steps), result / np.where(total == 0, 1, total))

    def apply(scores: Floats) -> tuple[Floats, Floats]:
        by_order = probabilities_of(scores, temperature)
        return calibrated(by_order.mean(axis=0)), calibrated(by_order).std(axis=0)

    return apply


def isotonic(x: Floats, y: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """The nodes (x, value) of the increasing function closest to y, by pooling adjacent violators.
    Between nodes it is linear.
    """
    points, inverse = np.unique(x, return_inverse=True)
    weights = np.bincount(inverse).astype(float)
    blocks: list[list[float]] = []  # weight, mean, number of points
    for weight, mean in zip(weights, np.bincount(inverse, y.astype(float)) / weights, strict=True):
        blocks.append([weight, mean, 1])
        while len(blocks) > 1 and blocks[-2][1] >= blocks[-1][1]:
            second, first = blocks.pop(), blocks.pop()
            total = first[0] + second[0]
            value = (first[0] * first[1] + second[0] * second[1]) / total
            blocks.append([total, value, first[2] + second[2]])
    return points, np.repeat([b[1] for b in blocks], [int(b[2]) for b in blocks])


def errors(
    before: Decisions,
    after: Decisions,
    coded: Sequence[Indices],
    temperature: Mapping[Type, float],
    bins: int,
) -> tuple[Columns, Columns]:
    """The tables of errors and of reliability."""
    rows, curve = list[dict[str, object]](), list[dict[str, object]]()
    for kind in TYPES:
        row: dict[str, object] = {
            "type": kind,
            "n": 0,
            "temperature": temperature.get(kind, math.nan),
        }
        spreads = list[float]()
        for when, decisions in (("before", before), ("after", after)):
            best, right, squares = list[float](), list[bool](), list[float]()
            for number, question in enumerate(before.questions):
                values = decisions.probabilities[number]
                usable = (coded[number] >= 0) & ~np.isnan(values).any(axis=1)
                if question.type != kind or not usable.any():
                    continue
                p, answers = values[usable], coded[number][usable]
                best += p.max(axis=1).tolist()
                right += (p.argmax(axis=1) == answers).tolist()
                squares += (((p - np.eye(p.shape[1])[answers]) ** 2).sum(axis=1) / 2).tolist()
                if when == "after":
                    spreads += mean_spread(question, values, decisions.spreads[number])
            if not best:
                break
            table = reliability(np.array(best), np.array(right), bins)
            row["n"] = len(best)
            row[f"ece_{when}"] = calibration_error(table)
            row[f"brier_{when}"] = float(np.mean(squares))
            curve += [
                {"type": kind, "when": when} | dict(zip(table, cells, strict=True))
                for cells in zip(*table.values(), strict=True)
            ]
        if row["n"]:
            rows.append({**row, "spread": float(np.mean(spreads)) if spreads else math.nan})
    names = ("type", "n", "temperature", "ece_before", "ece_after", "brier_before", "brier_after")
    return columns_of_rows(rows, (*names, "spread")), columns_of_rows(
        curve, ("type", "when", "lower", "upper", "n", "prob", "correct")
    )


def mean_spread(question: Question, values: Floats, spreads: Floats) -> list[float]:
    """The spreads of a question's answers that are known."""
    usable = ~np.isnan(values).any(axis=1)
    chosen = np.take_along_axis(spreads[usable], values[usable].argmax(axis=1)[:, None], 1)[:, 0]
    return [float(value) for value in chosen if not math.isnan(value)]


def columns_of_rows(rows: Sequence[Mapping[str, object]], names: Sequence[str]) -> Columns:
    """Rows as columns: text as lists, numbers as arrays."""
    columns = {name: [row[name] for row in rows] for name in names}
    return Columns(
        {
            name: values if values and isinstance(values[0], str) else np.array(values)
            for name, values in columns.items()
        }
    )


def reliability(best: Floats, right: NDArray[np.bool_], bins: int) -> Columns:
    """The bins with answers: lower and upper end, n, mean probability and share of right answers."""
    number = np.minimum((best * bins).astype(int), bins - 1)
    n = np.bincount(number, minlength=bins)
    used = np.flatnonzero(n)
    return Columns(
        lower=used / bins,
        upper=(used + 1) / bins,
        n=n[used],
        prob=np.bincount(number, best, bins)[used] / n[used],
        correct=np.bincount(number, right, bins)[used] / n[used],
    )


def calibration_error(table: Columns) -> float:
    """The expected calibration error of a reliability table."""
    return float(table["n"] @ np.abs(table["correct"] - table["prob"]) / table["n"].sum())
