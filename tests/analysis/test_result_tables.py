"""Every result has a table, which notebooks show and `to_pandas()` returns."""

import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from needs import need

import minhub_py
from minhub_py.analysis.questions import DecisionSettings
from minhub_py.system.tables import Columns, Result

GPT2 = "minhub/shakespeare-gpt2"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A result of each kind."""
    model, tokenizer = minhub_py.from_pretrained(GPT2), minhub_py.tokenizer_from_pretrained(GPT2)
    texts = ["To be", "or not", "To do", "or so"]
    values = minhub_py.activations(model, tokenizer, texts, "layers.*.resid", pool="last")
    sequence = np.array([0.0, 1.0] * 10)
    folder = tmp_path_factory.mktemp("run")
    (folder / "input.txt").write_text("To be or not to be. " * 200)
    return {
        "words": minhub_py.word_logprobs(model, tokenizer, "To be or not".split()),
        "activations": values,
        "attention": minhub_py.attention_weights(model, tokenizer, "To be"),
        "attribution": minhub_py.attribution(model, tokenizer, "To b", "e"),
        "heads": minhub_py.head_scores(model, length=8, samples=1),
        "lens": minhub_py.logit_lens(model, tokenizer, "To be", 2),
        "patching": minhub_py.patching(model, tokenizer, "To be", "To do", ("e", "o")),
        "direction": minhub_py.direction(
            model, tokenizer, texts[::2], texts[1::2], "layers.2.resid"
        ),
        "probe": minhub_py.probe(
            np.stack([sequence, 1 - sequence], 1), [*"ab"] * 10, folds=2, bootstrap=10
        ),
        "pairs": minhub_py.minimal_pairs(model, tokenizer, [("To be", "To bx")]),
        "agreement": minhub_py.agreement([*"abab"], [*"abbb"], bootstrap=10),
        "estimates": minhub_py.estimate([1.0, 0.0, None, 1.0] * 5, [1.0, 0.0, 1.0, 0.0] * 5),
        "reply": minhub_py.Chat(model, tokenizer).say("Hi", max_new_tokens=3),
        "decisions": minhub_py.decide(
            model,
            tokenizer,
            "To be",
            {"act": {"type": "score", "criteria": ["be", "do"]}},
            settings=DecisionSettings(chat_template="{{ state }}:<|mark|>"),
        ),
        "calibration": minhub_py.calibrate(
            {
                "text": [*range(40)],
                "question": ["act"] * 40,
                "type": ["noul"] * 40,
                "spread": [0.0] * 40,
                "temperature": [1.0] * 40,
                "prob_true": [0.2, 0.7] * 20,
                "prob_false": [0.8, 0.3] * 20,
                "coded": [False, True, True, True] * 10,
            },
            "coded",
        ),
        "devices": minhub_py.devices(),
        "run": minhub_py.train(
            folder / "input.txt", folder / "out", steps=2, layers=1, width=8, heads=1, context=8
        ),
    }


NAMES = (
    "words",
    "activations",
    "attention",
    "attribution",
    "heads",
    "lens",
    "patching",
    "direction",
    "probe",
    "pairs",
    "agreement",
    "estimates",
    "reply",
    "decisions",
    "calibration",
    "devices",
    "run",
)


class Tags(HTMLParser):
    """Checks that elements are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", NAMES)
def test_results_have_a_table_of_columns_and_html(results: dict[str, Any], name: str) -> None:
    result = results[name]
    columns = result if isinstance(result, Columns) else result.table()
    assert isinstance(columns, Columns)
    assert len(columns) >= 2
    [size] = {len(values) for values in columns.values()}
    assert size > 0
    shown = result._repr_html_()
    parser = Tags()
    parser.feed(shown)
    assert parser.open == []
    assert len(shown) < 20_000


@pytest.mark.parametrize("name", NAMES)
def test_results_are_data_frames(results: dict[str, Any], name: str) -> None:
    need("pandas")
    result = results[name]
    columns = result if isinstance(result, Columns) else result.table()
    frame = result.to_pandas()
    assert [*frame.columns] == [*columns]
    for column, values in columns.items():
        assert len(frame[column]) == len(values)
        last = frame[column].iloc[-1]
        assert last == values[-1] or (last != last and values[-1] in (None, last))  # noqa: PLR0124


def test_tables_have_the_values_at_their_places(results: dict[str, Any]) -> None:
    values, weights, lens = results["activations"], results["attention"], results["lens"]
    table = values.table()
    row = 3
    for index in np.flatnonzero((table["point"] == "layers.2.resid") & (table["text"] == row))[:5]:
        assert table["value"][index] == values["layers.2.resid"][row, table["channel"][index]]
    table = weights.table()
    for index in range(0, len(table["weight"]), 7):
        layer, head, query, key = (
            int(table[name][index]) for name in ("layer", "head", "query", "key")
        )
        assert (
            table["weight"][index]
            == weights.weights[weights.layers.index(layer), head - 1, query, key]
        )
    table = lens.table()
    for index in range(0, len(table["prob"]), 3):
        place = (
            lens.layers.index(int(table["layer"][index])),
            int(table["position"][index]),
            table["rank"][index] - 1,
        )
        assert table["prob"][index] == lens.probs[place]
        assert table["predicted"][index] == lens.names[int(lens.predicted[place])]
    scores, table = results["heads"], results["heads"].table()
    for index in range(len(table["head"])):
        place = scores.layers.index(int(table["layer"][index])), table["head"][index] - 1
        assert table["induction"][index] == scores.induction[place]


def test_every_class_of_results_is_tested(results: dict[str, Any]) -> None:
    from minhub_py.jobs.replay import Replay  # tested with jobs

    assert {*Result.__subclasses__()} == {type(result) for result in results.values()} - {
        Columns
    } | {Replay}


def test_without_pandas_the_extra_is_named(
    results: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        ValueError, match=r"frames \(to_pandas\) requires the Python package pandas: install with"
    ):
        results["words"].to_pandas()
