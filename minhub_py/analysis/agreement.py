"""Agreement of raters: percent, kappa, Krippendorff's alpha and F1, with bootstrap intervals over
units.

With two raters, p_o is the share of units with equal labels.

    Cohen's kappa       (p_o - p_e) / (1 - p_e), p_e from each rater's own marginals
    weighted kappa      1 - sum(w o) / sum(w e), w = |i - j| (linear) or (i - j)^2 (quadratic) of category numbers
    Fleiss' kappa       p_e from the marginals of all raters together; for two raters, this is Scott's pi
    Gwet's AC1          p_e = sum(q (1 - q)) / (K - 1), q the mean of the units' shares of each of K categories
    Gwet's AC2          as AC1 with weights w of partial agreement; p_e is multiplied by sum(w) / K
    Krippendorff's alpha    1 - D_o / D_e; the pairs of a unit with m labels have the weight 1 / (m - 1)
    macro F1            the mean over categories of 2 TP / (2 TP + FP + FN), without categories that no rater uses

Distances of alpha: 0 or 1 (nominal), the squared difference of mid-ranks (ordinal), (a - b)^2
(interval), ((a - b) / (a + b))^2 (ratio).

Weights of AC2: 1 - (n over 2) / (K over 2) for n categories from one label to the other (ordinal),
1 - (a - b)^2 / (max - min)^2 (interval), 1 - ((a - b) / (a + b))^2 / ((max - min) / (max + min))^2
(ratio). AC1 and AC2 are less affected by unequal frequencies of the categories than kappa.

With missing labels, generalizations of Fleiss' kappa differ: here, each label has the same weight
in the marginals. The R package irrCAC averages the shares of units instead, so that a label of a
unit with few labels counts more. Without missing labels, the values are equal.

Units with fewer than two labels are dropped, except in the shares of AC1 and AC2; the statistics of
two raters use the units that both have labelled.

This is our own code, because a bootstrap with one call of a library per sample takes minutes. The
tests contain the values of the packages irr (R) and krippendorff (Python).

Sources: Cohen (1960, 1968), Fleiss (1971), Gwet (2008, 2014; R package irrCAC), Krippendorff
(2019), "Content Analysis", chapter 12.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from minhub_py.analysis import plots
from minhub_py.analysis.tokens import is_missing
from minhub_py.inference.arguments import check_integer, check_list
from minhub_py.system.confusion import confusion_of, f1_of
from minhub_py.system.tables import Columns, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
Level = Literal["nominal", "ordinal", "interval", "ratio"]
LEVELS = ("nominal", "ordinal", "interval", "ratio")
BLOCK = 100  # bootstrap samples at a time


@dataclass(frozen=True)
class Agreement(Result):
    """The agreement of raters.

    categories: the labels in order.    confusion: counts (K, K), rows for the first rater; None for
    three or more.
    units: number of units with at least two labels.    values: statistics by name, NaN where
    undefined.
    intervals: (lower, upper) by name.    f1: F1 of each category, for two raters.
    """

    categories: list[object]
    level: str
    raters: int
    units: int
    values: dict[str, float]
    intervals: dict[str, tuple[float, float]] = field(repr=False)
    confusion: Array | None = field(repr=False)
    f1: Array | None = field(repr=False)

    def __getattr__(self, name: str) -> float:
        """A statistic by its name, such as `alpha`."""
        values: dict[str, float] = self.__dict__.get("values", {})
        if name not in values:
            raise AttributeError(f"no statistic {name}: the statistics are {', '.join(values)}")
        return values[name]

    @property
    def columns(self) -> Columns:
        """Columns statistic, estimate, lower and upper."""
        lower, upper = zip(*(self.intervals[name] for name in self.values), strict=True)
        return Columns(
            statistic=[*self.values],
            estimate=[*self.values.values()],
            lower=[*lower],
            upper=[*upper],
        )

    def __str__(self) -> str:
        return f"Agreement of {self.raters} raters, {self.units:,} units\n{self.columns}"

    def table(self) -> Columns:
        """As `columns`."""
        return self.columns

    def heading(self) -> list[str]:
        """The numbers of raters and units."""
        return [f"Agreement of {self.raters} raters", f"{self.units:,} units"]

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Draw the confusion matrix of two raters. ValueError: three or more raters, or no
        matplotlib.
        """
        if self.confusion is None:
            raise ValueError(
                "a confusion matrix requires exactly two raters: call agreement() with two of them"
            )
        title = f"Agreement {self.percent:.1%}, κ = {self.kappa:.2f}"
        return plots.plot_confusion(self.confusion, self.categories, title, path)


def agreement(
    *raters: Iterable[Any],
    level: Level = "nominal",
    categories: Sequence[Any] | None = None,
    bootstrap: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Agreement:
    """Compute the agreement of two or more raters, such as a model and human coders.

        result = agreement(human, model_labels)
        result.kappa, result.intervals["kappa"]

    Args:
        raters: Each rater's labels, one per unit; None and NaN for missing labels.
        level: Level of measurement: "nominal", "ordinal", "interval" or "ratio".
        categories: All labels in order. Default: sorted. An order matters for ordinal text labels
            and weighted kappa.
        bootstrap: Number of bootstrap samples of units; 0 for no intervals.
        confidence: Confidence of the percentile intervals.
        seed: Seed of the bootstrap.

    Returns:
        An `Agreement` with the statistics percent, fleiss_kappa, alpha and ac1, for a level other
        than "nominal" ac2, and for two raters kappa, kappa_linear, kappa_quadratic and f1_macro.

    Raises:
        ValueError: Fewer than two raters, different numbers of units, no unit with two labels, a
            label that is not in `categories`, or labels that are not numbers for "interval" and
            "ratio".
    """
    for number, values in enumerate(raters, 1):
        check_list(f"rater {number}", values, "labels")
    rows = [list(values) for values in raters]
    if len(rows) < 2:
        raise ValueError(
            "agreement() needs at least two raters: pass the labels of each as one list"
        )
    if len({len(values) for values in rows}) > 1:
        raise ValueError(
            f"raters must have one label per unit, but have {', '.join(str(len(v)) for v in rows)}"
            " labels"
        )
    if level not in LEVELS:
        raise ValueError(f"level must be one of {', '.join(LEVELS)}, not {level!r}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, not {confidence!r}")
    present = {value for values in rows for value in values if not is_missing(value)}
    if categories is None:
        try:
            names = sorted(present)
        except TypeError as error:
            raise ValueError(
                "labels must be all numbers or all text: convert them, or pass categories"
            ) from error
    else:
        names = list(categories)
        if unknown := present - set(names):
            raise ValueError(f"the label {next(iter(unknown))!r} is not in categories")
    if level in ("interval", "ratio") and not all(
        isinstance(name, int | float | np.number) for name in names
    ):
        raise ValueError(
            f"level {level!r} needs numbers: convert the labels, or use level 'ordinal' with"
            " categories"
        )
    index = {name: number for number, name in enumerate(names)}
    # (R, U)
    codes = np.array([[-1 if is_missing(v) else index[v] for v in values] for values in rows])
    codes = codes[:, (codes >= 0).any(axis=0)]
    several = (codes >= 0).sum(axis=0) >= 2
    if not several.any():
        raise ValueError("no unit has labels of two raters: there is nothing to compare")
    units, count = codes.shape[1], len(names)
    numbers = (
        np.array(names, float) if level in ("interval", "ratio") else np.arange(count, dtype=float)
    )
    counts = np.zeros((units, count))
    for labels in codes:
        np.add.at(counts, (np.flatnonzero(labels >= 0), labels[labels >= 0]), 1)
    pair = codes[:, several] if len(rows) == 2 else None

    values = {
        name: float(value[0])
        for name, value in statistics(counts, numbers, level, pair, np.ones((1, units))).items()
    }
    samples: dict[str, list[Array]] = {name: [] for name in values}
    random = np.random.default_rng(seed)
    for first in range(0, check_integer("bootstrap", bootstrap, 0), BLOCK):
        weights = random.multinomial(
            units, np.full(units, 1 / units), size=min(BLOCK, bootstrap - first)
        ).astype(float)
        for name, sample in statistics(counts, numbers, level, pair, weights).items():
            samples[name].append(sample)
    tail = (1 - confidence) / 2
    intervals = {}
    for name, parts in samples.items():
        sample = np.concatenate(parts) if parts else np.array([np.nan])
        sample = sample[~np.isnan(sample)]
        low, high = np.quantile(sample, [tail, 1 - tail]) if len(sample) else (np.nan, np.nan)
        intervals[name] = (float(low), float(high))
    confusion = None if pair is None else confusion_of(pair, count, np.ones((1, pair.shape[1])))[0]
    f1 = None if confusion is None else f1_of(confusion[None])[0]
    return Agreement(names, level, len(rows), int(several.sum()), values, intervals, confusion, f1)


def statistics(
    counts: Array, numbers: Array, level: str, pair: NDArray[np.int64] | None, weights: Array
) -> dict[str, Array]:
    """Each sample's statistics, (B,).

    counts: labels of units (U, K).    weights: of units in samples (B, U).    pair: the codes of
    two raters (2, U), without units with one label.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        sizes = counts.sum(axis=1)
        # (B, K)
        shares_of_units = weights @ (counts / sizes[:, None]) / weights.sum(axis=1, keepdims=True)
        counts, weights, sizes = counts[sizes >= 2], weights[:, sizes >= 2], sizes[sizes >= 2]
        agree = ((counts**2).sum(axis=1) - sizes) / (sizes * (sizes - 1))
        observed = weights @ agree / weights.sum(axis=1)
        marginals = weights @ counts
        pooled = marginals / marginals.sum(axis=1, keepdims=True)
        expected = (pooled**2).sum(axis=1)
        result = {"percent": observed, "fleiss_kappa": (observed - expected) / (1 - expected)}
        result["alpha"] = alpha(counts, numbers, level, weights)
        for name, partial in partial_agreement(numbers, level).items():
            weighted = ((counts @ partial - 1) * counts).sum(axis=1) / (sizes * (sizes - 1))
            means = weights @ weighted / weights.sum(axis=1)
            chance = (shares_of_units * (1 - shares_of_units)).sum(axis=1)
            chance = chance * partial.sum() / (len(numbers) * (len(numbers) - 1))
            result[name] = (means - chance) / (1 - chance)
        if pair is None:
            return result
        shares = confusion_of(pair, counts.shape[1], weights)
        f1 = f1_of(shares)
        shares = shares / shares.sum(axis=(1, 2), keepdims=True)
        chance = shares.sum(axis=2)[:, :, None] * shares.sum(axis=1)[:, None, :]
        distance = np.abs(np.subtract.outer(np.arange(counts.shape[1]), np.arange(counts.shape[1])))
        for name, cost in (
            ("kappa", distance > 0),
            ("kappa_linear", distance),
            ("kappa_quadratic", distance**2),
        ):
            result[name] = 1 - (shares * cost).sum(axis=(1, 2)) / (chance * cost).sum(axis=(1, 2))
        used = ~np.isnan(f1)
        result["f1_macro"] = np.where(used, f1, 0).sum(axis=1) / used.sum(axis=1)
    return result


def partial_agreement(numbers: Array, level: str) -> dict[str, Array]:
    """The weights (K, K) of AC1 and, if the level is not nominal, of AC2."""
    result = {"ac1": np.eye(len(numbers))}
    if level == "nominal" or len(numbers) < 2:
        return result
    distance = np.abs(np.subtract.outer(numbers, numbers))
    if level == "ordinal":  # the numbers of categories in between, in pairs
        distance = distance * (distance + 1) / 2
    elif level == "interval":
        distance = distance**2
    else:
        sums = np.add.outer(numbers, numbers)
        distance = np.divide(distance, sums, out=np.zeros_like(sums), where=sums != 0) ** 2
    return {**result, "ac2": 1 - distance / distance.max()}


def alpha(counts: Array, numbers: Array, level: str, weights: Array) -> Array:
    """Krippendorff's alpha of each sample, (B,). See `statistics`."""
    sizes = counts.sum(axis=1)
    marginals = weights @ counts  # (B, K)
    total = marginals.sum(axis=1)
    if level in ("nominal", "ratio"):
        if level == "nominal":
            distance = 1 - np.eye(len(numbers))
        else:
            sums = np.add.outer(numbers, numbers)
            distance = (
                np.divide(
                    np.subtract.outer(numbers, numbers),
                    sums,
                    out=np.zeros_like(sums),
                    where=sums != 0,
                )
                ** 2
            )
        observed = weights @ (((counts @ distance) * counts).sum(axis=1) / (sizes - 1))
        expected = ((marginals @ distance) * marginals).sum(axis=1)
    else:
        # An ordinal distance is the squared difference of mid-ranks, which depend on the sample.
        positions = (
            marginals.cumsum(axis=1) - marginals / 2
            if level == "ordinal"
            else np.tile(numbers, (len(weights), 1))
        )
        # (B, U)
        within = 2 * (sizes * (positions**2 @ counts.T) - (positions @ counts.T) ** 2) / (sizes - 1)
        observed = (weights * within).sum(axis=1)
        expected = 2 * (
            total * (marginals * positions**2).sum(axis=1)
            - (marginals * positions).sum(axis=1) ** 2
        )
    return 1 - (observed / total) / (expected / (total * (total - 1)))
