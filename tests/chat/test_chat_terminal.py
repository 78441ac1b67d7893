"""`minhub chat` in a pipe and in a terminal."""

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from fast_python import python

from minhub_py import Chat, from_pretrained
from minhub_py.chat.templates import TemplateRejectionError
from minhub_py.chat.terminal import Commands, QuitError
from minhub_py.chat.turns import ReplySettings
from minhub_py.chat.wrap import WordWrap, width
from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer
from minhub_py.cli.main import main
from minhub_py.system.printable import displayed


def minhub(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "minhub_py", *map(str, arguments)]


def test_each_line_of_a_pipe_is_a_message(bot: Path) -> None:
    """Standard output contains the replies only."""
    command = minhub("chat", bot, "--seed", 1, "-n", 8, "--device", "cpu")
    lines = "Good morning!\n\nHow are you?\n/undo\n/home/me is a path\n"
    result = subprocess.run(
        [python(), *command[1:]],
        input=lines,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    chat = Chat(
        from_pretrained(str(bot)),
        read_tokenizer(bot),
        seed=1,
        max_new_tokens=8,
        temperature=0.7,
        top_p=0.95,
    )
    expected = [chat.say("Good morning!").text, chat.say("How are you?").text]
    chat.undo()
    expected.append(chat.say("/home/me is a path").text)
    assert result.stdout == "".join(f"{text}\n" for text in expected)
    assert "Note: no chat template" in result.stderr
    assert "Removed: How are you?" in result.stderr
    assert "Traceback" not in result.stderr
    failed = CliRunner().invoke(main, command[3:], input="/nonsense\n")
    assert (failed.exit_code, failed.stdout) == (1, "")
    assert "unknown command /nonsense: /help lists the commands" in failed.stderr
    commands = Commands(chat, lambda deltas: None)
    for line, message in (
        ("/set heat 3", "unknown setting heat"),
        ("/set top_p", "the value is missing"),
        ("/set seed x", "seed"),
        ("/set top 5", "unknown setting top"),
        ("/set logit_bias 42", "such as 42=-100"),
        ("/save", "file name is missing"),
        ("/load", "file name is missing"),
        ("/quit please", "/quit takes no argument: remove 'please'"),
        ("/UNDO 2", "/undo takes no argument"),
    ):
        with pytest.raises(ValueError, match=message):
            commands.execute(line)
    chat.settings = ReplySettings(max_new_tokens=8)
    for line, name, value in (
        ("/set stop 7", "stop", ("7",)),
        ("/set stop -", "stop", ()),
        ("/set top_k 3", "top_k", 3),
        ("/set logit_bias 42=-100 7=1.5", "logit_bias", {42: -100.0, 7: 1.5}),
        ("/set logit_bias -", "logit_bias", None),
        ("/set stop auto", "stop", ()),
        ("/set max_new_tokens auto", "max_new_tokens", 512),
        ("/set temperature auto", "temperature", 0.7),
    ):
        commands.execute(line)
        assert getattr(chat.settings, name) == value, line
    commands.execute("/system Be brief.")
    with pytest.raises(TemplateRejectionError, match="does not support system messages"):
        commands.execute("Hi")
    with pytest.raises(QuitError):
        commands.execute("/QUIT")


class Talk:
    """A terminal with `minhub chat` in it."""

    def __init__(self, *arguments: object) -> None:
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            # background processes of a shell ignore it
            signal.signal(signal.SIGINT, signal.default_int_handler)
            environment = os.environ | {"TERM": "xterm", "PYTHONUNBUFFERED": "1"}
            os.execve(sys.executable, minhub("chat", *arguments), environment)

    def send(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def until(self, *texts: str, seconds: float = 100) -> str:
        """The output up to one of the texts."""
        output, end = b"", time.monotonic() + seconds
        while time.monotonic() < end:
            shown = plain(output.decode("utf-8", "replace"))
            if any(text in shown for text in texts):
                return shown
            if select.select([self.terminal], [], [], 1)[0]:
                try:
                    output += os.read(self.terminal, 1000)
                except OSError as error:  # Linux: the child has exited
                    raise AssertionError(
                        f"the process has ended: {plain(output.decode())}"
                    ) from error
        raise AssertionError(f"no {texts} in {plain(output.decode())!r}")

    def say(self, text: str) -> str:
        self.send(text + "\r")
        return self.until("\n> ")

    def interrupt(self) -> str:
        """The output after Ctrl-C at a prompt. Python handles one between two reads of readline
        late.
        """
        for _ in range(10):
            self.send("\x03")
            with contextlib.suppress(AssertionError):
                return self.until("\n> ", seconds=5)
        raise AssertionError("Ctrl-C does nothing")

    def end(self) -> int:
        if self.process:
            os.close(self.terminal)
            _, status = os.waitpid(self.process, 0)
            self.process = 0
            return os.waitstatus_to_exitcode(status)
        return 0


def plain(text: str) -> str:
    """The text without escape sequences and carriage returns."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).replace("\r", "")


@pytest.fixture
def talks() -> Iterator[list[Talk]]:
    started: list[Talk] = []
    yield started
    for talk in started:
        if talk.process:
            os.kill(talk.process, signal.SIGKILL)
            talk.end()


def test_text_wraps_between_words() -> None:
    """With deltas of any size, words as wide as the terminal, East Asian text, and a resized
    terminal.
    """
    text = (
        "The quick brown fox\n  jumps over the lazy dog's extraordinarily longword 日本語の文章 é"
    )
    text += "e\u0301" * 3
    for size in (1, 3, 1000):
        parts: list[str] = []
        wrap = WordWrap(parts.append, lambda: 12)
        for start in range(0, len(text), size):
            wrap.feed(text[start : start + size])
        wrap.close()
        lines = "".join(parts).split("\n")
        assert lines == [
            "The quick",
            "brown fox",
            "  jumps over",
            "the lazy",
            "dog's",
            "extraordinarily longword",
            "日本語の文章",
            "é" + "e\u0301" * 3,
        ]
    assert [width(text) for text in ("dog", "日本", "e\u0301")] == [3, 4, 1]
    columns = iter([20, 20, 20, 8, 8])
    parts = []
    wrap = WordWrap(parts.append, lambda: next(columns, 8))
    wrap.feed("ab cd ")  # each character and each word queries the width once
    wrap.feed("ef gh")
    wrap.close()
    assert "".join(parts) == "ab cd ef\ngh"


def test_keys_typed_during_a_reply_are_not_echoed(talks: list[Talk]) -> None:
    """The next prompt receives them, and the terminal echoes again after the chat."""
    talk = Talk("minhub/shakespeare-gpt2", "--seed", 1, "-n", 200)
    talks.append(talk)
    echo = termios.tcgetattr(talk.terminal)[3] & termios.ECHO
    talk.until("\n> ")
    talk.send("hello\r")
    before = talk.until("\nHe may live")  # the reply has started
    talk.send("/system ")
    reply = before + talk.until("\n> ")
    assert "/system" not in reply[: reply.rindex("\n> ")]
    talk.send("\r")
    talk.until("There is no system prompt.\n> ")
    talk.send("\x04")
    with pytest.raises(AssertionError, match="the process has ended"):
        talk.until("no such text")
    assert echo


def test_ctrl_c_keeps_the_keys_typed_during_a_reply(talks: list[Talk]) -> None:
    # without a limit of the context
    talk = Talk("minhub/shakespeare-lstm", "--seed", 1, "-n", 100_000)
    talks.append(talk)
    talk.until("\n> ")
    talk.send("hello\r")
    talk.until("hello")
    talk.until("e")  # the reply has started
    talk.send("/system ")
    talk.send("\x03")
    assert "Stopped." in talk.until("\n> /system ")
    talk.send("\r")
    talk.until("There is no system prompt.\n> ")


def test_the_terminal_shows_replies_and_results_of_commands(
    bot: Path, talks: list[Talk], tmp_path: Path
) -> None:
    talk = Talk(bot, "--seed", 1, "-n", 6)
    talks.append(talk)
    first = talk.until("\n> ")
    assert first.startswith(f"Loading {bot.name} …\n{bot.name}\n/help: commands")
    assert "Note: no chat template" in first
    chat = Chat(
        from_pretrained(str(bot)),
        read_tokenizer(bot),
        seed=1,
        max_new_tokens=6,
        temperature=0.7,
        top_p=0.95,
    )
    visible = first_line(chat.say("Good morning!").text)
    assert visible in talk.say("Good morning!")
    assert "/regen" in talk.say("/help")
    talk.send("\x1b[200~two lines\nare one message\x1b[201~\r")
    talk.until("\n> ")
    talk.send('"""first\r')
    talk.until("… ")
    assert "… " not in talk.say('second"""').replace("… second", "")
    talk.say(f"/save {tmp_path / 'chat.json'}")
    saved = json.loads((tmp_path / "chat.json").read_text(encoding="utf-8"))
    assert [turn["text"] for turn in saved["turns"]][::2] == [
        "Good morning!",
        "two lines\nare one message",
        "first\nsecond",
    ]
    assert "unknown command /nonsense" in talk.say("/nonsense")
    assert "unknown setting heat" in talk.say("/set heat 1")
    talk.say("/set temperature 0.1")
    assert re.search(r"temperature +0\.1\n", talk.say("/set"))
    assert "There is no system prompt." in talk.say("/system")
    assert "Removed: first" in talk.say("/undo")
    talk.say("/regen")
    talk.send("\x1b[A")  # the previous line of the history
    talk.until("/regen")
    assert "Ctrl-D ends the chat" in talk.interrupt()
    talk.say("/clear")
    loaded = talk.say(f"/load {tmp_path / 'chat.json'}")
    talk.send("/system\r")  # loaded messages look like prompts: wait for the last one
    loaded = " ".join((loaded + talk.until("There is no system prompt.\n> ")).split())
    assert "Good morning!" in loaded
    assert "chat.json: 3 messages with replies, with its system prompt and settings." in loaded
    for path, problem in (
        (tmp_path / "nosuch", "this file or folder does not exist"),
        (tmp_path, "this is a folder: give a file"),
    ):
        assert f"{path.name}: {problem}" in " ".join(talk.say(f"/load {path}").split())
    talk.send("\x04")
    with pytest.raises(AssertionError, match="the process has ended"):
        talk.until("no such text")
    _, status = os.waitpid(talk.process, 0)
    talk.process = 0
    os.close(talk.terminal)
    assert os.waitstatus_to_exitcode(status) == 0


def first_line(text: str) -> str:
    return displayed(text).split("\n", maxsplit=1)[0].strip()[:20]


def test_ctrl_c_stops_a_reply_and_keeps_its_text(talks: list[Talk], tmp_path: Path) -> None:
    talk = Talk("minhub/shakespeare-gpt2", "--seed", 1, "-n", 100000)
    talks.append(talk)
    talk.until("\n> ")
    talk.send("Good morrow!\r")
    talk.until("e")
    talk.send("\x03")
    assert "Stopped. The reply so far" in talk.until("\n> ")
    talk.say(f"/save {tmp_path / 'chat.json'}")
    [_, reply] = json.loads((tmp_path / "chat.json").read_text(encoding="utf-8"))["turns"]
    assert reply["reply"]["end"] == "interrupted"
    assert reply["text"]
