"""Plots of attention weights and of the logit lens, as matplotlib figures."""

import math
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from minhub_py.system.printable import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

    from minhub_py.analysis.agreement import Agreement
    from minhub_py.analysis.attention import AttentionWeights
    from minhub_py.analysis.estimate import Estimates
    from minhub_py.analysis.lens import LayerPredictions
    from minhub_py.analysis.patching import Patching

INK, GREY, BLUE, VERMILLION = "#30343b", "#70757d", "#0072B2", "#D55E00"  # the last two as in the R package
# Tokens up to which axes are labelled, for a single panel and for a grid: more labels would be too small to read.
LABELLED_SINGLE, LABELLED_GRID = 60, 28
MAX_THUMBNAILS = 144  # heads of all layers; more are shown as means
MAX_LABEL = 14  # characters of a token


def plot_attention(
    attention: "AttentionWeights", path: str | os.PathLike[str] | None, layer: int | None, head: int | None
) -> "Figure":
    """Heat maps of attention weights, with a row for each query token and a column for each key token.

    One head, the heads of one layer, or one head of each layer are labelled with their tokens. All heads of all layers
    are thumbnails, or the mean of each layer's heads if there are more than MAX_THUMBNAILS.
    """
    layers, heads = attention.layers, list(range(1, attention.weights.size(1) + 1))
    if layer is not None and layer not in layers:
        raise ValueError(f"layer must be {listed(layers)}, not {layer!r}: other layers have no attention")
    if head is not None and head not in heads:
        raise ValueError(f"head must be {listed(heads)}, not {head!r}")
    title = "Attention" + (f", layer {layer}" if layer else "") + (f", head {head}" if head else "")
    if layer is None and head is None and len(layers) > 1 and len(heads) > 1:
        if len(layers) * len(heads) <= MAX_THUMBNAILS:
            return save(draw_thumbnails(attention, title), path)
        title += f", mean of {len(heads)} heads (layer=, head= select one)"
        panels = [
            (f"layer {number}", weights.mean(0)) for number, weights in zip(layers, attention.weights, strict=True)
        ]
    else:
        panels = [
            (
                f"head {column}" if layer is not None else f"layer {row}",
                attention.weights[layers.index(row), column - 1],
            )
            for row in (layers if layer is None else [layer])
            for column in (heads if head is None else [head])
        ]
    return save(draw_panels(attention, panels, title), path)


def draw_panels(attention: "AttentionWeights", panels: list[tuple[str, "Tensor"]], title: str) -> "Figure":
    """A grid of titled panels, with token labels at its left and bottom edges."""
    count, single = len(attention.ids), len(panels) == 1
    labelled = count <= (LABELLED_SINGLE if single else LABELLED_GRID)
    columns = math.ceil(math.sqrt(1.3 * len(panels)))  # a landscape format
    rows = math.ceil(len(panels) / columns)
    columns = math.ceil(len(panels) / rows)  # full rows
    size = max(4.5 if single else 1.8, (0.28 if single else 0.12) * count) if labelled else 5.5 if single else 2.2
    figure = new_figure(size * columns + 2, size * rows + 1.6)
    grid = figure.subplots(rows, columns, squeeze=False)
    for number, axes in enumerate(grid.flat):
        if number >= len(panels):
            axes.set_axis_off()
            continue
        name, weights = panels[number]
        image = heat_map(axes, weights.numpy())
        left, bottom = number % columns == 0, number + columns >= len(panels)
        if not single:
            axes.set_title(name, fontsize=9)
        if labelled:
            label_tokens(axes, attention, left, bottom, size=9 if single else 7)
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


def draw_thumbnails(attention: "AttentionWeights", title: str) -> "Figure":
    """A small panel for each head (columns) of each layer (rows)."""
    layers, heads = attention.weights.shape[:2]
    figure = new_figure(0.9 * heads + 1.8, 0.9 * layers + 1.2)
    grid = figure.subplots(layers, heads, squeeze=False)
    for row, panels in enumerate(grid):
        for column, axes in enumerate(panels):
            image = heat_map(axes, attention.weights[row, column].numpy())
            axes.set_xticks([])
            axes.set_yticks([])
            if row == 0:
                axes.set_title(f"head {column + 1}" if column == 0 else str(column + 1), fontsize=9)
            if column == 0:
                number = attention.layers[row]
                axes.set_ylabel(f"layer {number}" if row == 0 else str(number), fontsize=9)
    figure.supxlabel("each panel: queries from top to bottom, keys from left to right", fontsize=9, color=GREY)
    finish(figure, image, grid, title)
    return figure


def finish(figure: "Figure", image: Any, grid: Any, title: str, label: str = "attention weight") -> None:
    """Add a color bar and a title."""
    bar = figure.colorbar(image, ax=grid, shrink=0.6, aspect=30, pad=0.02)
    bar.outline.set_visible(False)  # type: ignore[operator]
    bar.set_label(label)
    figure.suptitle(title, x=0.02, ha="left", fontweight="bold", fontsize=11)


def heat_map(axes: "Axes", weights: Any) -> Any:
    """Draw the weights of each query (rows) for each key (columns); masked keys stay white."""
    axes.spines[:].set_color("#d8dade")
    return axes.imshow(weights, cmap=colormap(), vmin=0, vmax=1, interpolation="nearest")


def label_tokens(axes: "Axes", attention: "AttentionWeights", left: bool, bottom: bool, size: float) -> None:
    """Label the left and bottom edges of a panel with the tokens. size: font size in points."""
    labels = [token_label(token, id) for token, id in zip(attention.tokens, attention.ids, strict=True)]
    positions = range(len(labels))
    axes.set_yticks(positions if left else [], labels if left else [], fontsize=size, family="monospace")
    axes.set_xticks(positions if bottom else [], labels if bottom else [], fontsize=size, family="monospace")
    axes.tick_params("x", rotation=90 if max(map(len, labels)) > 2 else 0)
    axes.tick_params(length=0)


def plot_logit_lens(lens: "LayerPredictions", path: str | os.PathLike[str] | None, start: int, most: int) -> "Figure":
    """The most likely next token in a grid of layers (rows, the last on top) and tokens of the text (columns)."""
    count = len(lens.ids)
    columns = range(max(0, start), min(count, start + most))
    if not columns:
        raise ValueError(f"the text has {count} tokens: start must be 0 to {count - 1}, and most 1 or more")
    figure = new_figure(1.6 + 0.85 * max(len(columns), 6), 1.5 + 0.34 * len(lens.layers))
    from matplotlib.patches import Rectangle

    axes = figure.subplots()
    probs = lens.probs[:, columns.start : columns.stop, 0].numpy()
    image = axes.imshow(probs, cmap=colormap(), vmin=0, vmax=1, aspect="auto", origin="lower")
    following = lens.ids[columns.start + 1 :]
    for row, ids in enumerate(lens.predicted[:, columns.start : columns.stop, 0].tolist()):
        for column, id in enumerate(ids):
            correct = column < len(following) and following[column] == id
            axes.text(
                column, row, token_label(lens.names[id], id), ha="center", va="center", fontsize=8, family="monospace",
                color="white" if probs[row, column] > 0.5 else INK, fontweight="bold" if correct else "normal",
            )  # fmt: skip
            if correct:
                corner = column - 0.47, row - 0.45
                axes.add_patch(Rectangle(corner, 0.94, 0.9, fill=False, edgecolor=VERMILLION, linewidth=1.4, zorder=3))
    labels = [token_label(lens.tokens[i], lens.ids[i]) for i in columns]
    axes.set_xticks(range(len(labels)), labels, family="monospace")
    layers = ["embeddings" if number == 0 else str(number) for number in lens.layers]
    axes.set_yticks(range(len(layers)), layers)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_ylabel("layer")
    part = "" if len(columns) == count else f" (tokens {columns.start + 1} to {columns.stop} of {count})"
    axes.set_xlabel(f"token of the text{part}" + ("; framed: the actual next token" if axes.patches else ""))
    finish(figure, image, axes, "Next token predicted by each layer", "probability")
    return save(figure, path)


def plot_confusion(agreement: "Agreement", path: str | os.PathLike[str] | None) -> "Figure":
    """The confusion matrix: counts, shaded by their share of the row. ValueError: three or more raters."""
    if agreement.confusion is None:
        raise ValueError("a confusion matrix has two raters: call agreement() with two of them")
    counts, size = agreement.confusion, len(agreement.categories)
    totals = counts.sum(axis=1, keepdims=True)
    shares = counts / totals.clip(min=1)
    figure = new_figure(2.6 + 0.8 * size, 1.8 + 0.6 * size)
    axes = figure.subplots()
    image = heat_map(axes, shares)
    for row, values in enumerate(counts.tolist()):
        for column, count in enumerate(values):
            color = "white" if shares[row, column] > 0.5 else INK
            axes.text(column, row, f"{count:.0f}", ha="center", va="center", color=color)
    names = [token_label(str(name), 0) for name in agreement.categories]
    axes.set_xticks(range(size), names, rotation=90 if max(map(len, names)) > 6 else 0)
    axes.set_yticks(range(size), names)
    axes.tick_params(length=0)
    axes.set_ylabel("first rater")
    axes.set_xlabel("second rater")
    finish(figure, image, axes, f"Agreement {agreement.percent:.1%}, κ = {agreement.kappa:.2f}", "share of the row")
    return save(figure, path)


def plot_estimates(estimates: "Estimates", path: str | os.PathLike[str] | None) -> "Figure":
    """Estimates with intervals, beside those from the model's labels alone."""
    series = [(estimates, BLUE, f"corrected ({estimates.method})")]
    if estimates.naive is not None:
        series.append((estimates.naive, VERMILLION, "model's labels alone"))
    figure = new_figure(6.5, 1.6 + 0.7 * len(estimates.term))
    axes = figure.subplots()
    for number, (result, color, label) in enumerate(series):
        columns = result.columns
        rows = [row + (number - (len(series) - 1) / 2) * 0.25 for row in range(len(result.term))]
        lengths = [columns["estimate"] - columns["lower"], columns["upper"] - columns["estimate"]]
        axes.errorbar(columns["estimate"], rows, xerr=lengths, fmt="o", color=color, capsize=3, label=label)
    axes.axvline(0, color=GREY, linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(estimates.term)), [token_label(term, 0) for term in estimates.term])
    axes.set_ylim(len(estimates.term) - 0.5, -0.5)
    axes.set_xlabel(f"estimate with {estimates.confidence:.0%} interval")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper right", frameon=False, fontsize=9, ncols=2)
    return save(figure, path)


def plot_accuracy(accuracy: dict[str, Any], path: str | os.PathLike[str] | None) -> "Figure":
    """The accuracy of each phenomenon with its interval, from the largest. The last row is that of all pairs."""
    rows = list(zip(*(accuracy[name] for name in ("phenomenon", "n", "accuracy", "lower", "upper")), strict=True))
    total = rows.pop() if len(rows) > 1 else None
    rows = sorted((row for row in rows if row[1]), key=lambda row: -row[2]) + ([total] if total else [])
    if not rows:
        raise ValueError("no pair has a result: check the sentences")
    longest = max(len(row[0]) for row in rows)
    figure = new_figure(4.5 + 0.07 * min(longest, 60), 1.4 + 0.24 * len(rows))
    axes = figure.subplots()
    axes.axvline(0.5, color=GREY, linewidth=0.8, linestyle="--")
    for y, (_, _, share, lower, upper) in enumerate(rows):
        color = VERMILLION if total and y == len(rows) - 1 else BLUE
        axes.errorbar(
            [share], [y], xerr=[[max(share - lower, 0)], [max(upper - share, 0)]], fmt="o", color=color, capsize=3
        )
    names = [f"{printable(name) if len(name) <= 60 else name[:59] + '…'} ({n:,})" for name, n, *_ in rows]
    axes.set_yticks(range(len(rows)), [name.replace("$", r"\$") for name in names])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(-0.02, 1.02)
    axes.set_xlabel("accuracy with 95 % interval (dashed: chance)")
    axes.grid(axis="x", color="#e6e8eb", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return save(figure, path)


TITLES = {"resid": "Residual stream", "attn": "Attention", "mlp": "MLP", "heads": "Heads, all positions"}


def plot_patching(result: "Patching", path: str | os.PathLike[str] | None, kinds: list[str]) -> "Figure":
    """Heat maps of effects: layers (rows, the first at the bottom), and positions or heads (columns)."""
    from matplotlib.colors import LinearSegmentedColormap

    effects = {kind: result.effects(kind).numpy() for kind in kinds}
    count = max(values.shape[1] for values in effects.values())
    width = max(4.0, 0.28 * min(count, LABELLED_SINGLE))
    figure = new_figure(width * len(kinds) + 1.4, 2.6 + 0.28 * max(map(len, effects.values())))
    grid = figure.subplots(1, len(kinds), squeeze=False)
    colors = LinearSegmentedColormap.from_list("effects", [VERMILLION, "white", BLUE])
    labels = [
        token_label(token, position) + ("" if token == other else f" → {token_label(other, position)}")
        for position, (token, other) in enumerate(zip(result.tokens, result.corrupted_tokens, strict=True))
    ]
    for axes, (kind, values) in zip(grid.flat, effects.items(), strict=True):
        image = axes.imshow(values, cmap=colors, vmin=-1, vmax=1, aspect="auto", origin="lower")
        axes.set_title(TITLES[kind], fontsize=10)
        first = kind != "resid"
        names = [str(number + first) if number + first else "embeddings" for number in range(len(values))]
        axes.set_yticks(range(len(names)), names)
        axes.set_ylabel("layer")
        if kind == "heads":
            axes.set_xticks(range(values.shape[1]), [str(head + 1) for head in range(values.shape[1])])
            axes.set_xlabel("head")
        elif len(labels) <= LABELLED_SINGLE:
            axes.set_xticks(range(len(labels)), labels, rotation=90, fontsize=8, family="monospace")
            axes.set_xlabel("token, clean → corrupted")
        else:
            axes.set_xlabel("position")
        axes.tick_params(length=0)
        axes.spines[:].set_color("#d8dade")
    finish(figure, image, grid, "Activation patching", "0: corrupted run, 1: clean run")
    return save(figure, path)


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure; sizes in inches. ValueError: matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise ValueError("plots need matplotlib: pip install matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.get_layout_engine().set(h_pad=0.1)  # type: ignore[union-attr, call-arg]  # keeps labels off the edge
    FigureCanvasAgg(figure)
    return figure


def save(figure: "Figure", path: str | os.PathLike[str] | None) -> "Figure":
    """Write the figure to `path`, unless it is None."""
    if path is not None:
        figure.savefig(path, dpi=160, facecolor="white")
    return figure


def colormap() -> Any:
    """From white to blue."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("blue", ["white", BLUE])


def listed(numbers: list[int]) -> str:
    """A range or an enumeration: "1 to 4", or "4, 8 or 12"."""
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return " or ".join(filter(None, (", ".join(map(str, numbers[:-1])), str(numbers[-1]))))


def token_label(token: str | None, id: int) -> str:
    """A token with visible white space, shortened to MAX_LABEL characters; its ID if the string is unknown."""
    if token is None:
        return f"#{id}"
    label = printable(token.replace(" ", "·")).replace("$", r"\$") or '""'
    return label if len(label) <= MAX_LABEL else label[: MAX_LABEL - 1] + "…"
