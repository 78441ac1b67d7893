"""The output of `train` and `resume` in Python: in a pipe, on a terminal, and in a notebook."""

import io
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from test_train import TINY, Notes, no_pictures, text

from minhub_py import resume, train
from minhub_py.system.spelling import ShellSpelling, use_spelling
from minhub_py.training import loop
from minhub_py.training import progress as screen

__all__ = ["no_pictures", "text"]  # fixtures


class Terminal(io.StringIO):
    """A stream that claims to be a terminal, and interprets carriage returns like one."""

    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True

    def seen(self) -> list[str]:
        lines = []
        for line in self.getvalue().split("\n"):
            shown: list[str] = []
            place = 0
            for character in line:
                if character == "\r":
                    place = 0
                    continue
                shown[place : place + 1] = [character]
                place += 1
            lines.append("".join(shown).rstrip())
        return lines


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report progress after each step."""
    monkeypatch.setattr(loop, "REPORT_INTERVAL", 0.0)


def test_lines_for_a_pipe(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str], often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line for each evaluation on standard error, and a progress line after a minute without one."""
    run = train(text, tmp_path / "run", **TINY)
    out, shown = capsys.readouterr()
    assert out == ""
    assert "\r" not in shown
    assert " of 12  loss" not in shown
    steps = [line.split()[0] for line in shown.splitlines() if line.startswith("      ")]
    assert steps == ["0", "4", "8", "12"]
    last = f"The best model, of step {run.best['step']} with a loss of {run.best_loss:.4f}, is in {tmp_path / 'run'}"
    assert shown.splitlines()[-1] == last

    monkeypatch.setattr(screen, "QUIET", 0.0)
    resume(tmp_path / "run", steps=16)
    shown = capsys.readouterr().err
    assert "continues after step 12" in shown
    assert "Note: from step 12 the learning rate follows a cosine that ends at step 16, not at 12" in shown
    assert "\n14 of 16  loss " in shown
    assert re.search(r"\nevaluating: batch 1 of \d+\n", shown)
    assert "\nstep 13: batch 1 of 1\n" in shown


def test_the_duration_of_a_long_run(capsys: pytest.CaptureFixture[str]) -> None:
    """With the settings that shorten it, in the spelling of the caller."""
    shown = screen.Screen()
    shown.estimated(40, 1, 1)
    assert capsys.readouterr().err == "about 40 s for 1 step and 1 evaluation\n"
    with use_spelling(ShellSpelling()):
        shown.estimated(2 * 3600, 2000, 9)
    assert capsys.readouterr().err.splitlines() == [
        "about 2 h for 2,000 steps and 9 evaluations",
        "smaller values take less time: --steps, --batch, --context, --evaluate-tokens",
    ]


def test_a_slow_batch_on_a_terminal(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pending batch is shown before it is computed, and leaves no trace."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(screen, "SLOW", 0.0)
    train(text, tmp_path / "run", **TINY)
    assert "\revaluating: batch 1 of " in terminal.getvalue()
    assert "\rstep 12: batch 1 of 1" in terminal.getvalue()
    assert not any("batch 1 of" in line for line in terminal.seen())


def test_silent(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No output with progress=False or with a listener."""
    train(text, tmp_path / "run", progress=False, **TINY)
    notes = Notes()
    resume(tmp_path / "run", listener=notes, steps=13)
    assert [row["step"] for row in notes.rows] == [13]
    assert capsys.readouterr() == ("", "")
    with pytest.raises(ValueError, match="progress must be True or False, not 'yes'"):
        train(text, tmp_path / "new", progress="yes", **TINY)  # type: ignore[arg-type]


def test_a_moving_line_on_a_terminal(tmp_path: Path, text: Path, often: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The progress bar is removed when the run ends or is stopped."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    train(text, tmp_path / "run", **TINY)
    written, seen = terminal.getvalue(), terminal.seen()
    assert "\rReading the text: 100 %" in written
    assert "\r━━━━━━━━━━           6 of 12  loss " in written
    moving = [part for part in written.split("\r") if " of 12  loss" in part]
    assert max(len(part.rstrip()) for part in moving) == 57  # the terminal has 60 columns
    assert max(map(len, moving)) < 60
    assert [line for line in seen if " of 12  loss" in line or "100 %" in line] == []
    assert len(seen) == 4 + 4 + 3 + 1  # the head, the table, what follows, and after the last line

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)

    def ctrl_c(self: object, step: int, *_: Any) -> None:
        self.move("a line")  # type: ignore[attr-defined]
        terminal.write("^C")
        raise KeyboardInterrupt

    monkeypatch.setattr(screen.Screen, "stepped", ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        train(text, tmp_path / "stopped", **TINY)
    assert terminal.seen()[-1] == ""


def test_a_notebook(tmp_path: Path, text: Path, often: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an IPython kernel there is a progress bar on standard output, whatever isatty() says."""
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
    assert not screen.in_notebook()


def test_a_screen_without_a_stream_is_silent(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Python without a console on Windows."""
    monkeypatch.setattr(sys, "stderr", None)
    assert train(text, tmp_path / "run", **TINY).losses[-1]["step"] == 12


def test_ascii(tmp_path: Path, text: Path, often: None, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    train(text, tmp_path / "run", **TINY)
    stream.flush()
    assert b"\r##########           6 of 12  loss " in stream.buffer.getvalue()  # type: ignore[attr-defined]
