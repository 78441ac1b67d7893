"""Do 95 % intervals of decisions contain the truth? Simulated studies with a biased model.

    python benchmarks/decisions.py [STUDIES]

Each of the 400 studies of a setting has 300 texts, of which 60 have hand-coded answers to three
questions (true or false, three options, three levels). The model's answers are biased: its scores
are moved towards an option, more so in one of two groups of texts and with the covariate. They are
miscalibrated: 2.5 times too far apart. Each row of the result is a mean, a difference of the groups
or the slope of a covariate, and has the share of studies whose interval contains the truth: from
the decisions alone (naive), and corrected by `estimate`.
"""

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from minhub_py import calibrate, choose_for_coding, estimate
from minhub_py.analysis.decisions import Decisions, probabilities_of
from minhub_py.analysis.questions import TYPES, Question

TEXTS, CODED, STUDIES, POPULATION = 300, 60, 400, 2_000_000
QUESTIONS = (
    Question("refund", "noul", None, ("true", "false"), ("Yes", "No"), (None, None)),
    Question("tone", "choice", None, ("calm", "angry", "other"), ("A", "B", "C"), (None,) * 3),
    Question("urgency", "score", None, ("0", "1", "2"), ("A", "B", "C"), (None,) * 3),
)
OPTIONS = {"refund": "true", "tone": "angry", "urgency": None}
# The sample, the calibration, and the settings of `estimate`.
SETTINGS: dict[str, tuple[str, str | None, Mapping[str, Any]]] = {
    "ppi++": ("random", None, {}),
    "ppi++, temperature": ("random", "temperature", {}),
    "ppi++, isotonic": ("random", "isotonic", {}),
    "dsl": ("random", None, {"method": "dsl"}),
    "uncertain texts, confidence": ("uncertain", None, {}),
    "uncertain texts, temperature": ("uncertain", "temperature", {}),
}
Array = np.ndarray[Any, Any]


def texts_of(
    random: np.random.Generator, count: int
) -> tuple[Array, Array, list[Array], list[Array]]:
    """The group and the covariate of texts, and for each question the true probabilities of the
    options and the model's scores.
    """
    group = random.integers(0, 2, count)
    covariate = random.uniform(-1, 1, count)
    truth, scores = [], []
    for question in QUESTIONS:
        options = len(question.options)
        right = random.normal(scale=1.2, size=(count, options))
        right[:, 0] += 0.5 * group - 0.6 * covariate
        wrong = right + random.normal(scale=1.0, size=(count, options))
        wrong[:, 0] += 0.4 + 0.8 * group + 0.6 * covariate  # the bias
        truth.append(probabilities_of(right, 1.0))
        scores.append(2.5 * wrong)
    return group, covariate, truth, scores


def outcomes(answers: Array, question: Question) -> Array:
    """The outcome of answers by index: whether the estimated option is the answer, or the level."""
    option = OPTIONS[question.name]
    return answers if option is None else (answers == question.options.index(option)).astype(float)


def drawn(random: np.random.Generator, probabilities: Array) -> Array:
    """A random answer for each row of probabilities."""
    total = probabilities.cumsum(axis=1)
    return (total < random.uniform(size=(len(total), 1))).sum(axis=1).clip(0, total.shape[1] - 1)


def true_values(random: np.random.Generator) -> list[dict[str, float]]:
    """The mean, the difference and the slope of each question in a large population."""
    group, covariate, truth, _ = texts_of(random, POPULATION)
    results = []
    for question, probabilities in zip(QUESTIONS, truth, strict=True):
        y = sum(p * outcomes(np.full(1, k), question)[0] for k, p in enumerate(probabilities.T))
        slope = np.cov(covariate, y)[0, 1] / covariate.var()
        difference = y[group == 1].mean() - y[group == 0].mean()
        results.append({"mean": float(np.mean(y)), "difference": difference, "slope": slope})
    return results


def study(random: np.random.Generator, sample: str, method: str | None) -> tuple[Any, ...]:
    """Decisions, hand-coded answers, their probabilities and the covariates of a study."""
    group, covariate, truth, scores = texts_of(random, TEXTS)
    values = tuple(probabilities_of(score, 1.0) for score in scores)
    zeros = tuple(map(np.zeros_like, values))
    stacked = tuple(score[None] for score in scores)
    decisions = Decisions(QUESTIONS, values, zeros, stacked, dict.fromkeys(TYPES, 1.0))
    ordered = np.sort(values[0], axis=1)
    chosen = choose_for_coding(
        ordered[:, -1] - ordered[:, -2],
        CODED,
        minimum=1 if sample == "random" else 0.3,
        seed=int(random.integers(2**31)),
    )
    coded = {
        question.name: [
            question.options[answer] if selected else None
            for answer, selected in zip(drawn(random, p), chosen["selected"], strict=True)
        ]
        for question, p in zip(QUESTIONS, truth, strict=True)
    }
    if method is not None:
        decisions = calibrate(decisions, coded, method=method).decisions  # type: ignore[arg-type]
    probability = None if sample == "random" else chosen["probability"]
    return decisions, coded, probability, {"group": group.astype(float)}, {"slope": covariate}


def coverage(setting: str, studies: int, truth: list[dict[str, float]]) -> list[tuple[Any, ...]]:
    """For each question and estimate: the share of covering intervals and the mean width, corrected
    and naive.
    """
    sample, method, settings = SETTINGS[setting]
    intervals: dict[tuple[str, str], list[tuple[bool, float, bool, float]]] = {}
    random = np.random.default_rng(20261128)
    for _ in range(studies):
        decisions, coded, probability, group, slope = study(random, sample, method)
        for question, values in zip(QUESTIONS, truth, strict=True):
            target = {"question": question.name, "option": OPTIONS[question.name]}
            for name, x, row in (("mean", None, 0), ("difference", group, 1), ("slope", slope, 1)):
                human = {question.name: coded[question.name]}
                result = estimate(
                    human, decisions, x, probability=probability, **target, **settings
                )
                cells: tuple[Any, ...] = ()
                for columns in (result.columns, result.naive.columns):  # type: ignore[union-attr]
                    low, high = columns["lower"][row], columns["upper"][row]
                    cells += (low <= values[name] <= high, high - low)
                intervals.setdefault((question.name, name), []).append(cells)
    return [(*key, *np.mean(cells, axis=0)) for key, cells in intervals.items()]


def main() -> None:
    studies = int(sys.argv[1]) if len(sys.argv) > 1 else STUDIES
    truth = true_values(np.random.default_rng(1))
    print(f"{studies} studies per setting; standard error of a coverage of 95 %:", end=" ")
    print(f"{100 * np.sqrt(0.95 * 0.05 / studies):.1f} points")
    print(f"{'setting':30}{'question':10}{'estimate':12}{'naive':>8}{'corrected':>11}{'width':>8}")
    every = list[float]()
    for setting in SETTINGS:
        rows = coverage(setting, studies, truth)
        for question, name, covered, width, naive, _ in rows:
            every.append(covered)
            print(f"{setting:30}{question:10}{name:12}{naive:8.1%}{covered:11.1%}{width:8.3f}")
        print(f"{setting:30}{'all':10}{'':12}{'':8}{np.mean([row[2] for row in rows]):11.1%}")
    print(f"corrected: {min(every):.1%} to {max(every):.1%}, mean {np.mean(every):.1%}")


if __name__ == "__main__":
    main()
