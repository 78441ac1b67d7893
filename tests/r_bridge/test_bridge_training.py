"""Training through the R bridge: events, resumption, and messages in R's spelling."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minhub_py.system import spelling
from minhub_py.training import Run
from r_bridge import convert
from r_bridge.convert import dumps, loads
from r_bridge.service import Service
from r_bridge.spelling import use_r_spelling
from r_bridge.training import RListener

TEXT = "To be, or not to be, that is the question.\n" * 60
TINY = {
    "family": "lstm",
    "layers": 1.0,
    "width": 8.0,
    "context": 8.0,
    "batch": 2.0,
    "evaluate_every": 4.0,
    "seed": 1.0,
}


class Training:
    """A service that trains on a small text, with the events of the run."""

    def __init__(self, folder: Path) -> None:
        self.service = Service()
        self.text, self.out = folder / "text.txt", folder / "run"
        self.text.write_text(TEXT, encoding="utf-8")
        self.received: list[dict[str, Any]] = []
        self.cancelled = threading.Event()
        self.cancel_at = ""

    def emit(self, news: Any) -> None:
        self.received.append(loads(dumps(news)))
        if news["event"] == self.cancel_at:
            self.cancelled.set()

    def call(self, method: str, **arguments: Any) -> tuple[str, Any]:
        self.received.clear()
        self.cancelled = threading.Event()
        call = loads(
            dumps({"method": method, "arguments": arguments, "release": np.array([], np.int32)})
        )
        kind, value = self.service.run(call, self.emit, self.cancelled)
        return kind, loads(dumps(value))

    def train(self, **settings: Any) -> tuple[str, Any]:
        return self.call(
            "train_model", texts=[str(self.text)], out=str(self.out), settings=TINY | settings
        )

    def resume(self, **settings: Any) -> tuple[str, Any]:
        return self.call("resume_training", out=str(self.out), settings=settings)

    def events(self) -> list[str]:
        return [news["event"][0] for news in self.received]


@pytest.fixture
def training(tmp_path: Path) -> Training:
    return Training(tmp_path)


def test_run_sends_events_and_returns_columns(training: Training) -> None:
    kind, run = training.train(
        steps=10.0, sample="To", sample_tokens=3, config={"embedding_size": np.array([4.0])}
    )
    assert kind == "done", run
    rows = Run(training.out).losses
    losses = run["losses"]
    assert losses["step"].dtype == np.int32
    assert losses["step"].tolist() == [0, 4, 8, 10] == [row["step"] for row in rows]
    assert np.isnan(losses["train_loss"]).tolist() == [True, False, False, False]
    # NA, not NaN: R distinguishes them by their bits.
    assert losses["train_loss"][:1].tobytes() == convert.NA_REAL.tobytes()
    assert losses["held_out_loss"].tolist() == [row["held_out_loss"] for row in rows]
    assert run["best_step"].tolist() == [10]
    assert run["loss"].tolist() == [min(losses["held_out_loss"])]
    assert (run["unit"], run["objective"]) == (["nats per token"], ["text"])
    settings = run["settings"]
    assert (settings["steps"].tolist(), settings["config"]["embedding_size"].tolist()) == (
        [10],
        [4],
    )
    assert "start" not in settings
    assert settings["from"] is None

    events = [
        event for event in training.events() if event not in ("preparing", "working", "stepped")
    ]
    assert events == ["begins", "estimated", *["evaluated", "sampled"] * 4]
    evaluated = [news for news in training.received if news["event"] == ["evaluated"]]
    for news, row in zip(evaluated, rows, strict=True):
        for name, value in row.items():
            assert np.array_equal(news[name].astype(float), [value], equal_nan=True), name
    assert training.call("read_run", out=str(training.out))[1]["losses"].keys() == losses.keys()


def test_cancelled_run_has_a_checkpoint_and_resumes(training: Training) -> None:
    training.cancel_at = "evaluated"
    assert training.train(steps=10**6) == ("cancelled", None)
    [checkpoint] = (training.out / "checkpoints").iterdir()
    step = int(checkpoint.name[5:])
    training.cancel_at = ""
    kind, run = training.resume(steps=step + 3.0)
    assert kind == "done", run
    assert [news["step"].tolist() for news in training.received if news["event"] == ["begins"]] == [
        [step]
    ]
    assert run["losses"]["step"][-1] == step + 3
    # Before the model exists, the same call or resume_training continues the preparation.
    training.out = training.out.with_name("other")
    training.text.write_text(TEXT * 20, encoding="utf-8")  # several pieces
    training.cancel_at = "preparing"
    for call in (training.train, training.train, training.resume):
        assert call() == ("cancelled", None)
        assert [path.name for path in training.out.iterdir()] == ["tokens"]
    training.cancel_at = ""
    kind, run = training.resume(steps=3.0)
    assert kind == "done", run


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 2.5}, "steps must be an integer, not 2.5"),
        (
            {"speed": 1.0, "start": "gpt2"},
            "unknown settings speed, start; the settings are family, from, tokenizer",
        ),
        ({"warmup": 3.0}, "unknown setting warmup; did you mean warm_up?"),
        ({"context": 5000.0}, "use a longer text, or context = "),
        ({"batch": 900.0}, "a smaller batch or context, or carry = FALSE"),
        ({"from": "minhub/shakespeare-gpt2"}, "remove family"),
        ({"config": {"x": np.array([1.0])}}, "config: unknown setting x; the settings of lstm are"),
    ],
)
def test_training_errors_use_r_spelling(training: Training, settings: Any, message: str) -> None:
    kind, failure = training.train(**settings)
    assert (kind, failure["class"]) == ("failed", ["ValueError"])
    assert message in failure["message"][0]
    assert "--" not in failure["message"][0]


def test_notes_are_sent_except_about_matplotlib(training: Training) -> None:
    training.service.session.emit = training.emit
    news = RListener(training.service.session)
    news.note("the curves are not drawn: pip install 'minhub_py[plot]' brings matplotlib")
    news.note("2 characters are not known")
    assert training.received == [{"event": ["note"], "text": ["2 characters are not known"]}]


def test_messages_contain_r_settings_and_calls(training: Training) -> None:
    assert training.train(steps=1.0)[0] == "done"
    _, failure = training.train(steps=1.0)
    assert failure["class"] == ["FileExistsError"]
    assert f'resume it with minhub_resume("{training.out}"), or' in failure["message"][0]
    assert (
        "is not a run of minhub_train()"
        in training.call("read_run", out=str(training.text.parent))[1]["message"][0]
    )
    with use_r_spelling():
        assert spelling.setting("start") == "from"
        assert spelling.setting("start", 'a "run"') == r'from = "a \"run\""'
        assert spelling.setting("carry", False) == "carry = FALSE"
        assert spelling.resume_call("run", steps=20) == 'minhub_resume("run", steps = 20)'
        assert (
            spelling.download_call("owner/name", "v1")
            == 'from_pretrained("owner/name", revision = "v1")'
        )
    assert spelling.resume_call("run", steps=20) == "resume('run', steps=20)"
