"""Training on typed decisions: state, question and answer."""

import json

import numpy as np
import pytest
import torch.nn.functional as F
from decision_cases import QUESTIONS, checkpoint, decision_model, pipeline_at, write_settings
from needs import needs

from minhub_py import decide, from_pretrained, tokenizer_from_pretrained, train
from minhub_py.training.data import read_corpus

QUICK = {"threads": 1, "progress": False, "dtype": "float32", "device": "cpu", "seed": 1}
ASKED = {name: QUESTIONS[name] for name in ("refund", "tone", "urgency")}
STATES = ["The box is late.", "I want my money back.", "All is well, thank you.", "Now, or never!"]
ANSWERS = {
    "refund": [False, True, False, True],
    "tone": ["angry", "other", "calm", "angry"],
    "urgency": [1, 2, 0, 2],
}


def rows():
    return [
        {"state": state, "question": ASKED[name], "answer": ANSWERS[name][number]}
        for number, state in enumerate(STATES)
        for name in ASKED
    ]


def write(path, data):
    path.write_text("".join(json.dumps(row) + "\n" for row in data), encoding="utf-8")
    return path


def right(decisions):
    """The mean probability of the right answers."""
    return np.mean(
        [
            p[number, question.options.index(str(ANSWERS[question.name][number]).lower())]
            for question, p in zip(decisions.questions, decisions.probabilities, strict=True)
            for number in range(len(STATES))
        ]
    )


def negative_log(decisions):
    return [
        -np.log(p[number, question.options.index(str(ANSWERS[question.name][number]).lower())])
        for question, p in zip(decisions.questions, decisions.probabilities, strict=True)
        for number in range(len(STATES))
    ]


@needs("transformers 5.24")
@pytest.mark.parametrize("kind", ["chat", "adapter", "decision head", "adapter of a head"])
def test_trained_decisions_are_right_and_loaded_by_transformers(tmp_path, kind) -> None:
    if "head" in kind:
        folder = decision_model(tmp_path / "start")
    else:
        folder = checkpoint(tmp_path / "start")
        write_settings(folder, temperature={"choice": 2.0})
    lora = {"lora": 8} if "adapter" in kind else {}
    rate = 1e-2 if lora else 1e-3
    run = train(
        write(tmp_path / "rows.jsonl", rows() * 4),
        tmp_path / "run",
        start=str(folder),
        steps=50,
        batch=8,
        held_out=0.3,
        learning_rate=rate,
        **lora,
        **QUICK,
    )
    assert run.unit == "nats per decision"
    tokenizer = tokenizer_from_pretrained(str(folder))
    before = decide(from_pretrained(folder), tokenizer, STATES, ASKED)
    after = decide(run.model, tokenizer, STATES, ASKED)
    assert right(after) > right(before) + 0.2
    assert run.best["accuracy"] > 0.6
    # transformers loads the model, or the base with the adapter.
    pipeline = pipeline_at(folder if lora else run.folder)
    if lora:
        pipeline.model.load_adapter(str(run.folder))
    for number, state in enumerate(STATES):
        expected = pipeline({"state": state, "questions": ASKED})
        actual = after.answers(number)
        assert actual["refund"]["noul"] == pytest.approx(expected["refund"]["noul"], abs=2e-5)
        assert actual["tone"]["probabilities"] == pytest.approx(
            expected["tone"]["probabilities"], abs=2e-5
        )


def test_the_loss_is_that_of_the_options(tmp_path) -> None:
    """The loss before the first step is the mean negative log-probability of `decide`."""
    folder = checkpoint(tmp_path / "start")
    write_settings(folder, temperature={"choice": 2.0, "noul": 0.5})
    run = train(
        write(tmp_path / "rows.jsonl", rows()),
        tmp_path / "run",
        start=str(folder),
        steps=1,
        batch=4,
        held_out=0.5,
        **QUICK,
    )
    held_out = read_corpus(run.folder / "tokens").held_out
    model, tokenizer = from_pretrained(folder), tokenizer_from_pretrained(str(folder))
    every = negative_log(decide(model, tokenizer, STATES, ASKED))
    losses = []
    for number in range(len(held_out)):
        [(ids, _)] = held_out.sequences([number])
        options = held_out.options[number]
        scores = model(ids[None, :-1])[0, -1][options[options >= 0]] / held_out.temperatures[number]
        losses.append(F.cross_entropy(scores[None], held_out.labels[number].long()[None]).item())
    for loss in losses:
        assert min(abs(loss - value) for value in every) < 1e-4
    assert run.losses[0]["held_out_loss"] == pytest.approx(np.mean(losses), abs=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": "mild"}, "row 1: 'mild' is not an answer to question 'question': use false or"),
        ({"answer": None}, "row 1: answer is missing"),
        ({"state": ""}, "row 1: state is missing"),
        (
            {"question": {"type": "open"}},
            "row 1: question 'question': type must be noul, choice or",
        ),
        ({"question": "Is it?"}, "row 1: question is not JSON"),
    ],
)
def test_invalid_rows_are_named(tmp_path, change, message) -> None:
    folder = checkpoint(tmp_path / "start")
    first, *others = rows()
    path = write(tmp_path / "rows.jsonl", [first | change, *others])
    with pytest.raises(ValueError, match=message):
        train(path, tmp_path / "run", start=str(folder), steps=1, **QUICK)


@needs("transformers 5.24")
def test_decision_heads_are_trained_on_decisions_only(tmp_path) -> None:
    folder = decision_model(tmp_path / "start")
    path = write(tmp_path / "rows.jsonl", [{"prompt": "a", "completion": "b"}] * 4)
    with pytest.raises(ValueError, match="has a decision head: it needs examples with state"):
        train(path, tmp_path / "run", start=str(folder), steps=1, **QUICK)
    text = tmp_path / "text.txt"
    text.write_text("To be or not to be. " * 50)
    with pytest.raises(ValueError, match="has a decision head"):
        train(text, tmp_path / "run", start=str(folder), steps=1, **QUICK)


def test_long_states_are_dropped_with_a_note(tmp_path, capsys) -> None:
    folder = checkpoint(tmp_path / "start")
    data = [*rows(), {"state": "word " * 400, "question": ASKED["tone"], "answer": "calm"}]
    path = write(tmp_path / "rows.jsonl", data)
    settings = {**QUICK, "progress": True}
    train(path, tmp_path / "run", start=str(folder), steps=1, context=256, **settings)
    shown = capsys.readouterr()
    assert "rows dropped, because their prompts fill" in shown.err + shown.out
