"""The units of losses. Only losses with the same unit are comparable."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class LossUnit:
    """The unit of a run's losses.

    objective: as in examples.py, but "regression" for labels that are numbers.    name: follows a
    number.
    perplexity: whether exp(loss) is a perplexity.
    """

    objective: str
    name: str
    perplexity: bool = False


UNITS = {
    unit.objective: unit
    for unit in (
        LossUnit("text", "nats per token", perplexity=True),
        LossUnit("chat", "nats per token of replies", perplexity=True),
        LossUnit("completion", "nats per token of completions", perplexity=True),
        LossUnit("preference", "nats per pair (DPO)"),
        LossUnit("labels", "nats per label"),
        LossUnit("regression", "mean squared error"),
        LossUnit("decision", "nats per decision"),
        LossUnit("masked", "nats per masked token"),
        LossUnit("pairs", "nats per pair"),
        LossUnit("triplets", "loss per triplet"),  # in nats without a margin
    )
}


def loss_unit(objective: str, *, classes: int = 0, kept: bool = False) -> LossUnit:
    """An objective's unit. classes: of labels; 0 for regression.    kept: whether rows have
    `keep`.
    """
    unit = UNITS["regression" if objective == "labels" and not classes else objective]
    return replace(unit, name=f"{unit.name}, with rows to keep", perplexity=False) if kept else unit
