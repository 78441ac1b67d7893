"""`estimate` of typed decisions and hand-coded rows."""

import numpy as np
import pytest
from decision_cases import simulated

from minhub_py import calibrate, estimate


@pytest.fixture(scope="module")
def study():
    decisions, truth = simulated(300, 60, temperature=2.0, seed=4)
    return decisions, truth, np.array(["a", "b", "c"] * 100), np.linspace(0, 1, 300)


def numbers(answers, outcome):
    return [None if answer is None else float(outcome(answer)) for answer in answers]


@pytest.mark.parametrize(
    ("question", "option", "column", "outcome"),
    [
        ("refund", None, lambda p: p[:, 0], lambda a: a == "true"),
        ("refund", "false", lambda p: p[:, 1], lambda a: a == "false"),
        ("tone", "angry", lambda p: p[:, 1], lambda a: a == "angry"),
        ("urgency", None, lambda p: p @ [0, 1, 2], int),
        ("urgency", "2", lambda p: p[:, 2], lambda a: a == "2"),
    ],
)
def test_decisions_and_numbers_have_equal_estimates(
    study, question, option, column, outcome
) -> None:
    decisions, truth, group, slope = study
    index = list(truth).index(question)
    predicted = column(decisions.probabilities[index])
    human = numbers(truth[question], outcome)
    table = decisions.table(options=True)
    answers = [
        truth[name][text] for text, name in zip(table["text"], table["question"], strict=True)
    ]
    rows = [
        {"text": text, "question": name, "answer": answer}
        for text, name, answer in zip(table["text"], table["question"], answers, strict=True)
        if answer is not None
    ]
    for x in (None, {"group": group}, {"slope": slope}):
        expected = estimate(human, predicted, x)
        for given, source in (
            (truth, decisions),
            (truth[question], decisions),
            (rows, decisions),
            (rows, table),
            ("coded", {**table, "coded": answers}),
        ):
            result = estimate(given, source, x, question=question, option=option)
            assert result.estimate == pytest.approx(expected.estimate, abs=1e-12)
            assert result.covariance == pytest.approx(expected.covariance, abs=1e-12)
            assert result.naive.estimate == pytest.approx(expected.naive.estimate, abs=1e-12)
    assert expected.term == ["(Intercept)", "slope"]


def test_calibrated_decisions_have_narrower_intervals_of_a_biased_model(study) -> None:
    decisions, truth = simulated(600, 200, temperature=6.0, seed=2)
    before = estimate(truth, decisions, question="refund", method="dsl")
    calibrated = calibrate(decisions, truth).decisions
    after = estimate(truth, calibrated, question="refund", method="dsl")
    assert after.std_error[0] < before.std_error[0]
    assert after.coded == 200


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "question must be one of refund, tone, urgency"),
        ({"question": "mood"}, "question 'mood' is unknown"),
        ({"question": "tone"}, "option must be one of calm, angry, other"),
        ({"question": "tone", "option": "mild"}, "'mild' is not an answer to question 'tone'"),
    ],
)
def test_questions_and_options_must_exist(study, settings, message) -> None:
    decisions, truth, *_ = study
    with pytest.raises(ValueError, match=message):
        estimate(truth, decisions, **settings)


def test_questions_are_for_decisions_only() -> None:
    with pytest.raises(ValueError, match="question and option are for decisions"):
        estimate([1, 0, None], [0.5, 0.5, 0.5], question="refund")
