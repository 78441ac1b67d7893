"""Batch jobs: each row is written exactly once, also if the job is killed and resumed."""

import contextlib
import csv
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from children import SERVER
from click.testing import CliRunner
from commands import done, minhub
from tokenizers.processors import TemplateProcessing

from minhub_py import from_pretrained, gpt2, save_pretrained, t5, tokenizer_from_pretrained
from minhub_py import score as score_ids
from minhub_py.analysis.embeddings import embed
from minhub_py.analysis.surprisal import target_logprobs, word_logprobs
from minhub_py.checkpoints.tokenizers.tokenizer import characters
from minhub_py.cli.main import main
from minhub_py.jobs.chunks import Parts
from minhub_py.jobs.sources import chunk_sizes, scan
from minhub_py.jobs.tasks import TASKS, Text, memory_batches

LETTERS = "abcdefgh ,\"'\n\t\\é日"
MEASURES = [column.name for column in TASKS["score"].columns]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny character-level GPT-2."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model")
    network = gpt2(vocab_size=len(LETTERS), n_positions=16, n_embd=16, n_layer=2, n_head=2)
    save_pretrained(network, folder, characters(LETTERS))
    return str(folder)


def random_texts(count: int, most: int = 24) -> list[str]:
    """Texts of 0 to `most` characters; some are empty, some have one."""
    draw = random.Random(1)
    return ["".join(draw.choices(LETTERS, k=draw.randrange(most))) for _ in range(count)]


def write_csv(path: Path, texts: list[str], column: str = "text") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", column, "group"])
        writer.writerows([f"{i:04}", text, f"g,{i % 3}"] for i, text in enumerate(texts))
    return path


def read_csv(path: Path, separator: str = ",") -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter=separator))


def fail(*arguments: object, status: int = 1) -> str:
    """Run a command that is expected to fail, and return its error message."""
    result = minhub(*arguments)
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.split())


def child(arguments: list[object], errors: Path | None, most: int | None) -> None:
    """Run the command in a new process group."""
    os.setpgrp()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    torch.set_num_threads(1)
    if errors:
        os.dup2(os.open(errors, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 2)
    if most:
        write = Parts.write

        def write_and_wait(parts: Parts, number: int, content: bytes) -> None:
            write(parts, number, content)
            while len(parts.completed()) >= most and not parts.out.with_name("go on").exists():
                time.sleep(0.005)

        Parts.write = write_and_wait  # type: ignore[method-assign]
    main(list(map(str, arguments)))


def start(*arguments: object, errors: Path | None = None, most: int | None = None) -> Any:
    """Start the command in a process. It waits after `most` parts until the file "go on" exists next to the output."""
    process = SERVER.Process(target=child, args=(arguments, errors, most))
    process.start()
    return process


def wait_for(process: Any, condition: Callable[[], bool]) -> None:
    """Wait until a condition is met or the process has ended."""
    while process.exitcode is None and not condition():
        process.join(0.002)


def count_parts(out: Path) -> int:
    folder = Parts(out).folder
    return len(list(folder.glob("part-*"))) if folder.exists() else 0


# Results


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
        [alone] = score_ids(network, [ids])  # bitwise identical
        assert float(row["nats"]) == -math.fsum(alone.tolist())
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


def test_words_are_written_one_per_row(tmp_path: Path, model: str) -> None:
    texts = ["ab cd  bad", "", "cab", " \n"]
    out = tmp_path / "out.csv"
    assert "4 rows" in done("words", model, write_csv(tmp_path / "in.csv", texts), "--out", out)
    rows = read_csv(out)
    assert [(row["id"], row["word_n"], row["word"]) for row in rows] == [
        ("0000", "1", "ab"), ("0000", "2", "cd"), ("0000", "3", "bad"), ("0001", "", ""), ("0002", "1", "cab"),
        ("0003", "", ""),
    ]  # fmt: skip
    alone = word_logprobs(from_pretrained(model), tokenizer_from_pretrained(model), ["ab", "cd", "bad"])
    for name in ("tokens", "logprob", "surprisal", "entropy"):
        numbers = [float(row[name] or "nan") for row in rows[:3]]
        assert str(numbers) == str(list(map(float, alone[name])))


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
        ("0000", "g,0", "ab"), ("0000", "g,0", "cd"), ("0001", "g,1", "bad"),
    ]  # fmt: skip
    by = json.loads(done("words", model, table, "--column", "text", "--by", "group", "--json"))
    assert [row["text"] for row in by] == ["ab cd", "bad"]
    assert "--overwrite is for the rows" in fail("words", model, lines, "--overwrite", status=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "in.txt", "out.jsonl"]


SENTENCES: dict[
    str, list[Any]
] = {  # 3 texts, if the columns text and who tell them apart; the first is apart from none
    "text": [1, 1, 1, None, 1, 1, 2, 2, 2, 2],
    "who": ["a", "a", "a", "a", "NA", "b", "b", "b", "b", "b"],
    "word": ["ab", "cd", "ba", "ed", "fe", "ab", "cd", "", "eX", "X"],
}


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_rows_as_words_match_word_logprobs(tmp_path: Path, model: str, kind: str) -> None:
    file, out = tmp_path / f"in.{kind}", tmp_path / "out.jsonl"
    rows = [dict(zip(SENTENCES, values, strict=True)) for values in zip(*SENTENCES.values(), strict=True)]
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
    result = minhub("words", model, file, "--column", "word", "--by", "text", "--by", "who", "--sep", ",", "--out", out)
    assert result.exit_code == 0, result.output
    assert result.stderr.count("not in the tokenizer's vocabulary, and left out: 'X'") == 1
    rows_out = [json.loads(line) for line in out.read_text().splitlines()]
    assert [list(row) for row in rows_out] == [[*SENTENCES, "tokens", "logprob", "surprisal", "entropy"]] * 10
    assert [row["word"] for row in rows_out] == SENTENCES["word"]
    by: list[str | None] = ["a", "a", "a", None, None if kind == "csv" else "1 NA", "b", *["c"] * 4]
    network, tokenizer = from_pretrained(model), tokenizer_from_pretrained(model)
    with pytest.warns(UserWarning, match="left out: 'X'"):
        expected = word_logprobs(network, tokenizer, SENTENCES["word"], by=by, sep=",")
    for row, *values in zip(
        rows_out, *(expected[name].tolist() for name in ("logprob", "surprisal", "entropy")), strict=True
    ):
        assert [math.nan if row[name] is None else row[name] for name in ("logprob", "surprisal", "entropy")] == (
            pytest.approx(values, nan_ok=True, abs=0)
        )
    has_value = [bool(word and text) for word, text in zip(SENTENCES["word"], by, strict=True)]
    assert [row["tokens"] for row in rows_out] == [
        n if there else None for n, there in zip(expected["tokens"].tolist(), has_value, strict=True)
    ]


def test_rows_of_a_text_must_be_consecutive(tmp_path: Path, model: str) -> None:
    file, out = tmp_path / "in.jsonl", tmp_path / "out.csv"
    rows = [(1, "a"), (None, "b"), (1, "c"), (2, "d"), (1, "e")]
    file.write_text("".join(json.dumps({"item": item, "word": word}) + "\n" for item, word in rows))
    command = ["words", model, file, "--out", out]
    message = fail(*command, "--by", "item")
    assert (
        "in.jsonl, row 5: the rows of item 1 are not consecutive: sort the rows, or add another --by column" in message
    )
    assert "has no column text: set --column" in fail(*command)
    assert "has no column id: set --by to one of its columns (item, word)" in fail(*command, "--by", "id")
    assert "--sep joins rows that are words: add --by" in fail(*command, "--sep", "", status=2)
    command = ("words", "no/such-model", file, "--out", out, "--ignore-regex", "(")
    assert "is not a valid regular expression" in fail(*command, status=2)
    assert not Parts(out).folder.exists()
    (tmp_path / "in2.jsonl").write_text("".join(file.read_text().splitlines(keepends=True)[:4]))
    (tmp_path / "in3.jsonl").write_text((tmp_path / "in2.jsonl").read_text())
    done("words", model, tmp_path / "in[23].jsonl", "--by", "item", "--out", out)
    assert [row["logprob"] == "" for row in read_csv(out)] == [True, True, False, True] * 2  # a text ends with its file


def test_chunks_contain_complete_texts(tmp_path: Path) -> None:
    """A row without a key does not end a text."""
    file = tmp_path / "in.jsonl"
    items = [1, None, 1, 2, 2, 2, None, 3]
    file.write_text("".join(json.dumps({"item": item, "word": "a"}) + "\n" for item in items))
    source = scan(file, "word", "by", ["item"])
    assert chunk_sizes([source], ["item"], 2) == [3, 4, 1]
    assert chunk_sizes([source, source], ["item"], 100) == [8, 8]
    assert chunk_sizes([source, source], [], 5) == [5, 5, 5, 1]


def test_killed_words_job_resumes_with_complete_texts(tmp_path: Path, model: str) -> None:
    """Chunks contain complete texts, also a long one. Workers and a kill do not change the output."""
    draw = random.Random(4)
    lengths = [draw.randrange(1, 9) for _ in range(700)]
    lengths[300] = 2500  # more than two chunks
    by = [number for number, length in enumerate(lengths) for _ in range(length)]
    words = ["".join(draw.choices("abcdefgh", k=draw.randrange(4))) for _ in by]
    file, out, complete = tmp_path / "in.csv", tmp_path / "out.csv", tmp_path / "complete.csv"
    with file.open("w", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerows([("item", "word", "side"), *zip(by, words, [1] * len(by), strict=True)])
    command = ["words", model, file, "--column", "word", "--by", "item", "--out"]
    done(*command, complete)
    process = start(*command, out, most=3)
    wait_for(process, lambda: count_parts(out) >= 2)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert count_parts(out) >= 2
    sizes = {len(Parts(out).read(number)["rows"]) for number in Parts(out).completed()}
    assert all(size >= 1024 for size in sizes)
    assert "--by or --target changed" in fail(*command, out, "--by", "side")
    done(*command, out, "--workers", 2)
    assert out.read_bytes() == complete.read_bytes()
    expected = word_logprobs(from_pretrained(model), tokenizer_from_pretrained(model), words, by=by)["logprob"]
    logprobs = [float(row["logprob"] or "nan") for row in read_csv(out)]
    assert logprobs == pytest.approx(expected.tolist(), nan_ok=True, abs=0)


def test_score_targets_from_a_column(tmp_path: Path, model: str) -> None:
    """The target is a causal model's continuation after --sep, or an encoder-decoder's answer, which is required."""
    torch.manual_seed(1)
    answering = str(tmp_path / "t5")
    network = t5(vocab_size=len(LETTERS), d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4)
    save_pretrained(network, answering, characters(LETTERS))
    file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows: list[dict[str, Any]] = [
        {"text": "abc", "answer": "d ea"}, {"text": "abc", "answer": None}, {"text": "", "answer": "a"},
        {"text": "fg", "answer": "h"}, {"text": "a", "answer": "X"},
    ]  # fmt: skip
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in (model, answering):
        assert "3 without a result" in done("score", name, file, "--target", "answer", "--out", out, "--overwrite")
        rows_out = [json.loads(line) for line in out.read_text().splitlines()]
        tokenizer = tokenizer_from_pretrained(name)
        sep = "" if name == answering else " "
        ids = [[tokenizer.encode(before + rows[n][column]).ids for n in (0, 3)]
               for before, column in (("", "text"), (sep, "answer"))]  # fmt: skip
        expected = [-math.fsum(scores.tolist()) for scores in score_ids(from_pretrained(name), ids[0], targets=ids[1])]
        assert [row["nats"] for row in rows_out] == [expected[0], None, None, expected[1], None]
        assert [row["tokens"] for row in rows_out] == [4 + len(sep), None, None, 1 + len(sep), None]
        assert [row["characters"] for row in rows_out] == [4 + len(sep), None, None, 1 + len(sep), None]
    new = tmp_path / "new.csv"
    message = "predicts the answer to a prompt, not the prompt: use minhub score --target COLUMN --out OUT"
    assert message in fail("score", answering, file, "--out", new)
    assert message in fail("score", answering, file)
    assert message in fail("words", answering, file, "--out", new)
    assert "--target is for the rows of files" in fail("score", answering, file, "--target", "answer", status=2)
    assert "no column reply: set --target" in fail("score", answering, file, "--target", "reply", "--out", new)
    (tmp_path / "n.jsonl").write_text('{"text": "a", "answer": 5}\n')
    assert "line 1: answer is 5, not a string: set --target to another column" in fail(
        "score", answering, tmp_path / "n.jsonl", "--target", "answer", "--out", new
    )
    assert not Parts(new).folder.exists()


def test_no_special_tokens_around_the_target_of_a_causal_model(model: str) -> None:
    """The tokenizer adds special tokens at both ends of a text, as T5's does."""
    tokenizer = tokenizer_from_pretrained(model)
    tokenizer.post_processor = TemplateProcessing(single="a $A b", special_tokens=[("a", 0), ("b", 1)])
    network = from_pretrained(model)
    text = Text(0, "cd", tokenizer.encode("cd").ids, "ef")
    [[result]] = TASKS["score_targets"].run(network, tokenizer, [text], sep="")
    context, target = (tokenizer.encode(part, add_special_tokens=False).ids for part in ("acd", "ef"))
    [expected] = score_ids(network, [context], targets=[target])
    assert result["tokens"] == 2
    assert result["nats"] == -math.fsum(expected.tolist())


def test_score_target_matches_target_logprobs(tmp_path: Path) -> None:
    """With tokens that contain the space before a word, and a token that crosses the boundary."""
    name = "minhub/shakespeare-gpt2"
    file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    contexts, targets = ["My good", "My lord, the king is", "To be,"], ["lord", "dead.", "or not to be"]
    rows = [{"text": context, "word": target} for context, target in zip(contexts, targets, strict=True)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    network, tokenizer = from_pretrained(name), tokenizer_from_pretrained(name)
    for sep, options in ((" ", []), ("", ["--sep", ""]), ("\n", ["--sep", "\n"])):
        done("score", name, file, "--target", "word", "--out", out, "--overwrite", *options)
        shell = [json.loads(line) for line in out.read_text().splitlines()]
        expected = target_logprobs(network, tokenizer, contexts, targets, sep=sep)
        assert [row["tokens"] for row in shell] == expected["tokens"].tolist()
        assert [-row["nats"] for row in shell] == pytest.approx(expected["logprob"].tolist(), rel=1e-6)
        assert [row["characters"] for row in shell] == [len(sep + target) for target in targets]


def test_a_target_that_shares_a_token_with_its_context_has_no_result(model: str) -> None:
    tokenizer = tokenizer_from_pretrained(model)
    tokenizer.add_tokens(["cd"])
    network = gpt2(vocab_size=tokenizer.get_vocab_size(), n_positions=16, n_embd=16, n_layer=1, n_head=2).eval()
    with pytest.warns(UserWarning, match="1 word has no log-probability, because a token.*'abc' and 'd'"):
        assert TASKS["score_targets"].run(network, tokenizer, [Text(0, "abc", [0], "d")], sep="") == [[]]


@pytest.mark.parametrize(("row", "message"), [
    ({"text": "The cat sat on the", "word": " mat"}, "' mat' starts with white space"),
    ({"text": "The cat sat on the ", "word": "mat"}, "'The cat sat on the ' ends with white space"),
])  # fmt: skip
def test_double_space_is_rejected_before_the_computation(tmp_path: Path, row: dict[str, str], message: str) -> None:
    file, out = tmp_path / "in.jsonl", tmp_path / "out.csv"
    rows = [{"text": "The", "word": "cat"}, {"text": None, "word": " "}, row]
    file.write_text("".join(json.dumps(each) + "\n" for each in rows))
    command = ("score", "minhub/shakespeare-gpt2", file, "--target", "word", "--out", out)
    error = fail(*command)
    assert f"{file}, row 3: {message}, and sep is a space" in error
    assert not Parts(out).folder.exists()
    assert "2 rows" not in done(*command, "--sep", "")
    assert "--sep joins a text and its target: add --target" in fail(*command[:3], "--sep", "", status=2)


def test_word_with_white_space_next_to_the_separator_is_rejected(tmp_path: Path) -> None:
    file, out = tmp_path / "in.csv", tmp_path / "out.csv"
    file.write_text("item,word\n1,The\n1,cat \n2, A\n2,dog\n2,barks\n")
    command = ("words", "minhub/shakespeare-gpt2", file, "--by", "item", "--out", out)
    done(*command)  # the spaces are at the end and the beginning of a text
    file.write_text("item,word\n1,The \n1,cat\n")
    assert f"{file}, row 2: 'The ' ends with white space" in fail(*command, "--overwrite")
    done(*command, "--overwrite", "--sep", "")


def test_vector_width_is_known_if_the_first_chunk_has_no_vectors(tmp_path: Path, model: str) -> None:
    file, out = write_csv(tmp_path / "in.csv", [""] * TASKS["embed"].chunk + ["ab"]), tmp_path / "out.csv"
    done("embed", model, file, "--out", out)
    rows = read_csv(out)
    assert list(rows[0])[-1] == "embedding_16"
    assert rows[0]["embedding_1"] == ""
    assert rows[-1]["embedding_16"]


def test_embeddings_in_each_format_match_embed(tmp_path: Path, model: str) -> None:
    texts = ["ab cd", "", "b" * 40, "a"]
    file = write_csv(tmp_path / "in.csv", texts)
    for kind in ("csv", "parquet", "jsonl"):
        done("embed", model, file, "--out", tmp_path / f"out.{kind}", "--layer", 1, "--pool", "last")
    vectors = embed(from_pretrained(model), tokenizer_from_pretrained(model), texts[::2], layer=1, pool="last")
    rows = pq.read_table(tmp_path / "out.parquet").column("embedding").to_pylist()
    assert rows[1] is None
    assert torch.allclose(torch.tensor(rows[::2]), vectors, atol=1e-6)
    cells = [[row[f"embedding_{place}"] for place in range(1, 17)] for row in read_csv(tmp_path / "out.csv")]
    assert cells[1] == [""] * 16
    assert torch.equal(torch.tensor([[float(cell) for cell in row] for row in cells[::2]]), torch.tensor(rows[::2]))
    lines = [json.loads(line)["embedding"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert torch.equal(torch.tensor(lines[::2]), torch.tensor(rows[::2]))
    assert "layer" in fail("embed", model, file, "--out", tmp_path / "other.csv", "--layer", 9)


def test_memory_batches_limit_the_number_of_tokens() -> None:
    texts = [Text(row, "", [0] * length) for row, length in enumerate([10, 20_000, 4000, 4000, 4000, 4000, 1])]
    batches = list(memory_batches(texts, 90))
    assert [text for batch in batches for text in batch] == texts
    assert list(map(len, batches)) == [1, 1, 4, 1]


ROWS: list[dict[str, Any]] = [
    {"text": "abc", "n": 1, "x": 0.1, "flag": True, "more": "é,\"q\"\n"},
    {"text": None, "n": None, "x": 1e300, "flag": False, "more": None},
    {"text": "bad\\\tcab", "n": -5, "x": -0.0, "flag": None, "more": "NA"},
]  # fmt: skip


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, Path]:
    """The same rows in each file format."""
    files = {kind: tmp_path / f"in.{kind}" for kind in ("csv", "tsv", "jsonl", "parquet", "txt")}
    files["jsonl"].write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    table = pa.Table.from_pylist(ROWS).append_column("day", pa.array([date(2026, 1, 2)] * 3, pa.date32()))
    table = table.set_column(0, "text", table.column("text").dictionary_encode())  # a factor
    pq.write_table(table.replace_schema_metadata({"from": "R"}), files["parquet"])
    for kind, separator in (("csv", ","), ("tsv", "\t")):
        with files[kind].open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ROWS[0], delimiter=separator)
            writer.writeheader()
            writer.writerows(ROWS)
    files["txt"].write_bytes(b"\xef\xbb\xbfabc\r\n\nbad\\\tcab")
    return files


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet", "txt"])
def test_every_format_converts_to_every_format(tmp_path: Path, model: str, inputs: dict[str, Path], kind: str) -> None:
    outs = {to: tmp_path / f"{kind}.{to}" for to in inputs}
    for out in outs.values():
        done("score", model, inputs[kind], "--out", out)
    rows = [json.loads(line) for line in outs["jsonl"].read_text().splitlines()]
    columns = ["text"] if kind == "txt" else [*ROWS[0], *(["day"] if kind == "parquet" else [])]
    assert [list(row) for row in rows] == [[*columns, *MEASURES]] * 3
    assert [row["tokens"] for row in rows] == [2, None, 7]
    assert [row["text"] or None for row in rows] == [row["text"] for row in ROWS]
    if kind in ("jsonl", "parquet"):
        assert [{name: row[name] for name in ROWS[0]} for row in rows] == ROWS
    table = pq.read_table(outs["parquet"])
    assert table.column_names == [*columns, *MEASURES]
    assert [row["nats"] for row in table.to_pylist()] == [row["nats"] for row in rows]
    if kind == "parquet":
        before = pq.read_table(inputs[kind])
        assert table.select(columns).cast(before.schema).equals(before)
        assert table.schema.field("text").type == before.schema.field("text").type
        assert rows[0]["day"] == "2026-01-02"
    for to, separator in (("csv", ","), ("tsv", "\t")):
        cells = read_csv(outs[to], separator)
        assert [list(row) for row in cells] == [[*columns, *MEASURES]] * 3
        assert [row["nats"] for row in cells] == ["" if row["nats"] is None else repr(row["nats"]) for row in rows]
        if kind in ("csv", "tsv"):
            assert [list(row.values())[:5] for row in cells] == [
                ["" if value is None else str(value) for value in row.values()] for row in ROWS
            ]
    plain = [line.split("\t") for line in outs["txt"].read_text().split("\n")[:-1]]
    assert plain == [[row[name] for name in MEASURES] for row in cells]


def test_txt_output_has_one_escaped_line_per_row(tmp_path: Path, model: str) -> None:
    (tmp_path / "in.txt").write_text("abc\n\nde\n")
    out = tmp_path / "out.txt"
    done("generate", model, tmp_path / "in.txt", "--out", out, "--seed", 3, "-n", 40)
    lines = out.read_text().split("\n")
    alone = json.loads(done("generate", model, "de", "--seed", 5, "--json", "-n", 40))["text"]
    assert len(lines) == 4
    assert "\n" in alone  # otherwise the test is void
    assert lines[1] == ""
    assert lines[2].replace("\\n", "\n").replace("\\t", "\t").replace("\\\\", "\\") == alone


def test_folders_and_patterns(tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data/sub").mkdir(parents=True)
    Path("data/b.jsonl").write_text('{"text": "abc", "b": 1}\n{"b": 2.5}\n')
    Path("data/a.jsonl").write_text('{"text": "cab", "a": [1]}\n')
    Path("data/sub/c.jsonl").write_text('{"text": "bad"}\n')
    Path("data/.hidden.jsonl").write_text("no")
    done("score", model, "data", "--out", "one.csv")
    rows = read_csv(Path("one.csv"))
    assert [row["file"] for row in rows] == ["data/a.jsonl", "data/b.jsonl", "data/b.jsonl"]
    assert [(row["a"], row["b"]) for row in rows] == [("[1]", ""), ("", "1"), ("", "2.5")]
    done("score", model, "data/**/*.jsonl", "--out", "one.parquet")
    assert pq.read_table("one.parquet").column("b").to_pylist() == [None, 1.0, 2.5, None]
    done("score", model, "data/**/*.jsonl", "--out", "results")
    assert sorted(path.name for path in Path("results").iterdir()) == ["a.jsonl", "b.jsonl", "c.jsonl"]
    assert json.loads(Path("results/c.jsonl").read_text())["tokens"] == 2
    assert "results/a.jsonl already exists" in fail("score", model, "data", "--out", "results", status=2)
    assert "contains .jsonl and .txt files" in (Path("data/n.txt").write_text("x"), fail(
        "score", model, "data", "--out", "two.csv"))[1]  # fmt: skip


def test_columns_without_a_common_type_become_strings(tmp_path: Path, model: str, inputs: dict[str, Path]) -> None:
    out = tmp_path / "out.parquet"
    done("score", model, *inputs.values(), "--out", out)
    rows = pq.read_table(out).to_pylist()
    assert [row["n"] for row in rows[::3]] == ["1", "1", "1", "1", None]
    assert [row["text"] or None for row in rows] == [row["text"] for row in ROWS] * 5
    assert [Path(row["file"]).suffix for row in rows[::3]] == [path.suffix for path in inputs.values()]


def test_prefix_adds_the_results_of_a_second_model(tmp_path: Path, model: str) -> None:
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    done("score", model, write_csv(tmp_path / "in.csv", ["abc"]), "--out", one)
    assert "already has a column tokens" in fail("score", model, one, "--out", two)
    done("score", model, one, "--out", two, "--prefix", "b_")
    [row] = read_csv(two)
    assert row["nats"] == row["b_nats"] != ""


# Errors


CORRUPT_FILES: dict[str, tuple[bytes, str]] = {
    "latin1.csv": (b"id,text\n1,abc\n2,caf\xe9\n", "line 3: invalid UTF-8 text"),
    "ragged.csv": (b"id,text\n1,abc\n2,ab,c\n", "line 3: 3 values, but the header has 2 columns"),
    "open.csv": (b'id,text\n1,"abc\n', "check the double quotes"),
    "twice.csv": (b"text,text\na,b\n", "2 columns named 'text'"),
    "empty.csv": (b"", "is empty"),
    "other.csv": (b"id;body\n1;abc\n", "no column text: set --column to one of its columns (id;body)"),
    "number.jsonl": (b'{"text": "a"}\n{"text": 5}\n', "line 2: text is 5, not a string"),
    "list.jsonl": (b"[1]\n", "line 1: invalid JSON object (list instead of an object)"),
    "cut.jsonl": (b'{"text": "a"}\n{"text"', "line 2: invalid JSON object"),
    "twice.jsonl": (b'{"text": "a", "text": "b"}\n', "line 1: invalid JSON object (duplicate key 'text')"),
    "half.jsonl": (b'{"text": "\\ud83d"}\n', "line 1: invalid Unicode text"),
    "text.parquet": (b"PAR1 but not really", "is not a valid .parquet file"),
    "a.xlsx": (b"", "must end in .csv"),
}


@pytest.mark.parametrize("name", CORRUPT_FILES)
def test_corrupt_input_is_rejected_before_the_computation(tmp_path: Path, name: str) -> None:
    content, message = CORRUPT_FILES[name]
    (tmp_path / name).write_bytes(content)
    error = fail("score", "no/such-model", tmp_path / name, "--out", tmp_path / "out.csv")
    assert name in error
    assert message in error
    assert [path.name for path in tmp_path.iterdir()] == [name]


def invalid_utf8() -> pa.Array:
    """A column of two texts; the first is not UTF-8."""
    offsets, content = pa.py_buffer(b"\0\0\0\0\6\0\0\0\x09\0\0\0"), pa.py_buffer(b"abc\xffde fa")
    return pa.Array.from_buffers(pa.string(), 2, [None, offsets, content])


@pytest.mark.parametrize("column", ["text", "note", "item"])
def test_invalid_utf8_in_parquet_is_rejected(tmp_path: Path, column: str) -> None:
    """Before the computation, also in a column that is only copied."""
    file = tmp_path / "in.parquet"
    columns = {name: pa.array(["abc", "de"]) for name in ("text", "note", "item")}
    pq.write_table(pa.table({**columns, column: invalid_utf8()}), file)
    for arguments in (["score"], ["words", "--by", "item", "--column", "text"]):
        for out in ("out.csv", "out.parquet"):
            message = fail(*arguments, "no/such-model", file, "--out", tmp_path / out)
            assert f"in.parquet: column {column} is corrupt (Invalid UTF8 sequence at string index 0)" in message
    assert [path.name for path in tmp_path.iterdir()] == ["in.parquet"]


def test_4000_columns_take_linear_time(tmp_path: Path, model: str) -> None:
    names = [f"c{number}" for number in range(4_000)]
    file, out = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pq.write_table(pa.table({"text": ["abc"], **{name: [name] for name in names}}), file)
    done("score", model, file, "--out", out)
    table = pq.read_table(out)
    assert table.column_names == ["text", *names, *MEASURES]
    assert table.column(names[-1]).to_pylist() == names[-1:]


@pytest.mark.parametrize(("module", "extra"), [("pyarrow", "tables"), ("ray", "ray")])
def test_missing_package_is_reported_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, extra: str
) -> None:
    """Before the input is read and the model is opened."""
    monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]
    cut = tmp_path / "cut.csv"
    cut.write_bytes(b"a,b\nc\n")
    (tmp_path / "in.parquet").write_bytes(b"")
    calls: list[list[object]] = [[cut, "--out", tmp_path / "out.csv", "--ray", "auto"]]
    if module == "pyarrow":
        calls = [[cut, "--out", tmp_path / "out.parquet"], [cut, tmp_path / "in.parquet", "--out", tmp_path / "o.csv"]]
    for arguments in calls:
        assert f"pip install 'minhub_py[{extra}]'" in fail("score", "no/such-model", *arguments)


def test_usage_errors(tmp_path: Path, model: str) -> None:
    file, out = write_csv(tmp_path / "in.csv", ["abc"]), tmp_path / "out.csv"
    out.write_text("mine")
    assert "out.csv already exists" in fail("score", model, file, "--out", out, status=2)
    assert "is one of the input files" in fail("score", model, file, "--out", file, "--overwrite", status=2)
    assert "unsupported file type" in fail("score", model, file, "--out", tmp_path / "out.xlsx", status=2)
    assert "create the folder" in fail("score", model, file, "--out", tmp_path / "no" / "out.csv")
    assert "no file matches" in fail("score", model, tmp_path / "*.tsv", "--out", tmp_path / "new.csv")
    assert "file not found" in fail("score", model, tmp_path / "gone.csv", "--out", tmp_path / "new.csv")
    assert "--column is for the rows" in fail("score", model, file, "--column", "text", status=2)
    assert "--workers is for the rows" in fail("generate", model, "abc", "--workers", 2, status=2)
    assert "add --out" in fail("score", model, file, file, status=2)
    assert "add --out" in fail("generate", model, "abc", "abc", status=2)
    assert "nosuch" in fail("score", tmp_path / "nosuch", file, "--out", tmp_path / "new.csv")
    assert out.read_text() == "mine"
    done("score", model, file, "--out", out, "--overwrite")
    assert len(read_csv(out)) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "out.csv"]


def test_characters_without_a_token_are_noted(tmp_path: Path, model: str) -> None:
    result = minhub("score", model, write_csv(tmp_path / "in.csv", ["abXc", "Y", "a"]), "--out", tmp_path / "o.csv")
    assert result.stderr.count("not in the tokenizer's vocabulary") == 2  # a note for each character
    assert [row["tokens"] for row in read_csv(tmp_path / "o.csv")] == ["2", "", "0"]


# Interrupted jobs


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """An input of six chunks."""
    return write_csv(tmp_path / "large.csv", random_texts(1500))


def interrupt(model: str, file: Path, out: Path, by: int, *options: object, parts: int = 1) -> str:
    """Interrupt a job by a signal after some parts, and return its messages."""
    errors = out.with_name("errors")
    process = start("score", model, file, "--out", out, *options, errors=errors, most=parts + 1)
    wait_for(process, lambda: count_parts(out) >= parts)
    os.kill(process.pid, by)
    process.join()
    assert process.exitcode != 0
    assert count_parts(out) >= parts  # otherwise the job was not interrupted
    assert not out.exists()
    return " ".join(errors.read_text().split())


def test_killed_job_resumes_with_identical_output(tmp_path: Path, model: str, large: Path) -> None:
    complete, out = tmp_path / "complete.parquet", tmp_path / "out.parquet"
    done("score", model, large, "--out", complete)
    for parts in (1, 3):
        interrupt(model, large, out, signal.SIGKILL, parts=parts)
    parts_before = {path.name: path.stat().st_mtime_ns for path in Parts(out).folder.glob("part-*")}
    interrupt(model, large, out, signal.SIGKILL, parts=len(parts_before) + 1)
    assert parts_before.items() <= {p.name: p.stat().st_mtime_ns for p in Parts(out).folder.glob("part-*")}.items()
    done("score", model, large, "--out", out)
    assert out.read_bytes() == complete.read_bytes()
    assert not Parts(out).folder.exists()


def test_ctrl_c_prints_how_to_resume(tmp_path: Path, model: str, large: Path) -> None:
    complete, out = tmp_path / "complete.csv", tmp_path / "out.csv"
    message = interrupt(model, large, out, signal.SIGINT)
    assert "of 1,500 rows are complete" in message
    assert f"in {out}.parts. To continue, run the same command again." in message
    assert "Traceback" not in message
    done("score", model, large, "--out", out)
    done("score", model, large, "--out", complete)
    assert out.read_bytes() == complete.read_bytes()


def test_unfinished_job_rejects_other_settings(tmp_path: Path, model: str, large: Path) -> None:
    out = tmp_path / "out.csv"
    interrupt(model, large, out, signal.SIGKILL)
    parts = count_parts(out)
    command = ["score", model, large, "--out", out]
    assert "the model's settings changed" in fail(*command, "--quantize", "int8")
    assert "--prefix changed" in fail(*command, "--prefix", "x")
    assert "the command changed" in fail("generate", *command[1:])
    content = large.read_bytes()
    large.write_bytes(content + b"9999,abc,x\n")
    assert "the input files changed" in fail(*command)
    large.write_bytes(content)
    weights = Path(model) / "model.safetensors"
    before = weights.read_bytes()
    try:
        for place in (len(before) // 2, -1):
            changed = bytearray(before)
            changed[place] ^= 1
            weights.write_bytes(changed)
            assert "the model's files changed" in fail(*command)
    finally:
        weights.write_bytes(before)
    assert count_parts(out) == parts
    with Parts(out).lock():
        assert "another process is writing" in fail(*command)
    done(*command, "--overwrite", "--prefix", "x")
    assert "xnats" in read_csv(out)[0]


def test_resumed_job_keeps_the_drawn_seed(tmp_path: Path, model: str) -> None:
    file, out = write_csv(tmp_path / "in.csv", [text or "a" for text in random_texts(300)]), tmp_path / "out.csv"
    process = start("generate", model, file, "--out", out, "-n", 8, most=1)
    wait_for(process, lambda: count_parts(out) >= 1)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    seed = json.loads((Parts(out).folder / "job.json").read_text())["settings"]["seed"]
    done("generate", model, file, "--out", out, "-n", 8)
    done("generate", model, file, "--out", tmp_path / "again.csv", "-n", 8, "--seed", seed)
    assert out.read_bytes() == (tmp_path / "again.csv").read_bytes()


@pytest.mark.parametrize("out", ["out.csv", "folder"])
def test_kill_before_the_final_rename_is_recovered(
    tmp_path: Path, model: str, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command moves the complete output to its final name; another one does not change it."""
    file = write_csv(tmp_path / "in.csv", ["abc"])
    command = ["score", model, file, "--out", tmp_path / out]
    with monkeypatch.context() as patch:
        patch.setattr(Parts, "recover", lambda _: None)
        done(*command)
    target = tmp_path / out / "in.csv" if out == "folder" else tmp_path / out
    assert not target.exists()
    assert "were complete" in minhub(*command).stderr
    assert len(read_csv(target)) == 1
    assert not Parts(tmp_path / out).folder.exists()
    assert "already exists" in fail(*command, status=2)


def test_full_disk_keeps_completed_parts(tmp_path: Path, model: str, large: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", disk]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small file system")
    try:
        message = fail("score", model, large, "--out", disk / "out.csv")
        assert "out.csv.parts cannot be written (No space left on device): free disk space" in message
        assert "rows are complete" in message
        assert count_parts(disk / "out.csv") >= 1
        subprocess.run(["mount", "-o", "remount,size=10m", disk], check=True)
        done("score", model, large, "--out", disk / "out.csv")
        done("score", model, large, "--out", tmp_path / "complete.csv")
        assert (disk / "out.csv").read_bytes() == (tmp_path / "complete.csv").read_bytes()
    finally:
        subprocess.run(["umount", disk], check=True)


# Processes


def test_workers_match_one_process_and_end_with_their_parent(tmp_path: Path, model: str, large: Path) -> None:
    complete, out, killed = tmp_path / "complete.csv", tmp_path / "out.csv", tmp_path / "killed.csv"
    done("score", model, large, "--out", complete)
    command = ["score", model, large, "--out", out, "--workers", "2"]
    process = start(*command, errors=tmp_path / "errors", most=2)
    wait_for(process, lambda: count_parts(out) >= 1)
    parent = psutil.Process(process.pid)
    workers = [each for each in parent.children() if "spawn_main" in " ".join(each.cmdline())]
    assert len(workers) == 2
    workers[0].kill()
    (tmp_path / "go on").touch()
    process.join()
    (tmp_path / "go on").unlink()
    message = " ".join((tmp_path / "errors").read_text().split())
    assert "a worker process was killed (exit code -9)" in message
    assert "run the same command again" in message
    done(*command[:-2])
    assert out.read_bytes() == complete.read_bytes()

    process = start("score", model, large, "--out", killed, "--workers", "2", errors=tmp_path / "errors", most=2)
    wait_for(process, lambda: count_parts(killed) >= 1)
    workers = psutil.Process(process.pid).children()
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert alive == []
    done("score", model, large, "--out", killed)
    assert killed.read_bytes() == complete.read_bytes()


# Soak tests


def texts_of_shakespeare(count: int) -> Iterator[str]:
    draw = random.Random(2)
    words = "the king of England shall speak and love my lord, thou art a fool; to be or not ROMEO: JULIET:".split()
    for _ in range(count):
        yield " ".join(draw.choices(words, k=draw.randrange(1, 6)))


def measured(arguments: list[object], pipe: Any) -> None:
    main(list(map(str, arguments)), standalone_mode=False)
    status = dict(line.split(":\t") for line in Path("/proc/self/status").read_text().splitlines())
    pipe.send(int(status["VmHWM"].split()[0]) * 1024)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_memory_is_constant_for_100000_rows(tmp_path: Path, model: str, kind: str) -> None:
    peaks = {}
    for count in (1_000, 100_000):
        file = write_csv(tmp_path / f"{count}.csv", random_texts(count, 16))
        if kind == "parquet":
            done("generate", model, file, "--out", tmp_path / f"{count}.parquet", "-n", 0)
            file = tmp_path / f"{count}.parquet"
        ours, theirs = SERVER.Pipe()
        process = SERVER.Process(
            target=measured, args=(["score", model, file, "--out", tmp_path / f"{count}-out.{kind}"], theirs)
        )
        process.start()
        peaks[count] = ours.recv()
        process.join()
    print({count: f"{peak / 1e6:.0f} MB" for count, peak in peaks.items()})
    assert peaks[100_000] - peaks[1_000] < 200e6


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("workers", [1, 2])
def test_20_kills_at_random_times(tmp_path: Path, model: str, workers: int) -> None:
    """Includes kills before the first row and at the end."""
    file = write_csv(tmp_path / "in.csv", random_texts(100_000, 16))
    complete, out = tmp_path / "complete.csv", tmp_path / "out.csv"
    done("score", model, file, "--out", complete)
    draw, rows = random.Random(3), []
    command = [sys.executable, "-m", "minhub_py", "score", model, file, "--out", out, "--workers", workers]
    for kill in range(20):
        process = subprocess.Popen(list(map(str, command)), stderr=subprocess.DEVNULL)
        there = count_parts(out) + draw.randrange(1, 16)
        while process.poll() is None and count_parts(out) < there:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.002)
        try:
            process.wait(draw.random() / 5)
        except subprocess.TimeoutExpired:
            process.kill()
        process.wait()
        rows.append(count_parts(out))
        assert not out.exists(), f"kill {kill} came too late: {rows}"
    done("score", model, file, "--out", out, "--workers", workers)
    print("parts after each kill:", rows)
    assert out.read_bytes() == complete.read_bytes()


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("default")
def test_ray_job_completes_after_a_node_failure(tmp_path: Path, model: str) -> None:
    """One of two nodes is killed during the job. The output matches a single process."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    file = write_csv(tmp_path / "in.csv", random_texts(20_000, 16))
    complete, out = tmp_path / "complete.csv", tmp_path / "out.csv"
    done("score", model, file, "--out", complete)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    try:
        lost = cluster.add_node(num_cpus=2)
        process = start("score", model, file, "--out", out, "--ray", cluster.address, errors=tmp_path / "errors")
        wait_for(process, lambda: count_parts(out) >= 5)
        assert process.exitcode is None
        before = count_parts(out)
        cluster.remove_node(lost, allow_graceful=False)
        process.join()
        assert process.exitcode == 0, (tmp_path / "errors").read_text()
        print(f"{before} of {-(-20_000 // 256)} parts were there when the node was lost")
        assert out.read_bytes() == complete.read_bytes()
    finally:
        cluster.shutdown()


@pytest.mark.soak
def test_no_ray_cluster(tmp_path: Path, model: str) -> None:
    pytest.importorskip("ray")
    file, out = write_csv(tmp_path / "in.csv", ["abc"]), tmp_path / "out.csv"
    assert "no Ray cluster at" in fail("score", model, file, "--out", out, "--ray", "auto")
    assert not Parts(out).folder.exists()
