"""`decide`: typed questions with a probability for every answer, compared with transformers' DecisionPipeline."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from decision_cases import (
    DECISION_TEMPLATES,
    QUESTIONS,
    STATES,
    checkpoint,
    write_settings,
)
from guarantees import assert_same
from needs import needs
from served_models import connected, served

from minhub_py import from_pretrained, tokenizer_from_pretrained
from minhub_py.analysis import predictions
from minhub_py.analysis.decision_prompts import DecisionPrompts
from minhub_py.analysis.decisions import decide
from minhub_py.analysis.questions import DecisionSettings, parse_questions
from minhub_py.checkpoints.tokenizers.tokenizer import train_byte_level_bpe
from minhub_py.cli.main import main
from minhub_py.inference.prefixes import common_prefix


@needs("transformers 5.24")
@pytest.mark.parametrize(
    ("architecture", "template", "settings"),
    [
        ("llama", "chatml", None),
        ("qwen3", "thinking", None),
        (
            "gemma3",
            "chatml",
            {"temperature": {"choice": 2.5, "noul": 0.5}, "noul_options": ["false", "true"]},
        ),
        ("llama", "thinking", {"labels": {"choice": ["1", "2", "3"], "score": ["a", "b", "c"]}}),
        ("llama", "chatml", {"template": DECISION_TEMPLATES["one"], "temperature": {"score": 3}}),
        ("qwen3", "chatml", {"template": DECISION_TEMPLATES["together"]}),
        (
            "llama",
            "chatml",
            {"template": DECISION_TEMPLATES["one"], "sanitize_control_tokens": False},
        ),
    ],
)
def test_answers_equal_the_pipeline_of_transformers(
    tmp_path, architecture, template, settings
) -> None:
    from transformers import pipeline as pipeline_of

    folder = checkpoint(tmp_path, architecture, template)
    if settings is not None:
        write_settings(folder, **settings)
    pipeline = pipeline_of("decision", model=str(folder), dtype=torch.float32)
    model, tokenizer = from_pretrained(folder), tokenizer_from_pretrained(str(folder))
    results = decide(model, tokenizer, STATES, QUESTIONS)
    for number, state in enumerate(STATES):
        expected = pipeline({"state": state, "questions": QUESTIONS})
        actual = results.answers(number)
        assert actual.keys() == expected.keys()
        for name, answer in expected.items():
            assert actual[name].keys() == answer.keys()
            for key, value in answer.items():
                if isinstance(value, float) or key == "probabilities":
                    assert actual[name][key] == pytest.approx(value, abs=1e-5)
                else:
                    assert actual[name][key] == value
    spread = np.ptp([p for question in results.probabilities for p in question[:, 0]])
    assert spread > 0.05  # the answers depend on the text and the question


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    folder = checkpoint(tmp_path_factory.mktemp("decisions"))
    return folder, from_pretrained(folder), tokenizer_from_pretrained(str(folder))


def test_a_text_has_the_same_answers_alone_and_in_a_batch(chat) -> None:
    _, model, tokenizer = chat
    together = decide(model, tokenizer, [*STATES, None], QUESTIONS)
    for number, state in enumerate(STATES):
        for name, question in QUESTIONS.items():
            alone = decide(model, tokenizer, state, {name: question})
            index = list(QUESTIONS).index(name)
            assert_same(alone.probabilities[0][0], together.probabilities[index][number])
    assert np.isnan([p[-1].max() for p in together.probabilities]).all()


def test_the_table_has_a_row_per_text_and_question(chat) -> None:
    _, model, tokenizer = chat
    result = decide(model, tokenizer, [*STATES[:2], None], QUESTIONS)
    table = result.table(options=True)
    assert table["text"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert table["question"] == list(QUESTIONS) * 3
    assert table["answer"][8:] == [None] * 4
    for row in range(8):
        answers = result.answers(row // 4)[table["question"][row]]
        if table["type"][row] == "choice":
            assert table["answer"][row] == answers["choice"]
            assert table["prob"][row] == answers["probabilities"][answers["choice"]]
            assert table["prob_calm"][row] == answers["probabilities"]["calm"]
        if table["type"][row] == "noul":
            assert table["prob"][row] == pytest.approx(max(answers["noul"], 1 - answers["noul"]))
        assert (table["type"][row] == "score") == (not np.isnan(table["score"][row]))


def test_orders_average_the_probabilities_of_permuted_options(chat) -> None:
    _, model, tokenizer = chat
    one = decide(model, tokenizer, STATES[0], QUESTIONS)
    four = decide(model, tokenizer, STATES[0], QUESTIONS, orders=4, seed=2)
    for single, mean, spread in zip(
        one.probabilities, four.probabilities, four.spreads, strict=True
    ):
        assert mean.sum() == pytest.approx(1)
        assert spread.max() > 0
        assert not np.allclose(single, mean)
    reversed_levels = {**QUESTIONS["urgency"], "criteria": QUESTIONS["urgency"]["criteria"][::-1]}
    other = decide(model, tokenizer, STATES[0], {"urgency": reversed_levels})
    both = decide(model, tokenizer, STATES[0], {"urgency": QUESTIONS["urgency"]}, orders=2)
    expected = (one.probabilities[3][0] + other.probabilities[0][0][::-1]) / 2
    assert both.probabilities[0][0] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ({}, "questions must map names to questions"),
        ({"q": {"type": "open"}}, "question 'q': type must be noul, choice or score, not 'open'"),
        ({"q": {"type": "choice"}}, "must have criteria"),
        ({"q": {"type": "score", "criteria": {}}}, "criteria must be a list"),
        ({"q": {"type": "noul", "criteria": {"yes": "x"}}}, "describe true and false, not 'yes'"),
        ({"q": {"type": "noul", "extra": 1}}, "extra is unknown"),
        ({"q": {"type": "choice", "criteria": dict.fromkeys(map(str, range(27)))}}, "at most 26"),
        ({"a": 1, "b": {"type": "x"}}, "question 'a'.*\nquestion 'b'"),
    ],
)
def test_invalid_questions_are_named(chat, questions, message) -> None:
    _, model, tokenizer = chat
    with pytest.raises(ValueError, match=message):
        decide(model, tokenizer, "text", questions)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["Yes", "Certainly not"], "'Certainly not' is not one token"),
        (["A", "A"], "two of them are the same token"),
    ],
)
def test_labels_are_distinct_tokens(chat, labels, message) -> None:
    _, model, tokenizer = chat
    settings = DecisionSettings(labels={"noul": labels})
    with pytest.raises(ValueError, match=message):
        decide(model, tokenizer, "text", {"q": {"type": "noul"}}, settings=settings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "text 1 must be text or JSON with content"),
        (
            "word " * 2000,
            "text 1 has a prompt of .* tokens, but the model's context length is 1,024",
        ),
        ({"a": {1, 2}}, "text 1 is not JSON"),
    ],
)
def test_texts_that_cannot_be_asked_about_are_named(chat, text, message) -> None:
    _, model, tokenizer = chat
    with pytest.raises(ValueError, match=message):
        decide(model, tokenizer, ["fine", text], QUESTIONS)


def test_models_without_a_chat_template_are_rejected(chat) -> None:
    _, model, _ = chat
    tokenizer = train_byte_level_bpe(["some text"], 300)
    with pytest.raises(ValueError, match=r"no chat template. Use annotate\(\)"):
        decide(model, tokenizer, "text", QUESTIONS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"labels": {"noul": "ab"}},
            r"decision.json: labels.noul must be a list of strings, not 'ab'",
        ),
        ({"temperature": {"noul": 0}}, r"temperature.noul must be a number from"),
        ({"noul_options": ["yes", "no"]}, 'noul_options must be "true" and "false", not'),
        ({"adapter": "lora"}, "names an adapter: load the model with adapter="),
    ],
)
def test_invalid_settings_of_a_repository_are_named(chat, tmp_path, settings, message) -> None:
    write_settings(tmp_path, **settings)
    with pytest.raises(ValueError, match=message):
        DecisionSettings.read(tmp_path)


def test_a_job_writes_one_row_per_question_and_notes_long_texts(chat, tmp_path) -> None:
    folder, model, tokenizer = chat
    (tmp_path / "in.jsonl").write_text(
        "".join(
            json.dumps({"text": text}) + "\n" for text in (STATES[0], "word " * 2000, STATES[3], "")
        ),
        encoding="utf-8",
    )
    (tmp_path / "q.yaml").write_text(
        'refund: {type: noul, instructions: "Is a refund requested?"}\n'
        "real:\n  type: noul\n  criteria: {true: A customer}\n"
        "tone: {type: choice, criteria: {calm: null, angry: null}}\n",
        encoding="utf-8",
    )
    arguments = [
        "decide",
        folder,
        tmp_path / "in.jsonl",
        "--questions",
        tmp_path / "q.yaml",
        "--options",
    ]
    result = CliRunner().invoke(main, [*map(str, arguments), "--out", str(tmp_path / "out.jsonl")])
    assert result.exit_code == 0, result.output
    assert "row 2 has no result: the text has a prompt of" in result.stderr
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    expected = decide(
        model,
        tokenizer,
        [STATES[0], STATES[3]],
        {
            "refund": QUESTIONS["refund"],
            "real": {"type": "noul", "criteria": {"true": "A customer"}},
            "tone": {"type": "choice", "criteria": {"calm": None, "angry": None}},
        },
    ).table(options=True)
    answered = [row for row in rows if row["answer"] is not None]
    assert [row["question"] for row in answered] == ["refund", "real", "tone"] * 2
    assert [row["answer"] for row in answered] == expected["answer"]
    assert [row["prob"] for row in answered] == pytest.approx(expected["prob"].tolist(), abs=1e-6)
    assert {"prob_true", "prob_angry"} <= rows[0].keys()


def test_questions_share_the_computation_of_their_text(chat, monkeypatch) -> None:
    """The decoder computes the text once, and the tokens of each question after it."""
    _, model, tokenizer = chat
    computed: list[int] = []
    runner_of = predictions.runner_of

    def counting(model):
        runner = runner_of(model)
        forward = runner.forward

        def counted(texts, *arguments, **settings):
            computed.append(sum(map(len, texts.values())))
            return forward(texts, *arguments, **settings)

        runner.forward = counted
        return runner

    monkeypatch.setattr(predictions, "runner_of", counting)
    texts = [
        f"Mail {number}: {'the box is late and I want my money back ' * 9}" for number in range(6)
    ]
    asked = {name: QUESTIONS[name] for name in ("refund", "tone", "urgency")}
    decide(model, tokenizer, texts, asked)
    together = sum(computed)
    separate = 0
    for name, question in asked.items():
        for text in texts:
            computed.clear()
            decide(model, tokenizer, text, {name: question})
            assert len(computed) == 1  # the logits of the last token come with the prompt
            separate += sum(computed)
    # The prompts of a text differ only after the text.
    prompts = DecisionPrompts(tokenizer, DecisionSettings())
    questions = parse_questions(asked, DecisionSettings())
    expected = 0
    for text in texts:
        ids = [prompt.ids for prompt in prompts.prompts(text, questions)]
        shared = min(common_prefix(ids[0], other) for other in ids[1:])
        expected += shared + sum(len(each) - shared for each in ids)
    assert together <= expected
    assert separate == sum(
        len(prompt.ids) for text in texts for prompt in prompts.prompts(text, questions)
    )
    assert separate > 1.9 * together


def test_the_server_answers_as_the_function(chat) -> None:
    folder, model, tokenizer = chat
    body = {"model": "m", "state": STATES[1], "questions": QUESTIONS}
    with connected(served("m", folder)) as http:
        response = http.post("/v1/systemone", json=body)
        assert response.status_code == 200, response.text
        expected = decide(model, tokenizer, STATES[1], QUESTIONS)
        assert response.json()["answers"] == expected.answers()
        assert response.json()["usage"] == {"input_tokens": expected.tokens, "output_tokens": 0}
        for change, message in (
            ({"state": ""}, "state must be"),
            ({"questions": {"q": {"type": "x"}}}, "question 'q': type must be"),
            ({"assets": {"img": {}}}, "assets is not supported"),
            ({"more": 1}, "more is unknown"),
        ):
            response = http.post("/v1/systemone", json={**body, **change})
            assert response.status_code == 400
            assert message in response.json()["error"]["message"]
