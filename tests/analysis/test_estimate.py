"""Corrected estimates: values of ppi_py and by hand, and simulated coverage."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from needs import need

from minhub_py import agreement, choose_for_coding, estimate

i = np.arange(200)
Y = ((7919 * i) % 11 < 5).astype(float)
PREDICTED = np.clip(0.15 + 0.6 * Y + 0.2 * np.sin(i), 0, 1)
HUMAN = np.where(i < 40, Y, np.nan)
RUNS = 500
# Intervals of 95 % cover the truth in 93 to 97 % of 500 studies: two standard errors.
TOLERANCE = 0.02 + 1e-9
# With 50 coded texts, logistic regressions are just outside: 2.5 standard errors.
WITH_FEW = 2.5 * np.sqrt(0.95 * 0.05 / RUNS)
T39 = 2.0226909  # the quantile of Student's t for 95 % and 39 degrees of freedom


def test_estimates_have_the_reference_values() -> None:
    """Estimates equal those of ppi_py; intervals are wider, by t quantiles and the leverage of the
    40 coded texts.
    """
    human = estimate(HUMAN, PREDICTED, method="human")
    assert human.estimate == pytest.approx([0.4])
    assert human.std_error == pytest.approx([np.sqrt(0.24 / 40) * 40 / 39])
    assert human.columns["upper"] == pytest.approx(0.4 + T39 * human.std_error)
    ppi = estimate(HUMAN, PREDICTED, method="ppi")
    assert ppi.estimate == pytest.approx([0.434874], abs=1e-6)
    variance = PREDICTED[40:].var() / 160 + (Y - PREDICTED)[:40].var() / 40 * (40 / 39) ** 2
    assert ppi.std_error == pytest.approx([np.sqrt(variance)])
    line = estimate(HUMAN, PREDICTED, {"cos": np.cos(i)}, method="ppi").columns
    assert line["estimate"] == pytest.approx([0.434288, 0.012873], abs=1e-6)
    mean = estimate(HUMAN, PREDICTED, method="dsl", probability=np.full(200, 0.2))
    assert mean.estimate == pytest.approx([0.427899], abs=1e-6)
    dsl = estimate(
        HUMAN, PREDICTED, {"cos": np.cos(i)}, method="dsl", probability=np.full(200, 0.2)
    )
    assert dsl.estimate == pytest.approx([0.427950, 0.018768], abs=1e-6)
    # Standard errors of ppi_py, and by the formulas of dsl.
    assert line["std_error"] == pytest.approx([0.046799, 0.062619], abs=1e-6)  # HC3
    for result, reference in (
        (line["std_error"], [0.045722, 0.060598]),
        (mean.std_error, [0.048042]),
        (dsl.std_error, [0.048041, 0.065689]),
    ):
        assert ((result > reference) & (result < np.multiply(reference, 1.06))).all()
    assert estimate(HUMAN, PREDICTED, method="naive").estimate == pytest.approx(
        [0.428268], abs=1e-6
    )


def simulated(family: str) -> Iterator[tuple[Any, ...]]:
    """Covariate, true and predicted labels: a model with more errors where the covariate is
    positive.
    """
    random = np.random.default_rng(7)
    for _ in range(RUNS):
        x = random.normal(size=800)
        mean = (
            1 / (1 + np.exp(-(0.2 + 0.6 * x)))
            if family == "logistic"
            else 0.5 + 0.1 * np.clip(x, -3, 3)
        )
        y = (random.uniform(size=800) < mean).astype(float)
        wrong = random.uniform(size=800) < np.where(x > 0, 0.3, 0.1)
        predicted = np.where(wrong, 1 - y, y)
        margin = np.clip(random.normal(np.where(x > 0, 0.3, 0.7), 0.15), 0, 1)
        yield x, y, predicted, margin, int(random.integers(2**31))


TRUTH = {"linear": [0.5, 0.1], "logistic": [0.2, 0.6]}


@pytest.mark.slow
@pytest.mark.parametrize("family", ["linear", "logistic"])
@pytest.mark.parametrize("method", ["ppi++", "dsl", "confidence"])
def test_intervals_cover_the_truth_as_often_as_they_promise_and_naive_ones_do_not(
    family: str, method: str
) -> None:
    covered, naive = [], []
    for x, y, predicted, margin, seed in simulated(family):
        chosen = choose_for_coding(margin, 250, minimum=1 if method == "ppi++" else 0.3, seed=seed)
        human = np.where(chosen["selected"], y, np.nan)
        settings: Any = {"family": family, "method": method}
        result = estimate(human, predicted, {"x": x}, probability=chosen["probability"], **settings)
        for results, covers in ((result, covered), (result.naive, naive)):
            assert results is not None
            columns = results.columns
            covers.append((columns["lower"] <= TRUTH[family]) & (TRUTH[family] <= columns["upper"]))
    assert np.abs(np.mean(covered, axis=0) - 0.95).max() <= TOLERANCE
    assert np.mean(naive, axis=0).min() < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("family", ["linear", "logistic"])
@pytest.mark.parametrize("method", ["human", "ppi++", "dsl", "confidence"])
def test_intervals_hold_with_50_coded_texts(family: str, method: str) -> None:
    """Normal intervals cover the slope of "ppi++" in 90 to 92 % of studies. A separated sample is
    an error.
    """
    covered: list[Any] = []
    for *columns_of_study, seed in simulated(family):
        x, y, predicted, margin = (column[:400] for column in columns_of_study)
        chosen = choose_for_coding(margin, 50, minimum=1 if method == "ppi++" else 0.3, seed=seed)
        human = np.where(chosen["selected"], y, np.nan)
        settings: Any = {"family": family, "method": method, "probability": chosen["probability"]}
        try:
            columns = estimate(human, predicted, {"x": x}, **settings).columns
        except ValueError as error:  # not LinAlgError
            assert "the regression has no solution" in str(error)  # noqa: PT017
            continue
        covered.append((columns["lower"] <= TRUTH[family]) & (TRUTH[family] <= columns["upper"]))
    assert len(covered) >= 0.99 * RUNS
    intercept, slope = np.mean(covered, axis=0)
    assert abs(slope - 0.95) <= WITH_FEW
    assert -WITH_FEW <= intercept - 0.95 <= 0.04  # wide for logistic regressions


@pytest.mark.parametrize("method", ["ppi", "ppi++"])
def test_a_logistic_regression_without_a_solution_is_named(method: Any) -> None:
    """All human labels are on one side of x, so that the slope has no finite value."""
    x = np.linspace(-1, 1, 60)
    human = np.where(np.arange(60) % 6 == 0, (x > 0).astype(float), np.nan)
    with pytest.raises(
        ValueError, match="the regression has no solution: a covariate separates the labels"
    ):
        estimate(human, (x > 0).astype(float), {"x": x}, family="logistic", method=method)


def test_a_mean_and_a_group_difference_are_covered() -> None:
    covered = []
    for x, _, _, margin, seed in simulated("linear"):
        random = np.random.default_rng(seed)
        group = np.where(x > 0, "b", "a")
        y = (random.uniform(size=800) < np.where(x > 0, 0.6, 0.4)).astype(float)
        predicted = np.where(random.uniform(size=800) < 0.2, 1 - y, np.where(x > 0, 1, y))
        chosen = choose_for_coding(margin, 250, minimum=0.3, seed=seed)
        human = np.where(chosen["selected"], y, np.nan)
        columns = estimate(
            human, predicted, {"group": group}, probability=chosen["probability"]
        ).columns
        assert columns["term"] == ["(Intercept)", "group=b"]
        covered.append((columns["lower"] <= [0.4, 0.2]) & (columns["upper"] >= [0.4, 0.2]))
    assert np.abs(np.mean(covered, axis=0) - 0.95).max() <= TOLERANCE


def test_each_text_is_chosen_as_often_as_its_probability_says() -> None:
    margin = np.linspace(0, 1, 40)
    margin[3] = np.nan
    draws = [choose_for_coding(margin, 10, seed=seed) for seed in range(2000)]
    assert {int(draw["selected"].sum()) for draw in draws} == {10}
    probability = draws[0]["probability"]
    assert probability.sum() == pytest.approx(10)
    assert probability[3] == 0
    assert probability[np.arange(40) != 3].min() >= 0.1 * 10 / 39 * 0.99
    share = np.mean([draw["selected"] for draw in draws], axis=0)
    assert np.abs(share - probability).max() < 4 * np.sqrt(0.25 / 2000)
    assert choose_for_coding([0.0, 1.0, 1.0], 3)["selected"].all()


def test_wrong_calls_name_the_problem() -> None:
    with pytest.raises(ValueError, match="simple random sample"):
        estimate(HUMAN, PREDICTED, method="ppi", probability=np.where(i < 20, 0.3, 0.2))
    with pytest.raises(ValueError, match="too few for 1 coefficients"):
        estimate([None] * 199 + [1], PREDICTED)
    with pytest.raises(ValueError, match="collinear"):
        estimate(HUMAN, PREDICTED, {"a": i, "b": 2 * i})
    with pytest.raises(ValueError, match="for every coded text"):
        estimate(HUMAN, PREDICTED, probability=np.zeros(200))
    with pytest.raises(ValueError, match="minimum must be above 0"):
        choose_for_coding([0.5], 1, minimum=0)
    with pytest.raises(ValueError, match="only 1 texts"):
        choose_for_coding([0.5, float("nan")], 2)
    with pytest.raises(
        ValueError, match="human must be numbers, such as 1 for a label and 0 for others: .*'yes'"
    ):
        estimate(["yes", None], [0.1, 0.2])  # type: ignore[list-item]


def test_results_are_shown_as_tables() -> None:
    assert str(estimate([0, 1, None, 1], [0.25, 0.5, 0.75, 1], method="human")).splitlines() == [
        "4 texts, 3 with a human label, method human, 95% intervals",
        "       term  estimate  std_error  lower  upper",
        "(Intercept)    0.6667     0.4082  -1.09  2.423",
    ]
    result = agreement(["a", "b", "a", None], ["a", "b", "b", "b"], bootstrap=0)
    lines = str(result).splitlines()
    assert lines[0] == "Agreement of 2 raters, 3 units"
    assert lines[2].split() == ["percent", "0.6667"]  # without bootstrap, the intervals are missing
    assert "<td>percent</td><td>0.6667</td><td></td>" in result._repr_html_()
    chosen = choose_for_coding([0.5] * 30, 30)
    assert str(chosen).splitlines()[::21] == ["selected  probability", "20 of 30 rows"]


def test_plots_show_the_corrected_and_the_naive_estimates_and_the_counts(tmp_path: Path) -> None:
    need("matplotlib")
    axes = estimate(HUMAN, PREDICTED, {"cos": np.cos(i)}).plot(tmp_path / "estimates.png").axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["(Intercept)", "cos"]
    assert len(axes.containers) == 2
    figure = agreement(["a", "b", "a"], ["a", "b", "b"]).plot(tmp_path / "confusion.png")
    assert [text.get_text() for text in figure.axes[0].texts] == ["1", "1", "0", "1"]
    assert {path.name for path in tmp_path.iterdir()} == {"estimates.png", "confusion.png"}
