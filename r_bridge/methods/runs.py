"""Training runs, as training.py has them for R."""

from pathlib import Path
from typing import Any

from r_bridge.objects import Caller


def train_model(caller: Caller, texts: Any, out: str, settings: Any) -> dict[str, Any]:
    """Train a model on text files in the folder `out`; what has come of it. Cancelled: a checkpoint was made."""
    from minhub_py.train import train
    from r_bridge import training

    with training.in_words_of_r():
        train(texts, out, listener=training.News(caller), **training.settings_of(settings))
    caller.check()
    return training.about(Path(out))


def resume_training(caller: Caller, out: str, settings: Any) -> dict[str, Any]:
    """Go on with a run, with some settings changed; otherwise as `train_model`."""
    from minhub_py.train import resume
    from r_bridge import training

    with training.in_words_of_r():
        resume(out, listener=training.News(caller), **training.settings_of(settings))
    caller.check()
    return training.about(Path(out))


def read_run(caller: Caller, out: str) -> dict[str, Any]:
    """What has come of a run so far."""
    from r_bridge import training

    with training.in_words_of_r():
        return training.about(Path(out))
