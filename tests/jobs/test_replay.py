"""Manifests of jobs, and their replay."""

import csv
import itertools
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import done, minhub
from guarantees import EXACT, ROUNDING
from job_runs import LETTERS, fail, random_texts, write_csv
from needs import needs
from paths import TEXT

from minhub_py import from_config, gpt2, gptneo, llama, lstm, replay, save_pretrained
from minhub_py.checkpoints.tokenizers.tokenizer import characters, train_byte_level_bpe

TASKS = {
    "score": [],
    "words": ["--lags", "1"],
    "annotate": ["--labels", "ab,cd", "--instruction", "abc"],
    "embed": [],
    "generate": ["--max-new-tokens", "4", "--seed", "1", "--logit-bias", "5=-3"],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A character-level GPT-2 whose context has room for prompts."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model")
    network = gpt2(
        vocab_size=len(LETTERS),
        n_positions=96,
        n_embd=16,
        n_layer=2,
        n_head=2,
        initializer_range=0.4,
    )
    save_pretrained(network, folder, characters(LETTERS))
    return str(folder)


@pytest.fixture
def job(tmp_path: Path, model: str) -> Path:
    """The manifest of a `score` job whose model is in the same folder."""
    shutil.copytree(model, tmp_path / "model")
    file = write_csv(tmp_path / "in.csv", random_texts(30))
    done(
        "score",
        tmp_path / "model",
        file,
        "--out",
        tmp_path / "out.csv",
        "--manifest",
        tmp_path / "job.json",
    )
    return tmp_path / "job.json"


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_replayed_jobs_have_the_guaranteed_results(
    tmp_path: Path, model: str, task: str, kind: str
) -> None:
    manifest, out = tmp_path / "job.json", tmp_path / f"out.{kind}"
    file = write_csv(tmp_path / "in.csv", random_texts(20))
    options = ["--out", out, "--manifest", manifest, "--prefix", "x_"]
    done(task, model, file, *TASKS[task], *options)
    result = replay(manifest)
    assert [(run.chunk, run.threads) for run in result.runs][1:] == [(1, 1), (7, 2)]
    assert result.same_class
    assert not result.changes
    exact = EXACT and task != "embed"
    assert result.guarantee == ("bitwise" if exact else "close")
    assert {run.rows for run in result.runs} == {20 if task != "words" else result.runs[0].rows}
    assert result.runs[0].differing == 0
    if exact:
        assert result.identical
        assert "0 rows differ, results are bitwise identical" in str(result)
    else:
        assert max(run.largest for run in result.runs) < (
            1e-5 if task == "embed" else ROUNDING["float32"]
        )
    assert json.loads(json.dumps(result.to_dict()))["identical"] == result.identical


def test_rows_that_are_words_and_targets_and_matrices_are_replayed(
    tmp_path: Path, model: str
) -> None:
    """Also several inputs in a folder, and a number of rows within a text."""
    manifest = tmp_path / "job.json"
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a.csv", "b.csv"):
        write_csv(folder / name, ["ab", "cd", "bad", "cab", "ace", "bed"])
    (folder / "a.csv").write_text(
        (folder / "a.csv").read_text().replace(",1", ",0").replace(",2", ",0")
    )
    rows = "id,word,text\nab,ab,x\ncd,cd,x\nba,ba,x\nab,ab,y\n"
    words = tmp_path / "words.csv"
    words.write_text(rows)
    (tmp_path / "out").mkdir()
    cases = [
        (["words", model, words, "--by", "text", "--out", tmp_path / "words-out.csv"], 2, 3),
        (["score", model, words, "--column", "word", "--target", "id", "--out", tmp_path / "t.tsv"], 3, 3),
        (["score", model, folder, "--out", tmp_path / "out"], 8, 8),
        (["score", model, folder, "--out", tmp_path / "merged.jsonl"], None, 12),
        (["embed", model, folder, "--out", tmp_path / "vectors.npy"], None, 12),
    ]  # fmt: skip
    for arguments, limit, rows_compared in cases:
        done(*arguments, "--manifest", manifest)
        result = replay(manifest, limit)
        assert result.runs[0].rows == rows_compared, arguments
        assert result.runs[0].differing == 0, arguments


def test_a_manifest_is_an_in_toto_statement_that_lists_everything(job: Path, model: str) -> None:
    statement = json.loads(job.read_text())
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert [entry["name"] for entry in statement["subject"]] == ["out.csv"]
    definition, details = (
        statement["predicate"]["buildDefinition"],
        statement["predicate"]["runDetails"],
    )
    parameters = definition["externalParameters"]
    assert (parameters["task"], parameters["model"], parameters["files"], parameters["column"]) == (
        "score",
        "./model",
        ["in.csv"],
        "text",
    )
    assert parameters["loading"] == {
        "revision": "main",
        "device": "auto",
        "dtype": "auto",
        "quantize": None,
    }
    [computed] = definition["internalParameters"]["computed"]
    assert computed["runner"] == ("decoder in C" if EXACT else "PyTorch")
    assert computed["dtype"] == "float32"
    network, text = definition["resolvedDependencies"]
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(
        network["annotations"]["files"]
    )
    assert text["annotations"] == {"rows": 30}
    digests = [entry["digest"]["sha256"] for entry in (network, text, *statement["subject"])]
    assert all(len(digest) == 64 for digest in digests)
    assert details["builder"]["version"]["torch"] == torch.__version__
    environment = details["byproducts"][0]["annotations"]
    assert set(environment["class"]) == {"machine", "kernels", "torch", "libc"}
    assert details["metadata"]["startedOn"] <= details["metadata"]["finishedOn"]


def test_the_folder_of_a_manifest_can_be_moved(job: Path, tmp_path: Path) -> None:
    moved = tmp_path.with_name(f"{tmp_path.name} moved")
    tmp_path.rename(moved)
    assert replay(moved / "job.json").runs[0].differing == 0
    moved.rename(tmp_path)


@needs("decoder")
def test_a_changed_output_is_reported_with_the_first_row(job: Path) -> None:
    out = job.parent / "out.csv"
    with out.open(newline="") as file:
        rows = list(csv.reader(file))
    number = next(number for number, row in enumerate(rows) if number and row[-1])
    rows[number][-1] = repr(float(rows[number][-1]) + 0.25)
    with out.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    result = minhub("replay", job)
    assert result.exit_code == 1
    assert "1 row differs, by at most 0.25" in result.output
    assert f"out.csv, row {number}, bits_per_character" in " ".join(result.output.split())
    assert f"Changed: the output file {out}" in result.output
    report = json.loads(minhub("replay", job, "--json").stdout)
    assert report["broken"] is True
    assert {run["differing"] for run in report["runs"]} == {1}
    assert report["runs"][0]["first"]["column"] == "bits_per_character"


def test_another_processor_class_has_no_guarantee(job: Path) -> None:
    """The difference is reported, and the exit status is 0."""
    statement = json.loads(job.read_text())
    environment = statement["predicate"]["runDetails"]["byproducts"][0]["annotations"]
    environment["class"]["kernels"] = "neon"
    job.write_text(json.dumps(statement))
    shown = done("replay", job, "--rows", "10")
    assert not EXACT or "0 rows differ" in shown
    assert "Changed: kernels: neon in the manifest" in shown
    assert "\nGuarantee: Between processor classes or versions, no equality is guaranteed" in shown


def test_changed_inputs_models_and_manifests_are_refused(job: Path) -> None:
    folder = job.parent
    content = (folder / "in.csv").read_bytes()
    (folder / "in.csv").write_bytes(content + b"x,y,z\n")
    assert "in.csv has changed since the job: restore the file" in fail("replay", job)
    (folder / "in.csv").write_bytes(content)
    config = (folder / "model" / "config.json").read_text()
    (folder / "model" / "config.json").write_text(config + " ")
    assert "have changed since the job: use the files that the manifest lists" in fail(
        "replay", job
    )
    (folder / "model" / "config.json").write_text(config)
    (folder / "other.json").write_text('{"_type": "x"}')
    assert "other.json is not the manifest of a job" in fail("replay", folder / "other.json")
    out = folder / "new.csv"
    arguments = ("score", folder / "model", folder / "in.csv", "--out", out, "--manifest")
    assert "must end in .json" in fail(*arguments, folder / "job.txt", status=2)
    assert "--manifest is for the rows of files: add --out" in fail(
        "score", folder / "model", folder / "in.csv", "--manifest", job, status=2
    )


ARCHITECTURES: dict[str, Callable[..., Any]] = {
    "gpt2": lambda **sizes: gpt2(n_positions=128, n_embd=64, n_layer=3, n_head=4, **sizes),
    "gptneo": lambda **sizes: gptneo(
        max_position_embeddings=128,
        hidden_size=64,
        num_layers=4,
        num_heads=4,
        window_size=9,
        **sizes,
    ),
    "lstm": lambda **sizes: lstm(embedding_size=48, hidden_size=64, num_layers=2, **sizes),
    "llama": lambda **sizes: llama(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        **sizes,
    ),
    "qwen35": lambda **sizes: from_config(
        "qwen3_5_text",
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        intermediate_size=96,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        max_position_embeddings=128,
        **sizes,
    ),
}


PRECISIONS = {
    **{dtype: ["--dtype", dtype] for dtype in ("float32", "bfloat16", "float16")},
    **{kind: ["--quantize", kind] for kind in ("int8", "nf4")},
}


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_row_differs_for_any_batch_size_and_number_of_threads(
    tmp_path: Path, architecture: str, precision: str
) -> None:
    """300 texts of up to 300 words; each task is repeated with three batch sizes and with 1 and 2
    threads.
    """
    torch.manual_seed(0)
    text = TEXT.read_text(encoding="utf-8")
    tokenizer = train_byte_level_bpe([text], 600)
    network = ARCHITECTURES[architecture](
        vocab_size=tokenizer.get_vocab_size(), bos_token_id=0, eos_token_id=0
    )
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    folder, manifest = tmp_path / "model", tmp_path / "job.json"
    save_pretrained(network, folder, tokenizer)
    draw, words = random.Random(0), text.split()
    lengths = [min(int(draw.expovariate(1 / 30)), 300) for _ in range(300)]
    starts = [draw.randrange(len(words) - length) for length in lengths]
    texts = [
        " ".join(words[start : start + length])
        for start, length in zip(starts, lengths, strict=True)
    ]
    file = write_csv(tmp_path / "in.csv", texts)
    tasks = {
        **TASKS,
        "words": ["--correct", "pimentel", "--lags", "1"],
        "generate": ["--max-new-tokens", "8"],
    }
    del tasks["embed"]
    for task, options in tasks.items():
        out = tmp_path / f"{task}.jsonl"
        done(
            task,
            folder,
            file,
            *options,
            *PRECISIONS[precision],
            "--out",
            out,
            "--manifest",
            manifest,
        )
        result = replay(manifest, variants=list(itertools.product((1, 13, 256), (1, 2))))
        if result.guarantee == "bitwise":
            assert result.identical, str(result)
        else:  # PyTorch's bfloat16 products on processors with AMX
            assert not EXACT or precision == "bfloat16"
            assert max(run.largest for run in result.runs) < 1
