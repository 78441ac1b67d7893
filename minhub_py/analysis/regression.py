"""Linear and logistic regression with cluster-robust covariances, by Newton's method, and its
prediction-powered form for `estimate`.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
NO_SOLUTION = (
    "the regression has no solution: a covariate separates the labels, or too few texts are coded"
)
ROUNDS = 100  # of Newton's method
MAX_LEVERAGE = 0.9  # a text that determines a coefficient alone has 1


def expected(X: Array, theta: Array, logistic: bool) -> tuple[Array, Array]:
    """Expected labels (N,) and their derivative by the linear predictor."""
    eta = X @ theta
    if not logistic:
        return eta, np.ones(len(eta))
    mean = 1 / (1 + np.exp(-np.clip(eta, -500, 500)))
    return mean, mean * (1 - mean)


def solve(X: Array, targets: Array, weights: Array, logistic: bool) -> Array:
    """The solution θ of Σ weights x (mean(xθ) - targets) = 0 by Newton's method. ValueError: it
    does not converge.
    """
    theta = np.zeros(X.shape[1])
    for _ in range(ROUNDS if logistic else 1):
        mean, slope = expected(X, theta, logistic)
        try:
            step = np.linalg.solve(
                (X * (weights * slope)[:, None]).T @ X, X.T @ (weights * (mean - targets))
            )
        except np.linalg.LinAlgError:
            break
        theta = theta - step
        if not logistic or np.abs(step).max() < 1e-10:
            return theta
    raise ValueError(NO_SOLUTION)


def regression(
    X: Array,
    targets: Array,
    logistic: bool,
    weights: Array | None = None,
    groups: Array | None = None,
    ratio: Array | None = None,
    exponent: float = 0.0,
) -> tuple[Array, Array]:
    """Coefficients and their sandwich covariance.

    ratio: the weights of coded texts, 0 for others, whose scores are divided by (1 - leverage) **
    exponent.
    """
    weights = np.ones(len(X)) if weights is None else weights
    theta = solve(X, targets, weights, logistic)
    mean, slope = expected(X, theta, logistic)
    inverse = np.linalg.inv((X * (weights * slope)[:, None]).T @ X)
    scores = X * (weights * (mean - targets))[:, None]
    if ratio is not None:
        scores /= (1 - leverage(X, ratio * slope, groups))[:, None] ** exponent
    return theta, inverse @ summed_squares(scores, groups) @ inverse


def leverage(X: Array, weights: Array, groups: Array | None) -> Array:
    """The leverage of each text (N,) in a weighted regression, or the sum of its cluster."""
    inverse = np.linalg.pinv((X * weights[:, None]).T @ X)
    single = weights * ((X @ inverse) * X).sum(axis=1)
    return np.clip(
        single if groups is None else np.bincount(groups, single)[groups], 0, MAX_LEVERAGE
    )


def summed_squares(scores: Array, groups: Array | None) -> Array:
    """Σ s sᵀ over the scores (N, C), or over their sums in clusters, with the factor G/(G - 1)."""
    if groups is None:
        return np.asarray(scores.T @ scores)
    sums = np.zeros((int(groups.max()) + 1, scores.shape[1]))
    np.add.at(sums, groups, scores)
    return np.asarray(sums.T @ sums) * len(sums) / (len(sums) - 1)


def best_power(
    X: Array,
    y: Array,
    predicted: Array,
    ratio: Array,
    pi: Array,
    logistic: bool,
    groups: Array | None,
) -> Array:
    """λ of the confidence-driven method (N,), which minimizes the summed variance of the
    coefficients.

    λ of a text is computed without its own label and its cluster's labels: otherwise λ
    depends on whether the text was chosen, which biases the coefficients by a fourth of a standard
    error with 120 coded texts.
    """
    theta = solve(X, predicted + ratio * (y - predicted), np.ones(len(X)), logistic)
    _, slope = expected(X, theta, logistic)
    inverse = np.linalg.inv((X * slope[:, None]).T @ X / len(X))
    weights = ((X @ inverse) ** 2).sum(axis=1) * (1 - pi) / pi * ratio
    groups = np.arange(len(X)) if groups is None else groups
    product, square = (np.bincount(groups, weights * label * predicted) for label in (y, predicted))
    numerator, denominator = (total.sum() - total for total in (product, square))
    powers = np.divide(numerator, denominator, out=np.zeros(len(numerator)), where=denominator > 0)
    return np.asarray(np.clip(powers, 0, 1)[groups])


def prediction_powered(
    X: Array,
    y: Array,
    predicted: Array,
    coded: Array,
    logistic: bool,
    tune: bool,
    groups: Array | None = None,
) -> tuple[Array, Array, float]:
    """Coefficients, covariance and λ of PPI (λ = 1) and PPI++.

    The coefficients and λ have ppi_py's formulas. The covariance is larger: the remainder of a
    coded text is divided by 1 - its leverage, and has the λ of the other texts, because λ minimizes
    the variance of the data that determine it.

    With clusters, a text's influence is its gradient's part of the two means, so that coded
    and other texts of a cluster are summed.
    """
    n, N = int(coded.sum()), int((~coded).sum())
    labelled, unlabelled = X[coded], X[~coded]

    def at(power: float) -> Array:
        if not logistic:
            first = solve(unlabelled, power * predicted[~coded], np.ones(N), False)
            return first + solve(labelled, y[coded] - power * predicted[coded], np.ones(n), False)
        weights = np.where(coded, (1 - power) / n, power / N)
        targets = np.where(coded, (y - power * predicted) / n, power * predicted / N)
        # The slope has the weights, the targets are sums: Σ weights x mean(xθ) = Σ x targets.
        return solve_sums(X, targets, weights)

    def parts(theta: Array) -> tuple[Array, Array, Array, Array]:
        mean, slope = expected(X, theta, logistic)
        inverse = np.linalg.inv((X * slope[:, None]).T @ X / len(X))
        scores = X * (mean - np.where(coded, y, 0))[:, None]
        model = X * (mean - predicted)[:, None]
        return inverse, scores[coded], model[coded], model[~coded]

    power, powers, coded_groups = 1.0, np.ones(n), None if groups is None else groups[coded]
    if tune:
        inverse, scores, model, correction = parts(at(1.0))
        centred, model_centred = scores - scores.mean(axis=0), model - model.mean(axis=0)
        products = ((centred @ inverse) * (model_centred @ inverse)).sum(axis=1)
        every = np.concatenate([model, correction])
        every = every - every.mean(axis=0)
        spread = (1 + n / N) * np.trace(inverse @ (every.T @ every / len(every)) @ inverse)
        if spread > 0:
            power = float(np.clip(products.mean() / spread, 0, 1))
            own = np.arange(n) if coded_groups is None else coded_groups
            cross = products.sum() - np.bincount(own, products)
            powers = np.clip(cross / np.maximum(n - np.bincount(own), 1) / spread, 0, 1)[own]
        else:
            power, powers = 0.0, np.zeros(n)
    theta = at(power)
    inverse, scores, model, correction = parts(theta)
    remainder = scores - powers[:, None] * model
    _, slope = expected(labelled, theta, logistic)
    influence = np.empty_like(X)
    influence[~coded] = power * (correction - correction.mean(axis=0)) / N
    influence[coded] = (remainder - remainder.mean(axis=0)) / n
    influence[coded] /= (1 - leverage(labelled, slope, coded_groups))[:, None]
    return theta, inverse @ summed_squares(influence, groups) @ inverse, power


def solve_sums(X: Array, targets: Array, weights: Array) -> Array:
    """The solution θ of Σ weights x mean(xθ) = Σ x targets for the logistic family."""
    theta = np.zeros(X.shape[1])
    for _ in range(ROUNDS):
        mean, slope = expected(X, theta, True)
        try:
            step = np.linalg.solve(
                (X * (weights * slope)[:, None]).T @ X, X.T @ (weights * mean - targets)
            )
        except np.linalg.LinAlgError:
            break
        theta = theta - step
        if np.abs(step).max() < 1e-10:
            return theta
    raise ValueError(NO_SOLUTION)
