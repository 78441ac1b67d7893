"""Labels by their probabilities: equal to the score of each answer alone, for all kinds of models,
and calibration.
"""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import done
from docs_models import TEMPLATE, byte_tokenizer
from guarantees import assert_same
from job_runs import fail, read_csv, write_csv
from small_models import LSTM, T5, tokenizer

from minhub_py import (
    annotate,
    from_config,
    from_pretrained,
    llama,
    lstm,
    save_pretrained,
    score,
    tokenizer_from_pretrained,
)
from minhub_py.analysis.annotate import calibrated

LABELS = ["good", "bad", "very bad"]
TEXTS = ["O Romeo", "Off with his head!", None, "", "The king"]


@pytest.fixture(scope="module")
def builtin() -> tuple[Any, Any]:
    name = "minhub/shakespeare-gpt2"
    return from_pretrained(name), tokenizer_from_pretrained(name)


def softmax(scores: Any) -> Any:
    return np.exp(scores) / np.exp(scores).sum()


def alone(model: Any, tok: Any, prompt: str, answers: list[str]) -> list[float]:
    """Each answer's log-probability after a prompt, one call per answer."""
    ids = tok.encode(prompt).ids
    return [
        float(score(model, [ids], targets=[tok.encode(answer).ids])[0].double().sum())
        for answer in answers
    ]


def test_probabilities_are_those_of_each_label_alone(builtin: tuple[Any, Any]) -> None:
    model, tok = builtin
    result = annotate(
        model, tok, TEXTS, LABELS, instruction="Tone?", examples=[("My lord", "good")]
    )
    assert list(result) == ["label", "prob", "margin", *(f"prob_{label}" for label in LABELS)]
    for number, text in enumerate(TEXTS):
        probs = np.array([result[f"prob_{label}"][number] for label in LABELS])
        if text is None:
            assert result["label"][number] is None
            assert np.isnan(probs).all()
            continue
        prompt = f"Tone?\n\nText: My lord\nLabel: good\nText: {text}\nLabel:"
        expected = softmax(alone(model, tok, prompt, [f" {label}" for label in LABELS]))
        assert probs == pytest.approx(expected, rel=1e-5)
        assert result["label"][number] == LABELS[int(expected.argmax())]
        best, second = sorted(expected)[:0:-1]
        assert (result["prob"][number], result["margin"][number]) == pytest.approx(
            (best, best - second), rel=1e-5
        )


def test_a_text_has_the_same_values_in_every_batch(builtin: tuple[Any, Any]) -> None:
    model, tok = builtin
    together = annotate(model, tok, TEXTS, LABELS)
    for number, text in enumerate(TEXTS):
        single = annotate(model, tok, [text], LABELS)
        assert_same(single["prob_bad"], together["prob_bad"][number : number + 1])


def test_an_end_token_follows_every_label_if_one_begins_another(builtin: tuple[Any, Any]) -> None:
    model, tok = builtin
    result = annotate(
        model,
        tok,
        ["O Romeo"],
        ["good", "good lord"],
        template="{text}, is it good?\nA:",
        instruction="",
    )
    scores = alone(model, tok, "O Romeo, is it good?\nA:", [" good\n", " good lord\n"])
    assert [result["prob_good"][0], result["prob_good lord"][0]] == pytest.approx(
        softmax(scores), rel=1e-5
    )


def test_words_of_a_label_are_added_and_length_divides_the_score(builtin: tuple[Any, Any]) -> None:
    model, tok = builtin
    labels = [{"label": "good", "words": ["good", "fair"]}, "terrible"]
    settings: Any = {"instruction": "Tone?"}
    result = annotate(model, tok, ["O Romeo"], labels, **settings)
    a, b, c = alone(model, tok, "Tone?\n\nText: O Romeo\nLabel:", [" good", " fair", " terrible"])
    assert result["prob_good"][0] == pytest.approx(softmax([np.logaddexp(a, b), c])[0], rel=1e-5)
    # a token is a character, with the space
    for length, sizes in (("tokens", (5, 9)), ("characters", (4, 8))):
        result = annotate(model, tok, ["O Romeo"], ["good", "terrible"], length=length, **settings)
        assert result["prob_good"][0] == pytest.approx(
            softmax([a / sizes[0], c / sizes[1]])[0], rel=1e-5
        )


def test_calibration_follows_its_formulas(builtin: tuple[Any, Any]) -> None:
    assert calibrated(np.array([0.7, 0.3]), np.array([0.8, 0.2])) == pytest.approx(
        [0.368421, 0.631579], abs=1e-6
    )
    model, tok = builtin
    settings: Any = {"instruction": "Tone?"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the vocabulary lacks the brackets of [MASK]
        result = annotate(model, tok, ["O Romeo"], LABELS, calibrate="contextual", **settings)
        free = annotate(model, tok, ["N/A", "", "[MASK]"], LABELS, **settings)
    raw = annotate(model, tok, ["O Romeo"], LABELS, **settings)
    plain = np.array([raw[f"prob_{label}"][0] for label in LABELS])
    mean = np.array([free[f"prob_{label}"].mean() for label in LABELS])
    assert [result[f"prob_{label}"][0] for label in LABELS] == pytest.approx(
        plain / mean / (plain / mean).sum()
    )
    result = annotate(
        model, tok, ["O Romeo"], LABELS, calibrate="pmi", premise="The label is", **settings
    )
    answers = [f" {label}" for label in LABELS]
    difference = np.array(alone(model, tok, "Tone?\n\nText: O Romeo\nLabel:", answers)) - alone(
        model, tok, "Tone?\n\nThe label is", answers
    )
    assert [result[f"prob_{label}"][0] for label in LABELS] == pytest.approx(
        softmax(difference), rel=1e-4
    )


def test_a_chat_model_receives_messages(tmp_path: Path) -> None:
    torch.manual_seed(0)
    bot = llama(
        vocab_size=258,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=512,
        bos_token_id=256,
        eos_token_id=257,
    )
    save_pretrained(bot, tmp_path, byte_tokenizer("<|im_start|>", "<|im_end|>"))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": TEMPLATE}), encoding="utf-8"
    )
    model, tok = from_pretrained(str(tmp_path)), tokenizer_from_pretrained(str(tmp_path))
    result = annotate(
        model, tok, ["Fine."], ["yes", "yes, no"], instruction="Q?", examples=[("One.", "yes")]
    )
    turn = "<|im_start|>{}\n{}<|im_end|>\n"
    prompt = turn.format("user", "Q?\n\nText: One.") + turn.format("assistant", "yes")
    prompt += turn.format("user", "Text: Fine.") + "<|im_start|>assistant\n"
    expected = softmax(alone(model, tok, prompt, ["yes<|im_end|>", "yes, no<|im_end|>"]))
    assert [result["prob_yes"][0], result["prob_yes, no"][0]] == pytest.approx(expected, rel=1e-4)
    assert (
        annotate(model, tok, ["Fine."], ["yes", "no"], chat=False)["prob_yes"] != result["prob_yes"]
    )


@pytest.mark.parametrize(
    "make",
    [lambda: lstm(**LSTM), lambda: from_config("t5", **T5)],
    ids=["recurrent", "encoder-decoder"],
)
def test_other_kinds_of_models_have_the_probabilities_of_score(make: Any) -> None:
    torch.manual_seed(1)
    model, tok = make().eval(), tokenizer()
    result = annotate(
        model,
        tok,
        ["the cat sat", "a dog ran"],
        ["cat", "dog sat"],
        template="{text} and",
        instruction="",
    )
    for number, text in enumerate(["the cat sat", "a dog ran"]):
        expected = softmax(alone(model, tok, f"{text} and", ["cat", "dog sat"]))
        assert result["prob_cat"][number] == pytest.approx(expected[0], rel=1e-4)


def test_long_texts_are_truncated_with_a_warning_and_long_instructions_rejected(
    builtin: tuple[Any, Any],
) -> None:
    model, tok = builtin
    with pytest.warns(UserWarning, match="1 text was truncated"):
        result = annotate(model, tok, ["king " * 100, "a"], LABELS, instruction="")
    room = 256 + 1 - len(" very bad") - len("Text: \nLabel:")
    short = annotate(model, tok, [("king " * 100)[:room]], LABELS, instruction="")
    assert result["prob"][0] == short["prob"][0]
    with pytest.raises(ValueError, match="without a text, but the context has room for"):
        annotate(model, tok, ["a"], LABELS, instruction="long " * 100)


def test_wrong_calls_name_the_problem(builtin: tuple[Any, Any]) -> None:
    model, tok = builtin
    for message, labels, settings in (
        ("at least two labels", ["a"], {}),
        ("occurs twice", ["a", "a"], {}),
        ("labels must be a list", "a,b", {}),
        ("not in labels", ["a", "b"], {"examples": [("x", "c")]}),
        (r"contain \{text\} once", ["a", "b"], {"template": "x"}),
        ("no chat template", ["a", "b"], {"chat": True}),
        ("calibrate must be", ["a", "b"], {"calibrate": "x"}),
        ("premise is for", ["a", "b"], {"premise": "x"}),
        ("put it in quotes", ["a", True], {}),
    ):
        with pytest.raises(ValueError, match=message):
            annotate(model, tok, ["x"], labels, **settings)
    with pytest.raises(FileNotFoundError, match="book.yaml: check the name of the codebook"):
        annotate(model, tok, ["x"], "book.yaml")


def test_the_command_labels_files_by_a_codebook_and_resumes(
    tmp_path: Path, builtin: tuple[Any, Any]
) -> None:
    name, texts = "minhub/shakespeare-gpt2", ["O Romeo", "", "The king"] * 100
    file, book, out = (
        write_csv(tmp_path / "in.csv", texts),
        tmp_path / "book.yaml",
        tmp_path / "out.csv",
    )
    book.write_text(
        "labels:\n- good: praises\n- {label: bad, words: [bad, foul]}\nexamples:\n- {text: Hm,"
        " label: bad}\n"
    )
    done("annotate", name, file, "--codebook", book, "--out", out)
    rows = read_csv(out)
    expected = annotate(*builtin, ["O Romeo", "The king"], str(book))
    assert float(rows[0]["prob_good"]) == expected["prob_good"][0]
    assert (rows[299]["label"], float(rows[299]["margin"])) == (
        expected["label"][1],
        expected["margin"][1],
    )
    assert rows[1]["label"] == rows[1]["prob"] == ""
    printed = json.loads(done("annotate", name, file, "--labels", "good,bad", "--json"))
    assert list(printed[0])[-5:] == ["label", "prob", "margin", "prob_good", "prob_bad"]
    assert "add --labels or --codebook" in fail("annotate", name, file, status=2)
    book.write_text("labels: [good]\n")
    assert "at least two labels" in fail("annotate", name, file, "--codebook", book)


def test_the_command_reads_examples_and_a_separator(
    tmp_path: Path, builtin: tuple[Any, Any]
) -> None:
    name, examples = "minhub/shakespeare-gpt2", tmp_path / "examples.csv"
    file = write_csv(tmp_path / "in.csv", ["O Romeo"])
    examples.write_text('text,label\n"Hm, no",bad\nFair,good\n')
    command = ("annotate", name, file, "--labels", "good,bad", "--json", "--sep", "", "--examples")
    [printed] = json.loads(done(*command, examples))
    pairs = [("Hm, no", "bad"), ("Fair", "good")]
    expected = annotate(*builtin, ["O Romeo"], ["good", "bad"], examples=pairs, sep="")
    assert printed["prob_good"] == expected["prob_good"][0]
    assert (
        printed["prob_good"]
        != annotate(*builtin, ["O Romeo"], ["good", "bad"], examples=pairs)["prob_good"][0]
    )
    assert "must be a table with the columns text and label" in fail(*command, file, status=2)


def test_definitions_change_the_prompt(builtin: tuple[Any, Any]) -> None:
    defined = annotate(
        *builtin, ["O Romeo"], {"good": "praises", "bad": "blames"}, instruction="Tone?"
    )
    same = annotate(
        *builtin, ["O Romeo"], ["good", "bad"], instruction="Tone?\n- good: praises\n- bad: blames"
    )
    assert defined["prob_good"] == same["prob_good"]
