"""Formats and files of jobs, corrupt input, and usage errors."""

import csv
import json
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import done, minhub
from job_runs import MEASURES, fail, read_csv, write_csv

from minhub_py.jobs.sources import chunk_sizes, scan

# Formats


def test_chunks_contain_complete_texts(tmp_path: Path) -> None:
    """A row without a key does not end a text."""
    file = tmp_path / "in.jsonl"
    items = [1, None, 1, 2, 2, 2, None, 3]
    file.write_text("".join(json.dumps({"item": item, "word": "a"}) + "\n" for item in items))
    source = scan(file, [("column", "word"), ("by", "item")])
    assert chunk_sizes([source], ["item"], 2) == [3, 4, 1]
    assert chunk_sizes([source, source], ["item"], 100) == [8, 8]
    assert chunk_sizes([source, source], [], 5) == [5, 5, 5, 1]


ROWS: list[dict[str, Any]] = [
    {"text": "abc", "n": 1, "x": 0.1, "flag": True, "more": 'é,"q"\n'},
    {"text": None, "n": None, "x": 1e300, "flag": False, "more": None},
    {"text": "bad\\\tcab", "n": -5, "x": -0.0, "flag": None, "more": "NA"},
]


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, Path]:
    """The same rows in each file format."""
    files = {kind: tmp_path / f"in.{kind}" for kind in ("csv", "tsv", "jsonl", "parquet", "txt")}
    files["jsonl"].write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    table = pa.Table.from_pylist(ROWS).append_column(
        "day", pa.array([date(2026, 1, 2)] * 3, pa.date32())
    )
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
def test_every_format_converts_to_every_format(
    tmp_path: Path, model: str, inputs: dict[str, Path], kind: str
) -> None:
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
        assert [row["nats"] for row in cells] == [
            "" if row["nats"] is None else repr(row["nats"]) for row in rows
        ]
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
    assert "\n" in alone  # otherwise nothing is tested
    assert lines[1] == ""
    assert lines[2].replace("\\n", "\n").replace("\\t", "\t").replace("\\\\", "\\") == alone


def test_folders_and_patterns_select_visible_files(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert sorted(path.name for path in Path("results").iterdir()) == [
        "a.jsonl",
        "b.jsonl",
        "c.jsonl",
    ]
    assert json.loads(Path("results/c.jsonl").read_text())["tokens"] == 2
    assert "results/a.jsonl already exists" in fail(
        "score", model, "data", "--out", "results", status=2
    )
    assert (
        "contains .jsonl and .txt files"
        in (Path("data/n.txt").write_text("x"), fail("score", model, "data", "--out", "two.csv"))[1]
    )


def test_columns_without_a_common_type_become_strings(
    tmp_path: Path, model: str, inputs: dict[str, Path]
) -> None:
    out = tmp_path / "out.parquet"
    done("score", model, *inputs.values(), "--out", out)
    rows = pq.read_table(out).to_pylist()
    assert [row["n"] for row in rows[::3]] == ["1", "1", "1", "1", None]
    assert [row["text"] or None for row in rows] == [row["text"] for row in ROWS] * 5
    assert [Path(row["file"]).suffix for row in rows[::3]] == [
        path.suffix for path in inputs.values()
    ]


# Errors

CORRUPT_FILES: dict[str, tuple[bytes, str]] = {
    "latin1.csv": (b"id,text\n1,abc\n2,caf\xe9\n", "line 3: invalid UTF-8 text"),
    "ragged.csv": (b"id,text\n1,abc\n2,ab,c\n", "line 3: 3 values, but the header has 2 columns"),
    "open.csv": (b'id,text\n1,"abc\n', "check the double quotes"),
    "twice.csv": (b"text,text\na,b\n", "2 columns named 'text'"),
    "empty.csv": (b"", "is empty"),
    "other.csv": (
        b"id,body\n1,abc\n",
        "no column text: set --column to one of its columns (id, body)",
    ),
    "semicolons.csv": (
        b"id;text\n1;abc\n",
        "semicolons instead of commas separate its columns ('id;text'): write it",
    ),
    "quoted.csv": (b'"id";"text"\n1;"a"\n', "semicolons instead of commas separate its columns"),
    "tabs.csv": (
        b"id\ttext\n1\tabc\n",
        "tabs instead of commas separate its columns ('id\\ttext'): rename it to .tsv",
    ),
    "commas.tsv": (
        b"id,text\n1,abc\n",
        "commas instead of tabs separate its columns ('id,text'): rename it to .csv",
    ),
    "returns.csv": (b"id,text\r1,abc\r2,abc\r", "line 1: a carriage return without a line feed"),
    "return.csv": (b"id,text\n1,a\rb\n2,abc\n", "line 2: a carriage return without a line feed"),
    "returns.jsonl": (
        b'{"text": "a"}\r{"text": "b"}\r',
        "line 1: a carriage return without a line feed",
    ),
    "number.jsonl": (b'{"text": "a"}\n{"text": 5}\n', "line 2: text is 5, not a string"),
    "list.jsonl": (b"[1]\n", "line 1: invalid JSON object (list instead of an object)"),
    "cut.jsonl": (b'{"text": "a"}\n{"text"', "line 2: invalid JSON object"),
    "twice.jsonl": (
        b'{"text": "a", "text": "b"}\n',
        "line 1: invalid JSON object (duplicate key 'text')",
    ),
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
            assert (
                f"in.parquet: column {column} is corrupt (Invalid UTF8 sequence at string index 0)"
                in message
            )
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
        calls = [
            [cut, "--out", tmp_path / "out.parquet"],
            [cut, tmp_path / "in.parquet", "--out", tmp_path / "o.csv"],
        ]
    for arguments in calls:
        assert f"pip install 'minhub_py[{extra}]'" in fail("score", "no/such-model", *arguments)


def test_usage_errors_name_the_option(tmp_path: Path, model: str) -> None:
    file, out = write_csv(tmp_path / "in.csv", ["abc"]), tmp_path / "out.csv"
    out.write_text("mine")
    assert "out.csv already exists" in fail("score", model, file, "--out", out, status=2)
    assert "is one of the input files" in fail(
        "score", model, file, "--out", file, "--overwrite", status=2
    )
    for command, end in (("score", ".txt."), ("embed", ".txt, .npy.")):
        message = fail(command, model, file, "--out", tmp_path / "out.xlsx", status=2)
        assert "unsupported file type" in message
        assert message.rstrip().endswith(end)
    assert "create the folder" in fail("score", model, file, "--out", tmp_path / "no" / "out.csv")
    assert "no file matches" in fail(
        "score", model, tmp_path / "*.tsv", "--out", tmp_path / "new.csv"
    )
    assert "file not found" in fail(
        "score", model, tmp_path / "gone.csv", "--out", tmp_path / "new.csv"
    )
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
    result = minhub(
        "score",
        model,
        write_csv(tmp_path / "in.csv", ["abXc", "Y", "a"]),
        "--out",
        tmp_path / "o.csv",
    )
    # a note for each character
    assert result.stderr.count("not in the tokenizer's vocabulary") == 2
    assert [row["tokens"] for row in read_csv(tmp_path / "o.csv")] == ["2", "", "0"]
