"""The results of jobs equal those of single texts."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from commands import done, failed, minhub
from guarantees import assert_same
from job_runs import LETTERS, MEASURES, fail, random_texts, read_csv, write_csv
from needs import needs
from tokenizers.processors import TemplateProcessing

from minhub_py import (
    activations,
    from_config,
    from_pretrained,
    gpt2,
    save_pretrained,
    tokenizer_from_pretrained,
)
from minhub_py import score as score_ids
from minhub_py.analysis.embeddings import embed
from minhub_py.analysis.surprisal import target_logprobs, word_logprobs
from minhub_py.checkpoints.tokenizers.tokenizer import characters
from minhub_py.cli.main import main
from minhub_py.jobs.chunks import Parts
from minhub_py.jobs.task import RowText
from minhub_py.jobs.tasks import TASKS, memory_batches


def test_results_match_single_texts(tmp_path: Path, model: str) -> None:
    texts = random_texts(600)
    out = tmp_path / "out.csv"
    assert "600 rows" in done("score", model, write_csv(tmp_path / "in.csv", texts), "--out", out)
    rows = read_csv(out)
    assert list(rows[0]) == ["id", "text", "group", *MEASURES]
    network, tokenizer = from_pretrained(model), tokenizer_from_pretrained(model)
    for i, (row, text) in enumerate(zip(rows, texts, strict=True)):
        assert (row["id"], row["text"], row["group"]) == (f"{i:04}", text, f"g,{i % 3}")
        ids = tokenizer.encode(text).ids
        if len(ids) < 2:
            assert row["nats"] == row["perplexity"] == ""
            assert row["tokens"] == ("0" if ids else "")
            continue
        [alone] = score_ids(network, [ids])
        assert_same(float(row["nats"]), -math.fsum(alone.tolist()))
        assert int(row["tokens"]) == len(alone)
    assert not Parts(out).folder.exists()


def test_generated_texts_match_single_prompts(tmp_path: Path, model: str) -> None:
    """Row n has the seed SEED + n, regardless of its chunk."""
    prompts = [text for text in random_texts(200) if text][:130]
    out, options = tmp_path / "out.jsonl", ["-n", 9, "--temperature", 0.8, "--stop", "ab"]
    file = write_csv(tmp_path / "in.csv", prompts, "prompt")
    done("generate", model, file, "--column", "prompt", "--out", out, "--seed", 7, *options)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["prompt"] for row in rows] == prompts
    for n in (0, 1, 63, 64, 65, 129):
        alone = json.loads(done("generate", model, prompts[n], "--seed", 7 + n, "--json", *options))
        assert rows[n]["generated"] == alone["text"]


@needs("decoder")
def test_draft_model_does_not_change_generated_texts(tmp_path: Path, model: str) -> None:
    """A draft model with another tokenizer is rejected."""
    file = write_csv(tmp_path / "in.csv", [text for text in random_texts(12) if text], "prompt")
    options = ["--column", "prompt", "-n", 9, "--seed", 7]
    done("generate", model, file, "--out", tmp_path / "plain.csv", *options)
    done("generate", model, file, "--out", tmp_path / "drafted.csv", "--draft", model, *options)
    assert read_csv(tmp_path / "drafted.csv") == read_csv(tmp_path / "plain.csv")
    other = ("--out", tmp_path / "other.csv", "--draft", "minhub/shakespeare-gpt2", *options)
    assert "another tokenizer" in failed("generate", model, file, *other)


def test_words_are_written_one_per_row(tmp_path: Path, model: str) -> None:
    texts = ["ab cd  bad", "", "cab", " \n"]
    out = tmp_path / "out.csv"
    (tmp_path / "more.csv").write_text("text\nab cd\nbad ab cd\n")
    assert "w.csv: 5 rows from 2\n" in done(
        "words", model, tmp_path / "more.csv", "--out", tmp_path / "w.csv"
    )
    counts = json.loads(
        done("words", model, tmp_path / "more.csv", "--out", tmp_path / "x.csv", "--json")
    )
    assert (counts["rows"], counts["read"], counts["missing"]) == (5, 2, 0)
    assert "6 rows from 4, 2 without a result" in done(
        "words", model, write_csv(tmp_path / "in.csv", texts), "--out", out
    )
    rows = read_csv(out)
    assert [(row["id"], row["word_n"], row["word"]) for row in rows] == [
        ("0000", "1", "ab"),
        ("0000", "2", "cd"),
        ("0000", "3", "bad"),
        ("0001", "", ""),
        ("0002", "1", "cab"),
        ("0003", "", ""),
    ]
    alone = word_logprobs(
        from_pretrained(model), tokenizer_from_pretrained(model), ["ab", "cd", "bad"]
    )
    for name in ("tokens", "logprob", "surprisal", "entropy"):
        numbers = [float(row[name] or "nan") for row in rows[:3]]
        assert str(numbers) == str(list(map(float, alone[name])))


def test_further_measures_of_words_are_columns(tmp_path: Path, model: str) -> None:
    """Also for rows that are words. Tokens of this model do not mark words, so that --correct is an
    error.
    """
    out, lines = tmp_path / "out.jsonl", tmp_path / "in.txt"
    lines.write_text("ab cd bad\ncab\n")
    options = ["--renyi", "0.5", "--premise", "ab", "--lags", "1"]
    printed = json.loads(done("words", model, lines, *options, "--json"))
    expected = word_logprobs(
        from_pretrained(model),
        tokenizer_from_pretrained(model),
        ["ab", "cd", "bad", "cab"],
        by=[0, 0, 0, 1],
        renyi=0.5,
        premise="ab",
        lags=1,
    )
    names = ["renyi_0.5", "pmi", "surprisal_lag1", "entropy_lag1"]
    assert [*printed[0]][-4:] == names
    for name in names:
        assert str([math.nan if row[name] is None else row[name] for row in printed]) == str(
            expected[name].tolist()
        )
    words = write_csv(tmp_path / "words.csv", ["ab", "cd", "bad"])
    done("words", model, words, "--column", "text", "--by", "group", *options, "--out", out)
    assert [*json.loads(out.read_text().splitlines()[0])][-4:] == names
    assert "leave --correct unset" in fail("words", model, lines, "--correct", "oh")
    assert "remove --ignore-regex" in fail(
        "words", model, lines, "--correct", "oh", "--ignore-regex", ",", status=2
    )


def test_words_without_out_are_printed(tmp_path: Path, model: str) -> None:
    lines, table, out = tmp_path / "in.txt", tmp_path / "in.csv", tmp_path / "out.jsonl"
    lines.write_text("ab cd\n\nbad\n")
    printed = json.loads(done("words", model, lines, "--json"))
    done("words", model, write_csv(table, ["ab cd", "bad"]), "--out", out)
    stored = [json.loads(line) for line in out.read_text().splitlines()]
    names = ["word_n", "word", "tokens", "logprob", "surprisal", "entropy"]
    assert [list(row) for row in printed] == [names] * 3
    assert printed == [{name: row[name] for name in names} for row in stored]
    shown = done("words", model, lines).splitlines()
    assert shown[0].split() == [name.upper() for name in names]
    assert shown[2].split() == ["2", "cd", "3"] + [f"{printed[1][name]:.4f}" for name in names[3:]]
    assert len(shown) == 4
    assert len(shown[0]) == len(shown[2])  # numbers are aligned to the right
    # Standard input, and the rows of a table.
    result = CliRunner().invoke(main, ["words", model, "-", "--json"], input="ab cd\nbad")
    assert json.loads(result.stdout) == printed
    rows = json.loads(done("words", model, table, "--column", "text", "--prefix", "x_", "--json"))
    assert [(row["id"], row["group"], row["x_word"]) for row in rows] == [
        ("0000", "g,0", "ab"),
        ("0000", "g,0", "cd"),
        ("0001", "g,1", "bad"),
    ]
    by = json.loads(done("words", model, table, "--column", "text", "--by", "group", "--json"))
    assert [row["text"] for row in by] == ["ab cd", "bad"]
    assert "--overwrite is for the rows" in fail("words", model, lines, "--overwrite", status=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "in.txt", "out.jsonl"]


SENTENCES: dict[str, list[Any]] = {  # 3 texts by the columns text and who
    "text": [1, 1, 1, None, 1, 1, 2, 2, 2, 2],
    "who": ["a", "a", "a", "a", "NA", "b", "b", "b", "b", "b"],
    "word": ["ab", "cd", "ba", "ed", "fe", "ab", "cd", "", "eX", "X"],
}


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_rows_as_words_match_word_logprobs(tmp_path: Path, model: str, kind: str) -> None:
    file, out = tmp_path / f"in.{kind}", tmp_path / "out.jsonl"
    rows = [
        dict(zip(SENTENCES, values, strict=True))
        for values in zip(*SENTENCES.values(), strict=True)
    ]
    if kind == "parquet":
        table = pa.table(SENTENCES)
        pq.write_table(table.set_column(1, "who", table.column("who").dictionary_encode()), file)
    elif kind == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with file.open("w", newline="") as opened:
            writer = csv.DictWriter(opened, SENTENCES)
            writer.writeheader()
            writer.writerows(rows)
    result = minhub(
        "words",
        model,
        file,
        "--column",
        "word",
        "--by",
        "text",
        "--by",
        "who",
        "--sep",
        ",",
        "--out",
        out,
    )
    assert result.exit_code == 0, result.output
    assert result.stderr.count("not in the tokenizer's vocabulary, and left out: 'X'") == 1
    rows_out = [json.loads(line) for line in out.read_text().splitlines()]
    assert [list(row) for row in rows_out] == [
        [*SENTENCES, "tokens", "logprob", "surprisal", "entropy"]
    ] * 10
    words = [word or None for word in SENTENCES["word"]] if kind == "csv" else SENTENCES["word"]
    assert [row["word"] for row in rows_out] == words
    by: list[str | None] = ["a", "a", "a", None, None if kind == "csv" else "1 NA", "b", *["c"] * 4]
    network, tokenizer = from_pretrained(model), tokenizer_from_pretrained(model)
    with pytest.warns(UserWarning, match="left out: 'X'"):
        expected = word_logprobs(network, tokenizer, SENTENCES["word"], by=by, sep=",")
    for row, *values in zip(
        rows_out,
        *(expected[name].tolist() for name in ("logprob", "surprisal", "entropy")),
        strict=True,
    ):
        assert [
            math.nan if row[name] is None else row[name]
            for name in ("logprob", "surprisal", "entropy")
        ] == (pytest.approx(values, nan_ok=True, abs=0))
    has_value = [bool(word and text) for word, text in zip(SENTENCES["word"], by, strict=True)]
    assert [row["tokens"] for row in rows_out] == [
        n if there else None
        for n, there in zip(expected["tokens"].tolist(), has_value, strict=True)
    ]


def test_rows_of_a_text_must_be_consecutive(tmp_path: Path, model: str) -> None:
    file, out = tmp_path / "in.jsonl", tmp_path / "out.csv"
    rows = [(1, "a"), (None, "b"), (1, "c"), (2, "d"), (1, "e")]
    file.write_text("".join(json.dumps({"item": item, "word": word}) + "\n" for item, word in rows))
    command = ["words", model, file, "--out", out]
    message = fail(*command, "--by", "item")
    assert (
        "in.jsonl, row 5: the rows of item 1 are not consecutive: sort the rows, or add another"
        " --by column" in message
    )
    assert "has no column text: set --column" in fail(*command)
    assert "has no column id: set --by to one of its columns (item, word)" in fail(
        *command, "--by", "id"
    )
    assert "--sep joins rows that are words: add --by" in fail(*command, "--sep", "", status=2)
    command = ("words", "no/such-model", file, "--out", out, "--ignore-regex", "(")
    assert "is not a valid regular expression" in fail(*command, status=2)
    assert not Parts(out).folder.exists()
    (tmp_path / "in2.jsonl").write_text("".join(file.read_text().splitlines(keepends=True)[:4]))
    (tmp_path / "in3.jsonl").write_text((tmp_path / "in2.jsonl").read_text())
    done("words", model, tmp_path / "in[23].jsonl", "--by", "item", "--out", out)
    # a text ends with its file
    assert [row["logprob"] == "" for row in read_csv(out)] == [True, True, False, True] * 2


def test_targets_are_scored_from_a_column(tmp_path: Path, model: str) -> None:
    """The target is a causal model's continuation after --sep, or an encoder-decoder's answer,
    which is required.
    """
    torch.manual_seed(1)
    answering = str(tmp_path / "t5")
    network = from_config(
        "t5", vocab_size=len(LETTERS), d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4
    )
    save_pretrained(network, answering, characters(LETTERS))
    file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows: list[dict[str, Any]] = [
        {"text": "abc", "answer": "d ea"},
        {"text": "abc", "answer": None},
        {"text": "", "answer": "a"},
        {"text": "fg", "answer": "h"},
        {"text": "a", "answer": "X"},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in (model, answering):
        assert "3 without a result" in done(
            "score", name, file, "--target", "answer", "--out", out, "--overwrite"
        )
        rows_out = [json.loads(line) for line in out.read_text().splitlines()]
        tokenizer = tokenizer_from_pretrained(name)
        sep = "" if name == answering else " "
        ids = [
            [tokenizer.encode(before + rows[n][column]).ids for n in (0, 3)]
            for before, column in (("", "text"), (sep, "answer"))
        ]
        expected = [
            -math.fsum(scores.tolist())
            for scores in score_ids(from_pretrained(name), ids[0], targets=ids[1])
        ]
        assert [row["nats"] for row in rows_out] == [expected[0], None, None, expected[1], None]
        assert [row["tokens"] for row in rows_out] == [4 + len(sep), None, None, 1 + len(sep), None]
        assert [row["characters"] for row in rows_out] == [
            4 + len(sep),
            None,
            None,
            1 + len(sep),
            None,
        ]
    new = tmp_path / "new.csv"
    message = (
        "predicts the answer to a prompt, not the prompt: use minhub score --target COLUMN"
        " --out OUT"
    )
    assert message in fail("score", answering, file, "--out", new)
    assert message in fail("score", answering, file)
    assert message in fail("words", answering, file, "--out", new)
    assert "--target is for the rows of files" in fail(
        "score", answering, file, "--target", "answer", status=2
    )
    assert "no column reply: set --target" in fail(
        "score", answering, file, "--target", "reply", "--out", new
    )
    (tmp_path / "n.jsonl").write_text('{"text": "a", "answer": 5}\n')
    assert "line 1: answer is 5, not a string: set --target to another column" in fail(
        "score", answering, tmp_path / "n.jsonl", "--target", "answer", "--out", new
    )
    assert not Parts(new).folder.exists()


def test_no_special_tokens_around_the_target_of_a_causal_model(model: str) -> None:
    """The tokenizer adds special tokens at both ends of a text, as T5's does."""
    tokenizer = tokenizer_from_pretrained(model)
    tokenizer.post_processor = TemplateProcessing(
        single="a $A b", special_tokens=[("a", 0), ("b", 1)]
    )
    network = from_pretrained(model)
    text = RowText(0, "cd", tokenizer.encode("cd").ids, "ef")
    [[result]] = TASKS["score_targets"].run(network, tokenizer, [text], sep="")
    context, target = (
        tokenizer.encode(part, add_special_tokens=False).ids for part in ("acd", "ef")
    )
    [expected] = score_ids(network, [context], targets=[target])
    assert result["tokens"] == 2
    assert result["nats"] == -math.fsum(expected.tolist())


def test_score_target_matches_target_logprobs(tmp_path: Path) -> None:
    """With tokens that contain the space before a word, and a token that crosses the boundary."""
    name = "minhub/shakespeare-gpt2"
    file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    contexts, targets = (
        ["My good", "My lord, the king is", "To be,"],
        ["lord", "dead.", "or not to be"],
    )
    rows = [
        {"text": context, "word": target} for context, target in zip(contexts, targets, strict=True)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    network, tokenizer = from_pretrained(name), tokenizer_from_pretrained(name)
    for sep, options in ((" ", []), ("", ["--sep", ""]), ("\n", ["--sep", "\n"])):
        done("score", name, file, "--target", "word", "--out", out, "--overwrite", *options)
        shell = [json.loads(line) for line in out.read_text().splitlines()]
        expected = target_logprobs(network, tokenizer, contexts, targets, sep=sep)
        assert [row["tokens"] for row in shell] == expected["tokens"].tolist()
        assert [-row["nats"] for row in shell] == pytest.approx(
            expected["logprob"].tolist(), rel=1e-6
        )
        assert [row["characters"] for row in shell] == [len(sep + target) for target in targets]


def test_a_target_that_shares_a_token_with_its_context_has_no_result(model: str) -> None:
    tokenizer = tokenizer_from_pretrained(model)
    tokenizer.add_tokens(["cd"])
    network = gpt2(
        vocab_size=tokenizer.get_vocab_size(), n_positions=16, n_embd=16, n_layer=1, n_head=2
    ).eval()
    with pytest.warns(
        UserWarning, match="1 word has no log-probability, because a token.*'abc' and 'd'"
    ):
        assert TASKS["score_targets"].run(
            network, tokenizer, [RowText(0, "abc", [0], "d")], sep=""
        ) == [[]]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "The cat sat on the", "word": " mat"}, "' mat' starts with white space"),
        (
            {"text": "The cat sat on the ", "word": "mat"},
            "'The cat sat on the ' ends with white space",
        ),
    ],
)
def test_double_space_is_rejected_before_the_computation(
    tmp_path: Path, row: dict[str, str], message: str
) -> None:
    file, out = tmp_path / "in.jsonl", tmp_path / "out.csv"
    rows = [{"text": "The", "word": "cat"}, {"text": None, "word": " "}, row]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ("score", "minhub/shakespeare-gpt2", file, "--target", "word", "--out", out)
    error = fail(*command)
    assert f"{file}, row 3: {message}, and --sep is a space" in error
    assert not Parts(out).folder.exists()
    assert "2 rows" not in done(*command, "--sep", "")
    assert "--sep joins a text and its target: add --target" in fail(
        *command[:3], "--sep", "", status=2
    )


def test_word_with_white_space_next_to_the_separator_is_rejected(tmp_path: Path) -> None:
    file, out = tmp_path / "in.csv", tmp_path / "out.csv"
    file.write_text("item,word\n1,The\n1,cat \n2, A\n2,dog\n2,barks\n")
    command = ("words", "minhub/shakespeare-gpt2", file, "--by", "item", "--out", out)
    done(*command)  # the spaces are at the end and the beginning of a text
    file.write_text("item,word\n1,The \n1,cat\n")
    assert f"{file}, row 2: 'The ' ends with white space" in fail(*command, "--overwrite")
    done(*command, "--overwrite", "--sep", "")


def test_vector_width_is_known_if_the_first_chunk_has_no_vectors(
    tmp_path: Path, model: str
) -> None:
    file, out = (
        write_csv(tmp_path / "in.csv", [""] * TASKS["embed"].chunk + ["ab"]),
        tmp_path / "out.csv",
    )
    done("embed", model, file, "--out", out)
    rows = read_csv(out)
    assert list(rows[0])[-1] == "embedding_16"
    assert rows[0]["embedding_1"] == ""
    assert rows[-1]["embedding_16"]


def test_embeddings_in_each_format_match_embed(tmp_path: Path, model: str) -> None:
    texts = ["ab cd", "", "b" * 40, "a"]
    file = write_csv(tmp_path / "in.csv", texts)
    for kind in ("csv", "parquet", "jsonl"):
        done(
            "embed", model, file, "--out", tmp_path / f"out.{kind}", "--layer", 1, "--pool", "last"
        )
    vectors = embed(
        from_pretrained(model), tokenizer_from_pretrained(model), texts[::2], layer=1, pool="last"
    )
    rows = pq.read_table(tmp_path / "out.parquet").column("embedding").to_pylist()
    assert rows[1] is None
    assert torch.allclose(torch.tensor(rows[::2]), vectors, atol=1e-6)
    cells = [
        [row[f"embedding_{position}"] for position in range(1, 17)]
        for row in read_csv(tmp_path / "out.csv")
    ]
    assert cells[1] == [""] * 16
    assert torch.equal(
        torch.tensor([[float(cell) for cell in row] for row in cells[::2]]), torch.tensor(rows[::2])
    )
    lines = [
        json.loads(line)["embedding"] for line in (tmp_path / "out.jsonl").read_text().splitlines()
    ]
    assert torch.equal(torch.tensor(lines[::2]), torch.tensor(rows[::2]))
    assert "layer" in fail("embed", model, file, "--out", tmp_path / "other.csv", "--layer", 9)


def test_activations_of_a_point_match_the_function(tmp_path: Path, model: str) -> None:
    """A text beyond the context (16 tokens) has no result."""
    texts = ["ab cd", "", "a" * 20, "bad"]
    file, out = write_csv(tmp_path / "in.csv", texts), tmp_path / "out.npy"
    network, tokenizer = from_pretrained(model), tokenizer_from_pretrained(model)
    for pool in ("last", "mean", "none"):
        shown = minhub(
            "activations",
            model,
            file,
            "--at",
            "layers.2.mlp",
            "--pool",
            pool,
            "--out",
            out,
            "--overwrite",
        )
        assert shown.exit_code == 0, shown.output
        assert "row 3 has no result: the text has more than 16 tokens" in shown.stderr
        expected = activations(network, tokenizer, ["ab cd", "bad"], "layers.2.mlp", pool=pool)[
            "layers.2.mlp"
        ].numpy()
        matrix = np.load(out)
        np.testing.assert_array_equal(matrix[~np.isnan(matrix).any(axis=1)], expected)
        assert len(matrix) == (4 if pool != "none" else 10)
    table = tmp_path / "out.parquet"
    done("activations", model, file, "--at", "layers.1.heads.2", "--pool", "none", "--out", table)
    rows = pq.read_table(table).to_pylist()
    assert [row["token"] for row in rows if row["id"] == "0003"] == ["b", "a", "d"]
    assert [row["token_n"] for row in rows if row["id"] == "0003"] == [1, 2, 3]
    assert {len(row["activation"]) for row in rows if row["activation"]} == {8}
    command = ("activations", model, file, "--out", tmp_path / "other.npy", "--at")
    assert "must be one point, without *" in fail(*command, "layers.*.mlp", status=2)
    assert "layers.9.mlp" in fail(*command, "layers.9.mlp")


def test_memory_batches_limit_the_number_of_tokens() -> None:
    texts = [
        RowText(row, "", [0] * length)
        for row, length in enumerate([10, 20_000, 4000, 4000, 4000, 4000, 1])
    ]
    batches = list(memory_batches(texts, 90))
    assert [text for batch in batches for text in batch] == texts
    assert list(map(len, batches)) == [1, 1, 4, 1]


def test_prefix_adds_the_results_of_a_second_model(tmp_path: Path, model: str) -> None:
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    done("score", model, write_csv(tmp_path / "in.csv", ["abc"]), "--out", one)
    assert "already has a column tokens" in fail("score", model, one, "--out", two)
    done("score", model, one, "--out", two, "--prefix", "b_")
    [row] = read_csv(two)
    assert row["nats"] == row["b_nats"] != ""
