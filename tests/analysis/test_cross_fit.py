"""Corrected estimates with clusters and with cross-fitting: hand computations and simulated
coverage.
"""

from typing import Any

import numpy as np
import pytest

from minhub_py import estimate
from minhub_py.analysis.cross_fit import cross_fitted, median_of
from minhub_py.analysis.regression import best_power

RUNS = 500
SEED = 20261125  # chosen before the first run
TOLERANCE = 3 * np.sqrt(0.95 * 0.05 / RUNS)  # three standard errors, because ten shares are tested


def test_a_cluster_of_each_text_gives_the_usual_standard_errors() -> None:
    """Up to the factor G/(G - 1)."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=300), random.normal(size=300)
    predicted = y + random.normal(size=300)
    human = np.where(np.arange(300) < 90, y, np.nan)
    for method, probability in (
        ("dsl", np.full(300, 0.3)),
        ("human", np.full(300, 0.3)),
        ("ppi", None),
        ("naive", None),
    ):
        settings: Any = {"method": method, "probability": probability}
        plain = estimate(human, predicted, **settings)
        single = estimate(human, predicted, cluster=range(300), **settings)
        assert single.estimate == pytest.approx(plain.estimate)
        assert single.covariance == pytest.approx(plain.covariance * 300 / 299)
        # Each text twice, in one cluster: the information of one text, and not of two.
        doubled = estimate(
            np.repeat(human, 2),
            np.repeat(predicted, 2),
            {"x": np.repeat(x, 2)},
            cluster=np.repeat(np.arange(300), 2),
            method=method,
            probability=None if probability is None else np.repeat(probability, 2),
        )
        once = estimate(human, predicted, {"x": x}, cluster=range(300), **settings)
        assert doubled.covariance == pytest.approx(once.covariance)


def clustered(random: np.random.Generator) -> tuple[Any, ...]:
    """150 authors with four texts each; labels and errors of the model depend on the author. The
    mean is 0.5.
    """
    author = np.repeat(np.arange(150), 4)
    level = random.normal(size=150)[author]
    x = level + random.normal(size=600)
    y = 0.5 + 0.2 * level + 0.2 * random.normal(size=600)
    predicted = y + 0.3 * level + 0.1 * random.normal(size=600)
    return author, x, y, predicted


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ppi++", "dsl"])
def test_intervals_for_clusters_cover_the_mean_and_others_do_not(method: str) -> None:
    random = np.random.default_rng(SEED)
    covered, ignored = [], []
    for _ in range(RUNS):
        author, _, y, predicted = clustered(random)
        human = np.where(random.permutation(600) < 200, y, np.nan)
        settings: Any = {"method": method, "probability": np.full(600, 1 / 3)}
        for cluster, covers in ((author, covered), (None, ignored)):
            columns = estimate(human, predicted, cluster=cluster, **settings).columns
            covers.append(columns["lower"][0] <= 0.5 <= columns["upper"][0])
    assert abs(np.mean(covered) - 0.95) <= TOLERANCE
    assert np.mean(ignored) < 0.95 - TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("method", ["auto", "dsl", "ppi", "ppi++"])
def test_cross_fitted_intervals_cover_the_truth_and_are_shorter(method: str) -> None:
    """Coverage of 95 %, and no bias, with 120 labels. The model's labels are on another scale than
    the human ones.
    """
    random, truth = np.random.default_rng(SEED), np.array([0.5, 0.3])
    covered, errors, widths = [], [], []
    for _ in range(RUNS):
        x = random.normal(size=400)
        y = 0.5 + 0.3 * x + 0.3 * random.normal(size=400)
        predicted = 2 - 1.5 * y + 0.6 * x + 0.1 * random.normal(size=400)
        human = np.where(random.permutation(400) < 120, y, np.nan)
        settings: Any = {"method": method, "probability": np.full(400, 120 / 400)}
        result = estimate(human, predicted, {"x": x}, cross_fit=4, splits=3, **settings)
        columns = result.columns
        covered.append((columns["lower"] <= truth) & (columns["upper"] >= truth))
        errors.append(result.estimate - truth)
        widths.append(result.std_error / estimate(human, predicted, {"x": x}, **settings).std_error)
    assert np.abs(np.mean(covered, axis=0) - 0.95).max() <= TOLERANCE
    assert (np.abs(np.mean(errors, axis=0)) <= 3 * np.std(errors, axis=0) / np.sqrt(RUNS)).all()
    assert np.mean(widths, axis=0).max() < 0.8


def test_the_weight_of_a_text_does_not_depend_on_its_own_label() -> None:
    random = np.random.default_rng(0)
    y = random.normal(size=60)
    predicted, X, pi = y + random.normal(size=60), np.ones((60, 1)), np.full(60, 0.5)
    ratio = np.where(np.arange(60) < 30, 2.0, 0.0)
    for groups, same in ((None, slice(3, 4)), (np.arange(60) // 6, slice(0, 6))):
        before = best_power(X, y, predicted, ratio, pi, False, groups)
        changed = np.where(np.arange(60) == 3, y + 0.5, y)
        after = best_power(X, changed, predicted, ratio, pi, False, groups)
        assert after[same] == pytest.approx(before[same], abs=1e-14)
        assert (np.abs(after - before) > 1e-9).sum() == 60 - (same.stop - same.start)


def test_no_text_predicts_its_own_label() -> None:
    random = np.random.default_rng(0)
    predicted, coded = random.normal(size=60), np.arange(60) < 30
    X, weights = np.ones((60, 1)), np.ones(60)
    y = random.normal(size=60)
    before = cross_fitted(y, predicted, X, coded, weights, 5, None, np.random.default_rng(1))
    changed = y.copy()
    changed[3] += 0.5
    after = cross_fitted(changed, predicted, X, coded, weights, 5, None, np.random.default_rng(1))
    assert after[3] == before[3]
    assert (after != before).sum() > 40
    groups = np.arange(60) // 6  # no text predicts its cluster
    before = cross_fitted(y, predicted, X, coded, weights, 5, groups, np.random.default_rng(1))
    after = cross_fitted(changed, predicted, X, coded, weights, 5, groups, np.random.default_rng(1))
    assert (after[:6] == before[:6]).all()


def test_divisions_are_combined_by_the_median() -> None:
    center, covariance = median_of(
        np.array([[1.0], [2.0], [5.0]]), np.array([[[0.1]], [[0.2]], [[0.3]]])
    )
    assert center.tolist() == [2.0]
    assert covariance.tolist() == [[1.1]]  # of 1.1, 0.2 and 9.3


def test_wrong_clusters_and_folds_are_errors() -> None:
    human, predicted = [1.0, 0.0, 1.0, None, None, None], [1.0, 0.0, 0.5, 0.5, 0.0, 1.0]
    with pytest.raises(ValueError, match="cluster must have one value for each of 6 texts"):
        estimate(human, predicted, cluster=[1, 2])
    with pytest.raises(ValueError, match="at least two different values"):
        estimate(human, predicted, cluster=["a"] * 6)
    with pytest.raises(ValueError, match="cross_fit must be 0, or at least 2"):
        estimate(human, predicted, cross_fit=1)
    with pytest.raises(ValueError, match="with another method than 'human'"):
        estimate(human, predicted, cross_fit=2, method="human")
    with pytest.raises(ValueError, match="coded texts are too few"):
        estimate(human, predicted, cross_fit=3)
    with pytest.raises(ValueError, match="3 folds need at least as many clusters, not 2"):
        estimate(human, predicted, cross_fit=3, cluster=[1, 1, 1, 2, 2, 2])
