"""`minhub chat`: a conversation in a terminal, or one turn for each line of a pipe."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from typing import Any

import click

from minhub_py.chat.turns import Chat, Pieces, Reply
from minhub_py.console import note
from minhub_py.printable import displayed, printable

QUOTES = '"""'
# readline counts what stands between these as no columns.
PROMPT, MORE = "\001\033[1;32m\002>\001\033[0m\002 ", "\001\033[2m\002…\001\033[0m\002 "
HELP = (
    ("/help", "show this list"),
    ("/system TEXT", "change the system prompt; without TEXT, show it"),
    ("/set NAME VALUE", "change a setting, such as temperature; without them, show all"),
    ("/regen", "replace the last reply by another"),
    ("/undo", "take back the last message and its reply"),
    ("/save FILE", "write the conversation as JSON"),
    ("/load FILE", "go on with a saved conversation"),
    ("/clear", "forget what was said; the system prompt stays"),
    ("/quit", "end the chat, as Ctrl-D does"),
    (QUOTES, f"begin a message of several lines, which ends with {QUOTES}, too"),
)
NUMBER = re.compile(r"-?\d+")


class LeaveError(Exception):
    """The user has ended the conversation."""


def run(chat: Chat, name: str) -> None:
    """Talk until the input ends. ValueError, OSError: a turn of a pipe has failed; a terminal goes on after it."""
    try:
        if sys.stdin.isatty() and sys.stdout.isatty():
            Terminal(chat).talk(name)
        else:
            converse(chat)
    except LeaveError:
        pass


def converse(chat: Chat) -> None:
    """One turn for each line of standard input; the replies on standard output, one after the other."""
    if chat.template.note:
        note(f"Note: {chat.template.note}", dim=True)
    commands = Commands(chat, lambda pieces: show(chat, pieces, str))
    for number, data in enumerate(sys.stdin.buffer, 1):
        try:
            line = data.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"line {number} of standard input is not UTF-8 text: convert it first") from error
        if line.strip():
            commands.obey(line)


class Terminal:
    """A person who types."""

    def __init__(self, chat: Chat) -> None:
        self.commands = Commands(chat, lambda pieces: show(chat, pieces, displayed))
        self.chat = chat
        try:
            import readline
        except ImportError:  # Windows: the console edits lines by itself
            return
        readline.parse_and_bind("set enable-bracketed-paste on")  # what is pasted is one message

    def talk(self, name: str) -> None:
        """Ask and answer until Ctrl-D."""
        click.echo(f"{click.style(printable(name), bold=True)}   /help: commands   Ctrl-C: stop a reply   Ctrl-D: end")
        if self.chat.template.note:
            note(f"Note: {self.chat.template.note}", dim=True)
        while True:
            try:
                text = self.read()
            except KeyboardInterrupt:
                click.echo()
                note("Ctrl-D ends the chat.", dim=True)
                continue
            except EOFError:
                click.echo()
                return
            if not text.strip():
                continue
            try:
                self.commands.obey(text)
            except KeyboardInterrupt:
                click.echo()
                note(
                    "Stopped. The model remembers what it had written; /undo takes it back, /regen tries again.",
                    dim=True,
                )
            except (ValueError, OSError, MemoryError) as error:
                click.secho(printable(" ".join(str(error).split())), fg="red", err=True)

    def read(self) -> str:
        """A message: a line, what was pasted, or all between triple quotes. EOFError, KeyboardInterrupt: none."""
        text = input(PROMPT).rstrip("\n")
        if not text.lstrip().startswith(QUOTES):
            return text
        text = text.lstrip().removeprefix(QUOTES)
        while not text.rstrip().endswith(QUOTES):
            text += "\n" + input(MORE).rstrip("\n")
        return text.rstrip().removesuffix(QUOTES).strip("\n")


def show(chat: Chat, pieces: Pieces, shown: Callable[[str], str]) -> None:
    """Write a reply as it comes, and what is to be said of it."""
    with closing(pieces):
        for piece in pieces:
            sys.stdout.write(shown(piece))
            sys.stdout.flush()
    click.echo()
    reply = chat.last
    assert reply is not None
    for line in remarks(chat, reply):
        note(line, dim=True)


def remarks(chat: Chat, reply: Reply) -> Iterator[str]:
    """What a user should know of a reply."""
    if not reply.text:
        yield "The reply is empty. /regen tries again."
    if reply.end == "length":
        yield f"The reply was cut after {len(reply.ids)} tokens; /set max_new_tokens allows longer ones."
    if reply.dropped:
        yield f"The first {reply.dropped} messages no longer fit: the model sees {chat.context} tokens at a time."


class Commands:
    """What a message that begins with a slash does. `answer` shows the pieces of a reply."""

    def __init__(self, chat: Chat, answer: Callable[[Pieces], None]) -> None:
        self.chat, self.answer = chat, answer

    def obey(self, text: str) -> None:
        """Say a message, or run a command. ValueError, OSError: it failed. LeaveError: the chat is over."""
        name, _, rest = text.strip().partition(" ")
        if not re.fullmatch(r"/[a-z]+", name):  # a path is no command
            self.answer(self.chat.stream(text))
            return
        command = getattr(self, f"_{name[1:]}", None)
        if command is None:
            raise ValueError(f"there is no command {name}; /help lists them")
        command(rest.strip())

    def _help(self, _: str) -> None:
        click.echo("".join(f"{command:18}{about}\n" for command, about in HELP), nl=False)

    def _system(self, text: str) -> None:
        if text:
            self.chat.system = text
        else:
            click.echo(displayed(self.chat.system or "There is no system prompt."))

    def _set(self, text: str) -> None:
        name, _, value = text.partition(" ")
        if not name:
            for key, each in asdict(self.chat.settings).items():
                click.echo(f"{key:20}{'-' if each in (None, ()) else each}")
        elif not value:
            raise ValueError(f"give a value, too: /set {name} VALUE, or - for none")
        else:
            self.chat.set(**{name: setting(value.strip())})

    def _regen(self, _: str) -> None:
        self.answer(self.chat.stream_again())

    def _undo(self, _: str) -> None:
        note(f"Taken back: {self.chat.undo()}", dim=True)

    def _save(self, path: str) -> None:
        self.chat.save(named(path, "/save"))
        note(f"Saved: {path}", dim=True)

    def _load(self, path: str) -> None:
        self.chat.load(named(path, "/load"))
        for turn in self.chat.turns:
            click.echo(f"{'> ' if turn.role == 'user' else ''}{displayed(turn.text)}")

    def _clear(self, _: str) -> None:
        self.chat.clear()

    def _quit(self, _: str) -> None:
        raise LeaveError

    _exit = _bye = _quit


def named(path: str, command: str) -> str:
    """The file that a command names. ValueError: it names none."""
    if not path:
        raise ValueError(f"name a file: {command} FILE")
    return path


def setting(value: str) -> Any:
    """A setting's value as it is typed: a number, a text, or - for none."""
    if value == "-":
        return None
    if NUMBER.fullmatch(value):
        return int(value)
    try:
        return float(value)
    except ValueError:
        return value
