"""Plot of a benchmark result: decoding speed with the limit set by memory bandwidth, time by
position, and batches.
"""

from collections.abc import Mapping
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, cast

from peers import BITS, Result, Row
from peers.tables import OURS, best_peers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {
    "minhub_py": "#1f6f8b",
    "transformers": "#e0a030",
    "CTranslate2": "#8c8c94",
    "llama.cpp": "#7a9a3c",
    "OpenVINO": "#8a5fa8",
}
SHADES = {32: 1.0, 16: 0.75, 8: 0.5, 4: 0.35}  # by bits
PANELS = ("decode", "positions", "batch")
INK, GREY = "#30343b", "#70757d"


def drawable(cases: Mapping[str, Row]) -> list[str]:
    """The measured cases that have a panel in the plot."""
    return [name for name in PANELS if cases.get(name, {}).get("rows")]


def draw(result: Result, path: Path, caption: str) -> None:
    """Write the plot. ValueError: none of its cases was measured.    OSError: the file cannot be
    written.
    """
    names = drawable(result["cases"])
    if not names:
        raise ValueError(f"there is nothing to plot: --plot shows the cases {', '.join(PANELS)}")

    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    style: Any = {
        "font.size": 9,
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with mpl.rc_context(style):
        small = [name for name in names if name != "decode"]
        rows = len(result["cases"]["decode"]["rows"]) if "decode" in names else 0
        heights = [1.3 + 0.32 * rows] * bool(rows) + [3.4] * bool(small)
        figure = Figure(
            figsize=(10, 0.3 + sum(heights)), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
        )
        FigureCanvasAgg(figure)
        both = bool(rows and small)
        upper, lower = (
            cast(Any, figure.subfigures(2, 1, height_ratios=heights)) if both else (figure, figure)
        )
        if rows:
            bars(upper.subplots(), result["cases"]["decode"])
        if small:
            panels = lower.subplots(1, len(small), squeeze=False)[0]
            for axes, name in zip(panels, small, strict=True):
                lines(axes, name, result["cases"][name])
        figure.supxlabel(fill(caption, 150), fontsize=7.5, color=GREY, x=0.5)

        figure.savefig(path, dpi=160, facecolor="white")


def colour(runner: str) -> tuple[float, ...]:
    """A library's color, paler for fewer bits."""
    from matplotlib.colors import to_rgb

    library, _, weights = runner.rpartition(" ")
    shade = SHADES.get(BITS.get(weights, 32), 1.0)
    return tuple(1 - shade * (1 - part) for part in to_rgb(COLOURS.get(library, "#b05a6a")))


def bars(axes: "Axes", case: Row) -> None:
    """Plot tokens per second of each runner, and the limit set by memory bandwidth."""
    rows = case["rows"]
    speeds = [row["tokens_per_second"] for row in rows]
    axes.barh(range(len(rows)), speeds, height=0.66, color=[colour(row["runner"]) for row in rows])
    # Small weights stay in the CPU's caches, where this limit does not apply: it would be far
    # outside the plot.
    limits = {position: row["limit_tokens_per_second"] for position, row in enumerate(rows)}
    limits = {position: limit for position, limit in limits.items() if limit < 3 * max(speeds)}
    positions = list(limits)
    limit_label = f"limit of memory at {case['values']['limit_gigabytes_per_second']:.0f} GB/s"
    axes.vlines(
        list(limits.values()),
        [at - 0.4 for at in positions],
        [at + 0.4 for at in positions],
        color="#c0392b",
        linewidth=1.8,
        label=limit_label,
    )
    # The numbers have their own columns, clear of bars and limits.
    column: dict[str, Any] = {
        "transform": axes.get_yaxis_transform(),
        "ha": "right",
        "va": "center",
        "fontsize": 8.5,
    }
    for x, heading in ((1.08, "tokens/s"), (1.21, "× transformers")):
        axes.text(x, -0.85, heading, color=GREY, **{**column, "fontsize": 7.5})
    for position, row in enumerate(rows):
        axes.text(1.08, position, f"{row['tokens_per_second']:,.1f}", **column)
        axes.text(1.21, position, f"{row['ratio']:.2f}" if row["ratio"] else "–", **column)
    axes.set_yticks(range(len(rows)), [row["runner"] for row in rows])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.03 * max([*speeds, *limits.values()]))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("tokens per second")
    axes.set_title(case["title"], loc="left", fontweight="bold", fontsize=10)
    if limits:
        axes.legend(loc="upper right", bbox_to_anchor=(1, -0.07), frameon=False)


def lines(axes: "Axes", name: str, case: Row) -> None:
    """Plot a line over the points of the case for each of our runners, and for peers that are the
    best somewhere.
    """
    points = case["values"]["points"]
    best = {
        peer
        for results in best_peers(case["rows"], lambda row: row["values"])
        for peer, _ in results
    }
    rows = [
        row for row in case["rows"] if row["runner"].startswith(f"{OURS} ") or row["runner"] in best
    ]
    key = {"positions": "values", "batch": "tokens_per_second"}[name]
    for row in rows:
        axes.plot(
            points,
            row[key],
            marker="o",
            markersize=4,
            linewidth=1.8,
            color=colour(row["runner"]),
            # the same weights, computed with in another way
            linestyle="--" if "-" in row["runner"] else "-",
            label=row["runner"],
        )
    if name == "batch":
        axes.set_xscale("log", base=2)
    axes.set_xticks(points, [f"{point:,}" for point in points])
    axes.minorticks_off()
    axes.set_ylim(0, 1.06 * max(max(row[key]) for row in rows))
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.grid(axis="y", color="#e6e8eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel({"positions": "position in the text", "batch": "prompts at once"}[name])
    axes.set_title(
        {"positions": "Milliseconds per token", "batch": "Tokens per second"}[name],
        loc="left",
        fontweight="bold",
        fontsize=10,
    )
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=3, frameon=False, fontsize=7.5
    )
