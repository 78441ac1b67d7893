"""Metrics of a training run for other programs: a file of JSON lines, TensorBoard, or Weights &
Biases.
"""

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from minhub_py.distributed import environment
from minhub_py.system.extras import require
from minhub_py.training.checkpoint import MEASURES, LossRow
from minhub_py.training.listener import Listener

Write = Callable[[int, dict[str, float]], None]
SHOWN = ("train_loss", "held_out_loss", "learning_rate", "gradient_norm", *MEASURES)


class MetricsListener(Listener):
    """Passes the numbers of each step report and evaluation to `write`, with the step; without
    infinity and NaN.
    """

    def __init__(self, write: Write) -> None:
        self.write = write

    def stepped(
        self, step: int, steps: int, loss: float, tokens_per_second: float, seconds_left: float
    ) -> None:
        """The mean loss since the previous report, and the speed."""
        self.write(step, {"loss": loss, "tokens_per_second": tokens_per_second})

    def evaluated(self, row: LossRow, best: bool) -> None:
        """The losses, settings and measures of a row in losses.csv."""
        numbers: dict[str, Any] = {name: number for name, number in row.items() if name in SHOWN}
        self.write(
            row["step"], {name: number for name, number in numbers.items() if math.isfinite(number)}
        )


@contextmanager
def metrics_listener(target: str | os.PathLike[str]) -> Iterator[Listener]:
    """A listener that writes the metrics to `target`.

    target: a file of JSON lines, tensorboard:FOLDER, or wandb:PROJECT. A resumed run appends to the
        file or folder; in Weights & Biases it is a new run.

    ValueError: the package of TensorBoard or Weights & Biases is not installed.    OSError: the
    file cannot be written.
    """
    if environment.rank() != 0:
        yield Listener()
        return
    kind, separator, name = str(target).partition(":")
    with ExitStack() as stack:
        if separator and kind == "tensorboard":
            write = stack.enter_context(_tensorboard(name))
        elif separator and kind == "wandb":
            write = stack.enter_context(_wandb(name))
        else:
            write = stack.enter_context(_json_lines(Path(target)))
        yield MetricsListener(write)


@contextmanager
def _json_lines(path: Path) -> Iterator[Write]:
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"{path} cannot be written: the folder {path.parent} does not exist"
        )
    # by line, so that other programs can follow
    with path.open("a", encoding="utf-8", buffering=1) as file:
        yield lambda step, numbers: print(json.dumps({"step": step} | numbers), file=file)


@contextmanager
def _tensorboard(folder: str) -> Iterator[Write]:
    require("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    def write(step: int, numbers: dict[str, float]) -> None:
        for name, number in numbers.items():
            writer.add_scalar(name, number, step)

    with SummaryWriter(folder) as writer:  # type: ignore[no-untyped-call]
        yield write


@contextmanager
def _wandb(project: str) -> Iterator[Write]:
    require("wandb")
    import wandb  # type: ignore[import-not-found,unused-ignore]

    with wandb.init(project=project) as run:
        yield lambda step, numbers: run.log(numbers, step=step)
