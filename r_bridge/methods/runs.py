"""Training runs: start, resume, read. training.py converts settings and results."""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

from r_bridge.objects import Session


def train_model(
    session: Session,
    texts: list[str],
    out: str,
    settings: Mapping[str, object] | None,
    copy: bool = False,
) -> dict[str, object]:
    """Train a model on text files, and store it in the folder `out`. Returns the results.

    If the request is cancelled, `resume_training` resumes the run.    copy: copy the files, which
    are temporary.
    """
    from minhub_py.training import train
    from r_bridge import training

    with ExitStack() as stack:
        files = [stack.enter_context(Path(text).open("rb")) if copy else text for text in texts]
        train(files, out, listener=training.RListener(session), **training.settings_of(settings))
    session.check_cancelled()
    return training.describe_run(Path(out))


def train_on_examples(
    session: Session,
    columns: Mapping[str, Iterable[object]],
    path: str,
    out: str,
    settings: Mapping[str, object] | None,
) -> dict[str, object]:
    """Train a model on the examples of a data frame, and store it in the folder `out`. Returns the
    results.

    path: the file for the examples, which R removes.
    """
    from r_bridge import training

    training.write_examples(columns, Path(path))
    try:
        return train_model(session, [path], out, settings)
    except ValueError as error:
        if path not in str(error):
            raise
        raise ValueError(str(error).replace(path, "text")) from error  # the file is not the user's


def resume_training(
    session: Session, out: str, settings: Mapping[str, object]
) -> dict[str, object]:
    """Resume a run, with changes to its settings. Returns the results."""
    from minhub_py.training import resume
    from r_bridge import training

    resume(out, listener=training.RListener(session), **training.settings_of(settings))
    session.check_cancelled()
    return training.describe_run(Path(out))


def read_run(session: Session, out: str) -> dict[str, object]:
    """A run's current results."""
    from r_bridge import training

    return training.describe_run(Path(out))
