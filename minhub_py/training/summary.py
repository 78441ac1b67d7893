"""Summary, model card and loss curves of a run, and comparison of several runs."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from minhub_py.checkpoints.storage import Checkpoint
from minhub_py.inference.quantize import count
from minhub_py.models.skeleton import skeleton
from minhub_py.pretrained import describe
from minhub_py.registry import ENTRIES, entry_of
from minhub_py.system.spelling import option
from minhub_py.training.checkpoint import COLUMNS, LossRow, RunFolder
from minhub_py.training.data import Corpus
from minhub_py.training.recovery import check_best, rescued
from minhub_py.training.settings import Change, Settings, parts, read_settings

MARKERS = "osD^vP"
STYLES = ("-", (0, (4, 2)), (0, (4, 2, 1, 2)))  # of held-out losses
COLOURS = ("#1f6f8b", "#e0a030", "#b05a6a", "#5b8c5a", "#7a5c99", "#8c8c94")
INK, GREY = "#30343b", "#70757d"


@dataclass(frozen=True)
class Summary:
    """Summary of a run. Losses are those of the best model on the held-out text."""

    name: str
    folder: str
    family: str
    parameters: int
    vocab_size: int
    tokenizer: str
    steps: int
    best_step: int
    nats_per_token: float
    tokens_per_character: float
    tokens_per_second: float
    seconds: float
    rows: list[LossRow]
    settings: Settings
    history: list[Change]  # changes of the settings
    texts: list[str]

    @property
    def nats_per_character(self) -> float:
        """Loss per character, which can be compared between models with different tokenizers."""
        return self.nats_per_token * self.tokens_per_character

    def to_json(self) -> dict[str, object]:
        """The summary as a JSON object."""
        rows = [{name: None if math.isnan(row[name]) else row[name] for name in COLUMNS} for row in self.rows]
        return {**asdict(self), "nats_per_character": self.nats_per_character, "rows": rows}


def read(path: Path) -> Summary:
    """Summarize a run's folder.

    FileNotFoundError: the folder holds no run.    ValueError: it is damaged, or has no evaluation yet.
    """
    folder = RunFolder(path)
    with rescued(folder):
        folder.check()
        best, rows = folder.best_row(), folder.read_rows()
        settings, history = read_settings(folder.settings)
        check_best(folder)
        corpus = Corpus.read(folder.tokens)
    checkpoint = Checkpoint(path)
    speeds = sorted(row["tokens_per_second"] for row in rows[1:]) or [0.0]
    config = checkpoint.config or {}
    return Summary(
        name=path.resolve().name,
        folder=str(path),
        family=entry_of(config.get("model_type")).name,
        parameters=count(skeleton(*describe(checkpoint))),  # the file may have more: a table that is not learnt
        vocab_size=config["vocab_size"],
        tokenizer=settings.tokenizer or "",
        steps=rows[-1]["step"],
        best_step=best["step"],
        nats_per_token=best["held_out_loss"],
        tokens_per_character=corpus.held_out.count / max(corpus.characters, 1),
        tokens_per_second=speeds[len(speeds) // 2],
        seconds=rows[-1]["seconds"],
        rows=rows,
        settings=settings,
        history=history,
        texts=corpus.texts,
    )


def commands(summary: Summary, out: str) -> list[str]:
    """The shell commands that reproduce a run: the first one, and one for each change of its settings.

    A comment says where the run has to be stopped by hand in between.
    """
    lines: list[str] = []
    before: dict[str, object] = {
        item.name: item.default if item.default is not MISSING else {} for item in fields(Settings)
    }
    for settings, end in parts(summary.settings, summary.history):
        words = ["minhub", "train", *(["--resume", out] if lines else [*summary.texts, "--out", out])]
        now = {item.name: getattr(settings, item.name) for item in fields(settings)}
        changed = {name: value for name, value in now.items() if value != before[name]}
        for name, value in changed.items():
            words += option(name, value) if value is not None else []
        remarks = [f"without {' '.join(option(name))}" for name, value in changed.items() if value is None]
        remarks += [f"stopped after step {end:,}"] if end is not None and end < settings.steps else []
        lines.append(shlex.join(words) + (f"  # {', '.join(remarks)}" if remarks else ""))
        before = now
    return lines


def card(summary: Summary) -> str:
    """The model card, in Markdown."""
    settings = summary.settings
    tokenizer = {"characters": "one id per character", "bpe": "a byte-level BPE trained on the text"}.get(
        summary.tokenizer, f"the tokenizer of {summary.tokenizer}"
    )
    origin = f"Fine-tuned from {settings.start}." if settings.start else "Trained from random weights."
    per_character = f", {summary.nats_per_character:.4f} per character" if summary.tokenizer != "characters" else ""
    size = f"{summary.parameters:,} parameters, float32; {tokenizer} ({summary.vocab_size:,})"
    step = f"at step {summary.best_step:,} of {summary.steps:,}"
    steps = "\n".join(commands(summary, summary.name))
    rows = f"in rows of {settings.context}, {settings.batch} a step; {settings.dtype} products"
    return f"""# {summary.name}

{family_title(summary.family)}, {size}. {origin}

| | |
| --- | --- |
| held-out loss | {summary.nats_per_token:.4f} nats per token{per_character}, {step} |
| held out | the last {100 * settings.held_out:g} % of the text, also used to choose the step |
| trained on | {summary.rows[-1]["tokens"]:,} tokens, {rows} |
| training time | {duration(summary.seconds)} at {summary.tokens_per_second:,.0f} tokens/s |

```
{steps}
```

![losses](losses.png)
"""


def family_title(name: str) -> str:
    """The name of a family, or of one of its kin, as it is written in text."""
    if name not in ENTRIES:
        return name
    family = ENTRIES[name].architecture
    return family.title if name == family.name else name.title()


def duration(seconds: float) -> str:
    """A readable duration: 2 h 05 min, 3 min 20 s, 12 s."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def about(seconds: float) -> str:
    """An estimated duration in one unit: 40 s, 38 min, 12 h."""
    if seconds < 100:
        return f"{max(round(seconds), 1)} s"
    return f"{round(seconds / 60)} min" if seconds < 6000 else f"{round(seconds / 3600):,} h"


def middles(steps: Sequence[float]) -> list[float]:
    """The middle of the steps over which each row's training loss is averaged."""
    return [(before + step) / 2 for before, step in zip([steps[0], *steps], steps, strict=False)]


def draw(runs: Sequence[Summary], path: Path, *, per_character: bool = False) -> None:
    """Draw the losses of runs over their steps: held-out loss as a line with markers, training loss thin and dotted.

    Equal curves stay visible: line styles differ, and the markers and dots of several runs are at different steps.

    ModuleNotFoundError: matplotlib is missing.    OSError: the file cannot be written.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style: Any = {"font.size": 9, "axes.edgecolor": INK, "axes.labelcolor": INK, "text.color": INK, "xtick.color": INK,
             "ytick.color": INK, "axes.spines.top": False, "axes.spines.right": False}  # fmt: skip
    with mpl.rc_context(style):
        figure = Figure(figsize=(7.2, 4.2), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        low, high = math.inf, -math.inf
        points = []  # (step, loss, colour) of the best models
        for number, run in enumerate(runs):
            colour = COLOURS[number % len(COLOURS)]
            scale = run.tokens_per_character if per_character else 1.0
            steps = [row["step"] for row in run.rows]
            held_out = [row["held_out_loss"] * scale for row in run.rows]
            train = [row["train_loss"] * scale for row in run.rows]
            between = middles(steps)  # a mean over several steps is drawn in the middle of them
            # Matplotlib would read $ as mathematics. The label's prefix matters: names with a leading "_" are hidden.
            name = run.name.replace("$", r"\$")
            best = run.nats_per_token * scale
            points.append((run.best_step, best, colour))
            several = len(runs) > 1
            every = max(1, len(steps) // 12) * len(runs)
            axes.plot(steps, held_out, color=colour, linewidth=1.8, linestyle=STYLES[number % len(STYLES)],
                      marker=MARKERS[number % len(MARKERS)] if several else "", markersize=6, markeredgecolor="white",
                      markevery=(number * every // len(runs) % len(steps), every),
                      label=f"held out: {name}" + (f", best {best:.3f}" if several else ""))  # fmt: skip
            dots = (2 * number, (1, 2 * min(len(runs), 4) - 1))
            axes.plot(between, train, color=colour, linewidth=1, linestyle=dots, label=f"training: {name}")
            # The losses of the first tenth are high and would squeeze all others.
            seen = held_out[max(1, len(held_out) // 10) :] + train[max(1, len(train) // 10) :] or held_out
            low, high = min(low, *seen, best), max(high, *seen, best)
        room = max(high - low, 0.05)
        axes.set_ylim(low - 0.1 * room, high + 0.1 * room)
        for number, (step, best, colour) in enumerate(points):  # equal ones are rings around each other
            axes.plot([step], [best], "o", color=colour, markersize=min(12, 3 + 2.5 * (len(points) - number)), zorder=3)
        if len(points) == 1:
            axes.annotate(f"{best:.3f}", (step, best), (0, 7), textcoords="offset points", color=colour, ha="center",
                          fontsize=8)  # fmt: skip
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.grid(axis="y", color="#e6e8eb", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.set_xlabel("step")
        axes.set_ylabel(f"loss, nats per {'character' if per_character else 'token'}")
        axes.legend(frameon=False, fontsize=8, loc="upper right")
        partial = path.with_name(f".{path.name}.partial")
        try:
            figure.savefig(partial, dpi=150, facecolor="white", format="png")
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
