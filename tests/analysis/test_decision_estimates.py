"""`estimate` of typed decisions and hand-coded rows."""

import numpy as np
import pytest
from decision_cases import simulated
from needs import needs

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


@pytest.mark.parametrize("question", ["refund", "urgency"])
def test_missing_texts_are_left_out_with_their_values(study, question) -> None:
    _, truth, group, slope = study
    decisions, _ = simulated(300, 60, temperature=2.0, seed=4)
    missing = np.isin(np.arange(300), [2, 7, 100, 299])
    for values in decisions.probabilities:
        values[missing] = np.nan
    index = list(truth).index(question)
    predicted = decisions.probabilities[index] @ ([0, 1, 2] if question == "urgency" else [1, 0])
    human = numbers(truth[question], int if question == "urgency" else lambda a: a == "true")
    cluster, probability = np.arange(300) // 3, np.full(300, 0.2)

    def kept(values):
        return [value for value, gone in zip(values, missing, strict=True) if not gone]

    expected = estimate(
        kept(human),
        kept(predicted),
        {"group": kept(group), "slope": kept(slope)},
        probability=kept(probability),
        cluster=kept(cluster),
    )
    group = np.where(missing, None, group)
    for source in (decisions, decisions.table(options=True)):
        result = estimate(
            truth,
            source,
            {"group": group, "slope": slope},
            question=question,
            probability=probability,
            cluster=cluster,
        )
        assert result.texts == 296
        assert result.estimate == pytest.approx(expected.estimate, abs=1e-12)
        assert result.covariance == pytest.approx(expected.covariance, abs=1e-12)
    with pytest.raises(ValueError, match="slope has 296 values for 300 texts: pass one per text"):
        estimate(truth, decisions, {"slope": kept(slope)}, question=question)
    one = "must be a list of (values|numbers), one per text, not 0.5"
    for source in ({"model": decisions, "question": question}, {"model": kept(predicted)}):
        answers = truth if "question" in source else kept(human)
        for change in ({"x": {"slope": 0.5}}, {"probability": 0.5}, {"cluster": 0.5}):
            with pytest.raises(
                ValueError, match=f"{next(iter(change)).replace('x', 'slope')} {one}"
            ):
                estimate(answers, **source, **change)
    decisions.probabilities[index][:] = np.nan
    with pytest.raises(ValueError, match="no text has an answer to the question"):
        estimate(truth, decisions, question=question)


@needs("pandas")
def test_rows_may_be_a_generator_or_a_data_frame(study) -> None:
    import pandas as pd

    decisions, truth, *_ = study
    rows = [
        {"text": text, "question": "refund", "answer": answer}
        for text, answer in enumerate(truth["refund"])
    ]
    expected = estimate(truth, decisions, question="refund").estimate
    for given in (iter(rows), pd.DataFrame(rows), pd.Series(truth["refund"])):
        assert (estimate(given, decisions, question="refund").estimate == expected).all()


@needs("pandas")
def test_covariates_of_decisions_may_be_a_data_frame(study) -> None:
    import pandas as pd

    decisions, truth, group, slope = study
    x = {"group": list(group), "slope": list(slope)}
    first, second = (
        estimate(truth, decisions, each, question="refund") for each in (x, pd.DataFrame(x))
    )
    assert first.estimate.tolist() == second.estimate.tolist()


def test_questions_are_for_decisions_only() -> None:
    with pytest.raises(ValueError, match="question and option are for decisions"):
        estimate([1, 0, None], [0.5, 0.5, 0.5], question="refund")
