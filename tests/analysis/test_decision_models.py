"""Decision models: JevForDecision of transformers, loaded, saved and computed by the C decoder."""

import json

import numpy as np
import pytest
from decision_cases import QUESTIONS, STATES, checkpoint, decision_model, pipeline_at
from guarantees import EXACT, assert_same
from needs import needs

from minhub_py import (
    decide,
    from_pretrained,
    generate,
    save_pretrained,
    tokenizer_from_pretrained,
)
from minhub_py.inference.native_runner import NativeRunner, runner_of

CASES = {
    "jev": {},
    "softcap": {"softcap": 2.0, "num_verbalizers": 12, "offsets": {"noul": 9, "score": 0, "choice": 4}},
    "together": {"template": "together"},
    "default prompt": {"template": None, "num_verbalizers": 26, "offsets": {"noul": 0, "score": 0, "choice": 0}},
}  # fmt: skip


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory):
    folder = decision_model(tmp_path_factory.mktemp("jev"), **CASES[request.param])
    return folder, from_pretrained(folder, device="cpu"), tokenizer_from_pretrained(str(folder))


def assert_equal_answers(folder, results) -> None:
    pipeline = pipeline_at(folder)
    for number, state in enumerate(STATES):
        expected = pipeline({"state": state, "questions": QUESTIONS})
        actual = results.answers(number)
        assert actual["refund"]["noul"] == pytest.approx(expected["refund"]["noul"], abs=1e-5)
        for name in ("tone", "urgency"):
            assert actual[name]["probabilities"] == pytest.approx(
                expected[name]["probabilities"], abs=1e-5
            )


@needs("transformers 5.24")
def test_answers_equal_the_pipeline_of_transformers(pair, tmp_path) -> None:
    folder, model, tokenizer = pair
    if EXACT:
        assert isinstance(runner_of(model), NativeRunner)
    results = decide(model, tokenizer, STATES, QUESTIONS)
    assert_equal_answers(folder, results)
    spreads = [np.ptp(values, axis=0).max() for values in results.probabilities]
    assert max(spreads) > 0.002  # they depend on the text
    alone = decide(model, tokenizer, STATES[1], QUESTIONS)
    assert_same(alone.probabilities[2][0], results.probabilities[2][1])


@needs("transformers 5.24")
def test_a_saved_model_is_loaded_by_transformers(pair, tmp_path) -> None:
    folder, model, tokenizer = pair
    save_pretrained(model, tmp_path, tokenizer)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert (saved["model_type"], saved["architectures"]) == ("jev", ["JevForDecision"])
    assert saved["text_config"]["model_type"] == "qwen3_5_text"
    for name in ("decision.json", "decision_template.jinja"):
        assert (tmp_path / name).exists() == (folder / name).exists()
    again = decide(from_pretrained(tmp_path, device="cpu"), tokenizer, STATES, QUESTIONS)
    expected = decide(model, tokenizer, STATES, QUESTIONS)
    assert_same(again.probabilities[1], expected.probabilities[1])
    assert_equal_answers(tmp_path, again)


@needs("transformers 5.24")
def test_other_calls_name_decide(pair) -> None:
    _, model, _ = pair
    with pytest.raises(
        ValueError, match=r"generate\(\): this Qwen 3.5 has a decision head.*decide"
    ):
        generate(model, [[1, 2]], 3)


@needs("transformers 5.24")
def test_more_options_than_rows_are_named(tmp_path) -> None:
    folder = decision_model(tmp_path, num_verbalizers=10)
    model, tokenizer = from_pretrained(folder), tokenizer_from_pretrained(str(folder))
    with pytest.raises(ValueError, match="question 'tone': 3 options are too many for a choice"):
        decide(model, tokenizer, "text", QUESTIONS)


@needs("transformers 5.24")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"text_config": {"model_type": "qwen2"}},
            "reads a 'qwen2'; only qwen3_5_text is supported",
        ),
        ({"hidden_size": 64}, "hidden_size contradicts that of text_config"),
        ({"offsets": {"noul": 0}}, "offsets must be a row of the head for each of noul, score and"),
        ({"offsets": {"noul": 0, "score": 2, "choice": 24}}, "from 0 to 23"),
        ({"num_verbalizers": "many"}, "decision head: num_verbalizers must be"),
    ],
)
def test_invalid_decision_models_are_named(tmp_path, changes, message) -> None:
    folder = decision_model(tmp_path)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ValueError, match=message):
        from_pretrained(folder)


def test_heads_in_other_formats_are_rejected_by_name(tmp_path) -> None:
    folder = checkpoint(tmp_path / "chat")
    (folder / "judge_config.json").write_text("{}")
    model, tokenizer = from_pretrained(folder), tokenizer_from_pretrained(str(folder))
    with pytest.raises(ValueError, match="judge_config.json describes a decision head in another"):
        decide(model, tokenizer, "text", QUESTIONS)
