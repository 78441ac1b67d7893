"""Progress of a training run, as callbacks."""

from typing import Any

from minhub_py.training.checkpoint import LossRow


class Listener:
    """Callbacks of a run. The methods here do nothing; subclasses override what they need."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """While the text is read and encoded: `done` of `total` bytes; total is 0 where it is not known."""

    def begins(self, trainer: Any) -> None:
        """Before the first step. trainer: a `loop.Trainer`."""

    def estimated(self, seconds: float, steps: int, evaluations: int) -> None:
        """Once, early in the first evaluation: about how long all steps and evaluations take."""

    def working(self, step: int, task: str, number: int, count: int) -> None:
        """Before batch `number` of `count` of an evaluation or a step; `task` is "evaluation" or "step"."""

    def stepped(self, step: int, steps: int, loss: float, tokens_per_second: float, seconds_left: float) -> None:
        """About twice a second; `loss` is the mean since the last call."""

    def evaluated(self, row: LossRow, best: bool) -> None:
        """After each evaluation; `row` is a line of losses.csv, `best` whether its loss is the lowest so far."""

    def sampled(self, step: int, text: str) -> None:
        """After each evaluation of a run with `sample`: a text that the model wrote."""

    def note(self, text: str) -> None:
        """A message for the user."""

    def asks_to_stop(self) -> bool:
        """Called before each step. Return True to write a checkpoint and stop."""
        return False

    def cancelled(self) -> bool:
        """Called before each batch of an evaluation or a step. Return True to stop there, with a checkpoint.

        A resumed run repeats the unfinished step or evaluation.
        """
        return False


class StoppedError(Exception):
    """The run was interrupted, or its listener asked to stop."""
