"""Linear probes: predict labels from activations, with folds by group.

Sources
    Alain & Bengio (2016), "Understanding intermediate layers using linear classifier probes";
        Hewitt & Liang (2019), "Designing and Interpreting Probes with Control Tasks".
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minhub_py.analysis.tokens import is_missing
from minhub_py.inference.arguments import check_integer, check_list, is_number
from minhub_py.system.extras import require
from minhub_py.system.tables import Columns, Result


@dataclass(frozen=True)
class Probe(Result):
    """The result of a probe.

    Attributes:
        metric: "accuracy" for classes, "r2" for numbers.
        score: The metric of the predictions of all folds together.
        interval: 95 % interval by a bootstrap over groups (percentiles).
        control: The same metric with shuffled labels.
        baseline: The metric of the most frequent class, or 0 for "r2".
        predictions: Each row's prediction, by the model that was fitted without its fold.
        folds: Each row's fold, from 0.
        classes: The classes; empty for numbers.
        coef: Coefficients fitted to all rows, in units of the activations: (1 or classes, size).
            The first row points towards the second class of two, or towards larger numbers.
        intercept: The constant of each row of coef. `x @ coef.T + intercept` predicts a number, the
            log-odds of the second class of two, or the logits of the classes.
    """

    metric: str
    score: float
    interval: tuple[float, float]
    control: float
    baseline: float
    predictions: np.ndarray = field(repr=False)
    folds: np.ndarray = field(repr=False)
    classes: list[object]
    coef: np.ndarray = field(repr=False)
    intercept: np.ndarray = field(repr=False)

    def table(self) -> Columns:
        """The prediction and the fold of each row."""
        return Columns(prediction=self.predictions, fold=self.folds)

    def heading(self) -> list[str]:
        """The score with its interval, and the scores to compare it with."""
        lower, upper = self.interval
        return [
            f"{self.metric} {self.score:.3f} ({lower:.3f} to {upper:.3f})",
            f"shuffled labels {self.control:.3f}",
            f"baseline {self.baseline:.3f}",
        ]


def probe(
    activations: object,
    y: Iterable[object],
    *,
    groups: Iterable[object] | None = None,
    folds: int = 5,
    penalty: float = 1.0,
    bootstrap: int = 1000,
    seed: int = 0,
) -> Probe:
    """Fit a linear probe and measure it by cross-validation. Requires scikit-learn.

    Activations are standardized with the mean and standard deviation of the training folds. Labels
    that are floats are predicted by a ridge regression, others by a logistic regression.

    Args:
        activations: Rows (n, size): a tensor or array, such as `activations(…,
            pool="last")["layers.3.resid"]`.
        y: A label or number for each row.
        groups: Rows of one group are in the same fold, such as the sentences of a text or the forms
            of a word; by default each row is a group.
        folds: The number of folds.
        penalty: The strength of the L2 penalty, λ: larger values shrink the coefficients.
        bootstrap: The number of bootstrap samples of the interval.
        seed: The seed of folds, shuffled labels and bootstrap.

    Returns:
        The score with its interval, and the score with shuffled labels.

    Raises:
        ValueError: Rows, labels and groups that differ in number; fewer groups than folds; fewer
            than two classes; values that are missing; or scikit-learn is not installed.
    """
    require("probe")
    check_list("activations", activations, "rows")
    check_list("y", y, "labels")
    x = np.asarray(activations, dtype=np.float64)
    labels = np.asarray(y)
    owners = np.arange(len(labels)) if groups is None else np.asarray(groups)
    if x.ndim != 2 or not len(x) == len(labels) == len(owners):
        raise ValueError(
            f"activations must have a row for each of the {len(labels)} labels, not the shape"
            f" {x.shape}: pass the activations of one point, pooled to a row per text"
        )
    infinite = not np.isfinite(x).all() or (
        labels.dtype.kind == "f" and not np.isfinite(labels).all()
    )
    if infinite or any(
        map(is_missing, [*(y if labels.ndim == 1 else ()), *(() if groups is None else groups)])
    ):
        raise ValueError(
            "activations, y and groups must not contain missing or infinite values: remove those"
            " rows"
        )
    folds = check_integer("folds", folds, 2)
    _, owners = np.unique(owners, return_inverse=True)
    count = owners.max() + 1
    if count < folds:
        raise ValueError(
            f"{folds} folds need at least {folds} groups, not {count}: pass fewer folds"
        )
    if not is_number(penalty) or penalty <= 0:
        raise ValueError(f"penalty must be a positive number, not {penalty!r}")
    classes: list[object] = [] if labels.dtype.kind == "f" else np.unique(labels).tolist()
    if len(classes) == 1:
        raise ValueError("y has one class only: pass labels of at least two classes")
    random = np.random.default_rng(seed)
    order = random.permutation(count)
    fold = (np.argsort(order) % folds)[owners]
    predictions = cross_validated(x, labels, fold, penalty, bool(classes))
    shuffled = random.permutation(labels)
    control = score_of(
        shuffled, cross_validated(x, shuffled, fold, penalty, bool(classes)), bool(classes)
    )
    members = [np.flatnonzero(owners == group) for group in range(count)]
    scores = []
    for _ in range(check_integer("bootstrap", bootstrap, 1)):
        rows = np.concatenate([members[group] for group in random.integers(count, size=count)])
        scores.append(score_of(labels[rows], predictions[rows], bool(classes)))
    low, high = np.nanpercentile(scores, [2.5, 97.5])
    scale = x.std(axis=0)
    regression = fitted(x, labels, penalty, bool(classes))[-1]
    coef = np.atleast_2d(regression.coef_) / np.where(scale == 0, 1, scale)
    intercept = np.atleast_1d(regression.intercept_) - coef @ x.mean(axis=0)
    baseline = (
        float(np.unique(labels, return_counts=True)[1].max() / len(labels)) if classes else 0.0
    )
    metric = "accuracy" if classes else "r2"
    score = score_of(labels, predictions, bool(classes))
    return Probe(
        metric,
        score,
        (float(low), float(high)),
        control,
        baseline,
        predictions,
        fold,
        classes,
        coef,
        intercept,
    )


def fitted(x: np.ndarray, y: np.ndarray, penalty: float, classify: bool) -> Any:
    """A pipeline of standardization and regression, fitted to the rows."""
    from sklearn.linear_model import LogisticRegression, Ridge  # type: ignore[import-not-found,import-untyped]
    from sklearn.pipeline import make_pipeline  # type: ignore[import-not-found,import-untyped]
    from sklearn.preprocessing import StandardScaler  # type: ignore[import-not-found,import-untyped]

    model = LogisticRegression(C=1 / penalty, max_iter=5000) if classify else Ridge(alpha=penalty)
    return make_pipeline(StandardScaler(), model).fit(x, y)


def cross_validated(
    x: np.ndarray, y: np.ndarray, folds: np.ndarray, penalty: float, classify: bool
) -> np.ndarray:
    """Each row's prediction by a model that was fitted to the other folds."""
    predictions = np.empty_like(y)
    for fold in np.unique(folds):
        training = folds != fold
        if classify and len(np.unique(y[training])) < 2:  # a constant prediction
            predictions[~training] = y[training][0]
        else:
            predictions[~training] = fitted(x[training], y[training], penalty, classify).predict(
                x[~training]
            )
    return predictions


def score_of(y: np.ndarray, predictions: np.ndarray, classify: bool) -> float:
    """Accuracy, or the proportion of variance explained; NaN if y is constant."""
    if classify:
        return float((y == predictions).mean())
    spread = ((y - y.mean()) ** 2).sum()
    return float(1 - ((y - predictions) ** 2).sum() / spread) if spread > 0 else float("nan")
