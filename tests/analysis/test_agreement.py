"""Agreement: reference values of irr (R) and krippendorff (Python), missing values, and intervals."""

import math

import numpy as np
import pytest

from minhub_py import agreement

NA = None
# The data of irr's help page: 4 raters, 12 units.
RATERS = [
    [1, 2, 3, 3, 2, 1, 4, 1, 2, NA, NA, NA],
    [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, NA, 3],
    [NA, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, NA],
    [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, NA],
]
R1, R2, R3 = (
    [1, 1, 2, 2, 3, 1, 2, 3, 1, 2],
    [1, 2, 2, 2, 3, 1, 2, 3, 1, 1],
    [1, 1, 2, 3, 3, 1, 2, 2, 1, 2],
)


@pytest.mark.parametrize(
    ("level", "value"),
    [("nominal", 0.743421), ("ordinal", 0.815388), ("interval", 0.849107), ("ratio", 0.797403)],
)
def test_alpha_has_the_published_values_with_missing_labels(level: str, value: float) -> None:
    assert agreement(*RATERS, level=level, bootstrap=0).alpha == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("level", ["nominal", "ordinal", "interval", "ratio"])
def test_gwets_coefficients_have_the_values_of_their_definition(level: str) -> None:
    """AC1 is 0.77544 in irrCAC's help. The label of a unit with one label counts in the categories'
    shares.
    """
    result = agreement(*RATERS, level=level, bootstrap=0)
    assert result.ac1 == pytest.approx(0.77544, abs=5e-6)
    if level == "nominal":
        assert "ac2" not in result.values
        return
    categories = [1, 2, 3, 4, 5]

    def distance(a: int, b: int) -> float:
        between = abs(a - b) + 1
        ratio = ((a - b) / (a + b)) ** 2
        return {"ordinal": between * (between - 1) / 2, "interval": (a - b) ** 2, "ratio": ratio}[
            level
        ]

    largest = max(distance(a, b) for a in categories for b in categories)
    weights = {(a, b): 1 - distance(a, b) / largest for a in categories for b in categories}
    units = [[label for label in unit if label is not None] for unit in zip(*RATERS, strict=True)]
    pairs = [
        [weights[a, b] for i, a in enumerate(unit) for j, b in enumerate(unit) if i != j]
        for unit in units
    ]
    found = np.mean([np.mean(values) for values in pairs if values])
    shares = [
        np.mean([unit.count(category) / len(unit) for unit in units]) for category in categories
    ]
    chance = sum(weights.values()) * sum(share * (1 - share) for share in shares) / 20
    assert result.ac2 == pytest.approx((found - chance) / (1 - chance))


def test_fleiss_kappa_weights_labels_and_not_units() -> None:
    """irrCAC averages the shares of units instead (0.76117), which is equal without missing labels."""
    assert agreement(*RATERS, bootstrap=0).fleiss_kappa == pytest.approx(0.760766, abs=1e-6)


def test_alpha_of_three_raters_without_missing_labels_is_not_irrs() -> None:
    # irr: 0.590278
    assert agreement(R1, R2, R3, bootstrap=0).alpha == pytest.approx(0.597222, abs=1e-6)
    two = agreement(R1, R2, bootstrap=0)
    assert two.alpha == pytest.approx(0.703125, abs=1e-6)
    assert two.kappa == pytest.approx(0.6875, abs=1e-9)
    assert two.f1_macro == pytest.approx(0.8333, abs=1e-4)
    assert two.confusion is not None
    assert two.confusion.tolist() == [[3, 1, 0], [1, 3, 0], [0, 0, 2]]


def test_fleiss_pools_the_marginals_and_weighted_kappa_weights_distances() -> None:
    result = agreement(R1, R2, bootstrap=0)
    pooled = np.bincount(R1 + R2, minlength=4)[1:] / 20
    expected = (pooled**2).sum()
    assert result.fleiss_kappa == pytest.approx((0.8 - expected) / (1 - expected))
    a, b = np.array(R1), np.array(R2)
    for name, power in (("kappa_linear", 1), ("kappa_quadratic", 2)):
        cost = np.abs(a[:, None] - b[None, :]) ** power
        assert getattr(result, name) == pytest.approx(1 - np.diag(cost).mean() / cost.mean())


def test_units_that_one_rater_lacks_are_dropped_and_an_unused_category_does_not_change_f1() -> None:
    full = agreement(["a", "b", "a", "b"], ["a", "b", "b", "b"], bootstrap=0)
    result = agreement(
        ["a", "b", None, "a", "b"],
        ["a", "b", "a", "b", "b"],
        categories=["a", "b", "c"],
        bootstrap=0,
    )
    # which depends on the categories
    without = {name: value for name, value in full.values.items() if name != "ac1"}
    assert {name: result.values[name] for name in without} == pytest.approx(without)
    assert math.isnan(result.f1[2])  # type: ignore[index]


def test_intervals_contain_the_estimate_and_shrink_with_units() -> None:
    few, many = agreement(R1, R2), agreement(R1 * 20, R2 * 20)
    for result in (few, many):
        low, high = result.intervals["alpha"]
        assert low < result.alpha < high
    assert np.ptp(many.intervals["kappa"]) < np.ptp(few.intervals["kappa"]) / 3
    assert agreement(R1, R2).intervals == few.intervals


def test_wrong_calls_name_the_problem() -> None:
    with pytest.raises(ValueError, match="at least two raters"):
        agreement(R1)
    with pytest.raises(ValueError, match="have 10, 2 labels"):
        agreement(R1, [1, 2])
    with pytest.raises(ValueError, match="needs numbers"):
        agreement(["a", "b"], ["a", "b"], level="interval")
    with pytest.raises(ValueError, match="no unit has labels"):
        agreement([1, None], [None, 1])
