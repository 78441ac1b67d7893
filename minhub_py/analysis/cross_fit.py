"""Cross-fitting: better labels for corrected estimates, predicted from human labels, model labels
and covariates.

The texts are divided into folds. A fold's labels are predicted by a weighted regression of the
human labels in the other folds on the model's labels, the covariates and their products, so that no
text predicts itself. Any prediction gives valid intervals for large samples; a better one gives
shorter intervals. In 500 simulated studies with 50 coded of 400 texts, intervals of 95 % covered
mean and slope in 94.2 and 95.4 % ("confidence") or 95.4 and 93.4 % ("ppi++").

The division is repeated; estimates are medians over the divisions, and variances the medians of
variance + (estimate - median)².

Sources
    Egami et al. (2023), section on sample splitting, and the R package dsl, which predicts by
        random forests.
    Zrnic & Candès (2024), "Cross-prediction-powered inference".
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
RIDGE = 1e-6  # relative; for covariates that are constant in a fold


def cross_fitted(
    y: Array,
    predicted: Array,
    X: Array,
    coded: Array,
    weights: Array,
    folds: int,
    groups: Array | None,
    random: np.random.Generator,
) -> Array:
    """Predicted labels (N,).

    Args:
        y: Human labels (N,); the values of texts without one are not used.
        predicted: The model's labels (N,).
        X: Design matrix (N, C), with a constant.
        coded: Whether a text has a human label (N,).
        weights: 1/π of each coded text (N,).
        folds: The number of folds.
        groups: The cluster of each text (N,), whose texts are in one fold; or None.
        random: The generator of the division.

    ValueError: too few coded texts.
    """
    slopes = X[:, 1:] - X[:, 1:].mean(axis=0)
    features = np.column_stack([np.ones(len(X)), predicted, slopes, slopes * predicted[:, None]])
    fold = divided(coded, folds, groups, random)
    result = np.empty(len(y))
    for number in range(folds):
        train = coded & (fold != number)
        if train.sum() <= features.shape[1]:
            raise ValueError(
                f"cross_fit: {int(train.sum())} coded texts are too few for {features.shape[1]}"
                " coefficients: code more texts, or set cross_fit to 0"
            )
        A = features[train]
        gram = (A * weights[train][:, None]).T @ A
        gram += RIDGE * np.diag(np.diag(gram) + np.trace(gram) / len(gram))
        labels = features[fold == number] @ np.linalg.solve(gram, A.T @ (weights[train] * y[train]))
        # The range of the other folds: with a text's own label in it, an extreme text is cut only
        # if it is not coded.
        every = np.concatenate([y[train], predicted])
        result[fold == number] = np.clip(labels, every.min(), every.max())
    return result


def divided(coded: Array, folds: int, groups: Array | None, random: np.random.Generator) -> Array:
    """Each text's fold. Coded texts, and other texts, are divided evenly; clusters stay
    together.
    """
    if groups is not None:
        count = int(groups.max()) + 1
        if count < folds:
            raise ValueError(
                f"cross_fit: {folds} folds need at least as many clusters, not {count}"
            )
        return np.asarray((random.permutation(count) % folds)[groups])
    fold = np.empty(len(coded), int)
    for part in (coded, ~coded):
        fold[part] = random.permutation(int(part.sum())) % folds
    return fold


def median_of(estimates: Array, covariances: Array) -> tuple[Array, Array]:
    """The median of the estimates (S, C) of several divisions, and its covariance from theirs (S,
    C, C).
    """
    center = np.median(estimates, axis=0)
    distance = estimates - center
    return center, np.median(covariances + distance[:, :, None] * distance[:, None, :], axis=0)
