"""Summary, model card and loss curves of a run; the curves also compare several runs."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minhub_py.checkpoints.storage import open_tensors
from minhub_py.checkpoints.tokenizers.tokenizer import parse
from minhub_py.inference.quantize import count
from minhub_py.loading.adapters.files import WEIGHTS as ADAPTER_WEIGHTS
from minhub_py.loading.files import open_files
from minhub_py.loading.pretrained import read_config
from minhub_py.models.registry import ENTRIES, entry_of
from minhub_py.models.skeleton import skeleton
from minhub_py.system.extras import require
from minhub_py.system.spelling import option
from minhub_py.training.checkpoint import MEASURES, LossRow, Measure, RunFolder, columns_of
from minhub_py.training.data import Corpus, read_corpus
from minhub_py.training.recovery import check_model_files, recovery_advice
from minhub_py.training.settings import Change, Settings, read_settings, segments
from minhub_py.training.units import LossUnit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = "osD^vP"
STYLES = ("-", (0, (4, 2)), (0, (4, 2, 1, 2)))  # of validation losses
COLOURS = ("#1f6f8b", "#e0a030", "#b05a6a", "#5b8c5a", "#7a5c99", "#8c8c94")
HEADINGS: dict[Measure, str] = {"accuracy": "accuracy", "f1_macro": "macro F1", "r_squared": "R2"}
INK, GREY = "#30343b", "#70757d"


@dataclass(frozen=True)
class RunSummary:
    """Summary of a run. The losses are the best model's validation losses."""

    name: str
    folder: str
    family: str
    parameters: int  # trained: of the adapter, or of the model
    # of an adapter's base; None for other runs, or if its config is not on this machine
    base_parameters: int | None
    vocab_size: int
    tokenizer: str
    steps: int
    best_step: int
    unit: LossUnit
    loss: float  # in this unit
    tokens_per_character: float | None  # of held-out text; None for examples
    tokens_per_second: float
    seconds: float
    measures: dict[Measure, float]  # of the best model
    rows: list[LossRow]
    settings: Settings
    history: list[Change]
    texts: list[str]

    @property
    def nats_per_character(self) -> float | None:
        """Loss per character, which is comparable between tokenizers; None for examples."""
        return None if self.tokens_per_character is None else self.loss * self.tokens_per_character

    @property
    def compared_loss(self) -> float:
        """The loss in `compared_unit`."""
        return self.loss * (self.tokens_per_character or 1.0)

    @property
    def compared_unit(self) -> str:
        """The unit for comparisons. Runs with another unit are not comparable."""
        return self.unit.name if self.tokens_per_character is None else "nats per character"

    def to_json(self) -> dict[str, object]:
        """The summary as a JSON object."""
        names = columns_of(self.rows)
        rows = [
            {name: None if math.isnan(row[name]) else row[name] for name in names}
            for row in self.rows
        ]
        measures = {
            name: None if math.isnan(value) else value for name, value in self.measures.items()
        }
        return {
            **asdict(self),
            "objective": self.unit.objective,
            "unit": self.unit.name,
            "nats_per_character": self.nats_per_character,
            "measures": measures,
            "rows": rows,
        }


def read(path: Path) -> RunSummary:
    """Summarize a run.

    FileNotFoundError: the folder is not a run.    ValueError: it is corrupt, or has no evaluation
    yet.
    """
    folder = RunFolder(path)
    with recovery_advice(folder):
        folder.check()
        best, rows = folder.best_row(), folder.read_rows()
        settings, history = read_settings(folder.settings)
        check_model_files(path)
        corpus = read_corpus(folder.tokens)
    speeds = sorted(row["tokens_per_second"] for row in rows[1:]) or [0.0]
    family, parameters, vocab_size = facts(path, settings)
    return RunSummary(
        name=path.resolve().name,
        folder=str(path),
        family=family,
        parameters=parameters,
        base_parameters=base_parameters(settings),
        vocab_size=vocab_size,
        tokenizer=settings.tokenizer or "",
        steps=rows[-1]["step"],
        best_step=best["step"],
        unit=corpus.unit,
        loss=best["held_out_loss"],
        tokens_per_character=(
            corpus.held_out.count / max(corpus.characters, 1)
            if isinstance(corpus, Corpus)
            else None
        ),
        tokens_per_second=speeds[len(speeds) // 2],
        seconds=rows[-1]["seconds"],
        measures={name: best[name] for name in MEASURES if name in best},
        rows=rows,
        settings=settings,
        history=history,
        texts=corpus.texts,
    )


def group_comparable(runs: Sequence[RunSummary]) -> list[list[RunSummary]]:
    """Groups of runs with the same unit, each sorted by loss."""
    groups: dict[str, list[RunSummary]] = {}
    for run in sorted(runs, key=lambda run: run.compared_loss):
        groups.setdefault(run.compared_unit, []).append(run)
    return [groups[unit] for unit in dict.fromkeys(run.compared_unit for run in runs)]


def facts(path: Path, settings: Settings) -> tuple[str, int, int]:
    """The architecture, the number of trained parameters, and the vocabulary size of the model in a
    run.
    """
    if settings.lora:
        file = open_tensors(path / ADAPTER_WEIGHTS)
        shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118  # not a mapping
        vocabulary = parse(path / "tokenizer.json").get_vocab()
        return settings.family or "", sum(map(math.prod, shapes)), max(vocabulary.values()) + 1
    files = open_files(path)
    # the file may also contain buffers
    parameters = count(skeleton(files.architecture.Model, files.config))
    return entry_of(files.config.to_hub()["model_type"]).name, parameters, files.config.vocab_size


def base_parameters(settings: Settings) -> int | None:
    """The number of parameters of an adapter's base; None without one, or if its config is not
    available.
    """
    if not settings.lora or settings.start is None:
        return None
    try:
        architecture, config, _ = read_config(
            settings.start, settings.revision or "main", local_files_only=True
        )
    except (OSError, ValueError):  # moved or deleted since
        return None
    return count(skeleton(architecture.Model, config))


def parameters_title(total: int, trained: int) -> str:
    """The numbers of parameters of a model, and of the trained ones if they differ."""
    return f"{total:,} parameters" + (f", {trained:,} of them trained" if trained != total else "")


def commands(summary: RunSummary, out: str) -> list[str]:
    """Shell commands that reproduce a run: one for the start, and one for each change of settings.

    A comment states where the user has to stop the run in between.
    """
    lines: list[str] = []
    previous = {
        item.name: {} if item.default is MISSING else item.default for item in fields(Settings)
    }
    for settings, end in segments(summary.settings, summary.history):
        words = [
            "minhub",
            "train",
            *(["--resume", out] if lines else [*summary.texts, "--out", out]),
        ]
        comments = []
        current = {item.name: getattr(settings, item.name) for item in fields(settings)}
        for name, value in current.items():
            if value == previous[name]:
                continue
            if value is None:
                comments.append(f"without {' '.join(option(name))}")
            else:
                words += option(name, value)
        if end is not None and end < settings.steps:
            comments.append(f"stopped after step {end:,}")
        lines.append(shlex.join(words) + (f"  # {', '.join(comments)}" if comments else ""))
        previous = current
    return lines


def model_card(summary: RunSummary) -> str:
    """The model card, in Markdown."""
    settings = summary.settings
    tokenizer = {
        "characters": "one token per character",
        "bpe": "a byte-level BPE trained on the text",
    }.get(summary.tokenizer, f"the tokenizer of {summary.tokenizer}")
    verb = "An adapter (LoRA) of" if settings.lora else "Fine-tuned from"
    origin = f"{verb} {settings.start}." if settings.start else "Trained from random weights."
    is_text = summary.tokens_per_character is not None
    held_out = "the last {} of the text" if is_text else "{} of the examples, drawn by the seed"
    shown = is_text and summary.tokenizer != "characters"
    per_character = f", {summary.nats_per_character:.4f} per character" if shown else ""
    # of an adapter whose base is not on this machine
    count = f"{summary.parameters:,} trained parameters"
    if summary.base_parameters is not None or not settings.lora:
        count = parameters_title(
            summary.parameters + (summary.base_parameters or 0), summary.parameters
        )
    size = f"{count}, float32; {tokenizer} ({summary.vocab_size:,})"
    measures = "".join(
        f"| {HEADINGS[name]} | {value:.4f} |\n" for name, value in summary.measures.items()
    )
    step = f"at step {summary.best_step:,} of {summary.steps:,}"
    script = "\n".join(commands(summary, summary.name))
    batch = f"{settings.batch} sequences of {settings.context} per step; {settings.dtype} products"
    return f"""# {summary.name}

{family_title(summary.family)}, {size}. {origin}

| | |
| --- | --- |
| held-out loss | {summary.loss:.4f} {summary.unit.name}{per_character}, {step} |
{measures}| held out | {held_out.format(f"{100 * settings.held_out:g} %")}, also used to choose the step |
| trained on | {summary.rows[-1]["tokens"]:,} tokens, {batch} |
| training time | {duration(summary.seconds)} at {summary.tokens_per_second:,.0f} tokens/s |

```
{script}
```

![losses](losses.png)
"""


def family_title(name: str) -> str:
    """The display name of an architecture, or of a model type that shares its file."""
    if name not in ENTRIES:
        return name
    architecture = ENTRIES[name].architecture
    return architecture.title if name == architecture.name else name.title()


def duration(seconds: float) -> str:
    """A readable duration: 2 h 05 min, 3 min 20 s, 12 s."""
    minutes, remainder = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes} min {remainder:02} s" if minutes else f"{remainder} s"


def about(seconds: float) -> str:
    """An estimated duration in one unit: 40 s, 38 min, 12 h."""
    if seconds < 100:
        return f"{max(round(seconds), 1)} s"
    return f"{round(seconds / 60)} min" if seconds < 6000 else f"{round(seconds / 3600):,} h"


def draw(runs: Sequence[RunSummary], path: Path, *, compared: bool = False) -> "Figure":
    """Draw the loss curves of runs: validation losses as lines with markers, training losses thin
    and dotted.

    Equal curves remain visible: line styles differ, and runs have their markers and dots at
    different steps.

    compared: draw in `compared_unit`, which must be the same for all runs.

    ValueError: matplotlib is missing.    OSError: the file cannot be written.
    """
    require("plot")
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

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
        figure = Figure(figsize=(7.2, 4.2), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        low, high = math.inf, -math.inf
        for number, run in enumerate(runs):
            colour = COLOURS[number % len(COLOURS)]
            scale = (run.tokens_per_character or 1.0) if compared else 1.0
            steps = [row["step"] for row in run.rows]
            held_out = [row["held_out_loss"] * scale for row in run.rows]
            train = [row["train_loss"] * scale for row in run.rows]
            # A training loss is a mean over several steps, so its position is the middle of these
            # steps.
            middles = [
                (before + step) / 2 for before, step in zip([steps[0], *steps], steps, strict=False)
            ]
            # Matplotlib parses $ as mathematics, and hides labels with a leading "_", hence the
            # prefix.
            name = run.name.replace("$", r"\$")
            best = run.loss * scale
            several = len(runs) > 1
            every = max(1, len(steps) // 12) * len(runs)
            axes.plot(
                steps,
                held_out,
                color=colour,
                linewidth=1.8,
                linestyle=STYLES[number % len(STYLES)],
                marker=MARKERS[number % len(MARKERS)] if several else "",
                markersize=6,
                markeredgecolor="white",
                markevery=(number * every // len(runs) % len(steps), every),
                label=f"held out: {name}" + (f", best {best:.3f}" if several else ""),
            )
            dots = (2 * number, (1, 2 * min(len(runs), 4) - 1))
            axes.plot(
                middles, train, color=colour, linewidth=1, linestyle=dots, label=f"training: {name}"
            )
            # The best models; equal points are concentric.
            axes.plot(
                [run.best_step],
                [best],
                "o",
                color=colour,
                markersize=min(12, 3 + 2.5 * (len(runs) - number)),
                zorder=3,
            )
            if not several:
                axes.annotate(
                    f"{best:.3f}",
                    (run.best_step, best),
                    (0, 7),
                    textcoords="offset points",
                    color=colour,
                    ha="center",
                    fontsize=8,
                )
            shown = [value for value in (*held_out, *train, best) if math.isfinite(value)]
            low, high = min(low, *shown), max(high, *shown)
        margin = 0.1 * max(high - low, 0.05)
        axes.set_ylim(low - margin, high + margin)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.grid(axis="y", color="#e6e8eb", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.set_xlabel("step")
        axes.set_ylabel(f"loss: {runs[0].compared_unit if compared else runs[0].unit.name}")
        axes.legend(frameon=False, fontsize=8, loc="upper right")
        partial = path.with_name(f".{path.name}.partial")
        try:
            figure.savefig(partial, dpi=150, facecolor="white", format="png")
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    return figure
