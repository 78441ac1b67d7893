"""Laya, the encoder form of decision models, compared with its description in plain PyTorch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from decision_cases import QUESTIONS, STATES
from guarantees import assert_same
from laya_model import AGENT, laya_model, scores
from served_models import connected, served

from minhub_py import decide, from_pretrained, save_pretrained, tokenizer_from_pretrained
from minhub_py.analysis.decisions import probabilities_of
from minhub_py.analysis.option_prompts import OptionPrompts
from minhub_py.analysis.questions import DecisionSettings, parse_questions
from minhub_py.cli.main import main
from minhub_py.export.torchscript import save_torchscript
from minhub_py.inference.encoder_runner import NativeEncoder, TorchEncoder, encoder_runner
from minhub_py.loading.inspection import inspect, verify

# Of the published format: noul:2 and choice:11+ are outside the package's limits, 0.5 to 5.
TEMPERATURES = {"refund": 0.5, "spam": 0.5, "tone": 1.7, "urgency": 0.8}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any, Any]:
    """The folder, the reference's modules, our model and the tokenizer."""
    folder, modules = laya_model(tmp_path_factory.mktemp("laya") / "model")
    model = from_pretrained(folder, device="cpu")
    return folder, modules, model, tokenizer_from_pretrained(str(folder))


def text_of(tokenizer: Any, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False)


def expected_probabilities(loaded: Any, state: Any, name: str) -> np.ndarray:
    """From the text of the prompt, as the package documents it."""
    _, modules, _, tokenizer = loaded
    kind, question = QUESTIONS[name]["type"], QUESTIONS[name]
    options = {
        "refund": ["false: no, the statement does not hold", "true: yes, the statement holds"],
        "spam": ["false: no, the statement does not hold", "true: Unsolicited"],
        "tone": ["calm: A polite message", "angry", 'other: {"see": "notes"}'],
        "urgency": ["level 0: Can wait", "level 1: This week", "level 2: Today"],
    }[name]

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text.replace("[MASK]", " "), add_special_tokens=False).ids

    first, end, mark = map(tokenizer.token_to_id, ("[CLS]", "[SEP]", "[MASK]"))
    ids, marks = [first, *encode(f"{kind} question: {question['instructions']}"), end], []
    for option in options:
        marks.append(len(ids))
        ids += [mark, *encode(f" {option}")]
    text = state if isinstance(state, str) else json.dumps(state, ensure_ascii=False)
    ids += [end, *encode(text), end]
    row = ["choice", "score", "noul"].index(kind)
    values = scores(modules, ids, marks, row).double().numpy()
    return probabilities_of(values, TEMPERATURES[name])


def test_probabilities_equal_the_reference(loaded: Any) -> None:
    """For all types, a mask in a text, and in C and PyTorch; single calls are bitwise equal."""
    _, _, model, tokenizer = loaded
    states = [*STATES, "a [MASK] in a text"]
    assert isinstance(encoder_runner(model), NativeEncoder)
    results = decide(model, tokenizer, states, QUESTIONS)
    for question, values in zip(results.questions, results.probabilities, strict=True):
        for number, state in enumerate(states):
            expected = expected_probabilities(loaded, state, question.name)
            assert np.abs(values[number] - expected).max() < 1e-5, question.name
    assert np.ptp(results.probabilities[2], axis=0).max() > 0.05  # they depend on the text
    assert_same(decide(model, tokenizer, states[1], QUESTIONS).probabilities[3][0],
                results.probabilities[3][1])  # fmt: skip
    inputs = [[5, 6, 7, 8], [9, 10, 11]]
    types = [[1] * 4, [2] * 3]
    native = NativeEncoder(model).hidden_states(inputs, types)
    assert (native - TorchEncoder(model).hidden_states(inputs, types)).abs().max() < 5e-5 * 10


def test_answers_in_the_form_of_the_api_and_orders(loaded: Any) -> None:
    _, _, model, tokenizer = loaded
    calls: list[tuple[int, int]] = []
    results = decide(
        model, tokenizer, STATES[:2], QUESTIONS, orders=3,
        progress=lambda *counts: calls.append(counts),
    )  # fmt: skip
    assert len(calls) == 2 * len(QUESTIONS) * 3
    assert calls == sorted(set(calls))
    assert calls[-1] == (results.tokens, results.tokens)
    answer = results.answers(0)["spam"]
    assert answer["noul"] == results.probabilities[1][0][results.questions[1].options.index("true")]
    assert results.spreads[2].max() > 0
    # One text costs its prompts.
    assert results.tokens == 3 * decide(model, tokenizer, STATES[:2], QUESTIONS).tokens


def test_saved_models_have_the_layout_of_the_package(loaded: Any, tmp_path: Path) -> None:
    folder, modules, model, tokenizer = loaded
    save_pretrained(model, tmp_path, tokenizer)
    agent = json.loads((tmp_path / "rl_agent_config.json").read_text())
    assert agent == {name: AGENT[name] for name in AGENT if name != "learning_rate"}
    encoder = json.loads((tmp_path / "encoder" / "config.json").read_text())
    assert (encoder["model_type"], encoder["architectures"]) == ("modernbert", ["ModernBertModel"])
    assert (tmp_path / "tokenizer" / "tokenizer_config.json").exists()
    from safetensors.torch import load_file

    stored = load_file(tmp_path / "model.safetensors")
    assert {name: tensor.shape for name, tensor in stored.items()} == {
        name: tensor.shape for name, tensor in modules.state_dict().items()
    }
    assert all(torch.equal(stored[name], tensor) for name, tensor in modules.state_dict().items())
    again = decide(
        from_pretrained(tmp_path, device="cpu"),
        tokenizer_from_pretrained(str(tmp_path)),
        STATES,
        QUESTIONS,
    )
    expected = decide(model, tokenizer, STATES, QUESTIONS)
    for left, right in zip(again.probabilities, expected.probabilities, strict=True):
        assert np.abs(left - right).max() < 1e-6
    assert verify(str(folder))["problems"] == []
    assert inspect("convaiinnovations/laya")["parameters"]["total"] == 421_293_570


def test_quantized_models_are_close_and_torchscript_is_refused(loaded: Any, tmp_path: Path) -> None:
    folder, _, model, tokenizer = loaded
    expected = decide(model, tokenizer, STATES, QUESTIONS)
    result = decide(
        from_pretrained(folder, device="cpu", quantize="int8"), tokenizer, STATES, QUESTIONS
    )
    distance = np.abs(result.probabilities[2] - expected.probabilities[2]).max()
    assert 0 < distance < 0.1
    with pytest.raises(ValueError, match="Laya: TorchScript has no decision head"):
        save_torchscript(model, tmp_path / "model.pt")


def test_long_options_are_shortened_as_in_the_package(loaded: Any) -> None:
    """At most 48 tokens, and equal parts of the budget of 120 for many options."""
    _, _, model, tokenizer = loaded
    prompts, settings = OptionPrompts(tokenizer, model.config), DecisionSettings.of(tokenizer)
    long = {"a": "word " * 80, "b": None}
    many = {f"option {number}": "x y z " * 3 for number in range(30)}
    questions = {
        name: {"type": "choice", "instructions": "Which one is it? " * 9, "criteria": criteria}
        for name, criteria in (("long", long), ("many", many))
    }
    first, second = parse_questions(questions, settings)
    ids, marks = prompts.head(first)
    assert marks[1] - marks[0] == 49
    ids, marks = prompts.head(second)
    assert set(np.diff(marks)) == {4}
    assert marks[0] == 2 + 8  # the question keeps eight tokens
    assert len(ids) == marks[0] + 4 * 30 + 1


def test_texts_and_questions_that_do_not_fit_are_named(loaded: Any, tmp_path: Path) -> None:
    _, _, model, tokenizer = loaded
    with pytest.raises(ValueError, match="text 1 has .* tokens, but this model reads at most"):
        decide(model, tokenizer, ["short", "word " * 300], QUESTIONS)
    prompts, settings = OptionPrompts(tokenizer, model.config), DecisionSettings.of(tokenizer)
    asked = {"refund": QUESTIONS["refund"]}
    room = AGENT["max_len"] - len(prompts.head(*parse_questions(asked, settings))[0]) - 1
    assert len(prompts.encode(" a" * room)) == room
    decide(model, tokenizer, " a" * room, asked)
    with pytest.raises(
        ValueError, match=f"{room + 1} tokens, but this model reads at most {room} "
    ):
        decide(model, tokenizer, " a" * (room + 1), asked)
    many = {f"option {number}": None for number in range(80)}
    with pytest.raises(ValueError, match="question 'many' with its 80 options has .* tokens"):
        decide(model, tokenizer, "text", {"many": {"type": "choice", "criteria": many}})


def test_the_server_answers_as_the_function(loaded: Any) -> None:
    folder, _, model, tokenizer = loaded
    body = {"model": "m", "state": STATES[1], "questions": QUESTIONS}
    with connected(served("m", folder)) as http:
        response = http.post("/v1/systemone", json=body)
        assert response.status_code == 200, response.text
        assert (
            response.json()["answers"] == decide(model, tokenizer, STATES[1], QUESTIONS).answers()
        )
        chat = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
        response = http.post("/v1/chat/completions", json=chat)
        assert (
            "m is a decision model, which does not generate text: use /v1/systemone"
            in (response.json()["error"]["message"])
        )


def test_a_job_reports_texts_that_do_not_fit(loaded: Any, tmp_path: Path) -> None:
    folder, *_ = loaded
    file, questions = tmp_path / "in.csv", tmp_path / "q.yaml"
    file.write_text(f"text\nI want a refund.\n{'word ' * 300}\n")
    questions.write_text(json.dumps({"refund": QUESTIONS["refund"]}))
    out = tmp_path / "out.csv"
    arguments = ["decide", str(folder), str(file), "--questions", str(questions)]
    result = CliRunner().invoke(main, [*arguments, "--out", str(out)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "shorten the text" in result.output + result.stderr
    assert ",noul," in out.read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"option_layout": "parallel"}, "sets option_layout to 'parallel'"),
        ({"head_layers": 3}, "decision_layers.2"),
        ({"max_len": "many"}, "max_len cannot be 'many'"),
    ],
)
def test_other_settings_are_refused_by_name(
    loaded: Any, tmp_path: Path, changes: Any, message: str
) -> None:
    folder, *_ = loaded
    for path in (*folder.glob("*/*"), *folder.glob("*.*")):
        target = tmp_path / path.relative_to(folder)
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(path.read_bytes())
    (tmp_path / "rl_agent_config.json").write_text(json.dumps(AGENT | changes))
    with pytest.raises(ValueError, match=message):
        from_pretrained(tmp_path)
    (tmp_path / "encoder" / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match="only modernbert is supported"):
        from_pretrained(tmp_path)
    (tmp_path / "encoder" / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match="no encoder/config.json: copy this file there"):
        from_pretrained(tmp_path)


def test_temperatures_follow_type_and_number_of_options(tmp_path: Path, loaded: Any) -> None:
    """decision.json, as calibrate() writes it, replaces the temperature of a type."""
    folder, _, _, tokenizer = loaded
    settings = DecisionSettings.of(tokenizer)
    assert settings.temperature == {"choice": 1.5, "score": 0.8, "noul": 2.0}
    [question] = parse_questions({"q": QUESTIONS["tone"]}, settings)
    assert settings.scale_of(question) == pytest.approx(1.7 / 1.5)
    (tmp_path / "rl_agent_config.json").write_text((folder / "rl_agent_config.json").read_text())
    (tmp_path / "encoder").mkdir()
    (tmp_path / "encoder" / "config.json").write_text('{"model_type": "modernbert"}')
    (tmp_path / "decision.json").write_text(json.dumps({"temperature": {"choice": 3.0}}))
    changed = DecisionSettings.read(tmp_path)
    assert changed.temperature == {"choice": 3.0, "score": 0.8, "noul": 2.0}
    assert changed.scale_of(question) == pytest.approx(1.7 / 1.5)
    for settings, message in (
        ({"temperature": [1.0, 2.0]}, "temperature must have three numbers: correct the file"),
        (
            {"temperature": [1.0, None, 2.0]},
            r"temperature\[1\] must be a number, not None: correct",
        ),
        ({"temperature_by_options": [1.0]}, "temperature_by_options must be an object, not"),
    ):
        (tmp_path / "rl_agent_config.json").write_text(json.dumps(settings))
        with pytest.raises(ValueError, match=f"rl_agent_config.json: {message}"):
            DecisionSettings.read(tmp_path)
    (tmp_path / "rl_agent_config.json").write_text('{"temperature_by_options": null}')
    assert DecisionSettings.read(tmp_path).scales == {}
