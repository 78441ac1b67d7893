"""Minimal pairs and test suites, compared with `score` and with formulas evaluated by hand."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from minhub_py import from_pretrained, gpt2, minimal_pairs, save_pretrained, score
from minhub_py.analysis.formulas import parse
from minhub_py.analysis.minimal_pairs import interval
from minhub_py.checkpoints.tokenizers.tokenizer import train_byte_level_bpe
from minhub_py.cli.main import main

TEXT = (
    "The cats sleep. The cat sleeps. Many cats that the dog chases sleep under the old tree, and"
    " the dog barks."
)
TOKENIZER = train_byte_level_bpe([TEXT] * 3, 275)
SIZE, END = TOKENIZER.get_vocab_size(), TOKENIZER.token_to_id("<|endoftext|>")
PAIRS = [
    {
        "UID": "number",
        "sentence_good": "The cats sleep.",
        "sentence_bad": "The cats sleeps.",
        "pairID": "0",
    },
    {
        "UID": "number",
        "sentence_good": "The cat sleeps.",
        "sentence_bad": "The cat sleep.",
        "pairID": "1",
    },
    {
        "UID": "order",
        "sentence_good": "The old tree",
        "sentence_bad": "old The tree",
        "pairID": "2",
    },
    {
        "UID": "order",
        "sentence_good": "The dog barks.",
        "sentence_bad": "The dog barks.",
        "pairID": "3",
    },
]
SUITE = {
    "meta": {"name": "number", "metric": "sum"},
    "region_meta": {"1": "subject", "2": "verb", "3": "end"},
    "predictions": [
        {"type": "formula", "formula": "(2;%match%) < (2;%mismatch%)"},
        {
            "type": "formula",
            "formula": " [((*;%match%) - (1;%match%)) > 0]& [ (1;%match%) = (1;%mismatch%) ] ",
        },
    ],
    "items": [
        {
            "item_number": 1,
            "conditions": [
                {
                    "condition_name": name,
                    "regions": [
                        {"region_number": 1, "content": "The cats "},
                        {"region_number": 2, "content": verb},
                        {"region_number": 3, "content": ""},
                        {"region_number": 4, "content": "under the tree."},
                    ],
                }
                for name, verb in (("match", "sleep"), ("mismatch", "sleeps"))
            ],
        }
    ],
}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = gpt2(
        vocab_size=SIZE,
        n_positions=64,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=END,
        eos_token_id=END,
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def logprob(model, text: str) -> float:
    return float(score(model, [[END, *TOKENIZER.encode(text).ids]])[0].double().sum())


def blimp(folder: Path, records: list) -> Path:
    path = folder / "blimp.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_pair_is_correct_if_the_good_sentence_is_more_likely(model, tmp_path: Path) -> None:
    """A tie is not correct, and a missing sentence has no result."""
    records = [*PAIRS, {**PAIRS[0], "sentence_bad": None}]
    result = minimal_pairs(model, TOKENIZER, blimp(tmp_path, records))
    good = [logprob(model, pair["sentence_good"]) for pair in PAIRS]
    bad = [logprob(model, pair["sentence_bad"]) for pair in PAIRS]
    np.testing.assert_allclose(result.columns["logprob_good"][:4], good, rtol=1e-5)
    np.testing.assert_allclose(result.columns["logprob_bad"][:4], bad, rtol=1e-5)
    expected = [a > b for a, b in zip(good[:3], bad[:3], strict=True)]
    assert result.columns["correct"] == [*expected, False, None]
    assert result.accuracy["phenomenon"] == ["number", "order", "all"]
    assert result.accuracy["n"] == [2, 2, 4]
    assert result.accuracy["accuracy"] == [
        sum(expected[:2]) / 2,
        expected[2] / 2,
        sum(expected) / 4,
    ]
    swapped = minimal_pairs(
        model, TOKENIZER, [(pair["sentence_bad"], pair["sentence_good"]) for pair in PAIRS]
    )
    assert swapped.columns["correct"] == [not value for value in expected] + [False]
    assert swapped.accuracy["phenomenon"] == ["all"]
    assert minimal_pairs(model, TOKENIZER, PAIRS, by="pairID").accuracy["n"] == [1, 1, 1, 1, 4]
    without = minimal_pairs(model, TOKENIZER, PAIRS[:1], bos=False)
    assert without.columns["logprob_good"][0] == pytest.approx(
        float(score(model, [TOKENIZER.encode("The cats sleep.").ids])[0].sum()), rel=1e-5
    )


def test_suites_compare_the_surprisal_of_regions(model, tmp_path: Path) -> None:
    path = tmp_path / "suite.json"
    path.write_text(json.dumps(SUITE))
    result = minimal_pairs(model, TOKENIZER, path)
    verb = {
        name: logprob(model, "The cats") - logprob(model, f"The cats {name}")
        for name in ("sleep", "sleeps")
    }
    assert result.columns["phenomenon"] == ["number, 1", "number, 2"]
    assert result.columns["correct"] == [verb["sleep"] < verb["sleeps"], True]
    assert result.accuracy["n"] == [1, 1, 2]
    # The mean over a region's tokens.
    tokens = len(TOKENIZER.encode(" sleeps").ids)
    bits = (verb["sleeps"] / tokens) / math.log(2)
    for limit, expected in ((bits - 1e-3, True), (bits + 1e-3, False)):
        formula = [{"type": "formula", "formula": f"(2;%mismatch%) > {limit:.6f}"}]
        path.write_text(json.dumps({**SUITE, "meta": {"metric": "mean"}, "predictions": formula}))
        result = minimal_pairs(model, TOKENIZER, path)
        assert (result.columns["phenomenon"], result.columns["correct"]) == (["suite"], [expected])
    assert tokens > 1


def test_formulas_follow_the_grammar_of_syntaxgym() -> None:
    """Also the brackets of the published suites."""
    values = {("a", 1): 1.0, ("a", 2): 2.0, ("b", 1): 3.0, ("b", 2): 4.0}
    cases = {
        "(1;%a%) < (1;%b%)": True,
        "(1;%a%)+(2;%a%)=(1;%b%)": True,
        "(1;%b%) - (1;%a%) - (2;%a%) > 0": False,
        "((1;%b%) - ((1;%a%) - (2;%a%))) > 3.5": True,
        "(*;%b%) = 7.001": True,
        "(*;%b%) = 7.01": False,
        "1 > 2 & 1 < 2 | 1 < 2": True,
        "[[(2;%a%)-(1;%a%)]+[(2;%b%)-(1;%b%)]]>1.9": True,
        "[(1;%a%) = 1.0005]& [(2;%a%) > (2;%b%) ] ": False,
        "[1) < 2": ValueError,
        "{1}": ValueError,
        "(1;%a%) <": ValueError,
        "((1;%a%) < 2": ValueError,
        "(3;%a%) < 1": ValueError,
    }
    for text, expected in cases.items():
        if expected is ValueError:
            with pytest.raises(ValueError, match=r"formula"):
                parse(text)(values)
        else:
            assert parse(text)(values) == expected, text


def test_intervals_are_wilsons() -> None:
    np.testing.assert_allclose(interval(8, 10), (0.8, 0.4901625, 0.9433178), atol=1e-7)
    assert interval(0, 24)[1] == 0  # exactly
    assert interval(24, 24)[2] == 1
    assert all(map(math.isnan, interval(0, 0)))


def test_wrong_files_are_errors(model, tmp_path: Path) -> None:
    suite = tmp_path / "suite.json"
    for content, message in (
        ('{"meta": {}}', "is not a suite of SyntaxGym"),
        (
            json.dumps({**SUITE, "meta": {"metric": "mode"}}),
            "has the metric 'mode': supported are sum, all, mean",
        ),
    ):
        suite.write_text(content)
        with pytest.raises(ValueError, match=message):
            minimal_pairs(model, TOKENIZER, suite)
    with pytest.raises(ValueError, match=r"line 1 must have sentence_bad"):
        minimal_pairs(model, TOKENIZER, blimp(tmp_path, [{"sentence_good": "a"}]))
    with pytest.raises(ValueError, match="has no 'field': set by to one of"):
        minimal_pairs(model, TOKENIZER, PAIRS, by="field")


def test_the_command_prints_accuracies_and_writes_the_results_of_pairs(
    model, tmp_path: Path
) -> None:
    folder, out, picture = tmp_path / "model", tmp_path / "out.jsonl", tmp_path / "pairs.png"
    save_pretrained(model, folder, TOKENIZER)
    file, suite = blimp(tmp_path, PAIRS), tmp_path / "suite.json"
    suite.write_text(json.dumps(SUITE))

    def run(*arguments: object) -> str:
        result = CliRunner().invoke(main, ["pairs", str(folder), *map(str, arguments)])
        assert result.exit_code == 0, result.output
        return result.stdout

    expected = minimal_pairs(from_pretrained(folder), TOKENIZER, PAIRS)
    accuracy = json.loads(run(file, "--out", out, "--plot", picture, "--json"))["accuracy"]
    assert [row["phenomenon"] for row in accuracy] == ["number", "order", "all"]
    assert [row["accuracy"] for row in accuracy] == expected.accuracy["accuracy"]
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["logprob_good"] for row in rows] == expected.columns["logprob_good"].tolist()
    assert [row["correct"] for row in rows] == [int(value) for value in expected.columns["correct"]]
    table = tmp_path / "pairs.csv"
    table.write_text("a,b\nThe cats sleep.,The cats sleeps.\n")
    for options, missing in (([], "--good"), (["--good", "a"], "--bad")):
        failed = CliRunner().invoke(main, ["pairs", str(folder), str(table), *options])
        assert f"set {missing} to one of its columns (a, b)" in failed.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert run(file).split()[:5] == ["PHENOMENON", "PAIRS", "ACCURACY", "LOWER", "UPPER"]
    items = json.loads(run(suite, "--json"))["items"]
    assert [item["correct"] for item in items] == minimal_pairs(model, TOKENIZER, suite).columns[
        "correct"
    ]
