"""Activation patching: which values of a clean run restore its result in a corrupted run.

Sources
    Vig et al. (2020), "Causal Mediation Analysis"; Meng et al. (2022), "Locating and Editing
        Factual Associations in GPT"; Heimersheim & Nanda (2024), "How to Use and Interpret
        Activation Patching".
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from minhub_py.analysis import plots
from minhub_py.analysis.activations import forward, recorder
from minhub_py.analysis.points import ENCODER, Edit, Point, Points, edited, recipe_of
from minhub_py.analysis.tokens import Text, single_row, token_strings
from minhub_py.checkpoints.tokenizers.paired import source_tokenizer, target_tokenizer
from minhub_py.inference.arguments import all_of, check_tokenizer, is_text, is_whole, model_of
from minhub_py.models.base import LanguageModel
from minhub_py.models.encoder import Encoder
from minhub_py.system.tables import Columns, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("resid", "attn", "mlp", "heads")
BATCH_TOKENS = 2048  # per forward call

# The correct and the incorrect token, as strings or token IDs, or a function of the logits (T, V)
# of a run.
Metric = tuple[str | int, str | int] | Callable[[Tensor], float]


@dataclass(frozen=True)
class Patching(Result):
    """Results of activation patching.

    Attributes:
        tokens: The string of each token of the clean text.
        corrupted_tokens: The string of each token of the corrupted text.
        clean: The metric of the clean run.
        corrupted: The metric of the corrupted run.
        values: The metric of the patched runs. "resid", "attn", "mlp": (layers, T), the value at
            one layer and position patched; the first row of "resid" is the embeddings (layer 0).
            "heads": (layers, heads), one head patched at all positions. NaN: the layer lacks this
            value.
    """

    tokens: list[str | None]
    corrupted_tokens: list[str | None]
    clean: float
    corrupted: float
    values: dict[str, Tensor] = field(repr=False)

    def effects(self, kind: str) -> Tensor:
        """The values scaled to 0 for the corrupted and 1 for the clean run.

        ValueError: both runs have the same metric, or `kind` was not computed.
        """
        if kind not in self.values:
            raise ValueError(f"kind must be {' or '.join(self.values)}, not {kind!r}")
        if self.clean == self.corrupted:
            raise ValueError(
                "the clean and the corrupted run have the same metric: use texts that differ in it"
            )
        return (self.values[kind] - self.corrupted) / (self.clean - self.corrupted)

    def heading(self) -> list[str]:
        """The metrics of the two runs."""
        return [f"clean run: {self.clean:.4g}", f"corrupted run: {self.corrupted:.4g}"]

    def table(self) -> Columns:
        """Columns with a row for each patched run: kind, layer, position, head, token, value.

        Layers and heads count from 1, positions from 0; None where a column does not apply.
        """
        columns = Columns(
            {name: [] for name in ("kind", "layer", "position", "head", "token", "value")}
        )
        for kind, values in self.values.items():
            for row, numbers in enumerate(values.tolist()):
                for column, number in enumerate(numbers):
                    heads = kind == "heads"
                    cells = (
                        kind,
                        row + (kind != "resid"),
                        None if heads else column,
                        column + 1 if heads else None,
                        None if heads else self.tokens[column],
                        number,
                    )
                    for name, cell in zip(columns, cells, strict=True):
                        columns[name].append(cell)
        return columns

    def plot(
        self, path: str | os.PathLike[str] | None = None, *, kind: str | None = None
    ) -> "Figure":
        """Draw heat maps of the effects: 0 as in the corrupted run, 1 as in the clean run.

        Args:
            path: Output file; its suffix selects the format.
            kind: "resid", "attn", "mlp" or "heads"; by default all that were computed.

        Returns:
            The matplotlib figure.

        Raises:
            ValueError: As for `effects`, or matplotlib is not installed.
        """
        effects = {
            name: self.effects(name).numpy() for name in (self.values if kind is None else [kind])
        }
        texts = (
            plots.token_labels(tokens, range(len(tokens)))
            for tokens in (self.tokens, self.corrupted_tokens)
        )
        tokens = [
            token if token == second else f"{token} → {second}"
            for token, second in zip(*texts, strict=True)
        ]
        return plots.plot_patching(effects, tokens, path)


@torch.no_grad()
def patching(
    model: LanguageModel,
    tokenizer: Tokenizer,
    clean: Text,
    corrupted: Text,
    metric: Metric,
    *,
    kinds: str | Iterable[str] = KINDS,
    position: int | None = None,
    target: Text = None,
    progress: Callable[[int, int], object] | None = None,
) -> Patching:
    """Replace values of a corrupted run by values of a clean run, one at a time, and measure the
    result.

        result = patching(model, tokenizer, "The capital of France is", "The capital of Italy is", (" Paris", " Rome"))
        result.plot("patching.png")

    Args:
        model: A model of this package. An encoder needs a masked-LM head. In an encoder-decoder,
            values of the encoder are patched.
        tokenizer: The model's tokenizer; None if texts and metric are token IDs.
        clean: A text.
        corrupted: A text with as many tokens.
        metric: The correct and the incorrect token, strings or IDs: the metric is the difference of
            their logits. Or a function that returns a number for the logits (T, V) of a run.
        kinds: The patched values: "resid", "attn" and "mlp" for each layer and position; "heads"
            for each layer and head at all positions.
        position: The position, from 0, whose logits a pair of tokens is compared at; negative
            numbers count from the end. Default: the last position; required for an encoder.
        target: For an encoder-decoder: the decoder's previous output. Default: nothing.
        progress: Called with the numbers of completed and of all runs.

    Returns:
        Each patched run's metric.

    Raises:
        ValueError: Texts with different numbers of tokens; a metric that is not a pair of single
            tokens; a model without head; an LSTM with other kinds than "resid"; or as
            `activations`.
    """
    model = model_of(model, "patching()")
    if model.without_head or (isinstance(model, Encoder) and model.config.head != "masked_lm"):
        raise ValueError(
            f"patching() needs logits of tokens: this {model.config.TITLE} has no language model"
            " head"
        )
    points = Points(recipe_of(model).model)
    prefix = ENCODER if model.encoder_decoder else ""
    selected = check_kinds(kinds, points, prefix)
    continued = not model.encoder_only
    rows = [
        single_row(model, tokenizer, text, name, prompt=continued)
        for text, name in ((clean, "clean"), (corrupted, "corrupted"))
    ]
    if len(rows[0]) != len(rows[1]):
        raise ValueError(
            f"clean has {len(rows[0])} tokens and corrupted {len(rows[1])}: pass texts with as many"
            " tokens, so that positions correspond"
        )
    inputs = None
    if model.encoder_decoder:
        written = [] if target is None else single_row(model, tokenizer, target, "target")
        assert model.decoder_start is not None
        inputs = [model.decoder_start, *written]
    measure = metric_function(model, tokenizer, metric, position, len(inputs or rows[0]))
    recorded_points = [point for kind in selected for point in points_of_kind(points, prefix, kind)]
    recording, stored = recorder(model, recorded_points, "patching()")
    [best] = measure(recording, forward(recording, rows[:1], inputs))
    plain = edited(model, [], "patching()")
    [base] = measure(plain, forward(plain, rows[1:], inputs))
    runs = {point.name: variants(points, point, len(rows[0])) for point in recorded_points}
    completed, total = 0, sum(map(len, runs.values()))
    size = max(1, BATCH_TOKENS // len(rows[0]))
    results: dict[str, list[float]] = {}
    for point in recorded_points:
        cells = runs[point.name]
        for start in range(0, len(cells), size):
            chunk = cells[start : start + size]
            copy = edited(model, [(point, patch(stored[point.name], chunk))], "patching()")
            numbers = measure(copy, forward(copy, rows[1:] * len(chunk), inputs))
            results.setdefault(point.name, []).extend(numbers)
            completed += len(chunk)
            if progress is not None:
                progress(completed, total)
    values = {kind: matrix_of(points, prefix, kind, results) for kind in selected}
    first, second = (token_strings(source_tokenizer(tokenizer), row) for row in rows[:2])
    return Patching(first, second, best, base, values)


def check_kinds(kinds: str | Iterable[str], points: Points, prefix: str) -> tuple[str, ...]:
    """The kinds as a tuple. ValueError: an unknown kind, or a kind that the model lacks."""
    selected = (kinds,) if isinstance(kinds, str) else all_of(kinds, is_text)
    if not selected or not set(selected) <= set(KINDS):
        raise ValueError(f"kinds must be among {', '.join(KINDS)}, not {kinds!r}")
    if absent := [kind for kind in selected if not points_of_kind(points, prefix, kind)]:
        raise ValueError(f'{points.title} has no {absent[0]}: pass kinds="resid"')
    return tuple(dict.fromkeys(selected))


def points_of_kind(points: Points, prefix: str, kind: str) -> list[Point]:
    """The points of a kind, by layer; "resid" begins with the embeddings."""
    existing = [name for name in names_of_kind(points, prefix, kind) if name in points.sources]
    return points.find(existing) if existing else []


def names_of_kind(points: Points, prefix: str, kind: str) -> list[str]:
    """The names of a kind in each layer, whether the layer has it or not."""
    names = [f"{prefix}layers.{layer}.{kind}" for layer in range(1, points.layers + 1)]
    return [f"{prefix}embeddings", *names] if kind == "resid" else names


def variants(points: Points, point: Point, length: int) -> list[tuple[slice, slice]]:
    """The patched positions and channels of each run: one position, or one head at all positions."""
    units, every = points.sources[point.name].units, slice(None)
    if not units:
        return [(slice(position, position + 1), every) for position in range(length)]
    size = point.size // units
    return [(every, slice(unit * size, (unit + 1) * size)) for unit in range(units)]


def patch(value: Tensor, cells: Sequence[tuple[slice, slice]]) -> Edit:
    """An edit that replaces another part of x (B, T, size) in each row by the part of `value` (T,
    size).
    """

    def replace(x: Tensor, positions: Tensor) -> Tensor:
        x = x.clone()
        for row, (rows_of_cell, channels) in enumerate(cells):
            x[row, rows_of_cell, channels] = value[rows_of_cell, channels]
        return x

    return replace


def metric_function(
    model: LanguageModel, tokenizer: Tokenizer, metric: Metric, position: int | None, length: int
) -> Callable[[LanguageModel, Tensor], list[float]]:
    """A function of the model and the input (B, T, C) of the head: each row's metric."""
    if callable(metric):
        function = metric
        return lambda running, x: [
            float(function(logits_of(running, row.unsqueeze(0))[0].float())) for row in x
        ]
    correct, incorrect = pair_of_tokens(model, tokenizer, metric)
    if position is None and model.encoder_only:
        raise ValueError(
            "an encoder needs position=, the index of the mask token whose logits are compared"
        )
    offset = check_position(-1 if position is None else position, length)

    def difference(running: LanguageModel, x: Tensor) -> list[float]:
        logits = logits_of(running, x[:, offset : offset + 1])[:, 0].float()
        numbers: list[float] = (logits[:, correct] - logits[:, incorrect]).tolist()
        return numbers

    return difference


def check_position(position: object, length: int) -> int:
    """A position from 0; a negative one counts from the end. ValueError: out of range."""
    if not is_whole(position) or not -length <= position < length:
        raise ValueError(
            f"position must be a whole number from {-length} to {length - 1}, not {position!r}"
        )
    return int(position) % length


def logits_of(model: Any, x: Tensor) -> Tensor:
    """The logits (B, T, V) for the input of the head (B, T, C)."""
    logits: Tensor = model.head_of(x) if model.encoder_only else model.logits(x)
    return logits


def pair_of_tokens(model: LanguageModel, tokenizer: Tokenizer, metric: object) -> tuple[int, int]:
    """The token IDs of a pair of strings or IDs. ValueError: not a pair of single tokens."""
    pair = all_of(metric, lambda value: is_text(value) or is_whole(value))
    if pair is None or len(pair) != 2:
        raise ValueError(
            "metric must be a pair of tokens, the correct and the incorrect one, or a function of"
            f" the logits, not {metric!r}"
        )
    first, second = (token_id(model, tokenizer, token, "metric") for token in pair)
    return first, second


def token_id(model: LanguageModel, tokenizer: Tokenizer, token: object, name: str) -> int:
    """The ID of a token that is a string or an ID. ValueError: no token, or several."""
    if is_whole(token):
        if not 0 <= token < model.output_size:
            raise ValueError(f"{name}: token IDs must be 0 to {model.output_size - 1}, not {token}")
        return int(token)
    if not is_text(token):
        raise ValueError(f"{name} must be a token, a string or an ID, not {token!r}")
    check_tokenizer(tokenizer, "encode")
    ids = target_tokenizer(tokenizer).encode(token, add_special_tokens=False).ids
    if len(ids) != 1:
        raise ValueError(
            f"{name}: {token!r} has {len(ids)} tokens: pass a string of one token, with the space"
            " in front if the text needs one, or a token ID"
        )
    return int(ids[0])


def matrix_of(points: Points, prefix: str, kind: str, results: dict[str, list[float]]) -> Tensor:
    """The results of a kind, a row per layer; NaN for layers without it."""
    rows = [results.get(name, []) for name in names_of_kind(points, prefix, kind)]
    width = max(map(len, rows))
    return torch.tensor([row + [torch.nan] * (width - len(row)) for row in rows])
