"""Minimal pairs: whether a model prefers the grammatical sentence, or fulfills the predictions of a
test suite.

BLiMP (JSONL): a pair is correct if log p(good) > log p(bad), the log-probabilities of the complete
sentences, as in the "simple LM method" of BLiMP and in lm-eval's task. A tie is not correct.

SyntaxGym (JSON): the surprisal (bits) of a region is the sum over its tokens, or the metric of the
suite (mean, median, range, max, min). Formulas compare regions of an item's conditions
(analysis/formulas.py). A sentence's regions are joined by spaces, and a token belongs to the
region of its last character.

A sentence begins after the model's beginning-of-sequence token, if it has one. Otherwise, its first
token is not scored.

Sources
    Warstadt et al. (2020), "BLiMP: The Benchmark of Linguistic Minimal Pairs for English".
    Gauthier, Hu, Wilcox, Qian & Levy (2020), "SyntaxGym: An Online Platform for Targeted Evaluation
        of Language Models".
    Wilson (1927) for the intervals of accuracies.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from reprlib import repr as brief
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from tokenizers import Tokenizer

from minhub_py.analysis import plots
from minhub_py.analysis.formulas import parse
from minhub_py.analysis.predictions import Progress, Span
from minhub_py.analysis.scores import Array, Scores
from minhub_py.analysis.segments import Segments, encode_parts
from minhub_py.analysis.surprisal import refuse_encoder_decoder, required_bos
from minhub_py.checkpoints.tokenizers.surroundings import bos_token_id
from minhub_py.inference.arguments import decoder_of
from minhub_py.models.base import LanguageModel
from minhub_py.system.json_text import JsonMapping
from minhub_py.system.shapes import convert, parse_json, read_json
from minhub_py.system.tables import Columns, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# of BLiMP's files and of similar files
PHENOMENA = ("UID", "phenomenon", "linguistics_term", "field")
GOOD, BAD = "sentence_good", "sentence_bad"
Pair = TypedDict("Pair", {GOOD: str | None, BAD: str | None})  # type: ignore[misc]
METRICS: dict[str, Callable[..., float]] = {
    "sum": np.sum,
    "all": np.sum,
    "mean": np.mean,
    "median": np.median,
    "range": np.ptp,
    "max": np.max,
    "min": np.min,
}
Z = 1.959963984540054  # of a 95 % interval


@dataclass(frozen=True)
class MinimalPairs(Result):
    """The result of `minimal_pairs`.

    columns: one value per pair: phenomenon, good, bad (the sentences), logprob_good, logprob_bad
    (nats), difference and correct (None for a missing sentence). For test suites, one per item and
    prediction: phenomenon (the suite's name and the prediction's number), item, formula and
    correct.
    accuracy: one value per phenomenon, the last for all: phenomenon, n, accuracy, lower and upper
    (95 % interval).
    """

    columns: Columns = field(repr=False)
    accuracy: Columns

    def __str__(self) -> str:
        return str(self.accuracy)

    def table(self) -> Columns:
        """The results of the pairs, as `columns`."""
        return self.columns

    def _repr_html_(self) -> str:
        return self.accuracy._repr_html_()

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Accuracies with intervals. path: a picture to write.    ValueError: matplotlib is
        missing.
        """
        return plots.plot_accuracy(self.accuracy, path)


def minimal_pairs(
    model: LanguageModel,
    tokenizer: Tokenizer,
    pairs: object,
    *,
    by: str | None = None,
    bos: bool | None = None,
    progress: Progress | None = None,
) -> MinimalPairs:
    """Compute a model's accuracy on minimal pairs or on test suites.

        minimal_pairs(model, tokenizer, [("The cats sleep.", "The cats sleeps.")])
        minimal_pairs(model, tokenizer, "blimp/data").accuracy
        minimal_pairs(model, tokenizer, "syntaxgym/number_prep.json")

    Args:
        model: A language model of this package, not an encoder-decoder.
        tokenizer: The model's tokenizer.
        pairs: Pairs (good, bad); mappings with the keys of BLiMP; or the path of a BLiMP file
            (.jsonl), of a SyntaxGym suite (.json), or of a folder with such files.
        by: The key that names the phenomenon of a pair. Default: UID, phenomenon, linguistics_term
            or field, else the file's name.
        bos: Whether sentences begin after the BOS token. Default: if the model has one.
        progress: Called with the number of processed tokens and the total.

    Returns:
        The results of each pair and the accuracies. Pairs with a missing sentence, and predictions
        of a region without tokens, count in no accuracy.

    Raises:
        ValueError: A file is corrupt; pairs and suites are mixed; or the model is invalid.
    """
    model = decoder_of(model, "minimal_pairs()")
    refuse_encoder_decoder(model)
    records, suites = read_pairs(pairs)
    if records and suites:
        raise ValueError(
            "pairs contains .jsonl files of pairs and .json files of suites: pass one kind at a"
            " time"
        )
    if suites:
        columns = suite_columns(model, tokenizer, suites, bos, progress)
    else:
        columns = pair_columns(model, tokenizer, records, by, bos, progress)
    return MinimalPairs(columns, accuracies(columns["phenomenon"], columns["correct"]))


def pair_columns(
    model: LanguageModel,
    tokenizer: Tokenizer,
    records: Sequence[JsonMapping],
    by: str | None,
    bos: bool | None,
    progress: Progress | None,
) -> Columns:
    """The columns of `MinimalPairs` for pairs."""
    name = phenomenon_key(records, by)
    good, bad = ([record[key] or "" for record in records] for key in (GOOD, BAD))
    logprobs = sentence_logprobs(model, tokenizer, [*good, *bad], bos, progress)
    first, second = np.array(logprobs[: len(good)]), np.array(logprobs[len(good) :])
    defined = ~np.isnan(first - second)
    return Columns(
        {
            "phenomenon": [str(record[name]) for record in records],
            "good": good,
            "bad": bad,
            "logprob_good": first,
            "logprob_bad": second,
            "difference": first - second,
            "correct": [
                bool(a > b) if valid else None
                for a, b, valid in zip(first, second, defined, strict=True)
            ],
        }
    )


def phenomenon_key(records: Sequence[Mapping[str, object]], by: str | None) -> str:
    """The key that names each record's phenomenon. ValueError: a record does not have it."""
    name = by or next(
        (name for name in PHENOMENA if records and all(name in record for record in records)),
        "file",
    )
    number_without = next(
        (number for number, record in enumerate(records) if name not in record), None
    )
    if number_without is not None:
        raise ValueError(
            f"pair {number_without} has no {name!r}: set by to one of {', '.join(records[number_without])}"
        )
    return name


def sentence_logprobs(
    model: LanguageModel,
    tokenizer: Tokenizer,
    sentences: Sequence[str],
    bos: bool | None,
    progress: Progress | None = None,
) -> list[float]:
    """The log-probability (nats) of each sentence; NaN for a sentence without scored tokens."""
    tokens = part_surprisals(
        model, tokenizer, [[sentence] for sentence in sentences], bos, progress
    )
    return [-float(np.sum(bits)) * math.log(2) if len(bits) else math.nan for [bits] in tokens]


def suite_columns(
    model: LanguageModel,
    tokenizer: Tokenizer,
    suites: "Sequence[tuple[str, Suite]]",
    bos: bool | None,
    progress: Progress | None,
) -> Columns:
    """The columns of `MinimalPairs` for test suites."""
    columns = Columns({"phenomenon": [], "item": [], "formula": [], "correct": []})
    sentences = [
        condition
        for _, suite in suites
        for item in suite["items"]
        for condition in item["conditions"]
    ]
    parts = [
        [str(region["content"]).strip() for region in condition["regions"]]
        for condition in sentences
    ]
    surprisals = iter(part_surprisals(model, tokenizer, parts, bos, progress))
    for name, suite in suites:
        formulas = [
            (prediction["formula"], parse(prediction["formula"]))
            for prediction in suite["predictions"]
        ]
        metric = METRICS[suite["meta"].get("metric") or "sum"]
        for item in suite["items"]:
            values: dict[tuple[str, int], float] = {}
            for condition in item["conditions"]:
                for region, bits in zip(condition["regions"], next(surprisals), strict=True):
                    key = (condition["condition_name"], int(region["region_number"]))
                    values[key] = float(metric(bits)) if len(bits) else 0.0
            for number, (text, formula) in enumerate(formulas, 1):
                columns["phenomenon"].append(f"{name}, {number}" if len(formulas) > 1 else name)
                columns["item"].append(item["item_number"])
                columns["formula"].append(text)
                columns["correct"].append(bool(formula(values)))
    return columns


def part_surprisals(
    model: LanguageModel,
    tokenizer: Tokenizer,
    texts: Sequence[Sequence[str]],
    bos: bool | None,
    progress: Progress | None,
) -> list[list[Array]]:
    """The surprisals (bits) of the tokens of each part of each text. The parts are joined by
    spaces.

    The first token of a text without BOS is not scored. Empty parts have no tokens.
    """
    use_bos = bos_token_id(tokenizer, model.config) is not None if bos is None else bos
    bos_id = required_bos(model, tokenizer) if use_bos else None
    segments = [
        Segments(
            [part for part in parts if part], [number for number, part in enumerate(parts) if part]
        )
        for parts in texts
    ]
    spans, owners = [], []
    for text, ids, owner, _ in encode_parts(
        model, tokenizer, segments, " ", add_special_tokens=use_bos
    ):
        if bos_id is not None and ids[:1] != [bos_id]:
            ids.insert(0, bos_id)
            owner.insert(0, None)
        spans.append(Span(ids, 1, max(len(ids), 1)))
        owners.append([None if part is None else text.rows[part] for part in owner])
    scores = Scores(model, spans, progress)
    result = []
    for offset, parts, owner in zip(scores.offsets, texts, owners, strict=False):
        bits = scores.logprobs[offset : offset + len(owner)] / -math.log(2)
        scored = ~np.isnan(bits)
        of_part = np.array([-1 if part is None else part for part in owner], int)
        result.append([bits[(of_part == number) & scored] for number in range(len(parts))])
    return result


def accuracies(phenomena: Sequence[str], correct: Sequence[bool | None]) -> Columns:
    """Each phenomenon's accuracy, in order of appearance, and of all pairs."""
    groups: dict[str, list[bool]] = {}
    for name, value in zip(phenomena, correct, strict=True):
        groups.setdefault(name, [])
        if value is not None:
            groups[name].append(bool(value))
    if len(groups) != 1:
        groups["all"] = [value for values in groups.values() for value in values]
    rows = [
        (name, len(values), *interval(sum(values), len(values))) for name, values in groups.items()
    ]
    names = ("phenomenon", "n", "accuracy", "lower", "upper")
    return Columns(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def interval(successes: int, n: int) -> tuple[float, float, float]:
    """A share and its 95 % interval by Wilson; NaN without trials."""
    if n == 0:
        return math.nan, math.nan, math.nan
    share = successes / n
    center = (share + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    return share, center - half if successes else 0.0, center + half if successes < n else 1.0


def read_pairs(
    pairs: object,
) -> "tuple[list[JsonMapping], list[tuple[str, Suite]]]":
    """The records of pairs, and the suites with their names. ValueError: a file or a value is not
    as expected.
    """
    if isinstance(pairs, str | os.PathLike):
        return read_files(Path(pairs))
    if not isinstance(pairs, Iterable) or isinstance(pairs, Mapping):
        raise ValueError(f"pairs must be a list of pairs or the path of a file, not {brief(pairs)}")
    records: list[Mapping[str, object]] = []
    for number, pair in enumerate(pairs):
        is_pair = isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2
        record = {GOOD: pair[0], BAD: pair[1]} if is_pair else pair
        records.append({"file": "all", **check_record(record, f"pair {number}")})
    return records, []


def read_files(path: Path) -> "tuple[list[JsonMapping], list[tuple[str, Suite]]]":
    """`read_pairs` for a file, or for the .jsonl and .json files of a folder."""
    files = (
        sorted(file for file in path.iterdir() if file.suffix in (".jsonl", ".json"))
        if path.is_dir()
        else [path]
    )
    if not files:
        raise ValueError(
            f"{path} contains no .jsonl or .json file: pass the folder of BLiMP's or SyntaxGym's"
            " files"
        )
    records: list[Mapping[str, object]] = []
    suites: list[tuple[str, Suite]] = []
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"file not found: {file}: check the name")
        if file.suffix == ".jsonl":
            records += read_blimp(file)
        elif file.suffix == ".json":
            suites.append(read_suite(file))
        else:
            raise ValueError(f"{file} must be a .jsonl file of pairs or a .json file of SyntaxGym")
    return records, suites


def read_blimp(path: Path) -> Iterator[Mapping[str, object]]:
    """The records of a file of pairs. ValueError: a line is not a pair."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                where = f"{path}, line {number}"
                yield {
                    "file": path.stem,
                    **check_record(parse_json(line.encode(), Any, where), where),
                }


def check_record(record: object, where: str) -> Mapping[str, object]:
    """A record with two sentences. ValueError: others."""
    checked: JsonMapping = convert(record, Pair, where)
    return checked


class Region(TypedDict):
    """A region of a sentence."""

    region_number: int | str
    content: str | float


class Condition(TypedDict):
    """A sentence of an item."""

    condition_name: str
    regions: list[Region]


class Item(TypedDict):
    """An item's conditions."""

    item_number: int | str
    conditions: list[Condition]


class Prediction(TypedDict):
    """A prediction about an item's regions."""

    formula: str


class Meta(TypedDict, total=False):
    """Facts about a suite."""

    name: str
    metric: str


class Suite(TypedDict):
    """A test suite of SyntaxGym."""

    meta: Meta
    predictions: list[Prediction]
    items: list[Item]


def read_suite(path: Path) -> tuple[str, Suite]:
    """A suite and its name. ValueError: the file is not a suite of SyntaxGym, or has an unsupported
    metric.
    """
    content = read_json(path, Any)
    try:
        suite: Suite = convert(content, Suite)
        _ = [
            int(region["region_number"])
            for item in suite["items"]
            for condition in item["conditions"]
            for region in condition["regions"]
        ]
    except ValueError as error:
        raise ValueError(
            f"{path} is not a suite of SyntaxGym, with meta, predictions and items ({error})"
        ) from error
    metric = suite["meta"].get("metric") or "sum"
    if metric not in METRICS:
        raise ValueError(
            f"{path} has the metric {brief(metric)}: supported are {', '.join(METRICS)}"
        )
    return suite["meta"].get("name") or path.stem, suite
