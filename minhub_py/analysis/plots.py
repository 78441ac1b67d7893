"""Plots of results, as matplotlib figures.

The functions receive arrays and labels. The result classes call them, and this module knows none of
these classes.
"""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from minhub_py.system.extras import require
from minhub_py.system.printable import printable
from minhub_py.system.tables import Columns

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

Picture = str | os.PathLike[str] | None
# the last two as in the R package
INK, GREY, BLUE, VERMILLION = "#30343b", "#70757d", "#0072B2", "#D55E00"
# Tokens up to which axes are labelled, for a single panel and for a grid: more labels would be too
# small to read.
LABELLED_SINGLE, LABELLED_GRID = 60, 28
MAX_THUMBNAILS = 144  # heads of all layers; more are shown as means
MAX_LABEL = 14  # characters of a token
WORDS_PER_LINE, MAX_LINES = 25, 20  # of a plot of surprisal


def plot_attention(
    weights: "Tensor",
    layers: Sequence[int],
    tokens: Sequence[str],
    path: Picture,
    layer: int | None,
    head: int | None,
) -> "Figure":
    """Heat maps of attention weights (layers, heads, T, T), with a row for each query and a column
    for each key.

    One head, the heads of one layer, or one head of each layer are labelled with their tokens. All
    heads of all layers are thumbnails, or the mean of each layer's heads if there are more than
    MAX_THUMBNAILS.
    """
    heads = range(1, weights.size(1) + 1)
    if layer is not None and layer not in layers:
        raise ValueError(f"layer must be {listed(layers)}, a layer with attention, not {layer!r}")
    if head is not None and head not in heads:
        raise ValueError(f"head must be {listed(heads)}, not {head!r}")
    title = "Attention" + (f", layer {layer}" if layer else "") + (f", head {head}" if head else "")
    if layer is None and head is None and len(layers) > 1 and len(heads) > 1:
        if len(layers) * len(heads) <= MAX_THUMBNAILS:
            return save(draw_thumbnails(weights, layers, title), path)
        title += f", mean of {len(heads)} heads (layer=, head= select one)"
        panels = [
            (f"layer {number}", mean) for number, mean in zip(layers, weights.mean(1), strict=True)
        ]
    else:
        panels = [
            (
                f"head {column}" if layer is not None else f"layer {row}",
                weights[layers.index(row), column - 1],
            )
            for row in (layers if layer is None else [layer])
            for column in (heads if head is None else [head])
        ]
    return save(draw_panels(panels, tokens, title), path)


def draw_panels(
    panels: Sequence[tuple[str, "Tensor"]], tokens: Sequence[str], title: str
) -> "Figure":
    """A grid of titled panels, with token labels at its left and bottom edges."""
    count, single = len(tokens), len(panels) == 1
    labelled = count <= (LABELLED_SINGLE if single else LABELLED_GRID)
    columns = math.ceil(math.sqrt(1.3 * len(panels)))  # a landscape format
    rows = math.ceil(len(panels) / columns)
    columns = math.ceil(len(panels) / rows)  # full rows
    size = (
        max(4.5 if single else 1.8, (0.28 if single else 0.12) * count)
        if labelled
        else 5.5
        if single
        else 2.2
    )
    figure = new_figure(size * columns + 2, size * rows + 1.6)
    grid = figure.subplots(rows, columns, squeeze=False)
    for number, axes in enumerate(grid.flat):
        if number >= len(panels):
            axes.set_axis_off()
            continue
        name, panel = panels[number]
        image = heat_map(axes, panel.numpy())
        left, bottom = number % columns == 0, number + columns >= len(panels)
        if not single:
            axes.set_title(name, fontsize=9)
        if labelled:
            label_tokens(axes, tokens, left, bottom, size=9 if single else 7)
        elif not single:
            axes.set_xticks([])
            axes.set_yticks([])
        unit = "token" if labelled else "position"
        if left:
            axes.set_ylabel(f"query: {unit}" if single else "query")
        if bottom:
            axes.set_xlabel(f"key: {unit} attended to" if single else "key")
    finish(figure, image, grid, title)
    return figure


def draw_thumbnails(weights: "Tensor", layers: Sequence[int], title: str) -> "Figure":
    """A small panel for each head (columns) of each layer (rows)."""
    rows, columns = weights.shape[:2]
    figure = new_figure(0.9 * columns + 1.8, 0.9 * rows + 1.2)
    grid = figure.subplots(rows, columns, squeeze=False)
    for row, panels in enumerate(grid):
        for column, axes in enumerate(panels):
            image = heat_map(axes, weights[row, column].numpy())
            axes.set_xticks([])
            axes.set_yticks([])
            if row == 0:
                axes.set_title(f"head {column + 1}" if column == 0 else str(column + 1), fontsize=9)
            if column == 0:
                axes.set_ylabel(
                    f"layer {layers[row]}" if row == 0 else str(layers[row]), fontsize=9
                )
    figure.supxlabel(
        "each panel: queries from top to bottom, keys from left to right", fontsize=9, color=GREY
    )
    finish(figure, image, grid, title)
    return figure


def finish(
    figure: "Figure",
    image: "AxesImage",
    grid: "Axes | Iterable[Axes]",
    title: str,
    label: str = "attention weight",
) -> None:
    """Add a color bar and a title."""
    bar = figure.colorbar(image, ax=grid, shrink=0.6, aspect=30, pad=0.02)
    bar.outline.set_visible(False)  # type: ignore[operator]
    bar.set_label(label)
    figure.suptitle(title, x=0.02, ha="left", fontweight="bold", fontsize=11)


def heat_map(axes: "Axes", weights: "ArrayLike") -> "AxesImage":
    """Draw the weights of each query (rows) for each key (columns); masked keys stay white."""
    axes.spines[:].set_color("#d8dade")
    return axes.imshow(weights, cmap=colormap(), vmin=0, vmax=1, interpolation="nearest")


def label_tokens(
    axes: "Axes", tokens: Sequence[str], left: bool, bottom: bool, size: float
) -> None:
    """Label the left and bottom edges of a panel with the tokens. size: font size in points."""
    positions = range(len(tokens))
    axes.set_yticks(
        positions if left else [], tokens if left else [], fontsize=size, family="monospace"
    )
    axes.set_xticks(
        positions if bottom else [], tokens if bottom else [], fontsize=size, family="monospace"
    )
    axes.tick_params("x", rotation=90 if max(map(len, tokens)) > 2 else 0)
    axes.tick_params(length=0)


def plot_logit_lens(
    probs: "Tensor",
    predicted: "Tensor",
    layers: Sequence[int],
    ids: Sequence[int],
    names: Mapping[int, str],
    tokens: Sequence[str],
    path: Picture,
    start: int,
    most: int,
) -> "Figure":
    """The most likely next token in a grid of layers (rows, the last on top) and tokens of the text
    (columns).

    probs, predicted: (layers, T), the probability and the ID of the most likely token.    names:
    labels of these IDs.
    ids, tokens: the text.
    """
    count = len(ids)
    columns = range(max(0, start), min(count, start + most))
    if not columns:
        raise ValueError(
            f"the text has {count} tokens: start must be 0 to {count - 1}, and most 1 or more"
        )
    figure = new_figure(1.6 + 0.85 * max(len(columns), 6), 1.5 + 0.34 * len(layers))
    from matplotlib.patches import Rectangle

    axes = figure.subplots()
    shares = probs[:, columns.start : columns.stop].numpy()
    image = axes.imshow(shares, cmap=colormap(), vmin=0, vmax=1, aspect="auto", origin="lower")
    following = ids[columns.start + 1 :]
    for row, best in enumerate(predicted[:, columns.start : columns.stop].tolist()):
        for column, id in enumerate(best):
            correct = column < len(following) and following[column] == id
            axes.text(
                column,
                row,
                names[id],
                ha="center",
                va="center",
                fontsize=8,
                family="monospace",
                color="white" if shares[row, column] > 0.5 else INK,
                fontweight="bold" if correct else "normal",
            )
            if correct:
                corner = column - 0.47, row - 0.45
                axes.add_patch(
                    Rectangle(
                        corner, 0.94, 0.9, fill=False, edgecolor=VERMILLION, linewidth=1.4, zorder=3
                    )
                )
    axes.set_xticks(range(len(columns)), tokens[columns.start : columns.stop], family="monospace")
    axes.set_yticks(
        range(len(layers)), ["embeddings" if number == 0 else str(number) for number in layers]
    )
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_ylabel("layer")
    part = (
        ""
        if len(columns) == count
        else f" (tokens {columns.start + 1} to {columns.stop} of {count})"
    )
    axes.set_xlabel(
        f"token of the text{part}" + ("; framed: the actual next token" if axes.patches else "")
    )
    finish(figure, image, axes, "Next token predicted by each layer", "probability")
    return save(figure, path)


def plot_confusion(
    counts: "NDArray[np.float64]", categories: Sequence[object], title: str, path: Picture
) -> "Figure":
    """The confusion matrix of two raters: counts (first, second), shaded by their share of the row."""
    size = len(categories)
    totals = counts.sum(axis=1, keepdims=True)
    shares = counts / totals.clip(min=1)
    figure = new_figure(2.6 + 0.8 * size, 1.8 + 0.6 * size)
    axes = figure.subplots()
    image = heat_map(axes, shares)
    for row, values in enumerate(counts.tolist()):
        for column, count in enumerate(values):
            color = "white" if shares[row, column] > 0.5 else INK
            axes.text(column, row, f"{count:.0f}", ha="center", va="center", color=color)
    names = [token_label(str(name)) for name in categories]
    axes.set_xticks(range(size), names, rotation=90 if max(map(len, names)) > 6 else 0)
    axes.set_yticks(range(size), names)
    axes.tick_params(length=0)
    axes.set_ylabel("first rater")
    axes.set_xlabel("second rater")
    finish(figure, image, axes, title, "share of the row")
    return save(figure, path)


def plot_estimates(series: Mapping[str, Columns], confidence: float, path: Picture) -> "Figure":
    """Estimates with intervals next to each other. series: columns term, estimate, lower and upper,
    by their label.
    """
    terms = next(iter(series.values()))["term"]
    figure = new_figure(6.5, 1.6 + 0.7 * len(terms))
    axes = figure.subplots()
    for number, (label, columns) in enumerate(series.items()):
        rows = [row + (number - (len(series) - 1) / 2) * 0.25 for row in range(len(terms))]
        lengths = [columns["estimate"] - columns["lower"], columns["upper"] - columns["estimate"]]
        color = (BLUE, VERMILLION)[number]
        axes.errorbar(
            columns["estimate"], rows, xerr=lengths, fmt="o", color=color, capsize=3, label=label
        )
    axes.axvline(0, color=GREY, linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(terms)), [token_label(term) for term in terms])
    axes.set_ylim(len(terms) - 0.5, -0.5)
    axes.set_xlabel(f"estimate with {confidence:.0%} interval")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper right", frameon=False, fontsize=9, ncols=2)
    return save(figure, path)


def plot_reliability(curve: Columns, path: Picture) -> "Figure":
    """Reliability diagrams, one panel per type of question: the share of right answers by the mean
    probability of a bin. A point's area is the number of answers.
    """
    types = list(dict.fromkeys(curve["type"]))
    figure = new_figure(1.2 + 3.2 * len(types), 3.8)
    panels = figure.subplots(1, len(types), squeeze=False)[0]
    rows = list(zip(*(curve[k] for k in ("type", "when", "prob", "correct", "n")), strict=True))
    for axes, kind in zip(panels, types, strict=True):
        axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle="--")
        for when, color in (("before", VERMILLION), ("after", BLUE)):
            points = [row for row in rows if row[:2] == (kind, when)]
            total = sum(point[4] for point in points)
            x, y = [point[2] for point in points], [point[3] for point in points]
            axes.plot(x, y, color=color, linewidth=1, label=when)
            axes.scatter(x, y, [20 + 160 * point[4] / total for point in points], color=color)
        axes.set_title(kind, fontsize=10)
        axes.set_xlim(0, 1.03)
        axes.set_ylim(-0.03, 1.03)
        axes.set_xlabel("probability of the answer")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("share of right answers")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", frameon=False, fontsize=9, ncols=2)
    return save(figure, path)


def plot_accuracy(accuracy: Mapping[str, object], path: Picture) -> "Figure":
    """The accuracy of each phenomenon with its interval, from the largest. The last row has all
    pairs.
    """
    rows = list(
        zip(
            *(accuracy[name] for name in ("phenomenon", "n", "accuracy", "lower", "upper")),
            strict=True,
        )
    )
    total = rows.pop() if len(rows) > 1 else None
    rows = sorted((row for row in rows if row[1]), key=lambda row: -row[2]) + (
        [total] if total else []
    )
    if not rows:
        raise ValueError("no pair has a result: check the sentences")
    longest = max(len(row[0]) for row in rows)
    figure = new_figure(4.5 + 0.07 * min(longest, 60), 1.4 + 0.24 * len(rows))
    axes = figure.subplots()
    axes.axvline(0.5, color=GREY, linewidth=0.8, linestyle="--")
    for y, (_, _, share, lower, upper) in enumerate(rows):
        color = VERMILLION if total and y == len(rows) - 1 else BLUE
        axes.errorbar(
            [share],
            [y],
            xerr=[[max(share - lower, 0)], [max(upper - share, 0)]],
            fmt="o",
            color=color,
            capsize=3,
        )
    names = [
        f"{printable(name) if len(name) <= 60 else name[:59] + '…'} ({n:,})" for name, n, *_ in rows
    ]
    axes.set_yticks(range(len(rows)), [name.replace("$", r"\$") for name in names])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(-0.02, 1.02)
    axes.set_xlabel("accuracy with 95 % interval (dashed: chance)")
    axes.grid(axis="x", color="#e6e8eb", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return save(figure, path)


def plot_surprisal(texts: Sequence[Sequence[tuple[str, float | None]]], path: Picture) -> "Figure":
    """The surprisal (bits) of each word of texts, in lines of at most WORDS_PER_LINE words; None
    for no value.
    """
    lines = [
        text[start : start + WORDS_PER_LINE]
        for text in texts
        for start in range(0, len(text), WORDS_PER_LINE)
    ]
    drawn, total = lines[:MAX_LINES], sum(map(len, texts))
    if not any(value is not None for line in drawn for _, value in line):
        raise ValueError("no word has a surprisal: give texts of two or more words")
    width = max(map(len, drawn))
    figure = new_figure(2.0 + 0.36 * max(width, 8), 0.8 + 1.7 * len(drawn))
    for axes, line in zip(
        figure.subplots(len(drawn), sharey=True, squeeze=False)[:, 0], drawn, strict=True
    ):
        axes.bar(range(len(line)), [value or 0 for _, value in line], width=0.7, color=BLUE)
        axes.set_xticks(
            range(len(line)), [token_label(word) for word, _ in line], rotation=45, ha="right"
        )
        axes.set_xlim(-0.6, width - 0.4)
        axes.tick_params(axis="x", length=0)
        axes.spines[["top", "right"]].set_visible(False)
    count = sum(map(len, drawn))
    figure.supylabel("surprisal (bits)", fontsize=10)
    if count < total:
        figure.supxlabel(f"the first {count:,} of {total:,} words", fontsize=9, color=GREY)
    return save(figure, path)


TITLES = {
    "resid": "Residual stream",
    "attn": "Attention",
    "mlp": "MLP",
    "heads": "Heads, all positions",
}


def plot_patching(
    effects: "Mapping[str, NDArray[np.float32]]", tokens: Sequence[str], path: Picture
) -> "Figure":
    """Heat maps of effects: layers (rows, the first at the bottom), and positions or heads
    (columns).

    effects: arrays (layers, T), or for "heads" (layers, heads), by kind.    tokens: labels of the
    positions.
    """
    from matplotlib.colors import LinearSegmentedColormap

    count = max(values.shape[1] for values in effects.values())
    width = max(4.0, 0.28 * min(count, LABELLED_SINGLE))
    figure = new_figure(width * len(effects) + 1.4, 2.6 + 0.28 * max(map(len, effects.values())))
    grid = figure.subplots(1, len(effects), squeeze=False)
    colors = LinearSegmentedColormap.from_list("effects", [VERMILLION, "white", BLUE])
    for axes, (kind, values) in zip(grid.flat, effects.items(), strict=True):
        image = axes.imshow(values, cmap=colors, vmin=-1, vmax=1, aspect="auto", origin="lower")
        axes.set_title(TITLES[kind], fontsize=10)
        first = kind != "resid"
        names = [
            str(number + first) if number + first else "embeddings" for number in range(len(values))
        ]
        axes.set_yticks(range(len(names)), names)
        axes.set_ylabel("layer")
        if kind == "heads":
            axes.set_xticks(
                range(values.shape[1]), [str(head + 1) for head in range(values.shape[1])]
            )
            axes.set_xlabel("head")
        elif len(tokens) <= LABELLED_SINGLE:
            axes.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=8, family="monospace")
            axes.set_xlabel("token, clean → corrupted")
        else:
            axes.set_xlabel("position")
        axes.tick_params(length=0)
        axes.spines[:].set_color("#d8dade")
    finish(figure, image, grid, "Activation patching", "0: corrupted run, 1: clean run")
    return save(figure, path)


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure; sizes in inches. ValueError: matplotlib is not installed."""
    require("plot")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.get_layout_engine().set(h_pad=0.1)  # type: ignore[union-attr, call-arg]  # keeps labels off the edge
    FigureCanvasAgg(figure)
    return figure


def save(figure: "Figure", path: Picture) -> "Figure":
    """Write the figure to `path`, unless it is None."""
    if path is not None:
        figure.savefig(path, dpi=160, facecolor="white")
    return figure


def colormap() -> "Colormap":
    """From white to blue."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("blue", ["white", BLUE])


def listed(numbers: Sequence[int]) -> str:
    """A range or an enumeration: "1 to 4", or "4, 8 or 12"."""
    if len(numbers) > 2 and [*numbers] == [*range(numbers[0], numbers[-1] + 1)]:
        return f"{numbers[0]} to {numbers[-1]}"
    return " or ".join(filter(None, (", ".join(map(str, numbers[:-1])), str(numbers[-1]))))


def token_labels(tokens: Iterable[str | None], ids: Iterable[int]) -> list[str]:
    """The labels of a text's tokens."""
    return [token_label(token, id) for token, id in zip(tokens, ids, strict=True)]


def token_label(token: str | None, id: int = 0) -> str:
    """A token with visible white space, shortened to MAX_LABEL characters; its ID if the string is
    unknown.
    """
    if token is None:
        return f"#{id}"
    label = printable(token.replace(" ", "·")).replace("$", r"\$") or '""'
    return label if len(label) <= MAX_LABEL else label[: MAX_LABEL - 1] + "…"
