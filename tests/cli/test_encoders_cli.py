"""The commands for text encoders: equal to the functions, and wrong calls."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from commands import done, failed
from encoders import (
    write_classifier,
    write_cross_encoder,
    write_encoder,
    write_entailment_model,
    write_masked_lm,
)
from encoders import write_sentence_encoder as write_sentences
from fast_python import python

from minhub_py import (
    answer_questions,
    classify,
    classify_tokens,
    embed,
    from_pretrained,
    masked_logprobs,
    masked_tokens,
    pseudo_logprobs,
    rerank,
    tokenizer_from_pretrained,
    word_embeddings,
)
from minhub_py.cli.main import main

GPT2 = "minhub/shakespeare-gpt2"
TEXTS = ["The cat sat on the mat", "a dog ran", "The weather is lovely today."]


def checkpoint(write: Callable[[Path], Path]) -> Any:
    """A fixture: the folder of a model that `write` writes."""

    @pytest.fixture(scope="module")
    def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
        return str(write(tmp_path_factory.mktemp("model")))

    return folder


sentences, cross_encoder, classifier = map(
    checkpoint, (write_sentences, write_cross_encoder, write_classifier)
)
entailment, masked_lm = map(checkpoint, (write_entailment_model, write_masked_lm))


def load(folder: str) -> tuple[Any, Any]:
    return from_pretrained(folder), tokenizer_from_pretrained(folder)


def write_csv(path: Path, **columns: list[str]) -> str:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return str(path)


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# embed


def test_embed_follows_the_repository_in_every_format(sentences: str, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "in.csv", text=TEXTS)
    expected = embed(*load(sentences), TEXTS).numpy()
    for extension in ("csv", "parquet", "npy"):
        done("embed", sentences, file, "--out", str(tmp_path / f"out.{extension}"))
    cells = [
        [row[f"embedding_{i}"] for i in range(1, 49)] for row in read_csv(tmp_path / "out.csv")
    ]
    assert (np.array(cells, np.float32) == expected).all()
    rows = pq.read_table(tmp_path / "out.parquet").column("embedding").to_pylist()
    assert (np.array(rows, np.float32) == expected).all()
    matrix = np.load(tmp_path / "out.npy")
    assert matrix.dtype == np.float32
    assert (matrix == expected).all()


def test_npy_has_nan_for_missing_texts_and_the_rows_of_all_files(
    sentences: str, tmp_path: Path
) -> None:
    first = write_csv(tmp_path / "a.csv", text=[TEXTS[0], "NA", TEXTS[1]])
    second = write_csv(tmp_path / "b.csv", text=[TEXTS[2]])
    done("embed", sentences, first, second, "--out", str(tmp_path / "out.npy"))
    matrix, expected = np.load(tmp_path / "out.npy"), embed(*load(sentences), TEXTS).numpy()
    assert (matrix[[0, 2, 3]] == expected).all()
    assert np.isnan(matrix[1]).all()
    assert "already exists" in failed(
        "embed", sentences, first, "--out", str(tmp_path / "out.npy"), status=2
    )
    assert (
        ".npy"
        not in failed("words", GPT2, first, "--out", str(tmp_path / "x.npy"), status=2).split(
            "end in"
        )[1]
    )


def test_embed_options_equal_those_of_the_function(sentences: str, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "in.csv", text=TEXTS)
    model, tokenizer = load(sentences)
    for number, (options, settings) in enumerate(
        (
            (["--prompt", "query"], {"prompt": "query"}),
            (["--dimensions", "16", "--normalize"], {"dimensions": 16, "normalize": True}),
            (["--pool", "cls"], {"pool": "cls"}),
            (
                ["--pool", "max", "--layer", "1", "--normalize"],
                {"pool": "max", "layer": 1, "normalize": True},
            ),
        )
    ):
        out = tmp_path / f"out{number}.npy"
        done("embed", sentences, file, "--out", str(out), *options)
        assert (np.load(out) == embed(model, tokenizer, TEXTS, **settings).numpy()).all()
    assert "query" in failed(
        "embed", sentences, file, "--out", str(tmp_path / "x.npy"), "--prompt", "other"
    )


def test_sparse_embeddings_have_one_row_per_token(masked_lm: str, tmp_path: Path) -> None:
    model, tokenizer = load(masked_lm)
    row = embed(model, tokenizer, TEXTS[:1], pool="splade").to_dense()[0]
    values, ids = row[row > 0].sort(descending=True).values, row.argsort(descending=True)
    rows = json.loads(done("embed", masked_lm, "--sparse", TEXTS[0], "--json"))
    assert [row["weight"] for row in rows] == [float(str(value)) for value in values.numpy()]
    assert rows[0]["token"] == tokenizer.decode([int(ids[0])])
    file = write_csv(tmp_path / "in.csv", text=[*TEXTS, "NA"])
    done(
        "embed", masked_lm, file, "--sparse", "--dimensions", "2", "--out", str(tmp_path / "o.csv")
    )
    assert [row["text"] for row in read_csv(tmp_path / "o.csv")] == [
        text for text in TEXTS for _ in range(2)
    ] + ["NA"]
    message = failed("embed", masked_lm, file, "--sparse", "--pool", "max", status=2)
    assert "--pool and --sparse exclude each other" in message


def test_embed_words_has_one_row_per_word(sentences: str, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "in.csv", text=[*TEXTS, "NA"])
    words, vectors = word_embeddings(*load(sentences), TEXTS, layers=[1, -1], combine="mean")
    options = ("--words", "--layer", "1,-1", "--combine", "mean")
    done("embed", sentences, file, *options, "--out", str(tmp_path / "out.parquet"))
    rows = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert [row["word"] for row in rows] == [*words["word"], None]
    assert [row["word_n"] for row in rows[:-1]] == (words["word_n"] + 1).tolist()
    assert (np.array([row["embedding"] for row in rows[:-1]], np.float32) == vectors.numpy()).all()
    printed = json.loads(done("embed", GPT2, "To be", "--words", "--json"))
    assert [row["word"] for row in printed] == ["To", "be"]
    for wrong, text in (
        (("--words", "--pool", "max"), "--pool and --words exclude each other"),
        (("--layer", "x"), "--layer must be a whole number or several, such as 5,6, not 'x'"),
        (("--sparse", "--combine", "mean"), "--combine and --sparse exclude each other"),
    ):
        assert text in failed("embed", sentences, file, *wrong, status=2)


def test_embed_combines_several_layers(sentences: str, tmp_path: Path) -> None:
    out = tmp_path / "out.npy"
    file = write_csv(tmp_path / "in.csv", text=TEXTS)
    options = ("--layer", "1,-1", "--combine", "mean")
    done("embed", sentences, file, *options, "--out", str(out))
    expected = embed(*load(sentences), TEXTS, layer=[1, -1], combine="mean")
    np.testing.assert_allclose(np.load(out), expected.numpy(), rtol=1e-6)


def test_sparse_embeddings_need_a_masked_lm_head(sentences: str) -> None:
    assert "need a masked-LM head" in failed("embed", sentences, "--sparse", TEXTS[0])
    assert "encoder" in failed("embed", GPT2, "--sparse", TEXTS[0])


# rerank


def test_rerank_prints_the_most_relevant_text_first(cross_encoder: str, tmp_path: Path) -> None:
    columns = rerank(*load(cross_encoder), "cat", TEXTS)
    expected = [
        {"index": index, "score": float(str(score)), "text": TEXTS[index]}
        for index, score in zip(columns["text"].tolist(), columns["score"], strict=True)
    ]
    assert json.loads(done("rerank", cross_encoder, "cat", *TEXTS, "--json")) == expected
    file = write_csv(tmp_path / "in.csv", review=TEXTS)
    found = done("rerank", cross_encoder, "cat", file, "--column", "review", "--top", "2", "--json")
    assert json.loads(found) == expected[:2]
    lines = done("rerank", cross_encoder, "cat", *TEXTS).splitlines()
    assert lines[0].split() == ["INDEX", "SCORE", "TEXT"]
    assert [line.split(maxsplit=2)[2] for line in lines[1:]] == [row["text"] for row in expected]
    raw = json.loads(done("rerank", cross_encoder, "cat", *TEXTS, "--raw-scores", "--json"))
    assert raw[0]["score"] == pytest.approx(
        float(rerank(*load(cross_encoder), "cat", TEXTS, raw_scores=True)["score"][0])
    )


def test_an_instruction_is_for_decoders(cross_encoder: str, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "in.csv", text=TEXTS)
    for arguments in ([TEXTS[0]], [file, "--out", str(tmp_path / "out.csv")]):
        assert "this model is an encoder" in failed(
            "rerank", cross_encoder, "cat", *arguments, "--instruction", "Find"
        )


def test_rerank_jobs_keep_the_order_of_the_rows(cross_encoder: str, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "in.csv", text=[TEXTS[0], "", *TEXTS[1:]])
    done("rerank", cross_encoder, "cat", file, "--out", str(tmp_path / "out.csv"))
    columns = rerank(*load(cross_encoder), "cat", TEXTS)
    scores = dict(zip(columns["text"].tolist(), columns["score"], strict=True))
    rows = read_csv(tmp_path / "out.csv")
    assert rows[1]["score"] == ""
    assert [np.float32(row["score"]) for row in rows if row["text"]] == [
        scores[i] for i in range(3)
    ]


# classify


def test_classify_equals_the_function(classifier: str, tmp_path: Path) -> None:
    columns = classify(*load(classifier), TEXTS)
    rows = json.loads(done("classify", classifier, *TEXTS, "--json"))
    assert [row["text"] for row in rows] == TEXTS
    for name, values in columns.items():
        assert [row[name] if name == "label" else np.float32(row[name]) for row in rows] == list(
            values
        )
    heading = done("classify", classifier, *TEXTS).splitlines()[0]
    assert heading.split() == ["TEXT", "LABEL", "PROB", "PROB_BAD", "PROB_FAIR", "PROB_GOOD"]
    file = write_csv(tmp_path / "in.csv", review=[*TEXTS, "NA"])
    for extension in ("csv", "parquet"):
        done(
            "classify",
            classifier,
            file,
            "--column",
            "review",
            "--out",
            str(tmp_path / f"out.{extension}"),
        )
    written = read_csv(tmp_path / "out.csv")
    assert list(written[0]) == ["review", *columns]
    assert [row["label"] for row in written] == [*columns["label"], ""]
    assert [np.float32(row["prob_fair"]) for row in written[:3]] == list(columns["prob_fair"])
    assert pq.read_table(tmp_path / "out.parquet").column("label").to_pylist() == [
        *columns["label"],
        None,
    ]


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_regression_has_values_and_no_probability(tmp_path: Path, outputs: int) -> None:
    labels = {str(number): f"LABEL_{number}" for number in range(outputs)}
    folder = str(
        write_encoder(
            tmp_path, "BertForSequenceClassification", id2label=labels, problem_type="regression"
        )
    )
    names = ["value"] if outputs == 1 else ["value_LABEL_0", "value_LABEL_1"]
    model, tokenizer = load(folder)
    scores = model(torch.tensor([tokenizer.encode(TEXTS[0]).ids]))[0].tolist()
    [row] = json.loads(done("classify", folder, TEXTS[0], "--json"))
    assert list(row) == ["text", *names]
    assert [row[name] for name in names] == pytest.approx(scores, abs=1e-5)
    assert done("classify", folder, *TEXTS).splitlines()[0].split() == [
        "TEXT",
        *map(str.upper, names),
    ]
    file = write_csv(tmp_path / "in.csv", text=[*TEXTS, "NA"])
    done("classify", folder, file, "--out", str(tmp_path / "out.csv"))
    rows = read_csv(tmp_path / "out.csv")
    assert list(rows[0]) == ["text", *names]
    assert [float(rows[0][name]) for name in names] == pytest.approx(scores, abs=1e-5)
    assert [rows[3][name] for name in names] == [""] * outputs


def test_zero_shot_labels_equal_the_function(entailment: str, tmp_path: Path) -> None:
    labels = ["politics", "sports"]
    columns = classify(*load(entailment), TEXTS, labels, hypothesis="A {} text.", multi_label=True)
    options = ["--labels", "politics, sports", "--hypothesis", "A {} text.", "--multi-label"]
    rows = json.loads(done("classify", entailment, *TEXTS, *options, "--json"))
    file = write_csv(tmp_path / "in.csv", text=TEXTS)
    done(
        "classify", entailment, file, *options, "--out", str(tmp_path / "out.csv"), "--prefix", "z_"
    )
    written = read_csv(tmp_path / "out.csv")
    for name in ("prob_politics", "prob_sports"):
        assert [np.float32(row[name]) for row in rows] == list(columns[name])
        assert [np.float32(row[f"z_{name}"]) for row in written] == list(columns[name])


def test_wrong_calls_of_classify_say_what_to_change(
    classifier: str, entailment: str, sentences: str, tmp_path: Path
) -> None:
    file = write_csv(tmp_path / "in.csv", text=TEXTS)
    assert "add --labels" in failed("classify", entailment, "a", "--multi-label", status=2)
    assert "different labels" in failed("classify", entailment, "a", "--labels", "x,x", status=2)
    assert "{}" in failed(
        "classify", entailment, "a", "--labels", "x", "--hypothesis", "no", status=2
    )
    assert "entailment model" in failed("classify", classifier, "a", "--labels", "x,y")
    out = ["--out", str(tmp_path / "o.csv")]
    for more in (["a"], [file, *out]):
        assert "ForSequenceClassification" in failed("classify", sentences, *more)
    assert "several labels" not in failed("rerank", classifier, "q", "a")
    assert "one label, not 3" in failed("rerank", classifier, "q", "a")
    assert "text encoder" in failed("classify", GPT2, file, "--labels", "x", *out)
    assert "missing.csv" in failed("classify", classifier, "missing.csv")
    assert "no column review" in failed("classify", classifier, file, "--column", "review")
    assert "add --out" in failed("classify", classifier, "a", "--workers", "2", status=2)


# masked


def test_masked_equals_the_function(masked_lm: str, tmp_path: Path) -> None:
    texts = ["The [MASK] sat.", "[MASK] cat [MASK]"]
    model, tokenizer = load(masked_lm)
    columns = masked_tokens(model, tokenizer, texts, 3)
    rows = json.loads(done("masked", masked_lm, *texts, "--top", "3", "--json"))
    assert len(rows) == 9
    for name in ("text", "mask", "token", "id", "prob"):
        assert [row[name] for row in rows] == list(columns[name])
    assert [np.float32(row["logprob"]) for row in rows] == list(columns["logprob"])
    assert done("masked", masked_lm, texts[0]).splitlines()[0].split() == [
        "TEXT",
        "MASK",
        "TOKEN",
        "ID",
        "PROB",
        "LOGPROB",
    ]
    rows = json.loads(
        done("masked", masked_lm, texts[0], "--token", "cat", "--token", "dog", "--json")
    )
    assert {row["token"] for row in rows} == {"cat", "dog"}
    file = write_csv(tmp_path / "in.csv", text=[*texts, "no mask"])
    done("masked", masked_lm, file, "--top", "3", "--out", str(tmp_path / "out.csv"))
    written = read_csv(tmp_path / "out.csv")
    assert [row["token"] for row in written] == [*columns["token"], ""]
    assert [row["mask_n"] for row in written] == ["1"] * 6 + ["2"] * 3 + [""]
    assert [np.float32(row["logprob"]) for row in written[:9]] == list(columns["logprob"])


def test_masked_targets_equal_the_function(masked_lm: str, tmp_path: Path) -> None:
    file = write_csv(
        tmp_path / "in.csv",
        text=["The [MASK] sat.", "A [MASK].", "none", "[MASK] [MASK]"],
        word=["cat", "zebra", "dog", "dog"],
    )
    done("masked", masked_lm, file, "--target", "word", "--out", str(tmp_path / "out.csv"))
    columns = masked_logprobs(*load(masked_lm), ["The", "A"], ["cat", "zebra"], ["sat.", "."])
    rows = read_csv(tmp_path / "out.csv")
    assert [row["logprob"] for row in rows[2:]] == ["", ""]
    assert [float(row["logprob"]) for row in rows[:2]] == columns["logprob"].tolist()
    assert [int(row["tokens"]) for row in rows[:2]] == columns["tokens"].tolist() == [1, 5]


def test_wrong_calls_of_masked_say_what_to_change(
    masked_lm: str, sentences: str, tmp_path: Path
) -> None:
    out = ["--out", str(tmp_path / "o.csv")]
    file = write_csv(tmp_path / "in.csv", text=["[MASK]"], word=["cat"])
    assert "has no mask" in failed("masked", masked_lm, "a cat")
    assert "ForMaskedLM" in failed("masked", sentences, "[MASK]")
    assert "not one token" not in done("masked", masked_lm, "[MASK]", "--token", "cat")
    assert "is 5 tokens, not one" in failed("masked", masked_lm, "[MASK]", "--token", "zebra")
    assert "text encoder" in failed("masked", GPT2, "[MASK]") + failed("masked", GPT2, file, *out)
    assert "--target" in failed("masked", masked_lm, file, *out, "--token", "cat", status=2)
    assert "add --out" in failed("masked", masked_lm, file, "--target", "word", status=2)
    assert "exclude" in failed(
        "masked", masked_lm, file, "--target", "word", "--top", "2", *out, status=2
    )


@pytest.mark.parametrize("task", ["masked", "pll"])
def test_a_row_beyond_the_maximum_length_has_no_result_and_a_note(
    masked_lm: str, tmp_path: Path, task: str
) -> None:
    texts = ["The [MASK] sat.", "the cat " * 40 + "[MASK]", "A [MASK]."]
    file, out = write_csv(tmp_path / "in.csv", text=texts, word=["cat"] * 3), tmp_path / "out.csv"
    options = {"masked": ["--top", "1"], "pll": []}[task]
    result = CliRunner().invoke(main, [task, masked_lm, file, *options, "--out", str(out)])
    problem = {"masked": "a mask", "pll": "the text"}[task]
    assert (
        f"row 2 has no result: {problem} is beyond the model's maximum length of 64 tokens\n"
        in result.stderr
    )
    assert "1 without a result" in result.output
    assert "vocabulary" not in result.stderr  # white space between words needs no token
    assert [row["logprob"] != "" for row in read_csv(out)] == [True, False, True]
    if task == "masked":
        done("masked", masked_lm, file, "--target", "word", "--out", str(tmp_path / "targets.csv"))
        assert [row["logprob"] != "" for row in read_csv(tmp_path / "targets.csv")] == [
            True,
            False,
            True,
        ]


# pll


@pytest.mark.parametrize("method", ["original", "within-word-l2r"])
def test_pll_equals_the_function(masked_lm: str, tmp_path: Path, method: str) -> None:
    texts = [*TEXTS, "zebra"]
    columns = pseudo_logprobs(*load(masked_lm), texts, method=method.replace("-", "_"))
    sums = np.bincount(columns["text"], columns["logprob"].astype(float))
    counts = np.bincount(columns["text"])
    rows = json.loads(done("pll", masked_lm, *texts, "--method", method, "--json"))
    assert [row["text"] for row in rows] == texts
    assert [row["tokens"] for row in rows] == counts.tolist()
    assert [row["logprob"] for row in rows] == pytest.approx(sums)
    assert [row["perplexity"] for row in rows] == pytest.approx(np.exp(-sums / counts))
    file = write_csv(tmp_path / "in.csv", text=[*texts[:2], "", *texts[2:]])
    done("pll", masked_lm, file, "--method", method, "--tokens", "--out", str(tmp_path / "out.csv"))
    written = read_csv(tmp_path / "out.csv")
    assert [row["token"] for row in written if row["text"]] == columns["token"]
    assert [np.float32(row["logprob"]) for row in written if row["text"]] == list(
        columns["logprob"]
    )
    assert [row["token_n"] for row in written[-5:]] == ["1", "2", "3", "4", "5"]
    done("pll", masked_lm, file, "--method", method, "--out", str(tmp_path / "sums.csv"))
    sums_written = [float(row["logprob"]) for row in read_csv(tmp_path / "sums.csv") if row["text"]]
    assert sums_written == [row["logprob"] for row in rows]


def test_wrong_calls_of_pll_say_what_to_change(
    masked_lm: str, sentences: str, tmp_path: Path
) -> None:
    assert "ForMaskedLM" in failed("pll", sentences, "a")
    assert "text encoder" in failed(
        "pll", GPT2, write_csv(tmp_path / "a.csv", text=["a"]), "--out", "x.csv"
    )
    assert "add --out" in failed("pll", masked_lm, "a", "--overwrite", status=2)


# answer


def test_answers_equal_the_function(tmp_path: Path) -> None:
    model = str(write_encoder(tmp_path / "model", "BertForQuestionAnswering"))
    file = write_csv(tmp_path / "in.csv", text=[TEXTS[0], "", *TEXTS[1:]])
    columns = answer_questions(*load(model), "Who sat?", TEXTS, k=2, no_answer=True, max_answer=3)
    options = ["--top", "2", "--no-answer", "--max-answer", "3"]
    rows = json.loads(done("answer", model, "Who sat?", *TEXTS, *options, "--json"))
    assert [row["text"] for row in rows] == [TEXTS[number] for number in columns["text"]]
    done("answer", model, "Who sat?", file, *options, "--out", str(tmp_path / "out.csv"))
    written = [row for row in read_csv(tmp_path / "out.csv") if row["rank"]]
    for name in ("rank", "answer", "start", "end"):
        assert [row[name] for row in rows] == list(columns[name])
        assert [row[name] for row in written] == [str(value) for value in columns[name]]
    assert [np.float32(row["score"]) for row in written] == list(columns["score"])
    assert "use minhub answer" in failed("classify", model, "a")
    assert "needs a question answering head" in failed("answer", GPT2, "Who?", "a")


# entities


def test_entities_equal_the_function(tmp_path: Path) -> None:
    labels = {"0": "O", "1": "B-PER", "2": "I-PER", "3": "LOC"}
    model = str(write_encoder(tmp_path / "model", "BertForTokenClassification", id2label=labels))
    file = write_csv(tmp_path / "in.csv", text=[TEXTS[0], "", *TEXTS[1:]])
    for aggregation in ("simple", "none"):
        columns = classify_tokens(*load(model), TEXTS, aggregation=aggregation, ignore=("O",))
        options = ["--aggregation", aggregation, "--ignore", "O"]
        rows = json.loads(done("entities", model, *TEXTS, *options, "--json"))
        assert [row["text"] for row in rows] == [TEXTS[number] for number in columns["text"]]
        done("entities", model, file, *options, "--out", str(tmp_path / f"{aggregation}.csv"))
        written = [row for row in read_csv(tmp_path / f"{aggregation}.csv") if row["word"]]
        for name in ("word", "start", "end", "label"):
            assert [row[name] for row in rows] == list(columns[name])
            assert [row[name] for row in written] == [str(value) for value in columns[name]]
        assert [np.float32(row["prob"]) for row in written] == list(columns["prob"])
        assert len(written) > 2
    assert "minhub entities" in failed("generate", model, "a")
    assert "use classify_tokens()" not in failed("classify", model, "a")
    assert "use minhub entities" in failed("classify", model, "a")


# Encoders and other commands


def test_commands_that_generate_name_the_command_for_an_encoder(
    masked_lm: str, cross_encoder: str, classifier: str, sentences: str, tmp_path: Path
) -> None:
    file = write_csv(tmp_path / "in.csv", text=TEXTS)
    out = ["--out", str(tmp_path / "out.csv")]
    calls = (
        ["generate", "{}", "Hi"],
        ["generate", "{}", file, *out],
        ["score", "{}", file],
        ["score", "{}", file, *out],
        ["words", "{}", file],
        ["words", "{}", file, *out],
        ["chat", "{}"],
    )
    names = {
        masked_lm: "minhub embed or minhub masked",
        cross_encoder: "minhub embed or minhub rerank",
        classifier: "minhub embed or minhub classify",
        sentences: "use minhub embed",
    }
    for model, name in names.items():
        for call in calls if model == masked_lm else calls[:1]:
            message = failed(*[part.format(model) for part in call]).strip()
            assert message.splitlines()[-1].endswith(name)
    assert not (tmp_path / "out.csv").exists()


def test_commands_for_encoders_name_no_internal_task() -> None:
    message = failed("embed", "minhub/shakespeare-gpt2", "a", "--sparse")
    assert "this command needs a text encoder such as BERT, not GPT-2" in message


@pytest.mark.slow
def test_interrupted_jobs_of_an_encoder_continue(masked_lm: str, tmp_path: Path) -> None:
    """After a kill, the same command computes the remaining rows."""
    texts = [f"The [MASK] sat on {number}" for number in range(3000)]
    file, out = write_csv(tmp_path / "in.csv", text=texts), tmp_path / "out.csv"
    command = [
        sys.executable,
        "-m",
        "minhub_py",
        "masked",
        masked_lm,
        file,
        "--top",
        "1",
        "--out",
        str(out),
    ]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    folder = tmp_path / "out.csv.parts"
    deadline = time.monotonic() + 60
    while (
        time.monotonic() < deadline and len(list(folder.glob("*"))) < 4 and process.poll() is None
    ):
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    if not out.exists():  # otherwise the job was faster
        done("masked", masked_lm, file, "--top", "1", "--out", str(out))
    rows = read_csv(out)
    assert [row["text"] for row in rows] == texts
    expected = masked_tokens(*load(masked_lm), texts, 1)
    assert [row["token"] for row in rows] == expected["token"]


def test_serve_starts_with_an_encoder(sentences: str) -> None:
    process = subprocess.Popen(
        [python(), "-m", "minhub_py", "serve", sentences, GPT2, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    address = line.rpartition(" ")[2].strip()
    try:
        answer = httpx2.post(f"{address}/v1/embeddings", json={"input": TEXTS}, timeout=60).json()
        expected = embed(*load(sentences), TEXTS).numpy()
        assert (
            np.array([entry["embedding"] for entry in answer["data"]], np.float32) == expected
        ).all()
    finally:
        process.send_signal(signal.SIGINT)
        stderr = process.communicate(timeout=60)[1]
    assert stderr.count("chat template") == 1  # the decoder's
