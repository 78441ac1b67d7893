"""Question answering compared with transformers, on random checkpoints."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from needs import needs
from paths import TEXT
from question_models import WRITERS
from transformers import AutoModelForQuestionAnswering

import minhub_py
from minhub_py import answer_questions, from_pretrained, tokenizer_from_pretrained

VARIABLE = "MINHUB_TRANSFORMERS4"
PROGRAM = Path(__file__).parents[1] / "support" / "programs" / "answer.py"
LIMITS = {"bert": 64, "roberta": 98, "deberta": 512}
LONG = " ".join(TEXT.read_text(encoding="utf-8").split()[:300])
CALLS: list[tuple[str, str, dict[str, Any]]] = [
    ("Who sat on the mat?", "The cat sat on the mat, and the dog ran.", {}),
    ("Who sat?", LONG[:600], {"k": 3}),
    ("Who sat?", LONG, {"k": 5, "no_answer": True}),
    ("What is it?", LONG, {"k": 4, "window": 40, "stride": 11}),
    ("What is it?", "It is the cat", {"k": 30, "max_answer": 2, "no_answer": True}),
    ("a [CLS] b?", "The cat [CLS] sat on <s> the mat.", {"k": 20}),
    ("x?", "y", {"k": 2}),
    ("x?", "  ", {}),
    ("Où?", "Ça  va?\tÉmile est à Paris -- 東京.", {"k": 3, "max_answer": 50}),
]
NAMES = {
    "k": "top_k",
    "no_answer": "handle_impossible_answer",
    "max_answer": "max_answer_len",
    "window": "max_seq_len",
    "stride": "doc_stride",
}
HEAD = "ForQuestionAnswering"


@pytest.fixture(scope="module", params=WRITERS)
def loaded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, Any, Any]:
    """The name, the folder, our model and our tokenizer."""
    return load(request.param, tmp_path_factory.mktemp("model"))


def load(name: str, folder: Path) -> tuple[str, Path, Any, Any]:
    folder = WRITERS[name](folder, HEAD)
    model = from_pretrained(folder, device="cpu")
    return name, folder, model, tokenizer_from_pretrained(str(folder))


def rows_of(columns: Any) -> list[tuple[Any, ...]]:
    return list(zip(*(columns[name] for name in ("answer", "start", "end", "score")), strict=True))


def assert_same(actual: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> None:
    """Answers in the same order, and scores within 1e-5."""
    assert [row[:3] for row in actual] == [row[:3] for row in expected]
    for row, wanted in zip(actual, expected, strict=True):
        assert abs(row[3] - wanted[3]) <= 1e-5


def reference_answers(
    reference: Any,
    tokenizer: Any,
    question: str,
    context: str,
    limit: int,
    k: int = 1,
    no_answer: bool = False,
    max_answer: int = 15,
    window: int = 384,
    stride: int | None = None,
) -> list[tuple[Any, ...]]:
    """Each window, span and answer in loops, with the truncation of the library tokenizers."""
    window = min(window, limit)
    overlap = min(window // 2, 128) if stride is None else stride
    tokenizer.enable_truncation(window, stride=overlap, strategy="only_second")
    first = tokenizer.encode(question, context)
    tokenizer.no_truncation()
    answers: dict[str, list[Any]] = {}
    none = 1.0
    for part in [first, *first.overflowing]:
        types = {"token_type_ids": torch.tensor([part.type_ids])} if any(part.type_ids) else {}
        output = reference(torch.tensor([part.ids]), **types)
        usable = [
            number == 1 or id == part.ids[0]
            for number, id in zip(part.sequence_ids, part.ids, strict=True)
        ]
        mask = torch.tensor(usable)
        start = output.start_logits[0].masked_fill(~mask, -1e4).softmax(0)
        end = output.end_logits[0].masked_fill(~mask, -1e4).softmax(0)
        none = min(none, float(start[0] * end[0]))
        spans = [
            (float(start[i] * end[j]) if i and j else 0.0, i, j)
            for i in range(len(usable))
            for j in range(i, min(i + max_answer, len(usable)))
        ]
        for score, i, j in sorted(spans, key=lambda span: -span[0])[: 2 * k + 10]:
            if usable[i] and usable[j]:
                ends = [
                    part.word_to_chars(part.token_to_word(t), 1)
                    if part.token_to_word(t) is not None
                    else None
                    for t in (i, j)
                ]
                begin, stop = (
                    (ends[0][0], ends[1][1])
                    if all(ends)
                    else (part.offsets[i][0], part.offsets[j][1])
                )
                answer = answers.setdefault(
                    context[begin:stop].lower(), [context[begin:stop], begin, stop, 0.0]
                )
                answer[3] += score
    rows = [tuple(answer) for answer in answers.values()] + (
        [("", 0, 0, none)] if no_answer else []
    )
    return sorted(rows, key=lambda row: -row[3])[:k]


@torch.no_grad()
def test_answers_equal_all_spans_of_all_windows(loaded: tuple[str, Path, Any, Any]) -> None:
    name, folder, model, tokenizer = loaded
    reference = AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    for question, context, settings in CALLS:
        expected = reference_answers(
            reference, tokenizer, question, context, LIMITS[name], **settings
        )
        likely = [row for row in expected if row[3] > 1e-6]  # the order of others is rounding
        result = answer_questions(model, tokenizer, question, context, **settings)
        assert result["rank"].tolist() == list(range(1, len(result["rank"]) + 1))
        assert_same(rows_of(result)[: len(likely)], likely)
        for answer, start, end, _ in rows_of(result):
            assert context[start:end] == answer


# One test, so that one is skipped where transformers 4 is missing.
@needs("transformers 4")
def test_answers_equal_the_pipeline_of_transformers_4(tmp_path: Path) -> None:
    calls = [
        (question, context, {NAMES[key]: value for key, value in options.items()})
        for question, context, options in CALLS
    ]
    path = os.pathsep.join([os.environ[VARIABLE], os.environ.get("PYTHONPATH", "")])
    for name in WRITERS:
        (tmp_path / name).mkdir()
        _, folder, model, tokenizer = load(name, tmp_path / name)
        file = folder / "tokenizer_config.json"
        settings = (
            json.loads(file.read_text())
            if file.exists()
            else {"cls_token": "[CLS]", "pad_token": "[PAD]"}
        )
        if name == "bert":
            settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
        file.write_text(json.dumps({**settings, "model_max_length": LIMITS[name]}))
        (folder / "calls.json").write_text(json.dumps(calls))
        result = subprocess.run(
            [sys.executable, str(PROGRAM), str(folder)],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        )
        report = json.loads(result.stdout)
        assert report["version"].startswith("4.")
        for (question, context, options), answers in zip(CALLS, report["results"], strict=True):
            expected = [
                (row["answer"], row["start"], row["end"], row["score"])
                for row in answers
                if row["score"] > 1e-6
            ]
            rows = rows_of(answer_questions(model, tokenizer, question, context, **options))
            assert_same(rows[: len(expected)], expected)


def test_lists_missing_texts_and_batches(loaded: tuple[str, Path, Any, Any]) -> None:
    _, _, model, tokenizer = loaded
    contexts = ["The cat sat on the mat.", None, "", LONG[:300], "A dog ran."]
    result = answer_questions(model, tokenizer, "Who sat?", contexts, k=2)
    assert result["text"].tolist() == [0, 0, 1, 2, 3, 3, 4, 4]
    assert [answer is None for answer in result["answer"]] == [
        False,
        False,
        True,
        True,
        False,
        False,
        False,
        False,
    ]
    assert np.isnan(result["score"][2:4]).all()
    assert result["start"].tolist()[2:4] == result["end"].tolist()[2:4] == [-1, -1]
    for number in (0, 3, 4):
        single = answer_questions(model, tokenizer, "Who sat?", contexts[number], k=2)
        rows = [
            row for row, text in zip(rows_of(result), result["text"], strict=True) if text == number
        ]
        assert_same(rows, rows_of(single))
    several = answer_questions(
        model, tokenizer, ["Who sat?", None, "What ran?"], "The cat sat, the dog ran."
    )
    assert several["text"].tolist() == [0, 1, 2]
    assert several["answer"][1] is None


def test_wrong_calls_are_rejected_with_the_reason(
    loaded: tuple[str, Path, Any, Any], tmp_path: Path
) -> None:
    name, _, model, tokenizer = loaded
    with pytest.raises(
        ValueError, match="2 questions for 3 contexts: pass one question per context"
    ):
        answer_questions(model, tokenizer, ["a", "b"], ["c", "d", "e"])
    with pytest.raises(
        ValueError, match="a question of [0-9]+ tokens leaves no room for its context"
    ):
        answer_questions(model, tokenizer, "why " * 600, "because")
    with pytest.raises(ValueError, match="k must be"):
        answer_questions(model, tokenizer, "a", "b", k=0)
    with pytest.raises(ValueError, match=r"use embed\(\) or answer_questions\(\)"):
        minhub_py.generate(model, [[5]], 3)
    other = from_pretrained(WRITERS[name](tmp_path, "ForSequenceClassification"), device="cpu")
    with pytest.raises(
        ValueError, match="needs a question answering head, which this checkpoint does not have"
    ):
        answer_questions(other, tokenizer, "a", "b")
    with pytest.raises(
        ValueError, match=r"use answer_questions\(\) for its question answering head"
    ):
        minhub_py.classify(model, tokenizer, ["a"])
