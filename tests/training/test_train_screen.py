"""Console output of `train` and `resume`: in a pipe, on a terminal, and in a notebook."""

import io
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from training_runs import TINY, Notes

from minhub_py import resume, train
from minhub_py.system.spelling import ShellSpelling, use_spelling
from minhub_py.training import loop, progress


class Terminal(io.StringIO):
    """A stream that behaves like a terminal, including carriage returns."""

    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True

    def screen_lines(self) -> list[str]:
        lines = []
        for line in self.getvalue().split("\n"):
            shown: list[str] = []
            column = 0
            for character in line:
                if character == "\r":
                    column = 0
                    continue
                shown[column : column + 1] = [character]
                column += 1
            lines.append("".join(shown).rstrip())
        return lines


@pytest.fixture
def frequent_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report progress after each step."""
    monkeypatch.setattr(loop, "REPORT_INTERVAL", 0.0)


def test_a_pipe_receives_lines(
    tmp_path: Path,
    text: Path,
    capsys: pytest.CaptureFixture[str],
    frequent_reports: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Standard error receives a line for each evaluation, and progress lines at intervals."""
    run = train(text, tmp_path / "run", **TINY)
    out, shown = capsys.readouterr()
    assert out == ""
    assert "\r" not in shown
    assert " of 12  loss" not in shown
    steps = [line.split()[0] for line in shown.splitlines() if line.startswith("      ")]
    assert steps == ["0", "4", "8", "12"]
    loss = f"{run.best_loss:.4f} (nats per token)"
    last = (
        f"The best model, of step {run.best['step']} with a loss of {loss}, is in"
        f" {tmp_path / 'run'}"
    )
    assert shown.splitlines()[-1] == last

    monkeypatch.setattr(progress, "LINE_INTERVAL", 0.0)
    resume(tmp_path / "run", steps=16)
    shown = capsys.readouterr().err
    assert "continues after step 12" in shown
    assert (
        "Note: from step 12 the learning rate follows a cosine that ends at step 16, not at 12"
        in shown
    )
    assert "\n14 of 16  loss " in shown
    assert re.search(r"\nevaluating: batch 1 of \d+\n", shown)
    assert "\nstep 13: batch 1 of 1\n" in shown


def test_the_estimate_of_a_long_run_lists_settings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of the settings are spelled for the caller's interface."""
    monkeypatch.setattr(progress, "load_average", lambda: (1.5, 2))
    console = progress.ConsoleListener()
    console.estimated(40, 1, 1, 12.345)
    assert capsys.readouterr().err == "about 40 s for 1 step of 12 s and 1 evaluation\n"
    monkeypatch.setattr(progress, "load_average", lambda: (2.5, 2))
    with use_spelling(ShellSpelling()):
        console.estimated(2 * 3600, 2000, 9, 3.5)
    assert capsys.readouterr().err.splitlines() == [
        "about 2 h for 2,000 steps of 3.5 s and 9 evaluations",
        "the machine is busy (load average 2.5 on 2 cores): training takes longer",
        "smaller values take less time: --steps, --batch, --context, --evaluate-tokens",
    ]


def test_the_note_on_a_busy_machine_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """If several threads wait without a limit, as in Python; commands set the limit."""
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        note = progress.busy_advice(2.5, 2)
        torch.set_num_threads(1)
        single = progress.busy_advice(2.5, 2)
    finally:
        torch.set_num_threads(threads)
    assert (
        "training takes longer. threads=1, or the environment variable GOMP_SPINCOUNT=1000" in note
    )
    assert single.endswith("training takes longer")
    monkeypatch.setenv("GOMP_SPINCOUNT", "1000")
    assert progress.busy_advice(2.5, 2) == single


def test_a_run_that_does_not_improve_says_so(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(
        text, tmp_path / "run", **TINY | {"learning_rate": 100.0, "steps": 2, "evaluate_every": 2}
    )
    assert run.best["step"] == 0
    assert (
        "It is the model before training, as no later evaluation had a lower loss"
        in capsys.readouterr().err
    )


def test_a_slow_batch_is_shown_on_a_terminal(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The terminal shows the pending batch before its computation, and removes it afterwards."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "SLOW_BATCH", 0.0)
    train(text, tmp_path / "run", **TINY)
    assert "\revaluating: batch 1 of " in terminal.getvalue()
    assert "\rstep 12: batch 1 of 1" in terminal.getvalue()
    assert not any("batch 1 of" in line for line in terminal.screen_lines())


def test_no_output_with_a_listener_or_without_progress(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(text, tmp_path / "run", progress=False, **TINY)
    notes = Notes()
    resume(tmp_path / "run", listener=notes, steps=13)
    assert [row["step"] for row in notes.rows] == [13]
    assert capsys.readouterr() == ("", "")
    with pytest.raises(ValueError, match="progress must be True or False, not 'yes'"):
        train(text, tmp_path / "new", progress="yes", **TINY)  # type: ignore[arg-type]


def test_the_progress_bar_is_removed_when_a_run_ends_or_stops(
    tmp_path: Path, text: Path, frequent_reports: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The progress bar is removed when the run ends or stops."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    train(text, tmp_path / "run", **TINY)
    written, lines = terminal.getvalue(), terminal.screen_lines()
    assert "\rReading the text: 100 %" in written
    assert "\r━━━━━━━━━━           6 of 12  loss " in written
    bars = [part for part in written.split("\r") if " of 12  loss" in part]
    assert {len(part) for part in bars} == {57}  # the terminal has 60 columns, and ^C takes two
    assert [line for line in lines if " of 12  loss" in line or "100 %" in line] == []
    # model and data, the table, the best model, and the end of the last line
    assert len(lines) == 4 + 4 + 3 + 1

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)

    def ctrl_c(self: object, step: int, *_: Any) -> None:
        self.update_bar("a line")  # type: ignore[attr-defined]
        terminal.write("^C")
        raise KeyboardInterrupt

    monkeypatch.setattr(progress.ConsoleListener, "stepped", ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        train(text, tmp_path / "stopped", **TINY)
    assert terminal.screen_lines()[-1] == ""


def test_a_notebook_shows_a_progress_bar(
    tmp_path: Path, text: Path, frequent_reports: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An IPython kernel receives the progress bar on standard output, also if isatty() is false."""
    kernel = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", kernel)  # type: ignore[arg-type]
    out, err = Terminal(), Terminal()
    monkeypatch.setattr(out, "isatty", lambda: False)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    train(text, tmp_path / "run", **TINY)
    assert "6 of 12  loss" in out.getvalue()
    assert err.getvalue() == ""
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: None))  # type: ignore[arg-type]
    assert not progress.in_notebook()


def test_training_without_a_stream_is_silent(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python has no streams on Windows without a console."""
    monkeypatch.setattr(sys, "stderr", None)
    assert train(text, tmp_path / "run", **TINY).losses[-1]["step"] == 12


def test_ascii_streams_receive_an_ascii_bar(
    tmp_path: Path, text: Path, frequent_reports: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    train(text, tmp_path / "run", **TINY)
    stream.flush()
    assert b"\r##########           6 of 12  loss " in stream.buffer.getvalue()  # type: ignore[attr-defined]
