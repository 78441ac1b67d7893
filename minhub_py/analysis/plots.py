"""Plots of attention weights and of the predictions of layers: matplotlib figures."""

import math
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from minhub_py.system.printable import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

    from minhub_py.analysis.inside import AttentionWeights, LayerPredictions

INK, GREY, BLUE, VERMILLION = "#30343b", "#70757d", "#0072B2", "#D55E00"  # the last two as in the R package
MANY_TOKENS = 60  # labels of a single head; more would be too small to read
MANY_PANEL_TOKENS = 28  # labels of one head among several
MANY_PANELS = 144  # heads of all layers; more are shown as means
LONGEST = 14  # characters of a token


def draw_attention(
    found: "AttentionWeights", path: str | os.PathLike[str] | None, layer: int | None, head: int | None
) -> "Figure":
    """Heat maps of attention weights, with a row for each query token and a column for each key token.

    One head, the heads of one layer, or one head of each layer have their tokens on both axes. All heads of all layers
    are small panels; if they are more than MANY_PANELS, the mean of each layer's heads is shown instead.
    """
    layers, heads = found.layers, list(range(1, found.weights.size(1) + 1))
    if layer is not None and layer not in layers:
        raise ValueError(f"layer must be {listed(layers)}, not {layer!r}: these attend")
    if head is not None and head not in heads:
        raise ValueError(f"head must be {listed(heads)}, not {head!r}")
    title = "Attention" + (f", layer {layer}" if layer else "") + (f", head {head}" if head else "")
    every = layer is None and head is None and len(layers) > 1 and len(heads) > 1
    if every and len(layers) * len(heads) <= MANY_PANELS:
        return written(draw_thumbnails(found, title), path)
    if every:
        title += f", mean of {len(heads)} heads (layer=, head= select one)"
        panels = [(f"layer {name}", weights.mean(0)) for name, weights in zip(layers, found.weights, strict=True)]
    else:
        panels = [
            (f"head {column}" if layer is not None else f"layer {row}", found.weights[layers.index(row), column - 1])
            for row in (layers if layer is None else [layer])
            for column in (heads if head is None else [head])
        ]
    return written(draw_panels(found, panels, title), path)


def draw_panels(found: "AttentionWeights", panels: list[tuple[str, "Tensor"]], title: str) -> "Figure":
    """A grid of panels, each with its name. Tokens are at the left and lower edges of the grid."""
    count, alone = len(found.ids), len(panels) == 1
    labelled = count <= (MANY_TOKENS if alone else MANY_PANEL_TOKENS)
    wide = math.ceil(math.sqrt(1.3 * len(panels)))  # wider than high
    wide = math.ceil(len(panels) / math.ceil(len(panels) / wide))  # full rows
    tall = math.ceil(len(panels) / wide)
    size = max(4.5 if alone else 1.8, (0.28 if alone else 0.12) * count) if labelled else 5.5 if alone else 2.2
    figure = new_figure(size * wide + 2, size * tall + 1.6)
    grid = figure.subplots(tall, wide, squeeze=False)
    for number, axes in enumerate(grid.flat):
        if number >= len(panels):
            axes.set_axis_off()
            continue
        name, weights = panels[number]
        image = heat_map(axes, weights.numpy())
        left, lowest = number % wide == 0, number + wide >= len(panels)
        if not alone:
            axes.set_title(name, fontsize=9)
        if labelled:
            label_tokens(axes, found, left, lowest, size=9 if alone else 7)
        elif not alone:
            axes.set_xticks([])
            axes.set_yticks([])
        if left:
            axes.set_ylabel("query" if not alone else "query: token" if labelled else "query: position")
        if lowest:
            axes.set_xlabel(
                "key" if not alone else "key: token attended to" if labelled else "key: position attended to"
            )
    finish(figure, image, grid, title)
    return figure


def draw_thumbnails(found: "AttentionWeights", title: str) -> "Figure":
    """A small panel for each head (columns) of each layer (rows)."""
    tall, wide = found.weights.shape[:2]
    figure = new_figure(0.9 * wide + 1.8, 0.9 * tall + 1.2)
    grid = figure.subplots(tall, wide, squeeze=False)
    for row, panels in enumerate(grid):
        for column, axes in enumerate(panels):
            image = heat_map(axes, found.weights[row, column].numpy())
            axes.set_xticks([])
            axes.set_yticks([])
            if row == 0:
                axes.set_title(f"head {column + 1}" if column == 0 else str(column + 1), fontsize=9)
            if column == 0:
                axes.set_ylabel(f"layer {found.layers[row]}" if row == 0 else str(found.layers[row]), fontsize=9)
    figure.supxlabel("each panel: queries from top to bottom, keys from left to right", fontsize=9, color=GREY)
    finish(figure, image, grid, title)
    return figure


def finish(figure: "Figure", image: Any, grid: Any, title: str) -> None:
    """Scale and title."""
    bar = figure.colorbar(image, ax=grid, shrink=0.6, aspect=30, pad=0.02)
    bar.outline.set_visible(False)  # type: ignore[operator]
    bar.set_label("attention weight")
    figure.suptitle(title, x=0.02, ha="left", fontweight="bold", fontsize=11)


def heat_map(axes: "Axes", weights: Any) -> Any:
    """Weights of each query (rows) for each key (columns). Keys that a causal model cannot see stay white."""
    axes.spines[:].set_color("#d8dade")
    return axes.imshow(weights, cmap=shades(), vmin=0, vmax=1, interpolation="nearest")


def label_tokens(axes: "Axes", found: "AttentionWeights", left: bool, lowest: bool, size: float) -> None:
    """Tokens at the left and at the lower edge of a panel. size: of the font, in points."""
    names = [readable(token, id) for token, id in zip(found.tokens, found.ids, strict=True)]
    places = range(len(names))
    axes.set_yticks(places if left else [], names if left else [], fontsize=size, family="monospace")
    axes.set_xticks(places if lowest else [], names if lowest else [], fontsize=size, family="monospace")
    axes.tick_params("x", rotation=90 if max(map(len, names)) > 2 else 0)
    axes.tick_params(length=0)


def draw_layers(found: "LayerPredictions", path: str | os.PathLike[str] | None, start: int, most: int) -> "Figure":
    """A row for each layer, the last on top; a column for each token; in each cell the likeliest next token."""
    count = len(found.ids)
    shown = range(max(0, start), min(count, start + most))
    if not shown:
        raise ValueError(f"the text has {count} tokens: start must be 0 to {count - 1}, and most 1 or more")
    figure = new_figure(1.6 + 0.85 * max(len(shown), 6), 1.5 + 0.34 * len(found.layers))
    axes = figure.subplots()
    probs = found.probs[:, shown.start : shown.stop, 0].numpy()
    image = axes.imshow(probs, cmap=shades(), vmin=0, vmax=1, aspect="auto", origin="lower")
    framed = False
    for row, ids in enumerate(found.predicted[:, shown.start : shown.stop, 0].tolist()):
        for column, id in enumerate(ids):
            after = shown.start + column + 1
            right = after < count and found.ids[after] == id
            axes.text(
                column, row, readable(found.names[id], id), ha="center", va="center", fontsize=8, family="monospace",
                color="white" if probs[row, column] > 0.5 else INK, fontweight="bold" if right else "normal",
            )  # fmt: skip
            if right:
                box = {"fill": False, "edgecolor": VERMILLION, "linewidth": 1.4, "zorder": 3}
                axes.add_patch(patch(column, row, box))
                framed = True
    axes.set_xticks(range(len(shown)), [readable(found.tokens[i], found.ids[i]) for i in shown], family="monospace")
    names = ["embeddings" if number == 0 else str(number) for number in found.layers]
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_ylabel("layer")
    part = "" if len(shown) == count else f" (tokens {shown.start + 1} to {shown.stop} of {count})"
    axes.set_xlabel(f"token of the text{part}" + ("; framed: the actual next token" if framed else ""))
    bar = figure.colorbar(image, ax=axes, shrink=0.8, aspect=30, pad=0.02)
    bar.outline.set_visible(False)  # type: ignore[operator]
    bar.set_label("probability")
    figure.suptitle("What each layer would predict next", x=0.02, ha="left", fontweight="bold", fontsize=11)
    return written(figure, path)


def patch(column: int, row: int, style: dict[str, Any]) -> Any:
    """A frame around a cell."""
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.47, row - 0.45), 0.94, 0.9, **style)


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure, in inches. ValueError: matplotlib is missing."""
    if find_spec("matplotlib") is None:
        raise ValueError("plots need matplotlib: pip install matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def written(figure: "Figure", path: str | os.PathLike[str] | None) -> "Figure":
    """The figure, which is written to `path` if there is one. OSError: it cannot be written."""
    if path is not None:
        figure.savefig(path, dpi=160, facecolor="white")
    return figure


def shades() -> Any:
    """From white to blue."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("blue", ["white", BLUE])


def listed(numbers: list[int]) -> str:
    """Numbers in words: 1 to 4, or 4, 8 or 12."""
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return " or ".join(filter(None, (", ".join(map(str, numbers[:-1])), str(numbers[-1]))))


def readable(token: str | None, id: int) -> str:
    """A token by itself, with visible signs for white space; its id if its text is not known."""
    if token is None:
        return f"#{id}"
    shown = printable(token.replace(" ", "·")).replace("$", r"\$") or '""'
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"
