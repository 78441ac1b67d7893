"""A run's duration, estimated from a batch of its first evaluation."""

from typing import NamedTuple

STEP_PER_FORWARD = 3  # duration of a training step, in forward passes
# a first batch of this duration is representative, although it includes initialization
WARMUP_SECONDS = 10.0


class Estimate(NamedTuple):
    """A run's duration in seconds, its remaining steps and evaluations, and the duration of a
    step.
    """

    seconds: float
    steps: int
    evaluations: int
    step_seconds: float


def is_representative(number: int, seconds: float, last: bool) -> bool:
    """Whether a batch of an evaluation predicts others. The first one includes initialization,
    unless it is slow.
    """
    return number > 1 or seconds >= WARMUP_SECONDS or last


def estimate(
    per_token: float, tokens_per_step: float, tokens_per_evaluation: int, steps: int, every: int
) -> Estimate:
    """The estimate for `steps` steps and an evaluation `every` steps. per_token: seconds of a
    forward pass.
    """
    evaluations = 1 + -(-steps // every)
    step_seconds = tokens_per_step * STEP_PER_FORWARD * per_token
    return Estimate(
        steps * step_seconds + evaluations * tokens_per_evaluation * per_token,
        steps,
        evaluations,
        step_seconds,
    )
