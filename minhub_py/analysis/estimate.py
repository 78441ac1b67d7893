"""Estimates from a model's labels that human labels correct, and the choice of texts for human
coding.

A model's labels Ŷ are known for all N texts, human labels Y for n of them. Intervals from Ŷ alone
ignore the model's errors and are too narrow and in the wrong position. All methods here are valid
for any model, if the texts for human coding were drawn with known probabilities π > 0.

    ppi, ppi++    a simple random sample of texts. Mean: λ mean(Ŷ of other texts) + mean(Y - λŶ of coded texts);
                  ppi has λ = 1, ppi++ the λ in [0, 1] with the smallest variance
    dsl           any known π: a regression on Ỹ = Ŷ + R/π (Y - Ŷ), R = 1 for coded texts
    confidence    as dsl, with λŶ instead of Ŷ and the λ in [0, 1] with the smallest variance; λ of a text is computed
                  from the labels of other texts
    naive         Ŷ instead of Y, for comparison only
    human         the coded texts only, weighted by 1/π

A mean is a regression on a constant, a group difference a group's coefficient. Intervals have
t quantiles for n - C degrees of freedom (C coefficients) and sandwich standard errors. The residual
of a coded text is divided by 1 - h for its leverage h ("human", "ppi", "ppi++": HC3) or by the root
of it ("dsl", "confidence": HC2), and has the λ of other texts: without this, intervals are too
narrow if few texts are coded. With clusters, such as the author of several texts, the influences of
a cluster's texts are summed, the covariance has the factor G/(G - 1) for G clusters, and there are
at most G - 1 degrees of freedom. Cross-fitting: see analysis/cross_fit.py.

In simulated studies with 50 coded of 400 texts, 95 % intervals covered mean and slope in 93 to 97 %
for all methods; a logistic regression's intercept is covered more often (up to 98 %).

Sources
    Angelopoulos et al. (2023), "Prediction-powered inference", and "PPI++" (package ppi_py).
    Egami et al. (2023), "Using Imperfect Surrogates for Downstream Inference" (R package dsl).
    Gligorić et al. (2024), "Can Unconfident LLM Annotations Be Used for Confident Conclusions?"
    MacKinnon & White (1985), "Some Heteroskedasticity-Consistent Covariance Matrix Estimators", for
        HC2 and HC3.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, TypeVar, cast

import numpy as np

from minhub_py.analysis import plots
from minhub_py.analysis.coded import Table, Truth, decisions_of, outcome, truth_of
from minhub_py.analysis.cross_fit import cross_fitted, median_of
from minhub_py.analysis.decisions import Decisions
from minhub_py.analysis.regression import Array, best_power, prediction_powered, regression
from minhub_py.analysis.student import t_quantile
from minhub_py.analysis.tokens import is_missing
from minhub_py.inference.arguments import check_integer, check_list
from minhub_py.system.tables import Columns, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T = TypeVar("T")
Method = Literal["auto", "ppi", "ppi++", "dsl", "confidence", "naive", "human"]
METHODS = ("auto", "ppi", "ppi++", "dsl", "confidence", "naive", "human")


@dataclass(frozen=True)
class Estimates(Result):
    """Coefficients with standard errors and intervals.

    covariance: of the coefficients.    power: λ, the weight of the model's labels.    coded: number
    of human labels.
    freedom: degrees of freedom of the intervals.    naive: the same estimates from the model's
    labels alone; None for method "naive".
    """

    term: list[str]
    estimate: Array
    covariance: Array = field(repr=False)
    confidence: float
    method: str
    power: float
    texts: int
    coded: int
    freedom: int
    naive: "Estimates | None" = field(default=None, repr=False)

    @property
    def std_error(self) -> Array:
        """Standard errors."""
        return np.sqrt(np.diag(self.covariance))

    @property
    def columns(self) -> Columns:
        """Columns term, estimate, std_error, lower and upper."""
        half = t_quantile((1 + self.confidence) / 2, self.freedom) * self.std_error
        return Columns(
            term=self.term,
            estimate=self.estimate,
            std_error=self.std_error,
            lower=self.estimate - half,
            upper=self.estimate + half,
        )

    def __str__(self) -> str:
        return (
            f"{self.texts:,} texts, {self.coded:,} with a human label, method {self.method},"
            f" {self.confidence:.0%} intervals\n{self.columns}"
        )

    def table(self) -> Columns:
        """As `columns`."""
        return self.columns

    def heading(self) -> list[str]:
        """The numbers of texts, and the method."""
        return [
            f"{self.texts:,} texts",
            f"{self.coded:,} with a human label",
            f"method {self.method}",
            f"{self.confidence:.0%} intervals",
        ]

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Draw the estimates with intervals, next to estimates from the model's labels alone.
        Requires matplotlib.
        """
        series = {f"corrected ({self.method})": self.columns}
        if self.naive is not None:
            series["model's labels alone"] = self.naive.columns
        return plots.plot_estimates(series, self.confidence, path)


def choose_for_coding(
    margin: Iterable[float],
    n: int,
    *,
    minimum: float = 0.1,
    uncertainty: Iterable[float] | None = None,
    seed: int = 0,
) -> Columns:
    """Choose texts for human coding, uncertain ones more often, each with a known probability.

    A text's probability is n/N (minimum + (1 - minimum) u / mean(u)), at most 1, with u =
    sqrt((1 - margin) / 2): the root of the error probability of a calibrated model with two labels.
    Exactly `n` texts are chosen, by systematic sampling in random order.

    Args:
        margin: Each text's margin, from `annotate`. NaN: the text is not available, with
            probability 0.
        n: Number of texts to choose.
        minimum: The share of the probability that does not depend on the margin, in (0, 1]. 1: a
            simple random sample.
        uncertainty: Expected root of each text's squared error, instead of u.
        seed: Seed of the choice.

    Returns:
        Columns selected (bool) and probability. Store the probability with the texts: `estimate`
        requires it.

    Raises:
        ValueError: A margin or uncertainty out of range, or more texts than available.
    """
    check_list("margin", margin, "numbers")
    values = np.array(list(margin), float)
    n = check_integer("n", n, 1)
    if not 0 < minimum <= 1:
        raise ValueError(
            f"minimum must be above 0 and at most 1, not {minimum!r}: estimates need a probability"
            " above 0"
        )
    if np.any((values < 0) | (values > 1)):
        raise ValueError("margin must be between 0 and 1: pass the column margin of annotate()")
    available = ~np.isnan(values)
    u = np.sqrt((1 - values) / 2) if uncertainty is None else np.array(list(uncertainty), float)
    if u.shape != values.shape or np.any(u[available] < 0):
        raise ValueError("uncertainty must have one value of 0 or more per text")
    u = u[available]
    if n > len(u):
        raise ValueError(f"n is {n}, but only {len(u)} texts have a margin: choose fewer")
    weights = minimum + (1 - minimum) * (u / u.mean() if u.any() else np.ones_like(u))
    probability = np.zeros(len(u))
    free = np.ones(len(u), bool)
    while free.any():  # probabilities above 1 become 1, and the others grow
        probability[free] = (n - (~free).sum()) * weights[free] / weights[free].sum()
        over = free & (probability >= 1)
        if not over.any():
            break
        probability[over], free = 1, free & ~over
    random = np.random.default_rng(seed)
    order = random.permutation(len(u))
    totals = np.concatenate([[0], probability[order].cumsum()])
    totals[-1] = n  # without rounding errors
    steps = np.floor(totals + random.uniform())
    selected = np.zeros(len(u), bool)
    selected[order] = np.diff(steps) > 0
    result = Columns(selected=np.zeros(len(values), bool), probability=np.zeros(len(values)))
    result["selected"][available], result["probability"][available] = selected, probability
    return result


def estimate(
    human: Iterable[float | None] | Truth,
    model: Iterable[float] | Decisions | Table,
    x: Mapping[str, Iterable[object]] | None = None,
    *,
    question: str | None = None,
    option: str | None = None,
    family: Literal["linear", "logistic"] = "linear",
    method: Method = "auto",
    probability: Iterable[float] | None = None,
    confidence: float = 0.95,
    cluster: Iterable[object] | None = None,
    cross_fit: int = 0,
    splits: int = 10,
    seed: int = 0,
) -> Estimates:
    """Estimate a mean, a group difference or a regression from a model's labels, corrected by human
    labels.

        estimate(human, model_labels)                                  # a mean
        estimate(human, model_labels, {"party": party})                # group differences
        estimate(human, model_labels, {"year": year}, family="logistic")
        estimate(coded_rows, decisions, question="refund")             # of typed decisions

    Args:
        human: Human labels, as numbers such as 0 and 1; None or NaN for texts without one. For
            decisions: hand-coded answers to the question, one per text, or as in `calibrate`.
        model: The model's labels or probabilities for the same texts, as numbers; or the result of
            `decide`, or its table with a column for each option. Texts whose decision is missing
            are left out, together with their values in `x`, `probability` and `cluster`.
        x: Covariates by name. Text is a group: its sorted first value is the reference. Default:
            the mean only.
        question: For decisions, the question. Default: the only one.
        option: For decisions, the option whose share is estimated. Default: "true" of a noul
            question, and the level of a score.
        family: "linear", or "logistic" for labels between 0 and 1.
        method: See the module's documentation. "auto" is "ppi++" without `probability`, or if it is
            the same for all coded texts, and "confidence" otherwise or with `cross_fit`.
        probability: The probability with which each text was chosen, from `choose_for_coding`.
            Default: a simple random sample.
        confidence: Confidence of the intervals.
        cluster: Each text's cluster, such as its author, for standard errors that allow for
            dependent texts.
        cross_fit: Number of folds in which labels are predicted from the model's labels, the
            covariates and the human labels of the other folds, for shorter intervals. 0: the
            model's labels.
        splits: Number of divisions into folds; the result is their median.
        seed: Seed of the divisions.

    Returns:
        `Estimates`, whose `columns` are term, estimate, std_error, lower and upper.

    Raises:
        ValueError: A question or an answer is unknown, columns of different length, missing or
            infinite numbers, too few coded texts, collinear covariates, a coded text without
            probability, or a method that does not fit the probabilities.
    """
    if is_decision_table(model):
        source = decisions_of(model)
        y, predicted = outcome(source, truth_of(model, human), question, option)
        present = ~np.isnan(predicted)
        if not present.any():
            raise ValueError("no text has an answer to the question")
        if x is not None:
            x = {name: of_texts(name, values, present) for name, values in x.items()}
        if probability is not None:
            probability = of_texts("probability", probability, present)
        if cluster is not None:
            cluster = of_texts("cluster", cluster, present)
        y, predicted = y[present], predicted[present]
    elif question is not None or option is not None:
        raise ValueError("question and option are for decisions: pass the result of decide()")
    else:
        y, predicted = (
            numbers_of("human", human),
            numbers_of("model", cast("Iterable[float]", model)),
        )
    names, X = design({} if x is None else x, len(y))
    groups = None if cluster is None else codes_of(cluster, len(y))
    folds, splits = check_integer("cross_fit", cross_fit, 0), check_integer("splits", splits, 1)
    return fit(
        y, predicted, names, X, family, method, probability, confidence, groups, folds, splits, seed
    )


def is_decision_table(model: object) -> TypeGuard[Decisions | Table]:
    """Whether the model's labels are typed decisions."""
    return isinstance(model, Decisions) or (
        hasattr(model, "keys") and {"question", "type"} <= set(map(str, model.keys()))
    )


def of_texts(name: str, values: Iterable[T], present: Array) -> list[T]:
    """The values of the present texts. ValueError: there is not one value per text."""
    items = one_per_text(name, values, len(present))
    return [value for value, used in zip(items, present, strict=True) if used]


def one_per_text(name: str, values: Iterable[T], count: int) -> list[T]:
    """The values as a list. ValueError: there is not one value per text."""
    check_list(name, values, "values, one per text")
    items = list(values)
    if len(items) != count:
        raise ValueError(f"{name} has {len(items)} values for {count} texts: pass one per text")
    return items


def numbers_of(name: str, values: Iterable[Any]) -> Array:
    """Labels as float64, with NaN for missing ones. ValueError: a label is not a number."""
    try:
        return np.array([np.nan if is_missing(value) else float(value) for value in values])
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} must be numbers, such as 1 for a label and 0 for others: {error}"
        ) from error


def codes_of(cluster: Iterable[object], count: int) -> Array:
    """The number of each text's cluster. ValueError: a missing cluster, or fewer than two."""
    check_list("cluster", cluster, "values, one per text")
    values = list(cluster)
    if len(values) != count or any(map(is_missing, values)):
        raise ValueError(
            f"cluster must have one value for each of {count} texts, without missing values"
        )
    numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
    if len(numbers) < 2:
        raise ValueError("cluster must have at least two different values")
    return np.array([numbers[value] for value in values])


def fit(
    y: Array,
    predicted: Array,
    names: list[str],
    X: Array,
    family: str,
    method: str,
    probability: Iterable[float] | None,
    confidence: float,
    groups: Array | None = None,
    folds: int = 0,
    splits: int = 10,
    seed: int = 0,
) -> Estimates:
    """`estimate` with a design matrix X (N, C) and the names of its columns. groups: the number of
    each cluster.
    """
    coded = ~np.isnan(y)
    n, N = int(coded.sum()), len(y)
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, not {method!r}")
    if family not in ("linear", "logistic"):
        raise ValueError(f"family must be 'linear' or 'logistic', not {family!r}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, not {confidence!r}")
    if len(predicted) != N:
        raise ValueError(
            f"{len(predicted)} labels of the model for {N} human labels: pass one per text, with"
            " NaN for texts without a human label"
        )
    if (
        not np.isfinite(predicted).all()
        or not np.isfinite(X).all()
        or not np.isfinite(y[coded]).all()
    ):
        raise ValueError(
            "a label of the model or a covariate is missing or infinite: remove those texts"
        )
    logistic = family == "logistic"
    if logistic and (
        np.any((y[coded] < 0) | (y[coded] > 1)) or np.any((predicted < 0) | (predicted > 1))
    ):
        raise ValueError("family 'logistic' needs labels between 0 and 1")
    if n <= X.shape[1] and method != "naive":
        raise ValueError(
            f"{n} coded texts are too few for {X.shape[1]} coefficients: code more texts"
        )
    if np.linalg.matrix_rank(X) < X.shape[1]:
        raise ValueError("the covariates are collinear: remove one of them")
    if probability is not None:
        check_list("probability", probability, "numbers, one per text")
    pi = np.full(N, n / N) if probability is None else np.array(list(probability), float)
    if len(pi) != N or np.any(~((pi[coded] > 0) & (pi[coded] <= 1))):
        raise ValueError(
            "probability must be above 0 and at most 1 for every coded text, one value per text"
        )
    constant = n == 0 or bool(np.ptp(pi[coded]) < 1e-9)
    if method == "auto":
        method = "ppi++" if constant and n < N and not folds else "confidence"
    if method in ("ppi", "ppi++") and not constant:
        raise ValueError(
            f"method {method!r} needs a simple random sample: use 'confidence' or 'dsl' with"
            " probability"
        )
    if method in ("ppi", "ppi++") and n == N:
        raise ValueError(f"method {method!r} needs texts without a human label: use 'human'")
    if method in ("dsl", "confidence") and np.any(~((pi > 0) & (pi <= 1))):
        raise ValueError(
            "probability must be above 0 for every text, so that the coded texts represent all:"
            " remove texts that could not be chosen"
        )
    if folds == 1 or (folds and method in ("human", "naive")):
        raise ValueError(
            f"cross_fit must be 0, or at least 2 with another method than {method!r}, not {folds}"
        )
    if folds:
        random, results = np.random.default_rng(seed), []
        weights = np.where(coded, 1 / np.where(coded, pi, 1), 0)
        for _ in range(splits):
            labels = cross_fitted(
                np.where(coded, y, 0), predicted, X, coded, weights, folds, groups, random
            )
            results.append(coefficients(X, y, labels, coded, pi, logistic, method, groups))
        estimates, covariances, powers = map(np.array, zip(*results, strict=True))
        theta, covariance = median_of(estimates, covariances)
        power = float(np.median(powers))
    else:
        theta, covariance, power = coefficients(
            X, y, predicted, coded, pi, logistic, method, groups
        )
    freedom = degrees_of_freedom(X, groups, np.ones(N, bool) if method == "naive" else coded)
    naive = None
    if method != "naive":
        naive = fit(y, predicted, names, X, family, "naive", None, confidence, groups)
    return Estimates(names, theta, covariance, confidence, method, power, N, n, freedom, naive)


def degrees_of_freedom(X: Array, groups: Array | None, used: Array) -> int:
    """The degrees of freedom of the t quantiles. used: the texts whose labels determine the
    coefficients (N,).
    """
    freedom = int(used.sum()) - X.shape[1]
    return max(freedom if groups is None else min(freedom, len(np.unique(groups[used])) - 1), 1)


def coefficients(
    X: Array,
    y: Array,
    predicted: Array,
    coded: Array,
    pi: Array,
    logistic: bool,
    method: str,
    groups: Array | None,
) -> tuple[Array, Array, float]:
    """Coefficients, their covariance and λ by a method."""
    if method in ("ppi", "ppi++"):
        return prediction_powered(X, y, predicted, coded, logistic, method == "ppi++", groups)
    ratio = coded / np.where(coded, pi, 1)
    labels = np.where(coded, y, 0)
    if method == "naive":
        return *regression(X, predicted, logistic, groups=groups), 1.0
    if method == "human":
        return *regression(X, labels, logistic, ratio, groups, ratio, 1.0), 0.0
    power = (
        np.ones(len(X))
        if method == "dsl"
        else best_power(X, labels, predicted, ratio, pi, logistic, groups)
    )
    targets = power * predicted + ratio * (labels - power * predicted)
    return *regression(X, targets, logistic, None, groups, ratio, 0.5), float(power.mean())


def design(x: Mapping[str, Iterable[Any]], count: int) -> tuple[list[str], Array]:
    """Names and columns of a design matrix with a constant. ValueError: invalid columns."""
    names, columns = ["(Intercept)"], [np.ones(count)]
    for name, column in x.items():
        values = one_per_text(name, column, count)
        if any(map(is_missing, values)):
            raise ValueError(f"{name} has missing values: remove those texts")
        if any(isinstance(value, str) for value in values):
            for level in sorted(set(values))[1:]:
                names.append(f"{name}={level}")
                columns.append(np.array([value == level for value in values], float))
        else:
            names.append(name)
            columns.append(np.array(values, float))
    return names, np.stack(columns, axis=1)
