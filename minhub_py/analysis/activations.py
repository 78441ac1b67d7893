"""Activations of texts at named points (points.py), recorded while the model's own `forward` runs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from minhub_py.analysis.points import ENCODER, Point, Points, edited, recipe_of
from minhub_py.analysis.tokens import Text, rows_of_texts, token_strings
from minhub_py.checkpoints.tokenizers.paired import source_tokenizer
from minhub_py.inference.arguments import model_of
from minhub_py.models.base import LanguageModel
from minhub_py.system import html
from minhub_py.system.tables import Columns, Result

POOLS = ("none", "last", "mean")


# and attributes
ROW_COLUMNS = {"text": "texts", "position": "positions", "token": "tokens", "id": "ids"}


@dataclass(frozen=True)
class Activations(Result):
    """Activations at named points, with a row for each token, or for each text if they are pooled.

    Attributes:
        values: Each point's rows, float32 (rows, size) on the CPU, in the order of the
            computation.
        texts: Each row's text, an index from 0.
        positions: The position of each row's token in its text, from 0; -1 for a mean.
        tokens: The string of each row's token; None for a mean, or without a tokenizer.
        ids: The token ID of each row; -1 for a mean.
    """

    values: dict[str, Tensor] = field(repr=False)
    texts: list[int]
    positions: list[int]
    tokens: list[str | None]
    ids: list[int]

    def __getitem__(self, name: str) -> Tensor:
        """A point's rows. KeyError: the activations do not contain it."""
        return self.values[name]

    def table(self) -> Columns:
        """A row for each value: text, position, token, id, point, channel (from 0) and value."""
        parts: list[Columns] = []
        for name, rows in self.values.items():
            size = rows.size(1)
            numbers = np.arange(len(rows)).repeat(size)
            part = Columns(
                {
                    column: np.array(getattr(self, source))[numbers]
                    for column, source in ROW_COLUMNS.items()
                }
            )
            part["point"] = np.full(rows.numel(), name)
            parts.append(
                Columns(
                    part
                    | {
                        "channel": np.tile(np.arange(size), len(rows)),
                        "value": rows.flatten().numpy(),
                    }
                )
            )
        return Columns({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})

    def _repr_html_(self) -> str:
        sizes: dict[str, list[object]] = {
            "point": [*self.values],
            "rows": [len(rows) for rows in self.values.values()],
            "channels": [rows.size(1) for rows in self.values.values()],
        }
        return html.note([f"Activations of {len(set(self.texts)):,} texts"]) + html.table(sizes)


@torch.no_grad()
def activations(
    model: LanguageModel,
    tokenizer: Tokenizer | None,
    text: Text | Sequence[Text],
    at: str | Iterable[str] | None = None,
    *,
    pool: Literal["none", "last", "mean"] = "none",
    targets: Text | Sequence[Text] = None,
) -> Activations:
    """Compute the activations of texts at named points of the model.

        result = activations(model, tokenizer, "The cat sat", at=["layers.3.attn", "layers.*.resid"])
        result["layers.3.attn"]    # (tokens, channels)

    Args:
        model: A model of this package, or the result of `intervene`.
        tokenizer: The model's tokenizer; None if the texts are token IDs.
        text: A string or a list of token IDs, or a list of them. Each is computed separately.
        at: The name of a point or a list of names (minhub_py/analysis/points.py). Default: the
            embeddings and the output of each layer.
        pool: "none" for a row per token, "last" for each text's last token, "mean" for the
            mean over its tokens.
        targets: For points in an encoder-decoder's decoder: the decoder's output, one target
            per text. The rows belong to the decoder's input tokens, the start token and the target
            without its last token.

    Returns:
        The activations, with the texts and tokens that they belong to.

    Raises:
        ValueError: An unknown point; a text has no tokens or exceeds the context length; points of
            encoder and decoder in one call; or a model with hooks or replaced methods.
    """
    model = model_of(model, "activations()")
    if pool not in POOLS:
        raise ValueError(f'pool must be "none", "last" or "mean", not {pool!r}')
    points = Points(recipe_of(model).model)
    selection = points.find(default_points(model, targets) if at is None else at)
    sides = {point.name.startswith(ENCODER) for point in selection}
    if len(sides) > 1:
        raise ValueError(
            "at names points of the encoder and of the decoder: call activations() once for each"
        )
    rows = rows_of_texts(model, tokenizer, text)
    inputs: Sequence[list[int] | None] = [None] * len(rows)
    if model.encoder_decoder and sides == {False}:
        if targets is None:
            raise ValueError(
                f"{selection[0].name} is a point of the decoder: pass targets, the decoder's output"
                " for each text, or the name of a point of the encoder, such as"
                f" {ENCODER}{selection[0].name}"
            )
        inputs = rows_of_texts(model, tokenizer, targets, name="targets")
        if len(inputs) != len(rows):
            raise ValueError(
                f"{len(inputs)} targets for {len(rows)} texts: pass one target per text"
            )
        start = model.decoder_start
        assert start is not None
        inputs = [[start, *ids[:-1]] for ids in inputs]
    rows_of: dict[str, list[Tensor]] = {point.name: [] for point in selection}
    copy, recorded = recorder(model, selection, "activations()")
    texts: list[int] = []
    positions: list[int] = []
    token_ids: list[int] = []
    for number, (ids, target) in enumerate(zip(rows, inputs, strict=True)):
        forward(copy, [ids], target)
        for name, x in recorded.items():
            rows_of[name].append(pooled(x.float(), pool).cpu())
        row = ids if target is None else target
        chosen = {
            "none": range(len(row)),
            "last": range(len(row) - 1, len(row)),
            "mean": range(-1, 0),
        }[pool]
        texts += [number] * len(chosen)
        positions += chosen
        token_ids += [-1 if position < 0 else row[position] for position in chosen]
    tokens = token_strings(None if pool == "mean" else source_tokenizer(tokenizer), token_ids)
    return Activations(
        {name: torch.cat(parts) for name, parts in rows_of.items()},
        texts,
        positions,
        tokens,
        token_ids,
    )


def default_points(model: LanguageModel, targets: object = None) -> list[str]:
    """The embeddings and the output of each layer; of the encoder if there are no targets."""
    prefix = ENCODER if model.encoder_decoder and targets is None else ""
    return [f"{prefix}embeddings", f"{prefix}layers.*.resid"]


def recorder(
    model: LanguageModel, points: Iterable[Point], call: str
) -> tuple[LanguageModel, dict[str, Tensor]]:
    """A copy of the model, and the values (T, size) at the points in the first row of its last
    forward call.

    call: see `edited`.
    """
    values: dict[str, Tensor] = {}

    def record(name: str, x: Tensor, positions: Tensor) -> None:
        values[name] = x[0].detach().clone()

    return edited(model, [(point, partial(record, point.name)) for point in points], call), values


def pooled(x: Tensor, pool: str) -> Tensor:
    """The rows (T, size) of a text, the last of them, or their mean (1, size)."""
    return x if pool == "none" else x[-1:] if pool == "last" else x.mean(dim=0, keepdim=True)


def forward(
    model: Any, rows: Sequence[Sequence[int]], target: Sequence[int] | None = None
) -> Tensor:
    """The input (B, T, C) of the head for token IDs of equal length; empty for an encoder-decoder
    without `target`.

    target: the decoder's input in each row.
    """
    device = next(model.parameters()).device
    idx = torch.tensor([list(ids) for ids in rows], device=device)
    if not model.encoder_decoder:
        return model.hidden(idx)
    encoder = model.encode(idx)
    if target is None:
        return torch.empty(0)
    return model.hidden(torch.tensor([list(target)] * len(rows), device=device), None, encoder)
