"""Training with the registry's defaults, for each architecture that has some."""

from pathlib import Path

import pytest
from guarantees import RUNNER

from minhub_py import from_pretrained, train
from minhub_py.inference.native_runner import runner_of
from minhub_py.models.registry import ENTRIES

SMALL = {"layers": 1, "width": 16, "heads": 2, "context": 16, "batch": 4, "seed": 1}
TRAINABLE = {
    name: entry.architecture.training
    for name, entry in ENTRIES.items()
    if entry.architecture.trainable
}


@pytest.mark.parametrize("family", TRAINABLE)
def test_each_family_can_be_trained_and_fine_tuned(family: str, tmp_path: Path) -> None:
    """Training from scratch reduces the held-out loss, and its result can be fine-tuned."""
    text = tmp_path / "text.txt"
    text.write_text("a rose is a rose is a rose. " * 200)
    small = {
        name: value
        for name, value in SMALL.items()
        if name != "heads" or "heads" in TRAINABLE[family].names
    }
    run = train(
        text,
        tmp_path / "run",
        family=family,
        tokenizer="characters",
        steps=16,
        evaluate_every=8,
        **small,
        progress=False,
    )
    assert run.losses[-1]["held_out_loss"] < run.losses[0]["held_out_loss"]
    model = from_pretrained(tmp_path / "run", device="cpu")
    assert type(runner_of(model)) is RUNNER
    train(
        text,
        tmp_path / "tuned",
        start=str(tmp_path / "run"),
        steps=2,
        batch=4,
        context=16,
        progress=False,
    )
