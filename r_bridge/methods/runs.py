"""Training runs: start one, resume one, read one. training.py converts for R."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from r_bridge.objects import Caller


def train_model(caller: Caller, texts: Any, out: str, settings: Any, copy: bool = False) -> dict[str, Any]:
    """Train a model on text files in the folder `out`. Returns the results. Cancelled: `resume_training` continues it.

    copy: the files are temporary, so that the run needs a copy until they are encoded.
    """
    from minhub_py.training import train
    from r_bridge import training

    with ExitStack() as stack:
        files = [stack.enter_context(Path(text).open("rb")) if copy else text for text in texts]
        train(files, out, listener=training.RListener(caller), **training.settings_of(settings))
    caller.check()
    return training.describe_run(Path(out))


def resume_training(caller: Caller, out: str, settings: Any) -> dict[str, Any]:
    """Resume a run, with some settings changed; otherwise as `train_model`."""
    from minhub_py.training import resume
    from r_bridge import training

    resume(out, listener=training.RListener(caller), **training.settings_of(settings))
    caller.check()
    return training.describe_run(Path(out))


def read_run(caller: Caller, out: str) -> dict[str, Any]:
    """The results of a run so far."""
    from r_bridge import training

    return training.describe_run(Path(out))
