"""Untrusted names and messages on a terminal: control characters in them are escaped."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner
from fast_python import python
from hub_server import HubServer
from needs import needs

from minhub_py import gpt2, save_pretrained
from minhub_py.checkpoints.tokenizers.tokenizer import characters
from minhub_py.cli.group import Group
from minhub_py.cli.main import main
from minhub_py.cli.output import emit, say, table
from minhub_py.system.console import note
from minhub_py.system.printable import displayed, printable, reason_of

EVIL = "\x1b]0;title\x07\x1b[2J\n\r\x9b1m\x7f\u202e\udc80"
SHOWN = r"\x1b]0;title\x07\x1b[2J\n\r\x9b1m\x7f\u202e\udc80"


def test_control_characters_are_escaped_and_other_text_is_unchanged() -> None:
    assert printable(EVIL) == SHOWN
    readable = "naïve 漢字 🎉 C:\\folder 'x' a\u3000b"
    assert printable(readable) == displayed(readable) == readable
    assert displayed("a\n\tb\r\n👩‍👩‍👧\x1b[2J") == "a\n\tb\r\n👩‍👩‍👧\\x1b[2J"
    assert reason_of(Exception(f"x{EVIL}")) == r"x\x1b]0;title\x07\x1b[2J"  # the first line
    assert reason_of(KeyError()) == "KeyError"


def test_table_say_note_and_emit_escape_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table(["A", EVIL], [(EVIL, 1)])
    say(EVIL, EVIL)
    note(EVIL)
    captured = capsys.readouterr()
    assert (captured.out.count(SHOWN), captured.err) == (4, SHOWN + "\n")
    emit({EVIL: EVIL, "漢字": 1})
    text = capsys.readouterr().out
    assert json.loads(text) == {EVIL: EVIL, "漢字": 1}
    assert "漢字" in text
    assert all(line.isprintable() for line in text.splitlines())


@pytest.mark.parametrize(
    "error", [ValueError, OSError, click.ClickException, click.UsageError, RuntimeError]
)
def test_error_messages_are_escaped(error: type[Exception]) -> None:
    @click.group(cls=Group)
    def group() -> None: ...

    @group.command()
    def fail() -> None:
        raise error(f"bad {EVIL}")

    stderr = CliRunner().invoke(group, ["fail"]).stderr
    assert "bad" in stderr
    assert all(line.replace("\u202e", "").isprintable() for line in stderr.splitlines())


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """A model with escape sequences in its folder's name and in its tokens."""
    torch.manual_seed(0)
    folder = tmp_path / "evil\x1b[2J"
    tokenizer = characters({"a": 0, "\x1b[2J": 1, "\x1b": 2, "\x9b": 3})
    save_pretrained(
        gpt2(vocab_size=4, n_positions=16, n_embd=4, n_layer=1, n_head=2), folder, tokenizer
    )
    return folder


def test_command_output_is_escaped(hub: HubServer, evil: Path) -> None:
    files = {path.name: path.read_bytes() for path in evil.iterdir()}
    hub.add("owner/model", files)
    hub.add("owner/none", {"config.json": "{}", f"{EVIL[:-1]}.gguf": "x"})
    runs = [
        ["download", "owner/model", "--dry-run"],
        ["download", "owner/none"],
        ["verify", str(evil)],
        ["inspect", str(evil)],
        ["inspect", str(evil) + "x"],
        ["generate", "owner/model", "\x1bb", "--revision", "\x1b[2J"],
        ["convert", str(evil), str(evil.parent / "out\x1b[2J")],
        ["list"],
    ]
    for run in runs:
        output = CliRunner().invoke(main, run).output
        assert output
        assert all(line.isprintable() for line in output.splitlines()), run


@needs("fork")
def test_text_on_a_terminal_and_in_a_pipe(evil: Path) -> None:
    """Tokens are escaped on a terminal and unchanged in a pipe."""
    command = [
        sys.executable,
        "-m",
        "minhub_py.cli.main",
        "generate",
        str(evil),
        "a",
        "-n",
        "40",
        "--seed",
        "1",
    ]
    piped = CliRunner().invoke(main, command[3:]).stdout
    assert "\x1b" in piped
    terminal, child_end = pty.openpty()
    child = subprocess.Popen(
        [python(), *command[1:]], stdin=child_end, stdout=child_end, stderr=child_end
    )
    os.close(child_end)
    output = b""
    while True:
        try:
            part = os.read(terminal, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        output += part
    os.close(terminal)
    assert child.wait() == 0
    assert output.decode().strip() == displayed(piped).strip()
    assert b"\x1b" not in output
