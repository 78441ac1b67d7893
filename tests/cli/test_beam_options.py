"""`minhub generate --beams`, for a prompt and for the rows of files."""

import json
from pathlib import Path

from commands import done, failed
from job_runs import read_csv, write_csv

from minhub_py import beam_search, decode_stream, from_pretrained, tokenizer_from_pretrained

MODEL = "minhub/shakespeare-gpt2"
SEARCH = {"beams": 3, "length_penalty": 0.5, "early_stopping": True, "no_repeat_ngram_size": 3}
OPTIONS = [
    *("--beams", 3, "--length-penalty", 0.5),
    *("--early-stopping", "true", "--no-repeat-ngram-size", 3),
]


def test_beam_options_select_the_best_sequences(tmp_path: Path) -> None:
    model, tokenizer = from_pretrained(MODEL), tokenizer_from_pretrained(MODEL)
    prompts = ["ROMEO:", "To be, or"]
    rows = [tokenizer.encode(prompt).ids for prompt in prompts]
    found = beam_search(model, rows, 12, **SEARCH)
    texts = [
        "".join(decode_stream(tokenizer, each[0].ids, ids))
        for each, ids in zip(found, rows, strict=True)
    ]
    output = json.loads(done("generate", MODEL, prompts[0], "-n", 12, *OPTIONS, "--json"))
    assert [each["ids"] for each in output["sequences"]] == [each.ids for each in found[0]]
    assert [each["score"] for each in output["sequences"]] == [each.score for each in found[0]]
    assert output["sequences"][0]["text"] == texts[0]
    assert done("generate", MODEL, prompts[0], "-n", 12, *OPTIONS) == f"ROMEO:{texts[0]}\n"
    path, out = write_csv(tmp_path / "in.csv", prompts), tmp_path / "out.csv"
    done("generate", MODEL, path, "--out", out, "-n", 12, *OPTIONS)
    assert [row["generated"] for row in read_csv(out)] == texts


def test_options_without_effect_are_usage_errors() -> None:
    call = ("generate", MODEL, "ROMEO:", "-n", 3)
    assert "set --beams too" in failed(*call, "--length-penalty", 2, status=2)
    assert "--top-k has no effect" in failed(*call, "--beams", 2, "--top-k", 3, status=2)
    assert "beams must be a whole number from 1" in failed(*call, "--beams", 0, status=2)
