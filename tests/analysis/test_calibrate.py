"""`calibrate`: temperatures and isotonic regression of typed decisions by hand-coded answers."""

import csv
import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from decision_cases import ASKED, QUESTIONS, STATES, checkpoint, simulated, write_settings
from needs import needs

from minhub_py import calibrate, decide, estimate, from_pretrained, tokenizer_from_pretrained
from minhub_py.analysis.calibrate import isotonic
from minhub_py.analysis.decisions import Decisions, probabilities_of
from minhub_py.analysis.questions import TYPES
from minhub_py.analysis.tokens import is_missing
from minhub_py.cli.main import main
from minhub_py.system.spelling import ShellSpelling, use_spelling


def test_the_temperature_of_each_type_is_recovered() -> None:
    decisions, truth = simulated()
    result = calibrate(decisions, truth)
    table = result.table()
    assert table["type"] == ["noul", "choice", "score"]
    assert table["n"].tolist() == [1000] * 3
    assert [result.temperature[kind] for kind in TYPES] == pytest.approx([3.0] * 3, rel=0.15)
    assert table["temperature"].tolist() == [result.temperature[kind] for kind in TYPES]
    assert (table["ece_after"] < 0.05).all()
    assert (table["ece_before"] > 0.1).all()
    assert (table["brier_after"] < table["brier_before"]).all()
    # One order: no answer changes.
    assert result.decisions.table()["answer"] == decisions.table()["answer"]


@pytest.mark.parametrize("method", ["temperature", "isotonic"])
def test_errors_equal_their_definitions(method) -> None:
    decisions, truth = simulated(400, 300)
    result = calibrate(decisions, truth, method=method)
    for when, source in (("before", decisions), ("after", result.decisions)):
        p = source.probabilities[1][:300]
        y = np.array([ASKED[1].options.index(answer) for answer in truth["tone"][:300]])
        brier = np.mean(
            [((row - np.eye(3)[k]) ** 2).sum() / 2 for row, k in zip(p, y, strict=True)]
        )
        best, right = p.max(axis=1), p.argmax(axis=1) == y
        ece = 0.0
        for number in range(10):
            inside = np.minimum(np.floor(best * 10), 9) == number
            if inside.any():
                ece += inside.mean() * abs(right[inside].mean() - best[inside].mean())
        assert result.columns[f"brier_{when}"][1] == pytest.approx(brier)
        assert result.columns[f"ece_{when}"][1] == pytest.approx(ece)
    curve = result.curve
    rows = [
        i for i, kind in enumerate(curve["type"]) if (kind, curve["when"][i]) == ("choice", "after")
    ]
    assert curve["n"][rows].sum() == 300


@needs("sklearn")
def test_isotonic_regression_equals_scikit_learn() -> None:
    from sklearn.isotonic import IsotonicRegression

    random = np.random.default_rng(1)
    x = np.round(random.uniform(size=80), 2)  # with ties
    y = random.uniform(size=80) < x
    new = np.linspace(0, 1, 101)
    expected = IsotonicRegression(out_of_bounds="clip").fit(x, y).predict(new)
    assert np.interp(new, *isotonic(x, y)) == pytest.approx(expected, abs=1e-12)


def test_isotonic_regression_corrects_a_bias_that_no_temperature_corrects() -> None:
    decisions, truth = simulated(temperature=1.0)
    biased = [scores + np.arange(scores.shape[2]) for scores in decisions.scores]
    values = tuple(probabilities_of(scores, 1.0)[0] for scores in biased)
    biased_decisions = Decisions(
        ASKED, values, decisions.spreads, tuple(biased), decisions.temperature
    )
    ece = {
        method: calibrate(biased_decisions, truth, method=method).columns
        for method in ("temperature", "isotonic")
    }
    assert (ece["isotonic"]["brier_after"] < ece["temperature"]["brier_after"] - 0.01).all()
    assert (ece["isotonic"]["ece_after"] < 0.06).all()


@pytest.mark.parametrize("method", ["temperature", "isotonic"])
def test_a_text_is_calibrated_without_its_own_answer(method) -> None:
    """Changing the hand-coded answer of a text leaves its probabilities."""
    decisions, truth = simulated(60, 40, orders=2)
    first = calibrate(decisions, truth, method=method, seed=3)
    for text in (0, 7, 39):
        changed = {name: list(answers) for name, answers in truth.items()}
        changed["tone"][text] = "other" if truth["tone"][text] != "other" else "calm"
        second = calibrate(decisions, changed, method=method, seed=3)
        assert (
            second.decisions.probabilities[1][text] == first.decisions.probabilities[1][text]
        ).all()
        assert (second.decisions.probabilities[1] != first.decisions.probabilities[1]).any()


def test_the_temperature_is_that_of_the_mean_over_orders() -> None:
    decisions, truth = simulated(1500, 1500, orders=4)
    result = calibrate(decisions, truth)
    assert (result.columns["ece_after"] < 0.05).all()
    assert (result.columns["spread"] > 0.02).all()
    assert result.decisions.spreads[0].shape == (1500, 2)
    losses = []
    for change in (0.8, 1.0, 1.25):
        p = probabilities_of(decisions.scores[1], result.temperature["choice"] * change).mean(
            axis=0
        )
        answers = [ASKED[1].options.index(answer) for answer in truth["tone"]]
        losses.append(-np.log(p[np.arange(1500), answers]).mean())
    assert losses[1] == min(losses)


def test_a_decision_table_gives_the_same_calibration() -> None:
    decisions, truth = simulated(90, 60)
    table = decisions.table(options=True)
    answers = [
        truth[name][text] for text, name in zip(table["text"], table["question"], strict=True)
    ]
    expected = calibrate(decisions, truth)
    rows = [
        {"text": text, "question": name, "answer": answer}
        for text, name, answer in zip(table["text"], table["question"], answers, strict=True)
    ]
    for source, given in (
        (table, truth),
        (table, rows),
        ({**table, "coded": answers, "text": [f"t{text}" for text in table["text"]]}, "coded"),
        ({**table, "coded": answers, "text": [f"{text % 7}" for text in table["text"]]}, "coded"),
        (decisions, rows),
    ):
        result = calibrate(source, given)
        for column in ("temperature", "ece_after", "brier_before", "brier_after"):
            assert result.columns[column] == pytest.approx(expected.columns[column], rel=1e-6)
        assert result.decisions.probabilities[2] == pytest.approx(
            expected.decisions.probabilities[2]
        )


@pytest.mark.parametrize("method", ["temperature", "isotonic"])
def test_a_column_of_zeros_is_not_an_option(method) -> None:
    """A spreadsheet may store empty cells as 0, and a table may have another column `prob_…`."""
    decisions, truth = simulated(200, 150)
    table = decisions.table(options=True)
    filled = {
        name: np.nan_to_num(column) if name.startswith("prob_") else column
        for name, column in table.items()
    }
    filled = {"prob_sample": np.zeros(len(table["question"])), **filled}
    result, expected = (calibrate(t, truth, method=method) for t in (filled, table))
    for question, options in zip(result.decisions.questions, ASKED, strict=True):
        assert set(question.options) == set(options.options)
    assert result.columns["brier_after"].tolist() == expected.columns["brier_after"].tolist()
    for question in ("refund", "urgency"):
        first, second = (estimate(truth, source, question=question) for source in (filled, table))
        assert first.estimate.tolist() == second.estimate.tolist()


def test_options_whose_probabilities_are_rounded_to_zero_remain() -> None:
    """Of a noul question both, and of a score each level."""
    count = 12
    zeros, ones = [0.0] * count, [1.0] * count
    for kind, options in (("noul", ("true", "false")), ("score", ("0", "1", "2"))):
        table = {"question": ["q"] * count, "type": [kind] * count, "spread": zeros}
        table |= {"temperature": ones, "prob_other": zeros}
        table |= {f"prob_{option}": zeros for option in options} | {f"prob_{options[0]}": ones}
        result = calibrate(table, {"q": [*options, *options[:1] * (count - len(options))]})
        assert result.decisions.questions[0].options == options
        assert np.isfinite(result.decisions.probabilities[0]).all()


def test_an_option_of_a_choice_whose_probabilities_are_zero_remains() -> None:
    """If the column is empty for other questions."""
    count = 12
    table = {"question": ["q", "r"] * count, "type": ["choice", "noul"] * count}
    table |= {"spread": [0.0] * (2 * count), "temperature": [1.0] * (2 * count)}
    table |= {
        f"prob_{option}": [p, None] * count for option, p in (("a", 0.7), ("b", 0.3), ("c", 0))
    }
    table |= {"prob_true": [None, 1] * count, "prob_false": [None, 0] * count}
    result = calibrate(table, {"q": ["a", "c"] * (count // 2)})
    assert result.decisions.questions[0].options == ("a", "b", "c")
    share = estimate({"q": ["a", "c"] * (count // 2)}, table, question="q", option="c")
    assert share.estimate.tolist() == [0.5]


def test_missing_texts_and_questions_without_answers_stay_as_they_are() -> None:
    decisions, truth = simulated(50, 40)
    for values, scores in zip(decisions.probabilities, decisions.scores, strict=True):
        values[3], scores[:, 3] = np.nan, np.nan
    for method in ("temperature", "isotonic"):
        result = calibrate(decisions, {"tone": truth["tone"]}, method=method)
        assert result.columns["type"] == ["choice"]
        assert result.columns["n"].tolist() == [39]
        assert np.isnan(result.decisions.probabilities[1][3]).all()
        assert not np.isnan(result.decisions.probabilities[1][4]).any()
        assert np.array_equal(
            result.decisions.probabilities[0], decisions.probabilities[0], equal_nan=True
        )


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    folder = checkpoint(tmp_path_factory.mktemp("calibrate"))
    write_settings(folder, temperature={"noul": 2.0}, sort_choices=True)
    return folder, from_pretrained(folder), tokenizer_from_pretrained(str(folder))


@needs("transformers 5.24")
def test_transformers_reads_the_temperatures(chat) -> None:
    from transformers import pipeline as pipeline_of

    folder, model, tokenizer = chat
    decisions = decide(model, tokenizer, STATES * 3, QUESTIONS)
    truth = {"refund": [True, False, None, True] * 3, "tone": ["calm", "other", "angry", None] * 3}
    calibration = calibrate(decisions, truth, folds=3)
    calibration.save(folder)
    saved = json.loads((folder / "decision.json").read_text())
    assert saved["sort_choices"] is True
    assert saved["temperature"] == {
        "noul": calibration.temperature["noul"],
        "choice": calibration.temperature["choice"],
    }
    assert calibration.temperature["noul"] != pytest.approx(2.0, rel=0.01)
    again = decide(model, tokenizer, STATES, QUESTIONS)
    pipeline = pipeline_of("decision", model=str(folder), dtype=torch.float32)
    for number, state in enumerate(STATES):
        expected = pipeline({"state": state, "questions": QUESTIONS})
        actual = again.answers(number)
        assert actual["refund"]["noul"] == pytest.approx(expected["refund"]["noul"], abs=1e-5)
        for name in ("tone", "urgency"):
            assert actual[name]["probabilities"] == pytest.approx(
                expected[name]["probabilities"], abs=1e-5
            )
    p = probabilities_of(decisions.scores[2], calibration.temperature["choice"]).mean(axis=0)
    assert again.probabilities[2] == pytest.approx(p[:4], abs=1e-12)


def test_the_command_calibrates_the_output_of_a_job(tmp_path) -> None:
    folder = checkpoint(tmp_path / "model")
    (tmp_path / "in.csv").write_text("text\n" + "".join(f"text {n % 9}\n" for n in range(12)))
    (tmp_path / "q.yaml").write_text(json.dumps({k: QUESTIONS[k] for k in ("refund", "tone")}))
    arguments = ["decide", folder, tmp_path / "in.csv", "--questions", tmp_path / "q.yaml"]
    arguments += ["--options", "--out", tmp_path / "out.csv"]
    result = CliRunner().invoke(main, [*map(str, arguments)])
    assert result.exit_code == 0, result.output
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    truth = {"refund": [*([True, False] * 5), None, None], "tone": ["calm", "other"] * 6}
    for number, row in enumerate(rows):
        answer = truth[row["question"]][number // 2]
        row["coded"] = "" if answer is None else str(answer)
    with (tmp_path / "coded.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    arguments = [
        "calibrate",
        tmp_path / "coded.csv",
        "--truth",
        "coded",
        "--save",
        folder,
        "--json",
    ]
    result = CliRunner().invoke(main, [*map(str, arguments)])
    assert result.exit_code == 0, result.output
    model, tokenizer = from_pretrained(folder), tokenizer_from_pretrained(str(folder))
    stored = json.loads((folder / "decision.json").read_text())["temperature"]
    (folder / "decision.json").unlink()
    texts = [f"text {n % 9}" for n in range(12)]
    asked = {k: QUESTIONS[k] for k in ("refund", "tone")}
    expected = calibrate(decide(model, tokenizer, texts, asked), truth)
    assert stored == pytest.approx(dict(expected.temperature), rel=1e-5)
    shown = json.loads(result.stdout)
    assert [row["n"] for row in shown] == [10, 12]
    assert shown[0]["ece_before"] == pytest.approx(expected.columns["ece_before"][0], abs=1e-5)
    result = CliRunner().invoke(main, [*map(str, arguments[:3]), "other"])
    assert result.exit_code == 1
    assert "no column 'other'" in result.stderr


def test_the_command_rejects_to_save_an_isotonic_calibration_before_it_reads(tmp_path) -> None:
    (tmp_path / "t.csv").write_text("no,decisions\n")
    arguments = ["calibrate", tmp_path / "t.csv", "--truth", "coded", "--method", "isotonic"]
    result = CliRunner().invoke(main, [*map(str, arguments), "--save", str(tmp_path)])
    assert result.exit_code == 2
    assert "--save stores temperatures only" in result.stderr


def test_the_command_needs_no_column_text(tmp_path) -> None:
    """`minhub decide --column mail` writes the texts as the column mail."""
    decisions, truth = simulated(60, 40)
    table = decisions.table(options=True)
    coded = [truth[name][text] for text, name in zip(table["text"], table["question"], strict=True)]
    columns = {"mail": [f"text {n % 7}" for n in table["text"]], **table, "coded": coded}
    del columns["text"]
    with (tmp_path / "t.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(
            ["" if is_missing(cell) else cell for cell in row]
            for row in zip(*columns.values(), strict=True)
        )
    arguments = ["calibrate", str(tmp_path / "t.csv"), "--truth", "coded", "--json"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    expected = calibrate(decisions, truth).columns
    for row, temperature, n in zip(
        json.loads(result.stdout), expected["temperature"], expected["n"], strict=True
    ):
        assert row["n"] == n
        assert row["temperature"] == pytest.approx(temperature, rel=1e-5)


def rows_with(truth, spelled):
    """Hand-coded rows with spelled answers, and empty ones for other texts."""
    return [
        {"text": text, "question": name, "answer": spelled(answer)}
        for name, answers in truth.items()
        for text, answer in enumerate(answers)
    ]


def same(first, second) -> bool:
    return first.columns["n"].tolist() == second.columns["n"].tolist() and np.array_equal(
        first.columns["temperature"], second.columns["temperature"]
    )


@pytest.mark.parametrize("empty", ["", None, float("nan")])
def test_rows_with_an_empty_answer_are_not_coded(empty) -> None:
    decisions, truth = simulated(60, 40)
    rows = rows_with(truth, lambda answer: empty if answer is None else answer)
    assert same(calibrate(decisions, rows), calibrate(decisions, truth))


@pytest.mark.parametrize("spelled", ["{}.0", np.float32, float, "0{}"])
def test_levels_may_be_spelled_as_any_equal_number(spelled) -> None:
    decisions, truth = simulated(60, 40)
    levels = {"urgency": truth["urgency"]}
    write = spelled.format if isinstance(spelled, str) else spelled
    rows = rows_with(levels, lambda answer: None if answer is None else write(answer))
    assert same(calibrate(decisions, rows), calibrate(decisions, levels))
    with pytest.raises(ValueError, match=r"1\.5 is not an answer to question 'urgency'"):
        calibrate(decisions, {"urgency": [1.5] * 60})


def test_rows_may_be_a_generator() -> None:
    decisions, truth = simulated(60, 40)
    rows = rows_with(truth, str)
    rows = [row for row in rows if row["answer"] != "None"]
    assert same(calibrate(decisions, iter(rows)), calibrate(decisions, truth))


@needs("pandas")
def test_rows_may_be_a_data_frame() -> None:
    import pandas as pd

    decisions, truth = simulated(60, 40)
    frame = pd.DataFrame(rows_with(truth, lambda answer: answer))
    assert same(calibrate(decisions, frame), calibrate(decisions, truth))


@needs("matplotlib")
def test_the_reliability_diagram_shows_each_type_before_and_after(tmp_path) -> None:
    figure = calibrate(*simulated(100, 80)).plot(tmp_path / "reliability.png")
    assert (tmp_path / "reliability.png").stat().st_size > 5000
    assert [axes.get_title() for axes in figure.axes] == ["noul", "choice", "score"]
    assert [len(axes.lines) for axes in figure.axes] == [3] * 3


@pytest.mark.parametrize(
    ("truth", "settings", "message"),
    [
        ({"tone": ["calm"]}, {}, "'tone' has 1 hand-coded answers for 50 texts"),
        ({"mood": [None] * 50}, {}, "question 'mood' is unknown: the questions are refund, tone"),
        ({"tone": ["mild"] * 50}, {}, "'mild' is not an answer to question 'tone': use angry or"),
        ({"refund": [1] * 50}, {}, "1 is not an answer to question 'refund': use false or true"),
        ({"tone": [None] * 50}, {}, "no text has a hand-coded answer"),
        ({"tone": ["calm"] + [None] * 49}, {}, "1 hand-coded answers of type choice are too few"),
        ([{"text": 0, "answer": "calm"}], {}, "must have text, question and answer"),
        ([{"text": 50, "question": "tone", "answer": "calm"}], {}, "text 50 does not exist"),
        ([{"text": 1, "question": "tone", "answer": "calm"}] * 2, {}, "two hand-coded answers"),
        ("coded", {}, "has no column 'coded'"),
        (7, {}, "hand-coded answers must be"),
        ({"tone": ["calm"] * 50}, {"folds": 1}, "folds must be"),
        (
            {"tone": ["calm"] * 50},
            {"method": "platt"},
            "method must be 'temperature' or 'isotonic'",
        ),
    ],
)
def test_invalid_hand_coded_answers_are_named(truth, settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        calibrate(simulated(50, 40)[0], truth, **settings)


def test_what_cannot_be_calibrated_or_stored_is_named(tmp_path) -> None:
    decisions, truth = simulated(50, 40, orders=2)
    table = decisions.table(options=True)
    with pytest.raises(ValueError, match="means over several orders"):
        calibrate(table, truth)
    isotonic_result = calibrate(table, truth, method="isotonic")
    with pytest.raises(ValueError, match="decision.json stores temperatures only"):
        isotonic_result.save(tmp_path)
    with pytest.raises(ValueError, match="calibrated already"):
        calibrate(isotonic_result.decisions, truth)
    with pytest.raises(ValueError, match="is not a folder: save the model there first"):
        calibrate(decisions, truth).save(tmp_path / "none")
    with pytest.raises(ValueError, match=r"no columns prob_OPTION: compute it with options=True"):
        calibrate(decisions.table(), truth)
    with pytest.raises(ValueError, match="must have the column temperature"):
        calibrate({k: v for k, v in table.items() if k != "temperature"}, truth)
    with pytest.raises(ValueError, match="different lengths"):
        calibrate({**table, "spread": [0.0]}, truth)


def test_invalid_cells_of_a_table_are_named() -> None:
    decisions, truth = simulated(50, 40)
    table = decisions.table(options=True)
    count = len(table["question"])
    different = [1.0] * 7 + [2.0] * (count - 7)
    word = list(table["prob_calm"])
    word[4] = "high"
    for change, message in (
        ({"prob_sample": [0.2] * count}, "prob_true, prob_false, prob_sample of question 'refund'"),
        ({"prob_sample": [0.2] * count}, "rename or remove those that are not options"),
        ({"temperature": different}, "temperature has 1 and 2 for questions of type choice"),
        ({"temperature": [0] * count}, "temperature has 0, and temperatures are above 0"),
        ({"temperature": [""] * count}, "the column temperature of the decision table is empty"),
        ({"prob_calm": word}, "row 5 of the column prob_calm of the decision table is 'high'"),
        ({"spread": ["none"] * count}, "row 1 of the column spread"),
    ):
        with pytest.raises(ValueError, match=message):
            calibrate({**table, **change}, truth)


@pytest.mark.filterwarnings("error")
def test_an_empty_column_spread_is_that_of_one_order() -> None:
    decisions, truth = simulated(50, 40)
    table = decisions.table(options=True)
    result = calibrate({**table, "spread": [None] * len(table["question"])}, truth)
    assert same(result, calibrate(table, truth))


def test_messages_have_the_settings_of_the_shell() -> None:
    decisions, truth = simulated(50, 40, orders=2)
    table = decisions.table(options=True)
    with use_spelling(ShellSpelling()):
        with pytest.raises(ValueError, match="use --method isotonic, --orders 1 in minhub decide"):
            calibrate(table, truth)
        with pytest.raises(ValueError, match="calibrate with --method temperature"):
            calibrate(table, truth, method="isotonic").save("none")
        with pytest.raises(ValueError, match="compute it with --options"):
            calibrate(decisions.table(), truth)
