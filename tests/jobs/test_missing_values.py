"""Missing values of .csv files in jobs."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import done

LETTERS = ["ab", "NA", "cd"]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def words_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    import torch

    from minhub_py import gpt2, save_pretrained
    from minhub_py.checkpoints.tokenizers.tokenizer import characters

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model")
    network = gpt2(vocab_size=8, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    save_pretrained(network, folder, characters("abcdNA ."))
    return str(folder)


def test_a_quoted_word_NA_belongs_to_its_sentence(tmp_path: Path, words_model: str) -> None:
    """Its row and the rows after it have the results of another file format; an unquoted NA is left
    out.
    """
    table, reference = tmp_path / "in.csv", tmp_path / "in.jsonl"
    table.write_text("text,word\n" + "".join(f'1,"{word}"\n' for word in LETTERS), encoding="utf-8")
    reference.write_text(
        "".join(json.dumps({"text": "1", "word": word}) + "\n" for word in LETTERS)
    )
    out, expected = tmp_path / "out.jsonl", tmp_path / "expected.jsonl"
    for source, target in ((table, out), (reference, expected)):
        done("words", words_model, source, "--column", "word", "--by", "text", "--out", target)
    assert lines(out) == lines(expected)
    table.write_text("text,word\n" + "".join(f"1,{word}\n" for word in LETTERS), encoding="utf-8")
    reference.write_text(
        "".join(json.dumps({"text": "1", "word": word}) + "\n" for word in ("ab", None, "cd"))
    )
    for source, target in ((table, out), (reference, expected)):
        done(
            "words",
            words_model,
            source,
            "--column",
            "word",
            "--by",
            "text",
            "--out",
            target,
            "--overwrite",
        )
    assert lines(out) == lines(expected)
    assert lines(out)[1]["surprisal"] is None


def test_values_are_copied_with_their_meaning(tmp_path: Path, words_model: str) -> None:
    """A text NA is written in quotes, also if another format contained it; a missing value is null
    in .jsonl files.
    """
    table, out = tmp_path / "in.csv", tmp_path / "out.csv"
    table.write_text('text,note\n"ab","NA"\nNA,NA\n"c",\n"d",""\n', encoding="utf-8")
    done("score", words_model, table, "--out", out)
    copied = [line.split(",")[:2] for line in out.read_text(encoding="utf-8").splitlines()]
    assert copied == [["text", "note"], ["ab", '"NA"'], ["NA", "NA"], ["c", ""], ["d", '""']]
    rows = tmp_path / "rows.jsonl"
    done("score", words_model, table, "--out", rows)
    assert [(row["text"], row["note"]) for row in lines(rows)] == [
        ("ab", "NA"),
        (None, None),
        ("c", None),
        ("d", ""),
    ]
    again = tmp_path / "again.csv"
    done("score", words_model, rows, "--prefix", "second_", "--out", again)
    copied = [line.split(",")[:2] for line in again.read_text(encoding="utf-8").splitlines()]
    assert copied == [["text", "note"], ["ab", '"NA"'], ["", ""], ["c", ""], ["d", '""']]


def test_the_option_na_replaces_the_missing_values(tmp_path: Path, words_model: str) -> None:
    """Also in a job's record, and in its replay."""
    table, out, manifest = tmp_path / "in.csv", tmp_path / "out.jsonl", tmp_path / "job.json"
    table.write_text("text\nNA\n.\nab\n", encoding="utf-8")
    done("score", words_model, table, "--na", ".", "--out", out, "--manifest", manifest)
    assert [(row["text"], row["perplexity"] is None) for row in lines(out)] == [
        ("NA", False),
        (None, True),
        ("ab", False),
    ]
    statement = json.loads(manifest.read_text(encoding="utf-8"))
    assert statement["predicate"]["buildDefinition"]["externalParameters"]["na"] == ["."]
    assert "0 rows differ" in done("replay", manifest)
    printed = json.loads(done("words", words_model, table, "--na", ".", "--json"))
    assert [row["word"] for row in printed] == ["NA", "ab"]
