"""Plots of attention and of what layers predict, for a slide: matplotlib figures."""

import math
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from minhub_py.printable import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from minhub_py.analysis.inside import AttentionWeights, LayerPredictions

INK, GREY, BLUE, VERMILLION = "#30343b", "#70757d", "#0072B2", "#D55E00"  # the last two as in the R package
MANY_TOKENS = 60  # beyond, labels would be too small to be read
LONGEST = 14  # characters of a token


def draw_attention(
    found: "AttentionWeights", path: str | os.PathLike[str] | None, layer: int | None, head: int | None
) -> "Figure":
    """A panel for each head of each layer, or for those that are chosen; a single one has its tokens."""
    names = found.layers
    if layer is not None and layer not in names:
        raise ValueError(f"layer must be {listed(names)}, not {layer!r}: these attend")
    heads = range(1, found.weights.size(1) + 1)
    if head is not None and head not in heads:
        raise ValueError(f"head must be {listed(list(heads))}, not {head!r}")
    rows = names if layer is None else [layer]
    columns = list(heads) if head is None else [head]
    # The heads of one layer fill a page that is wider than high.
    wide = len(columns) if len(rows) > 1 else -(-len(columns) // max(1, round(math.sqrt(len(columns) / 1.8))))
    panels = [(row, column) for row in rows for column in columns]
    tall = -(-len(panels) // wide)
    alone = len(panels) == 1
    labelled = len(found.ids) <= MANY_TOKENS
    each = max(4.5, 0.28 * len(found.ids) + 1.6) if alone and labelled else 5.5 if alone else max(0.7, 9 / max(wide, 4))
    figure = new_figure(each * wide + (1.2 if alone else 0.6), each * tall + 0.6)
    grid = figure.subplots(tall, wide, squeeze=False)
    image: Any = None
    for place, axes in enumerate(grid.flat):
        if place >= len(panels):
            axes.set_axis_off()
            continue
        row, column = panels[place]
        image = heat_map(axes, found.weights[names.index(row), column - 1].numpy())
        if alone and labelled:
            name_axes(axes, found)
        elif alone:
            axes.set_xlabel("attended to")
            axes.set_ylabel("token")
        else:
            axes.set_xticks([])
            axes.set_yticks([])
            if layer is not None:
                axes.set_title(f"head {column}", fontsize=8)
            elif place < wide:
                axes.set_title(f"head {column}" if place == 0 else str(column), fontsize=8)
            if layer is None and place % wide == 0:
                axes.set_ylabel(f"layer {row}" if place == 0 else str(row), fontsize=8)
    bar = figure.colorbar(image, ax=grid, shrink=0.6, aspect=30, pad=0.02)
    bar.outline.set_visible(False)  # type: ignore[operator]
    bar.set_label("attention weight")
    what = "Attention" + (f", layer {layer}" if layer else "") + (f", head {head}" if head else "")
    figure.suptitle(what, x=0.02, ha="left", fontweight="bold", fontsize=11)
    return written(figure, path)


def heat_map(axes: "Axes", weights: Any) -> Any:
    """Weights of each query (rows) for each key (columns). What a causal model cannot see stays white."""
    axes.spines[:].set_color("#d8dade")
    return axes.imshow(weights, cmap=shades(), vmin=0, vmax=1, interpolation="nearest")


def name_axes(axes: "Axes", found: "AttentionWeights") -> None:
    """The tokens on both axes."""
    names = [readable(token, id) for token, id in zip(found.tokens, found.ids, strict=True)]
    size = max(6.0, min(10.0, 300 / len(names)))
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=size, family="monospace")
    axes.set_yticks(range(len(names)), names, fontsize=size, family="monospace")
    axes.tick_params(length=0)
    axes.set_xlabel("attended to")
    axes.set_ylabel("token")


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
    axes.set_xticks(range(len(shown)), [readable(found.tokens[i], found.ids[i]) for i in shown], family="monospace")
    names = ["embeddings" if number == 0 else str(number) for number in found.layers]
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_ylabel("layer")
    part = "" if len(shown) == count else f" (tokens {shown.start + 1} to {shown.stop} of {count})"
    axes.set_xlabel(f"token of the text{part}; framed: what does come next")
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
