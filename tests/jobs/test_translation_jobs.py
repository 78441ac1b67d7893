"""Translations, summaries and beam searches of the rows of files: notes of rows, kills, and replay."""

import gc
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from commands import done, succeeded
from job_runs import count_parts, fail, read_csv, start, wait_for, write_csv
from translation_models import save_languages, save_t5

from minhub_py import (
    from_pretrained,
    replay,
    summarize,
    tokenizer_from_pretrained,
    translate,
)
from minhub_py.jobs.chunks import Parts

SENTENCE = "the cat sat on the mat ."
LANGUAGES = ["--source", "en", "--target", "German"]


@pytest.fixture(scope="module")
def nllb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nllb")
    save_languages(folder, ["eng_Latn", "deu_Latn"], max_position_embeddings=30)
    return folder


def test_rows_have_the_translations_of_python_or_a_note(tmp_path: Path, nllb: Path) -> None:
    texts = [SENTENCE, "", " ", " ".join([SENTENCE] * 9), "cat " * 40, "a dog"]
    file, out = write_csv(tmp_path / "in.csv", texts), tmp_path / "out.csv"
    result = succeeded("translate", nllb, file, *LANGUAGES, "--out", out)
    model, tokenizer = from_pretrained(nllb), tokenizer_from_pretrained(nllb)
    with pytest.warns(UserWarning, match="exceeded the positions"):
        expected = translate(
            model, tokenizer, [texts[0], *texts[3:4], texts[5]], source="en", target="de"
        )
    found = [row["translation"] for row in read_csv(out)]
    assert found == [expected[0], "", "", expected[1], "", expected[2]]
    notes = " ".join(result.stderr.split())
    assert "row 3 has no result: the text is empty" in notes
    assert "row 4 exceeded the positions of the model: divided at the ends of sentences" in notes
    assert "row 5 has no result: the text has a sentence of 42 tokens" in notes


def test_summaries_of_rows(tmp_path: Path) -> None:
    save_t5(tmp_path / "t5")
    texts = [SENTENCE, "cat " * 600]
    file, out = write_csv(tmp_path / "in.csv", texts), tmp_path / "out.csv"
    options = ["--beams", 2, "-n", 9, "--min-new-tokens", 4]
    result = succeeded("summarize", tmp_path / "t5", file, "--out", out, *options)
    model, tokenizer = (
        load(tmp_path / "t5") for load in (from_pretrained, tokenizer_from_pretrained)
    )
    [expected] = summarize(model, tokenizer, texts[:1], beams=2, max_new_tokens=9, min_new_tokens=4)
    assert [row["summary"] for row in read_csv(out)] == [expected, ""]
    assert "row 2 has no result: the text has 601 tokens" in " ".join(result.stderr.split())


def test_a_language_that_the_model_lacks_is_a_usage_error(tmp_path: Path, nllb: Path) -> None:
    file, out = write_csv(tmp_path / "in.csv", [SENTENCE]), tmp_path / "out.csv"
    command = ("translate", nllb, file, "--out", out, "--source", "en")
    assert "--target: the model has no language 'fr'" in fail(*command, "--target", "fr", status=2)
    assert "the model needs --target" in fail(*command, status=2)
    done(*command, "--target", "de")


def test_killed_jobs_resume_with_identical_output(tmp_path: Path, nllb: Path) -> None:
    texts = [f"{SENTENCE} w{number % 30}" for number in range(400)]
    file, complete = write_csv(tmp_path / "in.csv", texts), tmp_path / "complete.csv"
    command = ["translate", nllb, file, *LANGUAGES, "-n", 6, "--out"]
    done(*command, complete, "--manifest", tmp_path / "job.json")
    out = tmp_path / "out.csv"
    process = start(*command, out, most=3)
    wait_for(process, lambda: count_parts(out) >= 2)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert count_parts(out) >= 2
    done(*command, out, "--workers", 2)
    assert out.read_bytes() == complete.read_bytes()
    assert not replay(tmp_path / "job.json", rows=40).broken


def test_the_memory_of_a_job_does_not_grow(
    tmp_path: Path, nllb: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of live objects after each part; a result is one at least."""
    counts, write = [], Parts.write

    def counted(parts: Parts, *arguments: Any) -> None:
        write(parts, *arguments)
        gc.collect()
        counts.append(len(gc.get_objects()))

    monkeypatch.setattr(Parts, "write", counted)
    file = write_csv(tmp_path / "in.csv", [f"a dog w{number % 30}" for number in range(600)])
    command = ["translate", nllb, file, *LANGUAGES, "-n", 2, "--beams", 1]
    succeeded(*command, "--out", tmp_path / "out.csv")
    assert len(counts) > 6
    assert counts[-1] - counts[2] < 200  # of 400 rows
